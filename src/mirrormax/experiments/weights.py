"""The trained query, key and value matrices of a sweep: histograms, and how concentrated they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirrormax.audit.sparsity import attention_weights, sparsity
from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.sweeps import Finished

ROLES = ("key", "query", "value")
MEASURES = ("hoyer", "top_mass", "effective_rank", "large", "near_zero", "left_range")
BINS = 121
WIDEST = 99.9  # percent of the weights that the histograms show


def weight_arrays(finished: Sequence[Finished]) -> Arrays:
    """Measures (seeds,) and histograms (bins,), a mean over seeds, by contender and role; models as training left them.

    The histograms share their bins, whose ends leave out the outermost weights of the widest contender.
    """
    found = {each.contender.name: [_weights(str(folder / "last")) for folder in each.folders] for each in finished}
    sizes = [
        np.abs(np.concatenate([w.ravel() for w in seed[role]]))
        for runs in found.values()
        for seed in runs
        for role in ROLES
    ]
    reach = max(float(np.percentile(size, WIDEST)) for size in sizes)
    edges = np.linspace(-reach, reach, BINS + 1)
    data: Arrays = {"edges": edges}
    for name, runs in found.items():
        for role in ROLES:
            told = [sparsity(*seed[role]) for seed in runs]
            data |= {f"{name}/{role}/{key}": np.array([getattr(each, key) for each in told], float) for key in MEASURES}
            data[f"{name}/{role}/entries"] = np.array(told[0].entries)
            counts = [np.histogram(np.concatenate([w.ravel() for w in seed[role]]), edges)[0] for seed in runs]
            data[f"{name}/{role}/histogram"] = np.mean(counts, axis=0)
    return data


def _weights(folder: str) -> dict[str, list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]]:
    from mirrormax.nets import load_model

    model = load_model(folder).model
    return {role: [w.double().numpy() for w in found] for role, found in attention_weights(model).items()}
