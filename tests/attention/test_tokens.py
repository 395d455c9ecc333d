"""Scores, optimal, selected and support tokens (Definitions 2 and 3)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrormax.attention import leads, logits, optimal_tokens, selected_tokens, support_tokens, token_scores

from .problems import (
    EXAMPLE_1_W,
    EXAMPLE_1_X,
    EXAMPLE_1_Z,
    random_mask,
    random_problem,
    repeatable,
)

seeds = st.integers(0, 2**31 - 1)


def test_score_is_label_times_value():
    X, y, _z, v, _W = random_problem(2)
    scores = token_scores(X, y, v)
    wanted = torch.tensor([[[y[b, i] * (v[b] @ X[b, i, t]) for t in range(8)] for i in range(6)] for b in range(2)])
    torch.testing.assert_close(scores, wanted.double(), rtol=1e-13, atol=1e-13)


@repeatable
@given(seed=seeds)
def test_optimal_token_has_the_highest_score_among_those_present(seed):
    X, y, _z, v, _W = random_problem(n=4, T=5, d=3, seed=seed)
    mask = random_mask(n=4, T=5, seed=seed)
    alpha, ties = optimal_tokens(X, y, v, mask=mask)
    scores = token_scores(X, y, v, mask=mask)
    assert (scores[~mask] == -torch.inf).all()
    assert torch.equal(scores.gather(-1, alpha[:, None])[:, 0], scores.amax(-1))
    assert mask.gather(-1, alpha[:, None]).all()
    assert not ties.any()


@repeatable
@given(order=st.permutations(range(5)), seed=seeds)
def test_optimal_tokens_follow_a_permutation(order, seed):
    X, y, _z, v, _W = random_problem(n=4, T=5, d=3, seed=seed)
    there = torch.tensor(order)[optimal_tokens(X[:, order], y, v).alpha]
    assert torch.equal(there, optimal_tokens(X, y, v).alpha)


def test_ties_are_reported_and_the_first_of_them_chosen():
    X, y, _z, v, _W = random_problem(n=2, T=6, d=7)
    best = int(optimal_tokens(X, y, v).alpha[0])
    where = [t for t in range(6) if t != best][-2:]
    X[0, where] = X[0, best].clone()
    alpha, ties = optimal_tokens(X, y, v)
    same = sorted([best, *where])
    assert alpha[0] == same[0]
    assert ties[0].nonzero()[:, 0].tolist() == same[1:]
    assert not ties[1].any()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, same[0]] = False
    masked = optimal_tokens(X, y, v, mask=mask)
    assert masked.alpha[0] == same[1]
    assert masked.ties[0].nonzero()[:, 0].tolist() == same[2:]


def test_scores_that_only_rounding_tells_apart_tie():
    X = torch.tensor([[[0.1, 0.2, 0.3], [0.3, 0.3, 0.0], [0.6, 0.0, 1e-9]]], dtype=torch.float64)
    y, v = torch.ones(1), torch.ones(3, dtype=torch.float64)
    alpha, ties = optimal_tokens(X[:, :2], y, v)
    assert alpha.item() == 0
    assert ties.tolist() == [[False, True]]
    alpha, ties = optimal_tokens(X, y, v)
    assert alpha.item() == 2
    assert not ties.any()


def test_all_tokens_of_a_zero_head_tie():
    X, y, _z, v, _W = random_problem()
    alpha, ties = optimal_tokens(X, y, torch.zeros_like(v))
    assert (alpha == 0).all()
    assert (ties.sum(-1) == 7).all()


def test_selected_token_has_the_largest_logit_and_the_first_at_a_tie():
    X, _y, z, _v, W = random_problem(3)
    mask = random_mask(3)
    chosen = selected_tokens(X, z, W=W, mask=mask)
    h = logits(X, z, W=W, mask=mask)
    assert torch.equal(h.gather(-1, chosen.unsqueeze(-1)).squeeze(-1), h.amax(-1))
    assert (selected_tokens(X, z, W=0 * W) == 0).all()
    late = mask.flip(-1)
    assert torch.equal(selected_tokens(X, z, W=0 * W, mask=late), 8 - late.sum(-1))


def test_leads_are_differences_of_logits():
    X, _y, z, _v, W = random_problem()
    alpha, mask = torch.zeros(6, dtype=torch.int64), random_mask()
    found = leads(X, z, W=W, alpha=alpha, mask=mask)
    for i in range(6):
        for t in range(8):
            if t == 0 or not mask[i, t]:
                assert found[i, t] == torch.inf
            else:
                torch.testing.assert_close(found[i, t], (X[i, 0] - X[i, t]) @ W @ z[i], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("p", [2, 3])
def test_example_1_has_margin_1_and_its_other_tokens_are_support_tokens(p):
    alpha = torch.tensor([0, 0])
    found = leads(EXAMPLE_1_X, EXAMPLE_1_Z, W=EXAMPLE_1_W[p], alpha=alpha)
    torch.testing.assert_close(found[:, 1], torch.ones(2).double(), rtol=2e-4 if p == 3 else 1e-15, atol=0)
    support = support_tokens(EXAMPLE_1_X, EXAMPLE_1_Z, W=EXAMPLE_1_W[p], alpha=alpha)
    assert support.tolist() == [[False, True], [False, True]]


LINE = torch.tensor([[[1.0], [0.0], [-1e-5], [-0.5]], [[1.0], [-3.0], [-1.0], [-1.0]]], dtype=torch.float64)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_support_does_not_depend_on_the_scale_of_W(scale):
    z, alpha, W = torch.ones(2, 1).double(), torch.tensor([0, 0]), torch.tensor([[scale]], dtype=torch.float64)
    support = support_tokens(LINE, z, W=W, alpha=alpha)
    assert support.tolist() == [[False, True, True, False], [False, False, False, False]]
    assert support_tokens(LINE, z, W=W, alpha=alpha, tol=1e-6).tolist()[0] == [False, True, False, False]
    assert support_tokens(LINE, z, W=W, alpha=alpha, tol=1.0).tolist()[1] == [False, False, True, True]


def test_masked_tokens_are_no_support_tokens_and_do_not_set_the_margin():
    z, alpha, W = torch.ones(2, 1).double(), torch.tensor([0, 0]), torch.ones(1, 1).double()
    mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
    assert support_tokens(LINE, z, W=W, alpha=alpha, mask=mask).tolist() == [[False] * 4, [False, False, True, True]]
    assert not support_tokens(LINE[:1], z[:1], W=W, alpha=alpha[:1], mask=mask[:1]).any()


def test_weights_that_do_not_separate_have_no_support_tokens():
    z, W = torch.ones(2, 1).double(), torch.ones(1, 1).double()
    with pytest.raises(ValueError, match=r"W does not separate alpha: token 0 of sample 1 has the lead -2, .* SVM"):
        support_tokens(LINE, z, W=W, alpha=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"token 1 of sample 0 of problem 1 has the lead 0"):
        support_tokens(LINE, z, W=torch.tensor([[[1.0]], [[0.0]]]), alpha=torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="tol must be a finite number of at least 0, got -1"):
        support_tokens(LINE, z, W=W, alpha=torch.tensor([0, 0]), tol=-1)


def test_batch_equals_loop():
    X, y, z, v, W = random_problem(4)
    mask = random_mask(4)
    alpha = selected_tokens(X, z, W=W, mask=mask)
    support = support_tokens(X, z, W=W, alpha=alpha, tol=0.5, mask=mask)
    best = optimal_tokens(X, y, v, mask=mask)
    assert support.any(-1).any(-1).all()
    for b in range(4):
        assert torch.equal(support[b], support_tokens(X[b], z[b], W=W[b], alpha=alpha[b], tol=0.5, mask=mask[b]))
        assert torch.equal(alpha[b], selected_tokens(X[b], z[b], W=W[b], mask=mask[b]))
        assert torch.equal(best.alpha[b], optimal_tokens(X[b], y[b], v[b], mask=mask[b]).alpha)
    one_problem_many_choices = leads(X[0], z[0], W=W[0], alpha=alpha, mask=mask[0] | True)
    assert one_problem_many_choices.shape == (4, 6, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_narrow_types_select_and_support_alike(dtype):
    X, z, W = EXAMPLE_1_X.to(dtype), EXAMPLE_1_Z.to(dtype), EXAMPLE_1_W[2].to(dtype)
    assert leads(X, z, W=W, alpha=torch.tensor([0, 0])).dtype == torch.float32
    assert support_tokens(X, z, W=W, alpha=torch.tensor([0, 0]), tol=1e-2).tolist() == [[False, True], [False, True]]
    assert selected_tokens(X, z, W=W).tolist() == [0, 0]
    assert optimal_tokens(X, torch.tensor([1, -1]), torch.tensor([1, 0], dtype=dtype)).alpha.tolist() == [0, 0]


def test_numpy_in_numpy_out():
    X, y, z, v, W = (t.numpy() for t in random_problem())
    alpha, ties = optimal_tokens(X, y, v, mask=random_mask().numpy())
    assert isinstance(alpha, np.ndarray)
    assert alpha.dtype == np.int64
    assert ties.dtype == np.bool_
    chosen = selected_tokens(X, z, W=W)
    assert isinstance(support_tokens(X, z, W=W, alpha=chosen), np.ndarray)
    assert isinstance(leads(X, z, W=W, alpha=chosen.tolist()), np.ndarray)
