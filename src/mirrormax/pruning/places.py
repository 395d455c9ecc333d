"""Which tensors of a model are pruned, where they lie, and how each is read as a matrix (outputs × inputs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from mirrormax.optim import param_groups


@dataclass(frozen=True, eq=False)
class Place:
    """A tensor of a model: the module that holds it, and its name there without what a mask adds to it."""

    name: str  # in the whole model
    module: nn.Module
    own: str

    @property
    def is_masked(self) -> bool:
        """Whether a mask of ``torch.nn.utils.prune`` lies on it."""
        return f"{self.own}_orig" in self.module._parameters

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter itself, without its mask."""
        return self.module.get_parameter(f"{self.own}_orig" if self.is_masked else self.own)

    @property
    def mask(self) -> Tensor | None:
        """True where the weight is kept; None without a mask."""
        return self.module.get_buffer(f"{self.own}_mask") != 0 if self.is_masked else None

    @property
    def value(self) -> Tensor:
        """The weight as the layer uses it: zero where it is masked."""
        mask = self.mask
        parameter = self.parameter.detach()
        return parameter if mask is None else parameter * mask

    def matrix(self, tensor: Tensor) -> Tensor:
        """A tensor of this shape as (outputs × inputs): filters are flattened, GPT-2's ``Conv1D`` is transposed."""
        return tensor.t() if self._inputs_first else tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]

    def tensor(self, matrix: Tensor) -> Tensor:
        """The way back from :meth:`matrix`."""
        return (matrix.t() if self._inputs_first else matrix).reshape(self.parameter.shape)

    @property
    def _inputs_first(self) -> bool:
        return type(self.module).__name__ == "Conv1D" and hasattr(self.module, "nf")


def find_places(model: nn.Module, params: str | Sequence[str]) -> dict[str, Place]:
    """The tensors that ``params`` names, by full name; shared ones and weights that are no numbers are refused."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}.")
    places = {place.name: place for place in _all_places(model)}
    chosen = _chosen(model, places, params)
    _refuse_shared(model, chosen)
    for name, place in chosen.items():
        if not bool(torch.isfinite(place.parameter).all()):
            raise ValueError(f"{name} holds weights that are NaN or infinite; mend the model, or leave {name} out.")
    return chosen


def _all_places(model: nn.Module) -> list[Place]:
    places = []
    for path, module in model.named_modules():
        for own, param in module._parameters.items():
            if param is None:
                continue
            plain = own.removesuffix("_orig")
            own = plain if f"{plain}_mask" in module._buffers else own
            places.append(Place(f"{path}.{own}" if path else own, module, own))
    return places


def _chosen(model: nn.Module, places: Mapping[str, Place], params: str | Sequence[str]) -> dict[str, Place]:
    if params in ("matrices", "attention"):
        ids = {id(param) for param in param_groups(model, scope=params)[0]["params"]}  # type: ignore[arg-type]
        return {name: place for name, place in places.items() if id(place.parameter) in ids}
    if isinstance(params, str):
        raise ValueError(f"params must be 'matrices', 'attention' or a list of patterns, got {params!r}.")
    for pattern in params:
        if not any(fnmatchcase(name, pattern) for name in places):
            raise ValueError(
                f"the pattern {pattern!r} in params matches no parameter; names look like {list(places)[:1]}."
            )
    return {name: place for name, place in places.items() if any(fnmatchcase(name, pattern) for pattern in params)}


def _refuse_shared(model: nn.Module, places: Mapping[str, Place]) -> None:
    holders: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        holders.setdefault(id(param), []).append(name)
    for name, place in places.items():
        names = holders[id(place.parameter)]
        if len(names) > 1:
            raise ValueError(
                f"{name} is shared ({', '.join(names)}), and a mask would part it; leave it out of params."
            )
