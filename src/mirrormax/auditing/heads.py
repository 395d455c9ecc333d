"""From what was collected to one answer per head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.collect import Collected, Statistics
from mirrormax.auditing.layers import AttentionLayer
from mirrormax.auditing.margins import HeadProblem, Margins, head_problem, measure
from mirrormax.auditing.result import Head, ScanPoint
from mirrormax.auditing.settings import Settings
from mirrormax.auditing.weights import effective_rank, hoyer, top_mass
from mirrormax.geometry import lp_norm

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LayerSample:
    """The sampled rows of one layer side by side, padded to one length."""

    layer: AttentionLayer
    X: Tensor  # (n, T, d)
    z: Tensor  # (n, d)
    mask: Tensor  # (n, T)
    gradient: Tensor | None  # (n, d)

    def logits(self, W: Tensor) -> Tensor:
        """x_tᵀ W z̃ of every row, (n, T)."""
        return torch.einsum("ntd,nd->nt", self.X, self.layer.extended(self.z) @ W.T)

    def problem(self, W: Tensor, rivals: int) -> HeadProblem:
        """The rows of a head with these weights, on its own selection."""
        z = self.layer.extended(self.z).numpy()
        return head_problem(self.X.numpy(), z, self.mask.numpy(), self.logits(W).numpy(), W.numpy(), rivals)

    def scores(self, head: int) -> Tensor | None:
        """γ (n, T), NaN in rows that the model's answer does not depend on; None without any other."""
        if self.gradient is None or not self.gradient.any():
            return None
        pulled = self.layer.pulled_back(self.gradient.to(self.layer.output.device))[:, head].cpu()
        read = self.gradient.abs().amax(-1, keepdim=True) > 0
        return torch.einsum("ntd,nd->nt", self.X, pulled).where(read, torch.nan)


def layer_samples(collected: Collected) -> list[LayerSample]:
    """The sample of every layer, on the CPU."""
    found = []
    for k, layer in enumerate(collected.layers):
        rows = [kept.layers[k] for kept in collected.sample]
        pad = torch.nn.utils.rnn.pad_sequence
        gradients = [row.gradient for row in rows if row.gradient is not None]
        found.append(
            LayerSample(
                layer=layer,
                X=pad([row.x for row in rows], batch_first=True),
                z=torch.stack([row.z for row in rows]),
                mask=pad([row.mask for row in rows], batch_first=True),
                gradient=torch.stack(gradients) if len(gradients) == len(rows) else None,
            )
        )
    return found


@dataclass(frozen=True, eq=False)
class HeadAnswer:
    """Everything about one head: its line of the table, its points of the scan, its support tokens by row."""

    head: Head
    scan: list[ScanPoint]
    support: list[list[int]]


def audit_head(index: tuple[int, int], sample: LayerSample, statistics: Statistics, settings: Settings) -> HeadAnswer:
    """Solve one head's problems and put its numbers together."""
    layer, head = index
    W = sample.layer.bilinear(head).cpu()
    problem = sample.problem(W, settings.rivals)
    measured = {p: measure(problem, p, C=settings.C, quantile=settings.quantile) for p in settings.exponents}
    main = measured[settings.p]
    points = [scan_point(layer, head, one) for p, one in measured.items() if p in settings.scan]
    support = [np.sort(row[near]).tolist() for row, near in zip(problem.tokens, main.support, strict=True)]
    table = Head(
        layer=layer,
        head=head,
        name=sample.layer.name,
        **_statistics(statistics, head, W, settings.p),
        **_numbers(main),
        support_tokens=int(main.support.sum()),
        **_optimality(sample.scores(head), problem, main),
        hoyer=hoyer(W) if W.any() else math.nan,
        top_mass=top_mass(W) if W.any() else math.nan,
        effective_rank=effective_rank(W),
        best_p_ratio=None,
        best_p_divergence=None,
    )
    return HeadAnswer(table, points, support)


def audit_control(index: tuple[int, int], sample: LayerSample, settings: Settings) -> list[ScanPoint]:
    """The same problems for a head whose weights are shuffled: equal entries, nothing learned."""
    layer, control = index
    W = shuffled(sample.layer, control, (settings.seed, layer, control))
    problem = sample.problem(W, settings.rivals)
    return [
        scan_point(layer, -1 - control, measure(problem, p, C=settings.C, quantile=settings.quantile))
        for p in settings.exponents
    ]


def shuffled(layer: AttentionLayer, control: int, seed: tuple[int, ...]) -> Tensor:
    """W of a head with the entries of its W_Q, b_Q and W_K each in random order."""
    random, head = np.random.default_rng(seed), control % layer.heads

    def shuffle(values: Tensor) -> Tensor:
        flat = values.cpu().flatten()
        return flat[torch.from_numpy(random.permutation(len(flat)))].reshape(values.shape)

    query, key = shuffle(layer.query.weight[head]), shuffle(layer.key.weight[head])
    if layer.query.bias is not None:
        query = torch.cat([query, shuffle(layer.query.bias[head]).unsqueeze(-1)], -1)
    return key.T @ query * layer.scale


def scan_point(layer: int, head: int, one: Margins) -> ScanPoint:
    return ScanPoint(layer, head, one.p, one.problem, one.ratio, one.quantile_ratio, one.divergence, one.status)


def _optimality(gamma: Tensor | None, problem: HeadProblem, main: Margins) -> dict[str, Any]:
    if gamma is None:
        return dict.fromkeys(("locally_optimal", "in_order", "best_token"))
    read = ~gamma[:, 0].isnan().numpy()
    kept = np.take_along_axis(gamma.numpy(), problem.tokens, 1)
    return local_optimality(kept[read], problem.mask[read], main.support[read])


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
    whole = {name: statistics.whole(name)[:, head] for name in ("mass", "entropy", "lead")}
    shares = {name: float(statistics.whole(name)[:, head].mean()) for name in ("on_first", "on_last", "on_self")}
    return {
        "rows": len(whole["mass"]),
        "mass": float(whole["mass"].mean()),
        "decisive": float((whole["mass"] > 0.5).double().mean()),
        "entropy": float(whole["entropy"].nanmean()),
        "margin_all": float(whole["lead"].min() / lp_norm(W, p)) if W.any() else math.nan,
        **shares,
    }


def _numbers(main: Margins) -> dict[str, Any]:
    names = ("p", "problem", "status", "constraints", "norm", "margin", "quantile_margin", "optimal_margin")
    values = {name: getattr(main, name) for name in (*names, "ratio", "quantile_ratio", "divergence", "cosine")}
    return {**values, "in_span": None if math.isnan(main.in_span) else main.in_span}
