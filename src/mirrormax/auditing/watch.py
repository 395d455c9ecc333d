"""A model under observation: hooks that catch what its attention layers are given, all of them undone afterwards."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax._attention_names import BEHIND
from mirrormax.auditing.adapters import Adapter, Part
from mirrormax.auditing.calls import UNSEEN, Call, Products, turn_of
from mirrormax.auditing.layers import Layer, View, check_output

FUNCTION = "eager_attention_forward"
"""What attention layers of transformers call with queries, keys and values."""


class Watch:
    """A model under observation; use :func:`watching`.

    Which layers there are, and in which order, is known from the first pass: one for every call of an attention
    module. Modules that are shared run several times, and those of a part that is not in use never.
    """

    def __init__(self, adapter: Adapter, parts: Mapping[nn.Module, Part]) -> None:
        self.adapter, self.parts = adapter, parts
        self.layers: list[Layer] = []
        self.output: Any = None  # what the model answered to the last batch
        self._begun = 0  # layers in this pass
        self._current: dict[nn.Module, tuple[Layer, Mapping[str, Any]]] = {}

    def run(
        self, batch: Any, score: Callable[[Any], Tensor | None] | None = None, ask: Callable[[Any], Any] | None = None
    ) -> list[View]:
        """One pass: a view of every layer, with gradients of Σ score(output) at their outputs if there is a score.

        ``score`` takes the model's output and returns one number per sequence, or None where there is none; ``ask`` is
        the adapter's ``call`` by default.
        """
        batch = _ordinary(batch)
        with torch.inference_mode(False), torch.set_grad_enabled(score is not None):
            self.answer(batch, ask or self.adapter.call)
            total = None if score is None else score(self.output)
            views = [layer.view() for layer in self.layers]
            if total is not None and total.requires_grad:
                probes = [view.call.probe for view in views]
                gradients = torch.autograd.grad(total.sum(), probes, allow_unused=True)
                for view, gradient in zip(views, gradients, strict=True):
                    view.gradient = gradient
        for view in views:
            view.call.probe = UNSEEN
        return views

    def answer(self, batch: Any, ask: Callable[[Any], Any]) -> Any:
        """What ``ask(batch)`` answers, with everything caught that its layers were given."""
        known, self._begun = len(self.layers), 0
        self.output = ask(batch)
        if not self._begun:
            names = ", ".join(sorted({type(module).__name__ for module in self.parts}))
            raise ValueError(
                f"no attention layer of the {type(self.adapter.model).__name__} ran on the batch, though it has "
                f"{names}; give batches that reach them, or the part of the model that is to be audited."
            )
        if known and self._begun != known:
            raise ValueError(
                f"{self._begun} attention layers ran on a batch and {known} on the first; the audit needs the same "
                "layers for every batch."
            )
        return self.output

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call of an attention module begins."""
        part = self.parts[module]
        if self._begun == len(self.layers):
            before = sum(layer.module is module for layer in self.layers)
            name = f"{part.name} (call {before})" if before else part.name
            self.layers.append(Layer(name, module, part.projection, self.adapter.form))
        layer = self.layers[self._begun]
        if layer.module is not module:
            raise ValueError(f"layer {part.name} ran where {layer.name} ran before; the audit needs one order.")
        self._begun += 1
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        layer.call = Call(turn=turn_of(module, given), edit=layer.edit)
        self._current[module] = (layer, given)

    def hook(self, module: nn.Module, undo: ExitStack) -> None:
        """Hook one attention module, until ``undo`` is closed."""
        part = self.parts[module]
        handles = [module.register_forward_pre_hook(self.begin, with_kwargs=True)]
        behind = (getattr(module, name, None) for name in BEHIND)
        output = next((layer for layer in behind if isinstance(layer, nn.Linear)), None)
        if part.way is None:
            for rotary in (child for name, child in module.named_children() if "rotary" in name):
                handles += [rotary.register_forward_hook(lambda _, __, out: self._see_turn(module, out))]
            query = module.get_submodule(part.projection)
            handles += [query.register_forward_pre_hook(lambda _, args: self._see_hidden(module, args[0]))]
            self._see_products(module, undo)
        elif isinstance(module, nn.MultiheadAttention):
            handles += [module.register_forward_hook(lambda _, __, out: self._mixed(module, out))]
        elif output is None:
            handles += [module.register_forward_hook(lambda _, __, out: (self._worked_out(module, out[0]), *out[1:]))]
        else:
            answer = output.register_forward_pre_hook
            handles += [answer(lambda _, args: (self._worked_out(module, args[0]), *args[1:]))]
        for handle in handles:
            undo.enter_context(handle)

    def _see_turn(self, module: nn.Module, turn: Any) -> None:
        call = self._current[module][0].call
        call.turn = turn_of(module, {"position_embeddings": turn}) or call.turn

    def _see_hidden(self, module: nn.Module, hidden: Tensor) -> None:
        call = self._current[module][0].call
        if call.hidden is UNSEEN:
            call.hidden = hidden.detach()

    def _see_products(self, module: nn.Module, undo: ExitStack) -> None:
        """Watch what the module multiplies, for the case that it calls no function that is known."""
        own, before = module.forward, vars(module).get("forward")

        def forward(*args: Any, **kwargs: Any) -> Any:
            with Products(self._current[module][0].call):
                return own(*args, **kwargs)

        if before is not None:
            undo.callback(setattr, module, "forward", before)
        undo.callback(vars(module).pop, "forward")
        module.forward = forward

    def _take(self, module: nn.Module) -> Layer:
        layer, given = self._current[module]
        way = self.parts[module].way
        assert way is not None
        with torch.no_grad():
            way(module, given, layer.call)
        return layer

    def _worked_out(self, module: nn.Module, context: Tensor) -> Tensor:
        """What the module goes on with, for its heads' outputs (B, R, H · d_v) before they are mixed."""
        call = self._take(module).call
        return call.answered(context.unflatten(-1, (call.query.shape[1], -1))).flatten(-2)

    def _mixed(self, module: nn.MultiheadAttention, out: tuple[Tensor, Tensor | None]) -> Any:
        """torch's module shows its output alone: the heads' outputs are recomputed, and changes of them added to it."""
        layer = self._take(module)
        own = out[0] if module.batch_first else out[0].transpose(0, 1)
        weight, bias = module.out_proj.weight, module.out_proj.bias
        with torch.no_grad():
            context = View(layer, layer.call).mixed().to(own.dtype)
            again = nn.functional.linear(context.flatten(-2), weight, bias)
            check_output(layer.name, again, own, layer.call.mask.any(-1))
        answered = layer.call.answered(context)
        if answered is context:
            return None
        changed = own + nn.functional.linear((answered - context).flatten(-2), weight)
        return (changed if module.batch_first else changed.transpose(0, 1), *out[1:])

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a file of transformers, which also writes down what it is given."""
        signature = inspect.signature(function)

        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if "attention_mask" in kwargs:
                mask = kwargs.pop("attention_mask")
            if module not in self.parts or self.parts[module].way is not None:
                return function(module, query, key, value, mask, *args, **kwargs)
            layer = self._current[module][0]
            call = layer.call
            call.by_function = True
            try:
                context, *rest = function(module, query, key, value, mask, *args, **kwargs)
            except RuntimeError as error:
                raise ValueError(
                    f"layer {layer.name} ({type(module).__name__}) cannot compute its attention by its own {FUNCTION} "
                    f"({str(error).splitlines()[0].rstrip('.')}), and so the model cannot be audited."
                ) from error
            given = signature.bind(module, query, key, value, mask, *args, **kwargs).arguments
            given = {**given, **given.get("kwargs", {})}
            sinks = given.get("s_aux", getattr(module, "sinks", None))
            call.cap, call.sinks = given.get("softcap"), sinks if isinstance(sinks, Tensor) else None
            scale, bias = given.get("scaling"), given.get("position_bias")
            call.take(call.hidden, query, key, value, scale=scale, mask=mask, bias=bias)
            return (call.answered(context), *rest)

        return attention


@contextmanager
def watching(adapter: Adapter) -> Iterator[Watch]:
    """Hook the attention modules and set the model to evaluation; whatever happens, undo all of it.

    Parameters, buffers, gradients and each module's train/eval flag stay or come back. Parameters ask for no gradient
    meanwhile: only those at the heads' outputs are wanted, and they cost less alone. Models of transformers compute
    their attention by the function that can be watched.
    """
    watch, model = Watch(adapter, adapter.parts()), adapter.model
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "config")]
    configs = {id(part.config): part.config for part in parts}.values()
    known = [(config, getattr(config, "_attn_implementation", None)) for config in configs]
    with ExitStack() as undo:
        for module in model.modules():
            undo.callback(setattr, module, "training", module.training)
        for parameter in model.parameters():
            undo.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(False)
        nn.Module.eval(model)
        # torch's fused encoder path would go round the attention modules, and with them round the hooks.
        undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        for config, implementation in known:
            if implementation is not None:
                undo.callback(setattr, config, "_attn_implementation", implementation)
                config._attn_implementation = "eager"
        for file in {sys.modules[type(module).__module__] for module in watch.parts}:
            if FUNCTION in vars(file):
                function = vars(file)[FUNCTION]
                undo.callback(setattr, file, FUNCTION, function)
                setattr(file, FUNCTION, watch.wrapped(function))
        for module in watch.parts:
            watch.hook(module, undo)
        yield watch


def scorer(adapter: Adapter, labels: Tensor | None) -> Callable[[Any], Tensor | None]:
    """From a model's output to log-odds (B,), or None where it has no head."""

    def score(output: Any) -> Tensor | None:
        logits = adapter.logits(output)
        return None if logits is None else log_odds(logits, labels)

    return score


def log_odds(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Of each row's label, or of the class it predicts: logits (B, classes) to (B,)."""
    if logits.ndim != 2:
        raise ValueError(f"the head must give logits (batch, classes), got shape {tuple(logits.shape)}.")
    if logits.shape[1] == 1:
        return logits[:, 0]
    chosen = logits.argmax(-1) if labels is None else labels.to(logits.device).long()
    own = torch.nn.functional.one_hot(chosen, logits.shape[1]).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).logsumexp(-1)


def _ordinary(batch: Any) -> Any:
    """Tensors made in inference mode cannot take part in a pass with gradients; their copies can."""
    if isinstance(batch, Tensor):
        with torch.inference_mode(False):
            return batch.clone() if batch.is_inference() else batch
    if isinstance(batch, Mapping):
        return {name: _ordinary(part) for name, part in batch.items()}
    return type(batch)(_ordinary(part) for part in batch) if isinstance(batch, tuple | list) else batch
