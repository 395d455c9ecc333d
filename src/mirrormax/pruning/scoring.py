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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.pruning.inputs import answer, check_seen, differentiable, evaluating, real_tokens, some, tokens, watching
from mirrormax.pruning.margins import margin_gradients
from mirrormax.pruning.places import Place, find_places
from mirrormax.pruning.units import Heads, Units, find_units

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
    places = find_places(model, params)
    return score_units(model, places, find_units(model, places, structured), by, structured, batches, loss)


def score_units(
    model: nn.Module,
    places: Mapping[str, Place],
    units: Units,
    by: str,
    structured: str | None,
    batches: Iterable[Any] | None,
    loss: Loss | None = None,
) -> Scores:
    """The scores of these units."""
    if by not in RULES:
        raise ValueError(f"by must be one of {', '.join(map(repr, RULES))}, got {by!r}.")
    if by == "magnitude":
        return Scores(by, structured, units.rms(_sizes(places)))
    if batches is None:
        raise ValueError(f"by={by!r} measures on data, got batches=None; give a few batches of the model's inputs.")
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
    squares: dict[str, Tensor] = {}
    real: list[Tensor | None] = [None]

    def see(name: str, x: Tensor) -> None:
        square = tokens(x, real[0]).square().sum(0)
        squares[name] = squares[name] + square if name in squares else square

    with evaluating(model), watching(model, places, see):
        for batch in some(batches, "wanda"):
            real[0] = real_tokens(model, batch)
            answer(model, batch)
    for name in places:
        check_seen(name, name in squares, "wanda")
    return {name: square.sqrt() for name, square in squares.items()}


def taylor_totals(
    model: nn.Module, places: Mapping[str, Place], units: Units, batches: Iterable[Any], loss: Loss | None
) -> dict[str, Tensor]:
    """The mean over batches of |Σ w ∂L/∂w| over each unit, of heads token by token where their outputs are seen."""
    weights = {name: place.parameter for name, place in places.items()}
    found: dict[str, Tensor] = {}
    batches = some(batches, "taylor")
    outputs = units.outputs() if isinstance(units, Heads) else {}
    seen: dict[str, list[Tensor]] = {}

    def see(name: str, x: Tensor) -> None:
        seen.setdefault(name, []).append(x)

    behind = {name: places[name] for name in outputs}
    with evaluating(model), differentiable(weights.values()), watching(model, behind, see):
        for batch in batches:
            seen.clear()
            value = (loss or default_loss)(answer(model, batch), batch)
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
                found[group] = found[group] + part if group in found else part
    for group, total in found.items():
        if not bool(total.isfinite().all()):
            raise ValueError(f"by='taylor' has gradients for {group} that are not finite; use another rule.")
    return found


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
    """|w| √(mean over batches of (∂M/∂w)²), by full name, for all tensors that a margin depends on."""
    places = find_places(model, params)
    gradients = margin_gradients(model, {name: place.parameter for name, place in places.items()}, batches)
    return {name: places[name].value.abs() * gradient for name, gradient in gradients.items()}


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
    found = torch.empty_like(ordered)
    found[by_score] = ordered
    return found.view(size.shape)
