"""What is wrong with a run: four signatures of failure, each with its number and a remedy.

Attention trained by ℓp mirror descent should select tokens, settle on them, and then turn to their max-margin direction
while its norm grows without end. A run that does not fails in one of four ways, which can be read off its records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import is_locally_optimal
from mirrormax.dynamics import Trajectory
from mirrormax.geometry import Lp
from mirrormax.problem import Problem
from mirrormax.svm import att_svm
from mirrormax.theory.setting import Array

GROWTH = 0.01  # a norm that has grown by less over the last nine tenths of the updates does not grow
MOVED = 0.01  # the log of some sample's attention on unselected tokens changes by more, if the step is large enough
RISES = 0.25  # share of the divergence's changes that go up from which it oscillates; one that falls has none
SIZE = 0.05  # of its level: rises of the divergence that are smaller in sum are not counted
FLOOR = 1e-9  # a divergence below it has arrived, within the solver's own accuracy; its ups and downs are rounding
FEWEST = 6  # records below which nothing is said of growth and oscillation
NEAR_ONE = 1.2  # p below which |u|^{1/(p−1)} leaves the range of floating point for ordinary u

Finding = tuple[bool | None, float, str]  # what a Sign holds besides its name


@dataclass(frozen=True)
class Sign:
    """One signature: whether it was seen (None: it cannot be told), its number, and a sentence with the remedy."""

    name: str
    seen: bool | None
    value: float
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """The four signatures of a run, in order; it prints those that were seen, or that none was."""

    signs: tuple[Sign, ...]

    @property
    def healthy(self) -> bool:
        """Whether no signature of failure was seen."""
        return not any(sign.seen for sign in self.signs)

    def __getitem__(self, name: str) -> Sign:
        return next(sign for sign in self.signs if sign.name == name)

    def __str__(self) -> str:
        seen = [sign.text for sign in self.signs if sign.seen]
        return " ".join(seen) if seen else f"no signature of failure: {self['growth'].text}"


def diagnose(run: Trajectory, problem: Problem | None = None) -> Diagnosis:
    """Look at a run for the four signatures of failure.

    ``growth``      the norm does not grow: by how much it did over the last nine tenths of the updates. Or it does, but
                    from nearly zero, and attention is where it was at the start
    ``oscillation`` the divergence goes up and down: the share of its changes, in sum, that go up, in the second half of
                    the records. It is that to the attention SVM of the run's tokens if the ``problem`` is given, else
                    to the run's own references, else to its last direction
    ``tokens``      the tokens at the end are not locally optimal, or still changed in the second half of the updates:
                    in how many samples
    ``precision``   overflow, or entries that are zero because |u|^{1/(p−1)} is: the share of such entries

    Args:
        run: a single run of :func:`~mirrormax.dynamics.simulate`; of a batch, pass ``run[i]``.
        problem: what it was run on, with X, y, z and v; without it, local optimality cannot be told.

    >>> from mirrormax.data import example1
    >>> from mirrormax.dynamics import simulate
    >>> diagnose(simulate(example1(), p=2, steps=500), example1()).healthy
    True
    """
    if run.batch_shape:
        raise ValueError(f"run must be a single run, got a batch of shape {run.batch_shape}; pass run[i].")
    run = run.numpy()
    alive = np.asarray(run.steps) <= int(run.updates)
    potential, solution = run.potentials().item(), None
    p = potential.p if isinstance(potential, Lp) else math.nan
    if problem is not None and isinstance(potential, Lp):
        solution = att_svm(problem.X, problem.z, run.alpha, p=p, mask=problem.mask, throw=False)
    findings = {
        "growth": _growth(run, alive),
        "oscillation": _oscillation(run, alive, solution.W if solution is not None and solution.optimal else None),
        "tokens": _tokens(run, alive, problem, solution),
        "precision": _precision(run, p),
    }
    return Diagnosis(tuple(Sign(name, *finding) for name, finding in findings.items()))


def _growth(run: Trajectory, alive: Any) -> Finding:
    norms, steps = np.asarray(run.norm)[alive], np.asarray(run.steps)[alive]
    if len(norms) < FEWEST or not np.isfinite(norms).all():
        return None, math.nan, f"the run has {len(norms)} usable records, too few to see growth."
    early = norms[np.searchsorted(steps, steps[-1] / 10)]
    grown = float(norms[-1] / early - 1) if early > 0 else math.inf
    if grown < GROWTH:
        seen = f"The norm does not grow ({grown:+.2%} over the last nine tenths of the updates): "
        cause = "the step is too small, or W is outside the cone of any solution; "
        return True, grown, seen + cause + "normalise the steps, take a larger lr, or start nearer to zero."
    rest = np.asarray(run.log_rest)[alive]
    # From zero any step makes the norm many times what it was, so that its growth alone says nothing.
    moved = float(np.abs(rest[-1] - rest[0]).max()) if np.isfinite(rest[[0, -1]]).all() else math.inf
    if moved < MOVED:
        seen = f"The norm hardly leaves its start: it is {norms[-1]:.2g}, and attention has not moved (the log of the "
        cause = f"unselected tokens' share by {moved:.2g} at most): the step is too small; "
        return True, grown, seen + cause + "normalise the steps, take a larger lr, or run longer."
    by = f"{grown:.0%}" if grown < 10 else f"a factor of {1 + grown:.2g}"
    return False, grown, f"the norm grew by {by} over the last nine tenths of the updates."


def _oscillation(run: Trajectory, alive: Any, W_mm: ArrayLike | Tensor | None) -> Finding:
    divergence = _divergence(run, alive, W_mm)
    if divergence is None or len(divergence) < FEWEST:
        return None, math.nan, "too few records to see oscillation."
    tail = divergence[len(divergence) // 2 :]
    changes = np.diff(tail)
    total, up = float(np.abs(changes).sum()), float(changes[changes > 0].sum())
    share = up / total if total > 0 else 0.0
    if share < RISES or up < SIZE * float(tail.mean()) or float(tail.max()) < FLOOR:
        return False, share, f"{share:.0%} of the divergence's changes go up."
    lr = run.config.get("lr")
    smaller = f"{lr / 10:g}" if isinstance(lr, int | float) else "a tenth"
    seen = f"The divergence oscillates ({share:.0%} of its changes go up in the second half): the step is too large; "
    return True, share, seen + f"divide lr by 10, to {smaller}."


def _divergence(run: Trajectory, alive: Any, W_mm: Any) -> Array | None:
    """To the attention SVM, else to the first reference of the run, else to its last direction."""
    if W_mm is None and run.divergence:
        divergence = np.asarray(next(iter(run.divergence.values())))[alive]
    elif len(run.W) != len(run.steps) or not np.isfinite(run.W[-1]).all() or not np.any(run.W[-1]):
        return None
    else:
        divergence = np.asarray(run.divergence_to(run.W[-1] if W_mm is None else W_mm))[alive]
    finite: Array = divergence[np.isfinite(divergence)]
    return finite


def _tokens(run: Trajectory, alive: Any, problem: Problem | None, solution: Any) -> Finding:
    late = np.asarray(run.selected)[alive & (np.asarray(run.steps) >= int(run.updates) / 2)]
    changing = int((late != late[-1]).any(0).sum())
    if changing:
        seen = f"The token selected in {_samples(changing)} still changed in the second half of the updates, "
        return True, float(changing), seen + "so that it was not locally optimal; run 10 times as long."
    if problem is None:
        return None, math.nan, "the tokens are settled; give the problem to see if they are optimal."
    if solution is None:
        return None, math.nan, "the tokens are settled; which are optimal is defined for ψ = (1/p)‖·‖_p^p alone."
    if not solution.optimal:
        seen = "No W separates the selected tokens, so that there is no max-margin direction: "
        return True, math.nan, seen + "check the data, or take d of at least max(T − 1, n)."
    arrays = {name: getattr(problem, name) for name in ("X", "y", "z", "v", "mask")}
    if run.v is not None:  # the readout was trained
        arrays["v"] = run.v[-1]
    verdict = is_locally_optimal(**arrays, alpha=run.alpha, support=solution.support)
    wrong = len({sample for sample, _ in verdict.offending})
    if not wrong:
        return False, 0.0, "the selected tokens are locally optimal."
    seen = f"The token selected in {_samples(wrong)} is not locally optimal (a support token scores as high): run 10 "
    return True, float(wrong), seen + "times as long, or start elsewhere."


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count > 1 else ''}"


def _precision(run: Trajectory, p: float) -> Finding:
    last = np.asarray(run.W[-1])
    zero = float((last == 0).mean())
    if str(run.status) == "nonfinite":
        why = f"|u|^{{1/(p−1)}} with p = {p:g}" if p < NEAR_ONE else "the next iterate"
        seen = f"Update {int(run.updates) + 1} overflows: {why} is not finite (largest |W| {np.abs(last).max():.2g}); "
        return True, zero, seen + "take a smaller lr, or p further from 1."
    if p < NEAR_ONE and zero > 0 and int(run.updates) > 0:
        # Dual variables below this are weights of exactly zero; they come back as soon as they are larger.
        smallest = float(np.finfo(last.dtype).tiny) ** (p - 1)
        seen = f"At p = {p:g}, {zero:.0%} of the weights are exactly 0, since dual variables below {smallest:.1g} "
        return zero > 0.5, zero, seen + "round to it: a larger lr, or p further from 1, brings them back."
    return False, zero, "all numbers are finite."
