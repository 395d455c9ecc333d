"""Models that the audit reads: where their attention is, and how to call them on a batch.

Three adapters: for torch modules, for our networks, and for models of transformers. What each attention layer computes
is caught while the model runs, see :mod:`mirrormax.auditing.calls`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mirrormax._attention_names import query_projection
from mirrormax.auditing.calls import WAYS, Way
from mirrormax.nets import TransformerClassifier, VisionTransformer

HEADED = ("ForSequenceClassification", "ForImageClassification")
CAUSAL = ("ForCausalLM", "LMHeadModel")
Readout = Callable[[Any], Tensor]
"""From a model's output to logits (B, classes)."""


class Part(NamedTuple):
    """An attention module of a model: its name, what makes its queries, and the way to work out its calls, if any."""

    name: str
    projection: str
    way: Way | None


class Adapter:
    """A model and how to call it on a batch; this one serves torch modules.

    A batch is one tensor (self-attention for a bare ``nn.MultiheadAttention``), a tuple of arguments, or keywords.
    To audit another make of model, write a subclass and give it to :func:`~mirrormax.auditing.audit` instead.

    Args:
        model: the module.
        form: of the heads, ``"token"`` or ``"query"``; None for the token form where a layer has one.
        head: from the model's output to logits (B, classes), where the adapter knows of none.
        ways: further attention classes by name, and how to read them (:mod:`mirrormax.auditing.calls`).
    """

    causal = False  # whether it is a language model, which answers at every token
    looks_back = False  # whether tokens look back only, so that the last query is the one to ask about

    def __init__(
        self,
        model: nn.Module,
        form: str | None = None,
        *,
        head: Readout | None = None,
        ways: Mapping[str, Way] | None = None,
    ) -> None:
        self.model, self.form, self.head, self.ways = model, form, head, {**WAYS, **(ways or {})}
        self.reader: Any = model  # the part that is read

    def parts(self) -> dict[nn.Module, Part]:
        """Its attention modules."""
        parts = {}
        for name, module in self.reader.named_modules():
            way, projection = self.ways.get(type(module).__name__), query_projection(module)
            if way is None and projection is None:
                continue
            name = name or "attention"
            if projection is None:  # nn.MultiheadAttention has one parameter, DeBERTa's first version one layer
                projection = next((packed for packed in ("in_proj_weight", "in_proj") if hasattr(module, packed)), None)
            if projection is None:
                raise ValueError(
                    f"layer {name} ({type(module).__name__}) has no child by a name that makes queries, such as query, "
                    "q_proj or c_attn, so that the audit cannot say how its queries are made."
                )
            of_torch = isinstance(module, nn.MultiheadAttention)
            if of_torch and (module.bias_k is not None or module.add_zero_attn):
                raise ValueError(
                    f"layer {name} adds keys of its own (add_bias_kv, add_zero_attn), which the audit cannot read."
                )
            if of_torch and not module._qkv_same_embed_dim:
                raise ValueError(
                    f"layer {name} has keys or values of another size than its queries; the audit needs one size."
                )
            parts[module] = Part(name, projection, way)
        return parts

    def call(self, batch: Any) -> Any:
        """Run the model on a batch."""
        bare = isinstance(self.model, nn.MultiheadAttention)
        if isinstance(batch, Tensor):
            return self.model(batch, batch, batch) if bare else self.model(batch)
        if isinstance(batch, Mapping):
            batch = {name: part for name, part in batch.items() if name != "labels"}
            if bare and set(batch) & {"query", "key", "value"} == {"query"}:
                batch = {"key": batch["query"], "value": batch["query"], **batch}
            return self.model(**batch)
        return self.model(*batch)

    def whole(self, batch: Any) -> Any:
        """All that the model answers, of a language model at every token."""
        return self.call(batch)

    def named(self, batch: Any) -> Mapping[str, Tensor]:
        """All of a batch, by the names of transformers; nothing where the parts of a batch have no such names."""
        return {}

    def first(self, batch: Any, count: int) -> tuple[Any, int]:
        """The first ``count`` sequences of a batch, or more where it cannot be cut, and how many these are."""
        part = {name: values[:count] for name, values in self.named(batch).items()}
        return (part, len(next(iter(part.values())))) if part else (batch, count)

    def labels(self, batch: Any) -> Tensor | None:
        """The labels (B,) that came with a batch, if any."""
        return (batch if isinstance(batch, Mapping) else self.named(batch)).get("labels")

    def has_head(self) -> bool:
        """Whether :meth:`logits` gives any, so that gradients are worth their price."""
        return self.head is not None

    def logits(self, output: Any) -> Tensor | None:
        """Class logits (B, classes) in what :meth:`call` returned; None where the model has no such head."""
        return None if self.head is None else self.head(output)

    def vectors(self, output: Any) -> Tensor:
        """Vectors of tokens (B, T, d) in what a model without a head returned."""
        hidden: Tensor = output[0] if isinstance(output, tuple | list) else output
        attention = [module for module in self.model.modules() if isinstance(module, nn.MultiheadAttention)]
        return hidden if all(module.batch_first for module in attention) else hidden.transpose(0, 1)


class OwnAdapter(Adapter):
    """A TransformerClassifier or a VisionTransformer; batches are ids (B, T) or pixels (B, C, H, W).

    Give them alone, as a pair with labels, or as a mapping with ``ids`` or ``pixels`` and maybe ``labels``.
    """

    def __init__(self, model: nn.Module, form: str | None = None, **options: Any) -> None:
        super().__init__(model, form, **options)
        self.head = self.head or (lambda logits: logits)

    def call(self, batch: Any) -> Any:
        inputs, *_ = self.named(batch).values()
        return self.model(inputs)

    def named(self, batch: Any) -> Mapping[str, Tensor]:
        config: Any = self.model.config
        reads_text = isinstance(self.model, TransformerClassifier)
        names = ("ids", "input_ids") if reads_text else ("pixels", "pixel_values")
        if isinstance(batch, Mapping):
            known = [batch[name] for name in names if name in batch]
            if not known:
                raise ValueError(f"a batch has the keys {sorted(batch)}; it needs one of {', '.join(names)}.")
            inputs, labels = known[0], batch.get("labels")
        elif isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
            inputs, labels = batch
        elif isinstance(batch, Tensor):
            inputs, labels = batch, None
        else:
            kind = type(batch).__name__
            raise TypeError(f"a batch must be a tensor, a pair of tensors (inputs, labels) or a mapping, got {kind}.")
        named = {names[1]: inputs}
        if reads_text:
            named["attention_mask"] = inputs.ne(config.pad_id)
        return named if labels is None else {**named, "labels": labels}


class HuggingFaceAdapter(Adapter):
    """A PreTrainedModel; batches are what its tokenizer or image processor returns, with or without ``labels``.

    Of a model with an encoder and a decoder the encoder is read.
    """

    def __init__(self, model: nn.Module, form: str | None = None, **options: Any) -> None:
        super().__init__(model, form, **options)
        config: Any = model.config
        if getattr(config, "attention_type", None) == "block_sparse":
            raise ValueError(
                f"model is a {type(model).__name__} that attends in blocks (attention_type is 'block_sparse'), which "
                "the audit cannot read; load it with attention_type='original_full', as its config.json may say."
            )
        if getattr(config, "is_encoder_decoder", False):
            self.reader = model.get_encoder()  # type: ignore[operator]
        self.causal = type(model).__name__.endswith(CAUSAL) or bool(getattr(config, "is_decoder", False))
        self.looks_back = self.causal or any(getattr(module, "is_causal", False) for module in self.parts())
        self._parameters = set(inspect.signature(type(self.reader).forward).parameters)
        known = self.head is None and self.reader is model and type(model).__name__.endswith((*HEADED, *CAUSAL))
        self._answers_last = known and self.causal
        if known:
            self.head = lambda output: output.logits if hasattr(output, "logits") else output[0]

    def call(self, batch: Any) -> Any:
        given = self._given_to(batch)
        if not self._answers_last:
            return self.reader(**given)
        ids, mask = given["input_ids"], given.get("attention_mask")
        if mask is None:
            mask = torch.ones_like(ids)
        last = (mask * torch.arange(1, ids.shape[1] + 1, device=ids.device)).argmax(-1)  # of every text, (B,)
        if "logits_to_keep" in self._parameters:
            kept, where = torch.unique(last, return_inverse=True)
            given["logits_to_keep"] = kept
        else:
            where = last
        logits = self.reader(**given).logits
        # what it says of the token after each text's last, (B, V)
        return SimpleNamespace(logits=logits[torch.arange(len(last), device=logits.device), where])

    def whole(self, batch: Any) -> Any:
        return self.reader(**self._given_to(batch))

    def _given_to(self, batch: Any) -> dict[str, Any]:
        given = {name: part for name, part in self.named(batch).items() if name != "labels"}
        return {**given, "use_cache": False} if "use_cache" in self._parameters else given

    def named(self, batch: Any) -> Mapping[str, Tensor]:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch for a Hugging Face model must be a mapping such as its tokenizer returns, got "
                f"{type(batch).__name__}; pass tokenizer(texts, padding=True, return_tensors='pt')."
            )
        return batch

    def vectors(self, output: Any) -> Tensor:
        hidden: Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
        return hidden


def adapter_for(
    model: Any, form: str | None = None, *, head: Readout | None = None, ways: Mapping[str, Way] | None = None
) -> Adapter:
    """The adapter of a model, an adapter being its own; see :class:`Adapter` for what may be said about the model."""
    if isinstance(model, Adapter):
        for name, given, own in (("form", form, model.form), ("head", head, None), ("ways", ways, None)):
            if given not in (None, own):
                raise ValueError(
                    f"{name} goes to the adapter itself, as in adapter_for(model, {name}=…); give it there."
                )
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or an audit adapter, got {type(model).__name__}; "
            "load a checkpoint first, e.g. with mirrormax.nets.load_model(folder).model."
        )
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    kind = Adapter
    if isinstance(model, TransformerClassifier | VisionTransformer):
        kind = OwnAdapter
    elif any(base.__module__.startswith("transformers.") for base in type(model).__mro__):
        kind = HuggingFaceAdapter
    adapter = kind(model, form, head=head, ways=ways)
    if not adapter.parts():
        raise ValueError(
            f"model is a {type(model).__name__}, which has no attention layer that the audit knows; give one of "
            "mirrormax.nets, a module with nn.MultiheadAttention, a model of transformers, or a way to read its "
            "layers, see adapter_for."
        )
    return adapter
