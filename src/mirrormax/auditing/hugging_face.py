"""Models of transformers: every attention layer caught where it hands queries, keys and values to the softmax.

Nearly all attention layers of transformers call one function of their file, ``eager_attention_forward``, with queries
and keys as they are *after* rotation and normalisation. While a model is watched that function also writes down what
it was given, so that one adapter reads BERT and GPT-2 as it reads Llama and Gemma. BLOOM, MPNet and DeBERTa compute
their attention themselves; what they would have given is worked out from their arguments (:data:`WITHOUT_FUNCTION`).
:mod:`mirrormax.auditing.query_form` makes of it what the audit asks for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mirrormax._attention_names import BEHIND, query_projection
from mirrormax.auditing.layers import Adapter, Layer, check_layers
from mirrormax.auditing.query_form import FUNCTION, CaughtLayer
from mirrormax.auditing.recipes import Caught

HEADED = ("ForSequenceClassification", "ForImageClassification")
CAUSAL = ("ForCausalLM", "LMHeadModel")
HIDDEN = -1e4
"""What is added to a logit to hide a token; biases of position are far above."""
WorkOut = Callable[[Any, Mapping[str, Any], Caught], None]
"""From a layer and what it was called with to what it has caught."""


class HuggingFaceAdapter(Adapter):
    """A PreTrainedModel; batches are what its tokenizer or image processor returns, with or without ``labels``.

    Of a model with an encoder and a decoder the encoder is read. ``form`` asks for one of the two forms; by default
    layers have the token form where there is one.
    """

    def __init__(self, model: nn.Module, form: str | None = None) -> None:
        super().__init__(model, form)
        config: Any = model.config
        self.reader: Any = model.get_encoder() if getattr(config, "is_encoder_decoder", False) else model  # type: ignore[operator]
        self.causal = type(model).__name__.endswith(CAUSAL) or bool(getattr(config, "is_decoder", False))
        attention = [module for module in self.reader.modules() if query_projection(module)]
        self.looks_back = self.causal or any(getattr(module, "is_causal", False) for module in attention)
        self._watched: dict[nn.Module, list[Caught]] = {}
        self._pending: dict[nn.Module, Caught] = {}
        self._calls: dict[nn.Module, int] = {}
        self._parameters = set(inspect.signature(type(self.reader).forward).parameters)

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)

    def layers(self) -> list[Layer]:
        found: list[Layer] = []
        modules = dict(self.reader.named_modules())
        parts = [(name, module, query) for name, module in modules.items() if (query := query_projection(module))]
        for name, module, query in parts:
            config: Any = self.reader.config
            calls = config.num_hidden_layers // config.num_hidden_groups if config.model_type == "albert" else 1
            for call in range(calls):
                shown = name if calls == 1 else f"{name} (call {call})"
                found.append(CaughtLayer(shown, module, query, call, self.watch, self.form))
        return list(check_layers(found, f"the {type(self.model).__name__}"))

    def whole(self, batch: Any) -> Any:
        """All that the model answers, of a language model at every token."""
        return self.reader(**self._given_to(batch))

    def _given_to(self, batch: Any) -> dict[str, Any]:
        self._calls.clear()
        given = {name: part for name, part in _mapping(batch).items() if name != "labels"}
        return {**given, "use_cache": False} if "use_cache" in self._parameters else given

    def call(self, batch: Any) -> Any:
        given = self._given_to(batch)
        if not self.has_head() or not self.causal:
            return self.reader(**given)
        last = self._last(given)
        if "logits_to_keep" in self._parameters:
            kept, where = torch.unique(last, return_inverse=True)
            logits = self.reader(**given, logits_to_keep=kept).logits
        else:
            where, logits = last, self.reader(**given).logits
        return _Next(logits[torch.arange(len(last), device=logits.device), where])

    def _last(self, given: Mapping[str, Tensor]) -> Tensor:
        """The position of every text's last token, (B,)."""
        ids = given["input_ids"]
        mask = given.get("attention_mask")
        if mask is None:
            return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
        return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(-1)

    def mask(self, batch: Any) -> Tensor | None:
        mask = _mapping(batch).get("attention_mask")
        return None if mask is None else mask.bool()

    def labels(self, batch: Any) -> Tensor | None:
        return _mapping(batch).get("labels")

    def ids(self, batch: Any) -> Tensor | None:
        return _mapping(batch).get("input_ids")

    def has_head(self) -> bool:
        return self.reader is self.model and type(self.model).__name__.endswith((*HEADED, *CAUSAL))

    def logits(self, output: Any) -> Tensor | None:
        if not self.has_head():
            return None
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return logits

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Eager attention, whose function writes down what it is given; all of it is undone."""
        parts: list[Any] = [part for part in self.model.modules() if hasattr(part, "config")]
        configs = {id(part.config): part.config for part in parts}
        before = [(config, getattr(config, "_attn_implementation", None)) for config in configs.values()]
        files = {type(module).__module__ for module in self.reader.modules() if query_projection(module)}
        functions = {name: vars(sys.modules[name])[FUNCTION] for name in files if FUNCTION in vars(sys.modules[name])}
        try:
            for config, known in before:
                if known is not None:
                    config._attn_implementation = "eager"
            for name, function in functions.items():
                setattr(sys.modules[name], FUNCTION, self._wrapped(function))
            yield
        finally:
            for name, function in functions.items():
                setattr(sys.modules[name], FUNCTION, function)
            for config, known in reversed(before):
                if known is not None:
                    config._attn_implementation = known
            self._watched.clear()
            self._pending.clear()

    def watch(self, layer: CaughtLayer, seen: Caught) -> list[RemovableHandle]:
        """Hooks of one layer; a module that is called several times is hooked once."""
        module = layer.module
        self._watched.setdefault(module, []).append(seen)
        if layer.call:
            return []
        query = module.get_submodule(layer.projection)

        def see_hidden(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            caught = self._current(module)
            if caught.hidden is None:  # DeBERTa also makes queries of distances, after those of the tokens
                caught.hidden = args[0].detach()

        def see_call(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = self._calls.get(module, 0)
            self._calls[module] = call + 1
            given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
            given = {**given, **given.get("kwargs", {})}
            known = self._watched[module]
            self._pending[module] = known[call] if call < len(known) else Caught()
            turn = given.get("position_embeddings")
            if isinstance(turn, tuple) and len(turn) == 2:
                self._current(module).turn = (turn[0].detach(), turn[1].detach())
            self._given = given

        handles = [
            module.register_forward_pre_hook(see_call, with_kwargs=True),
            query.register_forward_pre_hook(see_hidden),
        ]
        work_out = WITHOUT_FUNCTION.get(type(module).__name__)
        if work_out is not None:
            handles.append(self._worked_out(module, work_out))
        return handles

    def _worked_out(self, module: nn.Module, work_out: WorkOut) -> RemovableHandle:
        """Where there is no function to wrap: what it would be given, and the heads' outputs before they are mixed."""

        def answer(context: Tensor) -> Tensor:
            caught = self._current(module)
            work_out(module, self._given, caught)
            assert caught.query is not None
            return caught.answered(context.unflatten(-1, (caught.query.shape[1], -1))).flatten(-2)

        layers = (getattr(module, name, None) for name in BEHIND)
        output = next((layer for layer in layers if isinstance(layer, nn.Linear)), None)
        if output is not None:
            return output.register_forward_pre_hook(lambda _, args: (answer(args[0]), *args[1:]))
        return module.register_forward_hook(lambda _, __, out: (answer(out[0]), *out[1:]))

    def _current(self, module: nn.Module) -> Caught:
        return self._pending.setdefault(module, Caught())

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if "attention_mask" in kwargs:
                mask = kwargs.pop("attention_mask")
            context, *rest = function(module, query, key, value, mask, *args, **kwargs)
            if module not in self._watched:
                return (context, *rest)
            caught = self._current(module)
            caught.query, caught.key, caught.value = query.detach(), key.detach(), value.detach()
            given = inspect.signature(function).bind(module, query, key, value, mask, *args, **kwargs).arguments
            given = {**given, **given.get("kwargs", {})}
            scale = given.get("scaling")
            caught.scale = float(query.shape[-1] ** -0.5 if scale is None else scale)
            caught.cap = given.get("softcap")
            sinks = given.get("s_aux", getattr(module, "sinks", None))
            caught.sinks = sinks if isinstance(sinks, Tensor) else None
            caught.mask, caught.bias = _mask(mask, given.get("position_bias"), query, key)
            return (caught.answered(context), *rest)

        return attention


@dataclass(frozen=True, eq=False)
class _Next:
    """What a language model says of the token after each text's last, (B, V)."""

    logits: Tensor


def _mask(mask: Tensor | None, bias: Tensor | None, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor | None]:
    """What is added to the logits, as where a query may look (B, Q, T) and a bias (B, H, Q, T), None where it is 0."""
    B, H, Q, _ = query.shape
    T = key.shape[2]
    total = None if bias is None else bias.detach().expand(B, H, Q, T)
    if mask is None:
        return torch.ones(B, Q, T, dtype=torch.bool, device=query.device), total
    if mask.dtype == torch.bool:
        seen = mask[..., :T].expand(B, -1, Q, T)
    else:
        mask = mask.detach()[..., :T].expand(B, -1, Q, T)
        seen = mask > HIDDEN
        rest = mask.masked_fill(~seen, 0.0)
        if rest.any():
            total = rest.expand(B, H, Q, T) if total is None else total + rest
    if seen.shape[1] > 1 and not (seen == seen[:, :1]).all():
        raise ValueError("the attention mask differs from head to head; the audit needs one mask for all of them.")
    if total is not None:
        total = None if not total.any() else total
    return seen[:, 0], total


def _bloom(module: Any, given: Mapping[str, Any], caught: Caught) -> None:
    query, key, value = module._reshape(module.query_key_value(given["hidden_states"]))
    caught.query, caught.key, caught.value = query.detach(), key.detach(), value.detach()
    caught.scale = float(module.inv_norm_factor)
    slopes = given["alibi"].detach() * module.beta
    alibi = slopes.reshape(len(query), module.num_heads, 1, -1)
    caught.mask, caught.bias = _mask(given.get("attention_mask"), alibi, query, key)


def _mpnet(module: Any, given: Mapping[str, Any], caught: Caught) -> None:
    heads, hidden = module.num_attention_heads, given["hidden_states"]
    made = [part(hidden).detach() for part in (module.q, module.k, module.v)]
    parts = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in made]
    caught.query, caught.key, caught.value = parts
    caught.scale = float(module.attention_head_size**-0.5)
    caught.mask, caught.bias = _mask(given.get("attention_mask"), given.get("position_bias"), parts[0], parts[1])


def _deberta(module: Any, given: Mapping[str, Any], caught: Caught) -> None:
    """q·k + q·(key of the distance) + (query of the distance)·k: the second is in the keys, the third a bias."""
    heads, hidden = module.num_attention_heads, given["hidden_states"]

    def split(part: nn.Module, x: Tensor) -> Tensor:
        made: Tensor = part(x).detach().unflatten(-1, (heads, -1)).transpose(-2, -3)
        return made

    projections = (module.query_proj, module.key_proj, module.value_proj)
    query, key, value = (split(part, hidden) for part in projections)
    caught.query, caught.key, caught.value = query, key, value
    kinds = module.pos_att_type
    caught.scale = float((module.attention_head_size * (1 + sum(one in kinds for one in ("c2p", "p2c")))) ** -0.5)
    bias = None
    if module.relative_attention:
        span = module.pos_ebd_size
        places = given["rel_embeddings"][: 2 * span]
        distance = given["relative_pos"].detach().long()
        distance = distance.reshape(-1, *distance.shape[-2:])[0]
        shared = module.share_att_key
        if "c2p" in kinds:
            table = split(module.key_proj if shared else module.pos_key_proj, places)
            caught.offsets = (table, (distance + span).clamp(0, 2 * span - 1))
        if "p2c" in kinds:
            table = split(module.query_proj if shared else module.pos_query_proj, places)
            scores = torch.einsum("bhtk,hpk->bhtp", key, table)  # (B, H, T, P)
            index = (-distance + span).clamp(0, 2 * span - 1)  # (T, Q) for the key's own place first
            index = index.expand(*scores.shape[:2], *index.shape)
            bias = scores.gather(-1, index).transpose(-1, -2) * caught.scale
    caught.mask, caught.bias = _mask(given["attention_mask"].bool(), bias, query, key)


WITHOUT_FUNCTION: Mapping[str, WorkOut] = {
    "BloomAttention": _bloom,
    "MPNetSelfAttention": _mpnet,
    "DisentangledSelfAttention": _deberta,
}
"""Layers that compute their attention in their own forward: the class, and what it computes with."""


def _mapping(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"a batch for a Hugging Face model must be a mapping such as its tokenizer returns, got "
            f"{type(batch).__name__}; pass tokenizer(texts, padding=True, return_tensors='pt')."
        )
    return batch
