"""Does a head matter? Change one head of a model and see what that does to its answers.

Two changes: *off* sets the head's output to zero; *max-margin* gives it the max-margin weights of its own selection in
place of its own, scaled to the same norm, so that it selects the same tokens on the audit's sample by the widest
margin, and whatever follows from that elsewhere. What is measured, text by text:

* of a language model, the loss: mean −log p(next token) in nats, and its rise over the unchanged model's;
* of a classifier, −log p of the class that the unchanged model predicts, and its rise;
* of an encoder without a head, 1 − cosine of its mean token vector to the unchanged one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.bootstrap import Estimate, mean_interval
from mirrormax.auditing.hugging_face import HuggingFaceAdapter
from mirrormax.auditing.passes import Watch, watching
from mirrormax.auditing.query_form import Caught, CaughtLayer, Edit, other_context
from mirrormax.auditing.result import Effect

Array = npt.NDArray[np.float64]
OFF, MAX_MARGIN = "off", "max-margin"


@dataclass(frozen=True, eq=False)
class Change:
    """One head of one layer, and the weights to give it; None switches it off."""

    layer: int
    head: int
    weights: Tensor | None

    @property
    def kind(self) -> str:
        return OFF if self.weights is None else MAX_MARGIN


def check_changeable(adapter: Any) -> HuggingFaceAdapter:
    """The adapter, refused if its heads cannot be changed one by one."""
    if not isinstance(adapter, HuggingFaceAdapter):
        raise ValueError(
            f"interventions need a model of transformers, got {type(adapter.model).__name__}; leave them out."
        )
    return adapter


def effects(
    adapter: HuggingFaceAdapter, batches: Iterable[Any], changes: Sequence[Change], seed: int = 0
) -> tuple[Estimate | None, list[Effect]]:
    """The unchanged loss (of language models) and the effect of every change, one at a time, on the same texts."""
    layers = adapter.layers()
    base: list[Array] = []
    rises: list[list[Array]] = [[] for _ in changes]
    with watching(adapter, layers) as watch, torch.no_grad():
        for batch in batches:
            own = _answer(watch, adapter, batch)
            for layer, seen in zip(layers, watch.seen, strict=True):
                layer.view(seen, None, None)  # finds out how its queries are made, on its first pass
            before = _losses(adapter, own, own, batch)
            base.append(before.cpu().numpy())
            for change, rise in zip(changes, rises, strict=True):
                caught = watch.seen[change.layer]
                caught.edit = edit(layers[change.layer], change)
                try:
                    after = _losses(adapter, _answer(watch, adapter, batch), own, batch)
                finally:
                    caught.edit = None
                rise.append((after - before).cpu().numpy())
    found = []
    for change, rise in zip(changes, rises, strict=True):
        values = np.concatenate(rise)
        one = mean_interval(values, seed=seed)
        found.append(Effect(change.layer, change.head, change.kind, one.mean, one.low, one.high, len(values)))
    return (mean_interval(np.concatenate(base), seed=seed) if adapter.causal else None), found


def edit(layer: Any, change: Change) -> Edit:
    """What puts a change into a pass."""
    assert isinstance(layer, CaughtLayer)

    def changed(caught: Caught, context: Tensor) -> Tensor:
        context = context.clone()
        if change.weights is None:
            context[:, :, change.head] = 0
        else:
            context[:, :, change.head] = other_context(layer, caught, change.head, change.weights).to(context.dtype)
        return context

    return changed


def _answer(watch: Watch, adapter: HuggingFaceAdapter, batch: Any) -> Tensor:
    """Log-probabilities (B, T, V) or (B, classes), or mean token vectors (B, d)."""
    for seen in watch.seen:
        seen.clear()
    output = adapter.whole(batch)
    logits = getattr(output, "logits", None)
    if logits is not None:
        return torch.log_softmax(logits.double() if not adapter.causal else logits, -1)
    hidden: Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
    mask = adapter.mask(batch)
    there = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device) if mask is None else mask
    weight = there.unsqueeze(-1).double()
    return (hidden.double() * weight).sum(1) / weight.sum(1)


def _losses(adapter: HuggingFaceAdapter, answer: Tensor, own: Tensor, batch: Any) -> Tensor:
    """One number per text, (B,)."""
    if adapter.causal:
        ids, mask = batch["input_ids"], adapter.mask(batch)
        there = (torch.ones_like(ids, dtype=torch.bool) if mask is None else mask)[:, 1:]
        told = answer[:, :-1].gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1).double()
        return -(told * there).sum(-1) / there.sum(-1).clamp(min=1)
    if adapter.has_head():
        return -answer.gather(-1, own.argmax(-1, keepdim=True)).squeeze(-1)
    return 1 - torch.nn.functional.cosine_similarity(answer, own, dim=-1)
