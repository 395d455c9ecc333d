"""From what was collected to one answer per head."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.collect import Collected, Kept, Statistics, collect
from mirrormax.auditing.kinds import KINDS, SHARES, Induction, induction, kind_of
from mirrormax.auditing.layers import Adapter
from mirrormax.auditing.margins import HeadProblem, Margins, measure
from mirrormax.auditing.result import Head, ScanPoint
from mirrormax.auditing.settings import Settings, check_settings
from mirrormax.auditing.weights import effective_rank, hoyer, top_mass
from mirrormax.geometry import lp_norm

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def problem_of(kept: Sequence[Kept], W: Tensor) -> HeadProblem:
    """The sampled rows of one head side by side, padded to one length."""
    pad = torch.nn.utils.rnn.pad_sequence
    return HeadProblem(
        X=pad([one.x.double() for one in kept], batch_first=True).numpy(),
        z=torch.stack([one.z.double() for one in kept]).numpy(),
        mask=pad([torch.ones(len(one.x), dtype=torch.bool) for one in kept], batch_first=True).numpy(),
        tokens=pad([one.tokens for one in kept], batch_first=True).numpy(),
        W=W.cpu().numpy(),
    )


@dataclass(frozen=True, eq=False)
class HeadAnswer:
    """Everything about one head: its line of the table, its points of the scan, its support tokens by row."""

    head: Head
    scan: list[ScanPoint]
    support: list[list[int]]
    best: Tensor | None  # the max-margin weights, of the head's own norm


def audit_head(
    index: tuple[int, int], collected: Collected, copying: Induction | None, settings: Settings
) -> HeadAnswer:
    """Solve one head's problems and put its numbers together."""
    layer, head = index
    kept = [row.heads[layer][head] for row in collected.sample]
    W = collected.layers[layer].weights(head).cpu()
    problem = problem_of(kept, W)
    measured = {p: measure(problem, p, C=settings.C, quantile=settings.quantile) for p in settings.exponents}
    main = measured[settings.p]
    points = [scan_point(layer, head, one) for p, one in measured.items() if p in settings.scan]
    support = [np.sort(row[near]).tolist() for row, near in zip(problem.tokens, main.support, strict=True)]
    found = collected.layers[layer]
    table = Head(
        layer=layer,
        head=head,
        name=found.name,
        form=found.form,
        **_statistics(collected.statistics[layer], head, W, settings.p),
        **_kinds(collected.statistics[layer], head, None if copying is None else float(copying.shares[layer][head])),
        **_numbers(main),
        support_tokens=int(main.support.sum()),
        **_optimality(kept, problem, main),
        hoyer=hoyer(W) if W.any() else math.nan,
        top_mass=top_mass(W) if W.any() else math.nan,
        effective_rank=effective_rank(W),
        best_p_ratio=None,
        best_p_divergence=None,
    )
    chances = _chances(collected.statistics[layer], copying)
    kind = kind_of({name: getattr(table, name) for name in KINDS}, chances)
    best = None if main.best is None else torch.from_numpy(main.best * main.norm * main.optimal_margin)
    return HeadAnswer(replace(table, kind=kind), points, support, best)


def audit_control(index: tuple[int, int], collected: Collected, settings: Settings) -> list[ScanPoint]:
    """The same problems for a head whose weights are shuffled: equal entries, nothing learned."""
    layer, control = index
    kept = [row.controls[layer][control] for row in collected.sample]
    problem = problem_of(kept, collected.controls[layer][control])
    return [
        scan_point(layer, -1 - control, measure(problem, p, C=settings.C, quantile=settings.quantile))
        for p in settings.exponents
    ]


@dataclass(frozen=True)
class HeadKind:
    """The kind of one head, or None where none stands out, with all shares and the chances of an even choice."""

    kind: str | None
    shares: dict[str, float | None]
    chances: dict[str, float]


def head_kinds(
    adapter: Adapter, batches: Iterable[Any], *, separators: Sequence[int] = (), random_tokens: Sequence[int] = (),
    start: int | None = None, seed: int = 0,
) -> list[list[HeadKind]]:  # fmt: skip
    """The kinds of a model's heads by layer, over every query of some texts, without any margin problem.

    ``random_tokens`` and ``start`` are for the induction heads of language models, as in an audit.
    """
    settings = check_settings(
        2.0, "all", (), "prediction", 0.0, 1.0, samples=1, rivals=1, controls=0, examples=0, seed=seed
    )
    collected = collect(adapter, batches, settings, separators=separators)
    copying = None
    if adapter.causal and len(random_tokens):
        copying = induction(adapter, random_tokens, start=start, seed=seed)
    found: list[list[HeadKind]] = []
    for k, (layer, statistics) in enumerate(zip(collected.layers, collected.statistics, strict=True)):
        chances = _chances(statistics, copying)
        found.append([])
        for head in range(layer.heads):
            share = None if copying is None else float(copying.shares[k][head])
            shares = {name: value for name, value in _kinds(statistics, head, share).items() if name != "kind"}
            found[-1].append(HeadKind(kind_of(shares, chances), shares, chances))
    return found


def mean_chances(collected: Collected, copying: Induction | None) -> dict[str, float]:
    """What selecting evenly would give, the mean over layers, by the kind's share."""
    of_layers = [_chances(one, copying) for one in collected.statistics]
    return {name: float(np.mean([one[name] for one in of_layers])) for name in of_layers[0]}


def _chances(statistics: Statistics, copying: Induction | None) -> dict[str, float]:
    chances = {name: statistics.chance(name) for name in (*SHARES, "on_place")}
    return chances if copying is None else {**chances, "induction": copying.chance}


def _kinds(statistics: Statistics, head: int, copying: float | None) -> dict[str, Any]:
    shares: dict[str, Any] = {name: statistics.mean(name, head) for name in SHARES}
    return {**shares, "on_place": statistics.on_place(head), "induction": copying, "kind": None}


def scan_point(layer: int, head: int, one: Margins) -> ScanPoint:
    return ScanPoint(layer, head, one.p, one.problem, one.ratio, one.quantile_ratio, one.divergence, one.status)


def _optimality(kept: Sequence[Kept], problem: HeadProblem, main: Margins) -> dict[str, Any]:
    blank = dict.fromkeys(("locally_optimal", "in_order", "best_token"))
    if any(one.scores is None for one in kept):
        return blank
    scores = [one.scores for one in kept if one.scores is not None]
    gamma = torch.nn.utils.rnn.pad_sequence(scores, batch_first=True).double().numpy()
    read = ~np.isnan(gamma[:, 0])
    if not read.any():
        return blank
    return local_optimality(gamma[read], problem.mask[read], main.support[read])


def local_optimality(gamma: Array, mask: Bools, support: Bools) -> dict[str, Any]:
    """Definition 3.2 on a sample, the selected token first in every row: gamma, mask and support (n, K + 1).

    ``locally_optimal`` if every support token scores below the selected one; ``in_order`` is the share of them that
    does, None without any; ``best_token`` the share of rows whose selected token scores highest of those kept.
    """
    lower = gamma < gamma[:, :1]
    pairs = lower[support]
    rivals = mask.copy()
    rivals[:, 0] = False
    return {
        "locally_optimal": bool(pairs.all()),
        "in_order": float(pairs.mean()) if pairs.size else None,
        "best_token": float((lower | ~rivals).all(1).mean()),
    }


def _statistics(statistics: Statistics, head: int, W: Tensor, p: float) -> dict[str, Any]:
    assert statistics.least_lead is not None
    return {
        "rows": statistics.rows,
        **{name: statistics.mean(name, head) for name in ("mass", "decisive", "entropy")},
        "margin_all": float(statistics.least_lead[head] / lp_norm(W, p)) if W.any() else math.nan,
    }


def _numbers(main: Margins) -> dict[str, Any]:
    names = ("p", "problem", "status", "constraints", "norm", "margin", "quantile_margin", "optimal_margin")
    values = {name: getattr(main, name) for name in (*names, "ratio", "quantile_ratio", "divergence", "cosine")}
    return {**values, "in_span": None if math.isnan(main.in_span) else main.in_span}
