"""Prune a trained model: which units go is a score, compared within a scope; the rest of the room has the parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from mirrormax._checks import number
from mirrormax.pruning.places import (
    Pruned,
    counted,
    find_places,
    let_attention_see_its_output_mask,
    matrix_shapes,
    put_mask_on,
)
from mirrormax.pruning.scoring import RULES, Loss, Scores, scores
from mirrormax.pruning.sparsegpt import sparsegpt
from mirrormax.pruning.units import SCOPES, find_units, kept_units

SPARSEGPT = "sparsegpt"
PATTERN = re.compile(r"([1-9]\d*):([1-9]\d*)")


def prune(
    model: nn.Module,
    share: float,
    by: Literal["magnitude", "wanda", "sparsegpt", "margin", "taylor"] | Scores | None = None,
    scope: Literal["global", "matrix", "row"] | None = None,
    structured: Literal["row", "head", "2:4"] | str | None = None,
    *,
    params: Literal["matrices", "attention"] | Sequence[str] = "matrices",
    batches: Iterable[Any] | None = None,
    loss: Loss | None = None,
) -> Pruned:
    r"""Set a ``share`` of a model's weights to zero, in place, and keep them there while it trains on.

    The weights of lowest score go. For a matrix W (outputs × inputs), its layer's inputs x and the loss L on
    ``batches``:

    .. code-block:: text

        magnitude   |w_ij|
        wanda       |w_ij| ‖x_j‖                    the norm over all tokens, padding left out
        sparsegpt   w_j² / [(XᵀX + λI)⁻¹]_jj        column by column, and the weights behind each column make up for
                                                    what goes there; layer by layer, on what pruned layers give
        taylor      mean over batches of |Σ w ∂L/∂w|, the sum over the weights of a unit: what the loss changes, to
                                                    first order, when the unit is removed; of heads by tokens,
                                                    Σ_i |⟨o_i, ∂L/∂o_i⟩| with o_i the head's output
        margin      |w| √(mean over batches of (∂M/∂w)²), M the mean log p* over layers, heads, texts and queries with
                    a rival, log p* = −log Σ_t exp(−(s* − s_t)), s* the largest score of a query: the log-probability
                    of the token that a head selects, and a smooth minimum of its leads

    Scores of ``margin`` are compared within each matrix alone, since gradients of different layers are not alike in
    size: the r-th smallest stands for the r-th smallest |w|, and a matrix that no margin depends on (all behind the
    last softmax) keeps its magnitudes.

    The masks are those of ``torch.nn.utils.prune``: the parameter (the same object, so optimizers keep it) is
    ``weight_orig`` from now on, ``weight`` is its product with ``weight_mask``, and what is pruned gets no gradient.
    What was pruned before counts: pruning 0.5 and later 0.8 leaves a fifth.

    Args:
        model: the model.
        share: in [0, 1), of the units in each group that ``scope`` compares, rounded down.
        by: the score, or what :func:`mirrormax.pruning.scores` returned, to prune one model at several shares. By
            default ``"magnitude"`` without batches; with batches ``"sparsegpt"`` for single weights and ``"taylor"``
            for heads and rows.
        scope: which units are compared: all, those of each matrix (of each attention module for heads), or those of
            each row. By default what is usual for the score: rows for ``"wanda"``, everything for heads and for
            ``"margin"``, else matrices.
        structured: None prunes single weights; ``"row"`` rows (output neurons; of convolutions, filters); ``"head"``
            attention heads: their rows of queries, keys and values and their columns of the output layer; ``"2:4"``
            (any n:m) single weights, so that n of every m in a row stay, and ``share`` is 1 − n/m.
        params: ``"matrices"`` (all but embeddings and output heads) or ``"attention"``, as
            :func:`mirrormax.param_groups` finds them, or shell patterns over full parameter names.
        batches: what to call the model on, for all scores but magnitude: mappings of keyword arguments, tuples of
            positional ones, or tensors. A few dozen texts or images do.
        loss: for ``"taylor"``, a function of the model's output and the batch. By default the cross-entropy of
            ``batch["labels"]``, or of the next tokens of ``batch["input_ids"]``.

    Returns:
        What was pruned, with ``undo()`` and ``finish()``.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    >>> pruned = prune(model, 0.75)
    >>> pruned.share, int((model[0].weight == 0).sum() + (model[2].weight == 0).sum())
    (0.75, 96)
    >>> pruned.undo()
    >>> int((model[0].weight == 0).sum())
    0
    """
    share = number("share", share, at_least=0, below=1)
    by, compared = check_choices(share, by, scope, structured, batches is not None)
    pattern = _pattern(structured, share)
    places = find_places(model, params)
    for name, (_, inputs) in matrix_shapes(places).items():
        if pattern is not None and inputs % pattern[1]:
            raise ValueError(
                f"structured={structured!r} needs rows whose length is a multiple of {pattern[1]}, and {name} has "
                f"{inputs} inputs; leave it out of params."
            )
    pruned = Pruned(model, {})
    if by == SPARSEGPT:
        try:
            for place, keep, weight in sparsegpt(model, places, share, compared, pattern, batches):
                pruned.before[place.name] = place.parameter.detach().clone()
                with torch.no_grad():
                    place.parameter.copy_(weight)
                    put_mask_on(place, keep)
        except BaseException:
            pruned.tensors = counted({name: places[name] for name in pruned.before})
            pruned.undo()
            raise
    else:
        if not isinstance(by, Scores):
            by = scores(model, by, structured, params=params, batches=batches, loss=loss)
        if by.shapes != matrix_shapes(places):
            raise ValueError(
                "by holds scores of other tensors than those that params names in this model; score this model."
            )
        with torch.no_grad():
            kept = kept_units(by.values, share, compared, pattern)
            for name, keep in find_units(model, places, structured).masks(kept).items():
                put_mask_on(places[name], places[name].tensor(keep))
    let_attention_see_its_output_mask(model)
    pruned.tensors = counted(places)
    return pruned


def check_choices(share: float, by: Any, scope: str | None, structured: str | None, data: bool) -> tuple[Any, str]:
    """The score and the scope that are meant, with or without data; choices that do not go together are refused."""
    _pattern(structured, share)
    by = _score(by, structured, data)
    return by, _scope(scope, by.by if isinstance(by, Scores) else by, structured)


def _pattern(structured: str | None, share: float) -> tuple[int, int] | None:
    """(n, m) of "n:m"."""
    match = PATTERN.fullmatch(structured) if isinstance(structured, str) else None
    if match is None:
        if structured not in (None, "row", "head"):
            raise ValueError(f"structured must be None, 'row', 'head' or n:m such as '2:4', got {structured!r}.")
        return None
    n, m = int(match[1]), int(match[2])
    if n >= m:
        raise ValueError(f"structured={structured!r} keeps all of {m}; the first number must be the smaller one.")
    if abs(share - (1 - n / m)) > 1e-9:
        raise ValueError(f"structured={structured!r} prunes {1 - n / m:g} of the weights, got share={share:g}.")
    return n, m


def _score(by: Any, structured: str | None, data: bool) -> Any:
    """The score that was asked for, or the default."""
    if by is None:
        if not data:
            return "magnitude"
        return "taylor" if structured in ("row", "head") else SPARSEGPT
    if isinstance(by, Scores):
        if by.structured != structured:
            raise ValueError(f"by holds scores for structured={by.structured!r}, got structured={structured!r}.")
        return by
    if by not in (*RULES, SPARSEGPT):
        known = ", ".join(map(repr, (*RULES, SPARSEGPT)))
        raise ValueError(f"by must be one of {known} or the result of mirrormax.pruning.scores, got {by!r}.")
    if by == "magnitude" and data:
        raise ValueError("by='magnitude' needs no batches; drop them, or name another score.")
    if by == SPARSEGPT and structured in ("row", "head"):
        raise ValueError(f"by='sparsegpt' prunes single weights, got structured={structured!r}; use by='taylor'.")
    return by


def _scope(scope: str | None, by: str, structured: str | None) -> str:
    """The scope that was asked for, or what is usual for the score."""
    if scope is None:
        if structured == "head" or by == "margin":
            return "global"
        return "row" if by == "wanda" and structured is None else "matrix"
    if scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(map(repr, SCOPES))}, got {scope!r}.")
    if scope == "row" and structured in ("row", "head"):
        raise ValueError(
            f"scope='row' compares single weights, got structured={structured!r}; use 'matrix' or 'global'."
        )
    if scope == "global" and by == SPARSEGPT:
        raise ValueError(
            "scope='global' is not possible with by='sparsegpt', which sees one layer; use 'matrix' or 'row'."
        )
    return scope
