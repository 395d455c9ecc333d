"""The token-selection problem, and the one place where it is checked.

    X (..., n, T, d)  tokens          y (..., n)     labels ±1         v (..., d)  readout
    z (..., n, d)     queries         alpha (..., n) chosen tokens     W (..., d, d), or K, Q (..., d, m)
    mask (..., n, T)  True where a token is present; what stands elsewhere in X is never read

Leading dimensions are a batch and broadcast. Functions of a problem take a :class:`Problem` or its arrays, always
in the order X, y, z, v, W, alpha, leaving out what they have no use for; all else is given by name. Every error is
one sentence that names the argument, what was found in it, and what to do: TypeError for types, ValueError for shapes
and values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, Protocol, cast, overload

import numpy as np
import torch
from torch import Tensor

from mirrormax._arrays import A, InKind, P, R, R_co, as_array, as_tensor, dtype_name, in_kind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

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
CLASS_SHAPES = {**SHAPES, "V": "Cd", "outputs": "nC", "offset": "nC", "keep": "nT"}  # y in 0, …, C − 1
HEAD_SHAPES = {**SHAPES, "V": "HCd", "W": "Hdd"}
BOOLEAN = ("mask", "support", "keep")
NUMBERS = ("X", "y", "z", "v")
FIELDS = (*NUMBERS, "alpha", "mask")


@dataclass(frozen=True, eq=False, init=False)
class Problem(Generic[A]):
    """One token-selection problem or a batch of them, checked when it is made; shapes as above.

    Only X is always needed: a function that needs what a problem does not have says so. Arrays of numpy (and
    lists) become float64, tensors keep their device and take one floating type; one tensor among them makes all of
    them tensors. What X holds where the mask leaves a token out is set to zero.

    >>> problem = Problem(X=[[[5.0, 0.0], [0.0, 1.0]]], y=[1], z=[[5.0, 0.0]], v=[1.0, 0.0])
    >>> problem.best_tokens(), problem.leads([0])
    (array([0]), array([[[ 0.,  0.],
            [ 5., -1.]]]))
    """

    X: A
    y: A | Any  # None where it was not given, as all that follow
    z: A | Any
    v: A | Any
    alpha: A | Any
    mask: A | Any

    @overload
    def __init__(
        self: Problem[Tensor],
        X: Tensor,
        y: ArrayLike | Tensor | None = None,
        z: ArrayLike | Tensor | None = None,
        v: ArrayLike | Tensor | None = None,
        alpha: ArrayLike | Tensor | None = None,
        mask: ArrayLike | Tensor | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Problem[NDArray[Any]],
        X: ArrayLike,
        y: ArrayLike | None = None,
        z: ArrayLike | None = None,
        v: ArrayLike | None = None,
        alpha: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> None: ...
    def __init__(
        self,
        X: ArrayLike | Tensor,
        y: ArrayLike | Tensor | None = None,
        z: ArrayLike | Tensor | None = None,
        v: ArrayLike | Tensor | None = None,
        alpha: ArrayLike | Tensor | None = None,
        mask: ArrayLike | Tensor | None = None,
    ) -> None:
        given = {"X": X, "y": y, "z": z, "v": v, "alpha": alpha, "mask": mask}
        device = next((value.device for value in given.values() if isinstance(value, Tensor)), None)
        tensors = {name: as_tensor(name, a) for name, a in given.items() if a is not None or name == "X"}
        if device is not None:
            tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        check(**tensors)
        tensors["X"] = blank_padding(tensors["X"], tensors.get("mask"))
        if "alpha" in tensors:
            tensors["alpha"] = tensors["alpha"].long()
        present = [name for name in NUMBERS if name in tensors]
        if device is not None:
            tensors.update(zip(present, common_type(*(tensors[name] for name in present)), strict=True))
        for name in FIELDS:
            tensor = tensors.get(name)
            if tensor is not None and device is None:
                # A copy, so that nobody changes what was checked.
                array = np.array(as_array(tensor.double() if name in present else tensor))
                object.__setattr__(self, name, array)
            else:
                object.__setattr__(self, name, tensor)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape (...) of the batch; () for one problem."""
        arrays = self._arrays()
        return broadcast(*(tuple(a.shape[: a.ndim - len(SHAPES[name])]) for name, a in arrays.items()))

    def scores(self) -> A:
        """Token scores γ_it = y_i vᵀx_it, (..., n, T); −inf where the mask leaves a token out."""
        return self._answer(token_scores, "X", "y", "v", "mask")

    def best_tokens(self) -> A:
        """The token of each sample with the highest score, (..., n); a tie raises ValueError, naming the sample."""
        return self._answer(_best_tokens, "X", "y", "v", "mask")

    def leads(self, alpha: ArrayLike | Tensor | None = None) -> A:
        """x_iα − x_it, (..., n, T, d): zero at alpha (that of the problem if not given), x_iα at padding."""
        chosen = self.require("alpha") if alpha is None else alpha
        return cast("A", in_kind(_leads)(self.X, chosen, self.mask))

    def logits(self, W: ArrayLike | Tensor) -> A:
        """X_i W z_i, (..., n, T); −inf where the mask leaves a token out."""
        return cast("A", in_kind(_logits)(self.X, self.require("z"), W, self.mask))

    def require(self, name: str, function: str = "this") -> A:
        """A field that is there, or a ValueError that says who needs it."""
        value: A | None = getattr(self, name)
        if value is None:
            remedy = "give alpha, for example problem.best_tokens()" if name == "alpha" else f"make it with {name}="
            raise ValueError(f"{function} needs {name}, which the problem does not have; {remedy}.")
        return value

    def numpy(self) -> Problem[NDArray[Any]]:
        """The same problem in arrays of numpy, float64."""
        if not isinstance(self.X, Tensor):
            return cast("Problem[NDArray[Any]]", self)
        return cast("Problem[NDArray[Any]]", self._with({n: as_array(a).copy() for n, a in self._arrays().items()}))

    def tensors(self) -> Problem[Tensor]:
        """The same problem in tensors, float64."""
        given = {name: as_tensor(name, a) for name, a in self._arrays().items()}
        same = self._with({name: t.double() if name in NUMBERS else t for name, t in given.items()})
        return cast("Problem[Tensor]", same)

    def choosing(self, alpha: ArrayLike | Tensor) -> Problem[A]:
        """The same problem with these tokens chosen, which alone are checked."""
        X, mask = as_tensor("X", self.X), None if self.mask is None else as_tensor("mask", self.mask)
        chosen = as_tensor("alpha", alpha).to(X.device)
        _check_fit({"X": X, "alpha": chosen}, SHAPES)
        _check_alpha(chosen, X.shape[-2], mask)
        chosen = chosen.long()
        return self._with({**self._arrays(), "alpha": chosen if isinstance(self.X, Tensor) else as_array(chosen)})

    def _with(self, fields: Mapping[str, Any]) -> Problem[A]:
        """A problem of arrays that need no check."""
        other: Problem[A] = object.__new__(type(self))
        for name in FIELDS:
            object.__setattr__(other, name, fields.get(name))
        return other

    def _arrays(self) -> dict[str, Any]:
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def _answer(self, function: Callable[..., Tensor], *names: str) -> A:
        given = (self.mask if name == "mask" else self.require(name) for name in names)
        return cast("A", in_kind(function)(*given))


class OfArrays(Protocol[P, R_co]):
    """A function of the arrays of a problem; a :class:`Problem` may take their place."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, problem: Problem, /, *args: object, **kwargs: object) -> R_co: ...


class OfProblem(Protocol[P, R_co]):
    """A function of a :class:`Problem`; its arrays may take its place."""

    @overload
    def __call__(self, problem: Problem, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: object, **kwargs: object) -> R_co: ...


@overload
def takes_problem(function: InKind[P, R]) -> InKind[P, R]: ...
@overload
def takes_problem(function: Callable[P, R]) -> OfArrays[P, R]: ...
def takes_problem(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of the arrays of a problem take a :class:`Problem` in their place.

    ``f(X, z, W, *, mask)`` is then also ``f(problem, W)``: what the function asks for by the names of the fields comes
    from the problem, alpha too unless it is given. Where n = d, z and W have one shape, and which is which cannot be
    seen: then W must be given by name. Before a function of tensors, ``in_kind`` comes first. Where the annotation of X
    has ``Problem`` in it the problem comes whole, as X, and is not checked again.
    """
    name = function.__name__
    parameters = inspect.signature(function).parameters
    whole = "Problem" in str(parameters["X"].annotation)
    positional = [key for key, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    rest = [key for key in positional if key not in NUMBERS]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Problem):
            _refuse_ambiguous_weights(dict(zip(positional, args, strict=False)))
            return function(*args, **kwargs)
        problem, *others = args
        if len(others) > len(rest):
            takes = f"at most {len(rest)}: {', '.join(rest)}" if rest else "none"
            raise TypeError(f"{name} got {len(others)} arguments by position beside the problem; it takes {takes}.")
        given = {**dict(zip(rest, others, strict=False)), **kwargs}
        as_it_is = whole and not any(field in given for field in FIELDS if field != "alpha")
        for field in FIELDS:
            if field not in parameters or (field == "alpha" and given.get("alpha") is not None):
                continue
            value = getattr(problem, field)
            if field in given and field != "alpha" and value is not None:
                raise TypeError(f"{name} got {field} twice, in the problem and by name; leave one of them out.")
            if value is None and given.get(field) is None:
                if parameters[field].default is inspect.Parameter.empty:
                    problem.require(field, name)
                continue
            given[field] = given.get(field) if value is None else value
        return function(**({**given, "X": problem} if as_it_is else given))

    return wrapper


def gathers_problem(*fields: str) -> Callable[[Callable[Concatenate[Problem, P], R]], OfProblem[P, R]]:
    """Let a function whose first argument is a :class:`Problem` take the arrays ``fields`` (and ``mask=``) instead.

    ``f(problem, alpha, *, p)`` is then also ``f(X, y, z, v, alpha, p=2)``.
    """

    def decorate(function: Callable[Concatenate[Problem, P], R]) -> OfProblem[P, R]:
        name = function.__name__

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if "problem" in kwargs:
                args = (kwargs.pop("problem"), *args)
            if args and isinstance(args[0], Problem):
                for field in fields:
                    args[0].require(field, name)
                return function(*args, **kwargs)
            arrays = dict(zip(fields, args, strict=False))
            arrays |= {key: kwargs.pop(key) for key in (*fields, "mask") if key in kwargs}
            missing = [field for field in fields if field not in arrays]
            if missing:
                raise TypeError(f"{name} needs a Problem, or {', '.join(fields)}; {missing[0]} is missing.")
            return function(Problem(**arrays), *args[len(fields) :], **kwargs)

        return cast("OfProblem[P, R]", wrapper)

    return decorate


def _refuse_ambiguous_weights(given: Mapping[str, Any]) -> None:
    if "z" not in given or given.get("W") is None:
        return
    try:
        shape: tuple[int, ...] = np.shape(given["X"])
    except ValueError:  # ragged lists, which the check names
        return
    if len(shape) >= 3 and shape[-3] == shape[-1]:
        raise ValueError(
            f"X has n = d = {shape[-1]}, so that z and W have one shape and may have been swapped; give W by name, "
            "W=..., or pass a Problem."
        )


def check(X: object, **arguments: object) -> None:
    """Raise for tensors that make no problem: wrong types, shapes that do not fit, impossible values.

    ``arguments`` are any of ``y, z, v, W, K, Q, alpha, mask, support``; one that is None is not looked at. The values
    are read, which on an accelerator waits for them; :func:`check_shapes` reads none.
    """
    check_shapes(X, **arguments)
    _check_values({"X": X, **arguments})


def check_shapes(X: object, **arguments: object) -> None:
    """The part of :func:`check` that looks at types and shapes only."""
    _check_fit({"X": X, **arguments}, SHAPES)


def check_classes(X: object, *, heads: bool = False, **arguments: object) -> None:
    """:func:`check` for labels 0, …, C − 1 and V (..., C, d); with ``heads`` V (..., H, C, d) and W (..., H, d, d)."""
    given: dict[str, Any] = {"X": X, **arguments}
    _check_fit(given, HEAD_SHAPES if heads else CLASS_SHAPES)
    classes = given["V"].shape[-2]
    if classes < 2:
        raise ValueError(
            f"V must have a row for each of at least two classes, got the shape {tuple(given['V'].shape)}."
        )
    _check_values({name: value for name, value in given.items() if name != "y"})
    y = given.get("y")
    if y is not None:
        bad = (y < 0) | (y >= classes) | (y != y.floor() if y.is_floating_point() else False)
        if bad.any():
            index = _first(bad)
            raise ValueError(
                f"y must hold the classes 0 to {classes - 1}, one for each row of V, got {y[index].item():g} at index "
                f"{index}; number yours from 0."
            )


def check_points(X: object, y: object) -> None:
    """The same of labelled points, X (..., n, d) and y (..., n)."""
    _check_fit({"X": X, "y": y}, {"X": "nd", "y": "n"})
    _check_values({"X": X, "y": y})


def _check_values(given: Mapping[str, Any]) -> None:
    mask = given.get("mask")
    if mask is not None and not mask.any(-1).all():
        sample = sample_name(_first(~mask.any(-1)))
        raise ValueError(f"mask leaves {sample} without a token; drop the sample, or keep at least one token of it.")
    for name, value in given.items():
        if value is None or name in BOOLEAN:
            continue
        if name == "alpha":
            _check_alpha(value, given["X"].shape[-2], mask)
        elif name == "y":
            _check_labels(value)
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
        leading = tuple(tensor.shape[: tensor.ndim - len(letters)])
        try:
            batch = broadcast(batch, leading)
        except RuntimeError:
            raise ValueError(
                f"{name} has the batch dimensions {leading}, which do not broadcast with {batch} of the other "
                "arguments; make them equal, or 1."
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
    if len(set(shapes)) == 1:  # nearly always, and torch is slow here
        return shapes[0]
    return tuple(torch.broadcast_shapes(*shapes))


def sample_name(index: tuple[int, ...]) -> str:
    """An index into (..., n) in words: ``sample 3``, or ``sample 3 of problem 7``, or ``of problem (0, 7)``."""
    *problem, sample = index
    if not problem:
        return f"sample {sample}"
    return f"sample {sample} of problem {problem[0] if len(problem) == 1 else tuple(problem)}"


class Relative(NamedTuple):
    """The tokens of every sequence as seen from the chosen one, the form in which equal tokens differ by zero."""

    chosen: Tensor  # (..., n, d)     x_α
    offsets: Tensor  # (..., n, T, d)  x_t − x_α, zero at α, finite at padding
    others: Tensor  # (..., n, T)     True where t ≠ α and the token is present


def relative_to(X: Tensor, alpha: Tensor, mask: Tensor | None = None) -> Relative:
    """Tokens X (..., n, T, d) relative to alpha (..., n), for tensors checked before, with blank padding."""
    n, T, d = X.shape[-3:]
    batch = broadcast(X.shape[:-3], alpha.shape[:-1])
    X, alpha = X.expand(*batch, n, T, d), alpha.expand(*batch, n).long()
    chosen = X.take_along_dim(alpha[..., None, None], -2)
    others = torch.arange(T, device=X.device) != alpha.unsqueeze(-1)
    if mask is not None:
        others = others & mask
    return Relative(chosen.squeeze(-2), X - chosen, others)


def masked_logits(X: Tensor, z: Tensor, W: Tensor, mask: Tensor | None = None) -> Tensor:
    """X_i W z_i, (..., n, T), of tensors of one type that were checked before; −inf outside the mask."""
    h = (X @ (z @ W.mT).unsqueeze(-1)).squeeze(-1)
    return h if mask is None else h.masked_fill(~mask, -torch.inf)


def values(X: Tensor, v: Tensor) -> Tensor:
    """vᵀ x_it, of shape (..., n, T)."""
    return (X @ v[..., None, :, None]).squeeze(-1)


def token_scores(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """γ_it = y_i vᵀx_it, of shape (..., n, T), of tensors that were checked before; −inf outside the mask."""
    X, y, v = common_type(X, y, v)
    scores = y.unsqueeze(-1) * values(blank_padding(X, mask), v)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def score_rounding(X: Tensor, v: Tensor) -> Tensor:
    """4 d ε max_t Σ_j |v_j x_tj|, of shape (..., n, 1): scores that differ by less are called equal."""
    return 4 * X.shape[-1] * torch.finfo(X.dtype).eps * values(X.abs(), v.abs()).amax(-1, keepdim=True)


def highest_scores(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """True at the tokens whose score rounding cannot tell from the highest of their sample, (..., n, T)."""
    scores = token_scores(X, y, v, mask)
    rounding = score_rounding(blank_padding(X, mask).to(scores.dtype), v.to(scores.dtype))
    return scores >= scores.amax(-1, keepdim=True) - rounding


def first_true(flags: Tensor) -> Tensor:
    """The index of the first True along the last dimension (argmax may return any of several)."""
    T = flags.shape[-1]
    return torch.where(flags, torch.arange(T, device=flags.device), T).amin(-1)


def _best_tokens(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    best = highest_scores(X, y, v, mask)
    tied = best.sum(-1) > 1
    if tied.any():
        raise ValueError(f"{sample_name(_first(tied))} has more than one token with the highest score; give alpha.")
    return first_true(best)


def _leads(X: Tensor, alpha: Tensor, mask: Tensor | None) -> Tensor:
    check(X, alpha=alpha, mask=mask)
    return 0.0 - relative_to(blank_padding(X, mask), alpha).offsets


def _logits(X: Tensor, z: Tensor, W: Tensor, mask: Tensor | None) -> Tensor:
    check(X, z=z, W=W, mask=mask)
    X, z, W = common_type(X, z, W)
    return masked_logits(blank_padding(X, mask), z, W, mask)


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
