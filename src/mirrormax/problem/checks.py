"""The one place where a problem is checked.

Every error is one sentence that names the argument, what was found in it, and what to do: TypeError for types,
ValueError for shapes and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mirrormax._arrays import as_tensor, dtype_name

SHAPES = {
    "X": "nTd",
    "y": "n",
    "z": "nd",
    "v": "d",
    "W": "dd",
    "K": "dm",
    "Q": "dm",
    "alpha": "n",
    "mask": "nT",
    "support": "nT",
    "keep": "nT",
    "rhs": "nT",
}
CLASS_SHAPES = {**SHAPES, "V": "Cd", "outputs": "nC", "offset": "nC"}  # y in 0, …, C − 1
HEAD_SHAPES = {**SHAPES, "V": "HCd", "W": "Hdd", "K": "Hdm", "Q": "Hdm"}
BOOLEAN = ("mask", "support", "keep")


def check(X: object, **arguments: object) -> None:
    """Raise for tensors that make no problem: wrong types, shapes that do not fit, impossible values.

    ``arguments`` are any of ``y, z, v, W, K, Q, alpha, mask, support, keep, rhs``; one that is None is not looked at.
    The values are read, which on an accelerator waits for them; :func:`check_shapes` reads none.
    """
    _check({"X": X, **arguments}, SHAPES)


def check_shapes(X: object, **arguments: object) -> None:
    """The part of :func:`check` that looks at types and shapes only."""
    _check_fit({"X": X, **arguments}, SHAPES)


def check_classes(X: object, *, V: Any, heads: bool = False, **arguments: object) -> None:
    """:func:`check` for labels 0, …, C − 1 and V (..., C, d); with ``heads`` V (..., H, C, d) and W (..., H, d, d)."""
    _check({"X": X, "V": V, **arguments}, HEAD_SHAPES if heads else CLASS_SHAPES)


def check_queries(X: object, z: object, **arguments: object) -> None:
    """The same for queries (..., n, e), which may have another dimension than the tokens."""
    _check({"X": X, "z": z, **arguments}, {**SHAPES, "z": "ne"})


def check_points(X: object, y: object) -> None:
    """The same of labelled points, X (..., n, d) and y (..., n)."""
    _check({"X": X, "y": y}, {"X": "nd", "y": "n"})


def _check(given: Mapping[str, Any], shapes: Mapping[str, str]) -> None:
    _check_fit(given, shapes)
    mask, V = given.get("mask"), given.get("V")
    if mask is not None and not mask.any(-1).all():
        sample = sample_name(first_index(~mask.any(-1)))
        raise ValueError(f"mask leaves {sample} without a token; drop the sample, or keep at least one token of it.")
    if V is not None and V.shape[-2] < 2:
        raise ValueError(f"V must have a row for each of at least two classes, got the shape {tuple(V.shape)}.")
    for name, value in given.items():
        if value is None or name in BOOLEAN:
            continue
        if name == "alpha":
            check_alpha(value, given["X"].shape[-2], mask)
        elif name == "y":
            _check_labels(value, None if V is None else V.shape[-2])
        else:
            _check_finite(name, value, mask if name == "X" else None)


def _check_fit(given: Mapping[str, Any], shapes: Mapping[str, str]) -> None:
    sizes: dict[str, int] = {}
    batch: tuple[int, ...] = ()
    for name, value in given.items():
        if name not in shapes:
            raise TypeError(f"a problem has no argument {name!r}; it has {', '.join(shapes)}.")
        if value is None and name != "X":
            continue
        tensor = _check_type(name, value)
        letters = shapes[name]
        _check_core_shape(name, tensor, letters, sizes)
        batch = joined(name, tuple(tensor.shape[: tensor.ndim - len(letters)]), batch)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which all of them broadcast."""
    if len(set(shapes)) == 1:  # nearly always, and torch is slow here
        return shapes[0]
    return tuple(torch.broadcast_shapes(*shapes))


def joined(name: str, leading: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which the batch dimensions of an argument broadcast with those of the others."""
    try:
        return broadcast(batch, leading)
    except RuntimeError:
        raise ValueError(
            f"{name} has the batch dimensions {leading}, which do not broadcast with {batch} of the other "
            "arguments; make them equal, or 1."
        ) from None


def sample_name(index: tuple[int, ...]) -> str:
    """An index into (..., n) in words: ``sample 3``, or ``sample 3 of problem 7``, or ``of problem (0, 7)``."""
    *problem, sample = index
    if not problem:
        return f"sample {sample}"
    return f"sample {sample} of problem {problem[0] if len(problem) == 1 else tuple(problem)}"


def _check_type(name: str, value: object) -> Tensor:
    tensor = as_tensor(name, value)
    if name in BOOLEAN:
        if tensor.dtype != torch.bool:
            raise TypeError(
                f"{name} must be boolean, got {dtype_name(tensor)}; write {name} != 0 if nonzero means True."
            )
    elif name == "alpha":
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise TypeError(
                f"alpha must hold integers, the indices of tokens, got {dtype_name(tensor)}; convert it first."
            )
    elif tensor.dtype == torch.bool:
        remedy = "use 2 * y - 1 with integers" if name == "y" else "convert it first"
        raise TypeError(f"{name} must hold real numbers, got bool; {remedy}.")
    return tensor


def _check_core_shape(name: str, value: Tensor, letters: str, sizes: dict[str, int]) -> None:
    """Refuse trailing dimensions that contradict ``sizes``, and record in it those seen for the first time."""
    shape = tuple(value.shape[max(0, value.ndim - len(letters)) :])
    meaning = f"(..., {', '.join(letters)})"
    if len(shape) < len(letters):
        remedy = "; add the dimension of samples with X[None]" if name == "X" and len(shape) == 2 else ""
        raise ValueError(
            f"{name} must have the shape {meaning}, got {tuple(value.shape)}, which has too few dimensions{remedy}."
        )
    if 0 in value.shape:
        raise ValueError(f"{name} must not be empty, got the shape {tuple(value.shape)}; give at least one entry.")
    wanted = tuple(sizes.get(letter, size) for letter, size in zip(letters, shape, strict=True))
    if shape != wanted:
        raise ValueError(
            f"{name} must have the shape {meaning} = (..., {', '.join(map(str, wanted))}) to go with X, got "
            f"{tuple(value.shape)}."
        )
    sizes.update(zip(letters, shape, strict=True))


def _check_finite(name: str, value: Tensor, mask: Tensor | None) -> None:
    bad = ~torch.isfinite(value)
    if mask is not None:
        bad = bad & mask.unsqueeze(-1)
    if bad.any():
        index = first_index(bad)
        entry = value.broadcast_to(bad.shape)[index].item()
        raise ValueError(f"{name} holds {entry} at index {index}; every entry must be finite, so mend or drop it.")


def _check_labels(y: Tensor, classes: int | None) -> None:
    """±1, or 0 to ``classes`` − 1."""
    bad = (y != 1) & (y != -1) if classes is None else (y < 0) | (y >= classes) | (y != y.double().floor())
    if bad.any():
        index = first_index(bad)
        found = f"got {y[index].item():g} at index {index}"
        if classes is None:
            raise ValueError(f"y must hold the labels +1 and -1, {found}; use 2 * y - 1 if yours are 0 and 1.")
        raise ValueError(
            f"y must hold the classes 0 to {classes - 1}, one for each row of V, {found}; number yours from 0."
        )


def check_alpha(alpha: Tensor, T: int, mask: Tensor | None) -> None:
    outside = (alpha < 0) | (alpha >= T)
    if outside.any():
        index = first_index(outside)
        raise ValueError(
            f"alpha chooses token {int(alpha[index])} in {sample_name(index)}, but tokens are numbered 0 to {T - 1}; "
            "choose one of these."
        )
    if mask is None:
        return
    batch = broadcast(alpha.shape, mask.shape[:-1])
    chosen = alpha.broadcast_to(batch).long()
    absent = ~mask.broadcast_to(*batch, T).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    if absent.any():
        index = first_index(absent)
        raise ValueError(
            f"alpha chooses token {int(chosen[index])} in {sample_name(index)}, which the mask leaves out; "
            "choose a token that is present."
        )


def first_index(bad: Tensor) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(bad.nonzero()[0].tolist())
