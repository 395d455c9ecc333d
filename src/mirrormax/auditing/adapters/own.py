"""Models of :mod:`mirrormax.nets`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mirrormax.auditing.adapters.base import Adapter, inputs_and_labels
from mirrormax.auditing.layers import AttentionLayer, check_layers, linear_layer
from mirrormax.nets import TransformerClassifier, VisionTransformer


class OwnAdapter(Adapter):
    """A TransformerClassifier or a VisionTransformer; batches are ids (B, T) or pixels (B, C, H, W).

    Give them alone, as a pair with labels, or as a mapping with ``ids`` or ``pixels`` and maybe ``labels``.
    """

    @classmethod
    def knows(cls, model: nn.Module) -> bool:
        return isinstance(model, TransformerClassifier | VisionTransformer)

    @property
    def _reads_text(self) -> bool:
        return isinstance(self.model, TransformerClassifier)

    def layers(self) -> list[AttentionLayer]:
        model: Any = self.model
        heads, found = int(model.config.heads), []
        for k, block in enumerate(model.blocks):
            part = block.attention
            parts = (part.query, part.key, part.value, part.output)
            found.append(linear_layer(f"blocks.{k}", heads, *parts, given=part))
        return check_layers(found, "the model")

    def call(self, batch: Any) -> Any:
        return self.model(self._inputs(batch))

    def mask(self, batch: Any) -> Tensor | None:
        config: Any = self.model.config
        return self._inputs(batch).ne(config.pad_id) if self._reads_text else None

    def labels(self, batch: Any) -> Tensor | None:
        return inputs_and_labels(batch, ("ids", "input_ids", "pixels", "pixel_values"))[1]

    def ids(self, batch: Any) -> Tensor | None:
        return self._inputs(batch) if self._reads_text else None

    def has_head(self) -> bool:
        return True

    def logits(self, output: Any) -> Tensor | None:
        return output if isinstance(output, Tensor) else None

    def _inputs(self, batch: Any) -> Tensor:
        return inputs_and_labels(batch, ("ids", "input_ids") if self._reads_text else ("pixels", "pixel_values"))[0]
