"""Two models side by side, and whether attention selects the decisive words.

Answers are compared where both models have the same classes, pivots where both are ours; heads one by one, paired,
where the two have the same layers and heads, as a model and what was fine-tuned from it have.

Scores on the pivotal-token benchmark look at the attention a of the [CLS] query in the last block, the mean over heads.
Tokens of the text are those that are neither [CLS] nor [SEP]; a word's attention is the sum over its pieces, and a
punctuation mark is a word of its own. For a review with the pivot P:

* ``mass``: Σ_{t∈P} a_t / Σ_{t in text} a_t, the pivot's share of the attention on the text;
* ``scaled``: max_{t∈P} (a_t − min a) / (max a − min a) over *all* tokens, [CLS] and [SEP] too, which is how we
  read the paper's score (0 where attention is uniform);
* ``hit``: 1 if the word with most attention is in the pivot (hit@1), a fraction where several words tie;
* ``rank``: the rank of the pivot's best word among the words, 1 for the best; ties count as their mean.

The chance level of a score is its mean when the attention on the text is shuffled among the text's tokens. Decisive
words tend to be long, so among words drawn evenly their several pieces would pass for skill; shuffled they do not.
The chance level of ``scaled`` depends on how even a model's attention is (about .5 before any training), so between
models compare what is above chance: score − chance, review by review.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from mirrormax._statistics import Estimate, bootstrap_mean, median, paired_difference
from mirrormax.auditing.adapters import adapter_for
from mirrormax.auditing.data import Batches
from mirrormax.auditing.models import WORDS, Loaded, OwnModel, padded
from mirrormax.auditing.pruned import quality_of
from mirrormax.auditing.result import Audit
from mirrormax.auditing.watch import watching
from mirrormax.auditing.weights import attention_weights, sparsity
from mirrormax.data import KINDS, Pivot, Span, load_pivots, word_spans

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

METRICS = ("mass", "scaled", "hit", "rank")
SHUFFLES = 500
MARGINS = (
    "mass",
    "decisive",
    "entropy",
    "ratio",
    "quantile_ratio",
    "divergence",
    "in_order",
    "hoyer",
    "effective_rank",
)


@dataclass(frozen=True, eq=False)
class Reading:
    """One text of T tokens as a model read it.

    ``attention`` (T,) is that of the [CLS] query in the last block, the mean over heads, so it sums to 1;
    ``offsets`` are the characters ``text[start:end]`` of each token; ``special`` (T,) is True where a token is not
    of the text, as [CLS] and [SEP]; ``prediction`` is the class with the largest logit.
    """

    attention: Array
    offsets: tuple[Span, ...]
    special: Bools
    prediction: int

    @property
    def text_tokens(self) -> Places:
        """Indices of the tokens that are of the text."""
        lengths = np.array([end - start for start, end in self.offsets])
        return np.flatnonzero(~self.special & (lengths > 0))


def read_reviews(
    model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str], *, batch_size: int = 64
) -> tuple[Reading, ...]:
    """Read texts with a :class:`~mirrormax.nets.TransformerClassifier`, watched as in an audit.

    The tokenizer must put [CLS] first, and every text must fit the model's ``config.max_length``: nothing is
    cut off. Dropout is off while reading, and the model is given back in the mode it came in.
    """
    config: Any = model.config
    rows, marks = [], []
    for text, encoding in zip(texts, tokenizer.encode_batch(list(texts)), strict=True):
        length = sum(encoding.attention_mask)  # without the padding that a tokenizer may add
        special = np.array(encoding.special_tokens_mask[:length], dtype=np.bool_)
        if not length or not special[0]:
            raise ValueError("the tokenizer puts no [CLS] before a text; give the one the model was trained with.")
        if length > config.max_length:
            raise ValueError(f"a text has {length} tokens, but the model reads {config.max_length}; shorten {text!r}.")
        rows.append(encoding.ids[:length])
        marks.append((tuple(encoding.offsets[:length]), special))
    attention: list[Array] = []
    predictions: list[int] = []
    with watching(adapter_for(model)) as watch:
        for start in range(0, len(rows), batch_size):
            ids = padded(rows[start : start + batch_size], config.pad_id)
            *_, view = watch.run(ids.to(next(model.parameters()).device))
            attention += [*view.attention()[:, :, 0].mean(dim=1).cpu().numpy()]
            predictions += watch.output.argmax(dim=1).tolist()
    read = zip(rows, attention, marks, predictions, strict=True)
    return tuple(Reading(weights[: len(row)], *mark, prediction) for row, weights, mark, prediction in read)


@dataclass(frozen=True, eq=False)
class PivotScores:
    """Scores of one model on a benchmark of n reviews: arrays (n,) by metric, chance levels, and right answers."""

    pivots: tuple[Pivot, ...]
    scores: Mapping[str, Array]
    chances: Mapping[str, Array]
    correct: Array

    def to_dict(self, *, seed: int = 0) -> dict[str, Any]:
        """Plain numbers: of all reviews, and under ``"kinds"`` of each kind apart.

        The mean of every metric, its chance level, and the mean of score − chance; for ``"rank"`` less is better.
        """
        kinds = {kind: np.array([pivot.kind == kind for pivot in self.pivots]) for kind in KINDS}
        apart = {kind: self._summary(mine, seed) for kind, mine in kinds.items() if mine.any()}
        return {**self._summary(np.ones(len(self.pivots), dtype=bool), seed), "kinds": apart}

    def _summary(self, mine: Bools, seed: int) -> dict[str, Any]:
        def mean(values: Array) -> dict[str, float]:
            return bootstrap_mean(values[mine], seed=seed).to_dict()

        summary: dict[str, Any] = {"reviews": int(mine.sum()), "accuracy": mean(self.correct)}
        for metric in METRICS:
            score, chance = self.scores[metric], self.chances[metric]
            above = {"chance": float(chance[mine].mean()), "above_chance": mean(score - chance)}
            summary[metric] = {**mean(score), **above}
        return summary


def score_readings(readings: Sequence[Reading], pivots: Sequence[Pivot]) -> PivotScores:
    """Scores of readings that are there already, in the benchmark's order."""
    pairs = list(zip(readings, pivots, strict=True))
    scores = [score_review(reading, pivot) for reading, pivot in pairs]
    chances = [chance_level(reading, pivot) for reading, pivot in pairs]
    return PivotScores(
        tuple(pivots),
        {metric: np.array([score[metric] for score in scores]) for metric in METRICS},
        {metric: np.array([chance[metric] for chance in chances]) for metric in METRICS},
        np.array([float(reading.prediction == pivot.label) for reading, pivot in pairs]),
    )


def compare(first: PivotScores, second: PivotScores, *, seed: int = 0) -> dict[str, Estimate]:
    """Mean differences first − second by metric and in accuracy, paired by review."""
    pairs = {metric: (first.scores[metric], second.scores[metric]) for metric in METRICS}
    pairs["accuracy"] = (first.correct, second.correct)
    return {name: paired_difference(*pair, seed=seed) for name, pair in pairs.items()}


def score_review(reading: Reading, pivot: Pivot) -> dict[str, float]:
    """The four scores of one review, see the module's description."""
    return {metric: float(values[0]) for metric, values in _scores(reading, pivot, None).items()}


def chance_level(reading: Reading, pivot: Pivot, *, shuffles: int = SHUFFLES) -> dict[str, float]:
    """What the same attention scores on average when it is shuffled among the text's tokens."""
    generator = np.random.default_rng(0)
    tokens = reading.text_tokens.size
    orders = generator.permuted(np.tile(np.arange(tokens), (shuffles, 1)), axis=1)
    return {metric: float(values.mean()) for metric, values in _scores(reading, pivot, orders).items()}


def _scores(reading: Reading, pivot: Pivot, orders: Places | None) -> dict[str, Array]:
    """Every metric (S,) for attention in S orders (S, n) of the text's tokens; None leaves it as it is."""
    text, in_pivot, word_of, decisive = _locate(reading, pivot)
    smallest, largest = reading.attention.min(), reading.attention.max()
    a = reading.attention[text][orders if orders is not None else np.arange(text.size)[None]]
    words = np.zeros((len(a), decisive.size))
    np.add.at(words.T, word_of, a.T)
    best = words[:, decisive].max(axis=1, keepdims=True)
    top = words == words.max(axis=1, keepdims=True)
    tied, tied_pivots = (words == best).sum(axis=1), (words[:, decisive] == best).sum(axis=1)
    # Where nothing is told apart, by no attention or by the same everywhere, nothing is selected: zero.
    total, spread = a.sum(axis=1), largest - smallest
    return {
        "mass": a[:, in_pivot].sum(axis=1) / np.where(total > 0, total, 1),
        "scaled": (a[:, in_pivot].max(axis=1) - smallest) / (spread if spread > 0 else 1),
        "hit": top[:, decisive].sum(axis=1) / top.sum(axis=1),
        # The best of k places drawn out of m is (m + 1)/(k + 1) on average.
        "rank": (words > best).sum(axis=1) + (tied + 1) / (tied_pivots + 1),
    }


def _locate(reading: Reading, pivot: Pivot) -> tuple[Places, Bools, Places, Bools]:
    """The text's tokens (n,), whether each is of the pivot (n,), the word of each (n,), the decisive words (m,).

    A token belongs to the first word that ends after the token starts, so a leading space does no harm; a word
    that shares its token with the one before (a full stop, for some tokenizers) is counted with that one.
    """
    spans = word_spans(pivot.text)
    text = reading.text_tokens
    places = np.array([reading.offsets[token] for token in text], dtype=np.intp).reshape(-1, 2)
    words = np.searchsorted(np.array([end for _, end in spans]), places[:, 0], side="right")
    present, word_of = np.unique(words, return_inverse=True)
    marked = np.array([place for place, span in enumerate(spans) if span in pivot.spans])
    if places.max(initial=0) != len(pivot.text.rstrip()) or not np.isin(marked, present).all():
        raise ValueError(f"the tokens do not cover the review {pivot.text!r}; read it whole, with its own offsets.")
    decisive = np.isin(present, marked)
    return text, decisive[word_of], word_of, decisive


@dataclass(frozen=True, eq=False)
class Side:
    """One model with what was measured of it; pivots only of our text models with two classes."""

    name: str
    loaded: Loaded
    correct: Array | None  # (n,) 1 where right; None of models without classes
    audit: Audit
    pivots: PivotScores | None = None
    readings: tuple[Reading, ...] = ()
    notes: tuple[str, ...] = ()


def measure_side(name: str, loaded: Loaded, batches: Batches, audit: Audit) -> Side:
    """Everything about one model; the audit is made before, since its settings are the caller's."""
    side = Side(name, loaded, None if batches.labels is None else quality_of(loaded, batches)(), audit)
    if not isinstance(loaded, OwnModel) or loaded.reads != WORDS or len(loaded.classes) != 2:
        return side
    reviews = load_pivots()
    texts = [review.text for review in reviews]
    too_long = sum(len(row) > loaded.longest for row in loaded.encode(texts))
    if too_long:  # reviews are read whole or not at all
        note = f"{name} has no pivot scores: {too_long} of the {len(texts)} marked reviews are longer than it reads."
        return replace(side, notes=(note,))
    readings = read_reviews(loaded.model, loaded.tokenizer, texts)
    return replace(side, pivots=score_readings(readings, reviews), readings=readings)


def check_comparable(names: Sequence[str], models: Sequence[Loaded]) -> None:
    """Refuse two models of which nothing can be compared: other inputs, or other classes where both have some."""
    first, second = models
    if first.reads != second.reads or (first.classes and second.classes and first.classes != second.classes):
        raise ValueError(f"{names[0]} and {names[1]} answer different questions; compare models of the same classes.")


def comparison(first: Side, second: Side, seed: int = 0) -> dict[str, Any]:
    """Plain numbers of both and, where they were measured on the same things, paired differences first − second."""
    check_comparable((first.name, second.name), (first.loaded, second.loaded))
    difference: dict[str, Any] = {"margins": _of_heads(first.audit, second.audit, seed)}
    if first.correct is not None and second.correct is not None:
        difference["accuracy"] = paired_difference(first.correct, second.correct, seed=seed).to_dict()
    if first.pivots is not None and second.pivots is not None:
        differences = compare(first.pivots, second.pivots, seed=seed)
        difference["pivots"] = {metric: estimate.to_dict() for metric, estimate in differences.items()}
    return {"models": [_side(side, seed) for side in (first, second)], "difference": difference}


def _of_heads(first: Audit, second: Audit, seed: int) -> dict[str, Any]:
    """Paired differences over the heads, where both models have the same ones in the same form."""
    places = [[(head.layer, head.head, head.form) for head in audit.heads] for audit in (first, second)]
    if places[0] != places[1]:
        return {}
    differences = {}
    for name in MARGINS:
        ours, theirs = first.grid(name), second.grid(name)
        known = ~np.isnan(ours - theirs)
        if known.any():
            differences[name] = paired_difference(ours[known], theirs[known], seed=seed).to_dict()
    return differences


def _side(side: Side, seed: int) -> dict[str, Any]:
    accuracy = None
    if side.correct is not None:
        accuracy = {**bootstrap_mean(side.correct, seed=seed).to_dict(), "examples": len(side.correct)}
    try:
        weights = attention_weights(side.loaded.model)
        concentration = {role: asdict(sparsity(*matrices)) for role, matrices in weights.items()}
    except ValueError:  # it packs several roles into one matrix, or has nothing but zeros
        concentration = {}
    margins = {name: median(side.audit.grid(name)) for name in MARGINS}
    return {
        "name": side.name,
        "parameters": sum(part.numel() for part in side.loaded.model.parameters()),
        "accuracy": accuracy,
        "sparsity": concentration,
        "pivots": None if side.pivots is None else side.pivots.to_dict(seed=seed),
        "margins": {name: None if math.isnan(middle) else middle for name, middle in margins.items()},
        "heads": len(side.audit.heads),
        "form": side.audit.config["form"],
        "notes": list(side.notes),
    }
