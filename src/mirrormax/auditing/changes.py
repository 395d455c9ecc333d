"""Does a head matter, and which could go? Change heads of a model and see what that does to its answers.

Three changes: *off* sets a head's output to zero; *mean* gives it its mean output at every token; *max-margin* gives it
the max-margin weights of its own selection in place of its own, scaled to the same norm, so that it selects the same
tokens on the audit's sample by the widest margin, and whatever follows from that elsewhere. What is measured, text by
text:

* of a language model, the loss: mean −log p(next token) in nats, and its rise over the unchanged model's;
* of a classifier, −log p of the class that the unchanged model predicts, and its rise;
* of an encoder without a head, 1 − cosine of its mean token vector to the unchanged one's.

**Taylor importance** needs no change: with o_i the output of a head at token i and ℓ the loss of a text, switching the
head off at token i alone changes ℓ by −⟨∂ℓ/∂o_i, o_i⟩ to first order. A head's importance is the mean over texts of
Σ_i |⟨∂ℓ/∂o_i, o_i⟩|, in nats; signs are taken off token by token, since effects that cancel on the texts at hand need
not cancel on others. Encoders without a head have no loss, and no importance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mirrormax._checks import one_of, several
from mirrormax._statistics import Estimate, bootstrap_mean
from mirrormax.auditing.adapters import Adapter, adapter_for
from mirrormax.auditing.calls import Call, present
from mirrormax.auditing.layers import Layer, View
from mirrormax.auditing.options import AuditOptions, Progress, place_of
from mirrormax.auditing.result import Effect, Head, Removal
from mirrormax.auditing.watch import Watch, watching

Array = npt.NDArray[np.float64]
OFF: str = "off"
MAX_MARGIN: str = "max-margin"
MEAN: str = "mean"
EMPTY = "batches is empty; give at least one batch."

REMOVED = (0.1, 0.2, 0.3, 0.5)
"""Shares of the heads that are removed together."""

Index = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True, eq=False)
class Change:
    """Heads to change at once, by layer and head: switched off, or a single one given its mean output or weights."""

    heads: tuple[Index, ...]
    weights: Tensor | None = None
    mean: bool = False

    @property
    def kind(self) -> str:
        return MEAN if self.mean else OFF if self.weights is None else MAX_MARGIN


class Importance:
    """Taylor importance, summed over the first ``texts`` texts that are added, which are kept for changes of heads."""

    def __init__(self, texts: int) -> None:
        self.left, self.count, self.few = texts, 0, list[Any]()
        self._sums: list[Tensor] = []

    def add(self, watch: Watch, batch: Any) -> None:
        """One batch, or as much of it as is still wanted: a pass forward and one back."""
        if self.left <= 0:
            return
        adapter = watch.adapter
        part, size = adapter.first(batch, self.left)
        self.few.append(part)
        self.left -= size
        if not adapter.has_head():
            return

        def loss(output: Any) -> Tensor:
            answer = _answer(adapter, output, part)
            return _losses(adapter, answer, answer.detach(), part)

        views = watch.run(part, loss, adapter.whole)
        sums = []
        for view in views:
            if view.gradient is None:
                return
            effects = (view.gradient.double() * view.call.context.double()).sum(-1)  # (B, R, H)
            sums.append(effects.abs().sum((0, 1)).cpu())
        self.count += len(views[0].mask)
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)] if self._sums else sums

    def of_layer(self, layer: int) -> Tensor | None:
        """The importance (H,) of a layer's heads; None where there is no loss."""
        return self._sums[layer] / self.count if self._sums else None


def over_texts(values: Array, seed: int) -> dict[str, Any]:
    """The mean over texts, its interval, and how many texts there are, as an Effect and a Removal have them."""
    return {**bootstrap_mean(values, seed=seed).to_dict(), "texts": len(values)}


def effects(
    adapter: Adapter,
    batches: Iterable[Any],
    changes: Sequence[Change],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Estimate | None, list[Effect]]:
    """The unchanged loss (of language models) and the effect of every change of one head, on the same texts."""
    base, rises = measured(adapter, batches, changes, advance)
    unchanged = bootstrap_mean(base, seed=seed) if adapter.causal and adapter.has_head() else None
    pairs = zip(changes, rises, strict=True)
    return unchanged, [Effect(*change.heads[0], change.kind, **over_texts(rise, seed)) for change, rise in pairs]


def measured(
    adapter: Adapter, batches: Iterable[Any], changes: Sequence[Change], advance: Callable[[int], None] = lambda _: None
) -> tuple[Array, list[Array]]:
    """The unchanged loss of every text, and its rise by every change, made one at a time."""
    base: list[Array] = []
    rises: list[list[Array]] = [[] for _ in changes]
    with watching(adapter) as watch, torch.no_grad():
        for batch in several("batches", batches, "batches"):
            watch.run(batch, ask=adapter.whole)  # finds out how queries are made, on its first pass
            own = _answer(adapter, watch.output, batch)
            before = _losses(adapter, own, own, batch)
            base.append(before.cpu().numpy())
            for change, rise in zip(changes, rises, strict=True):
                check_places(watch.layers, change.heads)
                try:
                    for k in {layer for layer, _ in change.heads}:
                        heads = [head for layer, head in change.heads if layer == k]
                        watch.layers[k].edit = partial(_edited, watch.layers[k], change, heads)
                    after = _losses(adapter, _answer(adapter, watch.answer(batch, adapter.whole), batch), own, batch)
                finally:
                    for layer in watch.layers:
                        layer.edit = None
                rise.append((after - before).cpu().numpy())
                advance(len(before))
    if not base:
        raise ValueError(EMPTY)
    return np.concatenate(base), [np.concatenate(rise) for rise in rises]


def check_places(layers: Sequence[Layer], places: Iterable[Index]) -> None:
    """ValueError for a layer and head that these layers do not have."""
    for layer, head in places:
        if layer >= len(layers) or head >= layers[layer].heads:
            last = f"{len(layers) - 1}.{layers[-1].heads - 1}"
            raise ValueError(f"heads must be between 0.0 and {last}, the model's last, got '{layer}.{head}'.")


def check_heads(model: nn.Module | Adapter, names: Sequence[str], batches: Iterable[Any]) -> None:
    """ValueError for the name of a head that the model does not have, from a pass over one text."""
    adapter = adapter_for(model)
    with watching(adapter) as watch:
        watch.run(adapter.first(next(iter(batches)), 1)[0])
        check_places(watch.layers, map(place_of, names))


def _edited(layer: Layer, change: Change, heads: list[int], call: Call, context: Tensor) -> Tensor:
    """The outputs of a layer's heads with a change of these."""
    context = context.clone()
    if change.mean:
        there = present(call.mask)[:, : context.shape[1]]
        context[:, :, heads] = context[:, :, heads][there].mean(0)
    elif change.weights is None:
        context[:, :, heads] = 0
    else:
        output = View(layer, call).output_with(heads[0], change.weights)
        context[:, :, heads[0]] = output[:, : context.shape[1]].to(context.dtype)
    return context


def ablate(
    model: nn.Module | Adapter,
    heads: Sequence[str],
    batches: Iterable[Any],
    *,
    how: Sequence[str] = (OFF, MEAN),
    seed: int = 0,
) -> list[Effect]:
    """What named heads matter: each in turn switched off, or given its mean output at every token.

    Args:
        model: as of :func:`~mirrormax.auditing.audit`; left as it was.
        heads: by name, ``"3.1"`` being head 1 of layer 3, both counted from 0.
        batches: of what the model takes.
        how: ``"off"`` for zero, ``"mean"`` for the mean over the tokens of a batch, or both.
        seed: of the bootstrap intervals over texts.
    """
    kinds = [one_of("how", kind, (OFF, MEAN)) for kind in several("how", how, f"{OFF!r} and {MEAN!r}")]
    places = [place_of(name) for name in several("heads", heads, "names")]
    changes = [Change((place,), mean=kind == MEAN) for place in places for kind in kinds]
    return effects(adapter_for(model), batches, changes, seed)[1]


def _answer(adapter: Adapter, output: Any, batch: Any) -> Tensor:
    """Log-probabilities (B, T, V) or (B, classes), or mean token vectors (B, d)."""
    logits = adapter.logits(output)
    if logits is not None:
        return torch.log_softmax(logits.double() if not adapter.causal else logits, -1)
    hidden = adapter.vectors(output).double()
    weight = there_of(adapter, batch, hidden).unsqueeze(-1).double()
    return (hidden * weight).sum(1) / weight.sum(1)


def there_of(adapter: Adapter, batch: Any, parts: Tensor) -> Tensor:
    """Which tokens (B, T) of a batch are there, ``parts`` (B, T, …) being of its tokens."""
    mask = adapter.named(batch).get("attention_mask")
    return torch.ones(parts.shape[:2], dtype=torch.bool, device=parts.device) if mask is None else mask.bool()


def _losses(adapter: Adapter, answer: Tensor, own: Tensor, batch: Any) -> Tensor:
    """One number per text, (B,)."""
    if answer.ndim == 3:
        ids = batch["input_ids"]
        there = there_of(adapter, batch, ids)[:, 1:]
        likely = answer[:, :-1].gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1).double()
        return -(likely * there).sum(-1) / there.sum(-1).clamp(min=1)
    if adapter.has_head():
        return -answer.gather(-1, own.argmax(-1, keepdim=True)).squeeze(-1)
    return 1 - torch.nn.functional.cosine_similarity(answer, own, dim=-1)


def counting(tell: Progress, stage: str, total: int | None) -> Callable[[int], None]:
    """What is told how much more is done of a stage."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        tell(stage, done, total)

    return advance


def intervene(
    adapter: Adapter, batches: Sequence[Any], best: Mapping[Index, Tensor | None], options: AuditOptions, tell: Progress
) -> tuple[list[Effect], list[str]]:
    """Named heads, and some heads drawn in every layer, changed one at a time; and a note of it."""
    if not (options.interventions or options.heads):
        return [], []
    random = np.random.default_rng(options.seed)
    changes = [Change((place_of(name),), mean=mean) for name in options.heads for mean in (False, True)]
    for layer in sorted({layer for layer, _ in best}):
        heads = [index for index in best if index[0] == layer]
        drawn = random.permutation(len(heads))[: options.interventions]
        for index in (heads[k] for k in sorted(drawn) if best[heads[k]] is not None):
            changes += [Change((index,)), Change((index,), best[index])]
    advance = counting(tell, "changing heads", options.intervention_texts * len(changes))
    base, changed = effects(adapter, batches, changes, options.seed, advance)
    unchanged = (
        f"the loss in nats per token, {base.mean:.3f} [{base.low:.3f}, {base.high:.3f}] unchanged"
        if base is not None
        else "−log p of the class predicted unchanged"
        if adapter.has_head()
        else "1 − cosine of the mean token vector to the unchanged one"
    )
    texts = changed[0].texts if changed else 0
    note = f"Interventions: {len(changes)} changes of one head each on {texts} texts; measured is {unchanged}."
    return changed, [note]


def remove(
    adapter: Adapter, batches: Sequence[Any], heads: Sequence[Head], options: AuditOptions, tell: Progress
) -> list[Removal]:
    """What the loss is when shares of the heads are switched off together, in up to three orders."""
    orders: dict[str, list[Head]] = {}
    if all(head.importance is not None for head in heads):
        orders["taylor"] = sorted(heads, key=lambda head: head.importance or 0.0)
    if options.removal:
        orders["sink"] = sorted(heads, key=lambda head: -head.on_first)
        order = np.random.default_rng(options.seed).permutation(len(heads))
        orders["random"] = [heads[k] for k in order]
    if not orders:
        return []
    counts = sorted({round(share * len(heads)) for share in REMOVED} - {0})
    steps = [(name, count) for name in orders for count in counts]
    changes = [Change(tuple((head.layer, head.head) for head in orders[name][:count])) for name, count in steps]
    advance = counting(tell, "removing heads", options.intervention_texts * len(changes))
    rises = measured(adapter, batches, changes, advance)[1]
    return [Removal(*step, **over_texts(rise, options.seed)) for step, rise in zip(steps, rises, strict=True)]
