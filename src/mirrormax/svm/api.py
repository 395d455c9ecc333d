"""The ℓp attention SVM and the ℓp SVM, as users call them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._arrays import as_array, as_tensor, is_array
from mirrormax._checks import integer, number
from mirrormax.geometry import Lp, Potential, SquaredLp, check_exponent
from mirrormax.problem import (
    Problem,
    broadcast,
    check_points,
    check_queries,
    check_shapes,
    joined,
    sample_name,
    takes_problem,
)
from mirrormax.svm.dispatch import SOLVERS, Solver, solve_rows
from mirrormax.svm.norms import DUAL, Norm
from mirrormax.svm.rows import Array, Bools, Index
from mirrormax.svm.solution import Solution, device_of

Method = Literal["interior", "active-set", "newton", "working-set", "lagrangian", "extended"]
NormName = Literal["lp", "l1", "linf", "spectral", "nuclear", "rows-max", "rows-sum", "k-support"]


@takes_problem
def att_svm(
    X: Problem | ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor | None = None,
    *,
    keep: ArrayLike | Tensor | None = None,
    rhs: ArrayLike | Tensor | None = None,
    p: ArrayLike | Tensor | Potential | None = None,
    mask: ArrayLike | Tensor | None = None,
    tol: float | None = None,
    C: ArrayLike | Tensor | None = None,
    norm: NormName = "lp",
    k: int | None = None,
    method: Method | None = None,
    throw: bool = True,
) -> Solution:
    """The max-margin attention weights: min ‖W‖_p s.t. (x_{iα_i} − x_{it})ᵀ W z_i ≥ 1 for all i and t ≠ α_i.

    With ``keep`` several tokens O_i share the attention of a sample: with a reference o_i in O_i,

        min ‖W‖_p   s.t.   (x_{io} − x_{it})ᵀ W z_i ≥ 1  for t ∉ O_i,   (x_{io} − x_{it})ᵀ W z_i = 0  for t ∈ O_i,

    and ``rhs`` puts other numbers b_it in the place of the 1s.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are a batch of problems, and broadcast. A
            :class:`~mirrormax.problem.Problem` may take the place of X and z (and alpha, if it has one).
        z: queries ``(..., n, e)``; W is then ``(..., d, e)``. As a rule e = d.
        alpha: the chosen token of each sample, integers ``(..., n)``. Beside ``keep``, the reference token; the first
            kept one if not given (the solution does not depend on it, multipliers and ``rhs`` do).
        keep: booleans ``(..., n, T)``, True for the tokens that share the attention of a sample; at least one each.
        rhs: the right-hand sides b ``(..., n, T)``, positive, zero or negative; one of each problem must be positive.
            What stands at kept or masked tokens is not read.
        p: any number above 1, or an :class:`~mirrormax.geometry.Lp`; or one number per problem of the batch. 2 if not
            given; the other norms have none.
        mask: booleans ``(..., n, T)``, True where a token is present.
        tol: the relative duality gap to reach; by default 1e-9, and 1e-7 for spectral, row and k-support norms.
        C: soft margin; solves min (1/p)‖W‖_p^p + C Σ_{i,t} ξ_it with margins ≥ 1 − ξ_it, ξ ≥ 0, which always has
            a solution. One number, or one per problem. W is then not rescaled.
        norm: ``"lp"``, or one that has no p: ``"l1"``, ``"linf"``, ``"spectral"`` (largest singular value),
            ``"nuclear"`` (their sum, towards which W = K Qᵀ is biased), ``"rows-max"`` and ``"rows-sum"`` (of the
            ℓ2 norms of rows), ``"k-support"``. Solutions in these need not be unique: ``solution.unique`` says so.
        k: of the k-support norm, how many entries its extreme points have.
        method: the solver, ``"interior"``, ``"active-set"``, ``"newton"``, ``"working-set"``, ``"lagrangian"`` or
            ``"extended"``; by default the one that suits the size of the problem. One that does not take the problem
            raises ValueError.
        throw: raise :class:`InfeasibleError` or :class:`NotSolvedError` when a problem fails.

    Numpy arrays and tensors are both taken, the answer comes back in kind, always float64.

    >>> import numpy as np
    >>> X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]])  # Example 1 of the paper
    >>> solution = att_svm(X, X[:, 0], alpha=[0, 0], p=2)
    >>> solution.W.round(5) + 0.0
    array([[ 0.03846,  0.     ],
           [-0.00769,  0.     ]])
    >>> solution.status
    'optimal'
    """
    problem, z_array, kept = _posed(X, z, alpha, keep, mask)
    shape, (T, d), e = broadcast(problem.batch_shape, z_array.shape[:-2]), problem.X.shape[-2:], z_array.shape[-1]
    check_shapes(problem.X, rhs=rhs)
    sides = None if rhs is None else as_array(as_tensor("rhs", rhs).double())
    for name, array in (("keep", kept), ("rhs", sides)):
        shape = shape if array is None else joined(name, array.shape[:-2], shape)
    solver = _solver(method, norm, p, C)
    p = 2 if p is None else p
    other = _norm(norm, k, (d, e))
    usual = 1e-9 if norm in ("lp", "l1", "linf", "nuclear") else 1e-7
    tol = usual if tol is None else number("tol", tol, above=0.0, below=1.0)
    if (kept is not None or sides is not None) and C is not None:
        raise ValueError("keep and rhs are for hard margins, got C (soft margin); leave it out.")
    exponents, penalty = check_exponents(p, shape), None if C is None else _penalty(C, shape)
    tokens, queries, chosen = flat(problem.X, shape, 3), flat(z_array, shape, 2), flat(problem.alpha, shape, 1)
    rivals = np.arange(T - 1) + (np.arange(T - 1) >= chosen[..., None])
    x = np.take_along_axis(tokens, chosen[..., None, None], 2) - np.take_along_axis(tokens, rivals[..., None], 2)

    def of_rivals(array: Any) -> Any:
        return np.take_along_axis(flat(array, shape, 2), rivals, -1)

    above = exists = np.ones(x.shape[:-1], dtype=bool) if problem.mask is None else of_rivals(problem.mask)
    x = np.where(exists[..., None], x, 0.0)
    right, equal = None, None
    if kept is not None or sides is not None:
        equal = exists & (False if kept is None else of_rivals(kept))
        above = exists & ~equal
        right = _right_sides(1.0 if sides is None else of_rivals(sides), above, shape)
    _check_rows(x, queries, above, shape, soft=C is not None, right=right)
    with np.errstate(all="ignore"):
        solved = solve_rows(
            x, queries, exists, exponents, tol, penalty=penalty, norm=other, method=solver, right=right, equal=equal
        )
    about = f"att_svm, {norm} norm" if other is not None else f"att_svm, p={shown(p)}"
    about += "" if C is None else f", C={shown(C)}"
    about += "" if kept is None else ", keep"
    device, proof = device_of(X.X if isinstance(X, Problem) else X, z, alpha, keep), solved.certificate
    proof.weights = proof.weights.reshape(-1, d, e)
    proof.dual, proof.support, proof.doubt = (spread(a, rivals, T) for a in (proof.dual, proof.support, proof.doubt))
    if kept is not None:
        between = spread(equal, rivals, T)
        proof.dual, solved.nu = np.where(between, 0.0, proof.dual), np.where(between, proof.dual, 0.0)
    return solved.solution(shape, "W", about, device, throw)


def lp_svm(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    C: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
    method: Method | None = None,
    throw: bool = True,
) -> Solution:
    """The max-margin classifier without offset: min ‖v‖_p s.t. y_i x_iᵀv ≥ 1 for all i.

    Args:
        X: points ``(..., n, d)``; leading dimensions are a batch of problems, and broadcast.
        y: labels ±1, ``(..., n)``.
        p: as for :func:`att_svm`.
        C: soft margin; solves min (1/p)‖v‖_p^p + C Σ_i ξ_i with margins ≥ 1 − ξ_i, ξ ≥ 0.
        tol: as for :func:`att_svm`.
        method: as for :func:`att_svm`.
        throw: as for :func:`att_svm`.

    >>> round(float(lp_svm([[2.0, 0.0], [0.0, 2.0]], [1, 1], p=2).margin), 6)
    1.414214
    """
    points, labels = as_tensor("X", X), as_tensor("y", y)
    check_points(points, labels)
    shape = broadcast(tuple(points.shape[:-2]), tuple(labels.shape[:-1]))
    solver, tol = _solver(method, "lp", p, C), number("tol", tol, above=0.0, below=1.0)
    exponents, penalty = check_exponents(p, shape), None if C is None else _penalty(C, shape)
    # One sample whose query is the number 1 and whose rivals are the points: W is then the column v.
    signs, features = (flat(as_array(array.double()), shape, own) for array, own in ((labels, 1), (points, 2)))
    x = (signs[..., None] * features)[:, None]
    silent = ~np.any(features, axis=-1)
    if C is None and silent.any():
        raise ValueError(
            f"X is zero at {_first(silent, shape)}, so that no v has a margin there; leave the sample out."
        )
    exists = np.ones(x.shape[:-1], dtype=bool)
    with np.errstate(all="ignore"):
        solved = solve_rows(x, np.ones((len(x), 1, 1)), exists, exponents, tol, penalty=penalty, method=solver)
    about = f"lp_svm, p={shown(p)}" + ("" if C is None else f", C={shown(C)}")
    return solved.solution(shape, "v", about, device_of(X, y), throw)


def _posed(X: Any, z: Any, alpha: Any, keep: Any, mask: Any) -> tuple[Problem, Array, Bools | None]:
    """The problem, checked, its queries, and ``keep`` (..., n, T); queries may have another dimension than the tokens.

    Of a :class:`Problem`, which was checked when it was made, only the chosen tokens are looked at.
    """
    if not isinstance(X, Problem):
        X, z = as_tensor("X", X), as_tensor("z", z)
    kept = None if keep is None else _kept(keep, X.X if isinstance(X, Problem) else X, mask, alpha)
    if alpha is None and kept is None:
        raise ValueError(
            "att_svm needs alpha, the chosen token of each sample, or keep, those that share its attention."
        )
    alpha = alpha if kept is None or alpha is not None else kept.argmax(-1)
    if isinstance(X, Problem):
        own = X.numpy()
        return (own if alpha is X.alpha else own.choosing(alpha)), own.z, kept
    problem = Problem(X=X, alpha=alpha, mask=mask)
    check_queries(problem.X, z, alpha=problem.alpha, mask=problem.mask)
    return problem.numpy(), as_array(z.double()), kept


def _solver(method: object, norm: object, p: object, C: object) -> Solver | None:
    """The solver named, if any; ValueError for a norm that does not exist, or that has no use for p, C or a method."""
    if not isinstance(norm, str) or norm not in ("lp", *DUAL):
        raise ValueError(f"norm must be one of {', '.join(('lp', *DUAL))}, got {norm!r}.")
    if norm != "lp" and p is not None:
        raise ValueError(f'norm="{norm}" has no p, got p={p!r}; leave p out, or use norm="lp".')
    if norm != "lp" and C is not None:
        raise ValueError(f'norm="{norm}" has no soft margin, got C={C!r}; leave C out, or use norm="lp".')
    if method is None:
        return None
    if not isinstance(method, str) or method not in SOLVERS:
        names = ", ".join(f'"{name}"' for name in SOLVERS)
        raise ValueError(f"method must be None or one of {names}, got {method!r}.")
    if C is not None or norm != "lp":
        what = "soft margins have" if C is not None else f'norm="{norm}" has'
        raise ValueError(f"{what} one solver only, got method={method!r}; leave method out.")
    return SOLVERS[method]


def _norm(name: str, k: Any, shape: tuple[int, int]) -> Norm | None:
    """The norm of this name; None for ℓp."""
    if name != "k-support":
        if k is not None:
            raise ValueError(f'k is for norm="k-support", got k={k!r} with norm="{name}"; leave k out.')
        return None if name == "lp" else Norm(name, shape)
    most = shape[0] * shape[1]
    if k is None or not 1 <= integer("k", k, at_least=1) <= most:
        raise ValueError(f'norm="k-support" needs k, from 1 to the {most} entries of W, got k={k!r}.')
    return Norm(name, shape, int(k))


def check_exponents(p: Any, shape: tuple[int, ...]) -> Array:
    """p as (B,): a number, an ℓp potential, or one number per problem."""
    if isinstance(p, Potential):
        if not isinstance(p, (Lp, SquaredLp)):
            raise ValueError(f"p must be a number or an ℓp potential, got {p!r}; the SVM needs a norm, try p=Lp(1.5).")
        p = p.p
    if isinstance(p, Real):
        p = check_exponent(p)
    array = per_problem(p, "p", shape)
    for extreme in (array.min(), array.max()):
        check_exponent(float(extreme))
    return array


def _penalty(C: Any, shape: tuple[int, ...]) -> Array:
    """C as (B,), finite and positive."""
    array = per_problem(C, "C", shape)
    for wrong, said in ((~np.isfinite(array), "C holds {}"), (array <= 0, "C must be greater than 0, got {:g}")):
        if wrong.any():
            raise ValueError(said.format(array[wrong][0]) + "; give a positive number, as C=1.")
    return array


def per_problem(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    """A number, or one per problem, as (B,)."""
    tensor = as_tensor(name, value if isinstance(value, Tensor) or is_array(value) else np.asarray(value))
    if tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold real numbers, got bool; convert it first.")
    if tensor.ndim and tuple(tensor.shape) != shape:
        given = tuple(tensor.shape)
        raise ValueError(f"{name} must be one number or have the shape {shape} of the batch, got {given}.")
    array: Array = as_array(tensor.double())
    return array.reshape(-1) if array.ndim else np.full(math.prod(shape), array)


def _kept(keep: Any, X: Any, mask: Any, alpha: Any) -> Bools:
    """keep as booleans (..., n, T), each sample with at least one, all of them present, alpha among them."""
    check_shapes(X, keep=keep)
    kept: Bools = as_array(as_tensor("keep", keep))
    empty = ~kept.any(-1)
    if empty.any():
        raise ValueError(f"keep leaves no token at {_first(empty)}; keep one at least.")
    if mask is not None:
        absent = (kept & ~np.asarray(as_array(as_tensor("mask", mask)), dtype=bool)).any(-1)
        if absent.any():
            raise ValueError(f"keep has a token at {_first(absent)} that the mask leaves out; drop one of the two.")
    if alpha is not None:
        chosen = np.asarray(as_array(as_tensor("alpha", alpha))).astype(np.intp)[..., None]
        outside = ~(kept & (np.arange(kept.shape[-1]) == chosen)).any(-1)
        if outside.any():
            raise ValueError(f"alpha at {_first(outside)} is not among the tokens that keep has; leave alpha out.")
    return kept


def _first(wrong: Any, shape: tuple[int, ...] | None = None) -> str:
    """The first True of (..., n) in words, or of (B, n) for a batch of this shape."""
    wrong = wrong if shape is None else wrong.reshape(*shape, -1)
    return sample_name(tuple(map(int, np.argwhere(wrong)[0])))


def _right_sides(right: Array | float, above: Bools, shape: tuple[int, ...]) -> Array:
    """Finite right-hand sides (B, n, R), one of each problem positive; zero where no inequality is."""
    right = np.where(above, right, 0.0)
    wrong = ~np.isfinite(right)
    if wrong.any():
        raise ValueError(f"rhs holds {right[wrong][0]} at {_first(wrong.any(-1), shape)}; give finite numbers.")
    idle = above.any((1, 2)) & ~(right > 0).any((1, 2))
    if idle.any():
        where = _in_problem(idle, shape)
        raise ValueError(f"rhs has no positive entry{where}, so that W = 0 would do; ask a margin of one row at least.")
    return right


def _check_rows(x: Array, z: Array, above: Bools, shape: tuple[int, ...], soft: bool, right: Array | None) -> None:
    """Raise for problems without rivals, and, for a hard margin, for rows that are zero whatever W is."""
    empty = ~above.any(axis=(1, 2))
    if empty.any():
        where = _in_problem(empty, shape)
        raise ValueError(
            f"no sample has a second token{where}, so that there is nothing to separate; give T of 2 or more."
        )
    if soft:
        return
    if right is not None:  # a zero row meets a right-hand side that is not positive
        above = above & (right > 0)
    duplicate = (above & ~x.any(axis=-1)).any(axis=-1)
    if duplicate.any():
        raise ValueError(
            f"the token alpha chooses at {_first(duplicate, shape)} occurs twice in its sequence, so that no W can "
            "prefer it; remove or mask the copy."
        )
    silent = above.any(axis=-1) & ~z.any(axis=-1)
    if silent.any():
        raise ValueError(
            f"z is zero at {_first(silent, shape)}, so that no W can prefer a token there; leave the sample out."
        )


def flat(array: Any, shape: tuple[int, ...], own: int) -> Any:
    """The batch of an array as one dimension, in front of the last ``own``."""
    tail = array.shape[array.ndim - own :]
    whole = (*shape, *tail)
    return (array if array.shape == whole else np.broadcast_to(array, whole)).reshape(math.prod(shape), *tail)


def _in_problem(wrong: Any, shape: tuple[int, ...]) -> str:
    """in problem 3, the first True of (B,); nothing where there is one problem only."""
    if not shape:
        return ""
    index = tuple(map(int, np.argwhere(wrong.reshape(shape))[0]))
    return f" in problem {index[0] if len(index) == 1 else index}"


def spread(array: Any, rivals: Index, T: int) -> Any:
    """Entries of the rows, at the places ``rivals`` (..., n, R) of the tokens they speak of, (..., n, T); else zero."""
    whole = np.zeros((*rivals.shape[:-1], T), dtype=array.dtype)
    np.put_along_axis(whole, rivals, array.reshape(rivals.shape), -1)
    return whole


def shown(value: Any) -> str:
    """A number, a potential's p, or the range of several."""
    value = getattr(value, "p", value)
    array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, dtype=np.float64)
    return f"{array.min():g} to {array.max():g}" if array.min() < array.max() else f"{array.min():g}"
