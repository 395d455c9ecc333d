"""The trained query, key and value matrices of a sweep: histograms, and how concentrated they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrormax.auditing.sparsity import attention_weights, sparsity
from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.sweeps import Finished

ROLES = ("key", "query", "value")
MEASURES = ("hoyer", "top_mass", "effective_rank", "large", "near_zero", "left_range")
Matrix = np.ndarray[Any, np.dtype[np.float64]]
BINS = 121
WIDEST = 99.9  # percent of the weights that the histograms show


def weight_arrays(finished: Sequence[Finished]) -> Arrays:
    """Measures (seeds,) and histograms (bins,), a mean over seeds, by contender and role; models as training left them.

    Runs that diverged have no weights to measure: they are counted under ``diverged`` and left out. The histograms
    share their bins, whose ends leave out the outermost weights of the widest contender.
    """
    trained = {each.contender.name: [_weights(str(folder / "last")) for folder in each.folders] for each in finished}
    found = {name: [run for run in runs if _finite(run)] for name, runs in trained.items()}
    for name, runs in found.items():
        if not runs:
            raise ValueError(f"every run of {name} diverged, so its weights cannot be shown; try smaller step sizes.")
    reach = max(
        float(np.percentile(np.abs(_flat(run[role])), WIDEST))
        for runs in found.values()
        for run in runs
        for role in ROLES
    )
    edges = np.linspace(-reach, reach, BINS + 1)
    data: Arrays = {"edges": edges}
    for name, runs in found.items():
        data[f"{name}/diverged"] = np.array(len(trained[name]) - len(runs))
        for role in ROLES:
            told = [sparsity(*seed[role]) for seed in runs]
            data |= {f"{name}/{role}/{key}": np.array([getattr(each, key) for each in told], float) for key in MEASURES}
            data[f"{name}/{role}/entries"] = np.array(told[0].entries)
            counts = [np.histogram(_flat(seed[role]), edges)[0] for seed in runs]
            data[f"{name}/{role}/histogram"] = np.mean(counts, axis=0)
    return data


def _flat(matrices: Sequence[Matrix]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate([matrix.ravel() for matrix in matrices])


def _finite(weights: dict[str, list[Matrix]]) -> bool:
    return all(np.isfinite(matrix).all() for found in weights.values() for matrix in found)


def _weights(folder: str) -> dict[str, list[Matrix]]:
    from mirrormax.nets import load_model

    model = load_model(folder).model
    return {role: [w.double().numpy() for w in found] for role, found in attention_weights(model).items()}
