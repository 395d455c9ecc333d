"""``mirrormax svm``: files in, file out, summary on screen, exit codes."""

import argparse

import numpy as np
import pytest
from helpers import infeasible_case

from mirrormax.commands.svm import add_arguments, run
from mirrormax.data import Problem, read_npz, save_problem, sphere_problem
from mirrormax.svm import att_svm


@pytest.fixture
def problem(tmp_path):
    save_problem(tmp_path / "problem.npz", sphere_problem(0))
    return sphere_problem(0)


def call(folder, *words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(folder / "problem.npz"), "--out", str(folder / "sol.npz"), *words]))


def test_solution_file_and_summary(tmp_path, problem, capsys):
    assert call(tmp_path, "--p", "1.75") == 0
    saved = read_npz(tmp_path / "sol.npz")
    expected = att_svm(problem.X, problem.z, problem.best_tokens(), p=1.75)
    for name in ("W", "margin", "gap", "violation", "support", "dual"):
        assert np.array_equal(saved[name], getattr(expected, name))
    assert saved["alpha"].tolist() == problem.best_tokens().tolist()
    assert saved["p"] == 1.75
    printed = capsys.readouterr()
    assert "optimal" in printed.out
    assert f"{expected.margin:.10g}" in printed.out
    assert not printed.err


def test_p_is_two_unless_said_otherwise(tmp_path, problem):
    call(tmp_path)
    assert np.array_equal(
        read_npz(tmp_path / "sol.npz")["W"], att_svm(problem.X, problem.z, problem.best_tokens(), p=2).W
    )


def test_quiet_prints_nothing(tmp_path, problem, capsys):
    assert call(tmp_path, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_alpha_comes_from_the_file_unless_scores_are_asked_for(tmp_path):
    plain = sphere_problem(1)
    chosen = (plain.best_tokens() + 1) % 8
    save_problem(tmp_path / "problem.npz", Problem(plain.X, plain.y, plain.z, plain.v, alpha=chosen))
    call(tmp_path)
    assert read_npz(tmp_path / "sol.npz")["alpha"].tolist() == chosen.tolist()
    call(tmp_path, "--alpha", "from-scores")
    assert read_npz(tmp_path / "sol.npz")["alpha"].tolist() == plain.best_tokens().tolist()


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_alpha_may_be_a_file(tmp_path, problem, kind):
    chosen = np.array([1, 2, 3, 4, 5, 6])
    path = tmp_path / f"alpha.{kind}"
    np.save(path, chosen) if kind == "npy" else np.savez(path, alpha=chosen)
    assert call(tmp_path, "--alpha", str(path)) == 0
    assert read_npz(tmp_path / "sol.npz")["alpha"].tolist() == chosen.tolist()


def test_nuclear_norm_and_soft_margin_are_options(tmp_path, problem):
    assert call(tmp_path, "--norm", "nuclear") == 0
    nuclear = read_npz(tmp_path / "sol.npz")
    assert 1 / nuclear["margin"] == pytest.approx(np.linalg.svd(nuclear["W"], compute_uv=False).sum())
    assert call(tmp_path, "--C", "0.5") == 0
    assert read_npz(tmp_path / "sol.npz")["C"] == 0.5


def test_infeasible_problem_exits_with_three_and_its_certificate(tmp_path, capsys):
    case = infeasible_case()
    problem = Problem(case.X, np.ones(3), case.z, np.ones(5), alpha=case.alpha)
    save_problem(tmp_path / "problem.npz", problem)
    assert call(tmp_path) == 3
    saved = read_npz(tmp_path / "sol.npz")
    assert saved["dual"].sum() == pytest.approx(1)
    assert np.isnan(saved["W"]).all()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("infeasible")
    assert "samples in the certificate: 1, 2" in printed.err
    assert printed.err.count("\n") == 1


def test_where_the_tolerance_is_not_reached_nothing_is_written(tmp_path, problem, capsys):
    assert call(tmp_path, "--tol", "1e-30", "--p", "1.5") == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "tol=1e-30" in said.err
    assert "nothing was written" in said.err
    assert not (tmp_path / "sol.npz").exists()


def test_an_earlier_solution_stays_where_the_tolerance_is_not_reached(tmp_path, problem):
    assert call(tmp_path, "--p", "1.5") == 0
    before = (tmp_path / "sol.npz").read_bytes()
    assert call(tmp_path, "--p", "1.5", "--tol", "1e-30") == 3
    assert (tmp_path / "sol.npz").read_bytes() == before
