r"""SparseGPT (Frantar and Alistarh, 2023): prune a matrix so that its layer's outputs change least, and let what stays
make up for what goes.

With the inputs X (tokens × inputs) of a layer and H = XᵀX + λI, λ a hundredth of the mean of XᵀX's diagonal, setting
w_j of a row to zero while the entries behind it may move costs

.. code-block:: text

    w_j² / [(H_{≥j})⁻¹]_jj,   and the others move by   δ_F = w_j (H_FF)⁻¹ H_Fj,   F = {j + 1, …}

where H_{≥j} and H_FF are the blocks of the entries that are not settled yet. One factor holds all these inverses:
if H⁻¹ = UᵀU with U upper triangular, then [(H_{≥j})⁻¹]_jj = U_jj², and δ_F = −(w_j / U_jj) U_jF. Columns are settled
from left to right; in each block of 128 the cheapest entries are chosen at once, by what the columns before have left.

Layers are pruned in the order in which the network calls them, each on what the pruned layers before it give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.pruning.in_order import in_order
from mirrormax.pruning.inputs import check_seen, evaluating, some
from mirrormax.pruning.places import Place
from mirrormax.pruning.units import above

COLUMNS = 128
"""Columns whose entries are chosen together."""
DAMPING = 0.01


@torch.no_grad()
def sparsegpt(
    model: nn.Module,
    places: Mapping[str, Place],
    share: float,
    scope: str,
    pattern: tuple[int, int] | None,
    batches: Iterable[Any],
    settle: Callable[[Place, Tensor, Tensor], None],
) -> None:
    """Prune each place in the order of the network; ``settle(place, keep, weights)`` puts masks and new weights in."""
    with evaluating(model):
        for names, moments in in_order(model, places, some(batches, "sparsegpt")):
            for name in names:
                check_seen(name, name in moments, "sparsegpt")
                place = places[name]
                gone = None if place.mask is None else ~place.matrix(place.mask)
                keep, matrix = prune_matrix(place.matrix(place.value), moments[name], share, scope, pattern, gone)
                settle(place, place.tensor(keep), place.tensor(matrix))


def prune_matrix(
    weight: Tensor,
    moment: Tensor,
    share: float,
    scope: str,
    pattern: tuple[int, int] | None = None,
    gone: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Which entries of a matrix (outputs × inputs) stay, and their new values; ``moment`` is XᵀX.

    ``scope`` compares the entries of a block of columns together ("matrix") or in each row ("row"); a ``pattern``
    (n, m) keeps n of every m. ``gone`` are entries that were pruned before.
    """
    W = weight.double().clone()
    columns = W.shape[1]
    U = _factor(moment)
    keep = torch.ones_like(W, dtype=torch.bool)
    width = COLUMNS if pattern is None else COLUMNS - COLUMNS % pattern[1] or pattern[1]
    for start in range(0, columns, width):
        end = min(start + width, columns)
        block, factor = W[:, start:end], U[start:end, start:end]
        cost = (block / factor.diagonal()).square()
        if gone is not None:
            cost[gone[:, start:end]] = -1.0
        keep[:, start:end] = _dearest(cost, share, scope, pattern, start)
        if gone is not None:
            keep[:, start:end] &= ~gone[:, start:end]
        errors = torch.zeros_like(block)
        for j in range(end - start):
            pruned = ~keep[:, start + j]
            errors[:, j] = torch.where(pruned, block[:, j] / factor[j, j], 0.0)
            block[:, j:] -= errors[:, j, None] * factor[j, j:]
            block[pruned, j] = 0.0
        W[:, end:] -= errors @ U[start:end, end:]
    return keep, W.to(weight.dtype)


def _factor(moment: Tensor) -> Tensor:
    """U, upper triangular, with H⁻¹ = UᵀU."""
    H = moment.double().clone()
    damping = DAMPING * float(H.diagonal().mean())
    H.diagonal().add_(damping if damping > 0 else 1.0)
    factor: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(H)), upper=True)
    return factor


def _dearest(cost: Tensor, share: float, scope: str, pattern: tuple[int, int] | None, start: int) -> Tensor:
    """What stays of a block of columns: with all columns before it the share is met, to one entry."""
    if pattern is not None:
        n, m = pattern
        return above(cost.reshape(-1, m), 1 - n / m).view(cost.shape)
    groups = cost if scope == "row" else cost.reshape(1, -1)
    per_column = groups.shape[1] // cost.shape[1]
    before, now = (int(share * per_column * column + 1e-9) for column in (start, start + cost.shape[1]))
    return above(groups, (now - before) / groups.shape[1]).view(cost.shape)
