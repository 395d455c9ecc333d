"""Assumption A: within any closed interval, l is strictly decreasing and l' is bounded and Lipschitz continuous."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mirrormax._checks import number
from mirrormax.attention import Loss, as_loss

POINTS = 4097  # of the interval that is looked at
ROUNDING = 1e-6  # of the largest slope: by which a slope and the difference quotient of the values may differ
JUMP = 16.0  # of the largest slope's share of one step: smaller changes of the slope are not looked at
KEPT = 0.65  # of a slope's change on half a step: one half where it is Lipschitz, 0.71 for √|x|, all of it at a jump


@dataclass(frozen=True)
class LossCheck:
    """What Assumption A asks of a loss on [low, high], and what of it is violated, in sentences.

    ``slope``      max |l'| on the grid
    ``lipschitz``  max |l'(x) − l'(x')|/|x − x'| over neighbours on the grid
    """

    loss: Loss
    low: float
    high: float
    slope: float
    lipschitz: float
    violations: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found that violates the assumption."""
        return not self.violations

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        where = f"[{self.low:g}, {self.high:g}]"
        if self.violations:
            return f"{self.loss.name} violates Assumption A on {where}: {'; '.join(self.violations)}."
        return (
            f"{self.loss.name} meets Assumption A on {where}: |l'| ≤ {self.slope:.4g}, Lipschitz {self.lipschitz:.4g}."
        )


def check_loss(loss: str | Loss, low: float = -20.0, high: float = 20.0) -> LossCheck:
    """Whether a loss meets Assumption A on the margins [low, high]: decreasing, with a bounded and Lipschitz slope.

    The interval is looked at on a grid of 4,097 points: a violation found is one, none found is no proof. That
    ``derivative`` is the derivative of ``value`` is checked too.

    >>> print(check_loss("logistic", -4, 4))
    logistic meets Assumption A on [-4, 4]: |l'| ≤ 0.982, Lipschitz 0.25.
    >>> hinge = Loss("squared hinge", lambda x: (1 - x).clamp_min(0) ** 2, lambda x: -2 * (1 - x).clamp_min(0))
    >>> print(check_loss(hinge, -4, 4))
    squared hinge violates Assumption A on [-4, 4]: it is not strictly decreasing, as l'(1) = 0.
    """
    loss = as_loss(loss)
    low, high = number("low", low), number("high", high)
    if not low < high:
        raise ValueError(f"high must be greater than low, got low={low:g} and high={high:g}.")
    x = torch.linspace(low, high, POINTS, dtype=torch.float64)
    values, slopes = loss.value(x), loss.derivative(x)
    violations, slope = [], float(slopes.abs().max())
    finite = values.isfinite() & slopes.isfinite()
    if not finite.all():
        infinite = f"it or its slope is not finite at {float(x[~finite][0]):g}"
        return LossCheck(loss, low, high, slope, math.inf, (infinite,))
    flat = slopes >= 0
    if flat.any():
        first = int(flat.nonzero()[0])
        violations.append(f"it is not strictly decreasing, as l'({float(x[first]):g}) = {float(slopes[first]) + 0.0:g}")
    step = float(x[1] - x[0])
    changes = slopes.diff().abs()
    finer = loss.derivative(torch.linspace(low, high, 2 * POINTS - 1, dtype=torch.float64)).diff().abs()
    place = int(changes.argmax())
    if float(finer[2 * place : 2 * place + 2].max()) > KEPT * float(changes[place]) > KEPT * JUMP * slope / POINTS:
        violations.append(
            f"its slope is not Lipschitz near {float(x[place]):g}, where it changes by {changes[place]:.2g}"
        )
    # The mean slope over a step lies between the slopes at its ends, or near them where l' is not monotone.
    quotients = values.diff() / step
    between = torch.maximum(
        quotients - torch.maximum(slopes[1:], slopes[:-1]), torch.minimum(slopes[1:], slopes[:-1]) - quotients
    )
    wrong = between - changes > ROUNDING * max(slope, float(quotients.abs().max()))
    if wrong.any():
        first = int(wrong.nonzero()[0])
        violations.append(
            f"derivative is not that of value near {float(x[first]):g}, where it is {float(slopes[first]):.4g} and the "
            f"values change at {float(quotients[first]):.4g}"
        )
    return LossCheck(loss, low, high, slope, float(changes.max()) / step, tuple(violations))
