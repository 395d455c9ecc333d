"""The dual variables u = ∇ψ(w) in the optimizer's state, and when they must be read off w again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.sharding import shard, whole

Write = Callable[[Tensor, Tensor], None]

# A write through .data is looked for at this many entries of one parameter, every step or, where
# looking means waiting for a device, every so many steps.
SAMPLE = 32
STEPS_BETWEEN_WAITS = 100


class DualState:
    """Keeps ``state["dual"]`` true to the parameter.

    After each step the parameter's version and storage are noted. A parameter found at another version,
    in another storage, or under another potential was written by somebody else: entries that are no
    longer ∇ψ*(u) get u = ∇ψ(w), the others keep their u to the last bit. Looking once too often thus
    does no harm, and a resumed run loses nothing.
    """

    def __init__(self) -> None:
        self._seen: dict[Tensor, list[Any]] = {}  # potential, version, and an alias of the storage
        self._sample: tuple[Tensor, Tensor, Tensor] | None = None
        self.steps = 0

    def forget(self) -> None:
        self._seen.clear()
        self._sample = None

    def stamp(self, param: Tensor, potential: Potential) -> None:
        """Note that this parameter and its dual variables agree."""
        # The alias keeps the storage alive, so that no other can come to lie at its address.
        alias = shard(param).detach()
        self._seen[param] = [potential, alias._version, alias]

    def stamp_again(self, params: list[Tensor]) -> None:
        """The same of parameters that lie where they did."""
        for param in params:
            self._seen[param][1] = param._version

    def know(self, params: list[Tensor]) -> bool:
        """Whether none of them was written since, by their versions alone."""
        seen = self._seen
        return all(param in seen and seen[param][1] == param._version for param in params)

    def knows(self, param: Tensor, potential: Potential) -> bool:
        """Whether nothing has changed since the parameter was stamped, as far as torch can tell."""
        seen = self._seen.get(param)
        if seen is None:
            return False
        local = shard(param)
        return bool(seen[0] == potential and seen[1] == local._version and seen[2].data_ptr() == local.data_ptr())

    def make_true(self, state: dict[str, Any], param: Tensor, potential: Potential, write: Write) -> None:
        """Make the dual variables of ``param``, or correct those that do not give its weights.

        ``write(u, w)`` must be the very kernel that wrote the weights, else its last bits would look
        like somebody else's work. Where ``knows`` says yes there is nothing to do.
        """
        dtype = potential.dual_dtype(param.dtype)
        if is_own_dual(param, potential):
            state.pop("dual", None)
        elif "dual" not in state:
            state["dual"] = torch.empty_like(param, dtype=dtype, requires_grad=False)
            u, w = _parts(potential, state["dual"], param)
            u.copy_(_mapped(potential, w, dtype))
        else:
            state["dual"] = state["dual"].to(dtype)
            _correct(state["dual"], param, potential, write)

    def watch(self, params: list[Tensor], may_wait: bool) -> None:
        """Remember some entries of one of the parameters, another one each step."""
        self.steps += 1
        self._sample = None
        if not params:
            return
        param = params[self.steps % len(params)]
        local = shard(param).detach()
        if local.is_contiguous() and local.numel() and (may_wait or self.steps % STEPS_BETWEEN_WAITS == 0):
            stride = max(1, local.numel() // SAMPLE)
            entries = local.view(-1)[self.steps % stride :: stride][:SAMPLE]
            self._sample = param, entries, entries.clone()

    def was_written_unseen(self) -> bool:
        """Whether the remembered entries have changed though their version has not: a write through ``.data``."""
        if self._sample is None:
            return False
        param, entries, before = self._sample
        self._sample = None
        seen = self._seen.get(param)
        if seen is None or not self.knows(param, seen[0]):
            return False
        return not torch.equal(entries.nan_to_num(), before.nan_to_num())


def is_own_dual(param: Tensor, potential: Potential) -> bool:
    """Whether the weights are their own dual variables: u = w, in a type that is wide enough."""
    return potential.is_identity and potential.dual_dtype(param.dtype) == param.dtype


def _parts(potential: Potential, dual: Tensor, param: Tensor) -> tuple[Tensor, Tensor]:
    """Shards do for a separable map; any other needs the norm of the whole."""
    return (shard(dual), shard(param)) if potential.separable else (dual, param)


def _mapped(potential: Potential, w: Tensor, dtype: torch.dtype) -> Tensor:
    return potential.mirror_map(w.detach().to(dtype), tuple(range(w.ndim)))


def _correct(dual: Tensor, param: Tensor, potential: Potential, write: Write) -> None:
    """Replace the entries of ``dual`` that do not give the weights."""
    u, w = _parts(potential, dual, param)
    expected = torch.empty_like(w)
    write(u, expected)
    stale = expected != w
    if potential.separable:
        u.copy_(torch.where(stale, _mapped(potential, w, u.dtype), u))
    elif int(whole(stale.sum())):  # each entry is in the norm of all
        u.copy_(_mapped(potential, w, u.dtype))
