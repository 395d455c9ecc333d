"""Our models and torch's, whose heads have the token form; :func:`adapter_for` chooses among these and Hugging Face's.

That a layer computes what it is taken to compute is checked on the first batch (``View.check``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mirrormax.auditing.hugging_face import HuggingFaceAdapter
from mirrormax.auditing.layers import (
    TOKEN,
    Adapter,
    Layer,
    Rows,
    Shuffle,
    View,
    attention_of,
    bilinear,
    check_finite,
    check_layers,
    check_output,
    with_bias,
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


def _formed(layers: Sequence[Layer], form: str | None) -> list[Layer]:
    """The layers in the form that was asked for."""
    return [replace(one, form=form) if form and isinstance(one, AttentionLayer) else one for one in layers]


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
        return _formed(check_layers(found, "the model"), self.form)

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
        return _formed(check_layers(found, "the model"), self.form)

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


@dataclass(eq=False)
class Seen:
    """What one forward pass showed of one layer; gradients are filled in later, where there is a head."""

    x: Tensor | None = None  # (B, T, d)       what keys and values are made of
    z: Tensor | None = None  # (B, Q, d)       what queries are made of; None: of the same tokens x
    mask: Tensor | None = None  # (B, Q, T)    True where a query may look; None: the batch's own mask
    output: Tensor | None = None  # (B, R, d)  after the output projection, of the first R ≤ Q queries
    probe: Tensor | None = None  # (B, R, d)   zeros added to the output, to ask for gradients there

    def clear(self) -> None:
        """Forget the pass before."""
        self.x = self.z = self.mask = self.output = self.probe = None


@dataclass(frozen=True, eq=False)
class Projection:
    """Weights of one of the four maps by head: ``weight (H, d_h, d)``, ``bias (H, d_h)`` or None."""

    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None, heads: int) -> Projection:
        """Rows of ``weight (H·d_h, d)`` belong to the heads one after the other."""
        rows, d = weight.shape
        weight = weight.detach().double().reshape(heads, rows // heads, d)
        return Projection(weight, None if bias is None else bias.detach().double().reshape(heads, -1))

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., N, d) to (..., H, N, d_h)."""
        y = torch.einsum("...nd,hkd->...hnk", x.double(), self.weight)
        return y if self.bias is None else y + self.bias.unsqueeze(-2)


@dataclass(frozen=True, eq=False)
class AttentionLayer(Layer):
    """A layer in token form by its projections, and ``hook``, which makes a pass fill a :class:`Seen`."""

    name: str
    query: Projection
    key: Projection
    value: Projection
    output: Tensor  # (H, d, d_h)
    output_bias: Tensor | None
    hook: Callable[[Seen], list[RemovableHandle]]
    form: str = TOKEN

    @property
    def heads(self) -> int:
        return len(self.query.weight)

    @property
    def scale(self) -> float:
        return float(self.query.weight.shape[1] ** -0.5)

    def new(self) -> Seen:
        return Seen()

    def attach(self, seen: Seen) -> list[RemovableHandle]:
        return self.hook(seen)

    def weights(self, head: int) -> Tensor:
        return self._weights(head, lambda part: part)

    def shuffled(self, head: int, seed: Sequence[int]) -> Tensor:
        return self._weights(head, Shuffle(seed))

    def _weights(self, head: int, order: Callable[[Tensor], Tensor]) -> Tensor:
        query, key = order(self.query.weight[head]), order(self.key.weight[head])
        bias = None if self.query.bias is None else order(self.query.bias[head])
        return (bilinear(key, query, bias) if self.form == TOKEN else with_bias(query, bias)) * self.scale

    def extended(self, z: Tensor) -> Tensor:
        """z̃: with a 1 appended where the query has a bias."""
        z = z.double()
        return z if self.query.bias is None else torch.cat([z, torch.ones_like(z[..., :1])], -1)

    def logits(self, x: Tensor, z: Tensor) -> Tensor:
        """x (B, T, d), z (B, Q, d) to (B, H, Q, T); b_K is left in, as the model has it."""
        queries = self.query(z) * self.scale
        size = queries.shape[-1]
        if z.shape[-2] >= size:
            return queries @ self.key(x).transpose(-1, -2)
        # Few queries: q·(W_K x) = (W_Kᵀq)·x spares the keys of all tokens.
        logits = torch.einsum("bhqd,btd->bhqt", queries @ self.key.weight, x.double())
        return logits if self.key.bias is None else logits + (queries @ self.key.bias.unsqueeze(-1))

    def mix(self, attention: Tensor, x: Tensor) -> Tensor:
        """The layer's output (B, Q, d) from attention (B, H, Q, T) and x (B, T, d)."""
        mixed = torch.einsum("bhqk,hdk->bqd", attention @ self.value(x), self.output)
        return mixed if self.output_bias is None else mixed + self.output_bias

    def pulled_back(self, gradient: Tensor) -> Tensor:
        """(W_O W_V)ᵀ g for g (..., d) at the output: (..., H, d), so that γ_t = ⟨·, x_t⟩ up to a constant in t."""
        return torch.einsum("...e,hek,hkd->...hd", gradient.double(), self.output, self.value.weight)

    def view(self, seen: Seen, mask: Tensor | None, gradient: Tensor | None) -> View:
        if seen.x is None or seen.output is None:
            raise ValueError(
                f"layer {self.name} was not called in the forward pass; the audit needs every layer to run."
            )
        z = seen.x if seen.z is None else seen.z
        shape = (len(seen.x), z.shape[1], seen.x.shape[1])
        if seen.mask is not None:
            whole = seen.mask
        elif mask is None:
            whole = torch.ones(shape, dtype=torch.bool, device=seen.x.device)
        else:
            whole = own_mask(mask, shape)
        check_finite(self.name, seen.x)
        return PlainView(self, seen.x, z, whole, seen.output, gradient)


@dataclass(frozen=True, eq=False)
class PlainView(View):
    """x (B, T, d), z (B, Q, d), mask (B, Q, T), output and its gradient (B, R, d) or None.

    The output is that of the first R ≤ Q queries: a last layer need not work out rows that nobody reads.
    """

    layer: AttentionLayer
    x: Tensor
    z: Tensor
    mask: Tensor
    output: Tensor
    gradient: Tensor | None

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.x.dtype == torch.float64

    def logits(self, positions: Tensor) -> Tensor:
        batch = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        return self.layer.logits(self.x, self.z[batch, positions])

    def rows(self, sequence: Tensor, query: Tensor) -> Rows:
        x, scores = self.x[sequence], None
        if self.gradient is not None and self.gradient.shape[1] > int(query.max()):
            gradient = self.gradient[sequence, query]
            scores = torch.einsum("ntd,nhd->nht", x.double(), self.layer.pulled_back(gradient))
            scores = scores.where(gradient.abs().amax(-1)[:, None, None] > 0, torch.nan)
        z = self.layer.extended(self.z[sequence, query]).unsqueeze(1).expand(-1, self.layer.heads, -1)
        if self.layer.form == TOKEN:
            return Rows(self.mask[sequence, query], z, scores, lambda head: x, groups=1)
        keys = self.layer.key(x)
        return Rows(self.mask[sequence, query], z, scores, lambda head: keys[:, head], groups=self.layer.heads)

    def check(self) -> None:
        done = self.output.shape[1]
        mask = self.mask[:, :done]
        attention = attention_of(self.layer.logits(self.x, self.z[:, :done]), mask)
        check_output(self.layer.name, self.layer.mix(attention, self.x), self.output, mask.any(-1))


def own_mask(mask: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A batch's mask (B, T) for every query, (B, Q, T)."""
    if mask.shape != (shape[0], shape[2]):
        raise ValueError(f"the mask of a batch has shape {tuple(mask.shape)}, its tokens {(shape[0], shape[2])}.")
    return mask.unsqueeze(1).expand(shape)


def by_head(weight: Tensor, heads: int) -> Tensor:
    """Columns of an output projection (d, H·d_h) as (H, d, d_h)."""
    d, columns = weight.shape
    return weight.detach().double().reshape(d, heads, columns // heads).transpose(0, 1)


def linear_layer(
    name: str, heads: int, query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear, given: nn.Module
) -> AttentionLayer:
    """A self-attention layer whose four projections are modules of their own, ``output`` called once a pass.

    ``given`` is the module that is called with all tokens: the layer itself, or its keys. The layer may work out its
    first few queries only, as a last layer does whose other rows nobody reads.
    """
    sizes = {len(query.weight), len(key.weight), len(value.weight), output.in_features}
    if heads < 1 or len(sizes) > 1 or len(query.weight) % heads:
        raise ValueError(
            f"layer {name} has projections of sizes {sorted(sizes)} for {heads} heads, and every head needs its own "
            "query, key and value of one size; grouped or shared heads cannot be audited."
        )

    def attach(seen: Seen) -> list[RemovableHandle]:
        def see_x(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen.x = args[0].detach()

        def see_output(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
            return probed(seen, out)

        return [
            given.register_forward_pre_hook(see_x),
            output.register_forward_hook(see_output),
        ]

    q, k, v = (Projection.of(part.weight, part.bias, heads) for part in (query, key, value))
    bias = None if output.bias is None else output.bias.detach().double()
    return AttentionLayer(name, q, k, v, by_head(output.weight, heads), bias, attach)


def probed(seen: Seen, out: Tensor) -> Tensor | None:
    """Note an output; where gradients are on, add a zero to it that they can be asked for."""
    seen.output = out.detach()
    if not torch.is_grad_enabled():
        return None
    seen.probe = torch.zeros_like(seen.output, requires_grad=True)
    return out + seen.probe


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


def inputs_and_labels(batch: Any, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
    """A batch given as a tensor, a pair (inputs, labels), or a mapping with one of ``names`` and maybe ``labels``."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        for name in names:
            if name in batch:
                return batch[name], batch.get("labels")
        raise ValueError(f"a batch has the keys {sorted(batch)}; it needs one of {', '.join(names)}.")
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    raise TypeError(
        f"a batch must be a tensor, a pair of tensors (inputs, labels) or a mapping, got {type(batch).__name__}."
    )
