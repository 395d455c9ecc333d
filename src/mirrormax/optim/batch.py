"""Parameters that take the same step, and what is known of the tensors that they bring to it.

Thousands of small tensors are asked in columns (``map`` over a list). What was found out about them is found out again
only if they have not kept type, shape, strides and memory: that is looked at for every one of them, at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrormax.optim.sharding import PLAIN, shard, whole
from mirrormax.optim.update import Number, Rule, Tensors

DTYPE, SHAPE, VERSION = attrgetter("dtype"), attrgetter("shape"), attrgetter("_version")
ADDRESS, BYTES = torch.UntypedStorage.data_ptr, torch.UntypedStorage.nbytes


class Columns(NamedTuple):
    """The tensors of several parameters, a list for each kind; u is w where weights are their own dual variables."""

    w: list[Tensor]
    u: list[Tensor]
    g: list[Tensor]
    m: list[Tensor] | None
    v: list[Tensor] | None

    @property
    def own(self) -> bool:
        """Whether what moves are the dual variables themselves."""
        return self.u is self.w

    def one(self, place: int) -> Tensors:
        """What the parameter at this place brings."""
        m, v = (None if column is None else column[place] for column in (self.m, self.v))
        return Tensors(self.w[place], self.u[place], self.g[place], m, v)


class Held:
    """What some tensors are, and where they lie; their storages are held, so that no other can come to lie there."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Potentials that need all of a tensor get distributed ones, whose own storage holds nothing.
        self._distributed = not all(map(PLAIN.__contains__, map(type, tensors)))
        self._storages = list({id(s): s for s in [shard(t).untyped_storage() for t in tensors]}.values())
        self._seen = self._look(tensors)

    def _look(self, tensors: Sequence[Tensor]) -> Any:
        if self._distributed:
            tensors = list(map(shard, tensors))
        of_tensors = [list(map(ask, tensors)) for ask in (DTYPE, SHAPE, Tensor.stride, Tensor.data_ptr)]
        return of_tensors, list(map(ADDRESS, self._storages)), list(map(BYTES, self._storages))

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors are still the same, and still there."""
        return bool(self._look(tensors) == self._seen)


@dataclass
class Batch:
    """Parameters of one group that take the same step: they have gradients, one type, one device, one potential."""

    group: dict[str, Any]
    rule: Rule
    kernel: str  # "fused", "rows" of sparse gradients, or "any"
    places: list[int]  # among the parameters of the group that have gradients
    params: list[Tensor]
    states: list[dict[str, Any]]
    dual_dtype: torch.dtype | None  # None if weights are their own dual variables
    weights: list[Tensor] = field(init=False)  # the parameters, or their shards
    columns: Columns = field(init=False)
    rows: Any = field(init=False, default=None)  # what the fused kernel asks for
    held: dict[str | None, Held] = field(init=False)  # tensors of the state by their names; None is w
    numbers: dict[str, Tensor] = field(init=False, default_factory=dict)  # of the state, in vectors
    versions: list[int] = field(init=False, default_factory=list)  # of the weights, after the last step
    lr: Number = field(init=False)
    _scales: tuple[int, Any] = field(init=False, default=(-1, None))
    _distributed: bool = field(init=False)

    def __post_init__(self) -> None:
        self._distributed = not all(map(PLAIN.__contains__, map(type, self.params)))

    @property
    def names(self) -> tuple[str | None, ...]:
        """What u, m and v are called in the state."""
        return None if self.dual_dtype is None else "dual", *self.rule.moments

    def gather(self, name: str, start: float) -> None:
        """Put a number of the states into one vector, of which each state holds a view."""
        device = self.params[0].device if self.group["capturable"] else torch.device("cpu")
        dtype = torch.float32 if device.type == "mps" else torch.float64
        known = [state.get(name, torch.tensor(start)) for state in self.states]
        vector = torch.stack([(whole(n).mean() if n.ndim else n).detach().to(device, dtype) for n in known])
        for state, number in zip(self.states, vector.unbind(), strict=True):
            state[name] = number
        self.numbers[name] = vector

    def holds(self) -> bool:
        """Whether its tensors are those that they were when they were last looked at one by one."""
        if self._distributed or list(map(VERSION, self.weights)) != self.versions:
            return False
        try:
            return all(
                held.holds(self.weights if name is None else [state[name] for state in self.states])
                for name, held in self.held.items()
            ) and all(
                [state[name].data_ptr() for state in self.states]
                == list(range(start := vector.data_ptr(), start + vector.nbytes, vector.itemsize))
                for name, vector in self.numbers.items()
            )
        except KeyError:
            return False

    def scales(self) -> Any:
        """ψ''(s) of each parameter; sizes are read from a device once."""
        sizes = self.numbers["size"]
        if self._scales[0] != sizes._version:
            found = [self.rule.potential.curvature(size) for size in sizes.tolist()]
            self._scales = sizes._version, torch.tensor(found, dtype=sizes.dtype, device=sizes.device)
        return self._scales[1]
