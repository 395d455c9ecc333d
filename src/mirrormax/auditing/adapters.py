"""How the audit reads our models and torch's; :func:`adapter_for` chooses among these and that of Hugging Face.

That a layer computes what it is taken to compute is checked on the first batch (``View.check``).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mirrormax.auditing.hugging_face import HuggingFaceAdapter
from mirrormax.auditing.layers import (
    Adapter,
    AttentionLayer,
    Layer,
    Projection,
    Seen,
    by_head,
    check_layers,
    inputs_and_labels,
    linear_layer,
    probed,
)
from mirrormax.nets import TransformerClassifier, VisionTransformer

SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def adapter_for(model: Any, form: str | None = None) -> Adapter:
    """The adapter of a model, an adapter being its own; ``form`` asks for the token or the query form."""
    if isinstance(model, Adapter):
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or an audit adapter, got {type(model).__name__}; "
            "load a checkpoint first, e.g. with mirrormax.nets.load_model(folder).model."
        )
    for kind in (OwnAdapter, HuggingFaceAdapter, TorchAdapter):
        if kind.knows(model):
            return kind(model, form)
    raise ValueError(
        f"model is a {type(model).__name__}, which has no attention layer that the audit knows; give one of "
        "mirrormax.nets, a module with nn.MultiheadAttention, or a model of transformers."
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

    def layers(self) -> list[Layer]:
        model: Any = self.model
        heads, found = int(model.config.heads), []
        for k, block in enumerate(model.blocks):
            part = block.attention
            parts = (part.query, part.key, part.value, part.output)
            found.append(linear_layer(f"blocks.{k}", heads, *parts, given=part))
        return self.formed(check_layers(found, "the model"))

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


class TorchAdapter(Adapter):
    """Batches are one tensor (self-attention for a bare nn.MultiheadAttention), a tuple of arguments, or keywords."""

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())

    def layers(self) -> list[Layer]:
        modules = self.model.named_modules()
        found = [_torch_layer(name, module) for name, module in modules if isinstance(module, nn.MultiheadAttention)]
        return self.formed(check_layers(found, "the model"))

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
