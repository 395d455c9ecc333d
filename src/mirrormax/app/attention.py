"""The Attention page's answer: what each head of a text model looks at in a review, and what the model says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]

LONGEST_TEXT = 20_000
MOST_TOKENS = 256
NEAR = 1.05
"""Rivals whose lead is at most so many times the smallest one support the selection."""


def attention(checkpoint: Any, text: str, query: int, words_only: bool) -> dict[str, Any]:
    """Attention of one query token on all tokens, for every layer and head, with the prediction.

    With ``words_only`` the marks [CLS] and [SEP] are left out and the rest is scaled to sum to 1, as the softmax
    without them would. The pivot of a head is its most attended token α; the lead of α over another token t is
    log s_α − log s_t, the difference of their logits, and the tokens of the smallest lead are the support tokens.
    """
    pieces, ids, cut = _read(checkpoint, text)
    if not 0 <= query < len(ids):
        raise ValueError(f"query must be the place of one of the {len(ids)} tokens, got {query}.")
    with torch.no_grad():
        logits, maps = checkpoint.model(torch.from_numpy(ids)[None], attention=True)
    rows = np.asarray(maps[:, 0, :, query].double())  # (layers, heads, T)
    rows = np.concatenate([rows, rows.mean(1, keepdims=True)], 1)  # the last row is the mean of all heads
    shown = np.array([not (words_only and piece["special"]) for piece in pieces])
    if shown.any():
        rows = np.where(shown, rows, 0.0)
        rows = rows / np.maximum(rows.sum(-1, keepdims=True), np.finfo(float).tiny)
    probabilities = torch.softmax(logits[0].double(), -1).tolist()
    return {
        "tokens": pieces,
        "cut": cut,
        "query": query,
        "layers": [[_head(row, shown) for row in layer] for layer in rows],
        "prediction": [
            {"name": str(name), "probability": value}
            for name, value in zip(checkpoint.classes, probabilities, strict=True)
        ],
    }


def _read(checkpoint: Any, text: str) -> tuple[list[dict[str, Any]], npt.NDArray[np.int64], bool]:
    """The tokens as they stand in the text, their ids (T,), and whether some did not fit."""
    from mirrormax.data import encode_with_offsets  # which needs a tokenizer library that no other page does

    if not text.strip():
        raise ValueError("text is empty; type a review.")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"text has {len(text):,} characters; this page reads {LONGEST_TEXT:,}.")
    tokenizer = checkpoint.tokenizer
    longest = min(checkpoint.model.config.max_length, MOST_TOKENS)
    ids, offsets = encode_with_offsets(tokenizer, text, longest)
    everything = encode_with_offsets(tokenizer, text, len(text) + 2)[0]
    unknown = tokenizer.token_to_id("[UNK]")
    pieces = []
    for place, (begin, end) in enumerate(offsets):
        special = begin == end  # [CLS] and [SEP] are nowhere in the text
        pieces.append(
            {
                "text": tokenizer.id_to_token(int(ids[place])) if special else text[begin:end],
                "special": bool(special),
                "joined": bool(place and not special and begin == offsets[place - 1][1] and begin),
                "unknown": bool(ids[place] == unknown),
            }
        )
    return pieces, ids, len(everything) > len(ids)


def _head(row: Array, shown: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Attention of one head, its pivot, the pivot's smallest lead, and the tokens that support it."""
    pivot = int(np.where(shown, row, -1.0).argmax()) if shown.any() else int(row.argmax())
    rivals = shown & (np.arange(len(row)) != pivot) & (row > 0)
    if not rivals.any():
        return {"attention": _rounded(row), "pivot": pivot, "lead": None, "support": []}
    leads = np.where(rivals, np.log(row[pivot]) - np.log(np.where(rivals, row, 1.0)), np.inf)
    return {
        "attention": _rounded(row),
        "pivot": pivot,
        "lead": float(f"{leads.min():.4g}"),
        "support": np.flatnonzero(leads <= NEAR * leads.min()).tolist(),
    }


def _rounded(row: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in row]
