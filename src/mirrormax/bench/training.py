"""How many tokens a second a text classifier of the paper's size 3 trains on, against the plain way.

The plain way is the same function of the same weights: only what is worked out on the way differs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.bench.optimizer import plain_step
from mirrormax.bench.ratios import Show, say_nothing
from mirrormax.data import encode, load_text, load_tokenizer, resolve_data_dir, train_tokenizer
from mirrormax.nets import SelfAttention, TransformerBlock, TransformerClassifier, TransformerConfig
from mirrormax.optim import MirrorDescent
from mirrormax.training import POOL, PROFILES, Batch, EpochBatches, SentimentTraining, TextBatches, loss_and_logits

PAPER = cast(SentimentTraining, PROFILES["sentiment"]["paper"])
P, LR = 1.1, 8e-4
BATCHES = 10
SPEEDUP_GOAL, SHARE_GOAL = 4.5, 0.05
Loss = Callable[[Tensor, Tensor], Tensor]


class PlainAttention(SelfAttention):
    """softmax(QKᵀ/√d_h) as a matrix, and then times V."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, first_only: bool = False) -> Tensor:
        mixed = self.dropout(self.weights(x, mask)) @ self._split(self.value(x))
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))


class PlainBlock(TransformerBlock):
    """Every row, with torch's own dropout and a new tensor for every step."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.attention = PlainAttention(config.dim, config.heads)
        self.dropout = self.attention.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, *, first_only: bool = False) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        change = self.contract(self.activation(self.expand(x)))
        return cast(Tensor, self.hidden_norm(x + self.dropout(change)))


class PlainClassifier(TransformerClassifier):
    """Every text padded to ``max_length``, every row of every block worked out, dense gradients of embeddings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.blocks))

    def forward(self, ids: Tensor, attention: bool = False) -> Tensor:
        """ids (B, T) to logits (B, classes)."""
        ids = functional.pad(ids, (0, self.config.max_length - ids.shape[1]), value=self.config.pad_id)
        x, mask = self.embed(ids), self.mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x[:, 0])
        return functional.pad(logits, (1, 0)) if self.config.classes == 2 else logits


def size_3(vocab_size: int) -> TransformerConfig:
    """The paper's smallest transformer for texts."""
    names = ("max_length", "dim", "hidden", "blocks", "heads", "dropout")
    return TransformerConfig(vocab_size=vocab_size, **{name: getattr(PAPER, name) for name in names})


def imdb_batches(data_dir: Path | None) -> tuple[list[Batch], int, str]:
    """Batches of real reviews, the size of the vocabulary, and where it came from.

    One pool of reviews is sorted into batches of like length, as in training, and the middle one of each tenth is
    taken, so that these have the lengths of all.
    """
    folder = resolve_data_dir(data_dir)
    texts = load_text("imdb", folder).train
    vocab = None if folder is None else folder / str(PAPER.vocab)
    if vocab is not None and vocab.is_file():
        tokenizer, source = load_tokenizer(vocab), "BERT's vocabulary"
    else:
        tokenizer = train_tokenizer(texts.texts, PAPER.vocab_size)
        source = "a vocabulary learnt from the reviews"
    count = min(len(texts), POOL * PAPER.batch_size)
    pool = texts.subset(np.random.default_rng(0).permutation(len(texts))[:count])
    data = TextBatches(encode(tokenizer, pool.texts, PAPER.max_length), pool.labels)
    lengths = data.lengths()
    batches = sorted(EpochBatches(lengths, PAPER.batch_size, seed=0), key=lambda rows: lengths[rows].sum())
    middles = [int((k + 0.5) / BATCHES * len(batches)) for k in range(BATCHES)]
    return [data.__getitems__(batches[middle]) for middle in middles], tokenizer.get_vocab_size(), source


def step(model: nn.Module, loss: Loss, update: Callable[[], object], *batch: Tensor) -> tuple[float, float]:
    """How many seconds a training step took, and how many of these the update of the weights did."""
    start = time.perf_counter()
    model.zero_grad()
    loss(*batch).backward()
    middle = time.perf_counter()
    update()
    end = time.perf_counter()
    return end - start, end - middle


def main(data_dir: Path | None = None, show: Show = say_nothing) -> dict[str, float]:
    """Print and return how many times as many tokens ours trains on, and what share of a step the optimizer takes."""
    show("reading the reviews", 0, None)
    batches, vocab_size, source = imdb_batches(data_dir)
    torch.manual_seed(0)
    ours = TransformerClassifier(size_3(vocab_size), sparse_embedding=True)
    plain = PlainClassifier(size_3(vocab_size))
    plain.load_state_dict(ours.state_dict())

    def our_loss(ids: Tensor, labels: Tensor) -> Tensor:
        return loss_and_logits(ours, ids, labels, "sum")[0]

    def plain_loss(ids: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(plain(ids), labels, reduction="sum")

    ways: dict[str, tuple[nn.Module, Loss, Callable[[], object]]] = {
        "ours": (ours, our_loss, MirrorDescent(ours.parameters(), lr=LR, p=P).step),
        "plain": (plain, plain_loss, plain_step(plain.parameters(), P, LR)),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for way in ways.values():
        step(*way, *batches[0])  # the first step of either allocates what the others use again
    for k, batch in enumerate(batches):
        for name, way in ways.items():
            show(f"{name} steps", k, len(batches))
            seconds[name].append(step(*way, *batch))
    tokens = sum(int((ids != 0).sum()) for ids, _ in batches)
    return _tell(seconds, tokens, f"{len(batches)} batches of {PAPER.batch_size} IMDb reviews, {source}")


def _tell(seconds: dict[str, list[tuple[float, float]]], tokens: int, what: str) -> dict[str, float]:
    total = {name: sum(whole for whole, _ in each) for name, each in seconds.items()}
    share = statistics.median(part / whole for whole, part in seconds["ours"])
    print(f"Training steps of the paper's size 3 on {what}, {torch.get_num_threads()} threads, ℓ{P:g}.\n")
    print(f"{'way':8s} {'tokens/s':>9s} {'s a step':>9s} {'optimizer':>10s}")
    for name in seconds:
        each, update = total[name] / len(seconds[name]), sum(part for _, part in seconds[name])
        print(f"{name:8s} {tokens / total[name]:9.0f} {each:9.2f} {update / total[name]:10.1%}")
    times = total["plain"] / total["ours"]
    print(f"\nOurs trains on {times:.1f} times as many tokens a second (goal {SPEEDUP_GOAL:g});")
    print(f"the optimizer takes {share:.1%} of a step in the median (goal at most {SHARE_GOAL:.0%}).")
    return {"tokens per second": times, "optimizer's share of a step": share}
