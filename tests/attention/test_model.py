"""The model against its formula written out, under masks and batches."""

import numpy as np
import pytest
import torch

from mirrormax.attention import as_loss, attend, attention_weights, logits, predict, risk

from .problems import LOSSES, random_mask, random_problem


def test_model_is_its_formula():
    X, _y, z, v, W = random_problem()
    for i in range(6):
        h = X[i] @ W @ z[i]
        s = h.exp() / h.exp().sum()
        f = v @ X[i].T @ s
        one = (X[i : i + 1], z[i : i + 1], W)
        torch.testing.assert_close(logits(*one)[0], h, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(attention_weights(*one)[0], s, rtol=1e-12, atol=0)
        torch.testing.assert_close(attend(*one)[0], X[i].T @ s, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(predict(X, z, v, W=W)[i], f, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_risk_is_the_mean_loss(loss):
    X, y, z, v, W = random_problem(3)
    wanted = as_loss(loss)(y * predict(X, z, v, W=W)).mean(-1)
    assert wanted.shape == (3,)
    torch.testing.assert_close(risk(X, y, z, v, W=W, loss=loss), wanted, rtol=1e-15, atol=0)


def test_masked_sequences_equal_truncated_ones():
    X, _y, z, v, W = random_problem()
    mask = random_mask()
    assert mask.sum(-1).unique().numel() > 2
    weights, attended, f = (
        attention_weights(X, z, W=W, mask=mask),
        attend(X, z, W=W, mask=mask),
        predict(X, z, v, W=W, mask=mask),
    )
    for i, length in enumerate(mask.sum(-1).tolist()):
        short = X[i : i + 1, :length]
        torch.testing.assert_close(weights[i, :length], attention_weights(short, z[i : i + 1], W=W)[0])
        assert (weights[i, length:] == 0).all()
        assert (logits(X, z, W=W, mask=mask)[i, length:] == -torch.inf).all()
        torch.testing.assert_close(attended[i], attend(short, z[i : i + 1], W=W)[0])
        torch.testing.assert_close(f[i], predict(short, z[i : i + 1], v, W=W)[0])


@pytest.mark.parametrize("batched", range(5))
def test_leading_dimensions_broadcast(batched):
    many, mask = random_problem(2, 3), random_mask(2, 3)
    X, z, v, W, m = (t if k == batched else t[0, 0] for k, t in enumerate((many.X, many.z, many.v, many.W, mask)))
    f = predict(X, z, v, W=W, mask=m)
    assert f.shape == (2, 3, 6)
    for index in np.ndindex(2, 3):
        *alone, part = (t[index] if k == batched else t for k, t in enumerate((X, z, v, W, m)))
        torch.testing.assert_close(f[index], predict(*alone, mask=part))


def test_autograd_passes_through_masks_and_garbage_padding():
    X, y, z, v, W = random_problem()
    mask = random_mask()
    X = torch.where(mask[..., None], X, torch.nan).requires_grad_()
    W = W.clone().requires_grad_()
    grad_X, grad_W = torch.autograd.grad(risk(X, y, z, v, W=W, mask=mask), (X, W))
    assert grad_W.isfinite().all()
    assert (grad_X[~mask] == 0).all()
    assert (grad_X[mask] != 0).any()


def test_saturated_attention_stays_finite():
    X, y, z, v, W = random_problem(scale=1e6)
    s = attention_weights(X, z, W=W)
    torch.testing.assert_close(s.amax(-1), torch.ones(6, dtype=torch.float64))
    assert risk(X, y, z, v, W=W).isfinite()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 0.02), (torch.bfloat16, 0.2)])
def test_narrow_types_are_answered_in_float32(dtype, tolerance):
    X, _y, z, v, W = random_problem()
    f = predict(X.to(dtype), z.to(dtype), v.to(dtype), W=W.to(dtype))
    assert f.dtype == torch.float32
    torch.testing.assert_close(f.double(), predict(X, z, v, W=W), rtol=tolerance, atol=tolerance)
    assert predict(X.to(dtype), z, v.to(dtype), W=W.to(dtype)).dtype == torch.float64


def test_numpy_and_lists_are_answered_in_numpy():
    problem, mask = random_problem(), random_mask()
    wanted = predict(problem.X, problem.z, problem.v, W=problem.W, mask=mask).numpy()
    arrays = [problem.X, problem.z, problem.v, problem.W]
    for made in (lambda t: t.numpy(), lambda t: t.tolist()):
        f = predict(*map(made, arrays), mask=made(mask))
        assert isinstance(f, np.ndarray)
        np.testing.assert_array_equal(f, wanted)
