"""What a model loses and saves when its smallest weights are cut: quality over the share, bytes, and measured time."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.auditing.models import Loaded
from mirrormax.pruning import prune

SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
TOKENS, ROUNDS, MATRICES = 256, 15, 12


@dataclass(frozen=True)
class Timing:
    """Seconds of the products of the cut matrices with a batch of tokens, each the median over rounds."""

    whole: float
    sparse: float  # as compressed sparse rows
    smaller: float  # without their empty rows and columns
    matrices: int


@dataclass(frozen=True)
class CutReport:
    """Quality whole and cut, what was cut, and what that saves."""

    measure: str  # "accuracy" or "loss per token"
    quality: list[tuple[float, float]]  # share cut, quality
    share: float  # really cut, of the tensors in scope
    cut: float  # quality at that share
    tensors: dict[str, tuple[int, int]]
    timing: Timing | None

    def sentences(self, whole: int, kept: int) -> list[str]:
        """What was found, with the bytes of the checkpoint whole and sparse."""
        found = [
            f"{self.measure}: {self.quality[0][1]:.4f} whole, {self.cut:.4f} with {self.share:.1%} of "
            f"{sum(size for _, size in self.tensors.values()):,} weights in {len(self.tensors)} tensors cut.",
            f"The weights take {whole:,} bytes whole and {kept:,} on disk with zeros kept sparse ({kept / whole:.0%}).",
        ]
        if self.timing is not None:
            one = self.timing
            found.append(
                f"Products of the {one.matrices} largest cut matrices with {TOKENS} tokens, measured here: compressed "
                f"sparse rows take {one.sparse / one.whole:.2f} times as long as the whole, matrices without their "
                f"empty rows and columns {one.smaller / one.whole:.2f} times. Nothing else was measured, and the "
                "checkpoint runs as fast as before wherever it is loaded as whole matrices."
            )
        return found


def quality_of(loaded: Loaded) -> tuple[str, Callable[[Iterable[dict[str, Tensor]]], float]]:
    """How good the model is on batches: accuracy of classifiers, loss per token of language models."""
    model = loaded.model
    if loaded.classes:
        return "accuracy", lambda batches: _mean(model, batches, _right)
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return "loss per token", lambda batches: _mean(model, batches, _next_token_losses)
    raise ValueError(
        f"{loaded.folder} has neither classes nor predictions of tokens, so that nothing says what a cut costs; give a "
        "classifier or a causal language model."
    )


@torch.inference_mode()
def _mean(model: nn.Module, batches: Iterable[dict[str, Tensor]], values: Callable[..., Tensor]) -> float:
    model.eval()
    found = []
    for batch in batches:
        inputs = {name: part for name, part in batch.items() if name != "labels"}
        out: Any = model(**inputs) if "input_ids" in inputs or "pixel_values" in inputs else model(*inputs.values())
        found.append(values(getattr(out, "logits", out), batch))
    return float(torch.cat(found).double().mean())


def _right(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return logits.argmax(-1) == batch["labels"]


def _next_token_losses(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    targets, seen = batch["input_ids"][:, 1:], batch["attention_mask"][:, 1:].bool()
    losses = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2).float(), targets, reduction="none")
    return losses[seen]


def measure_cut(
    loaded: Loaded,
    batches: Iterable[dict[str, Tensor]],
    share: float,
    shares: Sequence[float] = SHARES,
    show: Callable[[str, int, int], None] = lambda stage, done, total: None,
    **options: Any,
) -> CutReport:
    """Quality at each of ``shares``; then cut ``share`` for good. ``options`` are those of :func:`mirrormax.prune`."""
    measure, quality = quality_of(loaded)
    model, curve = loaded.model, []
    for k, one in enumerate(sorted({0.0, *shares})):
        show("shares", k, len(shares) + 2)
        cut = prune(model, one, **options)
        curve.append((one, quality(batches)))
        cut.undo()
    cut = prune(model, share, **options)
    cut.finish()
    show("the cut", len(shares) + 1, len(shares) + 2)
    weights = [model.get_parameter(name).detach() for name in cut.tensors]
    return CutReport(measure, curve, cut.share, quality(batches), cut.tensors, _timing(weights))


def _timing(weights: Sequence[Tensor]) -> Timing | None:
    matrices = sorted((w.float() for w in weights if w.ndim == 2), key=lambda w: -w.numel())[:MATRICES]
    if not matrices:
        return None
    totals = [0.0, 0.0, 0.0]
    for w in matrices:
        x = torch.randn(TOKENS, w.shape[1], generator=torch.Generator().manual_seed(0))
        rows, columns = (w != 0).any(1), (w != 0).any(0)
        small, part = w[rows][:, columns].contiguous(), x[:, columns].contiguous()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls these tensors unfinished
            compressed, turned = w.to_sparse_csr(), x.t().contiguous()
        ways: list[Callable[[], Tensor]] = [
            functools.partial(nn.functional.linear, x, w),
            functools.partial(torch.matmul, compressed, turned),
            functools.partial(nn.functional.linear, part, small),
        ]
        for k, seconds in enumerate(_turns(ways)):
            totals[k] += seconds
    return Timing(totals[0], totals[1], totals[2], len(matrices))


def _turns(ways: Sequence[Callable[[], Tensor]]) -> list[float]:
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for own, way in zip(seconds, ways, strict=True):
            start = time.perf_counter()
            way()
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in seconds]
