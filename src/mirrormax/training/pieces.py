"""A batch of texts through a model a few at a time, which on a CPU is faster and needs less memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS = 8192
"""Of a piece: what it needs stays near a CPU, and is there for the next one without clearing pages."""


def loss_and_logits(
    model: nn.Module, inputs: Tensor, labels: Tensor, reduction: str = "mean", pad_id: int = 0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of a batch, and the model's answers (B, classes) without gradients.

    On a CPU, token ids (B, T) go through in pieces of about ``TOKENS``, each cut to its longest text, and when the
    loss is to be differentiated, each piece is as soon as it is through. As no text's answer depends on another's,
    nor on padding, loss and gradients are those of the whole batch, except for rounding and for which entries
    dropout hits.
    """
    if inputs.device.type != "cpu" or inputs.is_floating_point() or inputs.numel() <= TOKENS:
        logits = cast(Tensor, model(inputs))
        return functional.cross_entropy(logits, labels, reduction=reduction), logits.detach()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total, logits = _PieceByPiece.apply(model, list(_pieces(inputs, labels, pad_id)), *parameters)  # type: ignore[no-untyped-call]
    return total if reduction == "sum" else total / len(labels), logits


def _pieces(inputs: Tensor, labels: Tensor, pad_id: int) -> Iterator[tuple[Tensor, Tensor]]:
    count = max(1, TOKENS // inputs.shape[1])
    for ids, of_these in zip(inputs.split(count), labels.split(count), strict=True):
        columns = (ids != pad_id).any(0).nonzero()
        yield ids[:, : int(columns[-1]) + 1 if len(columns) else 1], of_these


class _PieceByPiece(torch.autograd.Function):
    """The summed loss and the answers of all pieces, as a function of the model's parameters.

    Forward, each piece's gradients are added to those before it and its activations let go; backward hands them on.
    """

    @staticmethod
    def forward(ctx: Any, model: nn.Module, pieces: list[tuple[Tensor, Tensor]], *parameters: Tensor) -> Any:
        wanted = [k for k, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        sums: dict[int, Tensor] = {}
        total, answers = torch.zeros(()), []
        for inputs, labels in pieces:
            with torch.set_grad_enabled(bool(wanted)):
                logits = model(inputs)
                loss = functional.cross_entropy(logits, labels, reduction="sum")
            found = torch.autograd.grad(loss, [parameters[k] for k in wanted], allow_unused=True) if wanted else ()
            for k, gradient in zip(wanted, found, strict=True):
                if gradient is not None:
                    sums[k] = sums[k] + gradient if k in sums else gradient
            total = total.to(loss.dtype) + loss.detach()
            answers.append(logits.detach())
        ctx.gradients = [sums.get(k) for k in range(len(parameters))]
        logits = torch.cat(answers)
        ctx.mark_non_differentiable(logits)
        return total, logits

    @staticmethod
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> Any:
        scale, gradients = float(factor), ctx.gradients
        del ctx.gradients
        return (None, None, *(None if each is None else each * scale for each in gradients))
