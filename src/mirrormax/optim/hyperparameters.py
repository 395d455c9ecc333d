"""Hyperparameters of a parameter group: checked, and kept as plain data that a checkpoint can hold."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mirrormax._checks import number
from mirrormax.geometry import Lp, Potential, as_potential

# What others put into groups: torch itself, its schedulers, and param_groups.
FOREIGN_KEYS = ("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")


def potential_of(group: dict[str, Any]) -> Potential:
    """The potential of a group: Lp(p), or its ``potential`` where p is None."""
    if group["p"] is not None and group["potential"] is not None:
        raise ValueError(
            f"a parameter group has both p={group['p']!r} and potential={group['potential']!r}; set one to None."
        )
    return as_potential(group["p"] if group["potential"] is None else group["potential"])


def canonical(group: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """``group`` with the defaults filled in and checked; its own p outranks a default potential."""
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
    merged = {**defaults, **group}
    for own, other in (("p", "potential"), ("potential", "p")):
        if group.get(own) is not None and group.get(other) is None:
            merged[other] = None
    return checked(merged)


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options with p and potential as plain data: (p, None) for ℓp, (None, spec) for others."""
    potential = potential_of(options)
    options = {**options, "p": None, "potential": potential.spec()}
    if isinstance(potential, Lp):
        options |= {"p": potential.p, "potential": None}
    options["lr"] = _checked_lr(options["lr"])
    options["momentum"] = number("momentum", options["momentum"], at_least=0, below=1)
    options["weight_decay"] = number("weight_decay", options["weight_decay"], at_least=0)
    for name in ("nesterov", "maximize", "compile", "error_if_nonfinite"):
        if not isinstance(options[name], bool):
            raise TypeError(f"{name} must be True or False, got {options[name]!r}.")
    if options["nesterov"] and not options["momentum"]:
        raise ValueError("nesterov=True needs momentum > 0, got momentum=0; set momentum, for example to 0.9.")
    if options["normalize"] not in (None, "tensor", "global"):
        raise ValueError(f"normalize must be None, 'tensor' or 'global', got {options['normalize']!r}.")
    if options["foreach"] not in (None, True, False):
        raise TypeError(f"foreach must be None, True or False, got {options['foreach']!r}.")
    if options["foreach"] and options["compile"]:
        raise ValueError("foreach=True and compile=True are two ways to do one thing; choose one of them.")
    return options


def _checked_lr(lr: Any) -> float | Tensor:
    if not isinstance(lr, Tensor):
        return number("lr", lr, at_least=0)
    if lr.numel() != 1 or not lr.is_floating_point():
        raise ValueError(f"a tensor lr must hold one floating-point number, got shape {tuple(lr.shape)}, {lr.dtype}.")
    number("lr", float(lr), at_least=0)
    return lr
