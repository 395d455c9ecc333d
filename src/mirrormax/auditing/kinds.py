"""Kinds of heads, by which token they select: shares of rows beside what selecting evenly would give.

A row is one query i that may look at m tokens; every token of the texts is one, whatever query margins are asked of.
The shares, and their chance under an even choice:

* ``on_first``: the first token that is there (the sink of most decoders) from another one; 1/m where it is visible;
* ``on_last``: the last token that is visible; 1/m;
* ``on_self``: the query itself; 1/m where it is visible;
* ``on_previous``: the token before the query; 1/m where it is visible;
* ``on_separator``: a token that ends or parts texts ([SEP], [CLS], <s>, full stop …); their number/m;
* ``induction``: on random tokens that are repeated once, [start] r r, the token *after* the earlier occurrence of the
  query's own token. The sequence has no meaning, so that only copying from before can find it;
* ``on_place``: the place (counted from the start or back from the query) that it selects most often; mean of 1/m.

A head has a kind where its share is above a half and at least twice its chance; the first that applies in the order
of :data:`KINDS`. On many more heads nothing can be said, and nothing is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mirrormax.auditing.adapters import Adapter
from mirrormax.auditing.layers import View
from mirrormax.auditing.models import longest_text
from mirrormax.auditing.options import Vocabulary
from mirrormax.auditing.watch import watching

SHARES = ("on_first", "on_last", "on_self", "on_previous", "on_separator")
KINDS: Mapping[str, str] = {
    "induction": "induction",
    "on_previous": "previous token",
    "on_first": "first-token sink",
    "on_self": "self",
    "on_separator": "separator",
    "on_last": "last token",
    "on_place": "position",
}
ENOUGH, TIMES_CHANCE = 0.5, 2.0
FAR = 64
"""Places further from the start or from the query are not told apart."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where N rows stand: their own positions and those of their first tokens (N,), words (N, T), separators (S,)."""

    query: Tensor
    first: Tensor
    words: Tensor | None  # None where tokens are not words
    separators: Tensor
    sink: bool  # whether the last token is a learned sink, which is no place


class Selections:
    """Which tokens heads select, or other weights in their place: sums over rows, (H,) each.

    Weights c are in the place of head c mod H.
    """

    def __init__(self, weights: Sequence[Tensor] | None = None) -> None:
        self.weights, self.rows = weights, 0
        self._sums: dict[str, Any] = defaultdict(float)
        self._chances: dict[str, float] = defaultdict(float)
        self._places: list[Any] = [0, 0]  # counts (H, FAR) of places from the start, and of places back from the query
        self._induction: tuple[Tensor, float] | None = None  # shares (H,) on repeated tokens, and their chance

    def logits(self, view: View) -> Tensor:
        """Its logits (B, H, Q, T) in one pass."""
        if self.weights is None:
            return view.logits()
        return torch.stack([view.logits_with(c % view.layer.heads, W) for c, W in enumerate(self.weights)], 1)

    def add(self, alpha: Tensor, mask: Tensor, places: Places) -> None:
        """Rows of heads that select alpha (N, H) and may look where mask (N, T) is."""
        T = mask.shape[1]
        order = torch.arange(T, device=mask.device)
        real = mask.clone()
        if places.sink:
            real[:, -1] = False
        count = mask.sum(-1).double()
        last = torch.where(real, order, -1).amax(-1)
        singles = {"on_first": places.first, "on_last": last, "on_self": places.query, "on_previous": places.query - 1}
        for name, place in singles.items():
            at = place.clamp(0, T - 1).unsqueeze(1)
            visible = (place >= 0) & (place < T) & real.gather(1, at).squeeze(1)
            if name == "on_first":
                visible &= places.query != places.first  # a first token that selects itself is no sink
            self._add(name, (alpha == place.unsqueeze(1)) & visible.unsqueeze(1), visible / count)
        parts = torch.zeros_like(mask)
        if places.words is not None:
            width = min(T, places.words.shape[1])
            parts[:, :width] = torch.isin(places.words[:, :width], places.separators)
            parts &= real
        self._add("on_separator", parts.gather(1, alpha), parts.sum(-1) / count)
        self._chances["on_place"] += float((1 / count).sum())
        for k, place in enumerate((alpha, places.query.unsqueeze(1) - alpha)):
            near = (place >= 0) & (place < FAR)
            hits = torch.nn.functional.one_hot(place.clamp(0, FAR - 1), FAR) * near.unsqueeze(-1)
            self._places[k] += hits.sum(0).cpu()
        self.rows += len(alpha)

    def _add(self, name: str, selected: Tensor, chance: Tensor) -> None:
        """Whether heads (N, H) select a kind of token, and the chance (N,) that an even choice would."""
        self._sums[name] += selected.double().sum(0).cpu()
        self._chances[name] += float(chance.sum())

    def add_induction(self, view: View, queries: Tensor, targets: Tensor) -> None:
        """How often heads select the targets (R,) at the queries (R,) of a pass, and how often an even choice would."""
        visible = view.mask[:, queries]
        alpha = self.logits(view)[:, :, queries].masked_fill(~visible.unsqueeze(1), -torch.inf).argmax(-1)
        chance = float((1.0 / visible.sum(-1).double()).mean())
        self._induction = (alpha == targets).double().mean((0, 2)).cpu(), chance

    def of_head(self, head: int) -> dict[str, Any]:
        """The ``kind`` of one head, None where none stands out, and its shares.

        ``on_place`` is that of the place, from the start or back, that it selects most.
        """
        shares: dict[str, float | None] = {name: float(self._sums[name][head]) / self.rows for name in SHARES}
        shares["on_place"] = max(float(counts[head].max()) for counts in self._places) / self.rows
        shares["induction"] = None if self._induction is None else float(self._induction[0][head])
        return {"kind": kind_of(shares, self.chances()), **shares}

    def chances(self) -> dict[str, float]:
        """The shares that selecting visible tokens evenly would have."""
        chances = {name: total / self.rows for name, total in self._chances.items()}
        return chances if self._induction is None else {**chances, "induction": self._induction[1]}


def kind_of(shares: Mapping[str, float | None], chances: Mapping[str, float | None]) -> str | None:
    """The kind of a head with these shares, or None where none stands out."""
    for name, kind in KINDS.items():
        share, chance = shares.get(name), chances.get(name)
        if share is not None and chance is not None and share > ENOUGH and share >= TIMES_CHANCE * chance:
            return kind
    return None


def find_induction(
    adapter: Adapter,
    vocabulary: Vocabulary,
    layers: Sequence[Sequence[Selections]],
    *,
    length: int = 24,
    sequences: int = 8,
    seed: int = 0,
) -> None:
    """Run a language model on random tokens that are repeated once, and add who looks behind the first time.

    Nothing is done with a model that is none, or whose ordinary tokens nobody knows.
    """
    if not adapter.causal or not len(vocabulary.ordinary):
        return
    length = min(length, (longest_text(getattr(adapter.model, "config", None)) - 1) // 2)
    random, ordinary = torch.Generator().manual_seed(seed), torch.as_tensor(vocabulary.ordinary)
    drawn = torch.stack([ordinary[torch.randperm(len(ordinary), generator=random)[:length]] for _ in range(sequences)])
    ids = torch.cat([drawn, drawn], 1)
    first = 0
    if vocabulary.start is not None:
        ids, first = torch.cat([torch.full((sequences, 1), vocabulary.start), ids], 1), 1
    device = next(adapter.model.parameters()).device
    batch = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids, device=device)}
    # The last token of the first half is followed by the first of the second: its target is there, too.
    queries = torch.arange(first + drawn.shape[1], ids.shape[1], device=device)
    targets = queries - drawn.shape[1] + 1
    with watching(adapter) as watch:
        for view, of_layer in zip(watch.run(batch), layers, strict=True):
            for heads in of_layer:
                if heads.weights is None or heads.weights:
                    heads.add_induction(view, queries, targets)
