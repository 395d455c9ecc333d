"""Theorem 4's rates, and what a run shows of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._checks import number
from mirrormax.theory.setting import Array, exponent

SMALLEST_STEP = 16
"""log log k turns positive at e, and each rate falls from e^{e²} ≈ 1618 on at the latest, from e^e ≈ 15 on for p > 2."""


def rate(p: float, k: Any, statement: str = "theorem") -> Any:
    """What D_ψ(W_mm/‖W_mm‖, W(k)/‖W(k)‖) is O(·) of, for k > e (Theorem 4, (6)).

        log log k / log k  for p > 2,     (log log k)² / log k  for p = 2,     log log k / (log k)^{p−1}  for p < 2.

    For p < 2 the proof ends at 1/(log k)^{p−1}, without the log log k (32c): that is ``statement="proof"``.

    >>> rate(2, 1000).round(4)
    np.float64(0.5407)
    """
    p, steps = exponent(p), np.asarray(k, dtype=np.float64)
    if statement not in ("theorem", "proof"):
        raise ValueError(f"statement must be 'theorem' or 'proof', got {statement!r}.")
    if not (steps > math.e).all():
        raise ValueError(f"k must be above e, where log log k is positive, got {steps.min():g}; leave out early steps.")
    log = np.log(steps)
    if p > 2:
        return np.log(log) / log
    if p == 2:
        return np.log(log) ** 2 / log
    return (np.log(log) if statement == "theorem" else 1.0) / log ** (p - 1)


@dataclass(frozen=True, eq=False)
class RateFit:
    """D(k) against the theorem's rate(k) at ``steps``.

    ``constant``  the smallest C with D ≤ C·rate at all of them: the O's constant as far as this run shows
    ``exponent``  e of the least-squares fit D ≈ ``scale``·rate^e in logarithms: the theorem says that e ≥ 1 in the
                  long run; normalised runs have ‖W(k)‖ growing like k and not like log k, and lie far above
    ``ratio``     D/rate at ``steps``, to be plotted over k: bounded if the rate holds, falling if D is faster
    """

    p: float
    constant: float
    exponent: float
    scale: float
    steps: npt.NDArray[np.float64]
    ratio: Array

    def __str__(self) -> str:
        trend = "falls" if self.ratio[-1] < self.ratio[0] else "grows"
        return (
            f"p = {self.p:g}: D ≤ {self.constant:.3g}·rate over k = {self.steps[0]:g} … {self.steps[-1]:g}; "
            f"D ≈ {self.scale:.3g}·rate^{self.exponent:.3g}; D/rate {trend} from {self.ratio[0]:.3g} to {self.ratio[-1]:.3g}."
        )


def fit_rate(
    steps: Any, divergences: Any, p: float, *, start: float = SMALLEST_STEP, statement: str = "theorem"
) -> RateFit:
    """Compare recorded divergences (K,) at ``steps`` (K,) with the theorem's rate, from step ``start`` on.

    Steps without a finite, positive divergence are left out; at least three must be left.
    """
    k, D = np.asarray(steps, dtype=np.float64), np.asarray(divergences, dtype=np.float64)
    if k.ndim != 1 or k.shape != D.shape:
        raise ValueError(f"steps and divergences must be two sequences of one length, got {k.shape} and {D.shape}.")
    start = number("start", start, above=math.e)
    usable = (k >= start) & np.isfinite(D) & (D > 0)
    if usable.sum() < 3:
        raise ValueError(f"only {int(usable.sum())} steps from {start:g} on have a positive divergence; record more.")
    k, D = k[usable], D[usable]
    reference = rate(p, k, statement)
    if np.ptp(np.log(reference)) < 1e-12:
        raise ValueError("the rate is the same at all of these steps; record steps that are further apart.")
    slope, offset = np.polyfit(np.log(reference), np.log(D), 1)
    ratio = D / reference
    return RateFit(exponent(p), float(ratio.max()), float(slope), float(np.exp(offset)), k, ratio)
