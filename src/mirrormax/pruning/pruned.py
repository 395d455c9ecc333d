"""Masks on a model's tensors, through ``torch.nn.utils.prune``: put on, taken off, made part of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from mirrormax.pruning.places import Place


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
            path, _, own = name.rpartition(".")
            place = Place(name, self.model.get_submodule(path), own)
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
    found = {}
    for name, place in places.items():
        if place.mask is not None:
            found[name] = int((~place.mask).sum()), place.parameter.numel()
    return found


def _take_mask_off(place: Place) -> None:
    module, own, weight = place.module, place.own, place.parameter
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(hook, torch_prune.BasePruningMethod) and hook._tensor_name == own:
            del module._forward_pre_hooks[key]
    del module._buffers[f"{own}_mask"]
    del module._parameters[f"{own}_orig"]
    delattr(module, own)
    module.register_parameter(own, weight)


class _OutputMask:
    """nn.MultiheadAttention multiplies by its output weight without calling the layer, whose mask would not be seen."""

    def __call__(self, attention: nn.MultiheadAttention, inputs: object) -> None:
        layer = attention.out_proj
        if "weight_orig" in layer._parameters:
            layer.weight = layer.get_parameter("weight_orig") * layer.get_buffer("weight_mask")


def let_attention_see_its_output_mask(model: nn.Module) -> None:
    """Have every ``nn.MultiheadAttention`` put the mask of its output layer on before it computes."""
    for module in model.modules():
        if not isinstance(module, nn.MultiheadAttention) or "weight_orig" not in module.out_proj._parameters:
            continue
        if not any(isinstance(hook, _OutputMask) for hook in module._forward_pre_hooks.values()):
            module.register_forward_pre_hook(_OutputMask())
