"""Which step size to start from at a given p."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.geometry import Potential, as_potential


def equivalent_lr(params: Iterable[Tensor] | Iterable[tuple[str, Tensor]], lr: float, p: float | Potential) -> float:
    """The step size with which mirror descent moves weights as SGD does with ``lr``.

    A small step moves a weight w by η g / ψ''(w), so for weights of root mean square s

        η = ψ''(s) · lr,      which is (p − 1) s^{p−2} · lr for ℓp.

    It is a place to start a search, not its end; see the FAQ for how it fared.

    >>> round(equivalent_lr([torch.full((64, 64), 0.05)], lr=0.1, p=1.1), 3)
    0.148
    """
    potential, lr = as_potential(p), number("lr", lr, at_least=0)
    squares, count = 0.0, 0
    for item in params:
        param = item[1] if isinstance(item, tuple) else item
        squares += float(param.detach().double().square().sum())
        count += param.numel()
    if not 0 < squares < math.inf:
        raise ValueError(
            f"params must be finite and not all zero to have a typical size, got a sum of squares of {squares}; "
            "pass the weights after initialisation."
        )
    size = torch.tensor(math.sqrt(squares / count), dtype=torch.float64, requires_grad=True)
    (curvature,) = torch.autograd.grad(potential.mirror_map(size), size)
    return float(curvature) * lr
