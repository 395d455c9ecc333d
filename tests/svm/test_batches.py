"""Leading dimensions, one p per problem, problems that fail alone, and answers in kind."""

import numpy as np
import pytest
import torch
from helpers import infeasible_case, random_case

from mirrormax.geometry import Lp
from mirrormax.svm import InfeasibleError, att_svm, label_margin, lp_svm


def stack(*seeds):
    cases = [random_case(seed, 3, 4, 5) for seed in seeds]
    return tuple(np.stack([getattr(case, name) for case in cases]) for name in ("X", "z", "alpha"))


def test_each_member_is_solved_as_if_alone_with_its_own_p():
    X, z, alpha = stack(*range(8))
    exponents = np.array([1.02, 1.2, 1.75, 2, 2.2, 3, 8, 20])
    together = att_svm(X, z, alpha, p=exponents)
    assert together.status == ["optimal"] * 8
    for k, p in enumerate(exponents):
        alone = att_svm(X[k], z[k], alpha[k], p=p)
        assert together.margin[k] == pytest.approx(alone.margin, rel=2e-9)
        assert np.abs(together.W[k] - alone.W).max() < 1e-3 * np.abs(alone.W).max()


def test_members_fail_alone():
    X, z, alpha = stack(*range(5))
    for member in (1, 3):
        case = infeasible_case()
        X[member], z[member], alpha[member] = case.X, case.z, case.alpha
    solution = att_svm(X, z, alpha, p=[1.1, 1.1, 3, 3, 2], throw=False)
    assert solution.infeasible.tolist() == [False, True, False, True, False]
    assert solution.optimal.tolist() == [True, False, True, False, True]
    assert [text.split(":")[0] for text in solution.status] == ["optimal", "infeasible"] * 2 + ["optimal"]
    assert solution.samples[1].tolist() == solution.samples[3].tolist() == [False, True, True]
    for member, p in ((0, 1.1), (2, 3), (4, 2)):
        assert solution.margin[member] == pytest.approx(
            att_svm(X[member], z[member], alpha[member], p=p).margin, rel=2e-9
        )


def test_raising_names_the_members_that_failed_and_keeps_the_rest():
    X, z, alpha = stack(*range(4))
    case = infeasible_case()
    X[2], z[2], alpha[2] = case.X, case.z, case.alpha
    with pytest.raises(InfeasibleError, match=r"1 of 4 problems .*problems 2.*throw=False") as caught:
        att_svm(X, z, alpha, p=1.5)
    assert caught.value.solution.optimal.tolist() == [True, True, False, True]


def test_leading_dimensions_are_kept():
    X, z, alpha = (a.reshape(2, 3, *a.shape[1:]) for a in stack(*range(6)))
    solution = att_svm(X, z, alpha, p=np.array([[1.5, 2, 3], [1.1, 6, 2]]))
    assert solution.W.shape == (2, 3, 5, 5)
    assert solution.dual.shape == solution.support.shape == (2, 3, 3, 4)
    assert solution.margin.shape == solution.gap.shape == solution.violation.shape == (2, 3)
    assert solution.iterations.shape == (2, 3)
    assert solution.status == [["optimal"] * 3] * 2
    assert solution.samples.shape == (2, 3, 3)
    assert solution.margin[1, 1] == pytest.approx(att_svm(X[1, 1], z[1, 1], alpha[1, 1], p=6).margin, rel=2e-9)


def test_one_set_of_tokens_serves_many_choices():
    X, z, _ = (a[0] for a in stack(0))
    alphas = np.array([[0, 0, 0], [1, 2, 3], [3, 1, 0]])
    together = att_svm(X, z, alphas, p=1.75)
    assert together.W.shape == (3, 5, 5)
    for k in range(3):
        assert together.margin[k] == pytest.approx(att_svm(X, z, alphas[k], p=1.75).margin, rel=2e-9)


def test_a_batch_larger_than_one_chunk():
    X, z, alpha = stack(*range(7))
    many = np.arange(300) % 7
    whole, pieces = att_svm(X, z, alpha, p=3), att_svm(X[many], z[many], alpha[many], p=3)
    assert np.allclose(whole.margin[many], pieces.margin, rtol=2e-9)


def test_classifiers_in_a_batch():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4, 12, 5))
    y = np.sign(X @ rng.standard_normal(5))
    exponents = np.array([1.3, 2, 2.5, 9])
    together = lp_svm(X, y, p=exponents)
    assert together.v.shape == (4, 5)
    assert together.dual.shape == (4, 12)
    for k in range(4):
        assert together.margin[k] == pytest.approx(lp_svm(X[k], y[k], p=exponents[k]).margin, rel=2e-9)


def test_label_margins_in_a_batch_with_zero_where_inseparable():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((3, 4, 2, 6)), np.array([1, -1, 1, -1])
    X[1, 1, 0] = X[1, 0, 0]
    alpha = np.zeros((3, 4), dtype=int)
    margins = label_margin(X, np.broadcast_to(y, (3, 4)), alpha, p=1.5)
    assert margins.shape == (3,)
    assert margins[1] == 0
    assert margins[0] == pytest.approx(lp_svm(X[0, :, 0], y, p=1.5).margin)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_tensors_come_back_as_tensors_in_double(p):
    X, z, alpha = (a[0] for a in stack(3))
    plain = att_svm(X, z, alpha, p=p)
    tensors = att_svm(torch.tensor(X), torch.tensor(z), torch.tensor(alpha), p=p)
    for name in ("W", "dual", "margin", "gap", "violation"):
        value = getattr(tensors, name)
        assert isinstance(value, torch.Tensor)
        assert value.dtype == torch.float64
        assert np.array_equal(value.numpy(), getattr(plain, name))
    assert tensors.support.dtype == torch.bool
    assert tensors.status == "optimal"


def test_single_precision_and_integers_are_solved_in_double():
    X, z, alpha = (a[0] for a in stack(4))
    single = att_svm(X.astype(np.float32), z.astype(np.float32), alpha, p=1.75)
    assert single.W.dtype == np.float64
    assert single.gap <= 1e-9
    rounded = att_svm(X.astype(np.float32).astype(float), z.astype(np.float32).astype(float), alpha, p=1.75)
    assert np.array_equal(single.W, rounded.W)
    whole = att_svm([[[5, 0], [0, 1]], [[-5, 0], [0, -1]]], [[5, 0], [-5, 0]], [0, 0])
    assert np.allclose(whole.W[:, 0], [25 / 650, -5 / 650])


def test_tensors_with_gradients_are_left_alone():
    X, z, alpha = (torch.tensor(a[0]) for a in stack(5))
    X.requires_grad_()
    solution = att_svm(X, z, alpha, p=2)
    assert not solution.W.requires_grad
    assert X.grad is None


def test_inputs_are_not_written_to():
    X, z, alpha = (a[0] for a in stack(6))
    before = X.copy(), z.copy(), alpha.copy()
    att_svm(X, z, alpha, p=3)
    assert all(np.array_equal(a, b) for a, b in zip((X, z, alpha), before, strict=True))


def test_repr_says_what_was_found():
    X, z, alpha = stack(7, 8)
    one = repr(att_svm(X[0], z[0], alpha[0], p=1.75))
    assert one.startswith("Solution(att_svm, p=1.75, W (5, 5), margin=")
    assert "status='optimal'" in one
    assert "2 of 2 optimal" in repr(att_svm(X, z, alpha, p=1.75))
    assert "C=2" in repr(att_svm(X[0], z[0], alpha[0], C=2))
    assert "(att_svm, p=1.5 to 3, W (2, 5, 5), 2 of 2 optimal" in repr(att_svm(X, z, alpha, p=[1.5, 3]))
    assert "p=1.5, " in repr(att_svm(X[0], z[0], alpha[0], p=Lp(1.5)))
    assert "p=3, " in repr(att_svm(X, z, alpha, p=torch.tensor([3.0, 3.0])))


def test_weights_go_by_the_name_of_their_problem():
    solution = lp_svm(np.eye(2), [1, -1])
    assert np.allclose(solution.v, [1, -1])
    with pytest.raises(AttributeError, match=r"has \.v, not \.W"):
        solution.W  # noqa: B018
