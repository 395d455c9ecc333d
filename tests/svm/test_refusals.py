"""Bad input is refused in one sentence that names the argument, the value and the remedy."""

import numpy as np
import pytest
import torch
from helpers import random_case

from mirrormax.dynamics import regularization_path, simulate
from mirrormax.geometry import Hypentropy, Lp, SquaredLp
from mirrormax.svm import att_svm, joint_limit, label_margin, lp_svm

X, z, alpha, _ = random_case(0, 3, 4, 5)
y = np.array([1, -1, 1])


def changed(array, index, value):
    copy = np.array(array, dtype=type(value) if array.dtype.kind == "i" and isinstance(value, float) else None)
    copy[index] = value
    return copy


def duplicated(where):
    copy = X.copy()
    copy[where, (alpha[where] + 1) % 4] = copy[where, alpha[where]]
    return copy


ATTENTION = {
    "norm an array": ({"norm": np.array([1, 2])}, "norm must be one of .* got array"),
    "p beyond double precision": ({"p": 1e12}, r"p must be at most 10000, got 1000000000000\.0"),
    "p of one": ({"p": 1}, r"p must be a finite number greater than 1, got 1\."),
    "p below one": ({"p": 0.5}, r"p must be a finite number greater than 1, got 0\.5"),
    "p infinite": ({"p": np.inf}, r"p must be a finite number greater than 1, got inf"),
    "p for a batch that is not there": ({"p": [2, 3]}, r"p must be one number or have the shape \(\) .*got \(2,\)"),
    "p a potential without a norm": ({"p": Hypentropy()}, r"p must be a number or an ℓp potential"),
    "tol zero": ({"tol": 0}, r"tol must be a finite number greater than 0 and less than 1, got 0"),
    "tol one": ({"tol": 1.0}, r"tol must be a finite number greater than 0 and less than 1, got 1\.0"),
    "tol NaN": ({"tol": float("nan")}, r"tol must be a finite number greater than 0 and less than 1, got nan"),
    "C zero": ({"C": 0}, r"C must be greater than 0, got 0"),
    "C negative": ({"C": -1.0}, r"C must be greater than 0, got -1"),
    "C NaN": ({"C": np.nan}, r"C holds nan"),
    "norm unknown": ({"norm": "l2"}, "norm must be one of .* got 'l2'"),
    "nuclear norm with p": ({"norm": "nuclear", "p": 3}, r'norm="nuclear" has no p, got p=3'),
    "nuclear norm with C": ({"norm": "nuclear", "C": 1.0}, r'norm="nuclear" has no soft margin, got C=1\.0'),
    "chosen token twice": ({"X": duplicated(1)}, r"token alpha chooses at sample 1 occurs twice.*remove or mask"),
    "chosen token twice in a batch": (
        {"X": np.stack([X, duplicated(2)])},
        r"token alpha chooses at sample 2 of problem 1 occurs twice",
    ),
    "alpha of other problems than z": (
        {"z": np.stack([z] * 2), "alpha": np.stack([alpha] * 3)},
        r"alpha has the batch dimensions \(3,\), which do not broadcast with \(2,\)",
    ),
    "query zero": ({"z": changed(z, 1, 0.0)}, r"z is zero at sample 1"),
    "no rival": ({"X": X[:, :1], "alpha": 0 * alpha}, r"no sample has a second token"),
    "no rival but masked ones": ({"mask": np.arange(4) == alpha[:, None]}, r"no sample has a second token"),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_problem_is_refused(name):
    change, message = ATTENTION[name]
    with pytest.raises(ValueError, match=message) as caught:
        att_svm(**{"X": X, "z": z, "alpha": alpha, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tol": "1e-9"}, r"tol must be a number, got '1e-9' \(str\)"),
        ({"p": "two"}, r"p must hold real numbers"),
        ({"C": True}, r"C must hold real numbers, got bool"),
    ],
)
def test_what_is_no_number_is_a_type_error(change, message):
    with pytest.raises(TypeError, match=message):
        att_svm(X, z, alpha, **change)


def test_a_masked_copy_of_the_chosen_token_is_fine():
    mask = np.ones((3, 4), dtype=bool)
    mask[1, (alpha[1] + 1) % 4] = False
    assert att_svm(duplicated(1), z, alpha, mask=mask).status == "optimal"


def test_a_zero_query_without_rivals_is_fine():
    mask = np.ones((3, 4), dtype=bool)
    mask[1] = np.arange(4) == alpha[1]
    assert att_svm(X, changed(z, 1, 0.0), alpha, mask=mask).status == "optimal"


@pytest.mark.parametrize("content", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("p", [1.5, 2])
def test_what_stands_at_masked_tokens_is_never_read(content, p):
    mask = np.ones((3, 4), dtype=bool)
    mask[1, (alpha[1] + 1) % 4] = False
    spoilt = changed(X, (1, (alpha[1] + 1) % 4), content)
    assert (att_svm(spoilt, z, alpha, p=p, mask=mask).W == att_svm(X, z, alpha, p=p, mask=mask).W).all()
    assert label_margin(spoilt, y, alpha, p=p, mask=mask) == label_margin(X, y, alpha, p=p)
    with pytest.raises(ValueError, match=r"X holds nan at index \(0, 2, 1\)"):
        att_svm(changed(spoilt, (0, 2, 1), np.nan), z, alpha, p=p, mask=mask)


def test_numbers_of_numpy_are_numbers():
    assert att_svm(X, z, alpha, tol=np.float32(1e-6)).status == "optimal"
    assert att_svm(X, z, alpha, p=np.int64(2)).about == "att_svm, p=2"
    assert att_svm(X, z, alpha, p=np.float32(1.5)).about == "att_svm, p=1.5"
    assert att_svm(X, z, alpha, p=torch.tensor(1.5)).about == "att_svm, p=1.5"


def test_a_chosen_token_at_the_origin_has_no_label_margin():
    assert label_margin([[[0, 0], [1, 1]]], [1], [0]) == 0
    X = np.array([[[[0.0, 0.0], [1.0, 1.0]]], [[[3.0, 0.0], [1.0, 1.0]]]])
    assert np.allclose(label_margin(X, [1], [0]), [0, 3])
    assert np.allclose(label_margin(torch.tensor(X), [1], [0]), [0, 3])


@pytest.mark.parametrize("p", [1e308, 10001, 20000.5])
def test_p_has_one_bound_and_one_text_wherever_it_is_given(p):
    calls = {
        "potential": lambda: Lp(p),
        "squared": lambda: SquaredLp(p),
        "att_svm": lambda: att_svm(X, z, alpha, p=p),
        "lp_svm": lambda: lp_svm(X[:, 0], y, p=p),
        "simulate": lambda: simulate(X, y, z, np.ones(X.shape[-1]), p=p, steps=1),
        "path": lambda: regularization_path(X, y, z, np.ones(X.shape[-1]), radii=[1.0], p=p),
    }
    texts = {}
    for name, call in calls.items():
        with pytest.raises(ValueError, match="p must be at most 10000, got") as caught:
            call()
        texts[name] = str(caught.value)
    assert len(set(texts.values())) == 1, texts


def test_each_p_of_a_batch_has_the_bound():
    with pytest.raises(ValueError, match=r"p must be at most 10000, got 20000\.0"):
        att_svm(np.stack([X, X]), np.stack([z, z]), np.stack([alpha, alpha]), p=[2, 20000])
    with pytest.raises(ValueError, match=r"p must be a finite number greater than 1, got 1\.0"):
        att_svm(np.stack([X, X]), np.stack([z, z]), np.stack([alpha, alpha]), p=[2, 1])


def test_a_truth_value_is_no_p():
    with pytest.raises(TypeError, match=r"p must be a number, got True \(bool\)"):
        att_svm(X, z, alpha, p=True)


CLASSIFIER = {
    "X with one dimension": ({"X": X[0, 0]}, r"X must have the shape \(\.\.\., n, d\)"),
    "y of another length": ({"y": y[:2]}, r"y must have the shape \(\.\.\., n\) = \(\.\.\., 3\).*got \(2,\)"),
    "labels 0 and 1": ({"y": (y + 1) // 2}, r"y must hold the labels \+1 and -1, got 0"),
    "labels NaN": (
        {"y": changed(y.astype(float), 1, np.nan)},
        r"y must hold the labels \+1 and -1, got nan at index \(1,\)",
    ),
    "a point at the origin": ({"X": changed(X[:, 0], 2, 0.0)}, r"X is zero at sample 2"),
    "p of one": ({"p": 1.0}, r"p must be a finite number greater than 1, got 1\.0"),
    "C zero": ({"C": 0.0}, r"C must be greater than 0"),
    "tol": ({"tol": 2}, r"tol must be a finite number greater than 0 and less than 1, got 2"),
}


@pytest.mark.parametrize("name", CLASSIFIER)
def test_classifier_is_refused(name):
    change, message = CLASSIFIER[name]
    with pytest.raises(ValueError, match=message):
        lp_svm(**{"X": X[:, 0], "y": y, **change})


def test_label_margin_is_refused():
    with pytest.raises(ValueError, match=r"alpha chooses token 4 in sample 0"):
        label_margin(X, y, [4, 0, 0], p=2)
    with pytest.raises(ValueError, match=r"X must have the shape \(\.\.\., n, T, d\)"):
        label_margin(X[0], y, [0, 0, 0], p=2)
    with pytest.raises(ValueError, match=r"labels \+1 and -1, got 2"):
        label_margin(X, [1, 2, 1], [0, 0, 0], p=2)


def test_tensors_are_refused_in_the_same_words():
    with pytest.raises(ValueError, match=r"X holds nan"):
        att_svm(torch.full((3, 4, 5), torch.nan), torch.tensor(z), torch.tensor(alpha))


@pytest.mark.parametrize("name", ["keep", "rhs"])
def test_a_batch_that_does_not_fit_is_named_with_both_shapes(name):
    kept = np.arange(X.shape[1]) == alpha[:, None]
    batch = np.broadcast_to(kept, (3, *kept.shape))
    given = {name: batch if name == "keep" else np.ones(batch.shape)}
    with pytest.raises(ValueError, match=rf"^{name} has the batch dimensions \(3,\).* with \(2,\)"):
        att_svm(np.stack([X, X]), z, np.stack([alpha, alpha]), **given)
    one = att_svm(X, z, alpha, **given)  # a batch of its own is one
    assert one.W.shape == (3, X.shape[-1], X.shape[-1])


def test_a_batch_of_excess_that_does_not_fit_is_named_with_both_shapes():
    with pytest.raises(ValueError, match=r"^excess has the batch dimensions \(3,\).* with \(2,\)"):
        joint_limit(np.stack([X, X]), y, z, alpha, excess=np.zeros((3, len(X))))
