"""Which step size to start from at a given p."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from mirrormax._checks import number
from mirrormax.geometry import Lp


def equivalent_lr(params: Iterable[Tensor], lr: float, p: float) -> float:
    """The step size with which ℓp mirror descent moves weights as SGD does with ``lr``.

    A small step moves a weight w by η g |w|^{2−p}/(p−1), so for weights of root mean square s

        η_p = (p − 1) s^{p−2} η_2.

    It is a place to start a search, not its end; see the FAQ for how it fared.

    >>> import torch
    >>> round(equivalent_lr([torch.full((64, 64), 0.05)], lr=0.1, p=1.1), 3)
    0.148
    """
    p, lr = Lp(p).p, number("lr", lr, at_least=0)
    squares, count = 0.0, 0
    for param in params:
        squares += float(param.detach().double().square().sum())
        count += param.numel()
    if squares == 0:
        raise ValueError(
            "params are all zero or empty, and have no typical size; pass the weights after initialisation."
        )
    return float((p - 1) * (squares / count) ** ((p - 2) / 2) * lr)
