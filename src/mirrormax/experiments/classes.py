"""Several classes: runs that select one token against the attention SVM, mixtures against the general one; W with V."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, curve, look_of, panel, row_of_axes
from mirrormax._statistics import median, number, share
from mirrormax.attention import attention_weights, effective_scores, is_locally_optimal, optimal_attention
from mirrormax.dynamics import simulate_heads
from mirrormax.experiments._measurements import OURS, About, Arrays, Measured, Rows, Told, above, alone, at_most, most
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import LAST, SETTLED, Floats, Problems, class_problems, log_grid, solved, stacked
from mirrormax.geometry import directional_divergence
from mirrormax.svm import att_svm, class_excess, class_svm, joint_limit

ABOUT = About("Several classes: one token or a mixture, each with its own SVM", place=240, seconds=5, revision=2)
SHARED, USED = 1e-3, 1e-4  # attention that makes a token part of a mixture, and the best attention that keeps it there
NEAR = 0.01  # the divergence below which a run has arrived
ON_MARGIN = 1e-6  # of V of norm one: an excess below it is that of a label support vector
SETTLE = f"settled runs with locally optimal tokens and D below {NEAR:g} to their attention SVM"
MIXED = "mixtures"
IF_AND_ONLY_IF = "mixtures that pinned steps hold if and only if they are locally optimal"
LEAVE = "settled runs whose tokens are not locally optimal, and whose D rises again over the last nine tenths"
LEFT = "A first look at four problems had one that came within .002 of its SVM, and then left."
RELAXED = "W, trained with V, nearer to the relaxed SVM than to the attention SVM"
MORE_OFTEN = "Settled runs with a sample off the label margin; met if the 95 % interval of the share lies above a half."


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    steps: int = 30000
    problems: int = 8
    classes: int = 3
    pinned: int = 400  # steps of ten times the length
    points: int = 20


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=30, steps=100000, points=40)}


def run(config: Config, work: Work) -> Arrays:
    """(p, runs): what each run settled on and how far it is from each limit, with V fixed and with V trained."""
    cases = [(config, p, lr) for p, lr in zip(config.p, config.lr, strict=True)]
    data: Arrays = {"p": np.array(config.p), "steps": log_grid(config.steps, config.points)}
    data |= stacked(work.each(_fixed, cases, share=0.7))
    return data | stacked(work.each(_joint, cases, share=0.3), prefix="joint_")


def _fixed(config: Config, p: float, lr: float) -> Arrays:
    X, y, z, V, W0 = class_problems(config, config.classes)
    grid = log_grid(config.steps, config.points)
    run = simulate_heads(X, y, z, V, p=p, lr=lr, steps=config.steps, W0=W0, record=grid)[..., 0]
    V = V[:, 0]
    keep = attention_weights(X, z, W=run.W[-1]) > SHARED
    keep = keep & (optimal_attention(X, y, V, mask=keep).s > USED)
    single, general = att_svm(X, z, run.alpha, p=p, throw=False), att_svm(X, z, keep=keep, p=p, throw=False)
    W_one, W_mixed, known = solved(single), solved(general), np.asarray(general.optimal)
    W_keep = np.where(known[:, None, None], W_mixed, 1.0)
    local = np.asarray(is_locally_optimal(X, y, z, V=V, keep=keep, W=W_keep).optimal)
    mixed, pinned = (keep.sum(-1) > 1).any(-1), np.full(len(X), np.nan)
    for k in np.flatnonzero(known & mixed):
        W = _pinned(X[k], y[k], z[k], V[k], keep[k], run.W[-1, k], p, 10 * lr, config.pinned)
        pinned[k] = float(directional_divergence(W_mixed[k], W, p))
    return {
        "one": np.moveaxis(run.divergence_to(W_one), 0, -1),
        "general": np.moveaxis(run.divergence_to(W_mixed), 0, -1),
        "settled": run.log_rest[-1].max(-1) < SETTLED,
        "mixed": mixed,
        "local": local & known,
        "pinned": pinned,
        "gap": np.asarray(general.gap),
    }


def _pinned(X: Any, y: Any, z: Any, V: Any, keep: Any, W: Any, p: float, lr: float, steps: int) -> Any:
    """Mirror descent on the tokens outside the mixtures, with the attention inside kept at its best, from W.

    Normalised steps on the loss itself make the finite part of a mixture rattle by about η, and its leads grow like
    log k only. Here that part is put back after every step, B W = β with the log-odds β of the best attention, by
    u ← u + Bᵀν in the dual. It takes the mixtures as given, and tells where W goes if they stay.
    """
    best = optimal_attention(X, y, V, mask=keep)
    outputs = (best.s[:, None] @ X)[:, 0] @ V.T
    g, q = effective_scores(X, y, V, outputs), p / (p - 1)
    level, first = (best.s * g).sum(-1, keepdims=True), keep.argmax(-1)[:, None]
    rows = (np.take_along_axis(X, first[..., None], 1) - X)[..., None] * z[:, None, None]
    rows = rows.reshape(*keep.shape, -1)
    inside = keep & (np.arange(keep.shape[-1]) != first)
    A, B, gains = rows[~keep], rows[inside], (level - g)[~keep]
    with np.errstate(divide="ignore"):
        logs = np.log(best.s)
    of_first = np.take_along_axis(logs, first, 1)
    beta, base = (of_first - logs)[inside], np.broadcast_to(of_first, keep.shape)[~keep]
    u = _pin(_power(W.ravel(), p - 1), B, beta, q)
    for _ in range(steps):
        weights = base - A @ _power(u, q - 1)
        pull = A.T @ (np.exp(weights - weights.max()) * gains)
        u = _pin(u + lr * pull / np.linalg.norm(pull, q), B, beta, q)
    return _power(u, q - 1).reshape(W.shape)


def _power(x: Floats, e: float) -> Floats:
    """|x|^e with the sign of x."""
    return np.asarray(np.sign(x) * np.abs(x) ** e)


def _pin(u: Floats, B: Floats, beta: Floats, q: float) -> Floats:
    """u + Bᵀν with B ∇ψ*(u + Bᵀν) = β: Newton's method on a convex function of ν, halved until the residual falls."""
    nu, moved, residual = np.zeros(len(B)), u, B @ _power(u, q - 1) - beta
    for _ in range(50):
        if np.abs(residual).max() <= 1e-9 * (1 + np.abs(beta).max()):
            break
        slope = (q - 1) * np.maximum(np.abs(moved), 1e-9) ** (q - 2)
        step = np.linalg.lstsq((B * slope) @ B.T, -residual, rcond=None)[0]
        for _ in range(30):
            moved = u + B.T @ (nu + step)
            left = B @ _power(moved, q - 1) - beta
            if np.linalg.norm(left) < np.linalg.norm(residual):
                break
            step = step / 2
        nu, residual = nu + step, left
    return moved


def _joint(config: Config, p: float, lr: float) -> Arrays:
    X, y, z, V, W0 = class_problems(config, config.classes)
    settings: Any = {"p": p, "lr": lr, "steps": config.steps, "record": 2, "options": LAST}
    run = simulate_heads(X, y, z, np.zeros_like(V), W0=W0, train_readout=True, **settings)[..., 0]
    chosen = np.take_along_axis(X, run.alpha[..., None, None], 2)[:, :, 0]
    readout = class_svm(chosen, y, classes=config.classes, p=p)
    excess = np.asarray(class_excess(chosen, y, classes=config.classes, p=p))
    ratio = run.readout_norm[-1] / run.norm[-1]
    plain = att_svm(X, z, run.alpha, p=p, throw=False)
    relaxed = joint_limit(X, y, z, run.alpha, p=p, ratio=ratio, excess=excess, throw=False)
    return {
        "one": np.asarray(run.divergence_to(solved(plain))[-1]),
        "relaxed": np.asarray(run.divergence_to(solved(relaxed))[-1]),
        "V": np.asarray(directional_divergence(readout.V, run.V[-1], p, dim=(-2, -1))),
        "excess": excess.max(-1),
        "settled": run.log_rest[-1].max(-1) < SETTLED,
    }


def kinds(data: Arrays, k: int) -> tuple[Any, Any, Any]:
    """Which runs of the k-th p settled on one token each, which share attention and may stay, and which may not."""
    mixed, local = data["mixed"][k], data["local"][k]
    return data["settled"][k] & ~mixed, mixed & local, mixed & ~local


def measure(data: Arrays) -> Rows:
    rises = []
    early = int(np.searchsorted(data["steps"], data["steps"][-1] / 10))
    for k, p in enumerate(data["p"]):
        settled, stable, unstable = kinds(data, k)
        single, general, local, pinned = (data[name][k] for name in ("one", "general", "local", "pinned"))
        yield most(SETTLE, (single[:, -1] < NEAR)[settled & local], column=p)
        rises.append((single[:, -1] > single[:, early])[settled & ~local])
        more: dict[str, Any] = {"why": "Normalised steps.", "column": p}
        falls, nearer = (general[stable, -1] < other[stable] for other in (general[:, early], single[:, -1]))
        yield most(f"{MIXED} whose D to the general SVM falls over the last nine tenths", falls, 0.9, **more)
        yield most(f"{MIXED} nearer to the general SVM than to the one-token SVM", nearer, 0.9, **more)
        agree = ((pinned < NEAR) == local)[(stable | unstable) & np.isfinite(pinned)]
        yield most(IF_AND_ONLY_IF, agree, 0.9, column=p)
        counts = f"{settled.sum()}; {stable.sum()}; {unstable.sum()}"
        yield alone("runs: settled; stable; unstable mixtures", counts, column=p)
        yield alone("median D of settled runs", median(single[settled, -1]), column=p)
        yield alone("median D of pinned steps, stable mixtures", median(pinned[stable]), column=p)
    gone = np.concatenate(rises)
    yield most(LEAVE, gone, why=LEFT, late=True) if gone.size else alone(LEAVE, "no such run")
    # V trained too.
    settled = data["joint_settled"] & np.isfinite(data["joint_one"]) & np.isfinite(data["joint_relaxed"])
    for k, (p, chosen) in enumerate(zip(data["p"], settled, strict=True)):
        relaxed, V = (median(data[name][k][chosen]) for name in ("joint_relaxed", "joint_V"))
        yield at_most("median D of W to the relaxed SVM, V trained, settled", NEAR, relaxed, column=p)
        yield at_most("median D of V to the SVM of the classes, settled", NEAR, V, column=p)
        yield alone("runs with V trained that settle", f"{chosen.sum()} of {chosen.size}", column=p)
    off = settled & (data["joint_excess"] > ON_MARGIN)
    part = share((data["joint_relaxed"] < data["joint_one"])[off])
    yield above(f"{RELAXED}, share of runs", "above a half", 0.5, part, MORE_OFTEN, source=OURS)


def tell(data: Arrays, table: Measured) -> Told:
    settled, mixed, _ = np.sum([kinds(data, k) for k in range(len(data["p"]))], (0, 2))
    one, several = (number(median(table.values(f"median D of {name}")), 1) for name in ("settled", "pinned"))
    return Told(
        f"{settled} of {data['settled'].size} runs select one token per sample (median D {one}), {mixed} share "
        f"attention (median D {several}, pinned)",
        "The former converge to the attention SVM. The latter keep several tokens of some sample, none of which is "
        "best as seen from itself; W then converges to the SVM in which these tokens are level, and effective scores "
        "tell which mixtures stay.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Settled runs along their way, the two SVMs of mixtures, and W trained with V."""
    fig, (left, middle, right) = row_of_axes(3, width=11.0, height=3.6)
    for k, p in enumerate(data["p"]):
        (settled, stable, _), points = kinds(data, k), look_of(p).style(linestyle="", markersize=4)
        if settled.any():
            curve(left, data["steps"][1:], np.nanmedian(data["one"][k][settled], axis=0)[1:], p)
        single, joint = data["one"][k, stable, -1], data["joint_settled"][k]
        middle.plot(single, data["general"][k, stable, -1], **points, markerfacecolor="white")
        middle.plot(single, data["pinned"][k][stable], **points)
        right.plot(data["joint_V"][k][joint], data["joint_relaxed"][k][joint], **points)
    panel(left, "one token per sample", "step", "median divergence to the attention SVM", log="xy", legend="lower left")
    for label, face in (("normalised steps", "white"), ("pinned steps", "0.4")):
        middle.plot([], [], "o", color="0.4", markerfacecolor=face, label=label)
    middle.plot([1e-5, 1.0], [1e-5, 1.0], color="0.5", linewidth=1, linestyle="--")
    options: dict[str, Any] = {"log": "xy", "legend": "lower right", "xlim": (1e-2, 1), "ylim": (1e-5, 1)}
    panel(middle, "mixtures", "D to the SVM of one token", "D to the general SVM", **options)
    right.axhline(NEAR, color="0.5", linewidth=1, linestyle="--")
    right.axvline(NEAR, color="0.5", linewidth=1, linestyle="--")
    options = {"log": "xy", "xlim": (1e-8, 0.1), "ylim": (1e-8, 0.1)}
    panel(right, "V trained too", "D of V to the SVM of the classes", "D of W to the relaxed SVM", **options)
    return fig
