r"""What weights are worth, by four rules. SparseGPT, which also changes the weights that stay, has its own module.

Of a matrix W (outputs × inputs), with the inputs x of its layer and the gradient g = ∂L/∂W on calibration batches:

.. code-block:: text

    magnitude    |w_ij|
    wanda        |w_ij| √(Σ_tokens x_j²)                    Sun and others, 2024
    taylor       mean over batches of |Σ w g|               Michel and others, 2019; Molchanov and others, 2019
    margin       |w| √(mean over batches of (∂M/∂w)²)       M: the heads' mean log-margin, see ``mirrormax.prune``

A row or a head is worth the root mean square of its weights' scores; by taylor, the sum in |Σ w g| runs over
all weights of the unit, so that it is the change of the loss, to first order, when the unit's output becomes zero. Of a
head whose output layer is known it is taken token by token, Σ_i |⟨o_i, ∂L/∂o_i⟩| with o_i its output at token i:
effects that cancel over the calibration texts need not cancel over others.
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

from mirrormax.pruning.inputs import answer, check_seen, differentiable, evaluating, input_sums, some, watching
from mirrormax.pruning.places import Place, find_places
from mirrormax.pruning.units import Heads, Units, find_units

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
RULES = ("magnitude", "wanda", "taylor", "margin")
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Scores:
    """What each unit of a model is worth by one rule, for pruning it at several shares."""

    by: str
    structured: str | None
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
    places = find_places(model, params)
    units = find_units(model, places, structured)
    if by == "magnitude":
        return Scores(by, structured, units.rms(_sizes(places)))
    if batches is None:
        raise ValueError(f"by={by!r} measures on data, got batches=None; give a few batches of the model's inputs.")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of the model's output and the batch, got {loss!r}.")
    if by == "taylor":
        return Scores(by, structured, taylor_totals(model, places, units, batches, loss))
    if by == "wanda":
        norms = input_norms(model, places, batches)
        sizes = {name: size * norms[name] for name, size in _sizes(places).items()}
    else:
        sizes = _by_margin(model, places, batches)
    return Scores(by, structured, units.rms(sizes))


def _sizes(places: Mapping[str, Place]) -> dict[str, Tensor]:
    return {name: place.matrix(place.value).abs() for name, place in places.items()}


@torch.no_grad()
def input_norms(model: nn.Module, places: Mapping[str, Place], batches: Iterable[Any]) -> dict[str, Tensor]:
    """‖x_j‖ over all tokens of the batches, padding left out, by tensor: (inputs,)."""
    with evaluating(model):
        squares = input_sums(model, places, some(batches, "wanda"), lambda x: x.square().sum(0))
    for name in places:
        check_seen(name, squares.get(name), "wanda")
    return {name: square.sqrt() for name, square in squares.items()}


def taylor_totals(
    model: nn.Module, places: Mapping[str, Place], units: Units, batches: Iterable[Any], loss: Loss | None
) -> dict[str, Tensor]:
    """The mean over batches of |Σ w ∂L/∂w| over each unit, of heads token by token where their outputs are seen."""
    weights = {name: place.parameter for name, place in places.items()}
    sums: dict[str, Tensor] = {}
    batches = some(batches, "taylor")
    outputs = units.outputs() if isinstance(units, Heads) else {}
    seen: dict[str, list[Tensor]] = {}

    def see(name: str, x: Tensor) -> None:
        seen.setdefault(name, []).append(x)

    behind = {name: places[name] for name in outputs}
    with evaluating(model), differentiable(weights.values()), watching(model, behind, see):
        for batch in batches:
            seen.clear()
            value = (default_loss if loss is None else loss)(answer(model, batch), batch)
            if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
                raise ValueError(
                    f"loss must return one number that depends on the model's output, got {value!r}; take a mean over "
                    "the batch, and do not detach it."
                )
            inputs = [(name, x) for name, parts in seen.items() for x in parts]
            wanted = [*weights.values(), *(x for _, x in inputs)]
            gradients = torch.autograd.grad(value, wanted, allow_unused=True)
            effects = {}
            for (name, place), gradient in zip(places.items(), gradients, strict=False):
                effect = torch.zeros_like(place.value) if gradient is None else place.value * gradient
                effects[name] = place.matrix(effect)
            totals = {group: total.abs() for group, total in units.total(effects).items()}
            for (name, x), gradient in zip(inputs, gradients[len(weights) :], strict=True):
                if gradient is not None:
                    group, heads = outputs[name]
                    by_token = (x * gradient).detach().unflatten(-1, (heads, -1)).double().sum(-1).abs()
                    totals[group] = by_token.flatten(0, -2).sum(0)
            for group, total in totals.items():
                part = total / len(batches)
                sums[group] = sums[group] + part if group in sums else part
    for group, total in sums.items():
        if not bool(total.isfinite().all()):
            raise ValueError(f"by='taylor' has gradients for {group} that are not finite; use another rule.")
    return sums


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
    places, squares, count = find_places(model, params), dict[str, Tensor](), 0
    weights = {name: place.parameter for name, place in places.items()}
    with evaluating(model), differentiable(weights.values()):
        for batch in some(batches, "margin"):
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
            count += 1
    scores = {name: places[name].value.abs() * square.div_(count).sqrt_() for name, square in squares.items()}
    for name, score in scores.items():
        if not bool(score.isfinite().all()):
            raise ValueError(f"the margins' gradients for {name} are not finite; use by='magnitude'.")
    return scores


def _by_margin(model: nn.Module, places: Mapping[str, Place], batches: Iterable[Any]) -> dict[str, Tensor]:
    """Magnitudes in the order of the margin's scores: the r-th smallest |w| stands at the r-th smallest score.

    Gradients of matrices of different layers are not alike in size, and those behind the last softmax have none.
    """
    sizes = _sizes(places)
    for name, score in margin_scores(model, batches, list(places)).items():
        sizes[name] = _reordered(sizes[name], places[name].matrix(score))
    return sizes


def _reordered(size: Tensor, score: Tensor) -> Tensor:
    """The sizes in the order of the scores; of equal scores the smaller size comes first."""
    ordered, by_size = size.flatten().sort(stable=True)
    by_score = by_size[score.flatten()[by_size].sort(stable=True).indices]
    reordered = torch.empty_like(ordered)
    reordered[by_score] = ordered
    return reordered.view(size.shape)


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
