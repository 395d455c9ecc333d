"""Mini-batches, momentum and the running scale, against loops written out with autograd."""

from itertools import islice

import numpy as np
import pytest
import torch

from mirrormax.attention import risk
from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.dynamics.engine import batches

from .problems import settings


def gradient(problem, W, chosen):
    """∇ of the mean risk over these samples, by autograd."""
    W = torch.tensor(W, requires_grad=True)
    X, y, z = (torch.tensor(getattr(problem, name)[chosen]) for name in ("X", "y", "z"))
    risk(X, y, z, torch.tensor(problem.v), W=W).backward()
    return W.grad.numpy()


def orders(n, size, seed, steps):
    """The batches of a single run."""
    return [np.flatnonzero(chosen[0].numpy()) for chosen in islice(batches(1, n, size, seed), steps)]


def test_an_epoch_sees_every_sample_once_and_the_next_is_shuffled_anew():
    found = orders(7, 3, 5, 12)
    for epoch in range(4):
        assert sorted(np.concatenate(found[3 * epoch : 3 * epoch + 3]).tolist()) == list(range(7))
    assert [len(part) for part in found[:3]] == [3, 3, 1]
    assert len({tuple(map(tuple, found[3 * e : 3 * e + 3])) for e in range(4)}) > 1


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("normalize", ["tensor", None, "running"])
def test_steps_are_those_of_the_formulas(normalize, momentum):
    problem = sphere_problem(0, 4, 3, 3)
    run = simulate(
        problem,
        p=2,
        lr=0.3,
        steps=9,
        normalize=normalize,
        record="all",
        options=SimulationOptions(batch=2, seed=3, momentum=momentum),
    )
    W, m, average, decay = np.zeros((3, 3)), 0.0, 0.0, 1 - 2 / 12
    for k, chosen in enumerate(orders(4, 2, 3, 9)):
        m = momentum * m + gradient(problem, W, chosen)
        size = np.linalg.norm(m)
        if normalize == "running":
            average = decay * average + (1 - decay) * size
            step = m / size * min(3.0, size * (1 - decay ** (k + 1)) / average)
        else:
            step = m / size if normalize else m
        W = W - 0.3 * step
        np.testing.assert_allclose(run.W[k + 1], W, atol=1e-12)


def test_a_batch_of_all_samples_is_the_full_gradient():
    problem = sphere_problem(1, 4, 3, 3)
    full, batched = (
        simulate(problem, p=1.5, steps=20, options=SimulationOptions(backend="tensor", batch=b)).W[-1]
        for b in (None, 4)
    )
    np.testing.assert_allclose(full, batched, atol=1e-13)


def test_the_head_is_trained_on_the_same_batch():
    problem = sphere_problem(2, 4, 3, 3)
    run = simulate(
        problem, p=2, lr=0.1, steps=1, train_readout=True, normalize=None, options=SimulationOptions(batch=1, seed=4)
    )
    (chosen,) = orders(4, 1, 4, 1)
    v = torch.tensor(problem.v, requires_grad=True)
    X, y, z = (torch.tensor(getattr(problem, name)[chosen]) for name in ("X", "y", "z"))
    risk(X, y, z, v, W=torch.zeros(3, 3, dtype=torch.float64)).backward()
    np.testing.assert_allclose(run.v[-1], problem.v - 0.1 * v.grad.numpy(), atol=1e-14)


def test_nothing_underflows_far_out():
    problem = sphere_problem(0, 4, 3, 5)
    W0 = 3000 * simulate(problem, steps=200, options=SimulationOptions(backend="tensor")).W[-1]
    for options in ({}, {"momentum": 0.9}, {"normalize": "running"}):
        run = simulate(problem, **settings(W0=W0, steps=12, batch=1, **options))
        assert run.status == "steps"
        assert run.updates == 12
        assert np.isfinite(run.W).all()
        assert np.abs(run.W[-1] - W0).max() > 0.01


def test_the_seed_decides():
    problem = sphere_problem(0, 4, 3, 3)
    one, same, other = (simulate(problem, steps=6, options=SimulationOptions(batch=1, seed=s)).W[-1] for s in (1, 1, 2))
    assert (one == same).all()
    assert not np.allclose(one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"batch": 7}, "batch must be at most n = 6, got 7"),
        ({"momentum": 1.0}, "momentum"),
        ({"seed": -1}, "seed"),
        ({"normalize": "batch"}, "normalize must be None"),
        ({"batch": 2, "backend": "numba"}, r"backend='numba' does full batches without momentum"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(sphere_problem(0), **settings(steps=2, **change))
