"""Every refusal is one sentence that names the argument, what was found, and the remedy."""

import numpy as np
import pytest
import torch

from mirrormax.attention import check_problem, check_shapes, gradient, logits, predict, risk, token_scores

from .problems import random_mask, random_problem

GOOD = {
    **random_problem(n=3, T=4, d=5)._asdict(),
    "K": torch.ones(5, 2),
    "Q": torch.ones(5, 2),
    "alpha": torch.tensor([0, 1, 3]),
    "mask": torch.ones(3, 4, dtype=torch.bool),
    "support": torch.zeros(3, 4, dtype=torch.bool),
}


def with_entry(name, index, value):
    changed = GOOD[name].clone()
    changed[index] = value
    return {name: changed}


REFUSALS = [
    ({"X": "tokens"}, TypeError, r"^X must be a tensor of numbers, got 'tokens' \(str\)"),
    ({"X": None}, TypeError, r"^X must be a tensor"),
    ({"X": torch.ones(4, 5)}, ValueError, r"^X must have the shape \(..., n, T, d\), got \(4, 5\).*X\[None\]"),
    ({"X": torch.ones(0, 4, 5)}, ValueError, r"^X must not be empty, got the shape \(0, 4, 5\)"),
    ({"X": torch.ones(3, 4, 5) * 1j}, TypeError, r"^X must hold real numbers, got torch.complex64"),
    ({"y": torch.ones(4)}, ValueError, r"^y must have the shape \(..., n\) = \(..., 3\) to go with X.*got \(4,\)"),
    ({"y": torch.tensor(1.0)}, ValueError, r"^y must have the shape \(..., n\), got \(\), .* too few dimensions"),
    ({"z": torch.ones(3, 6)}, ValueError, r"^z must have the shape \(..., n, d\) = \(..., 3, 5\).*got \(3, 6\)"),
    ({"z": torch.ones(5)}, ValueError, r"^z must have the shape \(..., n, d\), got \(5,\), .* too few"),
    ({"v": torch.ones(3)}, ValueError, r"^v must have the shape \(..., d\) = \(..., 5\).*got \(3,\)"),
    ({"W": torch.ones(5, 4)}, ValueError, r"^W must have the shape \(..., d, d\) = \(..., 5, 5\).*got \(5, 4\)"),
    ({"K": torch.ones(4, 2)}, ValueError, r"^K must have the shape \(..., d, m\) = \(..., 5, 2\).*got \(4, 2\)"),
    ({"Q": torch.ones(5, 3)}, ValueError, r"^Q must have the shape \(..., d, m\) = \(..., 5, 2\).*got \(5, 3\)"),
    ({"mask": torch.ones(3, 5).bool()}, ValueError, r"^mask must have the shape \(..., n, T\) = \(..., 3, 4\)"),
    ({"mask": torch.ones(3, 4)}, TypeError, r"^mask must be boolean, got torch.float32; write mask != 0"),
    ({"support": torch.ones(3, 4)}, TypeError, r"^support must be boolean, got torch.float32"),
    (with_entry("mask", 2, False), ValueError, r"^mask leaves sample 2 without a token; drop the sample"),
    (with_entry("y", 1, 0.0), ValueError, r"^y must hold the labels \+1 and -1, got 0 at index \(1,\); use 2 \* y - 1"),
    ({"y": torch.tensor([True, False, True])}, TypeError, r"^y must hold real numbers, got torch.bool; use 2 \* y - 1"),
    (with_entry("y", 1, torch.nan), ValueError, r"^y must hold the labels \+1 and -1, got nan at index \(1,\)"),
    (
        with_entry("X", (2, 1, 0), torch.nan),
        ValueError,
        r"^X holds nan at index \(2, 1, 0\); every entry must be finite",
    ),
    (with_entry("z", (0, 4), torch.inf), ValueError, r"^z holds inf at index \(0, 4\)"),
    (with_entry("v", 3, -torch.inf), ValueError, r"^v holds -inf at index \(3,\)"),
    (with_entry("W", (4, 4), torch.nan), ValueError, r"^W holds nan at index \(4, 4\)"),
    (with_entry("alpha", 1, 4), ValueError, r"^alpha chooses token 4 in sample 1, but tokens are numbered 0 to 3"),
    (with_entry("alpha", 2, -1), ValueError, r"^alpha chooses token -1 in sample 2, but tokens are numbered 0 to 3"),
    (with_entry("mask", (2, 3), False), ValueError, r"^alpha chooses token 3 in sample 2, which the mask leaves out"),
    ({"alpha": torch.ones(3)}, TypeError, r"^alpha must hold integer token indices, got torch.float32"),
    (
        {"X": torch.ones(2, 3, 4, 5), "W": torch.ones(6, 5, 5)},
        ValueError,
        r"^W has the batch dimensions \(6,\), which do not broadcast with \(2,\) of the other arguments",
    ),
    (
        {"X": torch.ones(2, 3, 4, 5), "alpha": torch.tensor([[0, 1, 2], [0, 9, 0]])},
        ValueError,
        r"^alpha chooses token 9 in sample 1 of problem \(1,\)",
    ),
    ({"weights": torch.ones(3)}, TypeError, r"^a problem has no argument 'weights'"),
]


def test_good_problem_passes():
    check_problem(**GOOD)
    check_problem(GOOD["X"])
    check_problem(**{**GOOD, "y": GOOD["y"].int(), "alpha": GOOD["alpha"].to(torch.uint8)})


@pytest.mark.parametrize(("change", "error", "message"), REFUSALS, ids=[r[2][:40] for r in REFUSALS])
def test_refusal(change, error, message):
    with pytest.raises(error, match=message) as refusal:
        check_problem(**{**GOOD, **change})
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_nan_in_padding_is_no_reason_to_refuse():
    X, mask = GOOD["X"].clone(), GOOD["mask"].clone()
    X[1, 3], mask[1, 3] = torch.nan, False
    check_problem(X, mask=mask)
    with pytest.raises(ValueError, match=r"X holds nan at index \(1, 3, 0\)"):
        check_problem(X)


def test_checking_shapes_reads_no_values():
    check_shapes(GOOD["X"] * torch.nan, y=GOOD["y"] * 0, alpha=GOOD["alpha"] + 100)


@pytest.mark.parametrize("function", [risk, gradient])
def test_functions_of_labels_refuse_zeros_and_ones(function):
    X, y, z, v, W = random_problem()
    with pytest.raises(ValueError, match="y must hold the labels"):
        function(X, (y > 0).double(), z, v, W)


def test_functions_refuse_what_does_not_fit_also_from_numpy():
    X, y, z, v, W = (t.numpy() for t in random_problem())
    with pytest.raises(ValueError, match=r"^z must have the shape"):
        logits(X, W, z[:3])
    with pytest.raises(ValueError, match=r"^v must have the shape"):
        predict(X, z, v[:3], W)
    with pytest.raises(TypeError, match=r"^mask must be boolean"):
        token_scores(X, y, v, mask=random_mask().numpy().astype(np.int64))
    with pytest.raises(ValueError, match=r"^X must have the shape"):
        logits((1, 2), W, z)
