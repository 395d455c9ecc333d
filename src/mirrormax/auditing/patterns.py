"""What the heads of a model do on texts: their attention as a map with tokens, and direct logit attribution.

In a language model whose blocks add to a stream h, the logits are U N(h) with the last norm N and the matrix U of the
read-out. A head with output o_i at token i adds W_O o_i to the stream, and so, with the norm's scale there kept,

    a_i = (u_next − ū)ᵀ diag(g/σ_i) (W_O o_i)        (of a norm that takes means off: W_O o_i without its mean)

to the logit of the next token over the mean logit, ū being the mean row of U. What later blocks make of the head's
output is not in it. Over embeddings, heads, perceptrons and biases the a_i add up to that logit exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mirrormax._attention_names import BEHIND
from mirrormax._checks import several
from mirrormax.auditing.adapters import Adapter, HuggingFaceAdapter, adapter_for
from mirrormax.auditing.changes import EMPTY, over_texts, there_of
from mirrormax.auditing.loading import load_for_audit
from mirrormax.auditing.models import WORDS, Loaded, longest_text
from mirrormax.auditing.recipes import AGREEMENT, Norm, matrix_of
from mirrormax.auditing.result import Effect
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


def attention_patterns(
    model: Loaded | nn.Module | str | Path,
    text: str,
    heads: Sequence[str] = (),
    *,
    tokenizer: Callable[..., Any] | None = None,
) -> list[Pattern]:
    """The attention of named heads on a text, of all heads where none is named.

    ``model`` is what :func:`~mirrormax.auditing.load_for_audit` reads, or what it gave, or a model of transformers in
    memory with its ``tokenizer``. A layer whose attention cannot be recomputed to rounding is refused by name, as in
    an audit.
    """
    if isinstance(model, nn.Module):
        if tokenizer is None or not isinstance(adapter_for(model), HuggingFaceAdapter):
            raise ValueError(
                f"model is a {type(model).__name__} in memory, without a tokenizer of transformers; give its folder, "
                "or a model of transformers with tokenizer=…."
            )
        model = Loaded(model, WORDS, (), tokenizer, longest_text(model.config), {}, ())
    loaded = model if isinstance(model, Loaded) else load_for_audit(model)
    if loaded.reads != WORDS:
        raise ValueError(f"{loaded.folder} reads {loaded.reads}; patterns need a model of texts.")
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}; give one text at a time.")
    heads = list(several("heads", heads, "names"))
    ids = loaded.encode([text])[0][: loaded.longest]
    if not ids:
        raise ValueError("text has no token that the model knows; give more of it.")
    with watching(adapter_for(loaded.model)) as watch:
        views = watch.run(loaded.batch([ids]))
    patterns: dict[str, Pattern] = {}
    for layer, view in enumerate(views):
        view.check()
        for head, attention in enumerate(view.attention()[0]):
            name = f"{layer}.{head}"
            patterns[name] = Pattern(name, loaded.names(ids), attention.cpu().numpy())
    for name in heads:
        if name not in patterns:
            raise ValueError(f"heads must be names such as '0.1', up to {list(patterns)[-1]!r}, got {name!r}.")
    return [patterns[name] for name in heads or patterns]


def logit_attribution(model: nn.Module | Adapter, batches: Iterable[Any], *, seed: int = 0) -> list[Effect]:
    """What every head adds to the logit of the next token over the mean logit: the mean over tokens, then texts.

    Of language models of transformers; ValueError for one whose blocks do more than add what heads give.
    """
    adapter = adapter_for(model)
    readout: Any = adapter.model.get_output_embeddings() if adapter.causal else None  # type: ignore[operator]
    if readout is None:
        raise ValueError(
            f"model is a {type(adapter.model).__name__}, which reads out no tokens; give a language model."
        )
    if getattr(adapter.model.config, "residual_multiplier", 1.0) != 1.0:
        raise ValueError(f"{type(adapter.model).__name__} scales what its blocks add, which is not attributed.")
    values: list[list[Tensor]] = []
    with watching(adapter) as watch, torch.no_grad():
        for batch in several("batches", batches, "batches"):
            with _norms(adapter.model, readout) as (seen, read):
                watch.answer(batch, adapter.whole)
            scale, centred = _last_norm(seen, read[-1])
            ids = batch["input_ids"]
            there = there_of(adapter, batch, ids)[:, 1:].double()
            rows = readout.weight.double()
            wanted = (rows[ids[:, 1:]] - rows.mean(0)) * scale[:, :-1]  # (B, T − 1, d)
            wanted = wanted - wanted.mean(-1, keepdim=True) if centred else wanted
            of_layers = []
            for layer in watch.layers:
                context = layer.call.context[:, :-1].double()
                name = next((name for name in BEHIND if hasattr(layer.module, name)), None)
                if name is None:
                    raise ValueError(f"layer {layer.name} has no child behind its heads that is known.")
                mixing = matrix_of(layer.module, name).double().unflatten(1, context.shape[2:])  # (d, H, d_v)
                added = torch.einsum("btd,dhk,bthk->bth", wanted, mixing, context)
                of_layers.append((added * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True).clamp(min=1))
            values.append(of_layers)
    if not values:
        raise ValueError(EMPTY)
    return [
        Effect(place, head, "direct", **over_texts(np.asarray(texts), seed))
        for place, parts in enumerate(zip(*values, strict=True))
        for head, texts in enumerate(torch.cat(parts).T.cpu().numpy())
    ]


def _last_norm(seen: list[tuple[nn.Module, Tensor, Tensor]], read: Tensor) -> tuple[Tensor, bool]:
    """g/σ (B, T, d) of the norm whose answer is read out, and whether it takes the mean off."""
    norm = next((call for call in reversed(seen) if call[2].shape == read.shape and torch.equal(call[2], read)), None)
    if norm is None:
        raise ValueError("the model reads tokens out of something that is no norm's answer, so nothing is attributed.")
    x, y, last = norm[1].double(), norm[2].double(), Norm(norm[0], "heads", behind=False)
    gain, shift, centred = last.parts(1, x.shape[-1], x.device)
    scale = gain * last.scales(x.unsqueeze(1))[:, 0].unsqueeze(-1)
    again = (x - x.mean(-1, keepdim=True) if centred else x) * scale + shift
    if not (again - y).abs().max() <= AGREEMENT * y.abs().max():
        raise ValueError(f"{type(norm[0]).__name__}, the model's last norm, is no norm, so nothing is attributed.")
    return scale, centred


@contextmanager
def _norms(
    model: nn.Module, readout: nn.Module
) -> Iterator[tuple[list[tuple[nn.Module, Tensor, Tensor]], list[Tensor]]]:
    """What norms are given and answer, in their order, and what is read out.

    ValueError where a norm is given what attention answers.
    """
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    read: list[Tensor] = []
    answers: list[Any] = []

    def note(module: nn.Module, args: Any, out: Any) -> None:
        if any(args[0] is answer for answer in answers):
            raise ValueError(f"{type(model).__name__} has norms between heads and stream, so nothing is attributed.")
        seen.append((module, args[0], out))

    def answered(_: nn.Module, __: Any, out: Any) -> None:
        answers.append(out[0] if isinstance(out, tuple) else out)

    with ExitStack() as undo:
        undo.callback(readout.register_forward_pre_hook(lambda _, args: read.append(args[0])).remove)
        for module in model.modules():
            kind = type(module).__name__
            if "Norm" in kind or "Attention" in kind:
                undo.callback(module.register_forward_hook(note if "Norm" in kind else answered).remove)
        yield seen, read
