"""Decreasing losses of the margin x = y f(X, z) (the paper's Assumption A).

logistic     l(x) = log(1 + e^{-x})     l'(x) = −1/(1 + e^x)
exponential  l(x) = e^{-x}              l'(x) = −e^{-x}
correlation  l(x) = −x                  l'(x) = −1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """A decreasing loss by its value l(x) and its derivative l'(x) ≤ 0, both elementwise on tensors.

    ``log_slope``, x ↦ log(−l'(x)), may be given too. Where l' leaves the range of floating point (an
    exponential loss beyond |x| ≈ 700) it is what keeps :func:`scaled_gradient` exact; without it the
    logarithm of ``derivative`` is taken.

    Any will do for training; the paper's theorems ask for more (:func:`mirrormax.theory.check_loss`).

    >>> Loss("algebraic", lambda x: (1 + x**2).sqrt() - x, lambda x: x / (1 + x**2).sqrt() - 1)
    Loss('algebraic')
    """

    name: str
    value: Function
    derivative: Function
    log_slope: Function | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {self.name!r} ({type(self.name).__name__}).")
        for field in ("value", "derivative"):
            if not callable(getattr(self, field)):
                raise TypeError(
                    f"{field} of loss {self.name!r} must be a function of a tensor, got {getattr(self, field)!r}."
                )

    def __call__(self, x: Tensor) -> Tensor:
        """l(x)."""
        return self.value(x)

    def log_derivative(self, x: Tensor) -> Tensor:
        """log(−l'(x)), −inf where the loss is flat."""
        if self.log_slope is not None:
            return self.log_slope(x)
        slope = self.derivative(x)
        if (slope > 0).any():
            raise ValueError(
                f"loss {self.name!r} must be decreasing, but its derivative is {slope.max().item():g} at "
                f"x = {x.flatten()[slope.argmax()].item():g}; give a loss with derivative <= 0 everywhere."
            )
        return slope.neg().log()

    def __repr__(self) -> str:
        return f"Loss({self.name!r})"


# logsigmoid and not softplus: softplus turns linear at 20, where log1p(e^{-20}) still has digits.
LOGISTIC = Loss(
    "logistic",
    value=lambda x: -functional.logsigmoid(x),
    derivative=lambda x: -torch.sigmoid(-x),
    log_slope=lambda x: functional.logsigmoid(-x),
)
"""l(x) = log(1 + e^{-x})."""
EXPONENTIAL = Loss(
    "exponential",
    value=lambda x: torch.exp(-x),
    derivative=lambda x: -torch.exp(-x),
    log_slope=torch.neg,
)
"""l(x) = e^{-x}."""
CORRELATION = Loss(
    "correlation",
    value=torch.neg,
    derivative=lambda x: -torch.ones_like(x),
    log_slope=torch.zeros_like,
)
"""l(x) = −x."""

LOSSES = {loss.name: loss for loss in (LOGISTIC, EXPONENTIAL, CORRELATION)}


def as_loss(loss: str | Loss) -> Loss:
    """A loss as it is, or ``"logistic"``, ``"exponential"``, ``"correlation"`` by name."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise TypeError(
            f"loss must be a name or a Loss, got {loss!r} ({type(loss).__name__}); "
            "wrap your own in Loss(name, value, derivative)."
        )
    if loss not in LOSSES:
        raise ValueError(f"no loss is named {loss!r}; use one of {', '.join(LOSSES)}, or a Loss of your own.")
    return LOSSES[loss]
