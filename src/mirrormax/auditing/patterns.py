"""What the heads of a model do on one text: its attention as a map with tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirrormax.auditing.adapters import adapter_for
from mirrormax.auditing.loading import load_for_audit
from mirrormax.auditing.models import WORDS, Loaded
from mirrormax.auditing.watch import watching


@dataclass(frozen=True, eq=False, repr=False)
class Pattern:
    """One head on one text: row i is the attention of token i; a learned sink is one more column."""

    name: str  # "3.1"
    tokens: list[str]
    attention: npt.NDArray[np.float64]  # (T, T), or (T, T + 1) with a sink

    @property
    def selected(self) -> list[str]:
        """The token that each token selects."""
        columns = [*self.tokens, "(sink)"]
        return [columns[int(row.argmax())] for row in self.attention]

    def __repr__(self) -> str:
        pairs = ", ".join(f"{a} → {b}" for a, b in list(zip(self.tokens, self.selected, strict=True))[:8])
        return f"<head {self.name}: {pairs}{', …' if len(self.tokens) > 8 else ''}>"

    def _repr_html_(self) -> str:
        columns = [*self.tokens, "(sink)"][: self.attention.shape[1]]
        top = "".join(f"<th>{escape(token)}</th>" for token in columns)
        rows = "".join(
            f"<tr><th>{escape(token)}</th>"
            + "".join(f'<td style="background:rgba(0,90,181,{value:.2f})" title="{value:.3f}"></td>' for value in row)
            + "</tr>"
            for token, row in zip(self.tokens, self.attention, strict=True)
        )
        return f"<table><caption>head {self.name}</caption><tr><th></th>{top}</tr>{rows}</table>"


def attention_patterns(model: Loaded | str | Path, text: str, heads: Sequence[str] = ()) -> list[Pattern]:
    """The attention of named heads on a text, of all heads where none is named.

    ``model`` is what :func:`~mirrormax.auditing.load_for_audit` reads, or what it gave. A layer whose attention cannot
    be recomputed to rounding is refused by name, as in an audit.
    """
    loaded = model if isinstance(model, Loaded) else load_for_audit(model)
    if loaded.reads != WORDS or loaded.names is None:
        raise ValueError(f"{loaded.folder} reads {loaded.reads}; patterns need a model of texts.")
    ids = loaded.encode([text])[0][: loaded.longest]
    if not ids:
        raise ValueError("text has no token that the model knows; give more of it.")
    with watching(adapter_for(loaded.model)) as watch:
        views = watch.run(loaded.batch([ids]))
    tokens, found = loaded.names(ids), []
    for layer, view in enumerate(views):
        view.check()
        for head, attention in enumerate(view.attention()[0]):
            found.append(Pattern(f"{layer}.{head}", tokens, attention.cpu().numpy()))
    known = {pattern.name: pattern for pattern in found}
    for name in heads:
        if name not in known:
            raise ValueError(f"heads must be names such as '0.1', up to {found[-1].name!r}, got {name!r}.")
    return [known[name] for name in heads] if heads else found
