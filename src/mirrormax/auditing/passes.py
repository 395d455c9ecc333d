"""Forward passes that watch every attention layer and leave the model as it was.

Token scores need a gradient. The paper scores a token by γ_t = y vᵀx_t, where v is the linear head behind the
attention. Behind a head of a deep model stands everything after it; to first order that is linear as well. With G the
gradient of the model's log-odds for a class at the layer's output (the query's row),

    γ_t = Gᵀ W_O W_V x_t,

how much the log-odds would rise per unit of attention moved to token t. The log-odds of class c are
logit_c − log Σ_{k≠c} exp(logit_k): shifting all logits does not change them, and for two classes they are the paper's
y · f. A model with a single output is scored by that output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.auditing.layers import Adapter, Layer, View


class Watch:
    """A model under observation; use :func:`watching`."""

    def __init__(self, adapter: Adapter, layers: list[Layer], seen: list[Any]) -> None:
        self.adapter, self.layers, self.seen = adapter, layers, seen
        self.output: Any = None  # what the model answered to the last batch

    def run(self, batch: Any, score: Callable[[Any], Tensor | None] | None = None) -> list[View]:
        """One pass: a view of every layer, with gradients of Σ score(output) at their outputs if there is a score.

        ``score`` takes the model's output and returns one number per sequence, or None where there is none.
        """
        for seen in self.seen:
            seen.clear()
        batch = _ordinary(batch)
        with torch.inference_mode(False), torch.set_grad_enabled(score is not None):
            self.output = self.adapter.call(batch)
            total = None if score is None else score(self.output)
            gradients = self._gradients(total)
        mask = self.adapter.mask(batch)
        views = [layer.view(seen, mask, g) for layer, seen, g in zip(self.layers, self.seen, gradients, strict=True)]
        for seen in self.seen:
            seen.probe = None
        return views

    def _gradients(self, total: Tensor | None) -> list[Tensor | None]:
        if total is None or not total.requires_grad:
            return [None] * len(self.seen)
        probes = [seen.probe for seen in self.seen if seen.probe is not None]
        found = iter(torch.autograd.grad(total.sum(), probes, allow_unused=True))
        return [None if seen.probe is None else next(found) for seen in self.seen]


@contextmanager
def watching(adapter: Adapter, layers: list[Layer]) -> Iterator[Watch]:
    """Hook the layers and set the model to evaluation; whatever happens, undo all of it.

    Only forward hooks are added; parameters, buffers, gradients and each module's train/eval flag stay or come back.
    Parameters ask for no gradient meanwhile: only those at the layers' outputs are wanted, and they cost less alone.
    """
    modes = [(module, module.training) for module in adapter.model.modules()]
    trained = [parameter for parameter in adapter.model.parameters() if parameter.requires_grad]
    seen = [layer.new() for layer in layers]
    handles = []
    # torch's fused encoder path would go round the attention modules, and with them round the hooks.
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        nn.Module.eval(adapter.model)
        for parameter in trained:
            parameter.requires_grad_(False)
        with adapter.prepared():
            for layer, one in zip(layers, seen, strict=True):
                handles += layer.attach(one)
            yield Watch(adapter, layers, seen)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes:
            module.training = training


def scorer(
    adapter: Adapter, head: Callable[[Any], Tensor] | None, labels: Tensor | None
) -> Callable[[Any], Tensor | None]:
    """From a model's output to log-odds (B,), or None where it has no head."""

    def score(output: Any) -> Tensor | None:
        logits = adapter.logits(output) if head is None else head(output)
        return None if logits is None else log_odds(logits, labels)

    return score


def log_odds(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Of each row's label, or of the class it predicts: logits (B, classes) to (B,)."""
    if logits.ndim != 2:
        raise ValueError(f"the head must give logits (batch, classes), got shape {tuple(logits.shape)}.")
    if logits.shape[1] == 1:
        return logits[:, 0]
    chosen = logits.argmax(-1) if labels is None else labels.to(logits.device).long()
    one = torch.nn.functional.one_hot(chosen, logits.shape[1]).bool()
    return logits[one] - logits.masked_fill(one, -torch.inf).logsumexp(-1)


def _ordinary(batch: Any) -> Any:
    """Tensors made in inference mode cannot take part in a pass with gradients; their copies can."""
    if isinstance(batch, Tensor):
        with torch.inference_mode(False):
            return batch.clone() if batch.is_inference() else batch
    if isinstance(batch, Mapping):
        return {name: _ordinary(part) for name, part in batch.items()}
    return type(batch)(_ordinary(part) for part in batch) if isinstance(batch, tuple | list) else batch
