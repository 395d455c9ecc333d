"""The closed forms against autograd, under masks, batches and permutations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrormax.attention import (
    EXPONENTIAL,
    Loss,
    gradient,
    risk,
    scaled_gradient,
    scaled_readout_gradient,
)

from .problems import LOSSES, random_mask, random_problem, readout_gradient, relative_error, repeatable

seeds = st.integers(0, 2**31 - 1)


def autograd(X, y, z, v, W, loss, mask=None):
    v, W = v.clone().requires_grad_(), W.clone().requires_grad_()
    return torch.autograd.grad(risk(X, y, z, v, W=W, loss=loss, mask=mask).sum(), (W, v))


@pytest.mark.parametrize("scale", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_in_W_and_v_equal_autograd(loss, scale, masked):
    for seed in range(5):
        problem = random_problem(scale=scale, seed=seed)
        mask = random_mask(seed=seed) if masked else None
        grad_W, grad_v = autograd(*problem, loss=loss, mask=mask)
        assert relative_error(gradient(*problem, loss=loss, mask=mask), grad_W) < 1e-12
        assert relative_error(readout_gradient(*problem, loss=loss, mask=mask), grad_v) < 1e-12


def test_own_loss_by_two_functions_equals_autograd():
    loss = Loss("squared hinge", lambda x: (1 - x).clamp_min(0) ** 2, lambda x: -2 * (1 - x).clamp_min(0))
    problem = random_problem()
    assert relative_error(gradient(*problem, loss=loss), autograd(*problem, loss)[0]) < 1e-12


@repeatable
@given(seed=seeds, scale=st.floats(0, 30))
def test_gradient_is_scaled_gradient_times_its_scale(seed, scale):
    problem = random_problem(2, n=3, T=4, d=5, scale=scale, seed=seed)
    scaled, log_scale = scaled_gradient(*problem)
    assert log_scale.shape == (2,)
    torch.testing.assert_close(gradient(*problem), scaled * log_scale.exp()[:, None, None], rtol=1e-15, atol=0)


@repeatable
@given(seed=seeds, loss=st.sampled_from(LOSSES), scale=st.floats(0, 10))
def test_masked_gradient_equals_that_of_truncated_sequences(seed, loss, scale):
    problem = random_problem(n=3, T=5, d=4, scale=scale, seed=seed)
    X, y, z, v, W = problem
    mask = random_mask(n=3, T=5, seed=seed)
    one_by_one = []
    for i in range(3):
        sample = (X[i : i + 1, : int(mask[i].sum())], y[i : i + 1], z[i : i + 1], v, W)
        one_by_one.append((gradient(*sample, loss=loss), readout_gradient(*sample, loss=loss)))
    grad_W, grad_v = (torch.stack(g).mean(0) for g in zip(*one_by_one, strict=True))
    torch.testing.assert_close(
        gradient(*problem, loss=loss, mask=mask), grad_W, rtol=1e-11, atol=1e-14 * grad_W.abs().max().item()
    )
    torch.testing.assert_close(readout_gradient(*problem, loss=loss, mask=mask), grad_v, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("padding", [1e30, torch.inf, torch.nan])
def test_what_stands_in_padding_does_not_matter(padding):
    problem, mask = random_problem(), random_mask()
    spoilt = problem._replace(X=torch.where(mask[..., None], problem.X, padding))
    for function in (gradient, readout_gradient, risk):
        wanted = function(*problem, mask=mask)
        assert wanted.isfinite().all()
        torch.testing.assert_close(function(*spoilt, mask=mask), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("function", [scaled_gradient, scaled_readout_gradient])
def test_batch_equals_loop(function):
    batch, mask = random_problem(2, 3, scale=3.0), random_mask(2, 3)
    scaled, log_scale = function(*batch, mask=mask)
    for i in range(2):
        for j in range(3):
            alone = function(*(t[i, j] for t in batch), mask=mask[i, j])
            torch.testing.assert_close(scaled[i, j], alone.scaled, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(log_scale[i, j], alone.log_scale, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("batched", range(6))
def test_each_argument_alone_may_carry_the_batch(batched):
    many, mask = random_problem(4), random_mask(4)
    wide = [*many, mask]
    arguments = [t if k == batched else t[0] for k, t in enumerate(wide)]
    together = gradient(*arguments[:5], mask=arguments[5])
    head = readout_gradient(*arguments[:5], mask=arguments[5])
    assert together.shape == (4, 10, 10)
    assert head.shape == (4, 10)
    for b in range(4):
        alone = [t[b] if k == batched else t for k, t in enumerate(arguments)]
        assert relative_error(together[b], gradient(*alone[:5], mask=alone[5])) < 1e-12
        assert relative_error(head[b], readout_gradient(*alone[:5], mask=alone[5])) < 1e-12


@repeatable
@given(seed=seeds, order=st.permutations(range(5)))
def test_order_of_tokens_does_not_matter(seed, order):
    X, y, z, v, W = random_problem(n=3, T=5, d=4, scale=2.0, seed=seed)
    mask = random_mask(n=3, T=5, seed=seed)
    shuffled = gradient(X[:, order], y, z, v, W=W, loss="logistic", mask=mask[:, order])
    wanted = gradient(X, y, z, v, W=W, loss="logistic", mask=mask)
    torch.testing.assert_close(shuffled, wanted, rtol=1e-10, atol=1e-13 * wanted.abs().max().item())


def test_gradient_is_exactly_zero_where_there_is_nothing_to_choose():
    X, y, z, v, W = random_problem()
    for result in (
        scaled_gradient(X, y, z, torch.zeros_like(v), W=W),
        scaled_gradient(X[:, :1].expand_as(X), y, z, v, W=W),
        scaled_gradient(X[:, :1], y, z, v, W=W),
        scaled_gradient(X, y, z, v, W=W, loss=EXPONENTIAL, mask=random_mask(T=8) & (torch.arange(8) < 1)),
    ):
        assert (result.scaled == 0).all()
        assert result.log_scale == 0


def test_flat_loss_has_zero_gradients():
    flat = Loss("hinge", lambda x: (1 - x).clamp_min(0), lambda x: -(x < 1).to(x.dtype))
    X, y, z, v, W = random_problem()
    X, y, v = X.abs() + 1, y.abs(), torch.ones_like(v)  # every token, and so every mixture, has a margin above 1
    assert (gradient(X, y, z, v, W=W) != 0).any()
    assert (gradient(X, y, z, v, W=W, loss=flat) == 0).all()
    assert (readout_gradient(X, y, z, v, W, loss=flat) == 0).all()


def test_float32_is_computed_in_float32_and_half_is_widened():
    problem, mask = random_problem(), random_mask()
    exact = gradient(*problem, mask=mask)
    single = gradient(*(t.float() for t in problem), mask=mask)
    assert single.dtype == torch.float32
    assert relative_error(single.double(), exact) < 1e-5
    for dtype, tolerance in ((torch.float16, 1e-2), (torch.bfloat16, 1e-1)):
        half = [t.to(dtype) for t in problem]
        result = gradient(*half, mask=mask)
        assert result.dtype == torch.float32
        assert relative_error(result.double(), exact) < tolerance
        torch.testing.assert_close(result, gradient(*(t.float() for t in half), mask=mask), rtol=0, atol=0)


def test_float32_keeps_its_digits_far_below_its_range():
    problem = random_problem(scale=30.0)
    single, log_scale = scaled_gradient(*(t.float() for t in problem))
    exact = scaled_gradient(*(t.float().double() for t in problem))
    assert log_scale < -20
    torch.testing.assert_close(log_scale.double(), exact.log_scale, rtol=1e-5, atol=0)
    assert relative_error(single.double(), exact.scaled) < 1e-3


def test_integers_are_computed_in_float64():
    X = torch.tensor([[[5, 0], [0, 1]]])
    arguments = (X, torch.tensor([1]), X[:, 0], torch.tensor([1, 2]), torch.tensor([[1, 0], [0, 1]]))
    result = gradient(*arguments)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, gradient(*(t.double() for t in arguments)), rtol=0, atol=0)


def test_numpy_in_numpy_out():
    problem, mask = random_problem(), random_mask()
    arrays = [t.numpy() for t in problem]
    scaled, log_scale = scaled_gradient(*arrays, mask=mask.numpy())
    wanted = scaled_gradient(*problem, mask=mask)
    assert type(scaled).__name__ == type(log_scale).__name__ == "ndarray"
    torch.testing.assert_close(torch.from_numpy(scaled), wanted.scaled, rtol=0, atol=0)
