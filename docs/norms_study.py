"""The study of docs/math/norms.md: which solution does an optimizer choose?

Run ``python docs/norms_study.py``; it prints the table of that page and the verdicts (some minutes).

**Conjecture.** Steepest descent in a norm, W⁺ = W − ηD with D = argmax{⟨∇L, D⟩ : ‖D‖ ≤ 1}, turns attention to the
attention SVM of that norm, for the tokens it selects. For linear models it is proved: sign descent and Adam, ℓ∞ (Zhang,
Zou and Cao 2024); spectral descent and Muon, the spectral norm (Fan, Schmidt and Thrampoulidis 2025). For attention we
know of no proof.

Solutions in ℓ1, ℓ∞ and the spectral norm need not be unique, so that margins are compared and not directions: the
*shortfall* of W in a norm is 1 − (smallest lead of W/‖W‖)/(margin of the attention SVM). A rule that the conjecture
speaks of passes if its median shortfall in its own norm is below ``BELOW``, and its own norm is the nearest of all in
at least ``NEAREST`` of the runs; the control, random directions that select the same tokens, must not pass. Both
thresholds were written before the first run. Of rules with an ε, with weight decay, or with moments in a dual space
nothing is asked: where they end is what is to be found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import mirrormax as mm
from mirrormax.attention import leads
from mirrormax.dynamics import Adam, Coordinate, Lion, Muon, Sign, SimulationOptions, Spectral
from mirrormax.svm import Norm

NORMS = ("l1", "l2", "linf", "spectral", "nuclear")
BELOW = 0.05
NEAREST = 0.9
CONTROL = "random directions"


@dataclass(frozen=True)
class Way:
    """A rule with its step size, p, and the norm that the conjecture has for it, if it speaks of it."""

    rule: Any
    lr: float
    norm: str = ""
    p: float = 2.0


# Step sizes: steps of about .1 in the Frobenius norm at d = 6.
WAYS = {
    "gradient descent": Way("mirror", 0.1, "l2"),
    "sign descent": Way(Sign(), 0.017, "linf"),
    "sign of momentum .9": Way(Sign(0.9), 0.017, "linf"),
    "Lion": Way(Lion(), 0.017, "linf"),
    "Adam, ε = 0": Way(Adam(eps=0.0), 0.017, "linf"),
    "Adam, ε = 1e-8": Way(Adam(), 0.017),
    "Adam, ε = 1e-3": Way(Adam(eps=1e-3), 0.017),
    "AdamW, decay .1": Way(Adam(weight_decay=0.1), 0.017),
    "spectral descent": Way(Spectral(), 0.05, "spectral"),
    "Muon, exact": Way(Muon(weight_decay=0.0), 0.05, "spectral"),
    "Muon, Newton-Schulz": Way(Muon(newton_schulz=5, weight_decay=0.0), 0.05, "spectral"),
    "Muon, decay .1": Way(Muon(), 0.05),
    "largest coordinate": Way(Coordinate(), 0.1, "l1"),
    "mirror descent, p = 1.05": Way("mirror", 0.1, "", 1.05),
    "mirror descent, p = 50": Way("mirror", 0.1, "", 50.0),
    "MirrorAdamW p = 1.5, per entry": Way(Adam(eps=0.0), 0.017, "", 1.5),
}


@dataclass(frozen=True)
class Config:
    n: int = 4
    T: int = 5
    d: int = 6
    problems: int = 50
    start: float = 0.5  # size of the entries of a random start
    steps: int = 3000
    draws: int = 2000  # random combinations of rows for the control
    seed: int = 0


def of_way(config: Config, way: Way) -> np.ndarray[Any, Any]:
    """Shortfalls (norms, runs) at the end of the runs of a rule, from zero and from random starts."""
    problem, W0 = problems(config)
    last = SimulationOptions(weights="last")
    run = mm.simulate(**problem, p=way.p, lr=way.lr, steps=config.steps, rule=way.rule, W0=W0, record=2, options=last)
    return shortfalls_of(problem, run.W[-1], run.alpha)


def problems(config: Config) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Every problem twice, and starts: zero, and random."""
    drawn = [mm.data.sphere_problem(config.seed + k, config.n, config.T, config.d) for k in range(config.problems)]
    problem = {name: np.stack([getattr(one, name) for one in drawn]) for name in ("X", "y", "z", "v")}
    noise = np.random.default_rng(config.seed).standard_normal((config.problems, config.d, config.d))
    twice = {name: np.concatenate([array, array]) for name, array in problem.items()}
    return twice, np.concatenate([0 * noise, config.start * noise])


def shortfalls_of(problem: dict[str, Any], W: Any, alpha: Any) -> np.ndarray[Any, Any]:
    """(norms, problems), NaN where no weights select these tokens."""
    X, z = problem["X"], problem["z"]
    lead = np.asarray(leads(X, z, W=W, alpha=alpha)).min((-2, -1))
    rows = []
    for name in NORMS:
        settings: Any = {"p": 2} if name == "l2" else {"norm": name}
        solution = mm.att_svm(X, z, alpha, throw=False, **settings)
        size = np.linalg.norm(W, axis=(-2, -1)) if name == "l2" else Norm(name, W.shape[-2:]).sizes(W)
        rows.append(1 - lead / (size * np.where(solution.optimal, solution.margin, np.nan)))
    return np.stack(rows)


def of_control(config: Config) -> np.ndarray[Any, Any]:
    """The same of random combinations of the rows (x_α − x_t)zᵀ of the best tokens that select these."""
    problem, _ = problems(config)
    rng = np.random.default_rng((config.seed, 1))
    X, z = problem["X"], problem["z"]
    alpha = (problem["y"][..., None] * (X @ problem["v"][:, None, :, None])[..., 0]).argmax(-1)
    offsets = np.take_along_axis(X, alpha[..., None, None], 2) - X
    W = np.full((len(X), config.d, config.d), np.nan)
    for k in range(len(X)):
        weights = rng.exponential(size=(config.draws, config.n, config.T))
        drawn = np.einsum("rnt,ntd,ne->rde", weights, offsets[k], z[k])
        lead = np.einsum("ntd,rde,ne->rnt", offsets[k], drawn, z[k])
        lead[:, np.arange(config.n), alpha[k]] = np.inf
        good = np.flatnonzero(lead.min((1, 2)) > 0)
        if len(good):
            W[k] = drawn[good[0]]
    chosen = np.isfinite(W).all((1, 2))
    shortfalls = shortfalls_of(problem, np.where(chosen[:, None, None], W, 1.0), alpha)
    return np.where(chosen, shortfalls, np.nan)


def main() -> None:
    config, passed, asked = Config(), 0, 0
    print("| rule | " + " | ".join(NORMS) + " | own norm nearest |")
    print("|---" * (len(NORMS) + 2) + "|")
    for name in (*WAYS, CONTROL):
        shortfalls = of_control(config) if name == CONTROL else of_way(config, WAYS[name])
        shortfalls = shortfalls[:, np.isfinite(shortfalls).all(0)]
        medians, share = np.median(shortfalls, 1), "—"
        norm = WAYS[name].norm if name in WAYS else ""
        if norm:
            own = NORMS.index(norm)
            first = shortfalls.argmin(0) == own
            holds = medians[own] < BELOW and first.mean() >= NEAREST
            asked, passed = asked + 1, passed + holds
            share = f"{first.sum()} of {first.size}: {'passes' if holds else 'fails'}"
        print(f"| {name} | " + " | ".join(f"{median:.4f}" for median in medians) + f" | {share} |", flush=True)
    print(f"\n{passed} of {asked} rules turn to the solution of the norm that the conjecture has for them.")


if __name__ == "__main__":
    main()
