"""Encoders of Hugging Face transformers: BERT, DistilBERT, RoBERTa, ViT and what is built like them.

Recognised by the names of their projections, so that transformers itself is not imported here. That a layer
computes what the names promise is checked on the first batch (:mod:`mirrormax.auditing.passes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mirrormax.auditing.adapters.base import Adapter
from mirrormax.auditing.layers import AttentionLayer, check_layers, linear_layer

PROJECTIONS = (
    ("query", "key", "value", None),  # BERT, RoBERTa, ELECTRA, older ViT: the output is the parent's output.dense
    ("q_lin", "k_lin", "v_lin", "out_lin"),  # DistilBERT
    ("q_proj", "k_proj", "v_proj", "o_proj"),  # ViT, DeiT
)
HEADED = ("ForSequenceClassification", "ForImageClassification")


class HuggingFaceAdapter(Adapter):
    """A PreTrainedModel; batches are what its tokenizer or image processor returns, with or without ``labels``."""

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)

    def layers(self) -> list[AttentionLayer]:
        if getattr(self.model.config, "is_decoder", False) or getattr(self.model.config, "is_encoder_decoder", False):
            raise ValueError(f"model is a {type(self.model).__name__}, a decoder; the audit reads encoders only.")
        modules = dict(self.model.named_modules())
        found = [layer for name, module in modules.items() if (layer := _layer(name, module, modules)) is not None]
        return check_layers(found, f"the {type(self.model).__name__}")

    def call(self, batch: Any) -> Any:
        return self.model(**{name: part for name, part in _mapping(batch).items() if name != "labels"})

    def mask(self, batch: Any) -> Tensor | None:
        mask = _mapping(batch).get("attention_mask")
        return None if mask is None else mask.bool()

    def labels(self, batch: Any) -> Tensor | None:
        return _mapping(batch).get("labels")

    def ids(self, batch: Any) -> Tensor | None:
        return _mapping(batch).get("input_ids")

    def has_head(self) -> bool:
        return type(self.model).__name__.endswith(HEADED)

    def logits(self, output: Any) -> Tensor | None:
        if not self.has_head():
            return None
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return logits


def _layer(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> AttentionLayer | None:
    for query, key, value, outer in PROJECTIONS:
        q: Any = getattr(module, query, None)
        k: Any = getattr(module, key, None)
        v: Any = getattr(module, value, None)
        output: Any
        if outer is None:
            output = getattr(getattr(modules.get(name.rpartition(".")[0]), "output", None), "dense", None)
        else:
            output = getattr(module, outer, None)
        heads = getattr(module, "num_attention_heads", getattr(module, "n_heads", None))
        if isinstance(heads, int) and all(isinstance(part, nn.Linear) for part in (q, k, v, output)):
            return linear_layer(name, heads, q, k, v, output, given=k)
    return None


def _mapping(batch: Any) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"a batch for a Hugging Face model must be a mapping such as its tokenizer returns, got "
            f"{type(batch).__name__}; pass tokenizer(texts, padding=True, return_tensors='pt')."
        )
    return batch
