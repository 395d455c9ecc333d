"""Starts inside the cone."""

import numpy as np
import pytest
import torch

from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate, warm_start
from mirrormax.geometry import Hypentropy, lp_norm


def leads(problem, W, alpha):
    logits = problem.logits(W)
    own = np.take_along_axis(logits, alpha[:, None], -1)
    gaps = own - logits
    return np.where(np.arange(logits.shape[-1]) == alpha[:, None], np.inf, gaps)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_every_best_token_leads_by_what_was_asked(p):
    problem = sphere_problem(3)
    start = warm_start(problem, lead=2.5, p=p)
    assert (start.alpha == problem.best_tokens()).all()
    assert leads(problem, start.W0, start.alpha).min() == pytest.approx(2.5)
    assert start.solution.status == "optimal"


def test_training_from_it_keeps_the_tokens_where_zero_does_not():
    lost = 0
    for seed in range(6):
        problem = sphere_problem(seed)
        best = problem.best_tokens()
        options = {"p": 2, "lr": 0.1, "steps": 400, "options": SimulationOptions(weights="last", backend="tensor")}
        lost += not (simulate(problem, **options).alpha == best).all()
        assert (simulate(problem, W0=warm_start(problem).W0, **options).alpha == best).all()
    assert lost


def test_other_tokens_can_be_put_in_front():
    problem = sphere_problem(1)
    worst = problem.scores().argmin(-1)
    start = warm_start(problem, worst, p=1.5)
    assert leads(problem, start.W0, worst).min() == pytest.approx(3.0)


def test_hebbian_has_the_same_norm_and_another_direction():
    problem = sphere_problem(2)
    svm, hebbian = (warm_start(problem, lead=3, p=1.5, method=method) for method in ("svm", "hebbian"))
    assert lp_norm(hebbian.W0, 1.5) == pytest.approx(lp_norm(svm.W0, 1.5))
    assert not np.allclose(svm.W0, hebbian.W0)
    plain = warm_start(problem, p=2, method="hebbian").W0
    chosen = problem.X[np.arange(6), svm.alpha]
    expected = sum(np.outer(x - mean, z) for x, mean, z in zip(chosen, problem.X.mean(1), problem.z, strict=True))
    np.testing.assert_allclose(plain / np.linalg.norm(plain), expected / np.linalg.norm(expected), atol=1e-12)


def test_batches_and_tensors_come_back_in_kind():
    problems = [sphere_problem(seed) for seed in (0, 1)]
    arrays = {name: torch.tensor(np.stack([getattr(p, name) for p in problems])) for name in ("X", "y", "z", "v")}
    start = warm_start(**arrays)
    assert isinstance(start.W0, torch.Tensor)
    assert start.W0.shape == (2, 10, 10)
    np.testing.assert_allclose(start.W0[1].numpy(), warm_start(problems[1]).W0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lead": 0.0}, "lead must be a finite number greater than 0"),
        ({"method": "random"}, 'method must be "svm" or "hebbian", got \'random\''),
        ({"p": Hypentropy()}, "p must be a number or Lp"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        warm_start(sphere_problem(0), **change)
