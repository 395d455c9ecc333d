"""Gradients where attention has all but decided, against the textbook formula in 120 digits and more."""

import mpmath
import pytest
import torch

from mirrormax.attention import gradient, predict, risk, scaled_gradient, scaled_readout_gradient

from .problems import LOSSES, Problem, exact_error, exact_gradients, random_problem, saturated_problem

ZERO = torch.tensor(0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_is_exact_where_the_rest_of_attention_is_1e_minus_40(loss, seed):
    problem = saturated_problem(log_rest=-40 * float(mpmath.log(10)), seed=seed)
    grad_W, grad_v, rest = exact_gradients(problem, loss)
    assert all(0.9e-40 < r < 2e-40 for r in rest)
    assert exact_error(gradient(*problem, loss=loss), ZERO, grad_W) < 1e-10
    assert exact_error(*scaled_gradient(*problem, loss=loss), grad_W) < 1e-10
    assert exact_error(*scaled_readout_gradient(*problem, loss=loss), grad_v) < 1e-13


def test_autograd_has_no_digit_left_there():
    problem = saturated_problem(log_rest=-40 * float(mpmath.log(10)))
    W = problem.W.clone().requires_grad_()
    (naive,) = torch.autograd.grad(risk(*problem._replace(W=W)), W)
    assert exact_error(naive, ZERO, exact_gradients(problem, "logistic")[0]) > 0.5


@pytest.mark.parametrize("log_rest", [-1.0, -30.0, -37.0, -745.0, -4000.0])
def test_scaled_gradient_is_exact_at_any_saturation(log_rest):
    problem = saturated_problem(log_rest)
    digits = 120 + int(-log_rest / 2)
    grad_W, _, _ = exact_gradients(problem, "logistic", digits)
    scaled, log_scale = scaled_gradient(*problem)
    assert scaled.abs().max() > 1e-3
    assert exact_error(scaled, log_scale, grad_W, digits) < 1e-10


def test_tokens_far_from_the_origin_cost_no_digits():
    problem = saturated_problem(log_rest=-40 * float(mpmath.log(10)))
    problem = problem._replace(X=problem.X + 1e6)
    grad_W, _, _ = exact_gradients(problem, "correlation")
    assert exact_error(*scaled_gradient(*problem, loss="correlation"), grad_W) < 1e-10


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
@pytest.mark.parametrize("reach", [30.0, 1000.0])
def test_gradients_are_exact_where_the_loss_is_all_but_zero(loss, reach):
    X, _, z, v, W = saturated_problem(log_rest=-20.0)
    f = predict(X, z, v, W=W)
    problem = Problem(X, f.sign(), z, v * (reach / f.abs().min()), W)
    grad_W, grad_v, _ = exact_gradients(problem, loss)
    scaled, log_scale = scaled_gradient(*problem, loss=loss)
    assert log_scale < -reach
    assert exact_error(scaled, log_scale, grad_W) < 1e-10
    head = scaled_readout_gradient(*problem, loss=loss)
    assert head.log_scale < 0.99 * -reach
    assert exact_error(*head, grad_v) < 1e-10


def test_exponential_loss_of_a_misclassified_sample_does_not_overflow():
    X, y, z, v, W = saturated_problem(log_rest=-5.0)
    problem = Problem(X, y, z, 1000 * v, W)
    scaled, log_scale = scaled_gradient(*problem, loss="exponential")
    assert log_scale > 710
    assert exact_error(scaled, log_scale, exact_gradients(problem, "exponential")[0]) < 1e-10


def test_two_tokens_that_share_attention_and_score_do_not_hide_the_third():
    """The shared weight is 1/2, the gradient e^{-900}: it is there, by way of the third token."""
    X = torch.tensor([[[1.0, 0.0, 0.5], [1.0, 0.0, -0.5], [0.0, 1.0, 0.0]]], dtype=torch.float64)
    z = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    W = torch.tensor([[450.0, 0.0, 0.0], [-450.0, 0.0, 0.0], [0.25, 0.0, 0.0]], dtype=torch.float64)
    v = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    problem = Problem(X, torch.tensor([1.0], dtype=torch.float64), z, v, W)
    grad_W, _, rest = exact_gradients(problem, "logistic", 1000)
    assert rest[0] > 0.4
    scaled, log_scale = scaled_gradient(*problem)
    assert log_scale < -890
    assert exact_error(scaled, log_scale, grad_W, 1000) < 1e-10


def test_huge_weights_give_finite_gradients_of_the_same_direction():
    X, y, z, v, W = random_problem()
    wanted = scaled_gradient(X, y, z, v, W=W * 1e5).scaled
    for scale in (1e100, 1e300):
        scaled, log_scale = scaled_gradient(X, y, z, v, W=W * scale)
        assert log_scale.isfinite()
        torch.testing.assert_close(scaled, wanted, rtol=1e-12, atol=0)


def test_the_selected_token_is_found_where_the_logits_round_alike():
    """Tokens 1e8 from the origin: their logits agree to 16 digits and differ by 60."""
    X = torch.tensor([[[1e8, 0.0], [1e8, 1.0]]], dtype=torch.float64)
    z, W = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[1e10, 0.0], [60.0, 0.0]]).double()
    ours = gradient(X, torch.tensor([1.0]), z, torch.tensor([0.0, 1.0]).double(), W=W)
    s = 1 / (1 + mpmath.exp(60))  # the attention on the first token, whose score is lower by 1
    slope = -1 / (1 + mpmath.exp(1 - s))
    assert float(ours[1, 0]) == pytest.approx(float(slope * s * (1 - s)), rel=1e-10)


def test_a_token_that_rounding_alone_put_first_costs_no_digits():
    """Logits of 40 apart, each good to ± 64: in many of the samples the wrong token has the largest computed one.

    Attention is then all on the other token, and a sum relative to the wrong one cancels to exactly zero.
    """
    rng = torch.Generator().manual_seed(0)
    far, step = (torch.tensor([c, -c], dtype=torch.float64) for c in (2.0**53, 2.0))
    for _ in range(48):
        first = far + 2.0 * torch.randint(0, 1000, (2,), generator=rng)
        w = 100 + float(torch.rand((), generator=rng, dtype=torch.float64))
        problem = Problem(
            X=torch.stack([first, first + step])[None],
            y=torch.ones(1, dtype=torch.float64),
            z=torch.tensor([[1.0, 0.0]], dtype=torch.float64),
            v=torch.tensor([0.0, 1.0], dtype=torch.float64),
            W=torch.tensor([[w, 0.0], [w - 20, 0.0]], dtype=torch.float64),
        )
        grad_W, _, rest = exact_gradients(problem, "correlation")
        assert 1e-18 < rest[0] < 1e-17
        assert exact_error(*scaled_gradient(*problem, loss="correlation"), grad_W) < 1e-9
