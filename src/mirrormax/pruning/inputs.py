"""How a model is called on a batch, and what its layers are given meanwhile."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mirrormax._attention_names import separate_projections
from mirrormax._checks import several
from mirrormax.pruning.places import Place

See = Callable[[str, Tensor], None]
"""What is told the name of a tensor and the inputs (…, inputs) that it was multiplied with."""


def answer(model: nn.Module, batch: Any) -> Any:
    """Call a model on a batch: a mapping without its ``"labels"``, a tuple of arguments, or a tensor."""
    if isinstance(batch, Mapping):
        inputs = {name: part for name, part in batch.items() if name != "labels"}
        known = inspect.signature(model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        return model(**inputs) if takes_any or known.keys() >= inputs.keys() else model(*inputs.values())
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def calibration(batches: Iterable[Any] | None, by: str) -> list[Any]:
    """The batches that a score measures on as a list, at least one."""
    if batches is None:
        raise ValueError(f"by={by!r} measures on data, got batches=None; give a few batches of the model's inputs.")
    listed = list(several("batches", batches, "batches"))
    if not listed:
        raise ValueError(f"by={by!r} needs at least one batch, got batches without any; give a few model inputs.")
    return listed


def _real_tokens(model: nn.Module, batch: Any) -> Tensor | None:
    """Where a batch (B, T) holds tokens and no padding, by its attention mask or the model's pad token; else None."""
    if isinstance(batch, Mapping) and isinstance(batch.get("attention_mask"), Tensor):
        mask: Tensor = batch["attention_mask"]
        return mask.bool() if mask.ndim == 2 else None
    pad = getattr(getattr(model, "config", None), "pad_id", None)
    ids = next(iter(batch.values())) if isinstance(batch, Mapping) and batch else batch
    if isinstance(pad, int) and isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point():
        return ids != pad
    return None


def input_sums(
    model: nn.Module,
    places: Mapping[str, Place],
    batches: Sequence[Any],
    of: Callable[[Tensor], Tensor],
    by: str,
    run: Callable[[int], Any] | None = None,
) -> dict[str, Tensor]:
    """The sum over batches of ``of(X)``, by tensor, X (tokens × inputs) being what it is multiplied with.

    X is without padding, and in single precision at least.
    ``run(k)`` runs on the k-th batch what these tensors are in; all of the model if it is None. Tensors whose inputs
    are not seen, or are no numbers, are refused in the name of the score ``by``.
    """
    totals: dict[str, Tensor] = {}
    real: Tensor | None = None

    def see(name: str, x: Tensor) -> None:
        x = x.detach() if x.dtype == torch.float64 else x.detach().float()
        with_padding = real is not None and x.ndim == 3 and x.shape[:2] == real.shape
        value = of(x[real] if with_padding else x.flatten(0, -2))
        totals[name] = totals[name].add_(value) if name in totals else value

    with watching(model, places, see):
        for k, batch in enumerate(batches):
            real = _real_tokens(model, batch)
            answer(model, batch) if run is None else run(k)
    check_seen(places, totals, by)
    for name, total in totals.items():
        if not bool(total.isfinite().all()):
            raise ValueError(
                f"by={by!r} found inputs of {name} on these batches that are NaN or infinite; mend the batches or the "
                "model, or use by='magnitude'."
            )
    return totals


def check_seen(places: Iterable[str], seen: Container[str], by: str) -> None:
    """Refuse a tensor whose layer was not called."""
    for name in places:
        if name not in seen:
            raise ValueError(
                f"by={by!r} needs the inputs of {name}, and the model did not call its layer on these batches; leave "
                "it out of params, or use by='magnitude'."
            )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and, of Hugging Face, without a cache of keys and values; afterwards as before."""
    config: Any = getattr(model, "config", None)
    caches = getattr(config, "use_cache", None)
    with ExitStack() as undo:
        for module in model.modules():
            undo.callback(setattr, module, "training", module.training)
        if isinstance(caches, bool):
            undo.callback(setattr, config, "use_cache", caches)
            config.use_cache = False
        model.eval()
        yield


@contextmanager
def differentiable(weights: Iterable[nn.Parameter]) -> Iterator[None]:
    """With gradients for these weights, frozen ones too; afterwards as before."""
    with ExitStack() as undo, torch.enable_grad():
        for weight in weights:
            undo.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(True)
        yield


@contextmanager
def watching(model: nn.Module, places: Mapping[str, Place], see: See) -> Iterator[None]:
    """Within it, ``see`` is told the inputs of each of these tensors whenever the model computes with it.

    ``nn.MultiheadAttention`` and the first-token attention of our own models compute with projections that they do
    not call; the inputs of these are the attention module's own.
    """
    names = {(place.module, place.own): name for name, place in places.items()}

    def before(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args:
            see(name, _patches(module, args[0]) if isinstance(module, nn.Conv2d) else args[0])

    with ExitStack() as stack:
        for (module, own), name in names.items():
            if own == "weight":
                stack.callback(module.register_forward_pre_hook(partial(before, name)).remove)
        for module in model.modules():
            _watch_uncalled(module, names, see, stack)
        if any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
            stack.enter_context(_MultiheadInputs(model, names, see))
        yield


def _patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The patches (B, places, inputs) that a convolution multiplies its filters with."""
    if layer.groups != 1 or isinstance(layer.padding, str):
        raise ValueError(f"{layer} has groups, or padding by name, and cannot be scored by inputs; leave it out.")
    return functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2)


def _watch_uncalled(module: nn.Module, names: Mapping[Any, str], see: See, stack: ExitStack) -> None:
    """Tell the module's input for those of its projections that it does not call."""
    parts = [module.get_submodule(name) for name in separate_projections(module) or ()]
    parts = [part for part in parts if (part, "weight") in names]
    called: set[nn.Module] = set()

    def after(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        for part in parts:
            if args and part not in called:
                see(names[part, "weight"], args[0])
        called.clear()

    if parts:
        stack.callback(module.register_forward_hook(after).remove)
    for part in parts:
        stack.callback(part.register_forward_pre_hook(lambda part, args: called.add(part)).remove)


class _MultiheadInputs(TorchFunctionMode):
    """Sees what ``nn.MultiheadAttention`` multiplies its packed and its output weights with."""

    def __init__(self, model: nn.Module, names: Mapping[Any, str], see: See) -> None:
        super().__init__()
        self.modules = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
        self.names, self.see = names, see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.multi_head_attention_forward:
            return func(*args, **(kwargs or {}))
        bound = inspect.signature(func).bind(*args, **(kwargs or {}))
        given = bound.arguments
        weight, bias = given["out_proj_weight"], given["out_proj_bias"]
        module = next(attention for attention in self.modules if attention.out_proj.weight is weight)

        def turned(x: Tensor) -> Tensor:
            return x.transpose(0, 1) if module.batch_first and x.ndim == 3 else x

        def tell(holder: nn.Module, own: str, x: Tensor) -> None:
            if (holder, own) in self.names:
                self.see(self.names[holder, own], x)

        if given["query"] is given["key"] is given["value"]:
            tell(module, "in_proj_weight", turned(given["query"]))
        for own in ("query", "key", "value"):
            tell(module, f"{own[0]}_proj_weight", turned(given[own]))
        # With the identity in place of the output layer it returns what that layer is given.
        given["out_proj_weight"] = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        given["out_proj_bias"] = None
        mixed, maps = func(*bound.args, **bound.kwargs)
        mixed = turned(mixed)  # the tensor that is told is the one that is computed with, so that it has a gradient
        tell(module.out_proj, "weight", mixed)
        return turned(functional.linear(mixed, weight, bias)), maps
