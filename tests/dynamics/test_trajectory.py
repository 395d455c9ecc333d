"""A run as plain arrays: saved, loaded, cut up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions, Trajectory, simulate
from mirrormax.geometry import Hypentropy, directional_divergence

from .problems import sphere_batch


@pytest.fixture(scope="module")
def run() -> Trajectory:
    X, y, z, v = sphere_batch(4)
    to = SimulationOptions(references={"a/b": np.eye(10)})
    return simulate(X, y, z, v, p=[1.5, 2, 3, 2], steps=20, train_readout=True, options=to)


def assert_same(a: Trajectory, b: Trajectory) -> None:
    for field in dataclasses.fields(Trajectory):
        if field.name == "problem":  # not in a file
            continue
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(theirs, dict) and field.name != "config":
            assert ours.keys() == theirs.keys()
            for name, value in theirs.items():
                np.testing.assert_array_equal(ours[name], value)
        elif field.name == "config" or theirs is None:
            assert ours == theirs
        else:
            np.testing.assert_array_equal(ours, theirs)


def test_a_saved_run_comes_back_bit_for_bit(run: Trajectory, tmp_path: Path) -> None:
    run.save(tmp_path / "run.npz")
    assert_same(Trajectory.load(tmp_path / "run.npz"), run)
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_factored_and_single_runs_come_back_too(tmp_path: Path) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    one = simulate(
        X, y, z, v, p=Hypentropy(0.5), steps=5, options=SimulationOptions(factors=(np.eye(10)[:, :3], np.ones((10, 3))))
    )
    one.save(tmp_path / "run.npz")
    back = Trajectory.load(tmp_path / "run.npz")
    assert_same(back, one)
    assert back.potentials().item() == Hypentropy(0.5)
    assert back.status == "steps"


def test_the_file_has_the_documented_arrays(run: Trajectory, tmp_path: Path) -> None:
    run[0].save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz", allow_pickle=False) as file:
        K = len(file["steps"])
        shapes = {name: file[name].shape for name in ("W", "loss", "norm", "alpha", "v")}
    assert shapes == {"W": (K, 10, 10), "loss": (K,), "norm": (K,), "alpha": (6,), "v": (K, 10)}


def test_tensors_are_saved_as_arrays(tmp_path: Path) -> None:
    X, y, z, v = (torch.from_numpy(a[0]) for a in sphere_batch(1))
    tensors = simulate(X, y, z, v, steps=3)
    tensors.save(tmp_path / "run.npz")
    assert_same(Trajectory.load(tmp_path / "run.npz"), tensors.numpy())


def test_bad_files_are_refused_in_one_sentence(run: Trajectory, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"end the name with \.npz"):
        run.save(tmp_path / "run.txt")
    with pytest.raises(FileNotFoundError, match="run file"):
        Trajectory.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", steps=np.arange(3))
    with pytest.raises(ValueError, match="has no array 'W'"):
        Trajectory.load(tmp_path / "other.npz")


def test_trials_are_chosen_by_number_slice_and_mask(run: Trajectory) -> None:
    assert len(run) == 4
    assert run[2].batch_shape == ()
    assert np.array_equal(run[1:3].W, run.W[:, 1:3])
    chosen = run[np.array([True, False, False, True])]
    assert np.array_equal(chosen.loss, run.loss[:, [0, 3]])
    np.testing.assert_array_equal(chosen.divergence["a/b"], run.divergence["a/b"][:, [0, 3]])
    assert [p.p for p in chosen.potentials()] == [1.5, 2]
    with pytest.raises(IndexError):
        run[0][0]


def test_divergence_afterwards_equals_divergence_on_the_way(run: Trajectory) -> None:
    np.testing.assert_allclose(run.divergence_to(np.eye(10)), run.divergence["a/b"], rtol=1e-13)
    D_v = run[0].readout_divergence_to(np.ones(10))
    np.testing.assert_allclose(D_v, directional_divergence(np.ones(10), run[0].v, 1.5, dim=-1), rtol=1e-13)
    other = run.divergence_to(np.eye(10), p=6)
    assert np.allclose(other[-1], directional_divergence(np.eye(10), run.W[-1], 6))


def test_a_fixed_head_has_no_divergence() -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    with pytest.raises(ValueError, match="train_readout"):
        simulate(X, y, z, v, steps=1).readout_divergence_to(np.ones(10))


def test_repr_says_how_the_trials_ended(run: Trajectory) -> None:
    assert "steps 4" in repr(run)
    assert "(4,) trials" in repr(run)


@pytest.mark.parametrize("shape", [(2, 2), (10,), (1, 10, 10)])
def test_a_reference_of_another_shape_is_refused_by_both_shapes(shape: tuple[int, ...]) -> None:
    run = simulate(sphere_problem(seed=0), steps=2)
    with pytest.raises(ValueError, match="reference must have the shape") as refused:
        run.divergence_to(np.ones(shape))
    assert "(10, 10) of W" in str(refused.value)
    assert str(shape) in str(refused.value)
