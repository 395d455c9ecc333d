"""One walk over the data: statistics of every row for every head, and a uniform sample of rows for the margins.

A row is the attention of one query: that of [CLS], of another position, of the last token, or of every token. Nothing
that is kept grows with the data: statistics are sums, and of a sampled row a head keeps its selected token and the
strongest rivals only. Heads of shuffled weights walk along, since they select other tokens: a few (controls) for the
margins, and as many as it takes to judge kinds, which need no margin and are cheap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax._checks import several
from mirrormax.auditing.adapters import Adapter
from mirrormax.auditing.calls import present
from mirrormax.auditing.changes import EMPTY, Importance, check_places
from mirrormax.auditing.kinds import Places, Selections
from mirrormax.auditing.layers import Layer, View, attention_of
from mirrormax.auditing.options import AuditOptions, Query, place_of
from mirrormax.auditing.robustness import Prediction, input_norms
from mirrormax.auditing.watch import scorer, watching

SHUFFLED_TEXTS = 32
"""Texts of which shuffled heads read every token; the batch of the last of these is read whole."""


def queried(mask: Tensor, query: Query) -> Tensor:
    """Which queries (B, Q) of a mask (B, Q, T) are in question."""
    there, order = present(mask), torch.arange(mask.shape[1], device=mask.device)
    if query == "all":
        return there
    if query == "last":
        return order == torch.where(there, order, -1).amax(-1, keepdim=True)
    return there & (order == (0 if query == "first" else int(query)))


@dataclass(frozen=True, eq=False)
class Kept:
    """What one head keeps of one sampled row: the selected token first, then its strongest rivals."""

    known: Tensor  # (M, a)    x̃ of some tokens, one tensor for all heads that have it in common
    which: Tensor  # (K + 1,)  the head's own among them
    z: Tensor  # (e,)          z̃
    tokens: Tensor  # (K + 1,) their places in the sequence
    scores: Tensor | None  # (K + 1,) γ


@dataclass(eq=False)
class Row:
    """One sampled row: where it stands in the data, its tokens, and what every layer's heads and controls keep.

    Control c is −1 − c, here and wherever there are heads.
    """

    key: float
    sequence: int
    query: int
    ids: list[int] | None
    length: int
    kept: list[list[Kept]] = field(default_factory=list)  # by layer: of heads, then of controls, the last one first
    attention: list[Tensor] = field(default_factory=list)  # by layer (H, T)


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


class Statistics:
    """Sums over the rows of one layer, each (H,)."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: dict[str, Any] = defaultdict(float)
        self.least_lead = torch.tensor(torch.inf, dtype=torch.float64)

    def add(self, attention: Tensor, logits: Tensor, alpha: Tensor, mask: Tensor) -> None:
        """Rows of attention and logits (N, H, T) that select alpha (N, H) and may look where mask (N, T) is.

        Each may look at two tokens or more.
        """
        best = logits.topk(2, -1).values
        mass = attention.gather(-1, alpha.unsqueeze(-1)).squeeze(-1)
        # −Σ s log s / log(number of tokens): 0 decided, 1 uniform
        entropy = torch.special.entr(attention).sum(-1) / mask.sum(-1, keepdim=True).double().log()
        for name, values in {"mass": mass, "decisive": mass > 0.5, "entropy": entropy.clamp(0, 1)}.items():
            self._sums[name] += values.double().sum(0).cpu()
        self.least_lead = torch.minimum(self.least_lead, (best[..., 0] - best[..., 1]).amin(0).cpu())
        self.rows += len(alpha)

    def of_head(self, head: int) -> dict[str, Any]:
        """The number of rows, and means over them."""
        return {"rows": self.rows, **{name: float(total[head]) / self.rows for name, total in self._sums.items()}}


@dataclass(eq=False)
class OfLayer:
    """A layer and what is summed over its rows."""

    layer: Layer
    controls: list[Tensor]  # their weights
    shuffled: Selections  # of shuffled heads, by which kinds are judged
    robust: Prediction | None  # where robustness is asked
    statistics: Statistics = field(default_factory=Statistics)
    selections: Selections = field(default_factory=Selections)  # over every token
    pairs: list[Tensor] = field(default_factory=list)  # (2, N, H) token of a query and selected one, first texts


@dataclass(eq=False)
class Collected:
    """What a walk over the data brings home: sums, and a sample of the rows."""

    options: AuditOptions
    query: Query
    separators: Tensor
    sample: Sample
    importance: Importance  # of the first texts
    layers: list[OfLayer] = field(default_factory=list)
    sequences: int = 0
    rows: int = 0
    alone: int = 0  # rows with too few tokens, which have nothing to be separated from
    longest: int = 0
    scored: bool = False

    def weights(self, layer: int, head: int) -> Tensor:
        """W of a head or of a control."""
        return self.layers[layer].layer.weights(head) if head >= 0 else self.layers[layer].controls[-1 - head]

    def first(self, count: int) -> Collected:
        """The same with ``count`` rows of the sample: those that a smaller sample with the same seed would have."""
        part = Sample(count, self.options.seed)
        part.kept = sorted(self.sample.kept, key=lambda row: row.key)[:count]
        return replace(self, sample=part)

    def begin(self, views: list[View]) -> None:
        """The layers are known, after a first pass."""
        options = self.options
        check_places([view.layer for view in views], map(place_of, options.heads))
        self.scored = views[0].gradient is not None
        each = -(-options.shuffled // len(views))
        for k, view in enumerate(views):
            layer, count = view.layer, max(options.controls, each)
            weights = [layer.shuffled(c % layer.heads, [options.seed, k, c]) for c in range(count)]
            controls = [W.cpu() for W in weights[: options.controls]]
            robust = Prediction(layer, options.robustness, input_norms(view)) if options.robustness else None
            self.layers.append(OfLayer(layer, controls, Selections(weights[:each]), robust))

    def add(self, views: list[View], ids: Tensor | None) -> None:
        """One batch."""
        shapes = {tuple(view.mask.shape) for view in views}
        if len(shapes) > 1:
            raise ValueError(
                f"the layers look at different tokens, masks being {sorted(shapes)}; audit an encoder or a decoder "
                "alone."
            )
        masks = [_without_sink(view) if self.options.skip_sink else view.mask for view in views]
        fewest = torch.stack([mask.sum(-1) for mask in masks]).amin(0)  # (B, Q)
        own = views[0].call.mask
        wanted, every = (queried(own, query) & (fewest > 1) for query in (self.query, "all"))
        first, count = self.sequences, int(wanted.sum())
        self.alone += int(queried(own, self.query).sum()) - count
        self.sequences += len(wanted)
        self.rows += count
        if not every.any():
            return
        sequence, query = every.nonzero(as_tuple=True)
        rows = wanted[every]  # which of these are asked about
        keys, chosen = self.sample.draw(count)
        index = torch.tensor(chosen, dtype=torch.long, device=sequence.device)
        words = None if ids is None else ids.to(sequence.device)[sequence]
        sequences, queries = sequence[rows][index], query[rows][index]
        fresh = []
        for k, s, q in zip(chosen, sequences.tolist(), queries.tolist(), strict=True):
            length = int(own[s].any(0).nonzero().max()) + 1
            fresh.append(Row(float(keys[k]), first + s, q, None if ids is None else ids[s].tolist(), length))
        for sums, view, mask in zip(self.layers, views, masks, strict=True):
            # Batch by batch and not row by row: keys of a sequence serve all its queries.
            logits = view.logits().masked_fill(~mask.unsqueeze(1), -torch.inf)
            of_rows, visible = logits.transpose(1, 2)[every], mask[every]
            alpha = _selected(of_rows)
            start = view.mask.any(1).long().argmax(-1)[sequence]
            places = Places(query, start, words, self.separators.to(query.device), view.sink)
            sums.selections.add(alpha, visible, places)
            if sums.robust is not None:
                sums.robust.add(view, logits, every)
            if first < SHUFFLED_TEXTS and words is not None:
                own_words = words.gather(1, query.clamp(max=words.shape[1] - 1).unsqueeze(1))
                chosen_words = words.gather(1, alpha.clamp(max=words.shape[1] - 1))
                sums.pairs.append(torch.stack([own_words.expand_as(alpha), chosen_words]).cpu())
            if first < SHUFFLED_TEXTS and sums.shuffled.weights:
                theirs = sums.shuffled.logits(view).masked_fill(~mask.unsqueeze(1), -torch.inf)
                sums.shuffled.add(_selected(theirs.transpose(1, 2)[every]), visible, places)
            if not count:
                continue
            attention = attention_of(view.squashed(logits), mask).transpose(1, 2)[wanted]
            sums.statistics.add(attention, of_rows[rows], alpha[rows], visible[rows])
            self.longest = max(self.longest, int(visible[rows].sum(-1).max()))
            if chosen:
                kept = _kept(view, sequences, queries, mask[sequences, queries], sums.controls, self.options.rivals)
                for n, row in enumerate(fresh):
                    row.kept.append([of_head[n] for of_head in kept])
                    row.attention.append(attention[index[n]].float().cpu())
        self.sample.kept += fresh


def collect(
    adapter: Adapter,
    batches: Iterable[Any],
    options: AuditOptions,
    *,
    separators: Sequence[int] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Collected:
    """Run the model over every batch once."""
    query = options.query if options.query is not None else "last" if adapter.looks_back else "all"
    marks, sample = torch.tensor(list(separators), dtype=torch.long), Sample(options.samples, options.seed)
    collected = Collected(options, query, marks, sample, Importance(options.intervention_texts))
    # One backward pass mixes the answers of a text's positions, so that of a decoder only the last has scores.
    scoring = adapter.has_head() and (query == "last" or not adapter.causal)
    with watching(adapter) as watch:
        for batch in several("batches", batches, "batches"):
            labels = adapter.labels(batch) if options.target == "label" else None
            if options.target == "label" and labels is None:
                raise ValueError("target='label' needs labels in every batch; add them or use target='prediction'.")
            views = watch.run(batch, scorer(adapter, labels) if scoring else None)
            if not collected.sequences:
                for view in views:
                    view.check()
                collected.begin(views)
            collected.add(views, adapter.named(batch).get("input_ids"))
            collected.importance.add(watch, batch)
            advance(len(views[0].mask))
    if not collected.rows:
        raise ValueError(
            f"no sequence has a token at query={query!r} and a rival to it; give longer sequences or another query."
            if collected.sequences
            else EMPTY
        )
    return collected


def _kept(
    view: View, sequence: Tensor, query: Tensor, visible: Tensor, controls: Sequence[Tensor], rivals: int
) -> list[list[Kept]]:
    """Of sampled rows, what every head and control of a layer needs for its margin problem."""
    layer, rows = view.layer, view.rows(sequence, query)
    selectors = [(head, layer.weights(head)) for head in range(layer.heads)]
    selectors += [(c % layer.heads, W.to(visible.device)) for c, W in enumerate(controls)][::-1]
    longest = [min(rivals + 1, int(count)) for count in visible.sum(-1)]
    kept: list[list[Kept]] = [[] for _ in selectors]
    for group in range(rows.groups):
        mine = [index for index, (head, _) in enumerate(selectors) if head * rows.groups // layer.heads == group]
        # Selected by what is kept: a selection by more digits than that could be lost to a near tie.
        x = rows.tokens(selectors[mine[0]][0])
        x = x if view.call.hidden.dtype == torch.float64 else x.float()
        chosen = []
        for index in mine:
            head, W = selectors[index]
            logits = torch.einsum("nta,na->nt", x.double(), rows.z[:, head] @ W.T)
            chosen.append(logits.masked_fill(~visible, -torch.inf).argsort(dim=1, descending=True, stable=True))
        for n, most in enumerate(longest):
            tokens = torch.stack([order[n, :most] for order in chosen])
            wanted, which = tokens.unique(return_inverse=True)
            known = x[n, wanted].cpu()
            for index, own, where in zip(mine, tokens, which, strict=True):
                head = selectors[index][0]
                gamma = None if rows.scores is None else rows.scores[n, head, own].cpu()
                kept[index].append(Kept(known, where.cpu(), rows.z[n, head].cpu(), own.cpu(), gamma))
    return kept


def _selected(logits: Tensor) -> Tensor:
    """The first token of highest logit, (N, H, T) to (N, H)."""
    return (logits == logits.amax(-1, keepdim=True)).double().argmax(-1)


def _without_sink(view: View) -> Tensor:
    """The mask (B, Q, T) without the first token that each query may see, and without a learned sink."""
    mask = view.mask.clone()
    if view.sink:
        mask[..., -1] = False
    first = mask.any(1).long().argmax(-1)  # of the sequence: a window may have left it behind
    mask[torch.arange(len(mask), device=mask.device), :, first] = False
    return mask
