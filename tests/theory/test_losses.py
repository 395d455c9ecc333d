import math

import numpy as np
import pytest
import torch

from mirrormax.attention import LOSSES, Loss
from mirrormax.data import sphere_problem
from mirrormax.theory import check_loss, constants

HINGE = Loss("squared hinge", lambda x: (1 - x).clamp_min(0) ** 2, lambda x: -2 * (1 - x).clamp_min(0))
BROKEN = {
    "flat": (HINGE, "strictly decreasing"),
    "increasing": (Loss("square", lambda x: x**2, lambda x: 2 * x), "strictly decreasing"),
    "a kink": (Loss("kink", lambda x: -x - x.clamp_max(0), lambda x: -1 - (x < 0).to(x.dtype)), "Lipschitz"),
    "a root": (Loss("root", lambda x: -x - x * x.abs().sqrt() / 1.5, lambda x: -1 - x.abs().sqrt()), "Lipschitz"),
    "another slope": (Loss("wrong", lambda x: -x, lambda x: -2 * torch.ones_like(x)), "derivative"),
    "a pole": (Loss("pole", lambda x: 1 / (x + 20), lambda x: -1 / (x + 20) ** 2), "finite"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("interval", [(-20.0, 20.0), (-1.0, 3.0)])
def test_the_papers_losses_meet_its_assumption(name, interval):
    found = check_loss(name, *interval)
    assert found
    assert not found.violations
    assert found.slope == pytest.approx(float(LOSSES[name].derivative(torch.tensor(interval)).abs().max()))


def test_the_constants_of_the_logistic_loss_are_its_own():
    found = check_loss("logistic", -8, 8)
    assert found.lipschitz == pytest.approx(0.25, rel=1e-3)
    assert found.slope == pytest.approx(1 / (1 + math.exp(-8)))


@pytest.mark.parametrize("case", BROKEN)
def test_a_violation_is_named(case):
    loss, word = BROKEN[case]
    found = check_loss(loss)
    assert not found
    assert any(word in text for text in found.violations)
    assert loss.name in str(found)


def test_an_empty_interval_is_refused():
    with pytest.raises(ValueError, match="high"):
        check_loss("logistic", 1, 1)


def test_constants_of_a_loss_that_is_flat_somewhere_are_infinite_and_not_divided_by_zero():
    problem = sphere_problem(3, n=3, T=4, d=5)
    flat = Loss("flat above 0", lambda x: (-x).clamp_min(0) ** 2, lambda x: -2 * (-x).clamp_min(0))
    with np.errstate(all="raise"):
        found = constants(problem, [0, 1, 2], p=2, loss=flat)
    assert found.L_bar == math.inf
    with pytest.raises(ValueError, match="loss"):
        constants(problem, [0, 1, 2], p=2, loss=Loss("growing", lambda x: x, torch.ones_like))
