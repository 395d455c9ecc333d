"""A batch of texts through a model a few at a time, where that is faster."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

TOKENS = 8192
"""Of a piece: matrices of a few megabytes stay near a CPU and are allocated anew without clearing pages."""


def in_pieces(model: nn.Module, inputs: Tensor, pad_id: int = 0) -> Tensor:
    """The model's answers (B, classes) to token ids (B, T) or to other inputs.

    On a CPU, token ids go through in pieces of about ``TOKENS``, each cut to its longest text. As no text's answer
    depends on another's, nor on padding, answers and gradients are those of the whole batch, except for rounding and
    for which entries dropout hits.
    """
    if inputs.device.type != "cpu" or inputs.is_floating_point() or inputs.numel() <= TOKENS:
        return cast(Tensor, model(inputs))
    pieces = inputs.split(max(1, TOKENS // inputs.shape[1]))
    return torch.cat([model(piece[:, : _longest(piece, pad_id)]) for piece in pieces])


def _longest(ids: Tensor, pad_id: int) -> int:
    columns = (ids != pad_id).any(0).nonzero()
    return int(columns[-1]) + 1 if len(columns) else 1
