"""``mirrormax simulate``: a problem file to a run file."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from mirrormax.commands.simulate import add_arguments, run
from mirrormax.data import example2, save_problem, sphere_problem
from mirrormax.dynamics import Trajectory, simulate


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(a) for a in arguments]))


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    save_problem(tmp_path / "problem.npz", sphere_problem(0))
    return tmp_path / "problem.npz"


def test_the_file_holds_the_run(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.npz"
    assert call(problem, "--p", 1.75, "--lr", 0.1, "--steps", 30, "--normalize", "tensor", "--out", out) == 0
    p = sphere_problem(0)
    expected = simulate(p.X, p.y, p.z, p.v, p=1.75, lr=0.1, steps=30)
    assert np.array_equal(Trajectory.load(out).W, expected.W)
    printed = capsys.readouterr().out
    assert str(out) in printed
    assert " ".join(map(str, expected.alpha)) in printed


def test_joint_runs_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_problem(tmp_path / "problem.npz", example2())
    out = tmp_path / "run.npz"
    arguments = ("--train-readout", "--lr-v", 0.2, "--steps", 20, "--record", "all", "--normalize", "none", "--quiet")
    assert call(tmp_path / "problem.npz", *arguments, "--loss", "exponential", "--out", out) == 0
    run_file = Trajectory.load(out)
    assert run_file.v.shape == (21, 2)
    assert run_file.config["lr_v"] == 0.2
    assert run_file.config["loss"] == "exponential"
    assert run_file.config["normalize"] is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("p", ["10000", "1.0000000000000002"])
def test_the_largest_and_the_smallest_p_end_without_a_traceback(problem: Path, tmp_path: Path, p: str) -> None:
    assert call(problem, "--quiet", "--p", p, "--steps", "3", "--out", tmp_path / "run.npz") == 0
    run = Trajectory.load(tmp_path / "run.npz")
    assert np.isfinite(run.loss).all()


def test_a_run_that_overflows_is_written_and_ends_with_three_and_the_reason(
    problem: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "run.npz"
    assert call(problem, "--p", 1.01, "--lr", 100, "--steps", 300, "--out", out) == 3
    assert Trajectory.load(out).status == "nonfinite"
    said = capsys.readouterr()
    assert "1.01" in said.err
    assert "diagnosis" in said.out
