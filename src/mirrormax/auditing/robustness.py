"""What a head selects after its weights are rounded or pruned: predicted, certified, and measured.

The lead of the selected token α over a rival t is

    lead_t = s (W_Q z)ᵀ (k_α − k_t),    k_t = W_K x_t,

up to rotations, which change no length. Changing W_Q by dQ moves it by s (dQ z)ᵀ(k_α − k_t), and W_K by dK by
s qᵀ dK (x_α − x_t). If the entries of dQ (d_h × d) are as independent noise of the same mean square, the lead moves by
noise of variance

    σ_t² = (s ‖k_α − k_t‖ ‖z‖ ‖dQ‖_F)² / (d_h d) + (s ‖q‖ ‖x_α − x_t‖ ‖dK‖_F)² / (d_h d),

and a selection changes where the lead of some rival falls below zero. **Predicted** is the mean over rows of
Φ(−min_t lead_t/σ_t): the largest of the rivals' probabilities, which is below that of any of them winning and above
none. It needs no pass of the changed model, and is over every token of the texts.

**Certified** is the share of rows in which no change of this size can move the selection, given the layer's inputs:

    lead_t > s ‖k_α − k_t‖ ‖z‖ ‖dQ‖₂ + s (‖q‖ + ‖dQ‖₂ ‖z‖) ‖dK‖₂ g_t    for every rival t,

with g_t = ‖x_α − x_t‖, or ‖x_α‖ + ‖x_t‖ where keys are rotated, each by its own position.

**Measured** is the share of selections that differ when queries and keys of every layer are changed, on other texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mirrormax.auditing.adapters import Adapter
from mirrormax.auditing.layers import Layer, View
from mirrormax.auditing.recipes import extended
from mirrormax.auditing.result import Robustness
from mirrormax.auditing.watch import Watch, watching

BITS = {"int8": 8, "int4": 4, "int3": 3}
GROUP = 128
"""Weights of a row that share a scale in schemes that end in ``/group``."""


def changed(weight: Tensor, scheme: str | float) -> Tensor:
    """A matrix (rows, columns) rounded, or pruned to a share of zeros by magnitude.

    ``int8``, ``int4`` and ``int3`` are symmetric, with one scale per row, per ``/tensor`` or per ``/group`` of 128.
    """
    if isinstance(scheme, float):
        count = int(scheme * weight.numel())
        if not count:
            return weight.clone()
        threshold = weight.abs().flatten().kthvalue(count).values
        return weight.where(weight.abs() > threshold, 0.0)
    if scheme == "bf16":
        return weight.to(torch.bfloat16).to(weight.dtype)
    name, _, by = scheme.partition("/")
    most = 2 ** (BITS[name] - 1) - 1
    if by == "tensor":
        size = weight.abs().max()
    elif by == "group":
        groups = torch.nn.functional.pad(weight, (0, -weight.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
        size = groups.abs().amax(-1, keepdim=True).expand_as(groups).flatten(1)[:, : weight.shape[1]]
    else:
        size = weight.abs().amax(1, keepdim=True)
    step = (size / most).clamp(min=torch.finfo(weight.dtype).tiny)
    found: Tensor = (weight / step).round().clamp(-most, most) * step
    return found


@dataclass(frozen=True, eq=False)
class Noise:
    """What a scheme does to the queries and keys of one layer, by head: ‖·‖_F/√(d_h d) and ‖·‖₂ of dQ and dK, (H,)."""

    query: Tensor
    key: Tensor
    largest_query: Tensor
    largest_key: Tensor


def noise_of(layer: Layer, scheme: str | float) -> Noise:
    """The change that a scheme makes to a layer."""
    weights = layer.recipe.weight.float(), layer.key_weights().float()
    parts = [changed(one.flatten(0, 1), scheme).reshape(one.shape) - one for one in weights]
    means = [one.square().mean((1, 2)).sqrt().double() for one in parts]
    largest = [torch.linalg.matrix_norm(one.double(), 2) for one in parts]
    return Noise(*means, *largest)


class Prediction:
    """Sums over the rows of one layer, for every scheme and head: what noise would change, and what it cannot."""

    def __init__(self, layer: Layer, schemes: Sequence[str | float]) -> None:
        self.layer, self.rows = layer, 0
        self.noises = {str(scheme): noise_of(layer, scheme) for scheme in schemes}
        self._changed = {name: torch.zeros(layer.heads, dtype=torch.float64) for name in self.noises}
        self._safe = {name: torch.zeros(layer.heads, dtype=torch.float64) for name in self.noises}
        self._sound = True  # whether the bound holds: keys of distances have changes of their own

    def add(self, view: View, logits: Tensor, rows: Tensor) -> None:
        """Logits (B, H, Q, T), −∞ where a query may not look, of the rows (B, Q) that have a choice."""
        call, recipe = view.call, self.layer.recipe
        assert call.hidden is not None
        assert call.query is not None
        assert call.key is not None
        self._sound &= call.offsets is None
        self.rows += int(rows.sum())
        B, H, Q, T = logits.shape
        x = (call.hidden if call.tokens is None else call.tokens).double()
        z = extended(recipe, call.hidden.double().flatten(0, 1))[..., : recipe.weight.shape[-1]]
        of_z = call.scale * z.norm(dim=-1).reshape(B, Q, H)
        of_query = call.scale * call.query.double().norm(dim=-1)  # (B, H, Q)
        for head in range(H):
            lead, alpha = (part.squeeze(-1) for part in logits[:, head].max(-1, keepdim=True))
            leads = lead.unsqueeze(-1) - logits[:, head]
            keys = call.key[:, head // (H // call.key.shape[1])].double()
            keys = keys if recipe.gain is None else keys * recipe.gain[head]
            between, gap = (_distances(part, alpha, T) for part in (keys, x))
            apart = gap if recipe.rotation is None else _sums(x, alpha, T)
            z_size, q_size = of_z[:, :, head, None], of_query[:, head].unsqueeze(-1)
            rivals = logits[:, head].isfinite()
            rivals.scatter_(-1, alpha.unsqueeze(-1), False)
            for name, noise in self.noises.items():
                query, key = noise.query[head], noise.key[head]
                sigma = ((between * z_size * query) ** 2 + (gap * q_size * key) ** 2).sqrt()
                score = (leads / sigma.clamp(min=1e-300)).masked_fill(~rivals, torch.inf).amin(-1)
                self._changed[name][head] += float(torch.special.ndtr(-score[rows]).sum())
                bound = between * z_size * noise.largest_query[head]
                bound = bound + (q_size + noise.largest_query[head] * z_size) * noise.largest_key[head] * apart
                safe = ((leads > bound) | ~rivals).all(-1)
                self._safe[name][head] += float(safe[rows].sum())

    def answers(self, layer: int) -> list[Robustness]:
        """Every scheme's shares of every head; none is certified where the bound does not hold."""
        return [
            Robustness(
                layer=layer,
                head=head,
                scheme=name,
                predicted=float(self._changed[name][head]) / self.rows,
                certified=float(self._safe[name][head]) / self.rows if self._sound else None,
                measured=None,
                rows=self.rows,
            )
            for name in self.noises
            for head in range(self.layer.heads)
        ]


def _distances(x: Tensor, alpha: Tensor, count: int) -> Tensor:
    """‖x_α − x_t‖ (B, Q, T) for x (B, T, d) and alpha (B, Q); a learned sink, one more token, is made of nothing."""
    x = torch.nn.functional.pad(x, (0, 0, 0, count - x.shape[1]))
    own = torch.gather(x, 1, alpha.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
    squares = own.square().sum(-1, keepdim=True) + x.square().sum(-1).unsqueeze(1) - 2 * own @ x.transpose(1, 2)
    return squares.clamp(min=0).sqrt()


def _sums(x: Tensor, alpha: Tensor, count: int) -> Tensor:
    """‖x_α‖ + ‖x_t‖ (B, Q, T)."""
    sizes = torch.nn.functional.pad(x.norm(dim=-1), (0, count - x.shape[1]))
    return sizes.gather(1, alpha).unsqueeze(-1) + sizes.unsqueeze(1)


@contextmanager
def rounded(matrices: Iterable[Tensor], scheme: str | float) -> Iterator[None]:
    """These matrices as the scheme leaves them; afterwards as before."""
    weights = {id(weight): weight for weight in matrices}
    before = {key: weight.detach().clone() for key, weight in weights.items()}
    try:
        with torch.no_grad():
            for weight in weights.values():
                weight.copy_(changed(weight.detach().float().flatten(1), scheme).reshape(weight.shape))
        yield
    finally:
        with torch.no_grad():
            for key, weight in weights.items():
                weight.copy_(before[key])


def with_measured(
    predictions: Sequence[Robustness],
    adapter: Adapter,
    batches: Iterable[Any],
    schemes: Sequence[str | float],
    tell: Callable[[str, int, int | None], None],
) -> list[Robustness]:
    """The predictions with the share of selections that change on these texts, over every token, beside them."""
    batches, shares = list(batches), dict[str, list[Tensor]]()
    with watching(adapter) as watch:
        own = [selections(watch, batch) for batch in batches]
        for k, scheme in enumerate(schemes):
            with rounded([one for layer in watch.layers for one in layer.matrices()], scheme):
                differ: list[list[Tensor]] = []
                for n, (batch, before) in enumerate(zip(batches, own, strict=True)):
                    differ.append([(a != b).double() for a, b in zip(before, selections(watch, batch), strict=True)])
                    tell("rounding", k * len(batches) + n + 1, len(schemes) * len(batches))
            shares[str(scheme)] = [torch.cat(of_batches).mean(0) for of_batches in zip(*differ, strict=True)]
    return [replace(one, measured=float(shares[one.scheme][one.layer][one.head])) for one in predictions]


def selections(watch: Watch, batch: Any) -> list[Tensor]:
    """The selected token (N, H) of every query that has a choice, by layer."""
    views = watch.run(batch)
    found = []
    for view in views:
        B, Q, _ = view.mask.shape
        there = (view.mask.sum(-1) > 1) & (view.mask.any(1)[:, :Q] if view.mask.shape[2] >= Q else True)
        logits = view.logits(torch.arange(Q, device=view.mask.device).expand(B, Q))
        found.append(logits.masked_fill(~view.mask.unsqueeze(1), -math.inf).argmax(-1).transpose(1, 2)[there])
    return found
