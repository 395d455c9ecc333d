"""Tokens that share the attention of a sample, and right-hand sides other than 1: proved again from the data."""

import numpy as np
import pytest
import torch
from helpers import norm, random_case, sphere

from mirrormax.svm import InfeasibleError, att_svm


def matrices(X, z, keep, rhs=None, alpha=None):
    """A, b and B of min ‖W‖ s.t. A W ≥ b, B W = 0, written out in extended precision, and the places of their rows."""
    A, b, B, above, level = [], [], [], [], []
    reference = keep.argmax(-1) if alpha is None else alpha
    for i, o in enumerate(reference):
        for t in range(X.shape[1]):
            if t == o:
                continue
            row = np.outer((X[i, o].astype(np.longdouble) - X[i, t]), z[i].astype(np.longdouble)).ravel()
            if keep[i, t]:
                B.append(row)
                level.append((i, t))
            else:
                A.append(row)
                b.append(1.0 if rhs is None else rhs[i, t])
                above.append((i, t))
    size = X.shape[-1] * z.shape[-1]
    return np.array(A), np.array(b), np.array(B).reshape(-1, size), above, level


def proved(solution, X, z, keep, p, rhs=None, alpha=None):
    """The relative gap from the arrays returned, and the largest violation of any row."""
    A, b, B, above, level = matrices(X, z, keep, rhs, alpha)
    W = np.asarray(solution.W, dtype=np.longdouble).ravel()
    lam = np.array([solution.dual[place] for place in above], dtype=np.longdouble)
    nu = np.array([solution.nu[place] for place in level], dtype=np.longdouble)
    assert (lam >= 0).all()
    q = np.longdouble(p) / (np.longdouble(p) - 1)
    gap = float(1 - (b @ lam) / norm(lam @ A + nu @ B, q) / norm(W, p))
    return gap, float(max((b - A @ W).max(), np.abs(B @ W).max(initial=0)))


def shared_case(seed, n=5, T=6, d=8, share=0.2):
    rng = np.random.default_rng(seed)
    keep = np.zeros((n, T), dtype=bool)
    keep[np.arange(n), rng.integers(0, T, n)] = True
    keep |= rng.random((n, T)) < share
    keep[0, :2], keep[0, 2:] = True, False
    return sphere(seed, n, T, d), sphere(seed + 500, n, d), keep


@pytest.mark.parametrize("p", [1.05, 1.5, 2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_optimal_under_the_equalities(seed, p):
    X, z, keep = shared_case(seed)
    solution = att_svm(X, z, keep=keep, p=p)
    gap, violation = proved(solution, X, z, keep, p)
    assert solution.status == "optimal"
    assert gap <= 1e-9
    assert violation <= 1e-12
    assert abs(solution.gap - max(gap, 0)) < 1e-12
    assert np.abs(solution.nu).max() > 0
    assert not solution.nu[~keep].any()
    assert not solution.dual[keep].any()


def test_one_kept_token_each_is_the_attention_svm():
    case = random_case(3)
    keep = np.arange(5) == case.alpha[:, None]
    for p in (1.5, 2, 3):
        kept, plain = att_svm(case.X, case.z, keep=keep, p=p), att_svm(case.X, case.z, case.alpha, p=p)
        np.testing.assert_allclose(kept.W, plain.W, rtol=0, atol=1e-4 * np.abs(plain.W).max())
        assert abs(kept.margin / plain.margin - 1) < 2e-9
        assert (kept.support == plain.support).all()
        assert not kept.nu.any()


@pytest.mark.parametrize("p", [1.5, 2, 4])
def test_the_norm_is_that_of_an_independent_solver(p):
    cvxpy = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(0)
    for seed in range(2):
        X, z, keep = shared_case(10 + seed, 4, 5, 6)
        rhs = rng.uniform(-0.5, 1, keep.shape)
        rhs[0] = 1.0
        A, b, B, _, _ = matrices(X, z, keep, rhs)
        w = cvxpy.Variable(36)
        problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(w, p)), [A.astype(float) @ w >= b, B.astype(float) @ w == 0])
        problem.solve(solver=cvxpy.CLARABEL)
        solution = att_svm(X, z, keep=keep, rhs=rhs, p=p)
        assert abs(1 / float(solution.margin) / float(norm(w.value, p)) - 1) < 1e-5
        gap, violation = proved(solution, X, z, keep, p, rhs)
        assert gap <= 1e-9
        assert violation <= 1e-9


@pytest.mark.parametrize("p", [1.2, 2, 5])
def test_right_hand_sides_of_zero_and_below_are_met(p):
    case = random_case(7, 4, 5, 6)
    keep = np.arange(5) == case.alpha[:, None]
    rhs = np.where(np.random.default_rng(7).random((4, 5)) < 0.5, 0.0, 1.0)
    rhs[2], rhs[0] = -0.3, 1.0
    solution = att_svm(case.X, case.z, case.alpha, rhs=rhs, p=p)
    assert solution.nu is None
    A, b, _, above, _ = matrices(case.X, case.z, keep, rhs, case.alpha)
    lam = np.array([solution.dual[place] for place in above], dtype=np.longdouble)
    W = solution.W.astype(np.longdouble).ravel()
    assert (A @ W - b).min() > -1e-9
    assert 1 - (b @ lam) / norm(lam @ A, p / (p - 1)) / norm(W, p) <= 1e-9
    assert solution.margin > att_svm(case.X, case.z, case.alpha, p=p).margin


def test_larger_right_hand_sides_scale_the_weights():
    X, z, keep = shared_case(4)
    once = att_svm(X, z, keep=keep, p=1.5)
    thrice = att_svm(X, z, keep=keep, rhs=np.full(keep.shape, 3.0), p=1.5)
    np.testing.assert_allclose(thrice.W, 3 * once.W, atol=1e-5)


def test_the_reference_token_does_not_matter():
    X, z, keep = shared_case(5)
    last = keep.shape[1] - 1 - keep[:, ::-1].argmax(-1)
    first, other = att_svm(X, z, keep=keep, p=3), att_svm(X, z, last, keep=keep, p=3)
    np.testing.assert_allclose(first.W, other.W, atol=1e-5)
    gap, _ = proved(other, X, z, keep, 3, alpha=last)
    assert gap <= 1e-9


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_a_batch_is_its_members(p):
    cases = [shared_case(seed, share=0.1 * seed) for seed in range(4)]
    X, z, keep = (np.stack(parts) for parts in zip(*cases, strict=True))
    together = att_svm(X, z, keep=keep, p=p)
    assert together.W.shape == (4, 8, 8)
    assert together.nu.shape == keep.shape
    for k in range(4):
        alone = att_svm(X[k], z[k], keep=keep[k], p=p)
        assert abs(float(together.margin[k]) / float(alone.margin) - 1) < 2e-9


def test_equalities_that_follow_from_others_change_nothing():
    X, z, keep = shared_case(6)
    twice = att_svm(np.concatenate([X, X]), np.concatenate([z, z]), keep=np.concatenate([keep, keep]), p=1.5)
    assert abs(float(twice.margin) / float(att_svm(X, z, keep=keep, p=1.5).margin) - 1) < 2e-9


@pytest.mark.parametrize("p", [1.1, 2, 6])
def test_a_contradiction_through_equalities_is_proved(p):
    X, z, keep = shared_case(8, 4, 5, 6)
    X[2], z[2] = X[1], z[1]
    keep[1], keep[2] = np.arange(5) < 2, (np.arange(5) > 0) & (np.arange(5) < 3)  # 0 = 1 and 1 = 2, yet 0 above 2
    with pytest.raises(InfeasibleError) as caught:
        att_svm(X, z, keep=keep, p=p)
    solution = caught.value.solution
    A, b, B, above, level = matrices(X, z, keep)
    lam = np.array([solution.dual[place] for place in above], dtype=np.longdouble)
    nu = np.array([solution.nu[place] for place in level], dtype=np.longdouble)
    assert (lam >= 0).all()
    assert abs(b @ lam - 1) < 1e-12
    assert (np.abs(lam @ A + nu @ B) <= 1e-14 * (lam @ np.abs(A) + np.abs(nu) @ np.abs(B))).all()
    assert nu.any()
    assert solution.samples.tolist() == [False, True, True, False]


def test_a_contradiction_of_right_hand_sides_is_proved():
    X, z, _ = shared_case(9, 3, 4, 5)
    X[2], z[2] = X[1], z[1]
    alpha, rhs = np.array([0, 0, 1]), np.ones((3, 4))
    rhs[2, 0] = -0.5  # (x_0 − x_1) W z at least 1, and at most a half
    solution = att_svm(X, z, alpha, rhs=rhs, p=1.5, throw=False)
    assert solution.infeasible
    A, b, _, above, _ = matrices(X, z, np.arange(4) == alpha[:, None], rhs, alpha)
    lam = np.array([solution.dual[place] for place in above])
    assert abs(b @ lam - 1) < 1e-12
    assert np.abs(lam @ A).max() < 1e-14
    rhs[2, 0] = -1.5
    assert att_svm(X, z, alpha, rhs=rhs, p=1.5).status == "optimal"


def test_a_batch_keeps_the_feasible_beside_the_infeasible():
    X, z, keep = shared_case(11, 3, 4, 5)
    bad_X, bad_z, bad_keep = X.copy(), z.copy(), keep.copy()
    bad_X[2], bad_z[2] = X[1], z[1]
    bad_keep[1], bad_keep[2] = np.arange(4) == 0, np.arange(4) == 1
    found = att_svm(np.stack([X, bad_X]), np.stack([z, bad_z]), keep=np.stack([keep, bad_keep]), p=3, throw=False)
    assert found.optimal.tolist() == [True, False]
    assert found.infeasible.tolist() == [False, True]


def test_tensors_and_masks_are_taken():
    X, z, keep = shared_case(12)
    mask = np.ones(keep.shape, dtype=bool)
    gone = np.argwhere(~keep)[0]
    mask[tuple(gone)] = False
    spoilt = X.copy()
    spoilt[tuple(gone)] = np.nan
    solution = att_svm(torch.tensor(spoilt), torch.tensor(z), keep=torch.tensor(keep), mask=torch.tensor(mask))
    assert isinstance(solution.nu, torch.Tensor)
    assert solution.dual[tuple(gone)] == 0


REFUSED = {
    "no token kept": ({"keep": "none"}, r"keep leaves no token at sample 1"),
    "keep of numbers": ({"keep": "numbers"}, r"keep must"),
    "keep of another shape": ({"keep": "short"}, r"keep must have the shape \(\.\.\., n, T\)"),
    "alpha outside": ({"alpha": "outside"}, r"alpha at sample 0 is not among the tokens that keep has"),
    "neither": ({"keep": None}, r"att_svm needs alpha, the chosen token of each sample, or keep"),
    "soft": ({"C": 1.0}, r"keep and rhs are for hard margins, got C"),
    "another method": ({"method": "newton"}, r'method="newton" takes'),
    "rhs of another shape": ({"rhs": np.ones(3)}, r"rhs must have the shape"),
    "rhs without margin": ({"rhs": np.zeros((5, 6))}, r"rhs has no positive entry, so that W = 0 would do"),
    "rhs infinite": ({"rhs": np.full((5, 6), np.inf)}, r"rhs holds inf at sample"),
    "all kept": ({"keep": "all"}, r"no sample has a second token|nothing to separate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name):
    change, message = REFUSED[name]
    X, z, keep = shared_case(13)
    none = keep.copy()
    none[1] = False
    words = {"none": none, "numbers": keep * 1.0, "short": keep[:, :3], "all": np.ones_like(keep)}
    arguments = {"keep": keep, **change}
    if isinstance(arguments["keep"], str):
        arguments["keep"] = words[arguments["keep"]]
    if "alpha" in arguments:
        arguments["alpha"] = np.full(5, 5)
    error = TypeError if "numbers" in name else ValueError
    with pytest.raises(error, match=message) as caught:
        att_svm(X, z, **arguments)
    assert "\n" not in str(caught.value)


def crowded_case(seed):
    """Right-hand sides of every sign, so many for so few dimensions that the weights of p = 2 have no room in them."""
    rng = np.random.default_rng(seed)
    n, T, d = (int(rng.integers(low, high)) for low, high in ((1, 5), (2, 6), (2, 6)))
    X, z, alpha = rng.standard_normal((n, T, d)), rng.standard_normal((n, d)), rng.integers(0, T, n)
    rhs = rng.choice([-1, -0.5, 0, 0.3, 1.0], size=(n, T))
    keep = np.arange(T) == alpha[:, None]
    keep[0, (alpha[0] + 1) % T] |= seed % 2 == 1 and T > 2
    return X, z, alpha, keep, rhs


@pytest.mark.parametrize(("seed", "p"), [(470, 12), (505, 3), (884, 30), (925, 6)])
def test_a_start_without_room_is_found_within_tighter_rows(seed, p):
    X, z, alpha, keep, rhs = crowded_case(seed)
    solution = att_svm(X, z, alpha, keep=keep, rhs=rhs, p=p)
    gap, violation = proved(solution, X, z, keep, p, rhs, alpha)
    assert solution.status == "optimal"
    assert gap <= 1e-9
    assert violation <= 1e-9


@pytest.mark.parametrize("seed", [8, 10, 50, 106])
@pytest.mark.parametrize("p", [1.5, 2, 6])
def test_weights_that_only_just_separate_are_told_from_none(seed, p):
    """The shortest weights meet their rows to rounding alone: whether any do is seen by those with the most room."""
    X, z, alpha, keep, rhs = crowded_case(seed)
    solution = att_svm(X, z, alpha, keep=keep, rhs=rhs, p=p)
    gap, violation = proved(solution, X, z, keep, p, rhs, alpha)
    assert max(gap, violation) <= 1e-9
