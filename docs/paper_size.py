"""What the paper's own sizes cost: ``python docs/paper_size.py work|rates|epoch --data-dir DATA``.

``work``   floating-point work per epoch, counted by torch on the models themselves
``rates``  tokens and images per second of CPU time on one core
``epoch``  one epoch of the profile ``paper``, batch by batch into ``docs/paper_size.csv``: the loss of ours
           with the profile's dropout, and on the first batches, without dropout, ours beside the plain one

``epoch`` appends a row per batch, and keeps its weights beside the rows every few batches. Interrupted, give the same
command again: it goes on from these. Rows that are there are not written twice, and must come out the same.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from mirrormax._files import replacing
from mirrormax.bench.optimizer import plain_step
from mirrormax.bench.training import PlainClassifier
from mirrormax.nets import TransformerClassifier, VisionTransformer
from mirrormax.optim import MirrorDescent
from mirrormax.training import (
    PROFILES,
    EpochBatches,
    SentimentTraining,
    VisionTraining,
    loss_and_logits,
    prepare,
)
from mirrormax.training.batches import ROUND, TOKENS

OUT = Path(__file__).with_suffix(".csv")
TEXT, VISION = PROFILES["sentiment"]["paper"], PROFILES["vision"]["paper"]
assert isinstance(TEXT, SentimentTraining)
assert isinstance(VISION, VisionTraining)
P = 1.1
PAIRED = 5
"""Batches on which the plain implementation trains too; it takes about five times as long."""
KEPT = 15
"""Batches after which the weights are kept."""
PART = 20
"""Texts of a batch that the plain model takes at once, for the memory; and examples of a step that is timed."""
COLUMNS = ("batch", "tokens", "ours", "ours_without_dropout", "plain_without_dropout")


# torch counts its attention kernels for GPUs, and not the one for CPUs.
ATTENTION: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: (
        sdpa_backward_flop_count(g, q, k, v)
    ),
}


def flops(model: nn.Module, inputs: Tensor) -> int:
    """Floating-point operations of one training step (forward and backward), a multiply-add counted as two."""
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        model(inputs).sum().backward()
    return int(counter.get_total_flops())


def text_flops(blocks: int) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Work on one text as a function of its tokens T: c₀ + c₁T + c₂T² exactly, from three counts."""
    model = TransformerClassifier(replace(TEXT, blocks=blocks, heads=blocks).network(TEXT.vocab_size))
    lengths = np.array([64, 128, 192])
    counts = [flops(model, torch.ones(1, int(T), dtype=torch.int64)) for T in lengths]
    coefficients = np.linalg.solve(np.vander(lengths.astype(float), 3), np.array(counts, float))
    return lambda T: np.polyval(coefficients, T)


def padded_lengths(data: Any, config: Any) -> list[tuple[int, int]]:
    """(texts, tokens each) of every piece of a batch of the first epoch, padded to its longest, as training has it."""
    lengths, found = data.lengths(), []
    for rows in EpochBatches(np.ones_like(lengths), config.batch_size, seed=0):
        batch = np.sort(lengths[rows])
        for piece in np.array_split(batch, min(len(batch), ROUND * -(-batch.size * batch[-1] // (ROUND * TOKENS)))):
            found.append((len(piece), int(piece[-1])))
    return found


def work(data_dir: Path) -> dict[str, Any]:
    """Work per epoch of every size."""
    data = prepare(replace(TEXT, dim=12, hidden=12), data_dir).splits[0]
    batches = padded_lengths(data, TEXT)
    found: dict[str, Any] = {"training texts": len(data), "tokens": int(data.lengths().sum())}
    for blocks in (3, 4, 6):
        count = text_flops(blocks)
        found[f"TFLOP per epoch, {blocks} blocks"] = sum(texts * float(count(T)) for texts, T in batches) / 1e12
    model = VisionTransformer(VISION.network())
    per_image = flops(model, torch.zeros(1, 3, VISION.image_size, VISION.image_size))
    images = round(50_000 * (1 - VISION.validation))
    found |= {
        "GFLOP per image": per_image / 1e9,
        "TFLOP per epoch, vision": per_image * images / 1e12,
        "images": images,
    }
    return found


def rates(data_dir: Path) -> dict[str, Any]:
    """Tokens and images per second of CPU time, whole training steps of 20 examples on one core."""
    torch.set_num_threads(1)
    prepared = prepare(TEXT, data_dir)
    data = prepared.splits[0]
    lengths = data.lengths()
    batches = sorted(EpochBatches(lengths, PART, seed=0), key=lambda rows: lengths[rows].sum())
    middles = [batches[int((k + 0.5) / 3 * len(batches))] for k in range(3)]  # lengths as of all
    step = Ours(prepared.model, "sum", TEXT.lr)
    step(*data.__getitems__(middles[0]))
    spent, tokens = 0.0, 0
    for rows in middles:
        batch = data.__getitems__(rows)
        began = time.process_time()
        step(*batch)
        spent, tokens = spent + time.process_time() - began, tokens + int(lengths[rows].sum())
    images = prepare(VISION, data_dir)
    step = Ours(images.model, "mean", VISION.lr)
    batch = images.splits[0].__getitems__(list(range(PART)))
    step(*batch)
    began = time.process_time()
    step(*batch)
    return {"tokens per second": tokens / spent, "images per second": PART / (time.process_time() - began)}


class Ours:
    """A step of ours; gives the mean loss before it."""

    def __init__(self, model: nn.Module, reduction: str, lr: float | None) -> None:
        self.model, self.reduction = model, reduction
        self.optimizer = MirrorDescent(model.parameters(), lr=lr, p=P)

    def __call__(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = loss_and_logits(self.model, inputs, labels, self.reduction)[0]
        loss.backward()
        self.optimizer.step()
        return loss.item() / (len(labels) if self.reduction == "sum" else 1)

    def keep(self, path: Path, batches: int) -> None:
        """What the next step depends on, with the number of batches done."""
        state = {"batches": batches, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        with replacing(path) as temporary:
            torch.save({**state, "random": torch.get_rng_state()}, temporary)

    def take(self, path: Path) -> int:
        """What was kept, if anything was; how many batches that is."""
        if not path.exists():
            return 0
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        return int(state["batches"])


def their_step(model: nn.Module, lr: float) -> Callable[[Tensor, Tensor], float]:
    """The same the plain way: every text padded to 512 tokens, powers to the dual and back."""
    update = plain_step(model.parameters(), P, lr)

    def step(inputs: Tensor, labels: Tensor) -> float:
        model.zero_grad()
        total = 0.0
        for part, of_part in zip(inputs.split(PART), labels.split(PART), strict=True):
            loss = functional.cross_entropy(model(part), of_part, reduction="sum")
            loss.backward()
            total += loss.item()
        update()
        return total / len(labels)

    return step


def epoch(data_dir: Path, path: Path, most: int | None) -> None:
    """Train for one epoch, or ``most`` batches of it, a row per batch."""
    prepared = prepare(TEXT, data_dir)
    data, lr = prepared.splits[0], float(TEXT.lr or 0)
    sizes = replace(TEXT, dropout=0.0).network(prepared.tokenizer.get_vocab_size())
    quiet, plain = TransformerClassifier(sizes, sparse_embedding=True), PlainClassifier(sizes)
    for model in (quiet, plain):
        model.load_state_dict(prepared.model.state_dict())
    ours = Ours(prepared.model, "sum", lr)
    beside = [Ours(quiet, "sum", lr), their_step(plain, lr)]
    torch.manual_seed(0)  # dropout
    kept = path.with_suffix(".pt")
    done = ours.take(kept)
    lengths = data.lengths()
    for k, chosen in enumerate(EpochBatches(np.ones_like(lengths), TEXT.batch_size, seed=0), start=1):
        if most is not None and k > most:
            return
        if k <= done:
            continue
        batch = data.__getitems__(chosen)
        losses = [f"{step(*batch):.7f}" for step in ([ours, *beside] if k <= PAIRED else [ours])]
        append(path, [str(k), str(int(lengths[chosen].sum())), *losses, *[""] * (3 - len(losses))])
        if k >= PAIRED and (k % KEPT == 0 or k == most):
            ours.keep(kept, k)


def append(path: Path, row: list[str]) -> None:
    """Write a row that is not there yet; one that is must be the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = list(csv.reader(path.open(newline=""))) if path.exists() else []
    found = next((old for old in known if old[0] == row[0]), None)
    if found is not None:
        if found != row:
            raise SystemExit(f"batch {row[0]} in {path} is {found}, and now {row}; move that file away.")
        return
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not known:
            writer.writerow(COLUMNS)
        writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("work", "rates", "epoch"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--batches", type=int, default=None, help="of the epoch; all, if not given")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.data_dir is None:
        parser.error("--data-dir is needed")
    if args.what == "epoch":
        epoch(args.data_dir, args.out, args.batches)
        return
    found = {"work": work, "rates": rates}[args.what](args.data_dir)
    print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
