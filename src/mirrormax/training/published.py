"""What the paper's authors trained with, where each number stands, and what we do otherwise.

Sources are files of github.com/addskj2002/AttentionMD at commit 30aff94, under ``real-data/``. The text of the paper
(arXiv 2410.14581 v1) says of the text classifiers that they are "similar to [60]" with a linear layer on [CLS], and has
none of their sizes, rates or step sizes; the vision transformer is of the journal version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mirrormax.training.config import SentimentTraining, TrainConfig, VisionTraining

SENTIMENT_STEPS = {
    (1.1, 3): 8e-4,
    (1.1, 4): 6e-4,
    (1.1, 6): 1e-3,
    (2.0, 3): 4e-4,
    (2.0, 4): 4e-4,
    (2.0, 6): 1e-3,
    (3.0, 3): 4e-6,
    (3.0, 4): 6e-6,
    (3.0, 6): 1e-5,
}
"""Step sizes for losses summed over 100 texts, by p and blocks: ``real-data/configs/P/model_size_N.json``."""
VISION_STEPS = {1.1: 0.1, 1.75: 0.1, 2.0: 0.1, 3.0: 0.01}
"""Step sizes for mean losses, by p: ``real-data/bash_scripts/vit_cifar10.sh`` and ``vit_cifar100.sh``."""
VISION_ADAM = 1e-4
"""That of Adam, from the same files."""


def with_published_step(config: TrainConfig) -> TrainConfig:
    """``config`` with the authors' step size for its p and size; ValueError where they have none."""
    lr = None
    if isinstance(config, SentimentTraining) and config.optimizer == "md":
        lr = SENTIMENT_STEPS.get((config.p, config.blocks))
    elif isinstance(config, VisionTraining):
        lr = {"md": VISION_STEPS.get(config.p), "adamw": VISION_ADAM}.get(config.optimizer)
    if lr is None:
        of = f" and blocks={config.blocks}" if isinstance(config, SentimentTraining) else ""
        raise ValueError(
            f"lr must be given: the authors have no step size for optimizer={config.optimizer!r}, p={config.p:g}{of}."
        )
    return replace(config, lr=lr)


class Difference(NamedTuple):
    """Something in which a run of the profile ``paper`` is not the authors'."""

    what: str
    authors: str
    source: str
    ours: str
    effect: str


DIFFERENCES = (
    Difference(
        "trials",
        "ten from one first model",
        "train_sent_analysis.py",
        "every seed has first weights of its own",
        "ours also vary with the start",
    ),
    Difference(
        "state of mirror descent",
        "weights; powers to the dual and back in every step",
        "tools/optimizer.py",
        "the dual variables",
        "at p = 1.1 theirs loses dual entries below 3e-5, and rounding shrinks its weights",
    ),
    Difference(
        "long texts",
        "the first 512 tokens, without [SEP]",
        "tools/dataset_classes.py",
        "the first 511 and [SEP]",
        "one token",
    ),
    Difference(
        "padding",
        "to 512 tokens",
        "tools/dataset_classes.py",
        "to the longest of a batch",
        "none: outputs and gradients agree to rounding",
    ),
    Difference(
        "loss of texts",
        "BCELoss of a sigmoid, with logarithms from −100",
        "train_sent_analysis.py",
        "cross-entropy of logits",
        "theirs has no gradient where a float32 sigmoid is 0 or 1",
    ),
    Difference(
        "dropout",
        "a random number for each entry",
        "torch",
        "16 random bits for each, on a CPU",
        "the rate is a multiple of 2⁻¹⁶; other entries are hit",
    ),
    Difference(
        "order of batches and first weights",
        "unseeded",
        "train_sent_analysis.py, train_vit.py",
        "from the seed; same distributions",
        "no run of theirs can be repeated",
    ),
    Difference(
        "images at 48 pixels",
        "Pillow, rounded to 256 levels",
        "train_vit.py",
        "interpolated in float32",
        "at most half a level of a pixel",
    ),
    Difference(
        "Adam and ℓ2 for images",
        "torch's Adam and SGD",
        "train_vit.py",
        "AdamW without decay; mirror descent at p = 2",
        "none: the same steps to rounding",
    ),
)
"""Every difference that we know of between the profile ``paper`` and the authors' code."""


def differences_table() -> str:
    """:data:`DIFFERENCES` as a Markdown table."""
    rows = ["| | the authors | in | ours | effect |", "|---|---|---|---|---|"]
    for each in DIFFERENCES:
        rows.append(f"| {each.what} | {each.authors} | `{each.source}` | {each.ours} | {each.effect} |")
    return "\n".join(rows)
