"""What a solve returns: the weights, the proof that they are right, and what to do when there are none."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any, Generic, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mirrormax._arrays import A
from mirrormax.svm.certificate import Certificate
from mirrormax.svm.rows import Array, Bools, Index


@dataclass(frozen=True, repr=False)
class Solution(Generic[A]):
    """A max-margin solution with its certificate; leading shapes are those of the batch.

    ``weights``   ``W (..., d, d)`` of :func:`att_svm` or ``v (..., d)`` of :func:`lp_svm`, scaled to minimum
                  margin 1; NaN where the problem is infeasible. Also by the names ``W`` and ``v``.
    ``margin``    1/‖W‖ in the norm of the problem; 0 where infeasible.
    ``gap``       relative duality gap 1 − lb/ub, ub = ‖W‖_p, lb = 1ᵀλ/‖Aᵀλ‖_q, computed from the arrays returned;
                  no W that meets the constraints has a norm below (1 − gap)·‖W‖_p.
    ``violation`` how far the smallest margin is below 1.
    ``dual``      the multipliers λ ≥ 0 behind lb, ``(..., n, T)`` or ``(..., n)``, zero at alpha and at masked
                  tokens, scaled to ‖Aᵀλ‖_q = 1 so that lb is their sum. Where infeasible, the Farkas
                  certificate: λ ≥ 0, 1ᵀλ = 1, Aᵀλ = 0.
    ``nu``        only with ``keep``: the multipliers ν of the equalities, of either sign, ``(..., n, T)``, zero but at
                  the kept tokens other than the reference; Aᵀλ then means Aᵀλ + Bᵀν, in the Farkas certificate too.
    ``support``   where the constraint is active: a margin of 1 to within 1e-4, or √gap where that is more. That is
                  what :func:`mirrormax.attention.support_tokens` finds; the multiplier may be zero there.
                  Where infeasible, the constraints in the Farkas certificate.
    ``doubt``     where it is not known whether ``support`` is right. Weights of a relative gap ε may be ε^{1/p} from
                  the solution where p > 2, .1 at p = 9. The multipliers tell more, and mostly all, see
                  :mod:`mirrormax.svm.certificate`; what they leave open stands here, and a warning names it.
    ``unique``    whether the multipliers prove that there is no other solution: always so in ℓp.
    ``status``    one text per problem: ``optimal``, ``infeasible: …``, or what stopped it and what to do next.

    With ``keep`` or ``rhs`` the rows are A W ≥ b, B W = 0: W is scaled to min A W/b = 1 over b > 0,
    lb = bᵀλ/‖Aᵀλ + Bᵀν‖_q, the Farkas certificate has bᵀλ = 1, and ``violation`` counts rows with b ≤ 0 and equalities
    too, each relative to the size of its own sum.

    With ``C`` (soft margin) nothing is rescaled, λ is the multiplier itself (0 ≤ λ ≤ C), ``gap`` is 1 − D/P for
    primal and dual objectives P and D, with the rounding of the margins charged to P; ``violation`` is the largest
    slack ξ in use, and ``support`` is where the margin is at most 1.
    """

    weights: A
    margin: A
    gap: A
    violation: A
    dual: A
    support: A
    status: str | list[Any]
    iterations: A
    name: str = "W"
    about: str = ""
    nu: A | Any = None
    unique: bool | Any = True
    doubt: A | Any = False

    @property
    def W(self) -> A:
        """The weights of :func:`att_svm`."""
        return self._called("W")

    @property
    def v(self) -> A:
        """The weights of :func:`lp_svm`."""
        return self._called("v")

    @property
    def V(self) -> A:
        """The weights of :func:`class_svm`, ``(..., C, d)``."""
        return self._called("V")

    def _called(self, name: str) -> A:
        if name != self.name:
            raise AttributeError(f"a solution of {self.about} has .{self.name}, not .{name}")
        return self.weights

    @property
    def samples(self) -> A:
        """Boolean ``(..., n)``: the samples with a multiplier; where infeasible, those that contradict each other."""
        positive: Any = self.dual > 0 if self.nu is None else (self.dual > 0) | (self.nu != 0)
        return cast("A", positive if self.name == "v" else positive.any(-1))

    @property
    def optimal(self) -> bool | NDArray[np.bool_]:
        """Whether each problem was solved to tolerance, as one bool or an array of them."""
        return _each(self.status, "optimal")

    @property
    def infeasible(self) -> bool | NDArray[np.bool_]:
        """Whether each problem was proved infeasible, as one bool or an array of them."""
        return _each(self.status, "infeasible")

    def __repr__(self) -> str:
        shape = tuple(self.weights.shape)
        head = f"Solution({self.about}, {self.name} {shape}"
        if isinstance(self.status, str):
            active = f"{int(self.support.sum())} active constraints"
            numbers = (
                f"margin={float(self.margin):.6g}, gap={float(self.gap):.1e}, violation={float(self.violation):.1e}"
            )
            return f"{head}, {numbers}, {active}, {int(self.iterations)} iterations, status={self.status!r})"
        solved = np.asarray(self.optimal)
        worst = float(np.asarray(self.gap)[solved].max()) if solved.any() else np.nan
        return f"{head}, {int(solved.sum())} of {solved.size} optimal, largest gap of these {worst:.1e})"


class NotSolvedError(ValueError):
    """A problem was not solved to tolerance; ``solution`` is what was reached, as with ``throw=False``."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


class InfeasibleError(NotSolvedError):
    """No weights separate the data; ``certificate`` is the Farkas λ, ``samples`` the boolean (..., n) in it."""

    @property
    def certificate(self) -> NDArray[Any] | Tensor:
        return cast("NDArray[Any] | Tensor", self.solution.dual)

    @property
    def samples(self) -> NDArray[Any] | Tensor:
        return cast("NDArray[Any] | Tensor", self.solution.samples)


def raise_if_failed(solution: Solution) -> None:
    """Raise for the first problem that failed, infeasible ones first, naming all that did."""
    failed, refuted = np.argwhere(~np.asarray(solution.optimal)).tolist(), np.argwhere(solution.infeasible).tolist()
    if not failed:
        return
    texts, first = np.array(solution.status, dtype=object), tuple((refuted or failed)[0])
    message = texts[first]
    if texts.ndim:
        *names, where = (str(k[0] if len(k) == 1 else tuple(k)) for k in (*failed[:10], first))
        more = f" and {len(failed) - 10} more" if len(failed) > 10 else ""
        message = (
            f"{len(failed)} of {texts.size} problems were not solved (problems {', '.join(names)}{more}); "
            f"problem {where}: {message}; use throw=False to keep the others."
        )
    raise (InfeasibleError if refuted else NotSolvedError)(message, solution)


@dataclass
class Solved:
    """A batch of B problems with what is proved of them, the steps taken, and one status text for each."""

    certificate: Certificate
    iterations: Index
    status: list[str]
    unique: Bools
    nu: Array | None = None

    def solution(
        self, shape: tuple[int, ...], name: str, about: str, device: torch.device | None, throw: bool
    ) -> Solution:
        """The same in the shape of the batch, arrays in the kind of the input; it raises for failures if asked to."""
        arrays: dict[str, Any] = {part.name: getattr(self.certificate, part.name) for part in fields(Certificate)}
        arrays |= {"iterations": self.iterations, "unique": self.unique, "nu": self.nu}
        for key, array in arrays.items():
            if array is not None:
                arrays[key] = as_given(array.reshape((*shape, *array.shape[1:])), device)
        status = np.array(self.status, dtype=object).reshape(shape).tolist()
        solution: Solution = Solution(**arrays, status=status, name=name, about=about)
        places = np.argwhere(np.asarray(solution.doubt)).tolist()
        if places:
            named = ", ".join(str(tuple(place)) for place in places[:5])
            more = f" and {len(places) - 5} more" if len(places) > 5 else ""
            warnings.warn(
                f"{about}: whether {named}{more} {'are' if len(places) > 1 else 'is'} in solution.support is in doubt "
                "(see solution.doubt), since weights of a relative gap ε are known to ε^(1/p) only, and multipliers to "
                "rounding; take a p nearer to 2.",
                stacklevel=4,  # past this function, the solver, and the one that takes a Problem apart
            )
        if throw:
            raise_if_failed(solution)
        return solution


def device_of(*arrays: Any) -> torch.device | None:
    """Where the first tensor among the arguments lives; None for numpy throughout."""
    return next((array.device for array in arrays if isinstance(array, Tensor)), None)


def as_given(array: Any, device: torch.device | None) -> NDArray[Any] | Tensor:
    """An array in the kind of the arguments: a tensor on their device, or numpy."""
    return cast("NDArray[Any]", array[()]) if device is None else torch.from_numpy(np.array(array)).to(device)


def _each(status: str | list[Any], word: str) -> bool | NDArray[np.bool_]:
    """Which texts begin with the word."""
    texts = np.array(status, dtype=object)
    flags = np.array([text.startswith(word) for text in texts.ravel()], dtype=bool).reshape(texts.shape)
    return flags if texts.ndim else bool(flags)
