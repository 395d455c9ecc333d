"""Which solution does an optimizer choose? The attention SVM of the norm in which its steps are steepest.

**Conjecture.** Steepest descent in a norm, W⁺ = W − ηD with D = argmax{⟨∇L, D⟩ : ‖D‖ ≤ 1}, converges to the
attention SVM of that norm, for the tokens it selects. docs/math/norms.md derives it, and all else that is predicted.

Solutions in these norms need not be unique, so that margins are compared and not directions: the *shortfall* of W in a
norm is 1 − (smallest lead of W/‖W‖)/(margin of the attention SVM). Written before the first run:

- A rule **passes** if its median shortfall in its own norm is below ``BELOW``, and its own norm is the nearest of it
  and ``NEAREST_OF`` in at least ``NEAREST`` of the runs. Random directions that select the same tokens must not pass.
- A rule that fails is **slow** if its shortfall at the end is at most ``FALLING`` of what it was at a third of the
  steps, it **stops short** if that is at least ``STILL``, and between the two nothing is known.
- The smallest lead of Adam without ε, at the usual β₂, **grows by −½ log β₂ a step**, up to a share of ``SPEED``.
- Weight decay λ bounds ‖W‖ by 1/λ: a run **ends on that ball** if in the median ⟨−∇L, W⟩ is at least ``ALIGNED`` of its
  largest value there, ‖∇L‖_*/λ, the condition of Karush, Kuhn and Tucker for min L on the ball.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax._drawing import COLOURS, LINES, RAMP, Figure, colour_map, panel, row_of_axes
from mirrormax._statistics import median, number, percent
from mirrormax.attention import gradient, leads
from mirrormax.dynamics import Adam, Coordinate, Lion, Muon, Sign, Spectral, simulate
from mirrormax.experiments._measurements import MET, About, Arrays, Measured, Measurement, Rows, Told, alone, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Floats, Problems, blocks, log_grid, some
from mirrormax.geometry import ElasticNet, lp_norm
from mirrormax.problem import Problem
from mirrormax.svm import Norm, att_svm

ABOUT = About("Which solution does an optimizer choose?", place=280, seconds=45, revision=1)

LP = {"l1.5": 1.5, "l2": 2.0}  # the norms that have a p
NORMS = ("l1", "l1.5", "l2", "linf", "spectral", "nuclear", "rows-max", "k-support")
NEAREST_OF = ("l1", "l2", "linf", "spectral", "nuclear")
SAID = dict(zip(NORMS, NORMS, strict=True)) | {"l1": "ℓ1", "l1.5": "ℓ1.5", "l2": "ℓ2", "linf": "ℓ∞"}
BELOW = 0.05
NEAREST = 0.9
FALLING, STILL = 0.7, 0.95
ALIGNED = 0.95
SPEED = 0.2
KEPT = 0.2  # the share of entries that a target of zeros leaves
FIRM = 3.0  # times the threshold: from there on the firm map is the identity
CONTROL = "random directions"
ADAM = "Adam, ε = 0"
SHORTFALL = "median shortfall"
TURNS = "turns to the solution in"
BALL = "ends on the ball"


@dataclass(frozen=True)
class _Target(ElasticNet):
    """w = T(u) with a threshold t at a quantile of |u|, so that a share of about ``KEPT`` of the entries is not zero.

    ``hard`` keeps u where |u| ≥ t, the gradient of ½ Σ of the k largest u_j²: mirror descent with half the square of
    the k-support norm. ``soft`` subtracts t, as an elastic net whose λ moves with u, ``firm`` only up to ``FIRM`` t;
    both are monotone and homogeneous, and the gradient of no function.
    """

    lam: float = 0.0
    kind: str = "hard"
    separable = False

    def inverse_map(self, u: Tensor, dim: Any = None) -> Tensor:
        size = u.abs()
        above, below = size.flatten(-2).topk(kept(u.shape[-1]) + 1).values[..., -2:].unbind(-1)
        if self.kind == "hard":
            return torch.where(size >= above[..., None, None], u, 0.0)
        t = below[..., None, None]
        soft = (size - t).clamp(min=0)
        if self.kind == "firm":
            soft = torch.where(size > FIRM * t, size, FIRM / (FIRM - 1) * soft)
        return soft * u.sign()


@dataclass(frozen=True)
class Way:
    """A rule with its step size and potential, and the norm to whose SVM it should converge, if one is predicted; with
    weight decay, the norm on whose ball it should end. ``late`` ones were added when the others had been seen."""

    rule: Any
    lr: float
    norm: str = ""
    p: Any = 2.0
    late: bool = False

    @property
    def decay(self) -> float:
        return float(getattr(self.rule, "weight_decay", 0.0))


def moments(by: Any, beta: float = 0.9) -> Adam:
    """Adam without ε, whose second moments forget as fast as the first unless told otherwise."""
    return Adam(betas=(0.9, beta), eps=0.0, moments=by)


# Steps of about .1 in the Frobenius norm at d = 6. At p = 50 a step moves entries of size 30 by about .1/(p − 1).
WAYS = {
    "gradient descent": Way("mirror", 0.1, "l2"),
    "sign descent": Way(Sign(), 0.017, "linf"),
    "sign of momentum .9": Way(Sign(0.9), 0.017, "linf"),
    "Lion": Way(Lion(), 0.017, "linf"),
    "Lion, steps a quarter": Way(Lion(), 0.004, "linf"),
    "Adam, ε = 0": Way(Adam(eps=0.0), 0.017, "linf"),
    "Adam, ε = 0, β₂ = .9": Way(moments("entry"), 0.017, "linf"),
    "Adam, ε = 1e-8": Way(Adam(), 0.017),
    "Adam, ε = 1e-3": Way(Adam(eps=1e-3), 0.017),
    "AdamW, decay .1": Way(Adam(weight_decay=0.1), 0.017, "linf"),
    "spectral descent": Way(Spectral(), 0.05, "spectral"),
    "Muon, exact": Way(Muon(weight_decay=0.0), 0.05, "spectral"),
    "Muon, Newton-Schulz": Way(Muon(newton_schulz=5, weight_decay=0.0), 0.05, "spectral"),
    "Muon, decay .1": Way(Muon(), 0.05, "spectral"),
    "largest coordinate": Way(Coordinate(), 0.1, "l1"),
    "mirror descent, p = 1.05": Way("mirror", 0.1, p=1.05),
    "mirror descent, p = 50": Way("mirror", 0.1 * 30.0**48, p=50.0),
    "sign steps in the dual of p = 1.5": Way(Sign(), 0.017, "linf", 1.5),
    "MirrorAdamW p = 1.5, per entry": Way(moments("entry", 0.999), 0.017, "", 1.5),
    "MirrorAdamW p = 1.5, per entry, β₂ = .9": Way(moments("entry"), 0.017, "linf", 1.5),
    "MirrorAdamW p = 1.5, per row, β₂ = .9": Way(moments("row"), 0.017, "", 1.5),
    "MirrorAdamW p = 1.5, per tensor, β₂ = .9": Way(moments("tensor"), 0.017, "l1.5", 1.5),
    "Adam per row, ε = 0, β₂ = .9": Way(moments("row"), 0.017, "rows-max"),
    "sign steps in the dual of p = 1.5, short": Way(Sign(), 0.001, "linf", 1.5, late=True),
    "MirrorAdamW p = 1.5, per entry, β₂ = .9, short": Way(moments("entry"), 0.001, "linf", 1.5, late=True),
    "AdamW, decay .1, β₂ = .9": Way(Adam((0.9, 0.9), weight_decay=0.1), 0.017, "linf", late=True),
    "hard target": Way("mirror", 0.1, "k-support", _Target(kind="hard")),
    "soft target": Way("mirror", 0.1, p=_Target(kind="soft")),
    "firm target": Way("mirror", 0.1, p=_Target(kind="firm")),
}


def kept(d: int) -> int:
    """k of the k-support norm of d × d matrices."""
    return round(KEPT * d * d)


@dataclass(frozen=True)
class Config(Problems):
    n: int = 4
    T: int = 5
    d: int = 6
    problems: int = 50
    start: float = 0.5  # size of the entries of a random start
    steps: int = 10_000
    records: int = 8
    draws: int = 2000  # random combinations of rows for the control

    @property
    def grid(self) -> Any:
        """The recorded steps, a third of them among these."""
        return log_grid(self.steps, self.records, self.steps // 3)[-self.records :]

    def twice(self) -> tuple[Problem[Floats], Floats]:
        """Every problem twice, and starts: zero, and random."""
        noise = np.random.default_rng(self.seed).standard_normal((self.problems, self.d, self.d))
        return some(self.batch(), np.tile(np.arange(self.problems), 2)), np.concatenate([0 * noise, self.start * noise])


PROFILES = {"quick": replace(Config(), problems=6, steps=3000), "paper": Config()}


def run(config: Config, work: Work) -> Arrays:
    """Shortfalls (rules, norms, records, runs), and growth of the smallest lead per step (rules, runs) since a third of
    them; of rules with weight decay ⟨−∇L, W⟩ and ‖W‖ over their largest values."""
    parts = work.each(_train, [(config, name) for name in WAYS], share=0.9)
    done = {name: part for answers in parts for name, part in answers.items()} | {CONTROL: _control(config)}
    every = np.concatenate([part["which"] for part in done.values()])
    chosen, which = np.unique(every, axis=0, return_inverse=True)
    pieces = [chosen[list(block)] for block in blocks(len(chosen), 100)]
    margins = work.each(_margins, [(config, rows, norm) for norm in NORMS for rows in pieces], share=0.1)
    best = np.concatenate(margins).reshape(len(NORMS), -1)[:, which.reshape(len(done), 1, -1)]
    shortfall = [1 - part["lead"] / best[:, k] for k, part in enumerate(done.values())]
    decays = [name for name, way in WAYS.items() if way.decay]
    return {
        "rules": np.array(list(done)),
        "steps": config.grid,
        "shortfall": np.stack(shortfall),
        "growth": np.stack([part["growth"] for part in done.values()]),
        "decays": np.array(decays),
        **{key: np.stack([done[name][key] for name in decays]) for key in ("aligned", "radius")},
    }


def _train(config: Config, name: str) -> dict[str, Arrays]:
    """Of the runs of a rule their leads over each norm (norms, records, runs), and which tokens of which problem they
    selected (runs, 1 + n); of a hard target also those of the average of W/‖W‖₂ over its second half."""
    (problem, W0), way, grid = config.twice(), WAYS[name], config.grid
    late = np.linspace(config.steps // 2, config.steps, 51).astype(int)
    every = np.union1d(grid, late) if way.norm == "k-support" else grid
    run = simulate(problem, p=way.p, lr=way.lr, steps=config.steps, rule=way.rule, W0=W0, record=every)
    # A run in which every trial has stopped has no later records; it stays where it is.
    last = np.minimum(np.searchsorted(run.steps, grid), len(run.steps) - 1)
    leads = {name: _leads(config, problem, run.W[last], run.alpha)}
    if way.norm == "k-support":
        directions = run.W[run.steps >= config.steps // 2]
        W = (directions / np.linalg.norm(directions, axis=(-2, -1), keepdims=True)).mean(0)
        leads[f"{name}, averaged"] = _leads(config, problem, np.stack([W] * len(grid)), run.alpha)
    if way.decay:  # ⟨−∇L, W⟩ and ‖W‖ at the end, (runs,), over the largest that ‖W‖ ≤ 1/λ allows
        W = run.W[last[-1]]
        g = np.asarray(gradient(problem, W=W))
        aligned = -way.decay * (g * W).sum((-2, -1)) / Norm(way.norm, W.shape[-2:]).duals(g)
        leads[name] |= {"aligned": aligned, "radius": way.decay * sizes(W, way.norm)}
    return leads


def _leads(config: Config, problem: Problem[Floats], W: Floats, alpha: Any) -> Arrays:
    lead = np.asarray(leads(problem, W=W, alpha=alpha)).min((-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        over = np.stack([lead / sizes(W, norm) for norm in NORMS])
    which = np.column_stack([np.arange(len(alpha)) % config.problems, alpha])
    grid, third = config.grid, config.grid.tolist().index(config.steps // 3)
    return {"lead": over, "which": which, "growth": (lead[-1] - lead[third]) / (grid[-1] - grid[third])}


def sizes(W: Floats, norm: str) -> Floats:
    """‖W‖ of (..., d, d)."""
    if norm in LP:
        return np.asarray(lp_norm(W, LP[norm]))
    return Norm(norm, W.shape[-2:], kept(W.shape[-1])).sizes(W).reshape(W.shape[:-2])


def _margins(config: Config, rows: Any, norm: str) -> Floats:
    """The largest margin in a norm for each row (problem, tokens), NaN where no weights select these tokens."""
    which: Any = {"p": LP[norm]} if norm in LP else {"norm": norm}
    k = kept(config.d) if norm == "k-support" else None
    solution = att_svm(config.drawn(rows[:, 0].tolist()), rows[:, 1:], k=k, throw=False, **which)
    return np.where(solution.optimal, solution.margin, np.nan)


def _control(config: Config) -> Arrays:
    """Random combinations of the rows (x_α − x_t)zᵀ of the best tokens, the first of each problem that selects these;
    zero, which has no direction, where none of the draws does."""
    problem, _ = config.twice()
    X, z, alpha = problem.X, problem.z, problem.best_tokens().astype(int)
    offsets = np.take_along_axis(X, alpha[..., None, None], 2) - X
    rng, W = np.random.default_rng((config.seed, 1)), np.zeros((len(X), config.d, config.d))
    for k in range(len(X)):
        weights = rng.exponential(size=(config.draws, config.n, config.T))
        drawn = np.einsum("rnt,ntd,ne->rde", weights, offsets[k], z[k])
        lead = np.einsum("ntd,rde,ne->rnt", offsets[k], drawn, z[k])
        lead[:, np.arange(config.n), alpha[k]] = np.inf
        good = np.flatnonzero(lead.min((1, 2)) > 0)
        if len(good):
            W[k] = drawn[good[0]]
    return _leads(config, problem, np.stack([W] * len(config.grid)), alpha)


def own_norm(rule: str) -> str:
    """The norm to whose solution a rule is to converge, empty if none is predicted, as with weight decay."""
    way = WAYS.get(rule)
    return way.norm if way is not None and not way.decay else ""


def shortfalls(data: Arrays, rule: str, *, at: int = -1) -> dict[str, float]:
    """The median shortfall of a rule in every norm at a record, by default the last."""
    short = data["shortfall"][data["rules"].tolist().index(rule), :, at]
    return dict(zip(NORMS, map(median, short), strict=True))


def measure(data: Arrays) -> Rows:
    rules = data["rules"].tolist()
    for rule, short in zip(rules, data["shortfall"], strict=True):
        if own_norm(rule):
            yield _judged(data, rule, short[:, -1])
        for norm, middle in shortfalls(data, rule).items():
            yield alone(f"{SHORTFALL}, {rule}", middle, column=norm)
    for rule, aligned, radius in zip(data["decays"].tolist(), data["aligned"], data["radius"], strict=True):
        least, way = float(np.median(aligned)), WAYS[rule]  # NaN if any run diverged
        quantity, why = f"{rule}: {BALL} of the {SAID[way.norm]} norm", "⟨−∇L, W⟩ over its largest value, median."
        yield threshold(quantity, f"at least {number(ALIGNED)}", least, least >= ALIGNED, why, late=way.late)
        yield alone(f"{rule}: λ‖W‖, median", median(radius))
    growth, law = float(np.median(data["growth"][rules.index(ADAM)])), -0.5 * float(np.log(Adam().betas[1]))
    criterion, holds = f"{number(law)} ± {percent(SPEED)}", abs(growth - law) <= SPEED * law
    yield threshold(f"{ADAM}: growth of the smallest lead per step", criterion, growth, holds, "−½ log β₂; median.")
    control, criterion = min(shortfalls(data, CONTROL).values()), f"above {percent(BELOW)} in every norm"
    yield threshold(f"{SHORTFALL}, least of {CONTROL}", criterion, control, control > BELOW)


def _judged(data: Arrays, rule: str, ends: Any) -> Measurement:
    """Whether a rule converges to the solution of its norm; if not, whether it is slow or stops short. ``ends`` are its
    shortfalls (norms, runs)."""
    own, steps = own_norm(rule), data["steps"].tolist()
    known = ends[:, np.isfinite(ends).all(0)]
    others = [NORMS.index(norm) for norm in NEAREST_OF if norm != own]
    first = known[NORMS.index(own)] < known[others].min(0)
    end, before = (shortfalls(data, rule, at=at)[own] for at in (-1, steps.index(steps[-1] // 3)))
    left, holds = end / before, bool(end < BELOW and first.mean() >= NEAREST)
    speed = "slow" if left <= FALLING else "stops short" if left >= STILL else "slow, or stops short"
    why = f"{number(left, 2)} of what it was at a third of the steps{'' if holds else f': {speed}'}."
    criterion = f"below {percent(BELOW)}, nearest in {percent(NEAREST)}"
    ours = f"{percent(end, 1)}, nearest in {first.sum()} of {first.size}"
    quantity = f"{rule}: {TURNS} {SAID[own]}"
    return threshold(quantity, criterion, ours, holds, why, late=WAYS[rule].late, value=end)


def tell(data: Arrays, table: Measured) -> Told:
    judged = [row for row in table if TURNS in row.quantity]
    failed = [
        f"{row.quantity.split(':')[0]} ({row.ours.split(',')[0]}, {row.why.split(': ')[-1].rstrip('.')})"
        for row in judged
        if row.verdict != MET
    ]
    ended = [f"{row.quantity.split(':')[0]} {row.ours}" for row in table if BALL in row.quantity]
    return Told(
        f"{len(judged) - len(failed)} of {len(judged)} rules converge to the solution of the norm predicted for them",
        f"After {data['steps'][-1]} steps these have not: {', '.join(failed) or 'none'}. With weight decay ⟨−∇L, W⟩ "
        f"reaches these shares of its largest value on the ball: {', '.join(ended)}.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Shortfalls in a rule's own norm over the steps, and at the end in every norm."""
    fig, (left, right) = row_of_axes(2, width=12, height=6.2, ratios=[1.0, 1.15])
    every = data["rules"].tolist()
    for k, rule in enumerate(filter(own_norm, every)):
        style: Any = {"color": COLOURS[k % len(COLOURS)], "linestyle": LINES[k // len(COLOURS) % len(LINES)]}
        course = [shortfalls(data, rule, at=at)[own_norm(rule)] for at in range(len(data["steps"]))]
        left.plot(data["steps"], np.maximum(course, 1e-4), label=rule, **style)
    left.axhline(BELOW, color="0.6", linewidth=0.8)
    panel(left, "Shortfall in the rule's own norm", "steps", "median", log="xy")
    left.legend(loc="lower left", fontsize=6.5)
    ends = np.array([list(shortfalls(data, rule).values()) for rule in every])
    right.imshow(np.log10(np.clip(ends, 1e-3, 1)), cmap=colour_map(RAMP[::-1]), vmin=-2.5, vmax=0, aspect="auto")
    for (i, j), end in np.ndenumerate(ends):
        weight, colour = "bold" if NORMS[j] == own_norm(every[i]) else "normal", "white" if end < 0.06 else "black"
        right.text(j, i, f"{end:.3f}", fontsize=6.5, fontweight=weight, ha="center", va="center", color=colour)
    right.set_xticks(range(len(NORMS)), SAID.values(), fontsize=6)
    right.set_yticks(range(len(every)), every, fontsize=7)
    right.grid(visible=False)
    return fig
