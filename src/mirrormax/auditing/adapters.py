"""How the audit reads models of different makes: ours, torch's and Hugging Face's; :func:`adapter_for` chooses.

Encoders of transformers (BERT, DistilBERT, RoBERTa, ViT and what is built like them) are recognised by the names of
their projections, so that transformers itself is not imported here. That a layer computes what the names promise is
checked on the first batch (:func:`mirrormax.auditing.passes.check_agreement`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mirrormax._attention_names import output_projection, separate_projections
from mirrormax.auditing.layers import (
    Adapter,
    AttentionLayer,
    Projection,
    Seen,
    by_head,
    check_layers,
    inputs_and_labels,
    linear_layer,
    probed,
)
from mirrormax.nets import TransformerClassifier, VisionTransformer

HEADED = ("ForSequenceClassification", "ForImageClassification")
SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def adapter_for(model: Any) -> Adapter:
    """The adapter of a model, an adapter being its own."""
    if isinstance(model, Adapter):
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or an audit adapter, got {type(model).__name__}; "
            "load a checkpoint first, e.g. with mirrormax.nets.load_model(folder).model."
        )
    for kind in (OwnAdapter, HuggingFaceAdapter, TorchAdapter):
        if kind.knows(model):
            return kind(model)
    raise ValueError(
        f"model is a {type(model).__name__}, which has no attention layer that the audit knows; give one of "
        "mirrormax.nets, a module with nn.MultiheadAttention, or a BERT, DistilBERT, RoBERTa or ViT of transformers."
    )


class OwnAdapter(Adapter):
    """A TransformerClassifier or a VisionTransformer; batches are ids (B, T) or pixels (B, C, H, W).

    Give them alone, as a pair with labels, or as a mapping with ``ids`` or ``pixels`` and maybe ``labels``.
    """

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return isinstance(model, TransformerClassifier | VisionTransformer)

    @property
    def _reads_text(self) -> bool:
        return isinstance(self.model, TransformerClassifier)

    def layers(self) -> list[AttentionLayer]:
        model: Any = self.model
        heads, found = int(model.config.heads), []
        for k, block in enumerate(model.blocks):
            part = block.attention
            parts = (part.query, part.key, part.value, part.output)
            found.append(linear_layer(f"blocks.{k}", heads, *parts, given=part))
        return check_layers(found, "the model")

    def call(self, batch: Any) -> Any:
        return self.model(self._inputs(batch))

    def mask(self, batch: Any) -> Tensor | None:
        config: Any = self.model.config
        return self._inputs(batch).ne(config.pad_id) if self._reads_text else None

    def labels(self, batch: Any) -> Tensor | None:
        return inputs_and_labels(batch, ("ids", "input_ids", "pixels", "pixel_values"))[1]

    def ids(self, batch: Any) -> Tensor | None:
        return self._inputs(batch) if self._reads_text else None

    def has_head(self) -> bool:
        return True

    def logits(self, output: Any) -> Tensor | None:
        return output if isinstance(output, Tensor) else None

    def _inputs(self, batch: Any) -> Tensor:
        return inputs_and_labels(batch, ("ids", "input_ids") if self._reads_text else ("pixels", "pixel_values"))[0]


class HuggingFaceAdapter(Adapter):
    """A PreTrainedModel; batches are what its tokenizer or image processor returns, with or without ``labels``."""

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)

    def layers(self) -> list[AttentionLayer]:
        if getattr(self.model.config, "is_decoder", False) or getattr(self.model.config, "is_encoder_decoder", False):
            raise ValueError(f"model is a {type(self.model).__name__}, a decoder; the audit reads encoders only.")
        modules = dict(self.model.named_modules())
        found = [
            layer for name, module in modules.items() if (layer := _linear_layer(name, module, modules)) is not None
        ]
        return check_layers(found, f"the {type(self.model).__name__}")

    def call(self, batch: Any) -> Any:
        return self.model(**{name: part for name, part in _mapping(batch).items() if name != "labels"})

    def mask(self, batch: Any) -> Tensor | None:
        mask = _mapping(batch).get("attention_mask")
        return None if mask is None else mask.bool()

    def labels(self, batch: Any) -> Tensor | None:
        return _mapping(batch).get("labels")

    def ids(self, batch: Any) -> Tensor | None:
        return _mapping(batch).get("input_ids")

    def has_head(self) -> bool:
        return type(self.model).__name__.endswith(HEADED)

    def logits(self, output: Any) -> Tensor | None:
        if not self.has_head():
            return None
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return logits


def _linear_layer(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> AttentionLayer | None:
    """The layer of a module whose children are called queries, keys and values, if it is one."""
    names = separate_projections(module)
    heads = getattr(module, "num_attention_heads", getattr(module, "n_heads", None))
    if names is None or not isinstance(heads, int):
        return None
    output = output_projection(module)
    if output is None:  # BERT's stands beside its attention
        output = getattr(getattr(modules.get(name.rpartition(".")[0]), "output", None), "dense", None)
    query, key, value = (module.get_submodule(one) for one in names)
    for part in (query, key, value, output):
        if not isinstance(part, nn.Linear):
            return None
    return linear_layer(name, heads, query, key, value, output, given=key)  # type: ignore[arg-type]


def _mapping(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"a batch for a Hugging Face model must be a mapping such as its tokenizer returns, got "
            f"{type(batch).__name__}; pass tokenizer(texts, padding=True, return_tensors='pt')."
        )
    return batch


class TorchAdapter(Adapter):
    """Batches are one tensor (self-attention for a bare nn.MultiheadAttention), a tuple of arguments, or keywords."""

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())

    def layers(self) -> list[AttentionLayer]:
        modules = self.model.named_modules()
        found = [_torch_layer(name, module) for name, module in modules if isinstance(module, nn.MultiheadAttention)]
        return check_layers(found, "the model")

    def call(self, batch: Any) -> Any:
        bare = isinstance(self.model, nn.MultiheadAttention)
        if isinstance(batch, Tensor):
            return self.model(batch, batch, batch) if bare else self.model(batch)
        if isinstance(batch, Mapping):
            batch = {name: part for name, part in batch.items() if name != "labels"}
            if bare and set(batch) & {"query", "key", "value"} == {"query"}:
                batch = {"key": batch["query"], "value": batch["query"], **batch}
            return self.model(**batch)
        return self.model(*batch)

    def labels(self, batch: Any) -> Tensor | None:
        return batch.get("labels") if isinstance(batch, Mapping) else None


def _torch_layer(name: str, module: nn.MultiheadAttention) -> AttentionLayer:
    name = name or "attention"
    if module.bias_k is not None or module.add_zero_attn:
        raise ValueError(
            f"layer {name} adds keys of its own (add_bias_kv, add_zero_attn), which the audit cannot read."
        )
    if not module._qkv_same_embed_dim:
        raise ValueError(f"layer {name} has keys or values of another size than its queries; the audit needs one size.")
    H, d = module.num_heads, module.embed_dim
    weights = module.in_proj_weight.split(d)
    biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.split(d)
    q, k, v = (Projection.of(weight, bias, H) for weight, bias in zip(weights, biases, strict=True))
    bias = None if module.out_proj.bias is None else module.out_proj.bias.detach().double()

    def attach(seen: Seen) -> list[RemovableHandle]:
        return [
            module.register_forward_pre_hook(
                lambda m, args, kwargs: _see_inputs(seen, m, args, kwargs), with_kwargs=True
            ),
            module.register_forward_hook(lambda m, _, out: _see_output(seen, m, out)),
        ]

    return AttentionLayer(name, q, k, v, by_head(module.out_proj.weight, H), bias, attach)


def _see_inputs(seen: Seen, module: nn.MultiheadAttention, args: Any, kwargs: Any) -> None:
    given = SIGNATURE.bind(module, *args, **kwargs).arguments
    query, key = given["query"].detach(), given["key"].detach()
    same = given["value"] is given["key"] or torch.equal(given["value"], given["key"])
    if not same or query.ndim != 3:
        raise ValueError("the audit needs batched attention whose keys and values are made of the same tokens.")
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    seen.z, seen.x = query, key
    shape = (len(key), query.shape[1], key.shape[1])
    mask = torch.ones(shape, dtype=torch.bool, device=key.device)
    padding, allowed = given.get("key_padding_mask"), given.get("attn_mask")
    if padding is not None:
        mask = mask & _may_look(padding).unsqueeze(1)
    if allowed is not None:
        if allowed.ndim == 3 and len(allowed) != len(key):
            raise ValueError("attn_mask differs from head to head; the audit needs one mask (T, T) for all of them.")
        mask = mask & _may_look(allowed)
    seen.mask = mask


def _may_look(mask: Tensor) -> Tensor:
    """torch's two kinds of mask, True or −inf at what is hidden, as True at what is shown."""
    if mask.dtype == torch.bool:
        return ~mask
    hidden = torch.isneginf(mask)
    if not (hidden | (mask == 0)).all():
        raise ValueError("attn_mask adds numbers to the logits, which is no longer x' W z; the audit cannot read that.")
    return ~hidden


def _see_output(seen: Seen, module: nn.MultiheadAttention, out: tuple[Tensor, Tensor | None]) -> Any:
    # The layers speak of (B, Q, d); a module that is not batch_first gets its own order back.
    mixed = out[0] if module.batch_first else out[0].transpose(0, 1)
    changed = probed(seen, mixed)
    if changed is None:
        return None
    return (changed if module.batch_first else changed.transpose(0, 1), *out[1:])
