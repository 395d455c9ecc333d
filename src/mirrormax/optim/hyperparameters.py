"""Hyperparameters of a parameter group: checked, and kept as plain data that a checkpoint can hold."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mirrormax._checks import number
from mirrormax._extras import install
from mirrormax.geometry import Lp, SquaredLp, as_potential
from mirrormax.optim import fused
from mirrormax.optim.target import checked_target

# What others put into groups: torch itself, its schedulers, and param_groups.
FOREIGN_KEYS = ("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")

# Beyond this p, float64 has too few exponents for w^{p-1} of weights that are small and ordinary.
LARGEST_P = 80.0

SWITCHES = ("nesterov", "maximize", "compile", "error_if_nonfinite", "capturable")
CHOICES = {
    "normalize": (None, "tensor", "global", "running"),
    "scale": (None, "tensor"),
    "moments": ("tensor", "entry", "matrix"),
}


def canonical(group: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """``group`` with the defaults filled in and checked."""
    if not isinstance(group, dict):
        raise TypeError(f"a parameter group must be a dict, got {type(group).__name__}; pass {{'params': [...]}}.")
    for key in group.keys() - defaults.keys() - set(FOREIGN_KEYS):
        close = difflib.get_close_matches(str(key).lower(), [*defaults, "params"], n=1, cutoff=0.75)
        if close:
            raise TypeError(f"a parameter group has the unknown option {key!r}; did you mean {close[0]!r}?")
    group = dict(group)
    if isinstance(group.get("params"), Iterator):
        group["params"] = list(group["params"])
    params = group.get("params", ())
    for item in [params] if isinstance(params, Tensor) else params:
        param = item[1] if isinstance(item, tuple) else item
        if isinstance(param, Tensor) and not param.is_floating_point():
            raise TypeError(f"parameters must be real floating-point tensors, got one of {param.dtype}.")
    return checked({**defaults, **group})


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options with p as plain data: a number for ℓp, the ``spec()`` of another potential."""
    potential = as_potential(options["p"])
    if isinstance(potential, Lp | SquaredLp) and potential.p > LARGEST_P:
        raise ValueError(
            f"p must be at most {LARGEST_P:g} in an optimizer, got {potential.p!r}: beyond it, w^(p-1) of ordinary "
            "weights is too small for floating point."
        )
    options = {**options, "p": potential.p if isinstance(potential, Lp) else potential.spec()}
    options["lr"] = checked_lr(options["lr"])
    options["weight_decay"] = number("weight_decay", options["weight_decay"], at_least=0)
    if "momentum" in options:
        options["momentum"] = number("momentum", options["momentum"], at_least=0, below=1)
    if "normalize_decay" in options:
        options["normalize_decay"] = number("normalize_decay", options["normalize_decay"], at_least=0, below=1)
    if "betas" in options:
        options["betas"] = _checked_betas(options["betas"])
        options["eps"] = number("eps", options["eps"], at_least=0)
    for name in ("trust", "clip"):
        if options[name] is not None:
            options[name] = number(name, options[name], above=0)
    for name in SWITCHES:
        if name in options and not isinstance(options[name], bool):
            raise TypeError(f"{name} must be True or False, got {options[name]!r}.")
    for name, choices in CHOICES.items():
        if name in options and options[name] not in choices:
            *most, last = map(repr, choices)
            raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {options[name]!r}.")
    _check_together(options)
    return checked_target(options)


def _check_together(options: dict[str, Any]) -> None:
    if options.get("nesterov") and not options["momentum"]:
        raise ValueError("nesterov=True needs momentum > 0, got momentum=0; set momentum, for example to 0.9.")
    if options.get("normalize") and options["clip"] is not None:
        raise ValueError(
            f"normalize={options['normalize']!r} divides the gradient by its norm, which leaves "
            f"clip={options['clip']:g} nothing to do; choose one of them."
        )
    for name in ("foreach", "fused"):
        if options[name] not in (None, True, False):
            raise TypeError(f"{name} must be None, True or False, got {options[name]!r}.")
    if options["fused"] and not fused.is_installed():
        raise ValueError(f"fused=True needs numba, which is not installed: {install('fast')}.")
    chosen = [name for name in ("foreach", "fused", "compile", "capturable") if options[name]]
    if len(chosen) > 1:
        raise ValueError(f"{chosen[0]}=True and {chosen[1]}=True are two ways to do one thing; choose one of them.")


def _checked_betas(betas: Any) -> tuple[float, float]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise TypeError(f"betas must be two numbers, got {betas!r}; write betas=(0.9, 0.999).")
    first, second = (number("betas", beta, at_least=0, below=1) for beta in betas)
    return first, second


def checked_lr(lr: Any) -> float | Tensor:
    if lr is None:
        raise TypeError("lr must be given, got None; write a step size, such as lr=0.1.")
    if not isinstance(lr, Tensor):
        return number("lr", lr, at_least=0)
    if lr.numel() != 1 or not lr.is_floating_point():
        raise ValueError(f"a tensor lr must hold one floating-point number, got shape {tuple(lr.shape)}, {lr.dtype}.")
    number("lr", float(lr), at_least=0)
    return lr
