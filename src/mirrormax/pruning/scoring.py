"""What weights are worth, by four rules, whose formulas stand in :func:`mirrormax.prune`: magnitude; Wanda (Sun and
others, 2024); Taylor (Michel and others, 2019; Molchanov and others, 2019); margin. SparseGPT, which also changes the
weights that stay, has its own module.

A row or a head is worth the root mean square of its weights' scores; by Taylor, the sum over its weights, or of a head
whose output layer is known, over tokens: effects that cancel over the calibration texts need not cancel over others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from mirrormax.pruning.inputs import answer, calibration, differentiable, evaluating, input_sums, watching
from mirrormax.pruning.places import Place, find_places, matrix_shapes
from mirrormax.pruning.units import Units, find_units

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
RULES = ("magnitude", "wanda", "taylor", "margin")
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Scores:
    """What each unit of a model is worth by one rule, for pruning it at several shares."""

    by: str
    structured: str | None
    shapes: Mapping[str, torch.Size]  # of the tensors that were scored, (outputs × inputs)
    values: Mapping[str, Tensor]  # by tensor, as (outputs × inputs) or (rows,), or by attention module, (heads,)


def scores(
    model: nn.Module,
    by: str = "magnitude",
    structured: str | None = None,
    *,
    params: str | Sequence[str] = "matrices",
    batches: Iterable[Any] | None = None,
    loss: Loss | None = None,
) -> Scores:
    """What ``mirrormax.prune`` orders units by, to prune one model at several shares: ``prune(model, 0.5, found)``.

    The arguments are those of :func:`mirrormax.prune`; ``by`` is any rule but ``"sparsegpt"``.
    """
    if by not in RULES:
        raise ValueError(f"by must be one of {', '.join(map(repr, RULES))}, got {by!r}.")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of the model's output and the batch, got {loss!r}.")
    places = find_places(model, params)
    units = find_units(model, places, structured)
    sizes = {name: place.matrix(place.value).abs() for name, place in places.items()}
    listed = [] if by == "magnitude" else calibration(batches, by)
    if by == "taylor":
        values = _taylor(model, places, units, listed, loss or default_loss)
    elif by == "margin":
        values = units.rms(_by_margin(model, places, sizes, listed))
    elif by == "wanda":
        with torch.no_grad(), evaluating(model):
            squares = input_sums(model, places, listed, lambda x: x.square().sum(0), by)
        values = units.rms({name: size * squares[name].sqrt() for name, size in sizes.items()})
    else:
        values = units.rms(sizes)
    return Scores(by, structured, matrix_shapes(places), values)


def _taylor(
    model: nn.Module, places: Mapping[str, Place], units: Units, batches: Sequence[Any], loss: Loss
) -> dict[str, Tensor]:
    """The mean over batches of |Σ w ∂L/∂w| over each unit, of heads token by token where their outputs are seen."""
    weights = [place.parameter for place in places.values()]
    outputs = units.outputs()
    means: dict[str, Tensor] = {}
    by_token: dict[str, Tensor] = {}

    def see(name: str, x: Tensor) -> None:
        group, heads = outputs[name]

        def note(gradient: Tensor) -> None:
            effects = (x.detach() * gradient).unflatten(-1, (heads, -1)).double().sum(-1).abs()
            by_token[group] = by_token.get(group, 0) + effects.flatten(0, -2).sum(0)

        if x.requires_grad:
            x.register_hook(note)

    behind = {name: places[name] for name in outputs}
    with evaluating(model), differentiable(weights), watching(model, behind, see):
        for batch in batches:
            value = loss(answer(model, batch), batch)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
                raise ValueError(
                    f"loss must return one number that depends on the model's output, got {value!r}; take a mean over "
                    "the batch, and do not detach it."
                )
            by_token.clear()
            gradients = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
            effects = {
                name: place.matrix(place.value * gradient)
                for (name, place), gradient in zip(places.items(), gradients, strict=True)
            }
            totals = {group: total.abs() for group, total in units.total(effects).items()} | by_token
            for group, total in totals.items():
                means[group] = means.get(group, torch.zeros_like(total)) + total / len(batches)
    for group, mean in means.items():
        if not bool(mean.isfinite().all()):
            raise ValueError(f"by='taylor' has gradients for {group} that are not finite; use another rule.")
    return means


def default_loss(output: Any, batch: Any) -> Tensor:
    """The cross-entropy of a batch's labels, one for each row, or without labels that of a language model's tokens."""
    logits = getattr(output, "logits", output)
    if isinstance(batch, Mapping) and isinstance(logits, Tensor):
        labels = batch.get("labels")
        if labels is not None and logits.ndim == 2 and labels.ndim == 1:
            return nn.functional.cross_entropy(logits, labels)
        if labels is None and logits.ndim == 3 and "input_ids" in batch:
            return next_token_losses(logits, batch).mean()
    raise ValueError(
        "by='taylor' needs a loss: give batches as mappings with one label for each row ('labels'), or with "
        "'input_ids' for a language model, or give loss=, a function of the model's output and the batch."
    )


def next_token_losses(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """−log p of each next token that is there, as one row."""
    ids = batch["input_ids"]
    seen = batch["attention_mask"][:, 1:].bool() if "attention_mask" in batch else torch.ones_like(ids[:, 1:]).bool()
    return nn.functional.cross_entropy(logits[:, :-1][seen].float(), ids[:, 1:][seen], reduction="none")


def margin_scores(
    model: nn.Module, batches: Iterable[Any], params: str | Sequence[str] = "matrices"
) -> dict[str, Tensor]:
    """|w| √(mean over batches of (∂M/∂w)²), by full name, for all tensors that a margin depends on.

    The heads are found while the model runs, whoever wrote it: every ``scaled_dot_product_attention``, every
    ``nn.MultiheadAttention``, and every softmax over the last of three or more dimensions counts as attention.
    """
    listed = calibration(batches, "margin")
    places = find_places(model, params)
    weights = {name: place.parameter for name, place in places.items()}
    squares: dict[str, Tensor] = {}
    with evaluating(model), differentiable(weights.values()):
        for batch in listed:
            with _Attention() as seen:
                answer(model, batch)
            if not seen.means:
                raise ValueError(
                    f"no attention was seen while {type(model).__name__} ran, so that by='margin' has no margins; use "
                    "by='magnitude'."
                )
            gradients = torch.autograd.grad(torch.stack(seen.means).mean(), list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    square = gradient.detach().float().square()
                    squares[name] = squares[name].add_(square) if name in squares else square
    scores = {name: places[name].value.abs() * (square / len(listed)).sqrt() for name, square in squares.items()}
    for name, score in scores.items():
        if not bool(score.isfinite().all()):
            raise ValueError(f"the margins' gradients for {name} are not finite; use by='magnitude'.")
    return scores


def _by_margin(
    model: nn.Module, places: Mapping[str, Place], sizes: Mapping[str, Tensor], batches: Sequence[Any]
) -> dict[str, Tensor]:
    """Magnitudes in the order of the margin's scores: the r-th smallest |w| stands at the r-th smallest score."""
    reordered = dict(sizes)
    for name, score in margin_scores(model, batches, list(places)).items():
        ordered, by_size = sizes[name].flatten().sort(stable=True)
        score = places[name].matrix(score).flatten()
        by_score = by_size[score[by_size].sort(stable=True).indices]  # of equal scores the smaller size comes first
        reordered[name] = torch.empty_like(ordered).index_copy_(0, by_score, ordered).view(sizes[name].shape)
    return reordered


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
            scores = args[0] if args else kwargs["input"]
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
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
