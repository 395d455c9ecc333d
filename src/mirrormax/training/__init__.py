"""Training transformers by mirror descent and by what it is compared with, on Lightning."""

from mirrormax.training.config import PROFILES, SentimentTraining, TrainConfig, VisionTraining

__all__ = ["PROFILES", "SentimentTraining", "TrainConfig", "VisionTraining"]
