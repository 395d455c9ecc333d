"""When a run ends, and what is recorded of it."""

from __future__ import annotations

import numpy as np
import pytest

from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.dynamics.recording import record_steps

from .problems import settings, sphere_batch


def test_loss_below_its_tolerance_stops_a_trial(backend: str) -> None:
    X, y, z, v = sphere_batch(5)
    free = simulate(X, y, z, v, steps=200, record="all", options=SimulationOptions(backend=backend))
    tol = float(np.median(free.loss[100]))
    run = simulate(X, y, z, v, steps=200, record="all", options=SimulationOptions(loss_tol=tol, backend=backend))
    assert set(run.status.tolist()) == {"loss", "steps"}
    for k in range(5):
        below = free.loss[:, k] < tol
        if run.status[k] == "loss":
            assert run.updates[k] == below.argmax()
            assert run.loss[-1, k] == free.loss[below.argmax(), k]
        else:
            assert not below.any()
            assert run.updates[k] == 200


def test_a_trial_that_leaves_the_finite_numbers_stops_alone(backend: str) -> None:
    X, y, z, v = sphere_batch(3)
    W0 = np.zeros((3, 10, 10))
    W0[1, 0, 0] = 1.7e308
    lr = np.array([0.1, 1e31, 0.1])
    run = simulate(X, y, z, v, p=1.1, lr=lr, W0=W0, steps=50, options=SimulationOptions(backend=backend))
    assert run.status.tolist() == ["steps", "nonfinite", "steps"]
    assert run.updates[1] < 50 == run.updates[0]
    assert np.isfinite(run.W).all()
    for k in (0, 2):
        alone = simulate(X[k], y[k], z[k], v[k], p=1.1, steps=50, options=SimulationOptions(backend=backend))
        assert np.allclose(run[k].W, alone.W, rtol=1e-9)


def test_a_run_of_one_that_breaks_says_how_many_updates_it_took(backend: str) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    run = simulate(X, y, z, v, p=1.1, lr=3e30, steps=1000, record=3, options=SimulationOptions(backend=backend))
    assert run.status == "nonfinite"
    assert run.steps[-1] == run.updates < 1000
    assert np.isfinite(run.W).all()


def test_a_gradient_that_is_zero_stops_a_run(backend: str) -> None:
    X, y, z, _ = sphere_batch(2)
    v = np.stack([np.zeros(10), np.eye(10)[0]])  # a zero head scores all tokens alike
    run = simulate(X, y, z, v, steps=30, options=SimulationOptions(backend=backend))
    assert run.status.tolist() == ["stationary", "steps"]
    assert run.updates.tolist() == [0, 30]
    alone = simulate(X[0], y[0], z[0], v[0], steps=30, options=SimulationOptions(backend=backend))
    assert alone.steps.tolist() == [0]
    assert alone.status == "stationary"


def test_plain_steps_end_when_the_gradient_underflows(backend: str) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    W0 = 1e5 * simulate(X, y, z, v, steps=300).W[-1]
    assert (
        simulate(X, y, z, v, W0=W0, steps=5, normalize=None, options=SimulationOptions(backend=backend)).status
        == "stationary"
    )
    assert (
        simulate(X, y, z, v, W0=W0, steps=5, normalize="tensor", options=SimulationOptions(backend=backend)).status
        == "steps"
    )


def test_a_trained_head_starts_a_run_that_zero_weights_could_not() -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    run = simulate(X, y, z, 0 * v, steps=5, train_readout=True, record="all")
    assert run.status == "steps"
    assert (run.W[1] == 0).all()
    assert (run.W[2] != 0).any()


@pytest.mark.parametrize(
    ("record", "expected"),
    [("all", list(range(21))), ([5, 3, 5], [0, 3, 5, 20]), (np.array([20]), [0, 20]), (2, [0, 1, 20])],
)
def test_recorded_steps_always_hold_the_first_and_the_last(record: object, expected: list[int]) -> None:
    assert record_steps(record, 20) == expected


def test_the_usual_grid_is_log_spaced_and_short() -> None:
    grid = np.array(record_steps(None, 100_000))
    assert len(grid) <= 102
    assert (grid[0], grid[-1]) == (0, 100_000)
    assert grid[-1] / grid[-2] < 1.2
    assert record_steps(None, 0) == [0]


def test_weights_of_the_last_step_only() -> None:
    X, y, z, v = sphere_batch(2)
    short, full = (simulate(X, y, z, v, steps=20, options=SimulationOptions(weights=kind)) for kind in ("last", "all"))
    assert short.W.shape == (1, 2, 10, 10)
    assert np.array_equal(short.W[-1], full.W[-1])
    assert np.array_equal(short.loss, full.loss)


def test_progress_is_told_every_record() -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    told: list[int] = []
    run = simulate(X, y, z, v, steps=10, record=[4], options=SimulationOptions(progress=told.append))
    assert told == run.steps.tolist() == [0, 4, 10]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": -1}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"lr": 0.0}, "lr"),
        ({"lr": [0.1, 0.2]}, "lr has the shape"),
        ({"p": 1.0}, "p must be"),
        ({"p": [2.0, 3.0], "W0": np.zeros((3, 10, 10))}, "p has the shape"),
        ({"W0": np.zeros((9, 10))}, "W must have the shape"),
        ({"factors": (np.eye(10), np.eye(10)), "W0": np.eye(10)}, "factors"),
        ({"lr_v": 0.1}, "train_readout"),
        ({"weights": "some"}, "weights"),
        ({"record": "often"}, "record"),
        ({"record": [3, 99]}, "record"),
        ({"record": 0}, "record"),
        ({"references": np.eye(9)}, "references"),
        ({"references": np.ones((4, 10, 10))}, "does not broadcast"),
        ({"loss": "hinge"}, "hinge"),
        ({"backend": "fortran"}, "backend"),
        ({"backend": "numba", "factors": (np.eye(10), np.eye(10))}, "factors"),
    ],
)
def test_refusals_name_the_argument(arguments: dict[str, object], words: str) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    with pytest.raises((ValueError, TypeError), match=words):
        simulate(X, y, z, v, **settings(**{"steps": 5, **arguments}))


def test_without_numba_tensors_do_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrormax.dynamics import simulation as backends

    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    monkeypatch.setattr(backends, "WORTH_COMPILING", 0)
    X, y, z, v = (a[0] for a in sphere_batch(1))
    assert simulate(X, y, z, v, steps=5).config["backend"] == "tensor"
    with pytest.raises(ValueError, match="not installed"):
        simulate(X, y, z, v, steps=5, options=SimulationOptions(backend="numba"))
