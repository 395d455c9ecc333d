"""Which tensors of a model are pruned, how each is read as a matrix (outputs × inputs), and the masks on them.

Masks are those of ``torch.nn.utils.prune``: put on, taken off, or made part of the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from mirrormax.optim import param_groups


@dataclass(frozen=True, eq=False)
class Place:
    """A tensor of a model: the module that holds it, and its name there without what a mask adds to it."""

    name: str  # in the whole model
    module: nn.Module
    own: str

    @classmethod
    def of(cls, model: nn.Module, name: str) -> Place:
        """The place of a parameter, which ``name`` names with or without what a mask adds."""
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        plain = own.removesuffix("_orig")
        own = plain if f"{plain}_mask" in module._buffers else own
        return cls(f"{path}.{own}" if path else own, module, own)

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
    places: dict[str, Place] = {}
    holders: dict[int, list[str]] = defaultdict(list)
    for full, param in model.named_parameters(remove_duplicate=False):
        place = Place.of(model, full)
        places[place.name] = place
        holders[id(param)].append(full)
    chosen = _chosen(model, places, params)
    for name, place in chosen.items():
        names = holders[id(place.parameter)]
        if len(names) > 1:
            raise ValueError(
                f"{name} is shared ({', '.join(names)}), and a mask would part it; leave it out of params."
            )
        if not bool(torch.isfinite(place.parameter).all()):
            raise ValueError(f"{name} holds weights that are NaN or infinite; mend the model, or leave {name} out.")
    return chosen


def matrix_shapes(places: Mapping[str, Place]) -> dict[str, torch.Size]:
    """(outputs × inputs) of tensors."""
    return {name: place.matrix(place.parameter).shape for name, place in places.items()}


def _chosen(model: nn.Module, places: Mapping[str, Place], params: str | Sequence[str]) -> dict[str, Place]:
    if isinstance(params, str) and params in ("matrices", "attention"):
        try:
            weights = param_groups(model, scope=params)[0]["params"]  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(
                f"params={params!r} names no tensor of {type(model).__name__}; give a list of patterns, such as "
                "['*.weight']."
            ) from error
        ids = set(map(id, weights))
        return {name: place for name, place in places.items() if id(place.parameter) in ids}
    if not isinstance(params, list | tuple) or not params or not all(isinstance(pattern, str) for pattern in params):
        raise ValueError(f"params must be 'matrices', 'attention' or a list of patterns, got {params!r}.")
    for pattern in params:
        if not any(fnmatchcase(name, pattern) for name in places):
            raise ValueError(
                f"the pattern {pattern!r} in params matches no parameter; names look like {list(places)[:1]}."
            )
    return {name: place for name, place in places.items() if any(fnmatchcase(name, pattern) for pattern in params)}


@dataclass
class Pruned:
    """What was pruned: for each tensor, how many of its entries are zero now and how many it has."""

    model: nn.Module = field(repr=False)
    tensors: dict[str, tuple[int, int]]
    before: dict[str, Tensor] = field(default_factory=dict, repr=False)  # weights that SparseGPT has changed

    @property
    def share(self) -> float:
        """The share of the entries of these tensors that is pruned."""
        return sum(zero for zero, _ in self.tensors.values()) / max(1, sum(size for _, size in self.tensors.values()))

    def undo(self) -> None:
        """Put back all that was ever pruned from these tensors, with what training has made of the weights since.

        What SparseGPT has changed becomes what it was before it, whatever training has done since.
        """
        for place in self._places():
            with torch.no_grad():
                if place.name in self.before:
                    place.parameter.copy_(self.before[place.name])
            _take_mask_off(place)

    def finish(self) -> None:
        """Make the zeros part of the weights: no masks are left, and nothing can be undone."""
        for place in self._places():
            with torch.no_grad():
                place.parameter.copy_(place.value)
            _take_mask_off(place)
        self.before.clear()

    def _places(self) -> Iterator[Place]:
        for name in self.tensors:
            place = Place.of(self.model, name)
            if not place.is_masked:
                raise ValueError(f"{name} has no mask any more; it was undone or finished before.")
            yield place


def put_mask_on(place: Place, keep: Tensor) -> None:
    """Keep only these entries of a tensor, beside what an earlier mask leaves."""
    module, own, dtype = place.module, place.own, place.parameter.dtype
    if place.mask is not None:
        module._buffers[f"{own}_mask"] = (keep & place.mask).to(dtype)
        setattr(module, own, place.parameter * module.get_buffer(f"{own}_mask"))
    else:
        torch_prune.custom_from_mask(module, own, keep)
        module._buffers[f"{own}_mask"] = module.get_buffer(f"{own}_mask").to(dtype)


def counted(places: Mapping[str, Place]) -> dict[str, tuple[int, int]]:
    """Pruned entries and all entries of tensors with masks."""
    masks = {name: place.mask for name, place in places.items()}
    return {name: (int((~mask).sum()), mask.numel()) for name, mask in masks.items() if mask is not None}


def _take_mask_off(place: Place) -> None:
    module, own, weight = place.module, place.own, place.parameter
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, torch_prune.BasePruningMethod) and hook._tensor_name == own:
            del module._forward_pre_hooks[key]
    del module._buffers[f"{own}_mask"]
    del module._parameters[f"{own}_orig"]
    delattr(module, own)
    module.register_parameter(own, weight)


def _mask_output(attention: nn.MultiheadAttention, inputs: object) -> None:
    """nn.MultiheadAttention multiplies by its output weight without calling the layer, whose mask would not be seen."""
    layer = attention.out_proj
    if "weight_orig" in layer._parameters:
        layer.weight = layer.get_parameter("weight_orig") * layer.get_buffer("weight_mask")


def let_attention_see_its_output_mask(model: nn.Module) -> None:
    """Have every ``nn.MultiheadAttention`` put the mask of its output layer on before it computes."""
    for module in model.modules():
        if not isinstance(module, nn.MultiheadAttention) or "weight_orig" not in module.out_proj._parameters:
            continue
        if _mask_output not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_mask_output)
