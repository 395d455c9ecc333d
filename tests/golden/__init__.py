"""Small results of every producer, stored as numbers: when they move, results of its ``REVISION`` are current no more.

``check`` compares what a producer comes to now with ``NAME.json`` beside this file. To store new numbers, after raising
the producer's REVISION: ``MIRRORMAX_STORE_GOLDEN=1 pytest tests/golden``.
"""

import json
import os
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def fingerprint(arrays):
    """Of each array of numbers its size and the mean of its finite entries and of their squares."""
    told = {}
    for name, array in arrays.items():
        values = np.asarray(array)
        if values.dtype.kind in "biuf":
            values = values.astype(float).ravel()
            finite = values[np.isfinite(values)]
            mean, square = (finite.mean(), np.square(finite).mean()) if len(finite) else (0.0, 0.0)
            told[name] = [len(values), len(finite), float(mean), float(square)]
    return told


def check(name, revision, numbers, rtol=1e-5, atol=1e-8):
    """Fail if numbers differ from the stored ones by more than rounding, and say what to do about it."""
    path = FOLDER / f"{name}.json"
    numbers = json.loads(json.dumps(numbers))
    if os.environ.get("MIRRORMAX_STORE_GOLDEN"):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(numbers[key])}" for key in sorted(numbers))
        path.write_text(f'{{"revision": {revision}, "numbers": {{\n{rows}\n}}}}\n')
    stored = json.loads(path.read_text())
    assert stored["revision"] == revision, (
        f"the REVISION of {name} was raised; store its new numbers (see tests/golden)"
    )
    moved = [
        each
        for each in sorted({*numbers, *stored["numbers"]})
        if not _close(numbers.get(each), stored["numbers"].get(each), rtol, atol)
    ]
    assert not moved, (
        f"numbers of {name} moved ({', '.join(moved)}): raise REVISION, then store them (see tests/golden)"
    )


def _close(first, second, rtol, atol):
    if first is None or second is None:
        return first is second
    return np.shape(first) == np.shape(second) and np.allclose(first, second, rtol=rtol, atol=atol, equal_nan=True)
