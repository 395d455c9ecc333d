"""Attention that a layer computes in its own forward, caught by its products: q kᵀ, a softmax, attention × values.

Whoever wrote the layer, queries and keys are the two factors of the last product before the softmax, and values the
second factor of the first one after it. What the softmax is given is s q·k plus a mask and a bias of position; the
scale s is one for which the rest is zero where it is not hidden, or the same for every sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mirrormax.auditing.calls import HIDDEN, Call

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
SAME = 1e-4
"""How far numbers that are to be equal may be apart, relative to the largest logit."""


class Products(TorchFunctionMode):
    """Fills a call while a layer's forward runs in it; what the model goes on with is what the call answers."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call, self.resting = call, False
        self._factors: list[tuple[Tensor, Tensor]] = []
        self._scores: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.resting or self.call.context is not None:
            return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._fused(func, args, kwargs)
        if func in MATMUL or func is torch.baddbmm:
            a, b = args[1:3] if func is torch.baddbmm else (*args, *kwargs.values())[:2]
            if self._scores is not None and a.shape == self._scores.shape:
                return self._mix(func(*args, **kwargs), b)
            self._factors.append((a.detach(), b.detach()))
        elif func in SOFTMAX and (args[0] if args else kwargs["input"]).ndim > 2:
            self._scores = (args[0] if args else kwargs["input"]).detach().clone()
        return func(*args, **kwargs)

    def _fused(self, func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
        out = func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        if query.ndim != 4 or self.call.hidden is None:
            return out
        if given.get("is_causal"):
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        mask = mask if mask is None or mask.ndim == 4 else mask.expand(len(query), 1, *mask.shape[-2:])
        self.call.take(self.call.hidden, query, key, given["value"], scale=given.get("scale"), mask=mask)
        return self.call.answered(out.transpose(1, 2)).transpose(1, 2)

    def _mix(self, out: Tensor, value: Tensor) -> Tensor:
        """Attention was multiplied by values: all is known."""
        scores, hidden = self._scores, self.call.hidden
        assert scores is not None
        fitting = [
            (a, b)
            for a, b in self._factors
            if (a.shape[-2], b.shape[-1]) == scores.shape[-2:] and a.shape[:-2].numel() == scores.shape[:-2].numel()
        ]
        B = 0 if hidden is None else len(hidden)
        if hidden is None or not fitting or scores.shape[:-2].numel() % B:
            return out
        query, key = fitting[-1]
        parts = (query, key.transpose(-1, -2), value.detach(), scores)
        query, key, value, scores = (part.reshape(B, -1, *part.shape[-2:]) for part in parts)
        found = _scale(scores.double(), query.double() @ key.double().transpose(-1, -2), query.shape[-1])
        if found is None:
            return out
        self.call.take(hidden, query, key, value, scale=found[0], mask=found[1])
        changed = self.call.answered(out.reshape(B, -1, *out.shape[-2:]).transpose(1, 2))
        return changed.transpose(1, 2).reshape(out.shape)


def _scale(scores: Tensor, products: Tensor, size: int) -> tuple[float, Tensor] | None:
    """The scale of the products (B, H, Q, T) in what the softmax was given, and what else was added to them."""
    allowed = SAME * scores.where(scores > HIDDEN, 0.0).abs().max().clamp(min=1.0)
    rests = {scale: scores - scale * products for scale in (float(size**-0.5), 1.0)}
    for scale, rest in rests.items():
        seen = rest > HIDDEN
        if rest.where(seen, 0.0).abs().max() <= allowed:
            return scale, seen
    for scale, rest in rests.items():
        seen = (rest > HIDDEN).all(0, keepdim=True)
        if len(rest) > 1 and (rest - rest[:1]).where(seen, 0.0).abs().max() <= allowed:
            return scale, rest
    return None
