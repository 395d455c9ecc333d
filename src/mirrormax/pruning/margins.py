"""How the margins of a model's heads change with its weights: what ``prune(by="margin")`` orders them by.

The heads are found while the model runs, whoever wrote it: every ``scaled_dot_product_attention``, every
``nn.MultiheadAttention``, and every softmax over the last of three or more dimensions counts as attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mirrormax.pruning.inputs import answer, differentiable, evaluating, some

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)


def margin_gradients(
    model: nn.Module, weights: Mapping[str, nn.Parameter], batches: Iterable[Any]
) -> dict[str, Tensor]:
    """√(mean over batches of (∂M/∂w)²) for the weights that M depends on, in evaluation mode.

    M is the mean over attention layers of the mean log-probability of the selected token (see
    :func:`mirrormax.prune`). Nothing of the model is changed, no ``.grad`` either.
    """
    squares: dict[str, Tensor] = {}
    count = 0
    with evaluating(model), differentiable(weights.values()):
        for batch in some(batches, "margin"):
            with _Attention() as seen:
                answer(model, batch)
            if not seen.means:
                raise ValueError(
                    f"no attention was seen while {type(model).__name__} ran, so that by='margin' has no margins; use "
                    "by='magnitude'."
                )
            found = torch.autograd.grad(
                torch.stack(seen.means).mean(), list(weights.values()), allow_unused=True, materialize_grads=False
            )
            for name, gradient in zip(weights, found, strict=True):
                if gradient is not None:
                    square = gradient.detach().float().square()
                    squares[name] = squares[name].add_(square) if name in squares else square
            count += 1
    scores = {name: square.div_(count).sqrt_() for name, square in squares.items()}
    for name, score in scores.items():
        if not bool(score.isfinite().all()):
            raise ValueError(f"the margins' gradients for {name} are not finite; use by='magnitude'.")
    return scores


class _Attention(TorchFunctionMode):
    """Takes down the mean log-probability of the selected token of each attention layer that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._note(_scores(*args, **kwargs))
        elif func is functional.multi_head_attention_forward:  # what it calls is not seen from here
            return self._multi_head(func, args, kwargs)
        elif func in SOFTMAX:
            scores, dim = _softmax_arguments(*args, **kwargs)
            if scores.ndim > 2 and dim in (-1, scores.ndim - 1):
                self._note(scores)
        return func(*args, **kwargs)

    def _multi_head(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = inspect.signature(func).bind(*args, **kwargs)
        given.apply_defaults()
        needed, averaged = given.arguments["need_weights"], given.arguments["average_attn_weights"]
        given.arguments.update(need_weights=True, average_attn_weights=False)
        out, weights = func(*given.args, **given.kwargs)
        there = weights > 0  # the logarithm of a hidden token has no gradient
        self._note(torch.where(there, weights.where(there, 1.0).log(), -torch.inf))
        return out, (weights.mean(-3) if averaged else weights) if needed else None

    def _note(self, scores: Tensor) -> None:
        """log p* = max s − log Σ exp s over queries with a rival, padding left out."""
        seen = scores > torch.finfo(scores.dtype).min / 2  # a mask adds −∞, or the smallest number there is
        asks = seen.sum(-1) > 1
        if scores.ndim > 3 and scores.shape[-1] == scores.shape[-2]:
            asks = asks & seen.any(-2)  # a token that nobody may look at is padding, and asks nothing
        rows = scores[asks].float()
        if len(rows):
            self.means.append((rows.amax(-1) - rows.logsumexp(-1)).mean())


def _scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The scores of ``scaled_dot_product_attention``, masked."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == torch.bool else None
        scores = scores + attn_mask if hidden is None else scores.masked_fill(hidden, -torch.inf)
    return scores


def _softmax_arguments(input: Tensor, dim: int | None = None, *others: Any, **named: Any) -> tuple[Tensor, int | None]:
    return input, dim
