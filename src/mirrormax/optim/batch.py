"""Parameters that take the same step, and what is known of the tensors that they bring to it.

What was found out about them is found out again only if they have not kept type, shape, strides and memory: that is
looked at for every one of them, at every step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.optim.sharding import PLAIN, shard, whole
from mirrormax.optim.update import Numbers, Rule, Tensors

DTYPE, SHAPE, VERSION = attrgetter("dtype"), attrgetter("shape"), attrgetter("_version")
Places = list[int] | slice
ALL = slice(None)


class Held:
    """What some tensors of this process are, and where they lie.

    Their storages are held, so that no other can come to lie there.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._storages = [t.untyped_storage() for t in tensors]
        self._seen = _look(tensors, self._storages)

    def holds(self, tensors: Sequence[Tensor], places: Places = ALL) -> bool:
        """Whether these tensors, those at some places or all, are still the same, and still there."""
        return _look(tensors, at(self._storages, places)) == at(self._seen, places)


def _look(tensors: Sequence[Tensor], storages: Sequence[torch.UntypedStorage]) -> list[tuple[Any, ...]]:
    """All that matters of each tensor: one after the other, as each lies somewhere else in memory."""
    pairs = zip(tensors, storages, strict=True)
    return [(t.dtype, t.shape, t.stride(), t.data_ptr(), storage.nbytes()) for t, storage in pairs]


@dataclass
class Batch:
    """Parameters of one group that take the same step: they have gradients, one type, one device, one potential.

    What is prepared has no gradients; of each step's batch the parameters are those at ``places`` of what is held.
    """

    group: dict[str, Any]
    rule: Rule
    kernel: str  # "fused", "rows" of sparse gradients, or "any"
    params: list[Tensor]
    states: list[dict[str, Any]]
    dual_dtype: torch.dtype | None  # None if weights are their own dual variables
    weights: list[Tensor] = field(init=False)  # the parameters, or their shards
    columns: Tensors = field(init=False)
    rows: Any = field(init=False, default=None)  # what the fused kernel asks for
    held: dict[str | None, Held] = field(init=False)  # tensors of the state by their names; None is w
    vectors: dict[str, Tensor] = field(init=False, default_factory=dict)  # of the numbers in the state
    views: dict[str, list[Tensor]] = field(init=False, default_factory=dict)  # of these, which the states hold
    versions: Any = field(init=False)  # of the weights, when u was last known to be theirs
    # Of one step:
    places: Places = field(init=False)
    numbers: Numbers = field(init=False)
    threshold: float | None = None  # behind which the step itself puts the weights, where it is known before

    def __post_init__(self) -> None:
        self.places = ALL
        self._distributed = not all(map(PLAIN.__contains__, map(type, self.params)))

    @property
    def names(self) -> tuple[str | None, ...]:
        """What u, m and v are called in the state."""
        return None if self.dual_dtype is None else "dual", *self.rule.moments

    def gather(self, name: str, start: float) -> None:
        """Put a number of the states into one vector, of which each state holds a view."""
        device = self.params[0].device if self.group["capturable"] else torch.device("cpu")
        dtype = torch.float32 if device.type == "mps" else torch.float64
        vector = self.vectors[name] = torch.full((len(self.states),), start, dtype=dtype, device=device)
        self.views[name] = list(vector.unbind())
        for number, state in zip(self.views[name], self.states, strict=True):
            known = state.get(name, start)
            number.copy_(whole(known).detach().to(dtype).mean()) if isinstance(known, Tensor) else number.fill_(known)
            state[name] = number

    def those(self, places: Places, group: dict[str, Any]) -> Batch:
        """The parameters at these places, for a step in which the others have no gradients, and the group as it is."""
        part = copy.copy(self)
        part.places, part.group = places, group
        part.params, part.states, part.weights = (at(each, places) for each in (self.params, self.states, self.weights))
        part.columns = self.columns.each(lambda column: at(column, places))
        part.rows = None if self.rows is None else self.rows.those(places)
        return part

    def number(self, name: str) -> Tensor:
        """A number of the state, of each parameter."""
        return self.vectors[name][self.places]

    def set_number(self, name: str, values: Tensor) -> None:
        """Write what :meth:`number` gives."""
        self.vectors[name][self.places] = values

    def holds(self) -> bool:
        """Whether its tensors are those that they were when they were last looked at one by one."""
        if self._distributed or (self.versions[self.places] != self.versions_now()).any():
            return False
        try:
            return all(
                held.holds(self.weights if name is None else self._kept(name), self.places)
                for name, held in self.held.items()
            ) and all(all(map(is_, self._kept(name), at(views, self.places))) for name, views in self.views.items())
        except (KeyError, AttributeError):  # something is gone, or no tensor any more
            return False

    def _kept(self, name: str) -> list[Any]:
        """What the states have under a name."""
        return list(map(itemgetter(name), self.states))

    def stands(self, place: int) -> bool:
        """Whether nobody has written the weights at a place since, as far as torch can tell."""
        param = self.params[place]
        return bool(self.versions_now([param]) == self.versions[place]) and self.held[None].holds(
            [shard(param)], [place]
        )

    def versions_now(self, params: list[Tensor] | None = None) -> Any:
        """What tells of writes; a write into a distributed tensor does not count as one into its shard."""
        params = self.params if params is None else params
        if self._distributed:
            return np.array([param._version + shard(param)._version for param in params])
        return np.array(list(map(VERSION, params)))


def at(column: list[Any], places: Places) -> list[Any]:
    """What a column has at these places."""
    return column if isinstance(places, slice) else [column[place] for place in places]
