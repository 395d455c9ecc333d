"""Which solver for which problem, and from its answer to a proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from mirrormax.svm._types import Answer, HardMargin, Unit, Verdict, norms
from mirrormax.svm.certificate import Certificate, Certifier
from mirrormax.svm.feasibility import confirm
from mirrormax.svm.norms import Norm, is_unique
from mirrormax.svm.rows import Array, BlockRows, Bools, Index, p_norm
from mirrormax.svm.solution import Solved
from mirrormax.svm.solvers import barrier, interior, lagrangian, large, linear, soft
from mirrormax.svm.systems import MANY_PAIRS

AIM = 0.9  # of the tolerance: the certificate is computed again, in other roundings, at the end
MANY_ROWS = 300  # from here on one problem at a time with few factorisations beats interior points
VERY_MANY_ROWS = 16_000  # from here on conjugate gradients beat factorisations at p = 2
TOO_MANY_ROWS = 30_000  # the same at other p
LAGRANGIAN_RANGE = (1.1, 6.0)  # of p
ROWS_PER_WEIGHT = 4  # from here on most rows are idle, and a working set has few of them
FEW_WEIGHTS = 256  # up to here interior points on a few times as many rows are quick
CHUNK = 256  # problems at once: more gains nothing
DEPENDENT = 1e-10  # of its length: what is left of an equality row that follows from the others
LARGEST_CHUNK = 4_000_000  # numbers in the Gram matrices of a chunk, and in what they are made of


@dataclass(frozen=True)
class Solver:
    """``solve(problem, tol)`` gives weights, multipliers and the gap reached, above ``tol`` where it gave up.

    It takes the problems that it ``accepts``, which ``takes`` says in words; several at once if it is ``batched``.
    """

    name: str
    takes: str
    solve: Callable[[HardMargin, float], Answer]
    accepts: Callable[[HardMargin], bool] = lambda problem: True
    batched: bool = False


SMALL_EUCLIDEAN = (
    f"one problem with p = 2 and at most {interior.LARGEST_ACTIVE_SET} rows whose sizes are within a factor of 1000"
)
LARGE = f"one problem with at least {MANY_ROWS} rows"
SMALL = f"one problem with at most {interior.LARGEST_SYSTEM} rows and weights together"
SOLVERS = {
    solver.name: solver
    for solver in (
        Solver("interior", "any problem", interior.solve_interior, batched=True),
        Solver("active-set", SMALL_EUCLIDEAN, interior.solve_active_set, interior.is_small_euclidean),
        Solver("newton", "any problem, one at a time", large.solve_newton),
        Solver("working-set", "any problem, one at a time", large.solve_working_set),
        Solver("lagrangian", LARGE, lagrangian.solve_lagrangian, lagrangian.is_structured),
        Solver("extended", SMALL, interior.solve_extended, interior.is_small),
    )
}


def choose(problem: HardMargin) -> Solver:
    """The solver that suits this batch; others finish what it leaves."""
    m, size = problem.rows.m, problem.rows.size
    if problem.equal is not None:  # others take neither equalities nor other right-hand sides
        name = "interior"
    elif m < MANY_ROWS:
        name = "active-set" if interior.is_small_euclidean(problem) else "interior"
    elif size <= FEW_WEIGHTS:
        name = "working-set" if m > ROWS_PER_WEIGHT * size else "newton"
    else:  # many rows, or pairs of samples, that meet in a factorisation make products with A quicker
        pairs = problem.rows.n**2 * size if isinstance(problem.rows, BlockRows) else 0
        many = m >= (VERY_MANY_ROWS if problem.p[0, 0] == 2 else TOO_MANY_ROWS) or pairs >= MANY_PAIRS
        name = "lagrangian" if many and _is_in_range(problem) else "newton"
    return SOLVERS[name]


def _is_in_range(problem: HardMargin) -> bool:
    return bool(LAGRANGIAN_RANGE[0] <= problem.p[0, 0] <= LAGRANGIAN_RANGE[1])


def solve(unit: Unit, p: Array, tol: float, method: Solver | None = None) -> Answer:
    """Solve every problem; p (B,). Those that do not converge are judged for feasibility."""
    n, per_sample, d = unit.x.shape[1:]
    m = n * per_sample
    answer = Answer.empty(len(p), d * unit.z.shape[-1], m)
    single = m >= MANY_ROWS if method is None else not method.batched
    chunk = 1 if single else min(CHUNK, max(1, LARGEST_CHUNK // (m * (m + n * d))))
    for start in range(0, len(p), chunk):
        members = np.arange(start, min(start + chunk, len(p)))
        part = unit if len(members) == len(p) else unit.take(members)
        problem = part.problem(p[members], tol, large=m >= MANY_ROWS)
        solver = choose(problem) if method is None else method
        if problem.equal is not None and solver.name != "interior":
            raise ValueError(
                f'method="{solver.name}" takes neither keep nor rhs; leave method out, or give method="interior".'
            )
        if not solver.accepts(problem):
            count = int((problem.b[0] > 0).sum())
            raise ValueError(
                f'method="{solver.name}" takes {solver.takes}, got p = {p[start]:g} with {count} rows and '
                f"{problem.rows.size} weights; leave method out."
            )
        partial = solver.solve(problem, AIM * tol)
        if method is None and solver.name == "newton" and not np.isfinite(partial.gap[0]):
            partial = _after_newton(problem, AIM * tol)
        answer.put(members, partial)
    return answer


def _after_newton(problem: HardMargin, tol: float) -> Answer:
    """One problem whose quasi-Newton guess separates nothing: too hard for that, or infeasible.

    Few directions among many queries make such problems, in heads of real models too. Interior points on thousands of
    rows take minutes then, where conjugate gradients take less than a second.
    """
    if lagrangian.is_structured(problem) and _is_in_range(problem):
        answer = lagrangian.solve_lagrangian(problem, tol)
        if answer.gap[0] <= tol or (answer.verdicts[0] is not None and answer.verdicts[0].feasible is False):
            return answer
    return SOLVERS["interior"].solve(problem, tol)


def solve_rows(
    x: Array,
    z: Array,
    exists: Bools,
    p: Array,
    tol: float,
    *,
    penalty: Array | None = None,
    norm: Norm | None = None,
    method: Solver | None = None,
    right: Array | None = None,
    equal: Bools | None = None,
) -> Solved:
    """Rows x (B, n, R, d) and queries z (B, n, e) to certificates and statuses.

    Trial steps may overflow near p = 1, and such a step is refused like any other bad one: to be called where numpy
    does not warn.

    ``right`` (B, n, R) are right-hand sides, ``equal`` (B, n, R) the rows that are equalities; both or neither. A
    ``norm`` takes the place of ℓp.
    """
    if right is not None and equal is not None:
        right, equal = right.reshape(len(x), -1), equal.reshape(len(x), -1)
        exists, equal = _independent(x, z, exists, equal)
    unit = Unit.of(x, z, exists, right, equal)
    rows, c = BlockRows(x, z), unit.c.reshape(len(x), -1)
    if penalty is not None:
        certificate, iterations = soft.solve_soft(rows, unit, exists.reshape(len(x), -1), p, penalty, tol)
        texts = [_status(gap, tol, None, k, 0.0, soft=True) for gap, k in zip(certificate.gap, iterations, strict=True)]
        return Solved(certificate, iterations, texts, np.ones(len(x), dtype=bool))
    least, most = unit.c[exists].min(), unit.c[exists].max()
    if not 1e-280 < least <= most < 1e280:
        raise ValueError(
            f"the constraints have sizes from {least:.0e} to {most:.0e}, beyond what double precision can hold; "
            "bring the data nearer to 1."
        )
    q = p / (p - 1)
    sizes, powers = (lambda w: p_norm(w, p), lambda u: p_norm(u, q)), p
    if norm is None:
        answer = solve(unit, p, tol, method)
    else:
        sizes, powers = (norm.sizes, norm.duals), np.full_like(p, 2.0)
        answer = (linear.solve_linear if norm.name in ("l1", "linf") else barrier.solve_barrier)(unit, norm, AIM * tol)
    certify = Certifier(rows, c, *sizes, powers, tol, right, equal)
    certificate = certify(answer.w, answer.lam)
    if _rescue(answer, np.flatnonzero(~np.isfinite(certificate.gap)), unit):
        certificate = certify(answer.w, answer.lam)
    if norm is None and method is None and _in_extended_precision(answer, certificate, unit, p, tol):
        new = certify(answer.w, answer.lam)
        better = np.flatnonzero(new.gap < certificate.gap)
        certificate.put(better, new.take(better))
    answer.verdicts[np.isfinite(certificate.gap)] = None  # weights that separate the data outrank everything
    for k in np.flatnonzero(~np.isfinite(certificate.gap)).tolist():
        if not answer.verdicts[k].feasible:
            sides = [None if side is None else side[k] for side in (right, equal)]
            answer.verdicts[k] = verdict = confirm(answer.verdicts[k], x[k], z[k], c[k] > 0, *sides)
            if verdict.feasible is False:
                certificate.refute(k, verdict.lam)
    results = zip(certificate.gap, answer.verdicts, answer.iterations, p, strict=True)
    texts = [_status(gap, tol, verdict, steps, at, soft=False) for gap, verdict, steps, at in results]
    unique = np.array([norm is None or is_unique(norm, rows, certificate, k) for k in range(len(texts))])
    return Solved(certificate, answer.iterations, texts, unique)


def _independent(x: Array, z: Array, exists: Bools, equal: Bools) -> tuple[Bools, Bools]:
    """The same rows without the equalities that follow from others, (B, n, R) and (B, m)."""
    exists, equal = exists.copy(), equal.copy()
    flat = exists.reshape(len(x), -1)
    for k in np.flatnonzero(equal.any(axis=1)):
        rows = np.flatnonzero(equal[k] & flat[k])
        matrix = BlockRows(x[[k]], z[[k]]).subset(rows).dense()[0]
        length = norms(matrix)
        _, triangle, order = qr((matrix / np.where(length > 0, length, 1.0)[:, None]).T, mode="economic", pivoting=True)
        spared = order[np.abs(np.diag(triangle)) <= DEPENDENT] if len(rows) else order
        spared = np.union1d(spared, order[min(matrix.shape) :])
        flat[k, rows[spared]] = False
    equal &= flat
    return flat.reshape(exists.shape), equal


def _rescue(answer: Answer, members: Index, unit: Unit) -> bool:
    """Give problems whose weights do not separate the data those of phase 0, if it has any."""
    changed = False
    for k in members.tolist():
        if answer.verdicts[k] is None:
            single = unit.take(np.array([k]))
            answer.verdicts[k] = interior.judge_problem(single.problem(np.array([2.0]), 1e-9))
        if answer.verdicts[k].feasible:
            answer.w[k], changed = answer.verdicts[k].w, True
    return changed


def _in_extended_precision(answer: Answer, certificate: Certificate, unit: Unit, p: Array, tol: float) -> bool:
    """Solve small problems that are separable but above ``tol`` again, if there are any."""
    hard = False
    for k in np.flatnonzero((certificate.gap > tol) & np.isfinite(certificate.gap)).tolist():
        problem = unit.take(np.array([k])).problem(p[[k]], tol)
        if interior.is_small(problem):
            verdict = answer.verdicts[k]
            start = verdict.w if verdict is not None and verdict.feasible else certificate.weights[k]
            finer = interior.solve_extended(problem, AIM * tol, start)
            answer.w[k], answer.lam[k], hard = finer.w[0], finer.lam[0], True
            answer.iterations[k] += finer.iterations[0]
    return hard


def _status(gap: float, tol: float, verdict: Verdict | None, iterations: int, p: float, soft: bool) -> str:
    if verdict is not None and verdict.feasible is False:
        return (
            "infeasible: no weights meet every margin, proved by multipliers with "
            f"|A'λ| = {verdict.residual:.0e} |A|'λ (see dual and samples); "
            "leave out one of the samples named there, choose other tokens, or give C"
        )
    if gap <= tol:
        return "optimal"
    if verdict is not None and verdict.feasible is None:
        return (
            "stopped: not decided whether any weights separate the data "
            f"(|A'λ| = {verdict.residual:.0e} |A|'λ is more than rounding); "
            "bring the samples and features to one scale, or give C"
        )
    if soft:
        return (
            f"stopped at relative gap {gap:.1e} after {iterations} iterations, above tol={tol:g}; slacks are exact to "
            "C times rounding only, so that double precision may not allow less: accept it with a larger tol, lower C, "
            "or bring the data nearer to 1"
        )
    remedy = "bring the samples to one scale" + ("" if p == 2 else ", or take a p nearer to 2")
    tolerant = "accept it with a larger tol," + (" or" if p == 2 else "")
    if not np.isfinite(gap):
        return f"stopped after {iterations} iterations without weights that meet the margins; {remedy}"
    return (
        f"stopped at relative gap {gap:.1e} after {iterations} iterations, above tol={tol:g}; the weights are within "
        f"that gap of the best: {tolerant} {remedy}"
    )
