"""A token-selection problem as one object, and functions that take it or its arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import numpy as np
from torch import Tensor

from mirrormax._arrays import A, InKind, P, R, as_array, as_tensor, in_kind, is_array
from mirrormax._checks import described
from mirrormax.problem.checks import SHAPES, broadcast, check, check_alpha, check_shapes, first_index, sample_name
from mirrormax.problem.tokens import (
    blank_padding,
    common_type,
    first_true,
    highest_scores,
    masked_logits,
    relative_to,
    token_scores,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

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

    def __init__(
        self,
        X: A | ArrayLike,
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
        numbers = {name: tensor for name, tensor in tensors.items() if name in NUMBERS}
        if device is not None:
            self._set(tensors | dict(zip(numbers, common_type(*numbers.values()), strict=True)))
        else:  # copies, so that nobody changes what was checked
            tensors |= {name: tensor.double() for name, tensor in numbers.items()}
            self._set({name: np.array(as_array(tensor)) for name, tensor in tensors.items()})

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape (...) of the batch; () for one problem."""
        arrays = self._arrays()
        return broadcast(*(tuple(a.shape[: a.ndim - len(SHAPES[name])]) for name, a in arrays.items()))

    def scores(self) -> A:
        """Token scores γ_it = y_i vᵀx_it, (..., n, T); −inf where the mask leaves a token out."""
        return cast("A", in_kind(token_scores)(self.X, self.require("y"), self.require("v"), self.mask))

    def best_tokens(self) -> A:
        """The token of each sample with the highest score, (..., n); a tie raises ValueError, naming the sample."""
        return cast("A", in_kind(_best_tokens)(self.X, self.require("y"), self.require("v"), self.mask))

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
        check_shapes(X, alpha=chosen)
        check_alpha(chosen, X.shape[-2], mask)
        chosen = chosen.long()
        return self._with({**self._arrays(), "alpha": chosen if isinstance(self.X, Tensor) else as_array(chosen)})

    def _with(self, fields: Mapping[str, Any]) -> Problem[A]:
        """A problem of arrays that need no check."""
        other: Problem[A] = object.__new__(type(self))
        other._set(fields)
        return other

    def _set(self, fields: Mapping[str, Any]) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, fields.get(name))

    def _arrays(self) -> dict[str, Any]:
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}


@overload
def takes_problem(function: InKind[P, R]) -> InKind[P, R]: ...
@overload
def takes_problem(function: Callable[P, R]) -> Callable[..., R]: ...
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
    needed = [key for key in positional if parameters[key].default is inspect.Parameter.empty]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Problem):
            given = dict(zip(positional, args, strict=False))
            _refuse_missing(name, needed, {**given, **kwargs})
            _refuse_ambiguous_weights(given)
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


def gathers_problem(*fields: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a function whose first argument is a :class:`Problem` take the arrays ``fields`` (and ``mask=``) instead.

    ``f(problem, alpha, *, p)`` is then also ``f(X, y, z, v, alpha, p=2)``.
    """

    def decorate(function: Callable[..., Any]) -> Any:
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
            _refuse_missing(name, fields, arrays)
            return function(Problem(**arrays), *args[len(fields) :], **kwargs)

        return wrapper

    return decorate


def _refuse_missing(name: str, needed: Sequence[str], given: Mapping[str, Any]) -> None:
    missing = [key for key in needed if key not in given]
    if not missing:
        return
    takes, first = f"{name} needs a Problem, or {', '.join(needed)}", given.get("X", ())
    if not is_array(first) and not isinstance(first, Tensor):
        raise TypeError(f"{takes}, got {described(first)}; make one by mirrormax.Problem(X, y, z, v).")
    raise TypeError(f"{takes}; {missing[0]} is missing.")


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


def _best_tokens(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    best = highest_scores(X, y, v, mask)
    tied = best.sum(-1) > 1
    if tied.any():
        raise ValueError(
            f"{sample_name(first_index(tied))} has more than one token with the highest score; give alpha."
        )
    return first_true(best)


def _leads(X: Tensor, alpha: Tensor, mask: Tensor | None) -> Tensor:
    check(X, alpha=alpha, mask=mask)
    return 0.0 - relative_to(blank_padding(X, mask), alpha).offsets


def _logits(X: Tensor, z: Tensor, W: Tensor, mask: Tensor | None) -> Tensor:
    check(X, z=z, W=W, mask=mask)
    X, z, W = common_type(X, z, W)
    return masked_logits(blank_padding(X, mask), z, W, mask)
