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

with g_t = ‖x_α − x_t‖, or ‖x_α‖ + ‖x_t‖ where keys are rotated, each by its own position (times the factor by which a
rotation of long contexts also stretches). It is proven where queries and keys are R(W x + b), which the first pass
finds out. Where they are normalised, or other terms of the logits are made of the same weights, nothing is certified.

**Measured** is the share of selections that differ when queries and keys of every layer are changed, on other texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from mirrormax.auditing.adapters import Adapter
from mirrormax.auditing.calls import present
from mirrormax.auditing.layers import Layer, View
from mirrormax.auditing.options import WANDA, Progress
from mirrormax.auditing.recipes import extended
from mirrormax.auditing.result import Robustness
from mirrormax.auditing.watch import Watch, watching

GROUP = 128
"""Weights of a row that share a scale in schemes that end in ``/group``."""
Scheme = str | float


def changed(weight: Tensor, scheme: Scheme, inputs: Tensor | None = None) -> Tensor:
    """A matrix (rows, columns) rounded, or with a share of zeros.

    ``int8``, ``int4`` and ``int3`` are symmetric, with one scale per row, per ``/tensor`` or per ``/group`` of 128. A
    number is the share that is pruned by magnitude in the matrix; ``0.5/wanda`` prunes the share of each row with the
    smallest |w_ij| ‖x_j‖, ``inputs`` being the ‖x_j‖.
    """
    if isinstance(scheme, float):
        count = int(scheme * weight.numel())
        if not count:
            return weight.clone()
        threshold = weight.abs().flatten().kthvalue(count).values
        return weight.where(weight.abs() > threshold, 0.0)
    if scheme.endswith(WANDA):
        assert inputs is not None
        count = int(float(scheme.removesuffix(WANDA)) * weight.shape[1])
        least = (weight.abs() * inputs.to(weight)).argsort(dim=1, stable=True)[:, :count]
        return weight.scatter(1, least, 0.0)
    if scheme == "bf16":
        return weight.to(torch.bfloat16).to(weight.dtype)
    name, _, by = scheme.partition("/")
    most = 2 ** (int(name.removeprefix("int")) - 1) - 1
    if by == "tensor":
        size = weight.abs().max()
    elif by == "group":
        groups = torch.nn.functional.pad(weight, (0, -weight.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
        size = groups.abs().amax(-1, keepdim=True).expand_as(groups).flatten(1)[:, : weight.shape[1]]
    else:
        size = weight.abs().amax(1, keepdim=True)
    step = (size / most).clamp(min=torch.finfo(weight.dtype).tiny)
    nearest: Tensor = (weight / step).round().clamp(-most, most) * step
    return nearest


class Prediction:
    """One layer: what every scheme does to its queries and keys, and sums over rows of what that changes.

    ``inputs`` are the ‖x_j‖ of what queries and of what keys are made of, which Wanda asks for. Sums (H,) by scheme:
    ``flips`` of probabilities that a selection changes, ``safe`` of rows in which it cannot.
    """

    def __init__(self, layer: Layer, schemes: Sequence[Scheme], inputs: tuple[Tensor, Tensor]) -> None:
        self.layer, self.schemes, self.inputs, self.rows = layer, schemes, inputs, 0
        self.flips = {str(scheme): torch.zeros(layer.heads, dtype=torch.float64) for scheme in schemes}
        self.safe = {name: torch.zeros(layer.heads, dtype=torch.float64) for name in self.flips}
        self._noises = {str(scheme): self._noise(scheme) for scheme in schemes}

    def _noise(self, scheme: Scheme) -> list[Tensor]:
        """‖·‖_F/√(d_h d) of dQ and dK, then their ‖·‖₂, each (H, 1, 1)."""
        recipe, changes = self.layer.recipe, []
        pairs = zip(self.layer.matrices(), self.inputs, (recipe.query_of, recipe.key_of), strict=True)
        for matrix, inputs, of_heads in pairs:
            matrix = matrix.double()
            changes.append(of_heads(changed(matrix.float(), scheme, inputs).double()) - of_heads(matrix))
        means = [change.square().mean((1, 2)).sqrt() for change in changes]
        largest = [torch.linalg.matrix_norm(change, 2) for change in changes]
        return [change[:, None, None] for change in (*means, *largest)]

    def add(self, view: View, logits: Tensor, rows: Tensor) -> None:
        """Logits (B, H, Q, T), −∞ where a query may not look, of the rows (B, Q) that have a choice."""
        call, recipe = view.call, self.layer.recipe
        self.rows += int(rows.sum())
        B, H, Q, T = logits.shape
        x = call.tokens.double().unsqueeze(1)
        z = extended(recipe, call.hidden.double().flatten(0, 1))[..., : recipe.weight.shape[-1]]
        stretch = 1.0
        if recipe.rotation is not None and call.turn is not None:
            stretch = max(1.0, float((call.turn[0].square() + call.turn[1].square()).max().sqrt()))
        of_z = call.scale * stretch * z.norm(dim=-1).reshape(B, Q, H).transpose(1, 2).unsqueeze(-1)
        of_query = call.scale * stretch * call.query.double().norm(dim=-1, keepdim=True)  # (B, H, Q, 1)
        lead, alpha = logits.max(-1, keepdim=True)
        leads, rivals = lead - logits, logits.isfinite()
        rivals.scatter_(-1, alpha, False)
        keys = call.key.double().repeat_interleave(H // call.key.shape[1], 1)
        keys = keys if recipe.gain is None else keys * recipe.gain[:, None]
        alpha = alpha.squeeze(-1)
        between, gap = _distances(keys, alpha, T), _distances(x, alpha, T)
        apart = gap if recipe.rotation is None else _sums(x, alpha, T)
        counted = rows.unsqueeze(1)
        for name, (query, key, largest_query, largest_key) in self._noises.items():
            sigma = ((between * of_z * query) ** 2 + (gap * of_query * key) ** 2).sqrt()
            score = (leads / sigma.clamp(min=1e-300)).masked_fill(~rivals, torch.inf).amin(-1)
            self.flips[name] += (torch.special.ndtr(-score) * counted).sum((0, 2)).cpu()
            if recipe.plain:
                bound = (between * of_z * largest_query).add_((of_query + largest_query * of_z) * largest_key * apart)
                self.safe[name] += (((leads > bound) | ~rivals).all(-1) & counted).double().sum((0, 2)).cpu()

    def answers(self, layer: int, measured: dict[str, Tensor] | None = None) -> list[Robustness]:
        """Every scheme's shares of every head, with those that were ``measured`` (H,)."""
        return [
            Robustness(
                layer=layer,
                head=head,
                scheme=name,
                predicted=float(self.flips[name][head]) / self.rows,
                certified=float(self.safe[name][head]) / self.rows if self.layer.recipe.plain else None,
                measured=None if measured is None else float(measured[name][head]),
                rows=self.rows,
            )
            for name in self.flips
            for head in range(self.layer.heads)
        ]


def input_norms(view: View) -> tuple[Tensor, Tensor]:
    """‖x_j‖ over the tokens that are there, of what queries and of what keys are made of."""
    call = view.call
    queries = call.hidden[call.mask.any(-1)].double().norm(dim=0)
    keys = call.tokens[call.mask.any(1)]
    return queries, keys.double().norm(dim=0)


def _distances(x: Tensor, alpha: Tensor, count: int) -> Tensor:
    """‖x_α − x_t‖ (B, H, Q, T) for x (B, H or 1, T, d) and alpha (B, H, Q); a learned sink is made of nothing."""
    x = torch.nn.functional.pad(x, (0, 0, 0, count - x.shape[2]))
    size = x.square().sum(-1)
    squares = size.unsqueeze(-1) + size.unsqueeze(-2) - 2 * x @ x.transpose(-1, -2)  # of every pair, (B, ·, T, T)
    every = squares.clamp(min=0).sqrt().expand(-1, alpha.shape[1], -1, -1)
    return every.gather(2, alpha.unsqueeze(-1).expand(-1, -1, -1, count))


def _sums(x: Tensor, alpha: Tensor, count: int) -> Tensor:
    """‖x_α‖ + ‖x_t‖ (B, H, Q, T)."""
    sizes = torch.nn.functional.pad(x.norm(dim=-1), (0, count - x.shape[2])).expand(-1, alpha.shape[1], -1)
    return sizes.gather(2, alpha).unsqueeze(-1) + sizes.unsqueeze(2)


@contextmanager
def rounded(matrices: Iterable[tuple[Tensor, Tensor | None]], scheme: Scheme) -> Iterator[None]:
    """These matrices, given with the norms of their inputs, as the scheme leaves them; afterwards as before."""
    weights = {weight.data_ptr(): (weight, inputs) for weight, inputs in matrices}
    with ExitStack() as undo:
        for weight, inputs in weights.values():
            undo.callback(weight.copy_, weight.clone())
            weight.copy_(changed(weight.float(), scheme, inputs))
        yield


def robustness(
    predictions: Sequence[Prediction], adapter: Adapter, held_out: Iterable[Any] | None, tell: Progress
) -> list[Robustness]:
    """What every layer predicts, with the share of selections that change on held-out texts, if any, beside it."""
    if held_out is None:
        return [answer for k, layer in enumerate(predictions) for answer in layer.answers(k)]
    batches, schemes = list(held_out), predictions[0].schemes
    shares: list[dict[str, Tensor]] = [{} for _ in predictions]
    matrices = [
        pair for prediction in predictions for pair in zip(prediction.layer.matrices(), prediction.inputs, strict=True)
    ]
    with watching(adapter) as watch:
        own = [selections(watch, batch) for batch in batches]
        for k, scheme in enumerate(schemes):
            with rounded(matrices, scheme):
                differ: list[list[Tensor]] = []
                for n, (batch, before) in enumerate(zip(batches, own, strict=True)):
                    differ.append([(a != b).double() for a, b in zip(before, selections(watch, batch), strict=True)])
                    tell("rounding", k * len(batches) + n + 1, len(schemes) * len(batches))
            for share, of_batches in zip(shares, zip(*differ, strict=True), strict=True):
                share[str(scheme)] = torch.cat(of_batches).mean(0)
    return [answer for k, layer in enumerate(predictions) for answer in layer.answers(k, shares[k])]


def selections(watch: Watch, batch: Any) -> list[Tensor]:
    """The selected token (N, H) of every query that has a choice, by layer."""
    views = watch.run(batch)
    selected = []
    for view in views:
        there = (view.mask.sum(-1) > 1) & present(view.call.mask)
        selected.append(view.logits().masked_fill(~view.mask.unsqueeze(1), -math.inf).argmax(-1).transpose(1, 2)[there])
    return selected
