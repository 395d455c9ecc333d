"""The model as modules: same function, same gradients, any optimizer."""

import pytest
import torch

from mirrormax.attention import (
    LOGISTIC,
    Attention,
    gradient,
    predict,
    risk,
)

from .problems import random_mask, random_problem, readout_gradient, relative_error


def test_modules_predict_what_the_functions_predict():
    X, _y, z, v, W = random_problem()
    mask = random_mask()
    model = Attention(10, readout=v)
    with torch.no_grad():
        model.W.copy_(W)
    torch.testing.assert_close(model(X, z, mask), predict(X, z, v, W=W, mask=mask), rtol=0, atol=0)


def test_gradients_of_modules_are_the_closed_forms():
    X, y, z, v, W = random_problem()
    mask = random_mask()
    model = Attention(10, readout=v, train_readout=True)
    with torch.no_grad():
        model.W.copy_(W)
    LOGISTIC(y * model(X, z, mask)).mean().backward()
    assert relative_error(model.W.grad, gradient(X, y, z, v, W=W, mask=mask)) < 1e-12
    assert relative_error(model.v.grad, readout_gradient(X, y, z, v, W, mask=mask)) < 1e-12


def test_head_is_trained_only_if_asked_or_not_given():
    v = torch.ones(4)
    assert [name for name, _ in Attention(4, readout=v).named_parameters()] == ["W"]
    assert sorted(name for name, _ in Attention(4, readout=v, train_readout=True).named_parameters()) == ["W", "v"]
    assert sorted(name for name, _ in Attention(4).named_parameters()) == ["W", "v"]
    assert (Attention(4).v == 0).all()
    assert "v" in Attention(4, readout=v).state_dict()


def test_module_does_not_share_memory_with_the_head_it_was_given():
    v = torch.ones(4)
    model = Attention(4, readout=v, train_readout=True)
    v.zero_()
    assert (model.v == 1).all()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("kind", ["fixed", "joint"])
def test_any_optimizer_lowers_the_risk(optimizer, kind):
    X, y, z, v, _W = random_problem()
    model = {
        "fixed": lambda: Attention(10, readout=v),
        "joint": lambda: Attention(10, dtype=torch.float64),
    }[kind]()
    steps = optimizer(model.parameters(), lr=0.05)
    start = risk(X, y, z, model.v.detach(), W=model.W.detach())
    for _ in range(30):
        steps.zero_grad()
        LOGISTIC(y * model(X, z)).mean().backward()
        steps.step()
    assert risk(X, y, z, model.v.detach(), W=model.W.detach()) < start - 0.05


def test_types():
    assert Attention(3).W.dtype == torch.float32
    assert Attention(3, dtype=torch.float64).v.dtype == torch.float64
    assert Attention(3, readout=torch.ones(3).double()).W.dtype == torch.float64
    assert Attention(3, readout=torch.tensor([1, 2, 3])).v.dtype == torch.float32
    X, _y, z, v, _W = random_problem()
    half = Attention(10, readout=v.half())
    assert half(X.half(), z.half()).dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Attention(0), "d must be at least 1, got 0"),
        (lambda: Attention(2.0), "d must be an integer, got 2.0"),
        (lambda: Attention(3, readout=torch.ones(4)), r"readout must have the shape \(d,\) = \(3,\), got \(4,\)"),
        (lambda: Attention(3, train_readout=False), "a readout that is not trained must be given"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_shapes_that_do_not_fit_are_refused():
    X, _y, z, _v, _W = random_problem()
    with pytest.raises(ValueError, match=r"^z must have the shape"):
        Attention(10)(X, z[:2])
    with pytest.raises(ValueError, match=r"^v must have the shape \(..., d\) = \(..., 10\)"):
        Attention(9)(X, z)


def test_repr_says_what_it_is():
    assert repr(Attention(3, readout=torch.ones(3))) == "Attention(d=3, train_readout=False)"
