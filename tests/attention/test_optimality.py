"""Local optimality (Definition 3.2), on the paper's Example 1 and where local is not global."""

import numpy as np
import pytest
import torch

from mirrormax.attention import is_locally_optimal, optimal_tokens, selected_tokens

from .problems import EXAMPLE_1_W, EXAMPLE_1_X, EXAMPLE_1_Y, EXAMPLE_1_Z, random_mask, random_problem

FIRST = torch.tensor([0, 0])


def example_1(v, p=2, **options):
    v = torch.tensor(v, dtype=torch.float64)
    return is_locally_optimal(EXAMPLE_1_X, EXAMPLE_1_Y, EXAMPLE_1_Z, v, W=EXAMPLE_1_W[p], alpha=FIRST, **options)


@pytest.mark.parametrize("p", [2, 3])
def test_first_tokens_of_example_1_are_locally_optimal_where_they_score_higher(p):
    result = example_1([1.0, 0.0], p)
    assert result
    assert result.offending == []


@pytest.mark.parametrize("p", [2, 3])
def test_offending_samples_and_tokens_are_named(p):
    result = example_1([0.0, 1.0], p)
    assert not result
    assert result.offending == [(0, 1), (1, 1)]


def test_equal_score_is_not_higher():
    assert example_1([1.0, 5.0]).offending == [(0, 1), (1, 1)]
    assert example_1([1.0, 5.0 - 1e-9])


@pytest.mark.parametrize("chosen", [0, 1])
def test_score_that_only_rounding_tells_apart_is_not_higher(chosen):
    X = torch.tensor([[[0.1, 0.2, 0.3], [0.3, 0.3, 0.0]]], dtype=torch.float64)
    y, z, v, support = torch.ones(1), torch.ones(1, 3), torch.ones(3), torch.ones(1, 2, dtype=torch.bool)
    result = is_locally_optimal(X, y, z, v, alpha=torch.tensor([chosen]), support=support)
    assert result.offending == [(0, 1 - chosen)]


def test_mask_takes_a_support_token_away():
    mask = torch.tensor([[True, False], [True, True]])
    assert example_1([0.0, 1.0], mask=mask).offending == [(1, 1)]


def test_better_token_far_from_selection_does_not_spoil_local_optimality():
    X = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [-5.0, 3.0]]])
    y, z, v, W = torch.ones(1), torch.tensor([[1.0, 0.0]]), torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 0], [0, 0]])
    alpha = torch.tensor([0])
    assert optimal_tokens(X, y, v).alpha.item() == 2
    assert is_locally_optimal(X, y, z, v, W=W, alpha=alpha)
    assert is_locally_optimal(X, y, z, v, W=W, alpha=alpha, tol=6.0).offending == [(0, 2)]
    assert is_locally_optimal(X, y, z, v, alpha=alpha, support=torch.tensor([[True, True, True]])).offending == [(0, 2)]


def test_equal_tokens_offend_however_far_from_the_origin():
    X = torch.full((1, 2, 3), 1e8, dtype=torch.float64)
    y, z, v = torch.ones(1), torch.ones(1, 3), torch.tensor([0.1, 0.2, 0.3])
    assert is_locally_optimal(X, y, z, v, alpha=FIRST[:1], support=torch.tensor([[False, True]])).offending == [(0, 1)]


def test_globally_optimal_tokens_are_locally_optimal_for_any_support():
    X, y, z, v, _W = random_problem()
    alpha, ties = optimal_tokens(X, y, v)
    assert not ties.any()
    assert is_locally_optimal(X, y, z, v, alpha=alpha, support=torch.ones(6, 8, dtype=torch.bool))


def test_batch_has_one_answer_a_problem():
    X, y, z, v, W = random_problem(8)
    mask = random_mask(8)
    alpha = selected_tokens(X, z, W=W, mask=mask)
    result = is_locally_optimal(X, y, z, v, W=W, alpha=alpha, mask=mask)
    assert result.optimal.any()
    assert not result.optimal.all()
    for b in range(8):
        alone = is_locally_optimal(X[b], y[b], z[b], v[b], W=W[b], alpha=alpha[b], mask=mask[b])
        assert bool(alone) == bool(result.optimal[b])
        assert [(b, *pair) for pair in alone.offending] == [o for o in result.offending if o[0] == b]
    with pytest.raises(ValueError, match=r"a batch of shape \(8,\) has one answer per problem; use .optimal"):
        bool(result)


def test_support_comes_from_exactly_one_source():
    arguments = (EXAMPLE_1_X, EXAMPLE_1_Y, EXAMPLE_1_Z, torch.ones(2))
    with pytest.raises(ValueError, match="support, got neither"):
        is_locally_optimal(*arguments, alpha=FIRST)
    with pytest.raises(ValueError, match="support, got both"):
        is_locally_optimal(*arguments, W=EXAMPLE_1_W[2], alpha=FIRST, support=torch.ones(2, 2, dtype=torch.bool))


def test_weights_that_do_not_separate_are_refused():
    with pytest.raises(ValueError, match="W does not separate alpha: token 0 of sample 0"):
        is_locally_optimal(EXAMPLE_1_X, EXAMPLE_1_Y, EXAMPLE_1_Z, torch.ones(2), W=EXAMPLE_1_W[2], alpha=FIRST + 1)


def test_numpy_in_numpy_out():
    arrays = [t.numpy() for t in (EXAMPLE_1_X, EXAMPLE_1_Y, EXAMPLE_1_Z)]
    result = is_locally_optimal(*arrays, np.array([0.0, 1.0]), W=EXAMPLE_1_W[2].numpy(), alpha=np.array([0, 0]))
    assert isinstance(result.violations, np.ndarray)
    assert not result
    assert result.offending == [(0, 1), (1, 1)]
