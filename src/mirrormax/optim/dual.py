"""The dual variables u = ∇ψ(w) in the optimizer's state, and when they must be read off w again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused
from mirrormax.optim.batch import VERSION, Held
from mirrormax.optim.kernels import flat, is_dense
from mirrormax.optim.sharding import shard, whole
from mirrormax.optim.update import Rule

CHUNK = 262_144  # entries that are mapped at once


class Seen(NamedTuple):
    """A parameter as a step has met it."""

    param: Tensor
    held: Held
    rule: Rule


class DualState:
    """Keeps ``state["dual"]`` true to the parameter.

    After each step the parameter's version and storage are noted. A parameter found at another version,
    in another storage, or under another potential was written by somebody else: entries that do not
    belong to their u get u = ∇ψ(w), the others keep their u to the last bit. Looking once too often thus
    does no harm, and a resumed run loses nothing.
    """

    def __init__(self) -> None:
        # Both by the id of a parameter, which stays its own while it is held here.
        self._seen: dict[int, Seen] = {}
        self._versions: dict[int, int] = {}

    def forget(self) -> None:
        self._seen.clear()

    def stamp(self, params: Sequence[Tensor], shards: Sequence[Tensor]) -> list[int]:
        """Note that these parameters and their dual variables agree; their versions."""
        versions = list(map(VERSION, shards))
        self._versions.update(zip(map(id, params), versions, strict=True))
        return versions

    def knows(self, param: Tensor, rule: Rule) -> bool:
        """Whether nothing has changed since the parameter was stamped, as far as torch can tell."""
        seen, local = self._seen.get(id(param)), shard(param)
        if seen is None or (seen.rule.potential, seen.rule.target) != (rule.potential, rule.target):
            return False
        if not seen.held.holds([local]):
            return False
        return self._versions.get(id(param)) == local._version

    def meet(self, param: Tensor, rule: Rule) -> None:
        """Note where a parameter lies whose dual variables are about to be made true."""
        self._seen[id(param)] = Seen(param, Held([shard(param)]), rule)
        self._versions.pop(id(param), None)


def make_true(state: dict[str, Any], param: Tensor, potential: Potential, dtype: torch.dtype | None) -> None:
    """Make the dual variables of ``param``, or correct those that do not belong to its weights.

    They get the type ``dtype``; None says that the weights are their own.
    """
    if dtype is None:
        state.pop("dual", None)
        return
    known = state.get("dual")
    if known is not None and known.shape != param.shape:
        raise ValueError(
            f"the state has dual variables of shape {tuple(known.shape)} for a parameter of shape "
            f"{tuple(param.shape)}; load the state of a model with these shapes."
        )
    if known is None:
        state["dual"] = torch.empty_like(param, dtype=dtype, requires_grad=False)
    elif known.dtype != dtype or known.device != param.device or known.stride() != param.stride():
        state["dual"] = torch.empty_like(param, dtype=dtype, requires_grad=False).copy_(known)
    if not potential.separable:
        dims = tuple(range(param.ndim))
        if known is None or int(whole(_strange(potential, state["dual"], param.detach(), dims).sum())):
            state["dual"].copy_(potential.mirror_map(param.detach().to(dtype), dims))
        return
    u, w = shard(state["dual"]), shard(param.detach())
    if known is not None:
        for part_u, part_w in _parts(u, w):
            strange = _strange(potential, part_u, part_w, tuple(range(w.ndim)))
            if bool(strange.any()):
                part_u.copy_(torch.where(strange, _mapped(potential, part_w, dtype), part_u))
    elif not (isinstance(potential, Lp) and fused.write_dual(potential.p, w, u)):
        for part_u, part_w in _parts(u, w):
            part_u.copy_(_mapped(potential, part_w, dtype))


def _mapped(potential: Potential, w: Tensor, dtype: torch.dtype) -> Tensor:
    """∇ψ(w) worked out in float64 and rounded once, so that its bits do not depend on the place or on threads."""
    wide = dtype if w.device.type == "mps" else torch.float64
    return potential.mirror_map(w.to(wide), tuple(range(w.ndim))).to(dtype)


def _strange(potential: Potential, u: Tensor, w: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Where w is not ∇ψ* of any number within two units in the last place of u, to a few units in its own.

    That much kernels may round differently, and weights that have not moved yet are those of a rounded u.
    """
    eps = torch.finfo(w.dtype).eps if u.dtype == w.dtype else 0.0
    slack = (64 if w.dtype == torch.float64 else 16) * eps
    if not potential.separable:
        near = (potential.inverse_map(u, dims).to(w.dtype) - w).abs() <= 64 * torch.finfo(w.dtype).eps * w.abs()
        back = potential.mirror_map(w.to(u.dtype), dims)
        return ~(near | ((back - u).abs() <= 64 * torch.finfo(u.dtype).eps * u.abs()))
    wide = u if u.device.type == "mps" else u.double()
    room = 2 * torch.finfo(u.dtype).eps * wide.abs()
    low, high = potential.inverse_map(wide - room, dims), potential.inverse_map(wide + room, dims)
    low, high = (low - slack * low.abs()).to(w.dtype), (high + slack * high.abs()).to(w.dtype)
    return ~((low <= w) & (w <= high))


def _parts(u: Tensor, w: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if w.numel() <= CHUNK or u.stride() != w.stride() or not is_dense(w):
        yield u, w
        return
    yield from zip(flat(u).split(CHUNK), flat(w).split(CHUNK), strict=True)
