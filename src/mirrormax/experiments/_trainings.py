"""One training of the study of practice: the model, the batches, a method, and all that is then measured.

Trainings are kept by what they are made of, so that a study that was interrupted goes on, and a larger one uses what a
smaller one has done.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from mirrormax._identity import identity, key
from mirrormax._results import ResultFolder
from mirrormax.experiments._methods import METHODS, Trial
from mirrormax.optim import param_groups
from mirrormax.pruning import prune
from mirrormax.training import Prepared, TrainConfig, data_digests, loader, loss_and_logits, prepare

REVISION = 3
KIND = "run of practice"
SHARES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95)
PRUNERS = ("magnitude", "wanda", "sparsegpt")
WIDTHS = ("hidden", "head_dim")  # of a network, which shrink with its dim
_prepared = lru_cache(maxsize=3)(prepare)


@dataclass(frozen=True)
class Task:
    """Data, model and batches (the optimizer's fields of ``base`` are not used), how long, and who takes part."""

    name: str
    base: TrainConfig
    steps: int
    rows: int  # of the validation split that are looked at, and twice as many of the test split
    methods: tuple[tuple[str, tuple[Trial, ...]], ...]
    seeds: int = 3

    def __post_init__(self) -> None:
        if len({len(trials) for _, trials in self.methods}) > 1:
            raise ValueError("every method must get the same number of trials; a fair budget is the point.")
        if unknown := [name for name, _ in self.methods if name not in METHODS]:
            raise ValueError(f"methods must be among {', '.join(METHODS)}, got {unknown[0]!r}.")


@dataclass(frozen=True)
class Job:
    """One training, and all that is then measured."""

    task: Task
    method: str
    lr: float
    knob: Any
    share: float | None  # that the method is told
    seed: int = 0


def kept(job: Job, runs: Path, data_dir: Path | None) -> dict[str, Any]:
    """What a training came to, from its folder if it was done before."""
    folder, about = place_of(job, runs, data_dir)
    if not folder.is_current(about):
        with folder.open(about, wait=True):
            if not folder.is_current(about):
                folder.save_json("result.json", _done(job, data_dir))
                folder.finish()
    result: dict[str, Any] = json.loads((folder.path / "result.json").read_text("utf-8"))
    return result


def place_of(job: Job, runs: Path, data_dir: Path | None) -> tuple[ResultFolder, dict[str, Any]]:
    """The folder of a training, and what the training depends on."""
    choices = asdict(job)
    for field in ("methods", "seeds"):  # which other trainings are made does not bear on this one
        choices["task"].pop(field)
    about = identity(choices, revision=REVISION, data=data_digests(job.task.base, data_dir))
    return ResultFolder(runs / f"practice-{key(about)}", KIND, within=runs.parent), about


def _done(job: Job, data_dir: Path | None) -> dict[str, Any]:
    """Train, and measure validation and test results at all shares by all pruners."""
    prepared = _prepared(job.task.base, data_dir)
    torch.manual_seed(job.seed)
    model, batches, steps, way = _model(prepared, job), _batches(prepared, job), job.task.steps, METHODS[job.method]
    with torch.no_grad():
        method = way.kind(model, job.lr, job.knob, job.share or 0.0, steps, job.seed, way.muon)
    settling: list[float] = []
    seconds, warmup = 0.0, steps / 10  # steps, and then a cosine to zero
    model.train()
    for t in range(steps):
        began = time.process_time()
        cosine = 0.5 * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup)))
        lr = job.lr * ((t + 1) / (warmup + 1) if t < warmup else cosine)
        for group in [group for optimizer in method.optimizers for group in optimizer.param_groups]:
            group["lr"] = lr
        method.before(t)
        model.zero_grad()
        loss, _ = loss_and_logits(model, *next(batches))
        if not math.isfinite(float(loss.detach())):
            break  # it counts as what it is, which is not good
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in method.optimizers:
            optimizer.step()
        with torch.no_grad():
            method.after(t, lr)
        seconds += time.process_time() - began
        if t + 1 in (9 * steps // 10, steps):
            settling.append(_quality(model, prepared, 1, job.task))
    method.finish()
    calibration = [next(batches)[0] for _ in range(4)]
    matrices = param_groups(model, scope="matrices")[0]["params"]
    state = [value for optimizer in method.optimizers for own in optimizer.state.values() for value in own.values()]
    memory = sum(value.nbytes for value in state if isinstance(value, Tensor))
    result: dict[str, Any] = {
        "settling": settling,
        "zeros": sum(int((w == 0).sum()) for w in matrices) / _count(matrices),
        "seconds": seconds / steps,
        "state": memory / sum(param.nbytes for param in model.parameters()),
        "validation": {},
        "test": {},
    }
    # A small dense model counts as one of which its own share is gone already.
    gone = job.share if way.small and job.share else 0.0
    left = [max(0.0, 1 - (1 - share) / (1 - gone)) if share > gone else 0.0 for share in SHARES]
    for by in PRUNERS:
        results = [_pruned(model, prepared, job.task, by, share, calibration) for share in left]
        result["validation"][by], result["test"][by] = map(list, zip(*results, strict=True))
    return result


def _pruned(
    model: nn.Module, prepared: Prepared, task: Task, by: str, share: float, calibration: list[Tensor]
) -> tuple[float, float]:
    """Validation and test results with a share pruned, which is then undone."""
    options: Any = {"scope": "global"} if by == "magnitude" else {"batches": calibration}
    pruned = prune(model, share, by=cast(Any, by), **options) if share else None
    quality = _quality(model, prepared, 1, task), _quality(model, prepared, 2, task)
    if pruned is not None:
        pruned.undo()
    return quality


def _model(prepared: Prepared, job: Job) -> nn.Module:
    """A new model; for ``small dense`` the smallest width that has as many weights as the sparse one keeps."""
    make, sizes = type(prepared.model), cast(Any, prepared.model).config
    if METHODS[job.method].small:
        with torch.device("meta"):
            model = make(sizes)
            matrices = param_groups(model, scope="matrices")[0]["params"]
            kept = _count(model.parameters()) - (job.share or 0.0) * _count(matrices)
            for dim in range(2 * sizes.heads, sizes.dim + 1, 2 * sizes.heads):
                widths = {name: dim * getattr(sizes, name) // sizes.dim for name in WIDTHS if hasattr(sizes, name)}
                small = replace(sizes, dim=dim, **widths)
                if _count(make(small).parameters()) >= kept:
                    sizes = small
                    break
    return make(sizes)


def _count(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _batches(prepared: Prepared, job: Job) -> Iterator[Any]:
    """Batches without end, the same for every method."""
    batches = loader(prepared.splits[0], job.task.base.batch_size, job.seed)
    for epoch in range(10**9):
        cast(Any, batches.batch_sampler).set_epoch(epoch)
        yield from batches


@torch.no_grad()
def _quality(model: nn.Module, prepared: Prepared, place: int, task: Task) -> float:
    """Accuracy, or nats per token, on the same rows of a split for everybody; 0 or inf where an answer is no number."""
    part = prepared.splits[place]
    rows = np.random.default_rng(0).permutation(len(part))[: place * task.rows]
    rows = rows[np.argsort(part.lengths()[rows], kind="stable")]
    total, correct, count, training = 0.0, 0, 0, model.training
    model.eval()
    for start in range(0, len(rows), 100):
        inputs, labels = part.__getitems__(rows[start : start + 100].tolist())
        loss, logits = loss_and_logits(model, inputs, labels, "sum")
        total += float(loss)
        correct += int((logits.argmax(-1) == labels).sum())
        count += labels.numel()
    model.train(training)
    if task.base.chosen_by == "accuracy":
        return correct / count if math.isfinite(total) else 0.0
    return total / count if math.isfinite(total) else math.inf
