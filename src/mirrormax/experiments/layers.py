"""Two layers, and K and Q at p ≠ 2: one conjecture that holds up, and one guess that does not (docs/math/layers.md).

**Two layers with a residual.** X¹_i = X_i + σ(X_i W_1 X_iᵀ) X_i row by row (row t attends with its own query x_it), and
f_i = vᵀX¹_iᵀσ(X¹_i W_2 z_i). Layer 2 selects token α_i, row t of layer 1 token β_i(t), which is taken from the run.
Conjectured is that W_2 converges to the attention SVM of layer 1's output, and W_1 not to that of the rows that layer 2
reads, alone, since the others need leads of the order of a logarithm, which in the direction is ≥ 0:

    (rows)   min ‖W_1‖_p   s.t.   (x_{iβ_i(t)} − x_iτ)ᵀ W_1 x_it ≥ 1 for row t = α_i, ≥ 0 for the others.

**K and Q.** At p = 2, W = KQᵀ converges to the attention SVM of least nuclear norm (``nuclear``), and at p = 3 not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax._drawing import Figure, curve, look_of, panel, row_of_axes
from mirrormax._statistics import finite, median, number
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.experiments._measurements import OURS, About, Arrays, Measured, Rows, Told, alone, at_least, at_most
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import PARTS, Problems, by_p, log_grid, max_margin
from mirrormax.geometry import Lp, directional_divergence
from mirrormax.svm import att_svm

ABOUT = About("Two layers: a conjecture, and a refutation for K and Q at p ≠ 2", place=270, seconds=12, revision=1)
NEAR = 0.02  # D of layer 2 to its SVM, in the median: set before the first run
LAYERS = {"second": "layer 2 to its SVM", "alone": "layer 1 to the SVM of the rows read", "rows": "layer 1 to (rows)"}
SECOND = "conjecture: layer 2 converges to the attention SVM of layer 1's output, median D"
FIRST = "conjecture: layer 1 converges to (rows) rather than to the SVM of the rows read"
WHY = "Mean over problems of log(D to the SVM of the rows read / D to (rows)) at the end; above 0 if (rows) is nearer."
FACTORS = "K and Q"
AWAY = f"{FACTORS} at p = 3: log(D to the nuclear-norm SVM / that at p = 2) at the end, refuted if above 0"


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    n: int = 5
    T: int = 6
    d: int = 10
    problems: int = 8
    steps: int = 2000
    factors_p: tuple[float, ...] = (2.0, 3.0)
    factors_steps: int = 3000
    factors_start: float = 0.5
    points: int = 16


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=30, steps=6000, factors_steps=20_000)}


def run(config: Config, work: Work) -> Arrays:
    """D at the end by problem for both layers, and D to the nuclear-norm SVM (records, problems) for factors."""
    layers = work.each(_two_layers, [(config, p, lr) for p, lr in zip(config.p, config.lr, strict=True)], 0.6)
    factors = work.each(_factors, [(config, p) for p in config.factors_p], 0.4)
    return {
        "p": np.array(config.p),
        "factors_p": np.array(config.factors_p),
        "steps": log_grid(config.factors_steps, config.points),
        **by_p(config.p, layers),
        **by_p(config.factors_p, [{"factors": D} for D in factors]),
    }


def _two_layers(config: Config, p: float, lr: float) -> dict[str, Any]:
    """D of both layers after mirror descent from zero on the logistic loss, in steps normalised by ‖(g_1, g_2)‖_q of
    each problem."""
    problem = config.batch()
    X, y, z, v = (torch.from_numpy(getattr(problem, name)) for name in PARTS)
    psi, q = Lp(p), p / (p - 1)
    dual = torch.zeros(2, len(X), X.shape[-1], X.shape[-1], dtype=X.dtype)
    for _ in range(config.steps):
        W = psi.inverse_map(dual, (-2, -1)).requires_grad_()
        f, _, _ = forward(X, z, v, W)
        (g,) = torch.autograd.grad(torch.nn.functional.softplus(-y * f).mean(-1).sum(), W)
        largest = g.abs().amax((0, 2, 3), keepdim=True).clamp(min=1e-300)
        size = largest * ((g / largest).abs() ** q).sum((0, 2, 3), keepdim=True) ** (1 / q)
        dual = dual - lr * g / size
    W = psi.inverse_map(dual, (-2, -1))
    _, alpha, beta = forward(X, z, v, W)
    ends = [_ends(X[b], z[b], W[:, b], alpha[b], beta[b], p) for b in range(len(X))]
    return {name: np.array([end[name] for end in ends]) for name in LAYERS}


def forward(X: Tensor, z: Tensor, v: Tensor, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f (B, n) of X (B, n, T, d), z (B, n, d), v (B, d) and W (2, B, d, d); α (B, n) and β (B, n, T).

    Attention is written as the selected token plus what the others add to it, x_β + Σ s_τ (x_τ − x_β), so that
    gradients keep their digits when s_β is 1 to the last one.
    """
    mapped = torch.einsum("bde,bnte->bntd", W[0], X)  # W_1 x_t, row t's query
    beta = torch.einsum("bnsd,bntd->bnts", X, mapped).detach().argmax(-1)
    chosen = X.gather(2, beta.unsqueeze(-1).expand_as(X))
    offsets = X.unsqueeze(2) - chosen.unsqueeze(3)  # (B, n, T, T, d)
    shares = torch.einsum("bntsd,bntd->bnts", offsets, mapped).softmax(-1)
    inner = X + chosen + torch.einsum("bnts,bntsd->bntd", shares, offsets)
    query = torch.einsum("bde,bne->bnd", W[1], z)
    alpha = torch.einsum("bntd,bnd->bnt", inner, query).detach().argmax(-1)
    best = inner.gather(2, alpha[..., None, None].expand(-1, -1, 1, X.shape[-1]))
    relative = inner - best
    weights = torch.einsum("bntd,bnd->bnt", relative, query).softmax(-1)
    attended = best.squeeze(2) + torch.einsum("bnt,bntd->bnd", weights, relative)
    return torch.einsum("bnd,bd->bn", attended, v), alpha, beta


def _ends(X: Tensor, z: Tensor, W: Tensor, alpha: Tensor, beta: Tensor, p: float) -> dict[str, float]:
    """D of both layers to the SVMs of what was selected; NaN where one has no solution."""
    n, T, d = X.shape
    rows, selected = torch.arange(n), torch.arange(T) == alpha.unsqueeze(1)
    inner = X + X.gather(1, beta.unsqueeze(-1).expand_as(X))  # both attentions settled
    # Two tokens that attend to each other become the same one, which no weights tell apart.
    mask = ((inner - inner[rows, alpha].unsqueeze(1)).norm(dim=-1) >= 1e-9) | selected
    second = att_svm(inner, z, alpha, p=p, mask=mask, throw=False)
    alone = att_svm(X, X[rows, alpha], beta[rows, alpha], p=p, throw=False)
    every, sides = X.unsqueeze(1).expand(n, T, T, d).flatten(0, 1), selected.double().reshape(-1, 1).expand(-1, T)
    relaxed = att_svm(every, X.flatten(0, 1), beta.flatten(), p=p, rhs=sides, throw=False)
    ends = {"second": (second, W[1]), "alone": (alone, W[0]), "rows": (relaxed, W[0])}
    return {name: float(directional_divergence(svm.W, w, p)) if svm.optimal else nan for name, (svm, w) in ends.items()}


def _factors(config: Config, p: float) -> np.ndarray[Any, Any]:
    """D₂ of W = KQᵀ to the nuclear-norm SVM of what the run selects, (records, problems)."""
    problem = Problems(4, 5, 6, config.seed, config.problems).batch()
    K, Q = config.factors_start * np.random.default_rng(config.seed).standard_normal((2, config.problems, 6, 6))
    grid, options = log_grid(config.factors_steps, config.points), SimulationOptions(factors=(K, Q))
    run = simulate(problem, p=p, lr=0.1, steps=config.factors_steps, record=grid, options=options)
    return np.asarray(directional_divergence(max_margin(problem, run.alpha, norm="nuclear"), run.W, 2))


def nearer(data: Arrays, p: float) -> Any:
    """log(D to the SVM of the rows read / D to (rows)) by problem."""
    return finite(np.log(data[f"alone/{p:g}"] / data[f"rows/{p:g}"]))


def stays_away(data: Arrays) -> Any:
    """log(D to the nuclear-norm SVM at the last p / at the first) at the end, by problem."""
    first, *_, last = (data[f"factors/{p:g}"][-1] for p in data["factors_p"])
    return finite(np.log(last / first))


def measure(data: Arrays) -> Rows:
    for p in data["p"].tolist():
        yield at_most(SECOND, NEAR, median(data[f"second/{p:g}"]), column=p)
        yield at_least(FIRST, "above 0", 0.0, nearer(data, p), why=WHY, column=p, source=OURS)
        for name in ("alone", "rows"):
            yield alone(f"median D, {LAYERS[name]}", median(data[f"{name}/{p:g}"]), column=p)
    for p in data["factors_p"].tolist():
        yield alone(f"{FACTORS}: median D to the nuclear-norm SVM", median(data[f"factors/{p:g}"][-1]), column=p)
    yield at_least(AWAY, "above 0", 0.0, stays_away(data), source=OURS)


def tell(data: Arrays, table: Measured) -> Told:
    ratios = np.concatenate([nearer(data, p) for p in data["p"]])
    factor = number(float(np.exp(np.median(stays_away(data)))), 2)
    return Told(
        f"Layer 1 ends nearer to (rows) in {(ratios > 0).sum()} of {len(ratios)} runs. K and Q end {factor} times as "
        "far from the nuclear-norm SVM at p = 3 as at 2",
        "Conjecture: the first of two layers converges to the relaxed problem over all rows, not to the attention SVM "
        "of the rows that layer 2 reads; layer 2 converges to its own SVM. Refuted: that K and Q converge to the "
        "nuclear-norm SVM at p = 3, too.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Layer 1's two distances problem by problem, layer 2's, and those of K and Q over the steps."""
    fig, axes = row_of_axes(3, width=11, height=3.6)
    for p in data["p"]:
        style = look_of(p).style(linestyle="none", label=f"p = {p:g}")
        alone, rows, second = (np.maximum(data[f"{name}/{p:g}"], 1e-6) for name in ("alone", "rows", "second"))
        axes[0].plot(alone, rows, **style)
        axes[1].plot(np.full(len(second), float(p)), second, **style)
    axes[0].plot([1e-6, 1], [1e-6, 1], color="0.5", linestyle="--", linewidth=1)
    axes[0].set(xlim=(1e-4, 1), ylim=(1e-4, 1), aspect="equal")
    labels = "below the line, (rows) is nearer", "layer 1: D to the SVM of the rows read", "D to (rows)"
    panel(axes[0], *labels, log="xy", legend="best")
    axes[1].axhline(NEAR, color="0.5", linestyle="--", linewidth=1)
    axes[1].margins(x=0.2)
    panel(axes[1], "layer 2, and our threshold", "p", "D to the SVM of layer 1's output", log="y", xticks=data["p"])
    for p in data["factors_p"]:
        curve(axes[2], data["steps"][1:], np.nanmedian(data[f"factors/{p:g}"][1:], 1), p, marker="")
    panel(axes[2], "K and Q trained", "step", "median D to the nuclear-norm SVM", log="xy", legend="best")
    return fig
