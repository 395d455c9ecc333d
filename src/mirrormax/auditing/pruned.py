"""What pruning costs and saves: quality over the share with intervals, bytes, and the pruned model as a folder.

A folder is one that :func:`~mirrormax.auditing.load_for_audit` reads, or a plain one of Hugging Face.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mirrormax._statistics import Estimate, bootstrap_mean, paired_difference
from mirrormax.auditing.data import Batches
from mirrormax.auditing.loading import IMAGES_FILE, TRAINING, quiet
from mirrormax.auditing.models import Loaded, OwnModel
from mirrormax.nets import SPARSE_WEIGHTS, write_model
from mirrormax.pruning import Pruned, answer, next_token_losses, prune, save_sparse, scores

SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
ACCURACY, LOSS, LIKENESS = "accuracy", "loss per token", "cosine to the dense model"
Values = npt.NDArray[np.float64]
Points = list[tuple[float, Estimate]]


@dataclass(frozen=True)
class PruningReport:
    """Quality dense and pruned, what was pruned, and what that saves."""

    measure: str  # ACCURACY of classifiers, LOSS of language models, LIKENESS of encoders without a head
    by: str
    rows: int  # texts or images that quality is measured on
    chance: float | None  # accuracy of the most frequent label
    quality: Points  # over the share
    magnitude: Points  # the same by magnitude, where the score is another one
    share: float  # that was pruned, of all weights of the tensors
    pruned: Estimate  # quality at that share
    change: Estimate  # pruned − dense, paired
    tensors: dict[str, tuple[int, int]]

    @property
    def finding(self) -> str:
        """One sentence: what pruning did to quality."""
        if self.change.low <= 0 <= self.change.high:
            verdict = "no change can be seen"
        else:
            better = (self.change.mean > 0) == (self.measure != LOSS)
            verdict = f"{self.measure} gets {'better' if better else 'worse'} by {abs(self.change.mean):.3g}"
        low, high = sorted((self.change.low, self.change.high))
        return f"{self.share:.0%} pruned by {self.by}: {verdict} ({low:+.3f} to {high:+.3f}, n = {self.rows})"

    def sentences(self, dense: int, kept: int) -> list[str]:
        """What was found, with the bytes of the checkpoint dense and sparse."""
        size = sum(size for _, size in self.tensors.values())
        return [
            f"{self.finding}.",
            f"{self.measure}: {self.quality[0][1].mean:.4f} dense, {self.pruned.mean:.4f} with {self.share:.1%} of "
            f"{size:,} weights in {len(self.tensors)} tensors pruned by {self.by}.",
            f"The weights take {dense:,} bytes dense and {kept:,} on disk with zeros kept sparse ({kept / dense:.0%}); "
            "as dense matrices, they are multiplied as fast as before.",
        ]


def measure_of(loaded: Loaded) -> str:
    """What says how good the model is."""
    if loaded.classes:
        return ACCURACY
    return LOSS if loaded.causal else LIKENESS


def quality_of(loaded: Loaded, batches: Iterable[dict[str, Tensor]]) -> Callable[[], Values]:
    """How good the model is from now on, for each row; their mean is the quality. An encoder is compared with now."""
    measure, model = measure_of(loaded), loaded.model
    values = {ACCURACY: _right, LOSS: _text_losses, LIKENESS: _mean_vectors}[measure]

    @torch.inference_mode()
    def answers() -> Tensor:
        model.eval()
        return torch.cat([values(answer(model, batch), batch).double() for batch in batches])

    dense = answers() if measure == LIKENESS else None

    def quality() -> Values:
        given = answers()
        if measure == LOSS:
            # Sums s over w tokens as numbers whose plain mean is m = Σ s / Σ w and that vary as it does.
            sums, weights = given.numpy().T
            plain = sums / weights
            mean = (plain * weights).sum() / weights.sum()
            return np.asarray(mean + weights / weights.mean() * (plain - mean))
        return given.numpy() if dense is None else nn.functional.cosine_similarity(given, dense, dim=-1).numpy()

    return quality


def _right(out: Any, batch: dict[str, Tensor]) -> Tensor:
    logits: Tensor = getattr(out, "logits", out)
    return logits.argmax(-1) == batch["labels"]


def _text_losses(out: Any, batch: dict[str, Tensor]) -> Tensor:
    """For each text with a next token, the sum of −log p of its tokens and how many these are."""
    counts = batch["attention_mask"][:, 1:].sum(1)
    parts = next_token_losses(out.logits, batch).split(counts.tolist())
    return torch.stack([torch.stack([part.sum(), torch.tensor(float(len(part)))]) for part in parts if len(part)])


def _mean_vectors(out: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean of a row's token vectors, (B, d)."""
    hidden = getattr(out, "last_hidden_state", None)
    if hidden is None or hidden.ndim != 3:
        raise ValueError(
            f"the model answers with {type(out).__name__} and no vectors of tokens, so that nothing says what pruning "
            "costs; give a classifier, a causal language model or an encoder."
        )
    there = batch.get("attention_mask", torch.ones(hidden.shape[:2])).unsqueeze(-1)
    mean: Tensor = (hidden.double() * there).sum(1) / there.sum(1)
    return mean


def apart(batches: Batches, rows: int) -> tuple[Batches, Batches]:
    """``rows`` rows, drawn evenly, to score weights by, and all others, to measure on."""
    if rows < 1:
        raise ValueError(f"--calibration must be at least 1, the rows that weights are scored on, got {rows}.")
    if rows >= len(batches):
        raise ValueError(
            f"--calibration must leave at least one row to measure on, got {rows} of {len(batches)} rows; give more "
            "data or fewer rows."
        )
    chosen = np.zeros(len(batches), dtype=bool)
    chosen[np.linspace(0, len(batches) - 1, rows).round().astype(int)] = True
    return batches.take(np.flatnonzero(chosen)), batches.take(np.flatnonzero(~chosen))


def measure_pruning(
    loaded: Loaded,
    batches: Batches,
    share: float,
    shares: Sequence[float] = SHARES,
    show: Callable[[str, int, int], None] = lambda stage, done, total: None,
    calibration: Iterable[dict[str, Tensor]] | None = None,
    *,
    by: str = "magnitude",
    **options: Any,
) -> PruningReport:
    """Quality at each of ``shares``; then prune ``share`` for good. ``options`` are those of :func:`mirrormax.prune`.

    Where ``by`` is not magnitude, the same shares are measured by magnitude too, in its own scope.
    """
    quality, model = quality_of(loaded, batches), loaded.model
    calibration = None if calibration is None else list(calibration)
    once = {name: option for name, option in options.items() if name in ("structured", "params")}
    positive = sorted({point for point in shares if point > 0})
    show("scoring", 0, len(positive) + 1)
    ready = by if by == "sparsegpt" else scores(model, by, batches=calibration, **once)

    def pruned_by(point: float, way: Any) -> Pruned:
        if way == "magnitude" != by:
            return prune(model, point, "magnitude", **once)
        return prune(model, point, way, batches=calibration if way == "sparsegpt" else None, **options)

    dense, ways = quality(), {by: ready}
    ways.setdefault("magnitude", "magnitude")
    points: dict[str, Points] = {name: [(0.0, bootstrap_mean(dense))] for name in ways}
    for k, point in enumerate(positive):
        show("shares", k, len(positive) + 1)
        for name, way in ways.items():
            pruned = pruned_by(point, way)
            points[name].append((point, bootstrap_mean(quality())))
            pruned.undo()
    show("pruning", len(positive), len(positive) + 1)
    pruned = pruned_by(share, ready)
    pruned.finish()
    values, labels = quality(), batches.labels
    return PruningReport(
        measure_of(loaded),
        by,
        len(batches),
        None if labels is None else float(torch.bincount(labels).max()) / len(labels),
        points[by],
        points["magnitude"] if by != "magnitude" else [],
        pruned.share,
        bootstrap_mean(values),
        paired_difference(values, dense),
        pruned.tensors,
    )


def save_pruned(writing: Callable[..., AbstractContextManager[Path]], loaded: Loaded) -> None:
    """The files by which :func:`load_for_audit` reads a model again, its zeros kept as bits.

    Each goes through ``writing(name, *failures)``, which gives a path to write it to.
    """
    if isinstance(loaded, OwnModel):
        write_model(writing, loaded.model, loaded.classes, loaded.tokenizer, loaded.training, sparse=True)
        return
    model: Any = loaded.model
    with writing(SPARSE_WEIGHTS) as path:
        save_sparse(path, stored_once(model))
    with writing("config.json") as path:
        config = {**json.loads(model.config.to_json_string(use_diff=False)), "architectures": [type(model).__name__]}
        config |= {TRAINING: loaded.training} if loaded.training else {}
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with TemporaryDirectory() as scratch:
        _write_reader(Path(scratch), loaded)
        for file in sorted(Path(scratch).iterdir()):
            with writing(file.name) as path:
                path.write_bytes(file.read_bytes())


def stored_once(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model in which a tensor of two names, such as a tied embedding, has its first one only."""
    stored, places = {}, set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in places or not tensor.numel():
            stored[name] = tensor
        places.add(place)
    return stored


def _write_reader(folder: Path, loaded: Loaded) -> None:
    """The tokenizer, or how pixels are scaled."""
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)
    else:
        pixels = {"image_mean": loaded.image["mean"], "image_std": loaded.image["std"]}
        (folder / IMAGES_FILE).write_text(json.dumps(pixels), encoding="utf-8")


def check_export(folder: Path, loaded: Loaded) -> None:
    """ValueError where the folder is taken, or the model is none that transformers has a class for."""
    if isinstance(loaded, OwnModel):
        raise ValueError(
            f"--export {folder} writes models that transformers knows, and {loaded.folder} is one of ours; leave "
            "it out and use the folder of --out."
        )
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--export {folder} exists already; give a new folder.")
    if not folder.absolute().parent.is_dir():
        raise FileNotFoundError(f"--export {folder}: the directory {folder.parent} does not exist; create it first.")


def export_pruned(folder: Path, loaded: Loaded) -> None:
    """Weights (zeros in place), configuration and tokenizer; the folder appears when all of it is written."""
    check_export(folder, loaded)
    model: Any = loaded.model
    with TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}.") as scratch:
        target = Path(scratch) / "model"
        with quiet():
            model.save_pretrained(target)
        _write_reader(target, loaded)
        os.replace(target, folder)
