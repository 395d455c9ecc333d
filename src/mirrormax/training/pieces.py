"""A batch of texts through a model a few at a time, each core with texts of its own."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax._parallel import on_all_cores
from mirrormax.nets import drawing_from

WHOLE = 8192
"""Tokens of a batch that goes through at once."""
TOKENS = 4096
"""At most, of a piece of a larger one: what it needs stays near a core, and is there for the next piece."""
PAD = 0
"""The id behind a text's end."""
ROUND = 8
"""Pieces come in multiples of it, so that 2, 4 or 8 cores have equally much to do."""
Piece = tuple[Tensor, Tensor, int]
"""Some of a batch's texts, cut to the longest of them, their labels, and the seed of their dropout."""


def loss_and_logits(model: nn.Module, inputs: Tensor, labels: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    """Cross-entropy of a batch, and the model's answers (B, classes) without gradients; of a language model, whose
    labels are (B, T), those of all tokens (B, T, classes).

    On a CPU, a batch of more than ``WHOLE`` token ids (B, T) goes through in pieces, one on each core at a time, and
    when the loss is to be differentiated, each piece is as soon as it is through. As no text's answer depends on
    another's, nor on padding, loss and gradients are those of the whole batch, except for rounding and for which
    entries dropout hits; neither depends on the number of cores, where dropout is that of ``mirrormax.nets``.
    """
    small = inputs.device.type != "cpu" or inputs.is_floating_point() or inputs.numel() <= WHOLE
    if small or labels.ndim > 1:
        logits = cast(Tensor, model(inputs))
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction=reduction), logits.detach()
    draws = any(part.training for part in model.modules())
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad and torch.is_grad_enabled()]
    order = (inputs != PAD).sum(1).argsort(stable=True)  # texts of like length share a piece, and little is padded
    count = min(len(inputs), ROUND * -(-inputs.numel() // (ROUND * TOKENS)))
    # Where nothing is drawn, torch's generator must not move either.
    seeds = torch.randint(2**63 - 1, (count,)).tolist() if draws else [0] * count
    parts = zip(inputs[order].tensor_split(count), labels[order].tensor_split(count), seeds, strict=True)
    pieces = [(_cut(ids), classes, seed) for ids, classes, seed in parts]
    total, sorted_logits = _PieceByPiece.apply(model, pieces, *learnt)  # type: ignore[no-untyped-call]
    logits = sorted_logits[order.argsort()]
    return total if reduction == "sum" else total / len(labels), logits


def _cut(ids: Tensor) -> Tensor:
    columns = (ids != PAD).any(0).nonzero()
    return ids[:, : int(columns[-1]) + 1 if len(columns) else 1]


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """``total`` grown in place; a first gradient is copied, as it may be another parameter's too."""
    if gradient is None:
        return total
    return gradient.clone() if total is None else total.add_(gradient)


class _PieceByPiece(torch.autograd.Function):
    """The summed loss and the answers of all pieces, as a function of the model's parameters.

    Forward, each piece's gradients are added to those before it and its activations let go; backward hands them on.
    """

    @staticmethod
    def forward(ctx: Any, model: nn.Module, pieces: list[Piece], *parameters: Tensor) -> Any:
        precision = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

        def through(piece: Piece) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
            # A thread begins with torch's defaults, not with the caller's choices.
            ids, labels, seed = piece
            generator = torch.Generator().manual_seed(seed)
            with torch.set_grad_enabled(bool(parameters)):
                with torch.autocast("cpu", precision[1], enabled=precision[0]), drawing_from(generator):
                    logits = model(ids)
                    loss = functional.cross_entropy(logits, labels, reduction="sum")
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True) if parameters else ()
            return loss.detach(), logits.detach(), gradients

        sums: list[Tensor | None] = [None] * len(parameters)
        losses, answers = [], []
        for loss, logits, gradients in on_all_cores(through, pieces):
            losses.append(loss)
            answers.append(logits)
            sums = [_added(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
        ctx.gradients = sums
        logits = torch.cat(answers)
        ctx.mark_non_differentiable(logits)
        return torch.stack(losses).sum(), logits

    @staticmethod
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("a batch in pieces can be differentiated once; give smaller ones for create_graph=True.")
        scale = float(factor)
        return (None, None, *(None if each is None else each * scale for each in ctx.gradients))
