"""Losses: against high precision over the whole range, and what is refused."""

import mpmath
import pytest
import torch

from mirrormax.attention import CORRELATION, EXPONENTIAL, LOGISTIC, Loss, as_loss

POINTS = [-700.0, -50.0, -20.5, -3.0, -1e-9, 0.0, 1e-9, 1.0, 19.5, 21.0, 50.0, 700.0]
EXACT = {
    "logistic": (lambda x: mpmath.log1p(mpmath.exp(-x)), lambda x: -1 / (1 + mpmath.exp(x))),
    "exponential": (lambda x: mpmath.exp(-x), lambda x: -mpmath.exp(-x)),
    "correlation": (lambda x: -x, lambda x: mpmath.mpf(-1)),
}


@pytest.mark.parametrize("loss", [LOGISTIC, EXPONENTIAL, CORRELATION], ids=repr)
def test_value_derivative_and_log_derivative_are_exact_at_any_margin(loss):
    x = torch.tensor(POINTS, dtype=torch.float64)
    value, derivative = EXACT[loss.name]
    with mpmath.workdps(700):
        for found, exact in (
            (loss(x), value),
            (loss.derivative(x), derivative),
            (loss.log_derivative(x), lambda t: mpmath.log(-derivative(t))),
        ):
            wanted = torch.tensor([float(exact(mpmath.mpf(t))) for t in POINTS], dtype=torch.float64)
            torch.testing.assert_close(found, wanted, rtol=3e-15, atol=0)


@pytest.mark.parametrize("loss", [LOGISTIC, EXPONENTIAL], ids=repr)
def test_log_derivative_goes_on_where_the_derivative_is_zero(loss):
    x = torch.tensor([5000.0], dtype=torch.float64)
    assert loss.derivative(x) == 0
    assert loss.log_derivative(x) == -5000


@pytest.mark.parametrize("x", [-1e6, 1e6])
def test_logistic_loss_stays_finite_in_float32(x):
    x = torch.tensor(x)
    assert LOGISTIC(x) == max(0.0, -x)
    assert LOGISTIC.derivative(x) == (-1.0 if x < 0 else 0.0)


@pytest.mark.parametrize("loss", [LOGISTIC, EXPONENTIAL, CORRELATION], ids=repr)
def test_log_derivative_from_two_functions_alone_is_the_same(loss):
    x = torch.linspace(-30, 30, 61, dtype=torch.float64)
    plain = Loss("mine", loss.value, loss.derivative)
    torch.testing.assert_close(plain.log_derivative(x), loss.log_derivative(x), rtol=1e-14, atol=1e-14)


def test_flat_loss_has_log_derivative_minus_infinity():
    hinge = Loss("hinge", lambda x: (1 - x).clamp_min(0), lambda x: -(x < 1).to(x.dtype))
    assert hinge.log_derivative(torch.tensor([0.0, 2.0])).tolist() == [0.0, -torch.inf]


def test_loss_is_found_by_name_or_taken_as_it_is():
    assert as_loss("logistic") is LOGISTIC
    assert as_loss("exponential") is EXPONENTIAL
    assert as_loss("correlation") is CORRELATION
    assert as_loss(EXPONENTIAL) is EXPONENTIAL


def test_unknown_loss_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"'hinge'; use one of logistic, exponential, correlation"):
        as_loss("hinge")
    with pytest.raises(TypeError, match=r"loss must be a name or a Loss, got 3 \(int\)"):
        as_loss(3)


def test_increasing_loss_is_refused_with_the_place_where_it_increases():
    square = Loss("square", lambda x: (1 - x) ** 2, lambda x: 2 * (x - 1))
    with pytest.raises(ValueError, match=r"'square' must be decreasing, but its derivative is 4 at x = 3"):
        square.log_derivative(torch.tensor([0.0, 3.0]))


def test_loss_of_something_else_than_functions_is_refused():
    with pytest.raises(TypeError, match="derivative of loss 'mine' must be a function"):
        Loss("mine", torch.neg, 3)
    with pytest.raises(TypeError, match="name must be a string"):
        Loss(torch.neg, torch.neg, torch.neg)
