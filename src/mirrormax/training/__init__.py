"""Training transformers by mirror descent and by what it is compared with, on Lightning.

Configurations are plain data and need no Lightning; the rest is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy
from mirrormax.training.config import (
    ALIASES,
    MIRROR_P,
    OPTIMIZERS,
    PROFILES,
    REVISION,
    TARGET_LR,
    WITH_P,
    LanguageTraining,
    SentimentTraining,
    TrainConfig,
    VisionTraining,
    config_of,
    with_choices,
)

if TYPE_CHECKING:
    from mirrormax.training.batches import POOL, Batch, EpochBatches, ImageBatches, TextBatches, loader, loss_and_logits
    from mirrormax.training.classification import Classification, History
    from mirrormax.training.inputs import Prepared, data_digests, prepare, read_splits, run_key, splits_of
    from mirrormax.training.machine import Machine, make_trainer
    from mirrormax.training.optimizers import default_lr, make_optimizer, with_published_step
    from mirrormax.training.results import chosen_epoch, majority_sentence, read_metrics, score
    from mirrormax.training.run import is_complete, train, writes_files

__all__ = [
    "PROFILES",
    "LanguageTraining",
    "Machine",
    "Prepared",
    "SentimentTraining",
    "TrainConfig",
    "VisionTraining",
    "default_lr",
    "is_complete",
    "make_optimizer",
    "prepare",
    "read_metrics",
    "run_key",
    "splits_of",
    "train",
    "with_choices",
    "with_published_step",
]

__getattr__, __dir__ = lazy(__name__)
