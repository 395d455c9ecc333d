"""Theorem 4's rates, and what a run shows of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirrormax._checks import number
from mirrormax.theory.setting import Array, exponent

SMALLEST_STEP = 16
"""e^e: from here on log log k is at least 1, so that dividing by it does not magnify the first steps."""


def rate(p: float, k: npt.ArrayLike, statement: str = "theorem") -> Array:
    """What D_ψ(W_mm/‖W_mm‖, W(k)/‖W(k)‖) is O(·) of, for k > e (Theorem 4, (6)).

        log log k / log k  for p > 2,     (log log k)² / log k  for p = 2,     log log k / (log k)^{p−1}  for p < 2.

    For p < 2 the proof ends at 1/(log k)^{p−1}, without the log log k (32c): that is ``statement="proof"``.

    >>> rate(2, 1000).round(4)
    np.float64(0.5407)
    """
    steps = np.asarray(k, dtype=np.float64)
    if not (steps > math.e).all():
        raise ValueError(f"k must be above e, where log log k is positive, got {steps.min():g}; leave out early steps.")
    outer, inner = powers(p, statement)
    result: Array = np.log(np.log(steps)) ** outer / np.log(steps) ** inner
    return result


def powers(p: float, statement: str = "theorem") -> tuple[int, float]:
    """(j, e) of the rate (log log k)^j / (log k)^e."""
    if statement not in ("theorem", "proof"):
        raise ValueError(f"statement must be 'theorem' or 'proof', got {statement!r}.")
    p = exponent(p)
    if p >= 2:
        return (1 if p > 2 else 2), 1.0
    return (1 if statement == "theorem" else 0), p - 1


@dataclass(frozen=True, eq=False)
class RateFit:
    """D(k) against the theorem's rate (log log k)^j / (log k)^e at ``steps``.

    ``constant``  the smallest C with D ≤ C·rate at all of them: the O's constant as far as this run shows
    ``exponent``  e of the least-squares fit D ≈ ``scale``·(log log k)^j/(log k)^e, and ``expected`` the theorem's:
                  1, or p − 1 below 2. The theorem is an upper bound on D, so more is better. Normalised runs, whose
                  ‖W(k)‖ grows like a power of k where the theorem has log k, lie far above it
    ``ratio``     D/rate at ``steps``, to be plotted over k: bounded if the rate holds, falling if D is faster

    For p near 1 the rate itself *grows* until log log k = 1/(p−1), beyond any run (k ≈ e^22026 for p = 1.1).
    """

    p: float
    constant: float
    exponent: float
    expected: float
    scale: float
    steps: npt.NDArray[np.float64]
    ratio: Array

    def __str__(self) -> str:
        trend = "falls" if self.ratio[-1] < self.ratio[0] else "grows"
        return (
            f"p = {self.p:g}: D ≤ {self.constant:.3g}·rate over k = {self.steps[0]:g} … {self.steps[-1]:g}, where "
            f"D/rate {trend} from {self.ratio[0]:.3g} to {self.ratio[-1]:.3g}; "
            f"fitted power of 1/log k {self.exponent:.3g}, theorem {self.expected:g}."
        )


def fit_rate(
    steps: npt.ArrayLike,
    divergences: npt.ArrayLike,
    p: float,
    *,
    start: float = SMALLEST_STEP,
    statement: str = "theorem",
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
    outer, expected = powers(p, statement)
    inner = np.log(np.log(k))
    if np.ptp(inner) == 0:
        raise ValueError(f"all of these steps are step {k[0]:g}; record several.")
    slope, offset = np.polyfit(inner, np.log(D) - outer * np.log(inner), 1)
    ratio = D / rate(p, k, statement)
    return RateFit(exponent(p), float(ratio.max()), float(-slope), expected, float(np.exp(offset)), k, ratio)
