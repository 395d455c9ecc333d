"""One walk over the data: statistics of every row for every head, and a uniform sample of rows for the margins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.layers import Adapter, AttentionLayer
from mirrormax.auditing.passes import View, check_agreement, scorer, watching
from mirrormax.auditing.selection import Query, Selection, query_positions, select

Readout = Callable[[Any], Tensor]
"""From a model's output to logits (B, classes)."""


@dataclass(frozen=True, eq=False)
class Row:
    """One query of one sequence as a layer sees it."""

    x: Tensor  # (T, d)   the tokens
    z: Tensor  # (d,)     the query
    mask: Tensor  # (T,)  where it may look
    gradient: Tensor | None  # (d,) of the model's log-odds at the layer's output; None without a head


@dataclass(eq=False)
class Kept:
    """One sampled row: where it stands in the data, its token numbers, and what each layer sees."""

    key: float
    sequence: int
    query: int
    ids: list[int] | None
    layers: list[Row]


class Sample:
    """Every row of the data draws a number from one seeded stream; the ``size`` smallest stay.

    That is a uniform sample without replacement, and the same for any way of cutting the data into batches.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.kept = size, list[Kept]()
        self._random = np.random.default_rng(seed)

    def draw(self, count: int) -> tuple[npt.NDArray[np.float64], list[int]]:
        """The numbers of the next ``count`` rows, and the indices of those that stay for now."""
        keys = self._random.random(count)
        if len(self.kept) + count <= self.size:
            return keys, list(range(count))
        pool = np.concatenate([[row.key for row in self.kept], keys])
        worst = np.partition(pool, self.size - 1)[self.size - 1]
        self.kept = [row for row in self.kept if row.key <= worst]
        return keys, [int(k) for k in np.flatnonzero(keys <= worst)]

    def rows(self) -> list[Kept]:
        """The sample in the order of the data."""
        return sorted(self.kept, key=lambda row: (row.sequence, row.query))


@dataclass(eq=False)
class Statistics:
    """Rows of one layer, batch after batch, each (N, H)."""

    mass: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    lead: list[Tensor] = field(default_factory=list)
    on_first: list[Tensor] = field(default_factory=list)
    on_last: list[Tensor] = field(default_factory=list)
    on_self: list[Tensor] = field(default_factory=list)

    def add(self, rows: Selection) -> None:
        """Keep what is needed of a batch's rows."""
        self.mass.append(rows.mass.float().cpu())
        self.entropy.append(rows.entropy.float().cpu())
        self.lead.append(rows.lead.float().cpu())
        self.on_first.append((rows.alpha == 0).cpu())
        self.on_last.append((rows.alpha == rows.last.unsqueeze(1)).cpu())
        self.on_self.append((rows.alpha == rows.query.unsqueeze(1)).cpu())

    def whole(self, name: str) -> Tensor:
        """One of them over all batches."""
        return torch.cat(getattr(self, name)).double()


@dataclass(eq=False)
class Collected:
    """What the walk brought home."""

    layers: list[AttentionLayer]
    statistics: list[Statistics]
    sample: list[Kept]
    sequences: int
    rows: int
    alone: int  # rows with a single token, which have nothing to be separated from
    scored: bool


def collect(
    adapter: Adapter,
    batches: Iterable[Any],
    query: Query,
    size: int,
    seed: int,
    *,
    head: Readout | None = None,
    target: str = "prediction",
    advance: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Run the model over every batch once."""
    layers = adapter.layers()
    statistics = [Statistics() for _ in layers]
    sample = Sample(size, seed)
    sequences = alone = rows = 0
    scored = False
    with watching(adapter, layers) as watch:
        for batch in batches:
            labels = adapter.labels(batch) if target == "label" else None
            if target == "label" and labels is None:
                raise ValueError("target='label' needs labels in every batch; add them or use target='prediction'.")
            views = watch.run(batch, scorer(adapter, head, labels) if head or adapter.has_head() else None)
            if not sequences:
                for layer, view in zip(layers, views, strict=True):
                    check_agreement(layer, view)
                scored = views[0].gradient is not None
            kept = _walk(layers, views, query, statistics, sample, sequences, adapter.ids(batch))
            sequences += len(views[0].x)
            rows, alone = rows + kept[0], alone + kept[1]
            advance(len(views[0].x))
    if not rows:
        raise ValueError(
            f"no sequence has a token at query={query!r} and a rival to it; give longer sequences or another query."
            if sequences
            else "batches is empty; give at least one batch."
        )
    return Collected(layers, statistics, sample.rows(), sequences, rows, alone, scored)


def _walk(
    layers: list[AttentionLayer],
    views: list[View],
    query: Query,
    statistics: list[Statistics],
    sample: Sample,
    first: int,
    ids: Tensor | None,
) -> tuple[int, int]:
    """Add one batch; the rows counted, and those left out for having one token only."""
    shapes = {tuple(view.mask.shape) for view in views}
    if len(shapes) > 1:
        raise ValueError(
            f"the layers look at different tokens, masks being {sorted(shapes)}; audit an encoder or a decoder alone."
        )
    positions, there = query_positions(views[0].mask, query)
    pick = torch.arange(len(positions), device=positions.device).unsqueeze(1).expand_as(positions)
    several = there & (views[0].mask[pick, positions].sum(-1) > 1)
    alone = int(there.sum() - several.sum())
    count = int(several.sum())
    if not count:
        return 0, alone
    where = torch.stack([pick[several], positions[several]], -1)
    keys, chosen = sample.draw(count)
    fresh = [Kept(float(keys[k]), first + int(where[k, 0]), int(where[k, 1]), None, []) for k in chosen]
    for layer, view, one in zip(layers, views, statistics, strict=True):
        one.add(select(layer, view, positions, several))
        for kept, k in zip(fresh, chosen, strict=True):
            kept.layers.append(_row(view, *where[k].tolist()))
    if ids is not None:
        for kept in fresh:
            kept.ids = ids[kept.sequence - first].tolist()
    sample.kept += fresh
    return count, alone


def _row(view: View, sequence: int, query: int) -> Row:
    known = view.gradient is not None and query < view.gradient.shape[1]
    gradient = view.gradient[sequence, query].double().cpu() if known and view.gradient is not None else None
    x, z, mask = view.x[sequence], view.z[sequence, query], view.mask[sequence, query]
    return Row(x.double().cpu(), z.double().cpu(), mask.cpu(), gradient)
