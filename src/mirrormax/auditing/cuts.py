"""What a model loses and saves when its least weights are cut: quality over the share, bytes, and measured time."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.auditing.batches import Batches
from mirrormax.auditing.hugging_face import CAUSAL
from mirrormax.auditing.models import Loaded
from mirrormax.pruning import answer, margin_scores, prune

SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
TOKENS, ROUNDS, MATRICES = 256, 15, 12
ACCURACY, LOSS, LIKENESS = "accuracy", "loss per token", "cosine to the whole model"
BLOCK = 4
"""Side of the blocks of a block-sparse matrix: of 4, 16, 32 and 64, the one that pays first on a CPU."""


@dataclass(frozen=True)
class Timing:
    """Seconds, each the median over rounds: of products of the cut matrices with a batch of tokens, and of a pass."""

    whole: float
    sparse: float  # as compressed sparse rows
    blocks: float | None  # as compressed sparse blocks; None where the sides of a matrix do not allow them
    smaller: float  # without their empty rows and columns
    matrices: int
    passes: tuple[float, float] | None  # of the model, whole and without empty rows and columns; None without any


@dataclass(frozen=True)
class CutReport:
    """Quality whole and cut, what was cut, and what that saves."""

    measure: str  # ACCURACY of classifiers, LOSS of language models, LIKENESS of encoders without a head
    by: str  # "magnitude" or "margin"
    quality: list[tuple[float, float]]  # share cut, quality
    beside: list[tuple[float, float]]  # the same by magnitude, where the cut is by margin
    share: float  # really cut, of the tensors in scope
    cut: float  # quality at that share
    tensors: dict[str, tuple[int, int]]
    timing: Timing | None

    def sentences(self, whole: int, kept: int) -> list[str]:
        """What was found, with the bytes of the checkpoint whole and sparse."""
        found = [
            f"{self.measure}: {self.quality[0][1]:.4f} whole, {self.cut:.4f} with {self.share:.1%} of "
            f"{sum(size for _, size in self.tensors.values()):,} weights in {len(self.tensors)} tensors cut by "
            f"{self.by}.",
            f"The weights take {whole:,} bytes whole and {kept:,} on disk with zeros kept sparse ({kept / whole:.0%}).",
        ]
        if self.timing is not None:
            found.append(_told(self.timing))
        return found


def _told(one: Timing) -> str:
    blocks = "" if one.blocks is None else f" blocks of {BLOCK} x {BLOCK} {one.blocks / one.whole:.2f} times,"
    told = (
        f"Products of the {one.matrices} largest cut matrices with {TOKENS} tokens, measured here: compressed "
        f"sparse rows take {one.sparse / one.whole:.2f} times as long as the whole,{blocks} matrices without their "
        f"empty rows and columns {one.smaller / one.whole:.2f} times."
    )
    if one.passes is not None:
        whole, without = one.passes
        told += f" A pass of the model with these rows and columns removed takes {without / whole:.2f} times as long."
    return (
        f"{told} Nothing else was measured, and the checkpoint runs as fast as before wherever it is loaded as whole "
        "matrices."
    )


def measure_of(loaded: Loaded) -> str:
    """What says how good the model is: a name of :data:`VALUES`."""
    if loaded.classes:
        return ACCURACY
    return LOSS if type(loaded.model).__name__.endswith(CAUSAL) else LIKENESS


def quality_of(loaded: Loaded, batches: Iterable[dict[str, Tensor]]) -> Callable[[], float]:
    """How good the model is on batches from now on, on average over rows or tokens; an encoder is compared with now."""
    measure, model = measure_of(loaded), loaded.model
    whole = _answers(model, batches, VALUES[measure]) if measure == LIKENESS else None

    def quality() -> float:
        found = _answers(model, batches, VALUES[measure])
        return float((found if whole is None else nn.functional.cosine_similarity(found, whole, dim=-1)).mean())

    return quality


@torch.inference_mode()
def _answers(model: nn.Module, batches: Iterable[dict[str, Tensor]], values: Callable[..., Tensor]) -> Tensor:
    model.eval()
    return torch.cat([values(answer(model, batch), batch) for batch in batches]).double()


def _right(out: Any, batch: dict[str, Tensor]) -> Tensor:
    logits: Tensor = getattr(out, "logits", out)
    return logits.argmax(-1) == batch["labels"]


def _next_token_losses(out: Any, batch: dict[str, Tensor]) -> Tensor:
    targets, seen = batch["input_ids"][:, 1:], batch["attention_mask"][:, 1:].bool()
    losses = nn.functional.cross_entropy(out.logits[:, :-1].transpose(1, 2).float(), targets, reduction="none")
    return losses[seen]


def _mean_vectors(out: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean of a row's token vectors, (B, d)."""
    hidden = getattr(out, "last_hidden_state", None)
    if hidden is None or hidden.ndim != 3:
        raise ValueError(
            f"the model answers with {type(out).__name__} and no vectors of tokens, so that nothing says what a cut "
            "costs; give a classifier, a causal language model or an encoder."
        )
    there = batch.get("attention_mask", torch.ones(hidden.shape[:2])).unsqueeze(-1)
    mean: Tensor = (hidden.double() * there).sum(1) / there.sum(1)
    return mean


VALUES: dict[str, Callable[..., Tensor]] = {
    ACCURACY: _right,
    LOSS: _next_token_losses,
    LIKENESS: _mean_vectors,
}
"""How each measure is read off an answer: right or not, −log p of each next token, the mean token vector of a row."""


def apart(batches: Batches, rows: int) -> tuple[Batches, Batches]:
    """The first ``rows`` rows, to score weights by, and all others, to measure on."""
    if not 0 < rows < len(batches):
        raise ValueError(
            f"scoring by margin takes at least one row and leaves at least one to measure on, got {rows} of "
            f"{len(batches)} rows; give more data or change --calibration."
        )

    def part(which: slice) -> Batches:
        pixels, labels = batches.pixels, batches.labels
        return dataclasses.replace(
            batches,
            inputs=batches.inputs[which],
            pixels=None if pixels is None else pixels[which],
            labels=None if labels is None else labels[which],
        )

    return part(slice(rows)), part(slice(rows, None))


def measure_cut(
    loaded: Loaded,
    batches: Iterable[dict[str, Tensor]],
    share: float,
    shares: Sequence[float] = SHARES,
    show: Callable[[str, int, int], None] = lambda stage, done, total: None,
    calibration: Iterable[dict[str, Tensor]] | None = None,
    **options: Any,
) -> CutReport:
    """Quality at each of ``shares``; then cut ``share`` for good. ``options`` are those of :func:`mirrormax.prune`.

    With ``calibration`` weights are cut by what they bring to margins on it, and the same shares also by magnitude.
    """
    quality = quality_of(loaded, batches)
    model, shares = loaded.model, sorted({0.0, *shares})
    by: Any = "magnitude" if calibration is None else margin_scores(model, calibration, options["scope"])
    ways: list[Any] = ["magnitude"] if calibration is None else [by, "magnitude"]
    curves: list[list[tuple[float, float]]] = [[] for _ in ways]
    for k, one in enumerate(shares):
        show("shares", k, len(shares) + 1)
        for way, curve in zip(ways, curves, strict=True):
            cut = prune(model, one, by=way, **options)
            curve.append((one, quality()))
            cut.undo()
    show("the cut", len(shares), len(shares) + 1)
    cut = prune(model, share, by=by, **options)
    cut.finish()
    weights = [model.get_parameter(name).detach() for name in cut.tensors]
    name = "magnitude" if calibration is None else "margin"
    beside = curves[1] if calibration is not None else []
    value, timing = quality(), _timing(model, weights, next(iter(batches)))
    return CutReport(measure_of(loaded), name, curves[0], beside, cut.share, value, cut.tensors, timing)


def _timing(model: nn.Module, weights: Sequence[Tensor], batch: dict[str, Tensor]) -> Timing | None:
    matrices = sorted((w.float() for w in weights if w.ndim == 2), key=lambda w: -w.numel())[:MATRICES]
    if not matrices:
        return None
    blocked = all(side % BLOCK == 0 for w in matrices for side in w.shape)
    totals = [0.0, 0.0, 0.0, 0.0]
    for w in matrices:
        x = torch.randn(TOKENS, w.shape[1], generator=torch.Generator().manual_seed(0))
        rows, columns = (w != 0).any(1), (w != 0).any(0)
        small, part = w[rows][:, columns].contiguous(), x[:, columns].contiguous()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls these tensors unfinished
            compressed, turned = w.to_sparse_csr(), x.t().contiguous()
            blocks = w.to_sparse_bsr((BLOCK, BLOCK)) if blocked else compressed
        ways: list[Callable[[], Any]] = [
            functools.partial(nn.functional.linear, x, w),
            functools.partial(torch.matmul, compressed, turned),
            functools.partial(nn.functional.linear, part, small),
            functools.partial(torch.matmul, blocks, turned),
        ]
        for k, seconds in enumerate(_turns(ways)):
            totals[k] += seconds
    return Timing(totals[0], totals[1], totals[3] if blocked else None, totals[2], len(matrices), _passes(model, batch))


def _passes(model: nn.Module, batch: dict[str, Tensor]) -> tuple[float, float] | None:
    """Seconds of a pass over a batch, and of one with the empty rows and columns of linear layers removed."""
    smaller = removed(model)
    if not smaller:
        return None
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with torch.inference_mode():
        for without in (False, True) * ROUNDS:
            with smaller.put_in() if without else nullcontext():
                start = time.perf_counter()
                answer(model, batch)
                seconds[without].append(time.perf_counter() - start)
    return statistics.median(seconds[False][1:]), statistics.median(seconds[True][1:])


def has_empty(weight: Tensor) -> bool:
    """Whether a matrix has a row or a column of zeros."""
    there = weight.detach() != 0
    return not bool(there.any(1).all() and there.any(0).all())


class Smaller(nn.Module):
    """A linear layer without its empty rows and columns: the same output from a smaller product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias, self.size = layer.weight, layer.bias, layer.out_features
        there = layer.weight.detach() != 0
        self.rows, self.columns = (there.any(dim).nonzero().flatten() for dim in (1, 0))
        self.small = layer.weight.detach()[self.rows][:, self.columns].contiguous()

    def forward(self, x: Tensor) -> Tensor:
        part = x if len(self.columns) == x.shape[-1] else x.index_select(-1, self.columns)
        found = part @ self.small.t()
        if len(self.rows) < self.size:
            found = found.new_zeros((*found.shape[:-1], self.size)).index_copy_(-1, self.rows, found)
        return found if self.bias is None else found + self.bias


class Removal(list[tuple[nn.Module, str, nn.Linear, Smaller]]):
    """Linear layers with empty rows or columns, where they are, and what computes without these."""

    @contextmanager
    def put_in(self) -> Iterator[None]:
        """Within it, the model computes with the smaller ones."""
        try:
            for module, name, _, smaller in self:
                setattr(module, name, smaller)
            yield
        finally:
            for module, name, layer, _ in self:
                setattr(module, name, layer)


def removed(model: nn.Module) -> Removal:
    """The linear layers of a model that have empty rows or columns, without them."""
    return Removal(
        (module, name, child, Smaller(child))
        for module in model.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and has_empty(child.weight)
    )


def _turns(ways: Sequence[Callable[[], Any]], rounds: int = ROUNDS) -> list[float]:
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for own, way in zip(seconds, ways, strict=True):
            start = time.perf_counter()
            way()
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in seconds]
