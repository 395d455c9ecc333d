"""Two models side by side, as numbers: accuracy, sparsity, pivot scores, margins.

Answers are compared where both models have the same classes, pivots where both are ours; heads one by one, paired,
where the two have the same layers and heads, as a model and what was fine-tuned from it have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._statistics import bootstrap_mean, paired_difference
from mirrormax.auditing.data import Batches
from mirrormax.auditing.models import WORDS, Loaded, OwnModel
from mirrormax.auditing.pivots import PivotScores, Reading, compare, read_reviews, score_readings
from mirrormax.auditing.pruned import quality_of
from mirrormax.auditing.result import Audit
from mirrormax.auditing.weights import attention_weights, sparsity
from mirrormax.data import Pivot, load_pivots

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
class Side:
    """One model with what was measured of it; pivots only of our text models with two classes."""

    name: str
    loaded: Loaded
    correct: npt.NDArray[np.float64] | None  # (n,) 1 where right; None of models without classes
    audit: Audit
    pivots: PivotScores | None
    readings: tuple[Reading, ...]
    notes: tuple[str, ...] = ()


def pivot_reading(loaded: Loaded, reviews: Sequence[Pivot]) -> tuple[PivotScores | None, tuple[Reading, ...]]:
    """The model on the pivotal benchmark; nothing for other than our text models with two classes."""
    if not isinstance(loaded, OwnModel) or loaded.reads != WORDS or len(loaded.classes) != 2:
        return None, ()
    readings = read_reviews(loaded.model, loaded.tokenizer, [review.text for review in reviews])
    return score_readings(readings, reviews), readings


def measure_side(name: str, loaded: Loaded, batches: Batches, audit: Audit) -> Side:
    """Everything about one model; the audit is made before, since its settings are the caller's."""
    reviews = load_pivots() if loaded.reads == WORDS else ()
    correct = None if batches.labels is None else quality_of(loaded, batches)()
    if too_long := _too_long(loaded, reviews):
        notes = (
            f"{name} has no pivot scores: {too_long} of the {len(reviews)} marked reviews are longer than it reads.",
        )
        return Side(name, loaded, correct, audit, None, (), notes)
    return Side(name, loaded, correct, audit, *pivot_reading(loaded, reviews))


def _too_long(loaded: Loaded, reviews: Sequence[Pivot]) -> int:
    """How many reviews do not fit a model of ours, which are read whole or not at all."""
    if not isinstance(loaded, OwnModel) or loaded.reads != WORDS:
        return 0
    encodings = loaded.tokenizer.encode_batch([review.text for review in reviews])
    config: Any = loaded.model.config
    return sum(sum(encoding.attention_mask) > config.max_length for encoding in encodings)


def check_comparable(names: Sequence[str], models: Sequence[Loaded]) -> None:
    """Refuse two models of which nothing can be compared: other inputs, or other classes where both have some."""
    first, second = models
    if first.reads != second.reads or (first.classes and second.classes and first.classes != second.classes):
        raise ValueError(f"{names[0]} and {names[1]} answer different questions; compare models of the same classes.")


def comparison(first: Side, second: Side, seed: int = 0) -> dict[str, Any]:
    """Plain numbers of both and, where they were measured on the same things, paired differences first − second."""
    check_comparable((first.name, second.name), (first.loaded, second.loaded))
    told: dict[str, Any] = {"models": [_side(side, seed) for side in (first, second)], "difference": {}}
    if first.correct is not None and second.correct is not None:
        told["difference"]["accuracy"] = paired_difference(first.correct, second.correct, seed=seed).to_dict()
    if first.pivots is not None and second.pivots is not None:
        differences = compare(first.pivots, second.pivots, seed=seed)
        told["difference"]["pivots"] = {name: one.to_dict() for name, one in differences.items()}
    told["difference"]["margins"] = _of_heads(first.audit, second.audit, seed)
    return told


def _of_heads(first: Audit, second: Audit, seed: int) -> dict[str, Any]:
    """Paired differences over the heads, where both models have the same ones in the same form."""
    places = [[(head.layer, head.head, head.form) for head in audit.heads] for audit in (first, second)]
    if places[0] != places[1]:
        return {}
    found = {}
    for name in MARGINS:
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in zip(first.heads, second.heads, strict=True)]
        known = [(a, b) for a, b in pairs if a is not None and b is not None and a == a and b == b]  # NaN is not itself
        if known:
            ours, theirs = zip(*known, strict=True)
            found[name] = paired_difference(ours, theirs, seed=seed).to_dict()
    return found


def _side(side: Side, seed: int) -> dict[str, Any]:
    accuracy = None
    if side.correct is not None:
        accuracy = {**bootstrap_mean(side.correct, seed=seed).to_dict(), "examples": len(side.correct)}
    return {
        "name": side.name,
        "parameters": sum(part.numel() for part in side.loaded.model.parameters()),
        "accuracy": accuracy,
        "sparsity": _sparsity(side.loaded),
        "pivots": None if side.pivots is None else side.pivots.to_dict(seed=seed),
        "margins": {name: _median(side.audit, name) for name in MARGINS},
        "heads": len(side.audit.heads),
        "form": side.audit.config["form"],
        "notes": list(side.notes),
    }


def _sparsity(loaded: Loaded) -> dict[str, Any]:
    """By role; empty for models that pack several roles into one matrix."""
    try:
        return {role: sparsity(*weights).to_dict() for role, weights in attention_weights(loaded.model).items()}
    except ValueError:
        return {}


def _median(audit: Audit, name: str) -> float | None:
    values = [value for head in audit.heads if (value := getattr(head, name)) is not None and value == value]
    return float(median(values)) if values else None
