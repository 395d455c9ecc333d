"""What the audit asks of a model: its attention layers, projections by head, and how to call it on a batch.

Head h of a layer with inputs x_t (keys, values) and z (query) computes

    logit_t = (W_K x_t + b_K)ᵀ (W_Q z + b_Q) / √d_h,    output = W_O Σ_t softmax(logit)_t (W_V x_t + b_V) + b_O.

What is constant in t does not move a softmax, so b_K drops out and the logits are x_tᵀ W z̃ with

    z̃ = (z, 1),    W = [W_Kᵀ W_Q, W_Kᵀ b_Q] / √d_h    of shape (d, d + 1),

or z̃ = z and W = W_Kᵀ W_Q/√d_h of shape (d, d) where there is no query bias. That is the paper's W.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass(eq=False)
class Seen:
    """What one forward pass showed of one layer; gradients are filled in later, where there is a head."""

    x: Tensor | None = None  # (B, T, d)       what keys and values are made of
    z: Tensor | None = None  # (B, Q, d)       what queries are made of; None: of the same tokens x
    mask: Tensor | None = None  # (B, Q, T)    True where a query may look; None: the batch's own mask
    output: Tensor | None = None  # (B, R, d)  after the output projection, of the first R ≤ Q queries
    probe: Tensor | None = None  # (B, R, d)   zeros added to the output, to ask for gradients there


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
class AttentionLayer:
    """Projections in float64 by head, and ``attach``, which hooks the layer so that a pass fills a :class:`Seen`."""

    name: str
    query: Projection
    key: Projection
    value: Projection
    output: Tensor  # (H, d, d_h)
    output_bias: Tensor | None
    attach: Callable[[Seen], list[RemovableHandle]]

    @property
    def heads(self) -> int:
        return len(self.query.weight)

    @property
    def scale(self) -> float:
        return float(self.query.weight.shape[1] ** -0.5)

    def bilinear(self, head: int) -> Tensor:
        """W of the module's docstring, (d, d + 1) with a query bias, else (d, d)."""
        key = self.key.weight[head].T * self.scale
        W = key @ self.query.weight[head]
        if self.query.bias is None:
            return W
        return torch.cat([W, (key @ self.query.bias[head]).unsqueeze(-1)], -1)

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


def check_layers(layers: Sequence[AttentionLayer], what: str) -> list[AttentionLayer]:
    """The layers as a list, refused if there are none."""
    if not layers:
        raise ValueError(
            f"{what} has no attention layer that the audit knows; give a model of mirrormax.nets, a module with "
            "nn.MultiheadAttention, or an encoder of transformers."
        )
    return list(layers)


class Adapter(ABC):
    """A model, its attention layers, and how to call it on a batch.

    To audit another make of model, write one of these and give it to :func:`~mirrormax.auditing.audit` instead.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @classmethod
    @abstractmethod
    def knows(cls, model: nn.Module) -> bool:
        """Whether this adapter can read the model."""

    @abstractmethod
    def layers(self) -> list[AttentionLayer]:
        """The attention layers in the order in which they run."""

    @abstractmethod
    def call(self, batch: Any) -> Any:
        """Run the model on a batch."""

    def mask(self, batch: Any) -> Tensor | None:
        """True at tokens that are there, (B, T); None where all are."""
        return None

    def labels(self, batch: Any) -> Tensor | None:
        """The labels (B,) that came with a batch, if any."""
        return None

    def ids(self, batch: Any) -> Tensor | None:
        """Token numbers (B, T), for people to read; None where tokens are not words."""
        return None

    def has_head(self) -> bool:
        """Whether :meth:`logits` finds any, so that gradients are worth their price."""
        return False

    def logits(self, output: Any) -> Tensor | None:
        """Class logits (B, classes) in what :meth:`call` returned; None where the model has no such head."""
        return None


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
