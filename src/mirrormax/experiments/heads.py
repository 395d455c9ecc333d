"""Several heads: each against its own attention SVM, how they share the norm, and their readouts trained too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize

from mirrormax._drawing import Figure, curve, look_of, panel, row_of_axes
from mirrormax._statistics import median, percent
from mirrormax.attention import is_locally_optimal
from mirrormax.dynamics import Trajectory, simulate_heads
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, at_most, most, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import LAST, SETTLED, Floats, Problems, class_problems, log_grid, solved, stacked
from mirrormax.geometry import directional_divergence
from mirrormax.svm import att_svm, lp_svm

ABOUT = About("Several heads: an attention SVM for each, and how they share the norm", place=250, seconds=7, revision=2)
MODES = {"tensor": "normalised per head", "global": "normalised together"}
NEAR = 0.01  # the divergence below which a head has arrived
LAW = 0.05  # |log| of the ratio of two norms to what is predicted
SCALE = 0.1  # of the second head's readout, in the runs that measure its lag
SHORT_STEPS = 25  # how much shorter steps are where p < 2, in runs five times as long
LAG = 0.7  # how far, in logits, the lag may be from log(1/SCALE)
CERTAIN = 1e-6  # the relative gap up to which a minimum of the largest norm is known
REACH = f"runs whose heads all end below D = {NEAR:g}"
LIMITS = {"tensor": "the least largest norm", "global": "the SVM of all heads"}  # of trained readouts
EQUAL, PRODUCT = "|log| of the ratio of norms", "|log| of the ratio of norm × margin"
BEFORE = "The threshold was set before these runs, after a study with other seeds."
SHORT = "Below p = 2 norms grow faster than k, and long steps swing between the support tokens."


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    values_lr: tuple[float, ...] = (0.02, 0.1, 1.0)  # with trained readouts: at p = 1.5 a step of .1 is too long
    plain_lr: float = 1.0
    steps: int = 10000
    plain: int = 20000
    problems: int = 8
    heads: int = 2
    points: int = 20


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, steps=30000, plain=200000, points=40)}


def run(config: Config, work: Work) -> Arrays:
    """For every p and way to normalise: divergences (p, modes, runs, heads, records), norms and margins at the end."""
    cases = list(zip(config.p, config.lr, config.values_lr, strict=True))
    each = (len(config.p), len(MODES))
    fixed = work.each(_fixed, [(config, p, lr, mode) for p, lr, _ in cases for mode in MODES], share=0.3)
    three = work.each(_three, [(config, p, lr) for p, lr, _ in cases], share=0.1)
    short = work.each(_short, [(config, p, lr) for p, lr, _ in cases if p < 2], share=0.1)
    plain = work.each(_plain, [(config, p) for p in config.p], share=0.2)
    values = work.each(_values, [(config, p, lr, mode) for p, _, lr in cases for mode in MODES], share=0.3)
    data: Arrays = {"p": np.array(config.p), "steps": log_grid(config.steps, config.points)}
    data |= stacked(fixed, *each) | stacked(plain, prefix="plain_")
    data["short"] = np.array([np.nan if p >= 2 else short.pop(0) for p in config.p])
    return data | stacked(three, prefix="three_") | stacked(values, *each, prefix="values_")


def _problems(config: Config) -> tuple[Any, Any, Any, Any, Any]:
    """X, y, z, V with starts W0, of two classes, for which V_h = (−v_h/2, v_h/2)."""
    X, y, z, V, W0 = class_problems(config, 2, config.heads)
    return X, y, z, np.stack([-V[..., 1, :] / 2, V[..., 1, :] / 2], -2), W0


def _own_svm(X: Any, z: Any, run: Trajectory, p: float) -> tuple[Floats, Floats]:
    """W (runs, heads, d, d) and margins (runs, heads) of every head's own attention SVM; NaN where there is none."""
    solution = att_svm(X[:, None], z[:, None], run.alpha, p=p, throw=False)
    return solved(solution), np.where(np.asarray(solution.optimal), solution.margin, np.nan)


def _fixed(config: Config, p: float, lr: float, mode: Any) -> Arrays:
    X, y, z, V, W0 = _problems(config)
    grid = log_grid(config.steps, config.points)
    run = simulate_heads(X, y, z, V, p=p, lr=lr, steps=config.steps, W0=W0, normalize=mode, record=grid)
    W, margin = _own_svm(X, z, run, p)
    # All heads' constraints together: the solutions side by side, each scaled to margin 1.
    whole = np.asarray(directional_divergence(W, run.W[-1], p, dim=(-3, -2, -1)))
    return {"D": np.moveaxis(run.divergence_to(W), 0, -1), "norm": run.norm[-1], "margin": margin, "whole": whole}


def _three(config: Config, p: float, lr: float) -> Arrays:
    """Three classes, (runs,): which settle in all heads, whether these are optimal given each other, and their D."""
    X, y, z, V, W0 = class_problems(config, 3, config.heads)
    run = simulate_heads(X, y, z, V, p=p, lr=lr, steps=config.steps, W0=W0, record=2, options=LAST)
    W, margin = _own_svm(X, z, run, p)
    known = np.isfinite(margin)
    outputs = _chosen(X, run) @ np.swapaxes(V, -1, -2)
    given: Any = {"offset": outputs.sum(1, keepdims=True) - outputs, "W": np.where(known[..., None, None], W, 1.0)}
    local = is_locally_optimal(X[:, None], y[:, None], z[:, None], V=V, alpha=run.alpha, **given).optimal
    settled = run.log_rest[-1].max((-2, -1)) < SETTLED
    return {"settled": settled, "local": (local & known).all(-1), "D": run.divergence_to(W)[-1].max(-1)}


def _chosen(X: Any, run: Trajectory) -> Floats:
    """The tokens (runs, heads, n, d) that each head selects."""
    return np.take_along_axis(X[:, None], run.alpha[..., None, None], 3)[..., 0, :]


def _short(config: Config, p: float, lr: float) -> float:
    """The median of |log(‖W_1‖/‖W_2‖)| with short steps, normalised per head."""
    X, y, z, V, W0 = _problems(config)
    settings: Any = {"p": p, "lr": lr / SHORT_STEPS, "steps": 5 * config.steps, "W0": W0, "record": 2, "options": LAST}
    norm = np.log(simulate_heads(X, y, z, V, normalize="tensor", **settings).norm[-1])
    return float(np.median(np.abs(norm[:, 0] - norm[:, -1])))


def _plain(config: Config, p: float) -> Arrays:
    """m_h‖W_h‖, the leads in logits, after plain steps from zero: as they are, and with a small second readout."""
    X, y, z, V, _ = (part[: config.problems] for part in _problems(config))
    settings: Any = {"p": p, "lr": config.plain_lr, "steps": config.plain, "normalize": None, "record": 2}
    small = V.copy()
    small[:, -1] *= SCALE
    runs = {"leads": simulate_heads(X, y, z, V, **settings), "small": simulate_heads(X, y, z, small, **settings)}
    return {name: run.norm[-1] * _own_svm(X, z, run, p)[1] for name, run in runs.items()}


def _values(config: Config, p: float, lr: float, mode: Any) -> Arrays:
    """D of the trained readouts to the SVM of both heads together, and to the least largest norm of a head."""
    X, y, z, V, W0 = (part[config.problems :] for part in _problems(config))  # from zero the heads would stay alike
    settings: Any = {"p": p, "lr": lr, "steps": config.steps, "normalize": mode, "record": 2, "options": LAST}
    run = simulate_heads(X, y, z, 0 * V, W0=W0, train_readout=True, **settings)
    v = (run.V[-1, :, :, 1] - run.V[-1, :, :, 0]).reshape(config.problems, -1)
    chosen, labels = _chosen(X, run), 2 * y - 1
    together = lp_svm(np.moveaxis(chosen, 1, 2).reshape(config.problems, config.n, -1), labels, p=p).v
    largest, gaps = zip(*(_least_largest(labels[k, :, None] * chosen[k], p) for k in range(len(v))), strict=True)
    return {
        "together": np.asarray(directional_divergence(together, v, p, dim=-1)),
        "largest": np.asarray(directional_divergence(np.stack(largest), v, p, dim=-1)),
        "gap": np.array(gaps),
        "settled": run.log_rest[-1].max((-2, -1)) < SETTLED,
    }


def _least_largest(rows: Floats, p: float) -> tuple[Floats, float]:
    """argmax of min_i Σ_h ⟨a_hi, v_h⟩ over ‖v_h‖_p ≤ 1 for every head, of rows a (H, n, d): (H·d,), and its gap.

    Dual: min Σ_h ‖A_hᵀλ‖_q over the simplex; v_h is where ‖A_hᵀλ‖_q has its gradient.
    """
    q, n = p / (p - 1), rows.shape[1]

    def parts(weights: Floats) -> tuple[Any, Floats, Floats]:
        """Σ_h ‖A_hᵀλ‖_q, its gradient, which is the margins, and v."""
        pulls = np.einsum("hnd,n->hd", rows, weights)
        norms = np.linalg.norm(pulls, q, axis=-1)
        v = np.sign(pulls) * (np.abs(pulls) / norms[:, None]) ** (q - 1)
        return norms.sum(), np.einsum("hnd,hd->n", rows, v), v

    simplex = {"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": lambda weights: np.ones(n)}
    settings: Any = {"bounds": [(0, 1)] * n, "constraints": [simplex], "options": {"ftol": 1e-15, "maxiter": 500}}
    optimum = optimize.minimize(lambda x: parts(x)[:2], np.full(n, 1 / n), jac=True, method="SLSQP", **settings)
    upper, margins, v = parts(optimum.x)
    return v.ravel(), 1 - margins.min() / upper


def _law(data: Arrays, k: int, m: int, power: float) -> float:
    """The median of |log(‖W_1‖ m_1^power / (‖W_2‖ m_2^power))|: 0 if norms go as margin^−power."""
    size = np.log(data["norm"][k, m]) + power * np.log(data["margin"][k, m])
    return median(np.abs(size[:, 0] - size[:, -1]))


def _nearer(data: Arrays, k: int, m: int) -> Any:
    """Whether readouts end nearer to what this way to normalise should lead to than to the other; of settled runs."""
    known = data["values_settled"][k, m] & (data["values_gap"][k, m] < CERTAIN)
    largest, together = (data[f"values_{name}"][k, m][known] for name in ("largest", "together"))
    return largest < together if m == 0 else together < largest


def measure(data: Arrays) -> Rows:
    for k, p in enumerate(data["p"]):
        for m, (mode, said) in enumerate(MODES.items()):
            yield most(f"{REACH}, {said}", data["D"][k, m, :, :, -1].max(-1) < NEAR, 0.9, BEFORE, column=p)
            quantity = f"trained readouts nearer to {LIMITS[mode]}, {said}"
            yield most(quantity, _nearer(data, k, m), 0.9, BEFORE, column=p)
            yield alone(f"median D of all heads side by side, {said}", median(data["whole"][k, m]), column=p)
            # Per head, norms are equal; together, norm × margin is.
            law, other = (EQUAL, PRODUCT) if m == 0 else (PRODUCT, EQUAL)
            yield at_most(f"{law}, {said}", LAW, _law(data, k, m, m), BEFORE, column=p)
            yield alone(f"{other}, {said}", _law(data, k, m, 1 - m), column=p)
        if np.isfinite(data["short"][k]):
            quantity = f"{EQUAL}, {MODES['tensor']}, steps 1/{SHORT_STEPS} as long"
            yield at_most(quantity, LAW, float(data["short"][k]), SHORT, column=p, late=True)
        small, leads = (data[name][k][:, 0] - data[name][k][:, -1] for name in ("plain_small", "plain_leads"))
        lag, expected = median(small - leads), float(np.log(1 / SCALE))
        quantity = f"lag of a head with a readout of {SCALE:g} the size, plain steps, in logits"
        yield threshold(quantity, f"{expected:.1f} ± {LAG:g}", lag, abs(lag - expected) <= LAG, BEFORE, column=p)
        settled, local, D = (data[f"three_{name}"][k] for name in ("settled", "local", "D"))
        quantity = "three classes: settled runs whose heads"
        yield most(f"{quantity} are locally optimal given each other", local[settled], column=p)
        yield most(f"{quantity} all end below D = {NEAR:g}", D[settled] < NEAR, column=p)
    yield alone(f"share of all heads that end below D = {NEAR:g}", float(np.mean(data["D"][..., -1] < NEAR)))


def tell(data: Arrays, table: Measured) -> Told:
    """How far norms per head are from equal, and norm × margin together, as shares: medians of runs, the worst p."""
    laws = f"{EQUAL}, {MODES['tensor']}", f"{PRODUCT}, {MODES['global']}"
    equal, law = (percent(float(np.expm1(max(table.values(quantity)))), 1) for quantity in laws)
    nearer = np.concatenate([_nearer(data, k, m) for k in range(len(data["p"])) for m in range(len(MODES))])
    return Told(
        f"{percent(table.values('share of all heads')[0])} of heads reach their own SVM; per head, norms are equal "
        f"within {equal}; together, norm × margin within {law}",
        "Trained readouts should converge to the least largest norm where steps are normalised per head, and to the "
        f"SVM of all heads where they are normalised together: {nearer.sum()} of {nearer.size} runs end nearer to the "
        "right one.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """The worst head along the runs, norms against margins, and the readouts between their two limits."""
    fig, (left, middle, right) = row_of_axes(3, width=11.0, height=3.6)
    for k, p in enumerate(data["p"]):
        look = look_of(p)
        for m, face in enumerate(("white", look.colour)):
            points = look.style(linestyle="", markersize=4, markerfacecolor=face)
            D = np.nanmedian(data["D"][k, m].max(1), axis=0)
            curve(left, data["steps"][1:], D[1:], p, label=f"p = {p:g}" if m else None, markerfacecolor=face)
            margin, norm = (np.log(data[name][k, m]) for name in ("margin", "norm"))
            middle.plot(margin[:, -1] - margin[:, 0], norm[:, 0] - norm[:, -1], **points)
            known = data["values_settled"][k, m]
            right.plot(data["values_together"][k, m][known], data["values_largest"][k, m][known], **points)
    panel(left, "its own SVM", "step", "D of the worse head, median", log="xy", legend="lower left")
    ends = np.array(middle.get_xlim())
    middle.plot(ends, ends, color="0.5", linewidth=1, linestyle="--")
    middle.axhline(0, color="0.5", linewidth=1, linestyle=":")
    panel(middle, "how heads share the norm", "log of the ratio of 1/margin", "log of the ratio of norms")
    right.plot([1e-6, 1], [1e-6, 1], color="0.5", linewidth=1, linestyle="--")
    for said, face in zip(MODES.values(), ("white", "0.4"), strict=True):
        right.plot([], [], "o", color="0.4", markerfacecolor=face, label=said)
    options: dict[str, Any] = {"log": "xy", "legend": "upper left", "xlim": (1e-6, 0.1), "ylim": (1e-6, 1)}
    panel(right, "trained readouts", "D to the SVM of all heads", "D to the least largest norm", **options)
    return fig
