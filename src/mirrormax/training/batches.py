"""Batches in an order that depends on the seed and the epoch alone, and their way through a model.

A large batch of texts goes through a few at a time, each core with texts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler

from mirrormax._parallel import on_all_cores
from mirrormax.nets import VisionConfig, drawing_from, pixel_inputs, resized

POOL = 50
"""Batches whose texts are sorted by length together."""
Batch = tuple[Tensor, Tensor]
"""Inputs and labels."""
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


class EpochBatches(Sampler[list[int]]):
    """Indices of batches. Texts of like length share a batch, so that little is padded.

    Each epoch shuffles all examples, sorts pools of 50 batches by length, cuts these into batches, and shuffles
    the batches. With several processes, each takes every ``world``-th batch; when training, they take equally
    many, the first few batches twice if they do not go round.
    """

    def __init__(
        self, lengths: npt.ArrayLike, batch_size: int, *, seed: int | None, rank: int = 0, world: int = 1
    ) -> None:
        self.lengths, self.batch_size, self.seed = np.asarray(lengths), batch_size, seed
        self.rank, self.world, self.epoch = rank, world, 0
        self.sampler = self  # where Lightning looks for set_epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        batches = -(-len(self.lengths) // self.batch_size)
        if self.seed is None:
            return len(range(self.rank, batches, self.world))
        return (batches + self.world - 1) // self.world

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches()  # when the first is asked for: set_epoch may be called after iter()
        if self.seed is None:
            yield from batches[self.rank :: self.world]
        else:
            places = range(self.rank, len(self) * self.world, self.world)
            yield from (batches[place % len(batches)] for place in places)

    def _batches(self) -> list[list[int]]:
        size = self.batch_size
        if self.seed is None:
            order = np.argsort(self.lengths, kind="stable")
            return [order[i : i + size].tolist() for i in range(0, len(order), size)]
        generator = np.random.default_rng((self.seed, self.epoch))
        order = generator.permutation(len(self.lengths))
        pools = [order[i : i + POOL * size] for i in range(0, len(order), POOL * size)]
        order = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        batches = [order[i : i + size].tolist() for i in range(0, len(order), size)]
        return [batches[i] for i in generator.permutation(len(batches))]


class Rows(Dataset[Batch]):
    """The rows of a split, of which batches are made; they are of one length where nothing else is said."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.ones(len(self), dtype=np.int64)

    def __getitems__(self, indices: list[int]) -> Batch:
        raise NotImplementedError


class TextBatches(Rows):
    """Encoded texts; a batch is padded with zeros to its longest."""

    def __init__(self, ids: Sequence[npt.NDArray[np.int64]], labels: npt.NDArray[np.int64]) -> None:
        self.ids = [torch.from_numpy(np.asarray(row)) for row in ids]
        self.labels = torch.from_numpy(np.asarray(labels))

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array([len(row) for row in self.ids])

    def __getitems__(self, indices: list[int]) -> Batch:
        rows = [self.ids[i] for i in indices]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), self.labels[indices]


class TokenBatches(Rows):
    """Windows of T = ``context`` tokens of a stream, which is of so many ``bytes`` of text.

    Row k is tokens kT … kT+T−1, its labels are those that follow each.
    """

    def __init__(self, stream: npt.NDArray[np.int64], context: int, bytes: int) -> None:
        self.stream, self.context = torch.from_numpy(stream), context
        self.tokens_per_byte = len(stream) / bytes
        self.labels = self.stream[1 : 1 + len(self) * context]  # all of them, one after the other

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.context

    def __getitems__(self, indices: list[int]) -> Batch:
        places = torch.tensor(indices)[:, None] * self.context + torch.arange(self.context + 1)
        windows = self.stream[places]
        return windows[:, :-1], windows[:, 1:]


class ImageBatches(Rows):
    """Images as a model of ``config`` takes them: pixels of 0 to 1 as (pixel − mean)/std, scaled to its size.

    If ``augment``, they are first cropped, with a black border, and flipped at random.
    """

    def __init__(
        self, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], config: VisionConfig, augment: bool = False
    ) -> None:
        self.pixels, self.labels = torch.from_numpy(pixels), torch.from_numpy(labels)
        self.config, self.augment = config, augment

    def __getitems__(self, indices: list[int]) -> Batch:
        pixels = self.pixels[indices]
        if self.augment:
            pixels = crop_and_flip(pixels)
        inputs = pixel_inputs(pixels, self.config.mean, self.config.std)
        return resized(inputs, self.config.image_size), self.labels[indices]


def crop_and_flip(pixels: Tensor) -> Tensor:
    """Each image moved by up to an eighth of its size in both directions, and mirrored half of the time."""
    count, _, height, width = pixels.shape
    most = max(1, height // 8)
    padded = functional.pad(pixels, (most, most, most, most))
    down, right = torch.randint(0, 2 * most + 1, (2, count, 1, 1, 1))
    rows = (down + torch.arange(height)[:, None]).expand(-1, pixels.shape[1], -1, padded.shape[-1])
    columns = (right + torch.arange(width)).expand(-1, pixels.shape[1], height, -1)
    moved = padded.gather(2, rows).gather(3, columns)
    return torch.where(torch.rand(count, 1, 1, 1) < 0.5, moved.flip(-1), moved)


def loader(
    dataset: Rows, batch_size: int, seed: int | None, *, by_length: bool = True, **place: Any
) -> DataLoader[Batch]:
    """Batches of a dataset: shuffled by ``seed``, or in order of length where it is None.

    Unless ``by_length``, texts of any length share a batch.
    A loader takes a random number when it is started; from a generator of its own, so that dropout does not hang on it.
    """
    lengths = dataset.lengths() if by_length else np.ones(len(dataset), dtype=np.int64)
    batches = EpochBatches(lengths, batch_size, seed=seed, **place)
    # What __getitems__ gives is a batch already, the tuple that it should be.
    return DataLoader(dataset, batch_sampler=batches, collate_fn=tuple, generator=torch.Generator())


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
