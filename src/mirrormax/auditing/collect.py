"""One walk over the data: statistics of every row for every head, and a sample of rows for the margins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mirrormax.auditing.adapters.base import Adapter
from mirrormax.auditing.layers import AttentionLayer
from mirrormax.auditing.passes import View, check_agreement, watching
from mirrormax.auditing.queries import Query, query_positions
from mirrormax.auditing.sample import Kept, Row, Sample
from mirrormax.auditing.scores import scorer
from mirrormax.auditing.selection import Selection, select

Head = Callable[[Any], Tensor]


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
    head: Head | None = None,
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
