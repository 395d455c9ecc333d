"""The Attention page's answers: which checkpoints there are, and what their heads look at in a review."""

from __future__ import annotations

import stat
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mirrormax.app.folders import DAMAGE, read_object, reason, run_label, walk
from mirrormax.app.folders import text as plain_text

Array = npt.NDArray[np.float64]

SHIPPED = Path(__file__).parent / "models"
DEEPEST = 4
FILES = ("config.json", "model.safetensors", "tokenizer.json")
LONGEST_TEXT = 20_000
MOST_TOKENS = 256
NEAR = 1.05
"""Rivals whose lead is at most so many times the smallest one support the selection."""


@dataclass(frozen=True)
class Entry:
    """A checkpoint folder of a text model: a name to ask for it by, where it is, and what it says of itself.

    ``label`` says how it was trained, ``about`` what it is; ``damaged`` why it cannot be shown, if so.
    """

    name: str
    folder: Path
    about: str
    damaged: str | None = None
    label: str = ""


class Checkpoints:
    """All text checkpoints below some folders. A request names one of these and never a path."""

    def __init__(self, folder: Path | None, shipped: Path = SHIPPED) -> None:
        self._roots = [shipped] if folder is None else [folder, shipped]
        self._load = lru_cache(maxsize=4)(_load)

    def entries(self) -> list[Entry]:
        """What is there now, the user's own before the shipped ones; a name that occurs twice means the first."""
        found: dict[str, Entry] = {}
        for root in self._roots:
            for folder, names in walk(root, DEEPEST):
                entry = _entry(root, folder, names)
                if entry is not None:
                    found.setdefault(entry.name, entry)
        return list(found.values())

    def load(self, name: Any) -> Any:
        """The checkpoint of this name, as :func:`mirrormax.nets.load_model` gives it."""
        known = {entry.name: entry for entry in self.entries()}
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"there is no checkpoint {name!r}; choose one from the list.")
        entry = known[name]
        if entry.damaged is not None:
            raise ValueError(f"the checkpoint {name!r} is damaged: {entry.damaged}.")
        return self._load(entry.folder, (entry.folder / "model.safetensors").stat().st_mtime_ns)


def _load(folder: Path, _changed: int) -> Any:
    """Load a checkpoint again only if its file has changed since."""
    from mirrormax.nets import load_model

    return load_model(folder)


def _entry(root: Path, folder: Path, names: Collection[str] | None) -> Entry | None:
    """What a folder holds, or None if that is no text model of ours."""
    if names is None:
        return Entry(_name(root, folder), folder, "", "it cannot be read")
    if not {"config.json", "model.safetensors"} <= set(names):
        return None
    try:
        config = read_object(folder / "config.json")
        if config.get("kind") != "sentiment":
            return None
        for file in FILES:
            if not stat.S_ISREG((folder / file).lstat().st_mode):
                raise ValueError(f"{file} is no regular file")
        return Entry(_name(root, folder), folder, _about(config), label=run_label(config.get("training") or {}))
    except DAMAGE as error:
        return Entry(_name(root, folder), folder, "", reason(error))


def _name(root: Path, folder: Path) -> str:
    """The place below the root; the ``model`` of a training run goes by the name of the run."""
    parts = folder.relative_to(root).parts
    if len(parts) > 1 and parts[-1] == "model":
        parts = parts[:-1]
    return plain_text("/".join(parts) or folder.name)


def _about(config: dict[str, Any]) -> str:
    model, training = config.get("model") or {}, config.get("training") or {}
    told = [f"{training['data']}"] if isinstance(training.get("data"), str) else []
    told += [f"{name} {model[name]}" for name in ("blocks", "heads", "dim") if name in model]
    return ", ".join(told)


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
        "sparsity": _sparsity(checkpoint.model),
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
        return {"attention": _rounded(row), "pivot": pivot, "lead": None, "support": [], "tokens": _count(row)}
    leads = np.where(rivals, np.log(row[pivot]) - np.log(np.where(rivals, row, 1.0)), np.inf)
    return {
        "attention": _rounded(row),
        "pivot": pivot,
        "lead": float(f"{leads.min():.4g}"),
        "support": np.flatnonzero(leads <= NEAR * leads.min()).tolist(),
        "tokens": _count(row),
    }


def _count(row: Array) -> float:
    """exp of the entropy: over how many tokens attention is spread, from 1 to all of them."""
    shares = row[row > 0]
    return float(f"{np.exp(-(shares * np.log(shares)).sum()):.3g}")


def _sparsity(model: Any) -> dict[str, dict[str, float]]:
    """How concentrated the query, key and value weights are: Hoyer's index, and ‖w‖₁ in the largest 1 %."""
    from mirrormax.auditing import attention_weights, sparsity  # which no other page needs

    found = {role: sparsity(*weights) for role, weights in attention_weights(model).items()}
    return {role: {"hoyer": round(one.hoyer, 4), "top_mass": round(one.top_mass, 4)} for role, one in found.items()}


def _rounded(row: Array) -> list[float]:
    return [float(f"{value:.4g}") for value in row]
