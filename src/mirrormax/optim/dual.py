"""The dual variables u = ∇ψ(w) in the optimizer's state, made of the weights, or corrected where these have changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.kernels import check_memory, pieces, shard, whole
from mirrormax.optim.update import Tensors

CHUNK = 32_768  # entries that are mapped at once: few enough for torch to do so by one thread, in one order


def fit(state: dict[str, Any], name: str, like: Tensor, dtype: torch.dtype) -> bool:
    """Give ``state[name]`` the layout and device of ``like`` and the type ``dtype``; says whether there was one.

    A missing one becomes zeros, and one number for a tensor that of each entry.
    """
    known = state.get(name)
    if known is not None:
        check_memory(known, name)
    if known is not None and known.ndim and known.shape != like.shape:
        raise ValueError(
            f"the state has {name} of shape {tuple(known.shape)} for a parameter of shape {tuple(like.shape)}; "
            "load the state of a model with these shapes."
        )
    if known is None or known.dtype != dtype or known.device != like.device or known.stride() != like.stride():
        state[name] = torch.zeros_like(like, dtype=dtype, requires_grad=False)
        if known is not None:
            state[name].copy_(known)
    return known is not None


def make_true(state: dict[str, Any], param: Tensor, potential: Potential, dtype: torch.dtype) -> None:
    """Make the dual variables of ``param``, or correct those that do not belong to its weights.

    Entries that do belong keep their u to the last bit: looking once too often does no harm, and a resumed run loses
    nothing.
    """
    known = fit(state, "dual", param, dtype)
    if not potential.separable:
        dims = tuple(range(param.ndim))
        if not known or int(whole(_strange(potential, state["dual"], param.detach(), dims).sum())):
            state["dual"].copy_(potential.mirror_map(param.detach().to(dtype), dims))
        return
    u, w = shard(state["dual"]), shard(param.detach())
    for part in pieces(Tensors(w, u, None), CHUNK):
        strange = _strange(potential, part.u, part.w, tuple(range(w.ndim))) if known else None
        if strange is None:
            part.u.copy_(_mapped(potential, part.w, dtype))
        elif bool(strange.any()):
            part.u.copy_(torch.where(strange, _mapped(potential, part.w, dtype), part.u))


def _mapped(potential: Potential, w: Tensor, dtype: torch.dtype) -> Tensor:
    """∇ψ(w) worked out in float64 and rounded once, so that its bits do not depend on the place or on threads."""
    wide = dtype if w.device.type == "mps" else torch.float64
    return potential.mirror_map(w.to(wide), tuple(range(w.ndim))).to(dtype)


def _strange(potential: Potential, u: Tensor, w: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Where w is not ∇ψ* of any number within two units in the last place of u, to a few units in its own.

    That much kernels may round differently, and weights that have not moved yet are those of a rounded u. Powers that
    are taken by logarithms have errors of as many units as the logarithm is large.
    """
    if not potential.separable:
        near = (potential.inverse_map(u, dims).to(w.dtype) - w).abs() <= 64 * torch.finfo(w.dtype).eps * w.abs()
        back = potential.mirror_map(w.to(u.dtype), dims)
        return ~(near | ((back - u).abs() <= 64 * torch.finfo(u.dtype).eps * u.abs()))
    wide = u if u.device.type == "mps" else u.double()
    eps = torch.finfo(u.dtype).eps
    room = 2 * eps * wide.abs()
    low, high = potential.inverse_map(wide - room, dims), potential.inverse_map(wide + room, dims)
    units = 0 if u.dtype != w.dtype else 64 if w.dtype == torch.float64 else 16
    slack = eps * (units + w.abs().clamp(min=torch.finfo(w.dtype).tiny).to(wide.dtype).log2().abs())
    low, high = (low - slack * low.abs()).to(w.dtype), (high + slack * high.abs()).to(w.dtype)
    return ~((low <= w) & (w <= high))
