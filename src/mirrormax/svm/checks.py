"""Every refusal of the SVM solvers: one sentence that names the argument, the value and the remedy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mirrormax._arrays import as_array, as_tensor
from mirrormax._checks import number
from mirrormax.geometry import Lp, Potential, SquaredLp, check_exponent
from mirrormax.problem import Problem
from mirrormax.problem import check_points as check_labels
from mirrormax.svm.rows import Array, Index

Bools = npt.NDArray[np.bool_]


@dataclass
class Tokens:
    """Input of :func:`att_svm`, the batch flattened: X (B, n, T, d), z (B, n, d), alpha (B, n), mask (B, n, T)."""

    X: Array
    z: Array
    alpha: Index
    mask: Bools
    leads: Array  # (B, n, T, d)  x_alpha − x_t
    shape: tuple[int, ...]


@dataclass
class Labelled:
    """Checked input of :func:`lp_svm`, the batch flattened: X (B, n, d), y (B, n)."""

    X: Array
    y: Array
    shape: tuple[int, ...]


def check_tokens(X: Any, z: Any, alpha: Any, mask: Any) -> Tokens:
    """The problem as :class:`~mirrormax.problem.Problem` checks it, the batch flattened."""
    problem = Problem(X=X, z=z, alpha=alpha, mask=mask).numpy()
    shape, leads = problem.batch_shape, problem.leads()
    present = np.ones(problem.X.shape[-3:-1], dtype=bool) if problem.mask is None else problem.mask
    return Tokens(
        _flat(problem.X, shape, 3),
        _flat(problem.z, shape, 2),
        _flat(problem.alpha, shape, 1),
        _flat(present, shape, 2),
        _flat(leads, shape, 3),
        shape,
    )


def check_labelled(X: Any, y: Any) -> Labelled:
    """Points and labels, checked in the words of a problem, the batch flattened."""
    tensors = {name: as_tensor(name, value) for name, value in (("X", X), ("y", y))}
    check_labels(**tensors)
    points, labels = (np.asarray(as_array(tensor.double())) for tensor in tensors.values())
    shape = np.broadcast_shapes(points.shape[:-2], labels.shape[:-1])
    return Labelled(_flat(points, shape, 2), _flat(labels, shape, 1), shape)


def check_rows(x: Array, z: Array, exists: Bools, shape: tuple[int, ...], soft: bool) -> None:
    """Refuse problems without rivals, and, for a hard margin, rows that are zero whatever W is."""
    empty = ~exists.any(axis=(1, 2))
    if empty.any():
        member = f" (member {_member(int(np.flatnonzero(empty)[0]), shape)})" if shape else ""
        raise ValueError(
            f"no sample has a second token{member}, so that there is nothing to separate; give T of 2 or more."
        )
    if soft:
        return
    duplicate = exists & ~np.any(x, axis=-1)
    if duplicate.any():
        where = _place(duplicate.any(axis=-1), shape)
        raise ValueError(
            f"the token alpha chooses at {where} occurs twice in its sequence, so that no W can prefer it; "
            "remove or mask the copy."
        )
    silent = exists.any(axis=-1) & ~np.any(z, axis=-1)
    if silent.any():
        raise ValueError(
            f"z is zero at {_place(silent, shape)}, so that no W can prefer a token there; leave the sample out."
        )


def check_range(c: Array, exists: Bools) -> None:
    """Refuse rows whose size c = ‖x_iα − x_it‖‖z_i‖ leaves no room for weights or margins in double precision."""
    small, large = c[exists].min(), c[exists].max()
    if not 1e-280 < small <= large < 1e280:
        raise ValueError(
            f"the constraints have sizes from {small:.0e} to {large:.0e}, beyond what double precision can hold; "
            "bring the data nearer to 1."
        )


def check_points(X: Array, shape: tuple[int, ...]) -> None:
    """Refuse samples at the origin, which no v can put on either side."""
    silent = ~np.any(X, axis=-1)
    if silent.any():
        raise ValueError(
            f"X is zero at {_place(silent, shape)}, so that no v has a margin there; leave the sample out."
        )


def exponents(p: Any, shape: tuple[int, ...]) -> Array:
    """p as (B,): a number, an ℓp potential, or one number a member."""
    if isinstance(p, Potential):
        if not isinstance(p, (Lp, SquaredLp)):
            raise ValueError(f"p must be a number or an ℓp potential, got {p!r}; the SVM needs a norm, try p=Lp(1.5).")
        p = p.p
    if isinstance(p, Real):
        p = check_exponent(p)
    array = real_array(p, "p")
    for extreme in (array.min(), array.max()) if array.size else ():
        check_exponent(float(extreme))
    return per_member(array, "p", shape, above=1.0)


def per_member(value: Any, name: str, shape: tuple[int, ...], above: float) -> Array:
    """A number, or one a member, as (B,), each finite and greater than ``above``."""
    if isinstance(value, bool):
        raise ValueError(f"{name} must be a number greater than {above:g}, got {value!r}.")
    array = real_array(value, name)
    wrong = ~(array > above)
    if wrong.any():
        raise ValueError(
            f"{name} must be greater than {above:g}, got {array[wrong].ravel()[0]:g}; try {name}={above + 0.5:g}."
        )
    if array.ndim and array.shape != shape:
        raise ValueError(f"{name} must be one number or have the shape {shape} of the batch, got {array.shape}.")
    return np.asarray(np.broadcast_to(array, shape).reshape(-1).copy())


def tolerance(tol: Any) -> float:
    """tol as a float in (0, 1)."""
    try:
        return number("tol", tol, above=0.0, below=1.0)
    except (TypeError, ValueError) as error:
        raise ValueError(f"tol must be a number between 0 and 1, got {tol!r}; the default is 1e-9.") from error


def norm_name(norm: Any, p: Any, C: Any) -> str:
    """norm as "lp" or "nuclear", and nothing given that it has no use for."""
    if not isinstance(norm, str) or norm not in ("lp", "nuclear"):
        raise ValueError(f'norm must be "lp" or "nuclear", got {norm!r}.')
    if norm == "nuclear" and not (isinstance(p, Real) and p == 2):
        raise ValueError(f'norm="nuclear" has no p, got p={p!r}; leave p out, or use norm="lp".')
    if norm == "nuclear" and C is not None:
        raise ValueError(f'norm="nuclear" has no soft margin, got C={C!r}; leave C out, or use norm="lp".')
    return str(norm)


def real_array(value: Any, name: str, finite: bool = True) -> Array:
    """A float64 array of real numbers, each of them finite unless the caller looks at that."""
    array = _array(value, name)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}; convert it to float64 first.")
    array = array.astype(np.float64)
    if finite:
        _require_finite(array, name)
    return array


def _require_finite(array: Array, name: str) -> None:
    if not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].ravel()[0]
        where = "" if array.ndim == 0 else f" at {tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])}"
        raise ValueError(f"{name} holds {bad}{where}; every number must be finite.")


def _array(value: Any, name: str) -> npt.NDArray[Any]:
    """``value`` as a numpy array of its own type."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise ValueError(f"{name} is a tensor with layout {value.layout}; convert it with .to_dense() first.")
        value = value.detach().cpu().resolve_conj().resolve_neg()
        return np.asarray((value.double() if value.is_floating_point() else value).numpy())
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not a rectangular array of numbers; give every row the same length.") from error


def _flat(array: Any, shape: tuple[int, ...], own: int) -> Any:
    tail = array.shape[array.ndim - own :]
    return np.broadcast_to(array, (*shape, *tail)).reshape(math.prod(shape), *tail)


def _place(wrong: Bools, shape: tuple[int, ...]) -> str:
    """The first True of (B, n) in words."""
    member, sample = (int(k) for k in np.argwhere(wrong)[0])
    return f"sample {sample} of member {_member(member, shape)}" if shape else f"sample {sample}"


def _member(flat: int, shape: tuple[int, ...]) -> str:
    index = tuple(int(k) for k in np.unravel_index(flat, shape))
    return str(index[0] if len(index) == 1 else index)
