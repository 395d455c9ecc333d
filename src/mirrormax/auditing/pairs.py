"""Two of our checkpoints side by side, as numbers: accuracy, sparsity, pivot scores, margins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mirrormax.auditing.bootstrap import mean_interval, paired_difference
from mirrormax.auditing.models import WORDS, Loaded
from mirrormax.auditing.pivots import PivotScores, Reading, compare, read_reviews, score_readings
from mirrormax.auditing.result import Audit
from mirrormax.auditing.weights import attention_sparsity
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
    """One checkpoint with what was measured of it; pivots only of text models with two classes."""

    name: str
    loaded: Loaded
    correct: npt.NDArray[np.float64]  # (n,) 1 where right
    audit: Audit
    pivots: PivotScores | None
    readings: tuple[Reading, ...]


def right_answers(loaded: Loaded, batches: Iterable[dict[str, torch.Tensor]]) -> npt.NDArray[np.float64]:
    """1 where the model's largest logit is that of the label, 0 elsewhere."""
    found = []
    modes = [(module, module.training) for module in loaded.model.modules()]
    loaded.model.eval()
    try:
        with torch.inference_mode():
            for batch in batches:
                inputs = next(part for name, part in batch.items() if name != "labels")
                found.append(loaded.model(inputs).argmax(-1) == batch["labels"])
    finally:
        for module, training in modes:
            module.training = training
    return torch.cat(found).double().numpy()


def pivot_reading(loaded: Loaded, reviews: Sequence[Pivot]) -> tuple[PivotScores | None, tuple[Reading, ...]]:
    """The model on the pivotal benchmark; nothing for other than text models with two classes."""
    if loaded.reads != WORDS or len(loaded.classes) != 2:
        return None, ()
    readings = read_reviews(loaded.model, loaded.tokenizer, [review.text for review in reviews])
    return score_readings(readings, reviews), readings


def measure_side(name: str, loaded: Loaded, batches: Iterable[dict[str, torch.Tensor]], audit: Audit) -> Side:
    """Everything about one checkpoint; the audit is made before, since its settings are the caller's."""
    if loaded.make != "mirrormax":
        raise ValueError(f"{name} is not one of our checkpoints; compare reads those of 'mirrormax train'.")
    scores, readings = pivot_reading(loaded, load_pivots() if loaded.reads == WORDS else ())
    return Side(name, loaded, right_answers(loaded, batches), audit, scores, readings)


def comparison(first: Side, second: Side, seed: int = 0) -> dict[str, Any]:
    """Plain numbers of both and, where they were measured on the same things, paired differences first − second."""
    if first.loaded.classes != second.loaded.classes or first.loaded.reads != second.loaded.reads:
        raise ValueError(
            f"{first.name} and {second.name} answer different questions; compare models of the same classes."
        )
    told: dict[str, Any] = {
        "models": [_side(side, seed) for side in (first, second)],
        "difference": {"accuracy": paired_difference(first.correct, second.correct, seed=seed).to_dict()},
    }
    if first.pivots is not None and second.pivots is not None:
        differences = compare(first.pivots, second.pivots, seed=seed)
        told["difference"]["pivots"] = {name: one.to_dict() for name, one in differences.items()}
    return told


def _side(side: Side, seed: int) -> dict[str, Any]:
    return {
        "name": side.name,
        "parameters": sum(part.numel() for part in side.loaded.model.parameters()),
        "accuracy": {**mean_interval(side.correct, seed=seed).to_dict(), "examples": len(side.correct)},
        "sparsity": {role: one.to_dict() for role, one in attention_sparsity(side.loaded.model).items()},
        "pivots": None if side.pivots is None else side.pivots.to_dict(seed=seed),
        "margins": {name: _median(side.audit, name) for name in MARGINS},
        "heads": len(side.audit.heads),
    }


def _median(audit: Audit, name: str) -> float | None:
    values = [value for head in audit.heads if (value := getattr(head, name)) is not None]
    return float(median(values)) if values else None
