"""Hyperparameters of a parameter group: checked, and kept as plain data that a checkpoint can hold."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mirrormax._checks import number
from mirrormax._extras import install
from mirrormax.geometry import Lp, SquaredLp, as_potential
from mirrormax.optim import fused

# What others put into groups: torch itself, its schedulers, and param_groups.
FOREIGN_KEYS = ("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")

# Beyond this p, float64 has too few exponents for w^{p-1} of weights that are small and ordinary.
LARGEST_P = 80.0

BOUNDS: dict[str, dict[str, float]] = {
    "weight_decay": {"at_least": 0},
    "momentum": {"at_least": 0, "below": 1},
    "normalize_decay": {"at_least": 0, "below": 1},
    "eps": {"at_least": 0},
    "trust": {"above": 0},
    "clip": {"above": 0},
}
SWITCHES = ("nesterov", "maximize", "compile", "error_if_nonfinite", "capturable")
PATTERN = re.compile(r"([1-9]\d*):([1-9]\d*)")
CHOICES = {
    "normalize": (None, "tensor", "global", "running"),
    "scale": (None, "tensor"),
    "moments": ("tensor", "entry", "matrix"),
    "scope": ("global", "matrix", "row"),
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
    for name, bounds in BOUNDS.items():
        if name in options and not (name in ("trust", "clip") and options[name] is None):
            options[name] = number(name, options[name], **bounds)
    if "betas" in options:
        betas = options["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"betas must be two numbers, got {betas!r}; write betas=(0.9, 0.999).")
        options["betas"] = tuple(number("betas", beta, at_least=0, below=1) for beta in betas)
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


def checked_lr(lr: Any) -> float | Tensor:
    if lr is None:
        raise TypeError("lr must be given, got None; write a step size, such as lr=0.1.")
    if not isinstance(lr, Tensor):
        return number("lr", lr, at_least=0)
    if lr.numel() != 1 or not lr.is_floating_point():
        raise ValueError(f"a tensor lr must hold one floating-point number, got shape {tuple(lr.shape)}, {lr.dtype}.")
    number("lr", float(lr), at_least=0)
    return lr


def checked_target(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a target, checked; a group that has one gets no scale and no trust, which p = 2 does not need."""
    sparsity, steps, scope = options["sparsity"], options["total_steps"], options["scope"]
    if steps is not None:
        options = {**options, "total_steps": checked_length(steps)}
    if sparsity is None:
        return options
    if isinstance(sparsity, str):
        pattern_of(sparsity)
        if scope != "global":
            raise ValueError(f"scope={scope!r} says nothing where sparsity={sparsity!r}; leave it out.")
    else:
        sparsity = number("sparsity", sparsity, at_least=0, below=1)
    if options["p"] != 2:
        raise ValueError(
            f"sparsity={sparsity!r} puts a threshold in the place of p, got p={options['p']!r}; leave p out, or set it "
            "to 2."
        )
    if options["capturable"]:
        raise ValueError(
            "sparsity= needs the quantile of all weights at every step, for which capturable=True leaves no time; "
            "choose one of them."
        )
    return {**options, "sparsity": sparsity, "scale": None, "trust": None}


def checked_length(steps: Any) -> int:
    length = number("total_steps", steps, at_least=1)
    if not length.is_integer():
        raise ValueError(f"total_steps must be a whole number of at least 1, got {steps!r}.")
    return int(length)


def pattern_of(sparsity: Any) -> tuple[int, int] | None:
    """(n, m) of "n:m", n of every m weights staying; None of a share."""
    if not isinstance(sparsity, str):
        return None
    match = PATTERN.fullmatch(sparsity)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(f"sparsity must be a share in [0, 1) or n:m with n < m, such as '2:4', got {sparsity!r}.")
    return int(match[1]), int(match[2])


def final_share(sparsity: Any) -> float:
    """The share of zeros at the end."""
    pattern = pattern_of(sparsity)
    return float(sparsity) if pattern is None else 1 - pattern[0] / pattern[1]
