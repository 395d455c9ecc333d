"""Whole transformers, for text and for images, their parts, and the folders they are kept in."""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.nets.checkpoint import SPARSE_WEIGHTS, Checkpoint, load_model, save_model, write_model
    from mirrormax.nets.layers import Dropout, SelfAttention, drawing_from, pixel_inputs, resized, without_memory
    from mirrormax.nets.models import Decoder, TransformerBlock, TransformerClassifier, VisionBlock, VisionTransformer
    from mirrormax.nets.sizes import DecoderConfig, TransformerConfig, VisionConfig

__all__ = [
    "Checkpoint",
    "Decoder",
    "DecoderConfig",
    "SelfAttention",
    "TransformerBlock",
    "TransformerClassifier",
    "TransformerConfig",
    "VisionBlock",
    "VisionConfig",
    "VisionTransformer",
    "load_model",
    "save_model",
]

__getattr__, __dir__ = lazy(__name__)
