"""What a token-selection problem must look like, and the refusal of what does not.

    X (..., n, T, d)  tokens          y (..., n)     labels ±1         v (..., d)  head
    z (..., n, d)     queries         alpha (..., n) chosen tokens     W (..., d, d), or K, Q (..., d, m)
    mask (..., n, T)  True where a token is present; what stands elsewhere in X is never read

Leading dimensions are a batch and broadcast. Every refusal is one sentence that names the argument,
what was found in it, and what to do.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

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
}
BOOLEAN = ("mask", "support")


def check_problem(X: Any, *, mask: Any = None, **arguments: Any) -> None:
    """Refuse tensors that make no problem: wrong types, shapes that do not fit, impossible values.

    ``arguments`` are any of ``y, z, v, W, K, Q, alpha, support``; one that is None is not looked at.
    The values are read, which on an accelerator waits for them; :func:`check_shapes` reads none.
    """
    check_shapes(X, mask=mask, **arguments)
    if mask is not None and not mask.any(-1).all():
        sample = sample_name(_first(~mask.any(-1)))
        raise ValueError(f"mask leaves {sample} without a token; drop the sample, or keep at least one token of it.")
    for name, value in {"X": X, **arguments}.items():
        if value is None or name in BOOLEAN:
            continue
        if name == "alpha":
            _check_alpha(value, X.shape[-2], mask)
        elif name == "y":
            _check_labels(value)
        else:
            _check_finite(name, value, mask if name == "X" else None)


def check_shapes(X: Any, *, mask: Any = None, **arguments: Any) -> None:
    """The part of :func:`check_problem` that looks at types and shapes only."""
    sizes: dict[str, int] = {}
    batch: tuple[int, ...] = ()
    for name, value in {"X": X, "mask": mask, **arguments}.items():
        if name not in SHAPES:
            raise TypeError(f"a problem has no argument {name!r}; it has {', '.join(SHAPES)}.")
        if value is None and name != "X":
            continue
        _check_type(name, value)
        letters = SHAPES[name]
        _check_core_shape(name, value, letters, sizes, X)
        try:
            batch = broadcast(batch, value.shape[: value.ndim - len(letters)])
        except RuntimeError:
            raise ValueError(
                f"{name} has the batch dimensions {tuple(value.shape[: value.ndim - len(letters)])}, which do not "
                f"broadcast with {batch} of the other arguments; make them equal, or 1."
            ) from None


def common_type(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the one floating type that holds them all, at least float32.

    Integers take the type of the others; if there are only integers that is float64.
    """
    floating = [t.dtype for t in tensors if t.is_floating_point()]
    dtype = functools.reduce(torch.promote_types, floating, torch.float32) if floating else torch.float64
    return [t.to(dtype) for t in tensors]


def blank_padding(X: Tensor, mask: Tensor | None) -> Tensor:
    """X with zeros for the tokens that are not there, so that nothing they held can spread."""
    return X if mask is None else torch.where(mask.unsqueeze(-1), X, 0)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which all of them broadcast."""
    return tuple(torch.broadcast_shapes(*shapes))


def sample_name(index: tuple[int, ...]) -> str:
    """An index into (..., n) in words: ``sample 3``, or ``sample 3 of problem (0, 7)``."""
    *problem, sample = index
    return f"sample {sample} of problem {tuple(problem)}" if problem else f"sample {sample}"


def _check_type(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        shown = f"{value!r} ({kind})" if isinstance(value, (str, int, float)) else f"{kind}; convert it first"
        raise TypeError(f"{name} must be a tensor of numbers, got {shown}.")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {value.layout}; call {name}.to_dense().")
    if name in BOOLEAN:
        if value.dtype != torch.bool:
            raise TypeError(f"{name} must be boolean, got {value.dtype}; write {name} != 0 if nonzero means True.")
    elif value.dtype == torch.bool or value.is_complex():
        remedy = "use 2 * y - 1 with integers" if name == "y" else "convert it first"
        raise TypeError(f"{name} must hold real numbers, got {value.dtype}; {remedy}.")
    if name == "alpha" and value.is_floating_point():
        raise TypeError(f"alpha must hold integer token indices, got {value.dtype}; convert it to integers first.")


def _check_core_shape(name: str, value: Tensor, letters: str, sizes: dict[str, int], X: Tensor) -> None:
    """Refuse trailing dimensions that contradict ``sizes``, and record in it those seen for the first time."""
    shape = tuple(value.shape[max(0, value.ndim - len(letters)) :])
    if len(shape) < len(letters):
        remedy = "; add the dimension of samples with X[None]" if name == "X" and len(shape) == 2 else ""
        raise ValueError(
            f"{name} must have the shape (..., {', '.join(letters)}), got {tuple(value.shape)}, "
            f"which has too few dimensions{remedy}."
        )
    if 0 in shape:
        raise ValueError(f"{name} must not be empty, got the shape {tuple(value.shape)}; give at least one entry.")
    wanted = tuple(sizes.get(letter, size) for letter, size in zip(letters, shape, strict=True))
    if shape != wanted:
        meaning = f"(..., {', '.join(letters)}) = (..., {', '.join(map(str, wanted))})"
        raise ValueError(
            f"{name} must have the shape {meaning} to go with X of shape {tuple(X.shape)}, got {tuple(value.shape)}."
        )
    sizes.update(zip(letters, shape, strict=True))


def _check_finite(name: str, value: Tensor, mask: Tensor | None) -> None:
    bad = ~torch.isfinite(value)
    if mask is not None:
        bad = bad & mask.unsqueeze(-1)
    if bad.any():
        index = _first(bad)
        entry = value.broadcast_to(bad.shape)[index].item()
        raise ValueError(f"{name} holds {entry} at index {index}; every entry must be finite, so mend or drop it.")


def _check_labels(y: Tensor) -> None:
    bad = (y != 1) & (y != -1)
    if bad.any():
        index = _first(bad)
        raise ValueError(
            f"y must hold the labels +1 and -1, got {y[index].item():g} at index {index}; "
            "use 2 * y - 1 if yours are 0 and 1."
        )


def _check_alpha(alpha: Tensor, T: int, mask: Tensor | None) -> None:
    outside = (alpha < 0) | (alpha >= T)
    if outside.any():
        index = _first(outside)
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
        index = _first(absent)
        raise ValueError(
            f"alpha chooses token {int(chosen[index])} in {sample_name(index)}, which the mask leaves out; "
            "choose a token that is present."
        )


def _first(bad: Tensor) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(bad.nonzero()[0].tolist())
