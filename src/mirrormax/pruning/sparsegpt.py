r"""SparseGPT (Frantar and Alistarh, 2023): prune a matrix so that its layer's outputs change least, and let what stays
make up for what goes.

With the inputs X (tokens × inputs) of a layer and H = XᵀX + λI, λ a hundredth of the mean of XᵀX's diagonal, setting
w_j of a row to zero while the entries behind it may move costs

.. code-block:: text

    w_j² / [(H_{≥j})⁻¹]_jj,   and the others move by   δ_F = w_j (H_FF)⁻¹ H_Fj,   F = {j + 1, …}

where H_{≥j} and H_FF are the blocks of the entries that are not settled yet. One factor holds all these inverses:
if H⁻¹ = UᵀU with U upper triangular, then [(H_{≥j})⁻¹]_jj = U_jj², and δ_F = −(w_j / U_jj) U_jF. Columns are settled
from left to right; in each block of 128 the cheapest entries are chosen at once, by what the columns before have left.

Layers are pruned in the order in which the network calls them, each on what the pruned layers before it give. Most
networks are a chain of blocks, each of which is given what the one before returns. Such a chain is run block by block,
on hidden states that are carried along: every block runs twice on each batch, and the moments XᵀX of one block are in
memory at a time. A layer outside the chain costs a pass of the whole network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.pruning.inputs import answer, calibration, check_seen, evaluating, input_sums, watching
from mirrormax.pruning.places import Place
from mirrormax.pruning.units import kept_units

COLUMNS = 128
"""Columns whose entries are chosen together."""
DAMPING = 0.01
Slot = int | str
"""An argument of a block, by position or by name; that of a chain's is what the block before returned."""
Call = dict[Slot, Any]


@torch.no_grad()
def sparsegpt(
    model: nn.Module,
    places: Mapping[str, Place],
    share: float,
    scope: str,
    pattern: tuple[int, int] | None,
    batches: Iterable[Any] | None,
) -> Iterator[tuple[Place, Tensor, Tensor]]:
    """Each place in the order of the network, what of it is kept, and its new weights.

    They must be put in before the next is asked for, which is pruned on what those before it give.
    """
    with evaluating(model):
        listed = calibration(batches, "sparsegpt")
        order, blocks, slot = _look(model, places, listed[0])
        check_seen(places, order, "sparsegpt")
        stages: dict[str, dict[str, Place]] = defaultdict(dict)  # tensors that are ready together
        for name in order:
            stage = next((path for path in blocks if name.startswith(f"{path}.")), name)
            stages[stage][name] = places[name]
        chain: _Chain | None = None
        for stage, own in stages.items():
            if stage in blocks:
                chain = chain or _Chain(model, blocks, slot, listed)
                moments = chain.moments(stage, own)
            else:
                moments = input_sums(model, own, listed, _moment, "sparsegpt")
            for name, place in own.items():
                yield place, *_pruned(place, moments[name], share, scope, pattern)


def _pruned(
    place: Place, moment: Tensor, share: float, scope: str, pattern: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """Which entries of a tensor stay, and their new values; ``moment`` is XᵀX.

    ``scope`` compares the entries of a block of columns together ("matrix") or in each row ("row"); a ``pattern``
    (n, m) keeps n of every m. What was pruned before goes first.
    """
    W = place.matrix(place.value).double().clone()
    rows, columns = W.shape
    H = moment.double().clone()
    damping = DAMPING * float(H.diagonal().mean())
    H.diagonal().add_(damping if damping > 0 else 1.0)
    U = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(H)), upper=True)  # with H⁻¹ = UᵀU
    keep = torch.ones_like(W, dtype=torch.bool)
    before = torch.ones_like(keep) if place.mask is None else place.matrix(place.mask)
    width = COLUMNS if pattern is None else COLUMNS - COLUMNS % pattern[1] or pattern[1]
    per_column = 1 if scope == "row" else rows  # entries that are compared
    for start in range(0, columns, width):
        end = min(start + width, columns)
        block, factor = W[:, start:end], U[start:end, start:end]
        cost = (block / factor.diagonal()).square().where(before[:, start:end], -1.0)
        # With all columns before it the share is met, to one entry.
        gone, now = (int(share * per_column * column + 1e-9) for column in (start, end))
        part = (now - gone) / (per_column * (end - start))
        stays = kept_units({place.name: cost}, part, scope, pattern)[place.name]
        keep[:, start:end] = stays & before[:, start:end]
        errors = torch.zeros_like(block)
        for j in range(end - start):
            pruned = ~keep[:, start + j]
            errors[:, j] = torch.where(pruned, block[:, j] / factor[j, j], 0.0)
            block[:, j:] -= errors[:, j, None] * factor[j, j:]
            block[pruned, j] = 0.0
        W[:, end:] -= errors @ U[start:end, end:]
    return place.tensor(keep), place.tensor(W.to(place.parameter.dtype))


def _moment(x: Tensor) -> Tensor:
    """XᵀX of the inputs X (tokens × inputs)."""
    return x.t() @ x


class _Stop(Exception):
    """Nothing behind the last block is needed."""


class _Chain:
    """Blocks run one after the other, on hidden states that are kept for each batch."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module], slot: Slot, batches: Sequence[Any]) -> None:
        self.model, self.blocks, self.slot, self.batches = model, blocks, slot, batches
        self.calls: dict[str, list[Call]] = {path: [] for path in blocks}
        self.states: list[Tensor] = []
        self.waiting = list(blocks)
        first, last = self.waiting[0], self.waiting[-1]

        def note(path: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = _call(args, kwargs)
            if path == first:
                self.states.append(call[slot])
            self.calls[path].append({**call, slot: None})
            if path == last:
                raise _Stop

        with ExitStack() as stack:
            for path, block in blocks.items():
                stack.callback(block.register_forward_pre_hook(partial(note, path), with_kwargs=True).remove)
            for batch in batches:
                with suppress(_Stop):
                    answer(model, batch)

    def moments(self, path: str, places: Mapping[str, Place]) -> dict[str, Tensor]:
        """Of one block's tensors, once all blocks before it have run as they are now."""
        while self.waiting[0] != path:
            before = self.waiting.pop(0)
            for k in range(len(self.states)):
                self.states[k] = _hidden(self._run(before, k))
        return input_sums(self.model, places, self.batches, _moment, "sparsegpt", lambda k: self._run(path, k))

    def _run(self, path: str, k: int) -> Any:
        call = {**self.calls[path][k], self.slot: self.states[k]}
        args = [value for slot, value in call.items() if isinstance(slot, int)]
        return self.blocks[path](*args, **{slot: value for slot, value in call.items() if isinstance(slot, str)})


def _call(args: tuple[Any, ...], kwargs: Mapping[Any, Any]) -> Call:
    return {**dict(enumerate(args)), **kwargs}


def _hidden(out: Any) -> Any:
    return out[0] if isinstance(out, tuple | list) else out


def _look(model: nn.Module, places: Mapping[str, Place], batch: Any) -> tuple[list[str], dict[str, nn.Module], Slot]:
    """The tensors in the order of their use, and the chain of blocks with most of them, by path; one pass."""
    order: list[str] = []
    lists = [
        {f"{path}.{name}" if path else name: child for name, child in module.named_children()}
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    seen: dict[str, list[tuple[Call, Any]]] = defaultdict(list)

    def note(path: str, block: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        seen[path].append((_call(args, kwargs), _hidden(out)))

    with ExitStack() as stack:
        for blocks in lists:
            for path, block in blocks.items():
                stack.callback(block.register_forward_hook(partial(note, path), with_kwargs=True).remove)
        stack.enter_context(watching(model, places, lambda name, x: None if name in order else order.append(name)))
        answer(model, batch)
    best: tuple[int, dict[str, nn.Module], Slot] = (0, {}, 0)
    for blocks in lists:
        slot = _slot([seen[path] for path in blocks])
        count = sum(any(name.startswith(f"{path}.") for path in blocks) for name in places)
        if slot is not None and count > best[0]:
            best = count, blocks, slot
    return order, best[1], best[2]


def _slot(calls: Sequence[Sequence[tuple[Call, Any]]]) -> Slot | None:
    """The argument that every block is given by the one before it; None where they are no chain."""
    if len(calls) < 2 or any(len(each) != 1 for each in calls) or not isinstance(calls[0][0][1], Tensor):
        return None
    pairs = pairwise(each for (each,) in calls)
    slots = [{slot for slot, value in call.items() if value is out} for (_, out), (call, _) in pairs]
    return next(iter(set.intersection(*slots)), None)
