"""How the audit reads models of different makes: one small module each, and :func:`adapter_for` to choose."""

from __future__ import annotations

from typing import Any

from torch import nn

from mirrormax.auditing.adapters.base import Adapter
from mirrormax.auditing.adapters.hugging_face import HuggingFaceAdapter
from mirrormax.auditing.adapters.own import OwnAdapter
from mirrormax.auditing.adapters.torch_attention import TorchAdapter

__all__ = ["Adapter", "HuggingFaceAdapter", "OwnAdapter", "TorchAdapter", "adapter_for"]


def adapter_for(model: Any) -> Adapter:
    """The adapter of a model, an adapter being its own."""
    if isinstance(model, Adapter):
        return model
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or an audit adapter, got {type(model).__name__}; "
            "load a checkpoint first, e.g. with mirrormax.nets.load_model(folder).model."
        )
    for kind in (OwnAdapter, HuggingFaceAdapter, TorchAdapter):
        if kind.knows(model):
            return kind(model)
    raise ValueError(
        f"model is a {type(model).__name__}, which has no attention layer that the audit knows; give one of "
        "mirrormax.nets, a module with nn.MultiheadAttention, or a BERT, DistilBERT, RoBERTa or ViT of transformers."
    )
