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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.auditing.layers import Adapter, AttentionLayer, Seen

AGREEMENT = 1e-3
"""How far a layer's recomputed output may be from its own, relative to its largest entry; float32 has 1e-6."""


@dataclass(frozen=True, eq=False)
class View:
    """One layer in one batch: x (B, T, d), z (B, Q, d), mask (B, Q, T), output and its gradient (B, R, d) or None.

    The output is that of the first R ≤ Q queries: a last layer need not work out rows that nobody reads.
    """

    x: Tensor
    z: Tensor
    mask: Tensor
    output: Tensor
    gradient: Tensor | None


class Watch:
    """A model under observation; use :func:`watching`."""

    def __init__(self, adapter: Adapter, layers: list[AttentionLayer], seen: list[Seen]) -> None:
        self.adapter, self.layers, self.seen = adapter, layers, seen
        self.output: Any = None  # what the model answered to the last batch

    def run(self, batch: Any, score: Callable[[Any], Tensor | None] | None = None) -> list[View]:
        """One pass: a view of every layer, with gradients of Σ score(output) at their outputs if there is a score.

        ``score`` takes the model's output and returns one number per sequence, or None where there is none.
        """
        for seen in self.seen:
            seen.x = seen.z = seen.mask = seen.output = seen.probe = None
        batch = _ordinary(batch)
        with torch.inference_mode(False), torch.set_grad_enabled(score is not None):
            self.output = self.adapter.call(batch)
            total = None if score is None else score(self.output)
            gradients = self._gradients(total)
        mask = self.adapter.mask(batch)
        views = [_view(layer, seen, mask, g) for layer, seen, g in zip(self.layers, self.seen, gradients, strict=True)]
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
def watching(adapter: Adapter, layers: list[AttentionLayer]) -> Iterator[Watch]:
    """Hook the layers and set the model to evaluation; whatever happens, undo all of it.

    Only forward hooks are added; parameters, buffers, gradients and each module's train/eval flag stay or come back.
    """
    modes = [(module, module.training) for module in adapter.model.modules()]
    seen: list[Seen] = [Seen() for _ in layers]
    handles = []
    # torch's fused encoder path would go round the attention modules, and with them round the hooks.
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        nn.Module.eval(adapter.model)
        for layer, one in zip(layers, seen, strict=True):
            handles += layer.attach(one)
        yield Watch(adapter, layers, seen)
    finally:
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


def check_agreement(layer: AttentionLayer, view: View) -> None:
    """Refuse a layer that does not compute what :mod:`mirrormax.auditing.layers` says, seen from its own output."""
    done = view.output.shape[1]
    mask = view.mask[:, :done]
    rows = mask.any(-1)  # a query that may look nowhere has no attention
    attention = attention_of(layer.logits(view.x, view.z[:, :done]), mask)
    error = (layer.mix(attention, view.x) - view.output)[rows].abs().max()
    allowed = AGREEMENT * view.output[rows].abs().max()
    if view.output.dtype in (torch.float16, torch.bfloat16):
        allowed = allowed * 50
    if not error <= allowed:
        raise ValueError(
            f"layer {layer.name} does not compute plain softmax attention: recomputed, its output is off by "
            f"{float(error):.1e}; rotary or relative positions, extra masks and pruned heads cannot be audited."
        )


def attention_of(logits: Tensor, mask: Tensor) -> Tensor:
    """softmax over the tokens a query may look at, for logits (B, H, Q, T) and mask (B, Q, T); zero where none."""
    hidden = logits.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return torch.softmax(hidden, -1).nan_to_num(0.0)


def _view(layer: AttentionLayer, seen: Seen, mask: Tensor | None, gradient: Tensor | None) -> View:
    if seen.x is None or seen.output is None:
        raise ValueError(f"layer {layer.name} was not called in the forward pass; the audit needs every layer to run.")
    z = seen.x if seen.z is None else seen.z
    shape = (len(seen.x), z.shape[1], seen.x.shape[1])
    if seen.mask is not None:
        whole = seen.mask
    elif mask is None:
        whole = torch.ones(shape, dtype=torch.bool, device=seen.x.device)
    else:
        if mask.shape != (shape[0], shape[2]):
            raise ValueError(f"the mask of a batch has shape {tuple(mask.shape)}, its tokens {(shape[0], shape[2])}.")
        whole = mask.unsqueeze(1).expand(shape)
    if not torch.isfinite(seen.x).all():
        raise ValueError(f"layer {layer.name} was given numbers that are not finite; check the model's weights.")
    return View(seen.x, z, whole, seen.output, gradient)


def _ordinary(batch: Any) -> Any:
    """Tensors made in inference mode cannot take part in a pass with gradients; their copies can."""
    if isinstance(batch, Tensor):
        with torch.inference_mode(False):
            return batch.clone() if batch.is_inference() else batch
    if isinstance(batch, Mapping):
        return {name: _ordinary(part) for name, part in batch.items()}
    return type(batch)(_ordinary(part) for part in batch) if isinstance(batch, tuple | list) else batch
