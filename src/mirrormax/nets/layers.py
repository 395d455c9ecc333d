"""Parts of the models: self-attention, dropout, how images are read, and the checks of sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LEVELS = 2**16  # of the dropout rate

_this_thread = threading.local()


class SelfAttention(nn.Module):
    """softmax(Q Kᵀ/√d_h) V for each head, then one output matrix.

    ``query``, ``key`` and ``value`` have no biases, so that each head is the paper's bilinear form: the
    logit of token t for the query token z is x_tᵀ (W_Kᵀ W_Q/√d_h) z. ``dropout`` acts on the attention weights.
    """

    def __init__(
        self, dim: int, heads: int, head_dim: int | None = None, *, output_bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim or dim // heads
        inner = self.heads * self.head_dim
        self.query = nn.Linear(dim, inner, bias=False)
        self.key = nn.Linear(dim, inner, bias=False)
        self.value = nn.Linear(dim, inner, bias=False)
        self.output = nn.Linear(inner, dim, bias=output_bias)
        self.dropout: nn.Dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, first_only: bool = False) -> Tensor:
        """x (B, T, dim) to (B, T, dim); ``mask`` (B, T) is True where a token may be attended to.

        ``first_only`` asks for the first query token alone, (B, 1, dim).
        """
        if first_only:
            return cast(Tensor, self.output(self._of_first(x, mask)))
        if self.training and self.dropout.p > 0:  # torch's own attention would draw from the generator that all share
            mixed = self.dropout(self.weights(x, mask)) @ self._split(self.value(x))
        else:
            q, k, v = (self._split(part(x)) for part in (self.query, self.key, self.value))
            over_keys = None if mask is None else mask[:, None, None, :]  # the same for all heads and query tokens
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=over_keys)
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The attention maps (B, heads, T, T); row i says how token i attends."""
        q, k = self._split(self.query(x)), self._split(self.key(x))
        logits = q @ k.transpose(-1, -2) / self.head_dim**0.5
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], -torch.inf)
        return cast(Tensor, logits.softmax(-1))

    def _of_first(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the heads give the first token, (B, 1, heads · d_h), without the keys and values of all the others.

        For one query z the products can be taken from the other side: the logits are x (W_Kᵀ W_Q z), and
        Σ_t s_t W_V x_t = W_V (Σ_t s_t x_t), a few vectors per text instead of two matrices over all tokens.
        """
        keys, values = (_weight(part).unflatten(0, (self.heads, -1)) for part in (self.key, self.value))
        q = self.query(x[:, 0]).unflatten(-1, (self.heads, -1))
        logits = torch.einsum("bhe,hed->bhd", q, keys) @ x.transpose(1, 2) / self.head_dim**0.5
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, :], -torch.inf)
        mixed = self.dropout(logits.softmax(-1)) @ x
        return torch.einsum("bhd,hed->bhe", mixed, values).flatten(1).unsqueeze(1)

    def _split(self, x: Tensor) -> Tensor:
        return cast(Tensor, x.unflatten(-1, (self.heads, self.head_dim))).transpose(1, 2)


def _weight(layer: nn.Linear) -> Tensor:
    """The weight as the layer would use it: torch puts a pruning mask on it when the layer is called, and only then."""
    mask = layer._buffers.get("weight_mask")
    return layer.weight if mask is None else layer.get_parameter("weight_orig") * mask


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


def pixel_inputs(pixels: Tensor, mean: float | Sequence[float], std: float | Sequence[float]) -> Tensor:
    """Bytes (n, C, H, W) as a model reads them: (pixel/255 − mean)/std, of one mean and std or one per channel."""
    centre, spread = (torch.as_tensor(value, dtype=torch.float32).reshape(-1, 1, 1) for value in (mean, std))
    return (pixels.float() / 255 - centre) / spread


def resized(images: Tensor, size: int) -> Tensor:
    """Images (n, C, H, W) at ``size`` by ``size`` pixels, as they are if that is what they have."""
    if images.shape[-2:] == (size, size):
        return images
    return functional.interpolate(images, size=(size, size), mode="bilinear", antialias=True)


class _Unfilled(TorchFunctionMode):
    """Leaves new weights unfilled: to draw numbers on the meta device, torch would load its compiler, for seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_filling = getattr(function, "__module__", None) == nn.init.__name__
        return kwargs["tensor"] if is_filling else function(*args, **(kwargs or {}))


def without_memory(make: Callable[[Any], nn.Module], config: Any) -> Any:
    """The model on torch's meta device, where weights have shapes but no numbers, so that any size is safe to look at.

    ValueError where a weight has more numbers than torch can count.
    """
    try:
        with torch.device("meta"), _Unfilled():
            return make(config)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(f"{config} is larger than any machine's memory; choose smaller sizes.") from error
