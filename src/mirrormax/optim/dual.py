"""The dual variables u = ∇ψ(w) in the optimizer's state, and when they must be read off w again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.sharding import shard, whole


class DualState:
    """Keeps ``state["dual"]`` true to the parameter.

    After each step the parameter's version is noted. A parameter found at another version, at another
    place in memory, or under another potential was written by somebody else: entries that are no
    longer ∇ψ*(u) get u = ∇ψ(w), the others keep their u to the last bit. Looking once too often thus
    does no harm, and a resumed run loses nothing.
    """

    def __init__(self) -> None:
        self._seen: dict[Tensor, tuple[Potential, int, int]] = {}

    def forget(self) -> None:
        self._seen.clear()

    def stamp(self, params: Iterable[Tensor], potential: Potential) -> None:
        """Note that these parameters and their dual variables agree."""
        if not torch.compiler.is_compiling():
            self._seen.update((param, _stamp(param, potential)) for param in params)

    def fetch(self, state: dict[str, Any], param: Tensor, potential: Potential) -> Tensor:
        """The dual variables of ``param``: made, checked against its weights, or the weights themselves."""
        dtype = potential.dual_dtype(param.dtype)
        if potential.is_identity and dtype == param.dtype:
            state.pop("dual", None)
            return param
        if "dual" not in state:
            state["dual"] = torch.empty_like(param, dtype=dtype, requires_grad=False)
            u, w = _parts(potential, state["dual"], param)
            u.copy_(_mapped(potential, w, dtype))
        elif not torch.compiler.is_compiling() and self._seen.get(param) != _stamp(param, potential):
            state["dual"] = _true_to(param, state["dual"].to(dtype), potential, exactly=param in self._seen)
        dual: Tensor = state["dual"]
        return dual


def _stamp(param: Tensor, potential: Potential) -> tuple[Potential, int, int]:
    local = shard(param)
    return potential, local._version, local.data_ptr()


def _parts(potential: Potential, dual: Tensor, param: Tensor) -> tuple[Tensor, Tensor]:
    """Shards do for a separable map; any other needs the norm of the whole."""
    return (shard(dual), shard(param)) if potential.separable else (dual, param)


def _mapped(potential: Potential, w: Tensor, dtype: torch.dtype) -> Tensor:
    return potential.mirror_map(w.detach().to(dtype), tuple(range(w.ndim)))


def _true_to(param: Tensor, dual: Tensor, potential: Potential, exactly: bool) -> Tensor:
    """``dual`` with the entries replaced that do not give the weights.

    A dual just loaded may have been mapped by another kernel (compiled, or split between threads
    elsewhere), so the last bits of ∇ψ*(u) are allowed to differ there.
    """
    u, w = _parts(potential, dual, param)
    expected = potential.inverse_map(u, tuple(range(u.ndim))).to(w.dtype)
    slack = 0.0 if exactly else 256 * torch.finfo(u.dtype).eps
    stale = (expected - w).abs() > slack * w.abs()
    stale |= torch.isnan(expected) | torch.isnan(w)
    if potential.separable:
        u.copy_(torch.where(stale, _mapped(potential, w, u.dtype), u))
    elif int(whole(stale.sum())):  # each entry is in the norm of all
        u.copy_(_mapped(potential, w, u.dtype))
    return dual
