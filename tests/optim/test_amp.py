"""Gradient scaling, as mixed precision does it."""

import pytest
import torch

from mirrormax import MirrorDescent


def test_the_grad_scaler_unscales_and_steps():
    param, plain = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer, other = MirrorDescent([param], lr=0.1, p=1.5), MirrorDescent([plain], lr=0.1, p=1.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(param.square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    plain.square().sum().backward()
    other.step()
    torch.testing.assert_close(param, plain)


@pytest.mark.parametrize("p", [1.1, 2.0])
def test_an_overflown_step_is_skipped(p):
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = MirrorDescent([param], lr=0.1, p=p)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(param.sum()).backward()
    param.grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(param, torch.ones(3))
    assert scaler.get_scale() == 512.0
