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

from mirrormax._statistics import Estimate, bootstrap_mean, rank_correlation
from mirrormax.auditing.adapters import Adapter, adapter_for
from mirrormax.auditing.calls import Call, Edit
from mirrormax.auditing.heads import HeadAnswer
from mirrormax.auditing.kinds import KINDS
from mirrormax.auditing.layers import Layer, View
from mirrormax.auditing.options import AuditOptions
from mirrormax.auditing.result import Effect, Head
from mirrormax.auditing.watch import watching

Array = npt.NDArray[np.float64]
OFF: str = "off"
MAX_MARGIN: str = "max-margin"
MEAN: str = "mean"
SINK: str = KINDS["on_first"]
ALL_HEADS, NO_SINKS, SINKS = "all heads", "heads that are no first-token sinks", "first-token sinks"
FEW = 8
"""Heads below which a correlation is not worth a sentence."""


@dataclass(frozen=True, eq=False)
class Change:
    """One head of one layer, and the weights to give it; None switches it off."""

    layer: int
    head: int
    weights: Tensor | None = None
    mean: bool = False  # give every token the head's mean output over the batch instead

    @property
    def kind(self) -> str:
        return MEAN if self.mean else OFF if self.weights is None else MAX_MARGIN


def intervene(
    adapter: Adapter,
    batches: Iterable[Any],
    answers: Sequence[Sequence[HeadAnswer]],
    options: AuditOptions,
    tell: Callable[[str, int, int | None], None],
) -> tuple[list[Effect], list[str]]:
    """Some heads of every layer switched off, and given their max-margin weights, one at a time; and a note of it."""
    random = np.random.default_rng(options.seed)
    changes: list[Change] = []
    for layer in answers:
        drawn = random.permutation(len(layer))[: options.interventions]
        for answer in (layer[k] for k in sorted(drawn) if layer[k].best is not None):
            index = (answer.head.layer, answer.head.head)
            changes += [Change(*index, None), Change(*index, answer.best)]

    few, left = [], options.intervention_texts
    for batch in batches:
        part, size = adapter.first(batch, left)
        few.append(part)
        left -= size
        if left <= 0:
            break
    done, total = 0, (options.intervention_texts - left) * len(changes)

    def advance(texts: int) -> None:
        nonlocal done
        done += texts
        tell("changing heads", done, total)

    base, found = effects(adapter, few, changes, options.seed, advance)
    measured = (
        f"the loss in nats per token, {base.mean:.3f} [{base.low:.3f}, {base.high:.3f}] unchanged"
        if base is not None
        else "−log p of the class predicted unchanged"
        if adapter.has_head()
        else "1 − cosine of the mean token vector to the unchanged one"
    )
    texts = found[0].texts if found else 0
    return found, [f"Interventions: {len(changes)} changes of one head each on {texts} texts; measured is {measured}."]


def effects(
    adapter: Adapter,
    batches: Iterable[Any],
    changes: Sequence[Change],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Estimate | None, list[Effect]]:
    """The unchanged loss (of language models) and the effect of every change, one at a time, on the same texts."""
    base: list[Array] = []
    rises: list[list[Array]] = [[] for _ in changes]
    with watching(adapter) as watch, torch.no_grad():
        blocks, block_of = _blocks(adapter, [part.name for part in watch.parts.values()])
        for batch in batches:
            with _noting(blocks) as outputs:
                own = _answer(adapter, watch.answer(batch, adapter.whole), batch)
            if [layer.module for layer in watch.layers] != list(watch.parts):
                blocks, block_of = [], [0] * len(watch.layers)
            for layer, call in zip(watch.layers, watch.calls, strict=True):
                layer.view(call, None)  # finds out how its queries are made, on its first pass
            before = _losses(adapter, own, own, batch)
            base.append(before.cpu().numpy())
            for change, rise in zip(changes, rises, strict=True):
                if change.layer >= len(watch.layers) or change.head >= watch.layers[change.layer].heads:
                    raise ValueError(f"there is no head {change.layer}.{change.head}; see Audit.heads for their names.")
                call = watch.calls[change.layer]
                call.edit = edit(watch.layers[change.layer], change)
                try:
                    with _answering(blocks[: block_of[change.layer]], outputs):
                        answer = watch.answer(batch, adapter.whole, change.layer if blocks else 0)
                        after = _losses(adapter, _answer(adapter, answer, batch), own, batch)
                finally:
                    call.edit = None
                rise.append((after - before).cpu().numpy())
                advance(len(before))
    found = []
    for change, rise in zip(changes, rises, strict=True):
        values = np.concatenate(rise)
        one = bootstrap_mean(values, seed=seed)
        found.append(Effect(change.layer, change.head, change.kind, one.mean, one.low, one.high, len(values)))
    is_loss = adapter.causal and adapter.has_head()
    return (bootstrap_mean(np.concatenate(base), seed=seed) if is_loss else None), found


def _blocks(adapter: Adapter, names: Sequence[str]) -> tuple[list[nn.Module], list[int]]:
    """The model's blocks in their order, and the one that each layer stands in: those before it need not run again.

    None, and zeros, where layers do not stand in one list of modules one by one.
    """
    places = []
    for name in names:
        parts = name.split(".")
        lists = [k for k in range(len(parts)) if isinstance(_part(adapter, parts[:k]), nn.ModuleList)]
        if len(lists) != 1:
            return [], [0] * len(names)
        places.append((tuple(parts[: lists[0]]), int(parts[lists[0]])))
    if len({path for path, _ in places}) > 1 or len({block for _, block in places}) < len(places):
        return [], [0] * len(names)
    return list(_part(adapter, places[0][0]).children()), [block for _, block in places]


def _part(adapter: Adapter, path: Sequence[str]) -> nn.Module:
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


def edit(layer: Layer, change: Change) -> Edit:
    """What puts a change into a pass."""

    def changed(call: Call, context: Tensor) -> Tensor:
        context = context.clone()
        if change.mean:
            context[:, :, change.head] = _mean_output(call, context[:, :, change.head])
        elif change.weights is None:
            context[:, :, change.head] = 0
        else:
            output = View(layer, call, None).output_with(change.head, change.weights)
            context[:, :, change.head] = output[:, : context.shape[1]].to(context.dtype)
        return context

    return changed


def _mean_output(call: Call, output: Tensor) -> Tensor:
    """The mean of a head's output (B, R, d_v) over the tokens that are there."""
    assert call.mask is not None
    there = call.mask[:, : output.shape[1]].any(-1)
    if call.mask.shape[1] == call.mask.shape[2]:
        there = there & call.mask.any(1)[:, : output.shape[1]]
    return output[there].mean(0)


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
    for one in how:
        if one not in (OFF, MEAN):
            raise ValueError(f"how must hold {OFF!r} or {MEAN!r}, got {one!r}.")
    places = [_place(name) for name in heads]
    changes = [Change(*place, mean=one == MEAN) for place in places for one in how]
    return effects(adapter_for(model), batches, changes, seed)[1]


def _place(name: str) -> tuple[int, int]:
    layer, dot, head = str(name).partition(".")
    if not dot or not layer.isdigit() or not head.isdigit():
        raise ValueError(f"heads must be names such as '3.1', layer and head counted from 0, got {name!r}.")
    return int(layer), int(head)


def _answer(adapter: Adapter, output: Any, batch: Any) -> Tensor:
    """Log-probabilities (B, T, V) or (B, classes), or mean token vectors (B, d)."""
    logits = adapter.logits(output)
    if logits is not None:
        return torch.log_softmax(logits.double() if not adapter.causal else logits, -1)
    hidden = adapter.vectors(output).double()
    mask = adapter.mask(batch)
    there = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device) if mask is None else mask
    weight = there.unsqueeze(-1).double()
    return (hidden * weight).sum(1) / weight.sum(1)


def _losses(adapter: Adapter, answer: Tensor, own: Tensor, batch: Any) -> Tensor:
    """One number per text, (B,)."""
    if answer.ndim == 3:
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
    return bootstrap_mean(np.array(both, dtype=float), seed=seed) if both else None
