"""One problem, one validator: each mistake has one text and one exception type, wherever it is made."""

import numpy as np
import pytest
import torch

import mirrormax as mm
from mirrormax.attention import (
    attend,
    attention_weights,
    gradient,
    leads,
    logits,
    predict,
    risk,
    scaled_gradient,
)
from mirrormax.data import sphere_problem
from mirrormax.problem import check, check_shapes
from mirrormax.theory import constants, estimate_nu


def _good():
    rng = np.random.default_rng(0)
    return {
        "X": rng.standard_normal((3, 4, 5)),
        "y": np.array([1.0, -1.0, 1.0]),
        "z": rng.standard_normal((3, 5)),
        "v": rng.standard_normal(5),
        "W": rng.standard_normal((5, 5)),
        "K": np.ones((5, 2)),
        "Q": np.ones((5, 2)),
        "alpha": np.array([0, 1, 3]),
        "mask": np.ones((3, 4), dtype=bool),
        "support": np.zeros((3, 4), dtype=bool),
    }


GOOD = _good()


def with_entry(name, index, value):
    changed = GOOD[name].copy()
    changed[index] = value
    return {name: changed}


# What is changed, and what is said.
MISTAKES = [
    ({"X": "tokens"}, TypeError, r"^X must be an array or a tensor of numbers, got 'tokens' \(str\)\.$"),
    ({"X": None}, TypeError, r"^X must be an array or a tensor of numbers, got NoneType"),
    ({"X": 3.0}, TypeError, r"^X must be an array or a tensor of numbers, got 3\.0 \(float\)"),
    ({"X": [[[1.0], [2.0, 3.0]]]}, ValueError, r"^X is made of lists of unequal length"),
    ({"X": np.full((3, 4, 5), "a")}, TypeError, r"^X must hold real numbers, got <U1; convert it first"),
    ({"X": np.ones((3, 4, 5)) * 1j}, TypeError, r"^X must hold real numbers, got complex128; convert it first"),
    ({"X": torch.ones(3, 4, 5).to_sparse()}, TypeError, r"^X must be a dense tensor.*X\.to_dense\(\)"),
    ({"X": np.ones((4, 5))}, ValueError, r"^X must have the shape \(..., n, T, d\), got \(4, 5\).*X\[None\]"),
    ({"X": np.ones((0, 4, 5))}, ValueError, r"^X must not be empty, got the shape \(0, 4, 5\)"),
    ({"X": np.ones((0, 3, 4, 5))}, ValueError, r"^X must not be empty, got the shape \(0, 3, 4, 5\)"),
    ({"y": np.ones(4)}, ValueError, r"^y must have the shape \(..., n\) = \(..., 3\) to go with X, got \(4,\)"),
    ({"y": np.array(1.0)}, ValueError, r"^y must have the shape \(..., n\), got \(\), .* too few dimensions"),
    ({"z": np.ones((3, 6))}, ValueError, r"^z must have the shape \(..., n, d\) = \(..., 3, 5\).*got \(3, 6\)"),
    ({"z": np.ones(5)}, ValueError, r"^z must have the shape \(..., n, d\), got \(5,\), .* too few"),
    ({"v": np.ones(3)}, ValueError, r"^v must have the shape \(..., d\) = \(..., 5\).*got \(3,\)"),
    ({"W": np.ones((5, 4))}, ValueError, r"^W must have the shape \(..., d, d\) = \(..., 5, 5\).*got \(5, 4\)"),
    ({"K": np.ones((4, 2))}, ValueError, r"^K must have the shape \(..., d, m\) = \(..., 5, 2\).*got \(4, 2\)"),
    ({"Q": np.ones((5, 3))}, ValueError, r"^Q must have the shape \(..., d, m\) = \(..., 5, 2\).*got \(5, 3\)"),
    ({"mask": np.ones((3, 5), dtype=bool)}, ValueError, r"^mask must have the shape \(..., n, T\) = \(..., 3, 4\)"),
    ({"mask": np.ones((3, 4))}, TypeError, r"^mask must be boolean, got float64; write mask != 0"),
    ({"support": np.ones((3, 4))}, TypeError, r"^support must be boolean, got float64"),
    (with_entry("mask", 2, False), ValueError, r"^mask leaves sample 2 without a token; drop the sample"),
    (with_entry("y", 1, 0.0), ValueError, r"^y must hold the labels \+1 and -1, got 0 at index \(1,\); use 2 \* y - 1"),
    ({"y": np.array([True, False, True])}, TypeError, r"^y must hold real numbers, got bool; use 2 \* y - 1"),
    (with_entry("y", 1, np.nan), ValueError, r"^y must hold the labels \+1 and -1, got nan at index \(1,\)"),
    (with_entry("X", (2, 1, 0), np.nan), ValueError, r"^X holds nan at index \(2, 1, 0\); every entry must be finite"),
    (with_entry("z", (0, 4), np.inf), ValueError, r"^z holds inf at index \(0, 4\)"),
    (with_entry("v", 3, -np.inf), ValueError, r"^v holds -inf at index \(3,\)"),
    (with_entry("W", (4, 4), np.nan), ValueError, r"^W holds nan at index \(4, 4\)"),
    (with_entry("alpha", 1, 4), ValueError, r"^alpha chooses token 4 in sample 1, but tokens are numbered 0 to 3"),
    (with_entry("alpha", 2, -1), ValueError, r"^alpha chooses token -1 in sample 2, but tokens are numbered 0 to 3"),
    (with_entry("mask", (2, 3), False), ValueError, r"^alpha chooses token 3 in sample 2, which the mask leaves out"),
    ({"alpha": np.ones(3)}, TypeError, r"^alpha must hold integers, the indices of tokens, got float64"),
    ({"alpha": GOOD["alpha"] > 0}, TypeError, r"^alpha must hold integers, the indices of tokens, got bool"),
    ({"alpha": np.array([2**63, 0, 0], np.uint64)}, ValueError, r"^alpha holds 9223372036854775808, which is beyond"),
    (
        {"X": np.ones((2, 3, 4, 5)), "W": np.ones((6, 5, 5))},
        ValueError,
        r"^W has the batch dimensions \(6,\), which do not broadcast with \(2,\) of the other arguments",
    ),
    (
        {"X": np.ones((2, 3, 4, 5)), "alpha": np.array([[0, 1, 2], [0, 9, 0]])},
        ValueError,
        r"^alpha chooses token 9 in sample 1 of problem 1, but",
    ),
]

# Doors, and what each of them asks for.
DOORS = {
    "check": (check, tuple(GOOD)),
    "Problem": (mm.Problem, ("X", "y", "z", "v", "alpha", "mask")),
    "att_svm": (mm.att_svm, ("X", "z", "alpha", "mask")),
    "label_margin": (mm.svm.label_margin, ("X", "y", "alpha", "mask")),
    "simulate": (lambda W=None, **given: mm.simulate(steps=1, W0=W, **given), ("X", "y", "z", "v", "W", "mask")),
    "regularization_path": (
        lambda **given: mm.regularization_path(radii=[1.0], random_starts=0, **given),
        ("X", "y", "z", "v", "mask"),
    ),
    "joint_regularization_path": (
        lambda **given: mm.dynamics.joint_regularization_path(radii=[1.0], random_starts=1, **given),
        ("X", "y", "z", "mask"),
    ),
    "logits": (logits, ("X", "z", "W", "mask")),
    "predict": (predict, ("X", "z", "v", "W", "mask")),
    "gradient": (gradient, ("X", "y", "z", "v", "W", "mask")),
    "token_scores": (mm.attention.token_scores, ("X", "y", "v", "mask")),
    "leads": (leads, ("X", "z", "W", "alpha", "mask")),
    "is_locally_optimal": (mm.is_locally_optimal, ("X", "y", "z", "v", "alpha", "support", "mask")),
    "constants": (constants, ("X", "y", "z", "v", "alpha", "mask")),
    "estimate_nu": (lambda **given: estimate_nu(samples=1, **given), ("X", "y", "z", "alpha", "mask")),
}


def test_a_good_problem_passes():
    check(**{name: torch.from_numpy(a) for name, a in GOOD.items()})
    check(torch.from_numpy(GOOD["X"]))
    check(torch.from_numpy(GOOD["X"]), y=torch.tensor([1, -1, 1]), alpha=torch.tensor([0, 1, 3], dtype=torch.uint8))


@pytest.mark.parametrize(("change", "error", "message"), MISTAKES, ids=[m[2][1:40] for m in MISTAKES])
def test_one_mistake_has_one_text_and_one_type_at_every_door(change, error, message):
    found = {}
    for door, (function, names) in DOORS.items():
        if not set(change) <= set(names) or ("alpha" in message and "alpha" not in names):
            continue
        if getattr(change.get("X"), "ndim", 0) == 4 and door in ("constants", "estimate_nu"):
            continue  # the theory takes no batches, and says that
        if door == "att_svm" and message.startswith("^z must have the shape"):
            continue  # there queries may have a dimension of their own
        # check is for tensors; everything else takes what users have.
        given = {name: GOOD[name] for name in names} | change
        if door == "check":
            given = {
                name: torch.from_numpy(a) if isinstance(a, np.ndarray) and a.dtype.kind in "fib" else a
                for name, a in given.items()
            }
        with pytest.raises(error, match=message) as raised:
            function(**given)
        found[door] = str(raised.value)
    assert len(set(found.values())) == 1, found
    assert len(found) >= 1
    (text,) = set(found.values())
    assert "\n" not in text
    assert text.endswith(".")


def test_nan_in_padding_is_no_mistake():
    X, mask = GOOD["X"].copy(), GOOD["mask"].copy()
    X[1, 3], mask[1, 3] = np.nan, False
    assert not mm.Problem(X, mask=mask).X[1, 3].any()
    with pytest.raises(ValueError, match=r"X holds nan at index \(1, 3, 0\)"):
        mm.Problem(X)


def test_checking_shapes_reads_no_values():
    X = torch.from_numpy(GOOD["X"])
    check_shapes(X * torch.nan, y=torch.zeros(3), alpha=torch.tensor([100, 100, 100]))


def test_an_unknown_argument_is_named():
    with pytest.raises(TypeError, match="a problem has no argument 'weights'"):
        check(torch.ones(3, 4, 5), weights=torch.ones(3))


def problem():
    return mm.Problem(**{name: GOOD[name] for name in ("X", "y", "z", "v")})


def test_numpy_becomes_double_and_tensors_keep_their_type():
    made = mm.Problem(GOOD["X"].astype(np.float32), [1, -1, 1], alpha=[0, 1, 2])
    assert made.X.dtype == made.y.dtype == np.float64
    assert made.alpha.dtype == np.int64
    tensors = mm.Problem(torch.ones(3, 4, 5, dtype=torch.float32), y=[1, -1, 1])
    assert tensors.X.dtype == tensors.y.dtype == torch.float32
    assert tensors.numpy().X.dtype == np.float64
    assert made.tensors().X.dtype == torch.float64


def test_a_problem_is_a_copy_of_its_arrays():
    X = GOOD["X"].copy()
    made = mm.Problem(X)
    X[:] = np.nan
    assert np.array_equal(made.X, GOOD["X"])


@pytest.mark.parametrize("kind", ["numpy", "tensors"])
def test_the_methods_of_a_problem_are_its_formulas(kind):
    mask = np.ones((3, 4), dtype=bool)
    mask[1, 3] = False
    made = mm.Problem(**{name: GOOD[name] for name in "Xyzv"}, alpha=[0, 1, 3], mask=mask)
    made = made.tensors() if kind == "tensors" else made
    expected_type = torch.Tensor if kind == "tensors" else np.ndarray
    scores, offsets, found = made.scores(), made.leads(), made.logits(GOOD["W"])
    assert all(isinstance(a, expected_type) for a in (scores, offsets, found, made.best_tokens()))
    X = np.where(mask[..., None], GOOD["X"], 0)
    wanted = np.where(mask, GOOD["y"][:, None] * (X @ GOOD["v"]), -np.inf)
    assert np.allclose(scores, wanted, rtol=1e-14, atol=1e-14)
    assert np.array_equal(np.asarray(made.best_tokens()), wanted.argmax(1))
    assert np.array_equal(np.asarray(offsets), X[np.arange(3), [0, 1, 3]][:, None] - X)
    h = np.einsum("ntd,de,ne->nt", X, GOOD["W"], GOOD["z"])
    assert np.allclose(found, np.where(mask, h, -np.inf), rtol=1e-13, atol=1e-13)


def test_a_tie_for_the_best_token_is_named():
    X = np.ones((2, 2, 1))
    X[0, 1] = 0
    with pytest.raises(ValueError, match="sample 1 has more than one token with the highest score; give alpha"):
        mm.Problem(X, y=[1, 1], v=[1.0]).best_tokens()


def test_batches_have_a_shape_and_broadcast():
    batch = mm.Problem(np.stack([GOOD["X"]] * 2), y=GOOD["y"], z=np.stack([GOOD["z"]] * 2)[:, None], v=GOOD["v"])
    assert batch.batch_shape == (2, 2)
    assert problem().batch_shape == ()
    assert batch.scores().shape == (2, 3, 4)


FUNCTIONS = {
    "logits": (logits, "Xz", True),
    "attention_weights": (attention_weights, "Xz", True),
    "attend": (attend, "Xz", True),
    "predict": (predict, "Xzv", True),
    "risk": (risk, "Xyzv", True),
    "gradient": (gradient, "Xyzv", True),
    "scaled_gradient": (scaled_gradient, "Xyzv", True),
    "token_scores": (mm.attention.token_scores, "Xyv", False),
    "selected_tokens": (mm.attention.selected_tokens, "Xz", True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_a_problem_stands_for_its_arrays(name, masked):
    function, fields, takes_weights = FUNCTIONS[name]
    options = {"mask": GOOD["mask"].copy()} if masked else {}
    if masked:
        options["mask"][0, 2] = False
    made = mm.Problem(**{field: GOOD[field] for field in "Xyzv"}, **options)
    arrays, weights = [GOOD[field] for field in fields], [GOOD["W"]] if takes_weights else []
    wanted, found = function(*arrays, *weights, **options), function(made, *weights)
    tensors = function(made.tensors(), *weights)
    for a, b, c in zip(*(r if isinstance(r, tuple) else (r,) for r in (wanted, found, tensors)), strict=True):
        assert isinstance(b, np.ndarray)
        assert isinstance(c, torch.Tensor)
        assert np.array_equal(a, b)
        assert np.array_equal(a, c.numpy())


def test_solvers_and_runs_take_a_problem():
    made = sphere_problem(0, 3, 4, 5)
    alpha = made.best_tokens()
    by_arrays = mm.att_svm(made.X, made.z, alpha, p=1.5)
    assert np.array_equal(mm.att_svm(made, alpha, p=1.5).W, by_arrays.W)
    chosen = mm.Problem(made.X, made.y, made.z, made.v, alpha)
    assert np.array_equal(mm.att_svm(chosen, p=1.5).W, by_arrays.W)
    assert mm.svm.label_margin(chosen) == mm.svm.label_margin(made.X, made.y, alpha)
    assert isinstance(mm.att_svm(chosen.tensors()).W, torch.Tensor)
    assert np.array_equal(
        mm.attention.support_tokens(chosen, by_arrays.W), mm.attention.support_tokens(made, by_arrays.W, alpha)
    )
    assert mm.is_locally_optimal(chosen, by_arrays.W)
    run = mm.simulate(made, p=1.5, steps=5)
    assert np.array_equal(run.W, mm.simulate(made.X, made.y, made.z, made.v, p=1.5, steps=5).W)
    path = mm.regularization_path(made, radii=[1.0])
    assert np.array_equal(path.W, mm.regularization_path(made.X, made.y, made.z, made.v, radii=[1.0]).W)
    arrays = constants(made.X, made.y, made.z, made.v, alpha, p=1.5)
    assert str(constants(made, alpha, p=1.5)) == str(arrays) == str(constants(chosen, p=1.5))


def test_alpha_of_the_call_outranks_that_of_the_problem():
    made = sphere_problem(0, 3, 4, 5)
    chosen = mm.Problem(made.X, made.y, made.z, made.v, alpha=[0, 0, 0])
    assert np.array_equal(mm.att_svm(chosen, made.best_tokens()).W, mm.att_svm(made, made.best_tokens()).W)


def test_what_a_problem_lacks_is_named():
    lean = mm.Problem(X=GOOD["X"], z=GOOD["z"])
    assert mm.att_svm(lean, GOOD["alpha"]).status == "optimal"
    with pytest.raises(ValueError, match=r"^att_svm needs alpha, the chosen token of each sample, or keep"):
        mm.att_svm(lean)
    with pytest.raises(ValueError, match=r"^gradient needs y, which the problem does not have; make it with y="):
        gradient(lean, GOOD["W"])
    with pytest.raises(ValueError, match=r"^simulate needs y"):
        mm.simulate(lean)
    with pytest.raises(ValueError, match=r"^simulate needs v\b"):
        mm.simulate(mm.Problem(GOOD["X"], GOOD["y"], GOOD["z"]))
    with pytest.raises(ValueError, match=r"^constants needs y"):
        constants(lean, GOOD["alpha"])
    with pytest.raises(ValueError, match="needs y"):
        lean.scores()
    with pytest.raises(ValueError, match="needs alpha"):
        lean.leads()
    assert mm.simulate(lean, y=GOOD["y"], v=GOOD["v"], steps=1).updates == 1


def test_nothing_is_given_twice():
    with pytest.raises(TypeError, match=r"^logits got z twice, in the problem and by name"):
        logits(problem(), GOOD["W"], z=GOOD["z"])
    with pytest.raises(TypeError, match=r"^att_svm got 2 arguments by position beside the problem; it takes at most 1"):
        mm.att_svm(problem(), GOOD["alpha"], 2)
    with pytest.raises(TypeError, match=r"^constants needs a Problem, or X, y, z, v; z is missing"):
        constants(GOOD["X"], GOOD["y"])


SQUARE = sphere_problem(1, 4, 3, 4)
SQUARE_W = np.random.default_rng(5).standard_normal((4, 4))
AMBIGUOUS = {
    "logits": lambda a, b: logits(SQUARE.X, a, b),
    "attention_weights": lambda a, b: attention_weights(SQUARE.X, a, b),
    "attend": lambda a, b: attend(SQUARE.X, a, b),
    "predict": lambda a, b: predict(SQUARE.X, a, SQUARE.v, b),
    "risk": lambda a, b: risk(SQUARE.X, SQUARE.y, a, SQUARE.v, b),
    "gradient": lambda a, b: gradient(SQUARE.X, SQUARE.y, a, SQUARE.v, b),
    "selected_tokens": lambda a, b: mm.attention.selected_tokens(SQUARE.X, a, b),
    "leads": lambda a, b: leads(SQUARE.X, a, b, [0, 0, 0, 0]),
    "support_tokens": lambda a, b: mm.attention.support_tokens(SQUARE.X, a, b, [0, 0, 0, 0]),
    "is_locally_optimal": lambda a, b: mm.is_locally_optimal(SQUARE.X, SQUARE.y, a, SQUARE.v, b, [0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_swapped_queries_and_weights_are_never_taken(name):
    for pair in ((SQUARE.z, SQUARE_W), (SQUARE_W, SQUARE.z)):
        with pytest.raises(ValueError, match=r"^X has n = d = 4.*give W by name, W=\.\.\., or pass a Problem\.$"):
            AMBIGUOUS[name](*pair)
    assert logits(SQUARE.X, SQUARE.z, W=SQUARE_W).shape == (4, 3)


def test_other_orders_of_before_do_not_fit():
    X, y, z, v, W, alpha = (GOOD[name] for name in ("X", "y", "z", "v", "W", "alpha"))
    for call in (
        lambda: logits(X, W, z),
        lambda: leads(X, z, alpha, W),
        lambda: mm.is_locally_optimal(X, y, z, v, alpha, W),
        lambda: mm.att_svm(X, z, alpha, 2),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


@pytest.mark.parametrize(
    ("value", "shown"), [(None, r"None \(NoneType\)"), (3, r"3 \(int\)"), ("a.npz", r"'a\.npz' \(str\)")]
)
@pytest.mark.parametrize("function", [mm.simulate, mm.optimal_tokens, mm.regularization_path, constants])
def test_what_is_no_problem_is_named_with_what_is_taken(function, value, shown):
    with pytest.raises(TypeError, match=rf"^{function.__name__} needs a Problem, or X, y.* got {shown}"):
        function(value)


def test_the_array_that_is_missing_is_named():
    with pytest.raises(TypeError, match=r"^simulate needs a Problem, or X, y, z, v; v is missing"):
        mm.simulate(GOOD["X"], GOOD["y"], z=GOOD["z"])
