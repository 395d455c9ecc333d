"""The Attention page's answers: what the heads of a model look at in a text, and how that becomes its prediction."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mirrormax import auditing
from mirrormax.app.checkpoints import Opened, size_of

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LONGEST_TEXT = 20_000
MOST_TOKENS, MOST_CELLS = 256, 6_000_000
"""Tokens that are read of a text, and cells of all heads' maps: many heads read fewer tokens."""
THUMB = 24
"""Pixels of a side of a head's small map."""
FEW = 5
"""Next tokens that are told of a language model."""
NEAR = 1.05
"""Rivals whose lead is at most so many times the smallest one support the selection."""
MEAN = "mean"
PIECE: dict[str, Any] = {"text": "", "special": False, "joined": False, "unknown": False, "begin": None}
"""What the page is told of a token."""


@dataclass(frozen=True, eq=False)
class Pass:
    """A model on one text: views of its layers, their attention (H, T, T'), and the logits of its answer, if any."""

    views: list[Any]
    maps: list[npt.NDArray[np.float32]]
    logits: Array | None  # (classes,), or (vocabulary,) of the token after the last


def read(
    opened: Opened,
    text: str,
    query: int | None = None,
    words_only: bool = True,
    layer: int | None = None,
    head: int | str = 0,
    pruned: float = 0.0,
    without: int | None = None,
) -> dict[str, Any]:
    """One head's attention in a text, small maps of all heads, and the path from the query to the prediction.

    ``query`` is the place of a token; by default the one that the model answers at, the last token of a language
    model and the first of any other. ``layer`` counts from 0, the last by default; ``head`` may be "mean".
    ``pruned`` is the share of weights, the smallest ones, that are set to zero first; ``without`` the place of a
    token that the head is kept from seeing at the query.

    With ``words_only`` marks such as [CLS], and the first token of a language model, are left out and the rest is
    scaled to sum to 1, as the softmax without them would. The pivot of a head is its most attended token α; the
    lead of α over another token t is log s_α − log s_t, the difference of their logits, and the tokens of the
    smallest lead are the support tokens.
    """
    pieces, ids, cut = _tokens(opened, text)
    causal = opened.loaded.causal
    query = (len(ids) - 1 if causal else 0) if query is None else query
    if not 0 <= query < len(ids):
        raise ValueError(f"query must be the place of one of the {len(ids)} tokens, got {query}.")
    whole = _pass(opened, tuple(ids), pruned)
    layer = min(len(whole.maps) - 1 if layer is None else layer, len(whole.maps) - 1)
    maps = whole.maps[layer]
    head = head if isinstance(head, str) else min(head, len(maps) - 1)
    if maps.shape[-1] > len(pieces):
        pieces = [*pieces, {**PIECE, "text": "(learned sink)", "special": True}]
    shown = np.array([not (words_only and (piece["special"] or (causal and t == 0))) for t, piece in enumerate(pieces)])
    shown = shown if shown.any() else ~shown  # a text of marks alone is shown as it is
    full = _among((maps.mean(0) if isinstance(head, str) else maps[head]).astype(float), shown)
    # A language model answers after its last token: to answer after another, its text ends there.
    seen = tuple(ids[: query + 1] if causal else ids)
    final = _pass(opened, seen, pruned) if causal else whole
    path = None if isinstance(head, str) else _path(final.views[layer], query, head, shown)
    ablated = None
    if without is not None and path is not None and without in path["tokens"]:
        ablated = _ablated(opened, seen, pruned, final, layer, head, query, without)
    return {
        "causal": causal,
        "tokens": pieces,
        "cut": cut,
        "query": query,
        "layer": layer,
        "head": head,
        "heads": [*map(len, whole.maps)],
        "row": _row(full[query], shown),
        "map": _packed(np.rint(full * 65535).astype("<u2")),
        "thumbs": _thumbs(whole.maps, shown),
        "path": path,
        "ablated": ablated,
        "prediction": _prediction(opened, final.logits),
        "sparsity": opened.sparsity,
    }


@lru_cache(maxsize=6)  # another head or query of a text asks for the same
def _pass(opened: Opened, ids: tuple[int, ...], pruned: float) -> Pass:
    """Run the model on one text; a layer whose attention cannot be recomputed to rounding is refused by name."""
    adapter = opened.adapter
    with opened.pruned(pruned), auditing.watching(adapter) as watch:
        scores = auditing.scorer(adapter, None) if adapter.has_head() else None
        views = watch.run(opened.loaded.batch([ids]), scores)
        logits = adapter.logits(watch.output)
    for view in views:
        view.check()
    maps = [np.asarray(view.attention()[0].float()) for view in views]
    return Pass(views, maps, None if logits is None else np.asarray(logits[0].detach().double()))


def _ablated(
    opened: Opened, ids: tuple[int, ...], pruned: float, before: Pass, layer: int, head: Any, query: int, token: int
) -> dict[str, Any]:
    """What the log-odds of the prediction become when one head does not see a token at the query: told and tried.

    The rest of the row takes the token's share, s'_u = s_u / (1 − s_t), so that to first order the log-odds change by

        Σ_u (s'_u − s_u) γ_u = −e_t / (1 − s_t)        with e_t = s_t (γ_t − Σ_u s_u γ_u), the effect of :func:`_path`.

    What is tried is a pass in which the head's output at the query is Σ_{u≠t} s'_u v_u, and nothing else is changed.
    """
    view = before.views[layer]
    shares = view.attention()[0, head, query]
    rest = shares.clone()
    rest[token] = 0.0
    if before.logits is None or not float(rest.sum()) > 0:
        return {"token": token, "predicted": None, "real": None}
    value = view.call.value[0]
    output = (rest / rest.sum())[: value.shape[1]] @ value[head * len(value) // view.layer.heads].double()

    def edit(_: Any, context: torch.Tensor) -> torch.Tensor:
        context = context.clone()
        if query < context.shape[1]:  # a last layer may compute no more than the query that answers
            context[0, query, head] = output.to(context.dtype)
        return context

    batch = opened.loaded.batch([ids])
    with opened.pruned(pruned), auditing.watching(opened.adapter) as watch, torch.no_grad():
        watch.run(batch)
        watch.layers[layer].edit = edit
        watch.answer(batch, opened.adapter.call)
        after = np.asarray(opened.adapter.logits(watch.output)[0].detach().double())
    effect = _effects(view, query, head, shares)[token]
    best = torch.tensor([int(before.logits.argmax())] * 2)
    was, now = auditing.log_odds(torch.from_numpy(np.stack([before.logits, after])), best).tolist()
    predicted = None if effect is None else _short(-effect / (1 - float(shares[token])))
    return {"token": token, "predicted": predicted, "real": _short(now - was)}


def _tokens(opened: Opened, text: str) -> tuple[list[dict[str, Any]], list[int], bool]:
    """The tokens as they stand in the text, their numbers, and whether some did not fit."""
    if not text.strip():
        raise ValueError("text is empty; type a review.")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"text has {len(text):,} characters; this page reads {LONGEST_TEXT:,}.")
    loaded = opened.loaded
    layers, heads = (size_of(vars(loaded.model.config), name) for name in ("layers", "heads"))
    maps = 64 if layers is None or heads is None else max(1, layers * heads)  # as its config says, or a guess
    longest = min(loaded.longest, MOST_TOKENS, max(16, math.isqrt(MOST_CELLS // maps)))
    batches = auditing.make_batches(loaded, auditing.Data((text,)), longest, 1)
    ids = [int(token) for token in batches.inputs[0]]
    if not ids:
        raise ValueError("the model's tokenizer finds no token in the text; type more.")
    marks = loaded.special - {loaded.unknown}
    places = _places(loaded, text, ids)
    pieces, end = [], 0
    for token, place, name in zip(ids, places, loaded.names(ids), strict=True):
        if token in marks or place is None:
            pieces.append({**PIECE, "text": name, "special": token in marks})
            continue
        begin, stop = place
        written = text[begin:stop]
        # Tokens that are parts of one character have no text of their own; those of spaces no ink.
        shown = name if begin < end else written.strip() or written.replace("\n", "↵").replace(" ", "␣")
        joined = bool(begin) and begin == end and not written[:1].isspace()
        pieces.append({**PIECE, "text": shown, "joined": joined, "unknown": token == loaded.unknown, "begin": begin})
        end = stop
    return pieces, ids, bool(batches.shortened)


def _places(loaded: Any, text: str, ids: list[int]) -> list[tuple[int, int] | None]:
    """Where each token begins and ends in the text, None where nobody says."""
    offsets = loaded.offsets(text)
    if offsets is None:
        return [None] * len(ids)
    places: list[tuple[int, int] | None] = [*([None] if loaded.start is not None else []), *offsets]
    if len(places) > len(ids) and ids[-1] in loaded.special:  # the end is gone, its closing mark is not
        return [*places[: len(ids) - 1], None]
    return places[: len(ids)]


def _among(rows: Array, shown: Bools) -> Array:
    """Rows (..., T) of attention on the tokens that are shown alone, each summing to 1, or to 0 where it had none."""
    kept = np.where(shown, rows, 0.0)
    shares: Array = kept / np.maximum(kept.sum(-1, keepdims=True), np.finfo(float).tiny)
    return shares


def _row(row: Array, shown: Bools) -> dict[str, Any]:
    """Attention of one query, its pivot, the pivot's smallest lead, and the tokens that support it."""
    attention = [_short(value) for value in row]
    facts: dict[str, Any] = {"attention": attention, "pivot": None, "lead": None, "support": [], "tokens": None}
    if not row.any():
        return facts  # a first token that looks at nothing but itself, and is left out
    pivot = int(row.argmax())
    shares = row[row > 0]
    # exp of the entropy: over how many tokens attention is spread, from 1 to all of them
    facts |= {"pivot": pivot, "tokens": float(f"{np.exp(-(shares * np.log(shares)).sum()):.3g}")}
    rivals = shown & (np.arange(len(row)) != pivot) & (row > 0)
    if rivals.any():
        leads = np.where(rivals, np.log(row[pivot]) - np.log(np.where(rivals, row, 1.0)), np.inf)
        facts |= {"lead": _short(leads.min()), "support": np.flatnonzero(leads <= NEAR * leads.min()).tolist()}
    return facts


def _thumbs(maps: list[npt.NDArray[np.float32]], shown: Bools) -> dict[str, Any]:
    """Every head's map on one scale, √share in 1/255; of a long text a pixel is the largest of its cells."""
    every = _among(np.concatenate(maps).astype(float), shown)
    sizes = every.shape[1:]
    for axis, size in enumerate(sizes, start=1):
        if size > THUMB:
            every = np.maximum.reduceat(every, np.arange(THUMB) * size // THUMB, axis=axis)
    return {**_packed(np.rint(255 * np.sqrt(every)).astype(np.uint8)), "exact": max(sizes) <= THUMB}


def _path(view: Any, query: int, head: int, shown: Bools) -> dict[str, Any]:
    """From the query's tokens to the prediction: logit l_t, attention s_t, effect.

    s = softmax(l) over the tokens that are shown, or over all where none of these is seen. With γ_t how much the
    log-odds of the predicted class rise per unit of attention moved to token t, to first order
    (:mod:`mirrormax.auditing`), the effect of a token is the derivative by its logit,

        ∂ log-odds / ∂ l_t = s_t (γ_t − Σ_u s_u γ_u)        with s over all tokens,

    None where the prediction does not depend on the query, or the model makes none. ``aside`` is the share of all
    attention that the tokens get which are not shown.
    """
    logits = view.squashed(view.logits())[0, head, query]
    visible = view.mask[0, query]
    every = torch.softmax(logits.masked_fill(~visible, -torch.inf), -1)
    among = visible & torch.from_numpy(shown[: len(visible)])
    among = among if bool(among.any()) else visible
    shares = torch.softmax(logits.masked_fill(~among, -torch.inf), -1)
    effects = _effects(view, query, head, every)
    tokens = [int(t) for t in among.nonzero()[:, 0]]
    return {
        "tokens": tokens,
        "logits": [_short(float(logits[t])) for t in tokens],
        "shares": [_short(float(shares[t])) for t in tokens],
        "effects": [effects[t] for t in tokens],
        "log_sum": _short(float(logits[among].logsumexp(0))),
        "aside": _short(max(0.0, 1 - float(every[among].sum()))),
    }


def _effects(view: Any, query: int, head: int, shares: torch.Tensor) -> list[float | None]:
    """The derivative of the log-odds by every logit; see :func:`_path`."""
    scores = view.rows(torch.tensor([0]), torch.tensor([query])).scores
    if scores is None:
        return [None] * len(shares)
    gamma = scores[0, head]
    effects = shares * (gamma - (shares * gamma).sum())
    return [_short(value) if math.isfinite(value) else None for value in effects.tolist()]


def _prediction(opened: Opened, logits: Array | None) -> dict[str, Any]:
    """Classes with logits and probabilities, the most probable next tokens, or a single number."""
    if logits is None:
        return {"of": None, "choices": []}
    loaded = opened.loaded
    if len(logits) == 1:
        return {"of": "number", "choices": [{"name": "output", "logit": _short(logits[0]), "probability": None}]}
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    if loaded.causal:
        best = np.argsort(-logits)[:FEW]
        names = [loaded.tokenizer.decode([int(token)]) for token in best]
    else:
        best = np.arange(len(logits))
        names = [str(name) for name in loaded.classes]
    choices = [
        {"name": name, "logit": _short(logits[k]), "probability": _short(shares[k])}
        for k, name in zip(best, names, strict=True)
    ]
    return {"of": "next token" if loaded.causal else "class", "choices": choices, "among": len(logits)}


def _packed(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Whole numbers as bytes in base64, with their shape."""
    return {"shape": list(values.shape), "values": base64.b64encode(values.tobytes()).decode()}


def _short(value: Any) -> float:
    return float(f"{value:.4g}")
