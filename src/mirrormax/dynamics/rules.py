"""Rules: from the gradient of a trained tensor to the direction D of its step u ← u − ηD.

    MirrorDescent  D = g/‖g‖_*, the dual norm of the potential  the paper's
    Sign           D = sign(m)                                  steepest in ℓ∞
    Spectral       D = U Vᵀ of m = U Σ Vᵀ                       steepest in the spectral norm
    Coordinate     D = sign(m) at the largest |m|, 0 elsewhere  steepest in ℓ1
    Adam           D = m̂/(√v̂ + ε)
    Muon           D = U Vᵀ of m, exact or by Newton and Schulz
    Lion           D = sign(β₁ m + (1 − β₁) g)

Gradients come as ``scaled`` (B, H, a, b) and ``log_scale`` (B, H), and their averages m are kept so, so that nothing
underflows while gradients fall exponentially. Momenta, ε and weight decay are those of ``torch.optim``, whose steps
they are. D (B, H, a, b) is of the dual variable u, w = ∇ψ*(u): with p = 2 that is w itself, with another p it is mirror
descent along D (``MirrorAdamW``). What a rule remembers of a tensor is in ``state``, a dict of that tensor's own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mirrormax._checks import integer, number
from mirrormax.attention import ScaledGradient
from mirrormax.dynamics.setup import Mirror

State = dict[str, Any]
Normalize = Literal["tensor", "global", "running"] | None

EPOCHS = 3  # that the running scale is an average over
LONGEST = 3.0  # times η: the step that the running scale allows at most
NULL = 1e-13  # of the largest singular value: below it is rounding


class Rule(Protocol):
    """A rule for steps; its parameters are plain values. λ = ``weight_decay`` shrinks w by 1 − ηλ before the step."""

    @property
    def weight_decay(self) -> float: ...

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        """D of the step u ← u − ηD from w, zero where there is nothing to follow."""
        ...


@dataclass(frozen=True)
class MirrorDescent:
    """D = g/‖g‖_* (or g, plain), in the dual norm of the potential: ℓp-AttGD.

    With momentum m ← βm + g is in the place of g, normalised after that. ``normalize="global"`` takes one norm over
    all heads, and ``"running"`` divides by an average of ‖g‖_* with the weights ``decay``^age, kept as a logarithm.
    """

    normalize: Normalize = "tensor"
    momentum: float = 0.0
    decay: float = 1 - 1 / EPOCHS
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.normalize not in (None, "tensor", "global", "running"):
            raise ValueError(f'normalize must be None, "tensor", "global" or "running", got {self.normalize!r}.')

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        """η g/‖g‖_*, zero where g is; or g."""
        if self.momentum:
            grad = state["momentum"] = plus(grad, state.get("momentum"), math.log(self.momentum))
        g, log_scale = grad
        if self.normalize is None:
            factor = log_scale.exp()
        elif self.normalize == "tensor":
            factor = _inverse(mirror.dual_norm(g))
        elif self.normalize == "global":
            shares = torch.exp(log_scale - log_scale.amax(-1, keepdim=True))
            factor = shares * _inverse(mirror.dual_norm(over(shares, g), core=3)).unsqueeze(-1)
        else:
            norm = mirror.dual_norm(g)
            log_norm = norm.log() + log_scale
            length = torch.exp(log_norm - self._running_scale(state, log_norm))
            factor = torch.where(norm == 0, 0.0, length.clamp(max=LONGEST) / norm)
        return over(factor, g)

    def _running_scale(self, state: State, log_norm: Tensor) -> Tensor:
        """The logarithm of the average of ‖g‖_* so far, recent ones weighing more, (B, H)."""
        average = log_norm + math.log(1 - self.decay)
        if "average" in state:
            average = torch.logaddexp(state["average"] + math.log(self.decay), average)
        state["average"], state["count"] = average, state.get("count", 0) + 1
        return average - math.log1p(-(self.decay ** state["count"]))


def plus(grad: ScaledGradient, other: ScaledGradient | None, log_factor: float = 0.0) -> ScaledGradient:
    """grad + e^log_factor · other, with the larger scale of the two taken out."""
    if other is None:
        return grad
    before = other.log_scale + log_factor
    scale = torch.maximum(before, grad.log_scale)
    both = over((before - scale).exp(), other.scaled) + over((grad.log_scale - scale).exp(), grad.scaled)
    return ScaledGradient(both, scale)


def over(factor: Tensor, g: Tensor) -> Tensor:
    """A factor (B, H) times g (B, H, a, b)."""
    return factor[..., None, None] * g


def _inverse(norm: Tensor) -> Tensor:
    return torch.where(norm == 0, 0.0, 1 / norm)


def average(state: State, name: str, grad: ScaledGradient, beta: float) -> ScaledGradient:
    """m ← βm + (1 − β)g, kept in ``state``."""
    new = ScaledGradient(grad.scaled, grad.log_scale + math.log(1 - beta))
    m = state[name] = plus(new, state.get(name) if beta else None, math.log(beta) if beta else 0.0)
    return m


def polar(g: Tensor) -> Tensor:
    """U Vᵀ of g = U Σ Vᵀ, without the directions in which g is zero."""
    largest = g.abs().amax((-2, -1), keepdim=True)
    U, sigma, Vh = torch.linalg.svd(g / torch.where(largest > 0, largest, 1.0), full_matrices=False)
    there = (sigma > NULL * sigma[..., :1]).to(g.dtype)
    orthogonal: Tensor = (U * there.unsqueeze(-2)) @ Vh
    return orthogonal


def newton_schulz(g: Tensor, steps: int) -> Tensor:
    """Muon's polynomial iteration towards U Vᵀ: singular values end between about .7 and 1.2."""
    a, b, c = 3.4445, -4.7750, 2.0315
    size = torch.linalg.matrix_norm(g, keepdim=True)
    x = g / torch.where(size > 0, size, 1.0)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@dataclass(frozen=True)
class _OfAverage:
    """A direction of m, m ← βm + (1 − β)g."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        return self.of(average(state, "m", grad, self.momentum).scaled)

    def of(self, m: Tensor) -> Tensor:
        """D of m at any scale."""
        raise NotImplementedError


class Sign(_OfAverage):
    """sign(m)."""

    def of(self, m: Tensor) -> Tensor:
        return m.sign()


class Coordinate(_OfAverage):
    """sign(m) at the largest entry alone, the first of several."""

    def of(self, m: Tensor) -> Tensor:
        place = m.flatten(-2).abs().argmax(-1, keepdim=True)
        alone = torch.zeros_like(m).flatten(-2).scatter(-1, place, m.flatten(-2).gather(-1, place).sign())
        return alone.reshape(m.shape)


class Spectral(_OfAverage):
    """U Vᵀ of m."""

    def of(self, m: Tensor) -> Tensor:
        return polar(m)


@dataclass(frozen=True)
class Muon:
    """U Vᵀ of m, or of (1 − β)g + βm with ``nesterov``; ``newton_schulz`` steps of the iteration, None for the SVD."""

    momentum: float = 0.95
    nesterov: bool = True
    newton_schulz: int | None = None
    weight_decay: float = 0.1

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        m = average(state, "m", grad, self.momentum)
        if self.nesterov and self.momentum:
            new = ScaledGradient(grad.scaled, grad.log_scale + math.log(1 - self.momentum))
            m = plus(new, m, math.log(self.momentum))
        return polar(m.scaled) if self.newton_schulz is None else newton_schulz(m.scaled, self.newton_schulz)


@dataclass(frozen=True)
class Lion:
    """sign(β₁ m + (1 − β₁) g), and then m ← β₂ m + (1 − β₂) g."""

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        step = average(dict(state), "m", grad, self.betas[0]).scaled.sign()
        average(state, "m", grad, self.betas[1])
        return step


@dataclass(frozen=True)
class Adam:
    """m̂/(√v̂ + ε) with the second moment of each entry, row or tensor; with ``weight_decay`` it is AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    moments: Literal["entry", "row", "tensor"] = "entry"

    def __post_init__(self) -> None:
        number("eps", self.eps, at_least=0.0)
        if self.moments not in ("entry", "row", "tensor"):
            raise ValueError(f"moments must be entry, row or tensor, got {self.moments!r}.")

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        squares = grad.scaled**2
        if self.moments != "entry":
            squares = squares.mean(-1 if self.moments == "row" else (-2, -1), keepdim=True).expand_as(squares)
        m = average(state, "m", grad, self.betas[0])
        v = average(state, "v", ScaledGradient(squares, 2 * grad.log_scale), self.betas[1])
        count = state["count"] = state.get("count", 0) + 1
        first, second = (1 - beta**count for beta in self.betas)
        # Both sides of the fraction are divided by the larger of √v̂ and ε.
        least = math.log(self.eps) if self.eps else -math.inf
        scale = (v.log_scale / 2).clamp(min=least)
        below = over((v.log_scale / 2 - scale).exp(), (v.scaled / second).sqrt())
        below = below + (least - scale).exp()[..., None, None]
        return torch.where(below == 0, 0.0, over((m.log_scale - scale).exp(), m.scaled / first) / below)


@dataclass(frozen=True)
class OwnRule:
    """A function of the direction g/‖g‖₂ (..., a, b) and log ‖g‖₂ (...) of a gradient, which returns D (..., a, b)."""

    function: Callable[[Tensor, Tensor], Any]
    weight_decay: float = 0.0

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        length = torch.linalg.matrix_norm(grad.scaled)
        unit = over(torch.where(length > 0, 1 / length, 0.0), grad.scaled)
        step = self.function(unit, length.log() + grad.log_scale)
        if not isinstance(step, Tensor) or step.shape != w.shape:
            shape = tuple(step.shape) if isinstance(step, Tensor) else type(step).__name__
            raise ValueError(f"rule must return a tensor of the shape {tuple(w.shape)} of the gradient, got {shape}.")
        if step.isnan().any():
            raise ValueError("rule returned NaN; return 0 where there is no direction, as for a gradient of zero.")
        return step


RULES: dict[str, Rule] = {
    "sign": Sign(),
    "spectral": Spectral(),
    "coordinate": Coordinate(),
    "adam": Adam(),
    "adamw": Adam(weight_decay=0.01),
    "mirror-adamw": Adam(weight_decay=0.01),
    "muon": Muon(),
    "muon-newton-schulz": Muon(newton_schulz=5),
    "lion": Lion(),
}


def rule_of(given: Any) -> Rule:
    """A rule by its name, as it is, or made of a function; checked."""
    if isinstance(given, str):
        if given not in RULES:
            raise ValueError(f"rule must be one of mirror, {', '.join(RULES)}, a rule or a function, got {given!r}.")
        return RULES[given]
    rule: Rule = given if hasattr(given, "direction") else OwnRule(given)
    if not hasattr(given, "direction"):
        if not callable(given):
            raise TypeError(f"rule must be a name, a rule or a function of the gradient, got {given!r}.")
        try:
            inspect.signature(given).bind(None, None)
        except TypeError:
            message = f"rule must take the direction of the gradient and the log of its length, got {given!r}."
            raise TypeError(message) from None
        except ValueError:  # a function of C whose arguments are not known
            pass
    number("weight_decay", rule.weight_decay, at_least=0.0)
    for beta in (*getattr(rule, "betas", ()), getattr(rule, "momentum", 0.0)):
        number("momentum and betas", beta, at_least=0.0, below=1.0)
    if getattr(rule, "newton_schulz", None) is not None:
        integer("newton_schulz", rule.newton_schulz, at_least=1)  # type: ignore[attr-defined]
    return rule
