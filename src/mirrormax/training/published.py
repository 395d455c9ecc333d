"""The step sizes that the paper's authors trained with, and where each stands.

Sources are files of github.com/addskj2002/AttentionMD at commit 30aff94, under ``real-data/``. The text of the paper
(arXiv 2410.14581 v1) says of the text classifiers that they are "similar to [60]" with a linear layer on [CLS], and has
none of their sizes, rates or step sizes; the vision transformer is of the journal version. docs/paper-size.md has what
is done otherwise in the profile ``paper``.
"""

from __future__ import annotations

from dataclasses import replace

from mirrormax.training.config import SentimentTraining, TrainConfig, VisionTraining

SENTIMENT_STEPS = {
    1.1: {3: 8e-4, 4: 6e-4, 6: 1e-3},
    2.0: {3: 4e-4, 4: 4e-4, 6: 1e-3},
    3.0: {3: 4e-6, 4: 6e-6, 6: 1e-5},
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
        lr = SENTIMENT_STEPS.get(config.p, {}).get(config.blocks)
    elif isinstance(config, VisionTraining):
        lr = {"md": VISION_STEPS.get(config.p), "adamw": VISION_ADAM}.get(config.optimizer)
    if lr is None:
        of = f" and blocks={config.blocks}" if isinstance(config, SentimentTraining) else ""
        raise ValueError(
            f"lr must be given: the authors have no step size for optimizer={config.optimizer!r}, p={config.p:g}{of}."
        )
    return replace(config, lr=lr)
