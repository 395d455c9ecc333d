"""The accuracy of long runs on the paper's data (slow)."""

from __future__ import annotations

import numpy as np
import pytest

from mirrormax.dynamics import simulate
from mirrormax.svm import att_svm

from .problems import sphere_batch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("p", "steps", "median"), [(1.75, 1500, 0.0005), (2, 4000, 0.0005), (3, 40000, 0.002)])
def test_median_divergence_after_fig_4(p: float, steps: int, median: float) -> None:
    X, y, z, v = sphere_batch(100)
    run = simulate(X, y, z, v, p=p, lr=0.1, steps=steps)
    solution = att_svm(X, z, run.alpha, p=p, throw=False)
    solved = np.asarray(solution.optimal)
    assert solved.all()
    assert np.median(run.divergence_to(solution.W)[-1]) <= median


@pytest.mark.parametrize("p", [1.1, 1.25, 1.75, 2, 3, 6])
def test_a_hundred_thousand_steps_end_finite_and_still_closing_in(p: float) -> None:
    X, y, z, v = sphere_batch(4)
    run = simulate(X, y, z, v, p=p, lr=0.1, steps=100_000, record=[10_000, 30_000, 60_000])
    assert (run.status == "steps").all()
    assert np.isfinite(run.W).all()
    D = run.divergence_to(att_svm(X, z, run.alpha, p=p).W)
    assert (np.diff(np.median(D[1:], axis=1)) < 0).all()
