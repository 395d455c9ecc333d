"""Whole transformers, for text and for images, and the folders they are kept in."""

from mirrormax.nets.checkpoint import Checkpoint, load_model, save_model
from mirrormax.nets.transformer import TransformerClassifier, TransformerConfig
from mirrormax.nets.vision import VisionConfig, VisionTransformer

__all__ = [
    "Checkpoint",
    "TransformerClassifier",
    "TransformerConfig",
    "VisionConfig",
    "VisionTransformer",
    "load_model",
    "save_model",
]
