"""Does a head matter? Change one head of a model and see what that does to its answers.

Two changes: *off* sets the head's output to zero; *max-margin* gives it the max-margin weights of its own selection in
place of its own, scaled to the same norm, so that it selects the same tokens on the audit's sample by the widest
margin, and whatever follows from that elsewhere. What is measured, text by text:

* of a language model, the loss: mean −log p(next token) in nats, and its rise over the unchanged model's;
* of a classifier, −log p of the class that the unchanged model predicts, and its rise;
* of an encoder without a head, 1 − cosine of its mean token vector to the unchanged one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from mirrormax.auditing.bootstrap import Estimate, mean_interval, rank_correlation
from mirrormax.auditing.heads import HeadAnswer
from mirrormax.auditing.hugging_face import HuggingFaceAdapter
from mirrormax.auditing.kinds import KINDS
from mirrormax.auditing.layers import Watch, watching
from mirrormax.auditing.query_form import CaughtLayer, other_context
from mirrormax.auditing.recipes import Caught, Edit
from mirrormax.auditing.result import Effect, Head
from mirrormax.auditing.settings import Settings

Array = npt.NDArray[np.float64]
OFF, MAX_MARGIN = "off", "max-margin"
SINK = KINDS["on_first"]
ALL_HEADS, NO_SINKS, SINKS = "all heads", "heads that are no first-token sinks", "first-token sinks"
FEW = 8
"""Heads below which a correlation is not worth a sentence."""


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


def intervene(
    adapter: Any,
    batches: Iterable[Any],
    answers: Sequence[Sequence[HeadAnswer]],
    settings: Settings,
    tell: Callable[[str, int, int | None], None],
) -> tuple[list[Effect], list[str]]:
    """Some heads of every layer switched off, and given their max-margin weights, one at a time; and a note of it."""
    reader, random = check_changeable(adapter), np.random.default_rng(settings.seed)
    changes: list[Change] = []
    for layer in answers:
        drawn = random.permutation(len(layer))[: settings.interventions]
        for answer in (layer[k] for k in sorted(drawn) if layer[k].best is not None):
            index = (answer.head.layer, answer.head.head)
            changes += [Change(*index, None), Change(*index, answer.best)]

    done = 0

    def few() -> Iterator[Any]:
        left = settings.intervention_texts
        for batch in batches:
            size = min(left, len(next(iter(batch.values()))))
            yield {name: part[:size] for name, part in batch.items()}
            left -= size
            if not left:
                return

    texts_to_change = list(few())
    total = sum(len(next(iter(batch.values()))) for batch in texts_to_change) * len(changes)

    def advance(texts: int) -> None:
        nonlocal done
        done += texts
        tell("changing heads", done, total)

    base, found = effects(reader, texts_to_change, changes, settings.seed, advance)
    measured = (
        f"the loss in nats per token, {base.mean:.3f} [{base.low:.3f}, {base.high:.3f}] unchanged"
        if base is not None
        else "−log p of the class predicted unchanged"
        if reader.has_head()
        else "1 − cosine of the mean token vector to the unchanged one"
    )
    texts = found[0].texts if found else 0
    return found, [f"Interventions: {len(changes)} changes of one head each on {texts} texts; measured is {measured}."]


def effects(
    adapter: HuggingFaceAdapter,
    batches: Iterable[Any],
    changes: Sequence[Change],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Estimate | None, list[Effect]]:
    """The unchanged loss (of language models) and the effect of every change, one at a time, on the same texts."""
    layers = adapter.layers()
    blocks, block_of = _blocks(adapter, layers)
    base: list[Array] = []
    rises: list[list[Array]] = [[] for _ in changes]
    with watching(adapter, layers) as watch, torch.no_grad():
        for batch in batches:
            with _noting(blocks) as outputs:
                own = _answer(watch, adapter, batch)
            for layer, seen in zip(layers, watch.seen, strict=True):
                layer.view(seen, None, None)  # finds out how its queries are made, on its first pass
            before = _losses(adapter, own, own, batch)
            base.append(before.cpu().numpy())
            for change, rise in zip(changes, rises, strict=True):
                caught = watch.seen[change.layer]
                caught.edit = edit(layers[change.layer], change)
                try:
                    with _answering(blocks[: block_of[change.layer]], outputs):
                        after = _losses(adapter, _answer(watch, adapter, batch), own, batch)
                finally:
                    caught.edit = None
                rise.append((after - before).cpu().numpy())
                advance(len(before))
    found = []
    for change, rise in zip(changes, rises, strict=True):
        values = np.concatenate(rise)
        one = mean_interval(values, seed=seed)
        found.append(Effect(change.layer, change.head, change.kind, one.mean, one.low, one.high, len(values)))
    return (mean_interval(np.concatenate(base), seed=seed) if adapter.causal else None), found


def _blocks(adapter: HuggingFaceAdapter, layers: Sequence[Any]) -> tuple[list[nn.Module], list[int]]:
    """The model's blocks in their order, and the one that each layer stands in: those before it need not run again.

    None, and zeros, where layers do not stand in one list of modules one by one.
    """
    places = []
    for layer in layers:
        parts = layer.name.split(".")
        lists = [k for k in range(len(parts)) if isinstance(_part(adapter, parts[:k]), nn.ModuleList)]
        if len(lists) != 1:
            return [], [0] * len(layers)
        places.append((tuple(parts[: lists[0]]), int(parts[lists[0]])))
    if len({path for path, _ in places}) > 1 or len({block for _, block in places}) < len(places):
        return [], [0] * len(layers)
    return list(_part(adapter, places[0][0]).children()), [block for _, block in places]


def _part(adapter: HuggingFaceAdapter, path: Sequence[str]) -> nn.Module:
    found: nn.Module = adapter.reader.get_submodule(".".join(path))
    return found


@contextmanager
def _noting(blocks: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Any]]:
    """What every block answers in a pass."""
    outputs: dict[nn.Module, Any] = {}
    handles = [block.register_forward_hook(lambda one, _, out: outputs.update({one: out})) for block in blocks]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _answering(blocks: Sequence[nn.Module], outputs: Mapping[nn.Module, Any]) -> Iterator[None]:
    """These blocks answer what they have answered before, without working it out again."""
    own = {block: vars(block)["forward"] for block in blocks if "forward" in vars(block)}  # hooks of device maps, say
    try:
        for block in blocks:
            block.forward = lambda *_, answer=outputs[block], **__: answer
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)
            if block in own:
                block.forward = own[block]


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


@dataclass(frozen=True)
class Telling:
    """Whether the ratio of a head tells how much a change of it matters, over a group of heads."""

    group: str
    heads: int
    among_all: Estimate  # rank correlation of ratio and effect
    in_layer: Estimate | None  # the same with ranks among the group's heads of a layer; None where none has two


def tellings(heads: Sequence[Head], changed: Sequence[Effect], kind: str, seed: int = 0) -> list[Telling]:
    """Of one kind of change: over all heads, over those that are first-token sinks, and over the others."""
    of_head = {(head.layer, head.head): head for head in heads}
    pairs = [(of_head[one.layer, one.head], one.mean) for one in changed if one.kind == kind]
    pairs = [(head, effect) for head, effect in pairs if np.isfinite(head.ratio)]
    sinks = [pair for pair in pairs if pair[0].kind == SINK]
    others = [pair for pair in pairs if pair[0].kind != SINK]
    groups = {ALL_HEADS: pairs, NO_SINKS: others, SINKS: sinks} if sinks and others else {ALL_HEADS: pairs}
    found = []
    for name, mine in groups.items():
        if len(mine) < FEW:
            continue
        ratios, sizes = ([head.ratio for head, _ in mine], [effect for _, effect in mine])
        layers = [head.layer for head, _ in mine]
        several = [k for k, layer in enumerate(layers) if layers.count(layer) > 1]
        within = None
        if len(several) >= FEW:
            ranks = [
                ranks_within([values[k] for k in several], [layers[k] for k in several]) for values in (ratios, sizes)
            ]
            within = rank_correlation(*ranks, seed=seed)
        found.append(Telling(name, len(mine), rank_correlation(ratios, sizes, seed=seed), within))
    return found


def ranks_within(values: Sequence[float], groups: Sequence[int]) -> Array:
    """Ranks of values among those of their group, from 0 for the smallest to 1 for the largest."""
    found, of_group = np.zeros(len(values)), np.asarray(groups)
    for group in set(groups):
        mine = of_group == group
        found[mine] = (rankdata(np.asarray(values)[mine]) - 1) / max(int(mine.sum()) - 1, 1)
    return found


def milder(changed: Sequence[Effect], seed: int = 0) -> Estimate | None:
    """The share of heads that lose less by their max-margin weights than by being switched off; None without any."""
    means = {
        kind: {(one.layer, one.head): one.mean for one in changed if one.kind == kind} for kind in (OFF, MAX_MARGIN)
    }
    both = [means[MAX_MARGIN][key] < off for key, off in means[OFF].items() if key in means[MAX_MARGIN]]
    return mean_interval(np.array(both, dtype=float), seed=seed) if both else None
