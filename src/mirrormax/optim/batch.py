"""Parameters that take the same step, and what is known of the tensors that they bring to it.

Thousands of small tensors are asked in columns (``map`` over a list), and what was found out about them is found out
again only if they do not lie any more where they lay: that is looked at for every one of them, at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.sharding import shard
from mirrormax.optim.update import Number, Rule, Tensors

PLAIN = frozenset((Tensor, torch.nn.Parameter))  # subclasses may be anything
DTYPE, VERSION = attrgetter("dtype"), attrgetter("_version")
ADDRESS, SIZE = torch.UntypedStorage.data_ptr, torch.UntypedStorage.nbytes


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
    """Where some tensors lie.

    Their storages are held, so that no other can come to lie there. As long as these have their addresses and
    sizes, a tensor's memory is where it was; as long as a tensor has its address, it is that memory.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Potentials that need all of a tensor get distributed ones, whose own storage holds nothing.
        self._distributed = any(shard(t) is not t for t in tensors)
        self._storages = list({id(s): s for s in [shard(t).untyped_storage() for t in tensors]}.values())
        self._seen = self._look(tensors)

    def _look(self, tensors: Sequence[Tensor]) -> Any:
        storages = self._storages
        if self._distributed:
            tensors = list(map(shard, tensors))
        return list(map(Tensor.data_ptr, tensors)), list(map(ADDRESS, storages)), list(map(SIZE, storages))

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors are still there."""
        return bool(self._look(tensors) == self._seen)


class Column(Held):
    """One number of the state of several parameters, kept in one vector, of which each state holds a view."""

    def __init__(self, states: Sequence[dict[str, Any]], name: str) -> None:
        vector = torch.stack([state[name].detach().to("cpu", torch.float64).reshape(()) for state in states])
        for state, number in zip(states, vector.unbind(), strict=True):
            state[name] = number
        self.vector = vector.numpy()
        super().__init__([state[name] for state in states])

    def _look(self, tensors: Sequence[Tensor]) -> Any:
        # The vector is nobody else's, so that its numbers only have to be the same objects.
        return list(map(id, tensors)), *super()._look(tensors[:1])

    def write(self, values: Any) -> None:
        """Replace the numbers."""
        self.vector[:] = values


@dataclass
class Batch:
    """Parameters of one group that take the same step: they have gradients, one type and one potential."""

    group: dict[str, Any]
    rule: Rule
    of_group: Potential  # the group's; that of the rule is another one for tensors that began at zero
    places: list[int]  # among the parameters of the group that have gradients
    params: list[Tensor]
    states: list[dict[str, Any]]
    host: bool  # whether all of it is on the CPU, where numbers may be read at any time
    own: bool  # whether weights are their own dual variables
    names: tuple[str | None, ...]  # of u, m and v in the state
    weights: list[Tensor] = field(init=False)  # the parameters, or their shards
    columns: Columns = field(init=False)
    held: dict[str | None, Held] = field(init=False)  # tensors and numbers of the state by their names; None is w
    versions: list[int] = field(init=False, default_factory=list)  # of the weights, after the last step
    lr: Number = field(init=False)
    rows: Any = field(init=False, default=None)  # what the fused kernel asks for, if it is wanted
    taken: list[int] = field(init=False)  # places whose rows it takes this time
    rest: list[int] = field(init=False)  # the others
    _scales: tuple[list[float], Any] = field(init=False, default=([], ()))
    _read: dict[str, tuple[list[int], list[float]]] = field(init=False, default_factory=dict)

    @property
    def grads(self) -> list[Tensor]:
        return self.columns.g

    def receive(self, grads: list[Tensor]) -> None:
        """Take the gradients of a step, and see which rows are complete with them."""
        self.columns, places = self.columns._replace(g=grads), range(len(grads))
        self.taken = [] if self.rows is None else self.rows.receive(grads)
        self.rest = [] if len(self.taken) == len(grads) else sorted(set(places).difference(self.taken))

    def holds(self) -> bool:
        """Whether its tensors are those that they were when they were last looked at one by one."""
        if list(map(VERSION, self.params)) != self.versions:
            return False
        try:
            return all(
                held.holds(self.params if name is None else [state[name] for state in self.states])
                for name, held in self.held.items()
            )
        except KeyError:
            return False

    def column(self, name: str) -> Column:
        """A number of the state of all its parameters."""
        held = self.held[name]
        assert isinstance(held, Column)
        return held

    def known(self, name: str) -> Any:
        """Numbers of the state that a step does not change; from a device they are read once."""
        if self.host:
            return self.column(name).vector
        numbers = [state[name] for state in self.states]
        versions = list(map(VERSION, numbers))
        if name not in self._read or self._read[name][0] != versions:
            self._read[name] = versions, [float(number) for number in numbers]
        return self._read[name][1]

    def scales(self, sizes: Any) -> Any:
        """ψ''(s) of each parameter."""
        known = list(sizes)
        if self._scales[0] != known:
            self._scales = known, np.array([self.rule.potential.curvature(float(size)) for size in known])
        return self._scales[1]


class Roster:
    """The batches of a group, as long as the same parameters come with gradients under the same options."""

    def __init__(self, key: Any, params: list[Tensor], states: list[dict[str, Any]], batches: list[Batch]) -> None:
        self.key, self.params, self.states, self.batches = key, params, states, batches
        self._ids = self._of(params, states)
        self._plain = all(map(PLAIN.__contains__, map(type, params)))

    @staticmethod
    def _of(params: list[Tensor], states: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        return list(map(id, params)), list(map(id, states))

    def holds(self, key: Any, params: list[Tensor], states: list[dict[str, Any]]) -> bool:
        """Whether the batches can be taken as they are, with new gradients."""
        if not self._plain or key != self.key or self._of(params, states) != self._ids:
            return False
        return all(batch.holds() for batch in self.batches)
