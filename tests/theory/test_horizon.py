"""The horizon of every potential is what its values tend to, and the SVM of it what runs turn to."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from potentials import POTENTIALS

from mirrormax.attention import leads
from mirrormax.data import example1, sphere_problem
from mirrormax.dynamics import simulate
from mirrormax.geometry import ElasticNet, Hypentropy, Lp, Potential, SquaredLp, lp_norm
from mirrormax.svm import InfeasibleError, att_svm
from mirrormax.theory import horizon_svm

KNOWN = [potential for potential in POTENTIALS if type(potential).__module__.startswith("mirrormax.")]


@pytest.mark.parametrize("potential", KNOWN, ids=str)
def test_values_far_out_order_points_as_the_norm_does(potential):
    """ψ(tw)/h(t) → c‖w‖_r^k: of two points of norm 1, ψ(ta)/ψ(tb) → 1, and at most 1/log t away from it."""
    r, t = potential.horizon, torch.tensor(1e150 if isinstance(potential, Hypentropy) else 1e5, dtype=torch.float64)
    if getattr(potential, "p", 0) > 10:  # t^p is no number
        t = torch.tensor(10.0, dtype=torch.float64)
    a, b = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 4, 4)))
    a, b = a / lp_norm(a, r), b / lp_norm(b, r)
    bound = 4 / t.log() if isinstance(potential, Hypentropy) else 1e-4
    assert abs(potential.value(t * a) / potential.value(t * b) - 1) < bound
    other = 2.0 if r != 2 else 1.5
    worse = potential.value(t * a / lp_norm(a, other)) / potential.value(t * b / lp_norm(b, other))
    assert abs(worse - 1) > bound


def test_the_linear_program_agrees_with_a_conic_solver():
    made = sphere_problem(2, 3, 4, 5)
    found = horizon_svm(made.X, made.z, [0, 1, 2], potential=Hypentropy())
    W = cp.Variable((5, 5))
    rows = [
        (made.X[i, a] - made.X[i, t]) @ W @ made.z[i] >= 1 for i, a in enumerate([0, 1, 2]) for t in set(range(4)) - {a}
    ]
    problem = cp.Problem(cp.Minimize(cp.sum(cp.abs(W))), rows)
    problem.solve(solver=cp.CLARABEL)
    assert 1 / found.margin == pytest.approx(problem.value, rel=1e-6)
    assert found.gap < 1e-9
    assert leads(made.X, made.z, found.W, np.array([0, 1, 2])).min() == pytest.approx(1)


def test_every_other_potential_has_the_attention_svm_of_its_norm():
    made = example1()
    for potential, p in ((SquaredLp(3.0), 3), (ElasticNet(0.5), 2), (Lp(1.5), 1.5)):
        found = horizon_svm(made, potential=potential)
        assert np.allclose(found.W, att_svm(made, p=p).W)
        assert found.margin == att_svm(made, p=p).margin


def test_what_no_weights_separate_and_what_is_not_known_is_refused():
    X = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    with pytest.raises(InfeasibleError):
        horizon_svm(X, np.ones((2, 2)), [0, 0], potential=Hypentropy())

    class Unknown(Lp):
        horizon = None

    Potential.registry.pop("Unknown")
    with pytest.raises(ValueError, match="define the property horizon"):
        horizon_svm(example1(), potential=Unknown(2.0))


RATES = {SquaredLp(3.0): 0.1, ElasticNet(1.0): 0.1, Hypentropy(): 0.02}


@pytest.fixture(scope="module")
def runs():
    """One problem under each potential, side by side: a step of three trials costs little more than one of one."""
    made = sphere_problem(0, 2, 3, 3)
    lr = np.array(list(RATES.values()))
    return made, simulate(made.X, made.y, made.z, made.v, p=list(RATES), lr=lr, steps=2000, record=[200, 2000])


@pytest.mark.parametrize("potential", RATES, ids=str)
def test_a_run_turns_to_the_svm_of_the_horizon(potential, runs):
    made, run = runs[0], runs[1][list(RATES).index(potential)]
    found = horizon_svm(made.X, made.z, run.alpha, potential=potential)
    unit = run.W[1:] / lp_norm(run.W[1:], potential.horizon)[:, None, None]
    early, late = 1 - leads(made.X, made.z, unit, run.alpha).min((-2, -1)) / found.margin
    assert -1e-9 < late < 0.03
    assert late < early
