"""Dropout whose random bits cost little on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LEVELS = 2**16

_this_thread = threading.local()


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """In this thread, ``Dropout`` on a CPU draws from ``generator`` and leaves torch's own, which all share, alone."""
    before = getattr(_this_thread, "generator", None)
    _this_thread.generator = generator
    try:
        yield
    finally:
        _this_thread.generator = before


class Dropout(nn.Dropout):
    """As ``nn.Dropout``, but on a CPU each entry takes 16 random bits instead of a number of its own.

    torch draws these one after the other in one thread, which takes about a twentieth of a training step. The
    rate is rounded to a multiple of 2⁻¹⁶ there, and what is kept is scaled by the rounded rate, so that the mean
    stays exact.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.device.type != "cpu" or self.p in (0, 1):
            return super().forward(x)
        level = min(round(self.p * LEVELS), LEVELS - 1)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
        words.random_(-(2**63), None, generator=getattr(_this_thread, "generator", None))
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (bits >= level - LEVELS // 2).to(x.dtype)
        return x * kept.mul_(LEVELS / (LEVELS - level))
