"""One walk over the data: statistics of every row for every head, and a uniform sample of rows for the margins.

A row is the attention of one query: that of [CLS], of another position, of the last token, or of every token. Nothing
that is kept grows with the data: statistics are sums, and of a sampled row a head keeps its selected token and the
strongest rivals only. Heads of shuffled weights (controls) walk along, since they select other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.kinds import SHARES, Places, Statistics, place_shares
from mirrormax.auditing.layers import Adapter, Layer, View, attention_of, scorer, watching
from mirrormax.auditing.settings import Query, Settings

Readout = Callable[[Any], Tensor]
"""From a model's output to logits (B, classes)."""


def query_positions(mask: Tensor, query: Query) -> tuple[Tensor, Tensor]:
    """Positions (B, R) of the queries in question and whether each is there, for a mask (B, Q, T).

    A token is there if some query may look at it; where queries and keys are different tokens, all are.
    """
    B, Q, T = mask.shape
    there = mask.any(-1) & (mask.any(1) if Q == T else True)
    every = torch.arange(Q, device=mask.device).expand(B, Q)
    if query == "all":
        return every, there
    if query == "last":
        positions = torch.where(there, every, -1).amax(-1, keepdim=True).clamp(min=0)
    else:
        k = 0 if query == "first" else int(query)
        if k >= Q:
            return every[:, :1], torch.zeros_like(there[:, :1])
        positions = every[:, k : k + 1]
    return positions, there.gather(1, positions)


@dataclass(frozen=True, eq=False)
class Kept:
    """What one head keeps of one sampled row: the selected token first, then its strongest rivals."""

    known: Tensor  # (M, a)    x̃ of some tokens, one tensor for all heads that have it in common
    which: Tensor  # (K + 1,)  the head's own among them
    z: Tensor  # (e,)          z̃
    tokens: Tensor  # (K + 1,) their places in the sequence
    scores: Tensor | None  # (K + 1,) γ

    @property
    def x(self) -> Tensor:
        """x̃ of the head's tokens, (K + 1, a), in float64."""
        return self.known[self.which].double()


@dataclass(eq=False)
class Row:
    """One sampled row: where it stands in the data, its tokens, and what every layer's heads and controls keep."""

    key: float
    sequence: int
    query: int
    ids: list[int] | None
    length: int
    heads: list[list[Kept]]  # by layer
    controls: list[list[Kept]]
    attention: list[Tensor]  # by layer (H, T)
    shuffled: list[Tensor] = field(default_factory=list)  # by layer (C, |SHARES|) what controls select


class Sample:
    """Every row of the data draws a number from one seeded stream; the ``size`` smallest stay.

    That is a uniform sample without replacement, and the same for any way of cutting the data into batches.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.kept = size, list[Row]()
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

    def rows(self) -> list[Row]:
        """The sample in the order of the data."""
        return sorted(self.kept, key=lambda row: (row.sequence, row.query))


@dataclass(eq=False)
class Collected:
    """What the walk brought home."""

    layers: list[Layer]
    statistics: list[Statistics]
    sample: list[Row]
    controls: list[list[Tensor]]  # by layer the weights of its controls
    sequences: int
    rows: int
    alone: int  # rows with too few tokens, which have nothing to be separated from
    scored: bool
    query: Query
    longest: int

    def first(self, count: int) -> Collected:
        """The same with ``count`` rows of the sample: those that a smaller sample with the same seed would have."""
        last = sorted(row.key for row in self.sample)[min(count, len(self.sample)) - 1]
        return replace(self, sample=[row for row in self.sample if row.key <= last])


def collect(
    adapter: Adapter,
    batches: Iterable[Any],
    settings: Settings,
    *,
    head: Readout | None = None,
    separators: Sequence[int] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Run the model over every batch once."""
    layers = adapter.layers()
    query = settings.query if settings.query is not None else "last" if adapter.looks_back else "first"
    walk = _Walk(layers, settings, query, torch.tensor(list(separators), dtype=torch.long))
    # One backward pass mixes the answers of a text's positions, so that of a decoder only the last has scores.
    scoring = (head is not None or adapter.has_head()) and (query == "last" or not adapter.causal)
    scored = False
    with watching(adapter, layers) as watch:
        for batch in batches:
            labels = adapter.labels(batch) if settings.target == "label" else None
            if settings.target == "label" and labels is None:
                raise ValueError("target='label' needs labels in every batch; add them or use target='prediction'.")
            views = watch.run(batch, scorer(adapter, head, labels) if scoring else None)
            if not walk.sequences:
                for view in views:
                    view.check()
                scored = views[0].gradient is not None
            walk.add(views, adapter.ids(batch))
            advance(len(views[0].mask))
    if not walk.rows:
        raise ValueError(
            f"no sequence has a token at query={query!r} and a rival to it; give longer sequences or another query."
            if walk.sequences
            else "batches is empty; give at least one batch."
        )
    return Collected(
        layers, walk.statistics, walk.sample.rows(), walk.controls, walk.sequences, walk.rows, walk.alone, scored,
        query, walk.longest,
    )  # fmt: skip


class _Walk:
    """The state of a walk between two batches."""

    def __init__(self, layers: list[Layer], settings: Settings, query: Query, separators: Tensor) -> None:
        self.layers, self.settings, self.query, self.separators = layers, settings, query, separators
        self.statistics = [Statistics() for _ in layers]
        self.sample = Sample(settings.samples, settings.seed)
        self.controls: list[list[Tensor]] = []
        self.sequences = self.rows = self.alone = self.longest = 0

    def add(self, views: list[View], ids: Tensor | None) -> None:
        """One batch."""
        shapes = {tuple(view.mask.shape) for view in views}
        if len(shapes) > 1:
            raise ValueError(
                f"the layers look at different tokens, masks being {sorted(shapes)}; audit an encoder or a decoder "
                "alone."
            )
        if not self.controls:
            seeds = [[self.settings.seed, k] for k in range(len(self.layers))]
            self.controls = [
                [layer.shuffled(c % layer.heads, [*seed, c]).cpu() for c in range(self.settings.controls)]
                for layer, seed in zip(self.layers, seeds, strict=True)
            ]
        masks = [_without_sink(view) if self.settings.skip_sink else view.mask for view in views]
        positions, there = query_positions(views[0].mask[..., : -1 if views[0].sink else None], self.query)
        pick = torch.arange(len(positions), device=positions.device).unsqueeze(1).expand_as(positions)
        fewest = torch.stack([mask[pick, positions].sum(-1) for mask in masks]).amin(0)
        several = there & (fewest > 1)
        first, count = self.sequences, int(several.sum())
        self.alone += int(there.sum()) - count
        self.sequences += len(positions)
        self.rows += count
        if not count:
            return
        sequence, query = pick[several], positions[several]
        keys, chosen = self.sample.draw(count)
        numbers = None if ids is None else ids.to(sequence.device)
        fresh = [Row(float(keys[k]), first + int(sequence[k]), int(query[k]), None, 0, [], [], []) for k in chosen]
        index = torch.tensor(chosen, dtype=torch.long, device=sequence.device)
        for layer, view, mask, statistics, shuffled in zip(
            self.layers, views, masks, self.statistics, self.controls, strict=True
        ):
            # Batch by batch and not row by row: keys of a sequence serve all its queries.
            shown = mask[pick, positions]
            logits = view.logits(positions).masked_fill(~shown.unsqueeze(1), -torch.inf)
            attention = attention_of(view.squashed(logits), shown)
            logits, attention = (part.transpose(1, 2)[several] for part in (logits, attention))
            visible = shown[several]
            words = None if numbers is None else numbers[sequence]
            start = view.mask.any(1).long().argmax(-1)[sequence]
            places = Places(query, start, words, self.separators.to(query.device), view.sink)
            statistics.add(attention, logits, visible, places)
            self.longest = max(self.longest, int(visible.sum(-1).max()))
            if chosen:
                near = replace(places, query=query[index], first=start[index])
                near = near if words is None else replace(near, words=words[index])
                self._keep(fresh, layer, view, sequence[index], mask, attention[index], shuffled, near)
        for row, k in zip(fresh, chosen, strict=True):
            row.length = int(views[0].mask[sequence[k]].any(0).nonzero().max()) + 1 - int(views[0].sink)
            row.ids = None if numbers is None else numbers[sequence[k]].tolist()
        self.sample.kept += fresh

    def _keep(
        self, fresh: list[Row], layer: Layer, view: View, sequence: Tensor, mask: Tensor, attention: Tensor,
        shuffled: list[Tensor], places: Places,
    ) -> None:  # fmt: skip
        """Of sampled rows, what every head and control of a layer needs for its margin problem."""
        rows, visible = view.rows(sequence, places.query), mask[sequence, places.query]
        asked = [(head, layer.weights(head)) for head in range(layer.heads)]
        asked += [(c % layer.heads, W.to(visible.device)) for c, W in enumerate(shuffled)]
        longest = [min(self.settings.rivals + 1, int(count)) for count in visible.sum(-1)]
        kept: list[list[Kept]] = [[] for _ in asked]
        for group in range(rows.groups):
            mine = [k for k, (head, _) in enumerate(asked) if head * rows.groups // layer.heads == group]
            # Selected by what is kept: a selection by more digits than that could be lost to a near tie.
            x = rows.tokens(asked[mine[0]][0])
            x = x if view.exact else x.float()
            chosen = []
            for k in mine:
                head, W = asked[k]
                logits = torch.einsum("nta,na->nt", x.double(), rows.z[:, head] @ W.T)
                chosen.append(logits.masked_fill(~visible, -torch.inf).argsort(dim=1, descending=True, stable=True))
            for n, most in enumerate(longest):
                tokens = torch.stack([order[n, :most] for order in chosen])
                wanted, which = tokens.unique(return_inverse=True)
                known = x[n, wanted].cpu()
                for k, own, where in zip(mine, tokens, which, strict=True):
                    head = asked[k][0]
                    gamma = None if rows.scores is None else rows.scores[n, head, own].cpu()
                    kept[k].append(Kept(known, where.cpu(), rows.z[n, head].cpu(), own.cpu(), gamma))
        of_controls = kept[layer.heads :]
        selected = torch.zeros(len(fresh), len(of_controls), len(SHARES), dtype=torch.bool)
        if of_controls:
            alpha = torch.stack([torch.stack([one.tokens[0] for one in of_rows]) for of_rows in of_controls], 1)
            found, _ = place_shares(alpha.to(visible.device), visible, places)
            selected = torch.stack([found[name] for name in SHARES], -1).cpu()
        for n, row in enumerate(fresh):
            row.shuffled.append(selected[n])
            row.heads.append([one[n] for one in kept[: layer.heads]])
            row.controls.append([one[n] for one in of_controls])
            row.attention.append(attention[n].float().cpu())


def _without_sink(view: View) -> Tensor:
    """The mask (B, Q, T) without the first token that each query may see, and without a learned sink."""
    mask = view.mask.clone()
    if view.sink:
        mask[..., -1] = False
    first = mask.any(1).long().argmax(-1)  # of the sequence: a window may have left it behind
    mask[torch.arange(len(mask), device=mask.device), :, first] = False
    return mask
