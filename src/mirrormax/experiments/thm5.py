"""Theorem 5: the joint regularisation path of W and v, and how its two radii must grow.

The theorem lets r and R grow in any way, and asks for Assumption B: reading anything but the tokens α costs label
margin. B can hold only if every chosen token is a label support vector, y_i v_mmᵀx_iα = 1 for all i (else a sample with
margin to spare may read other tokens at no cost), which most random problems do not have. So the path is followed on
Example 2, where B is not refuted, and on random problems, with r = √R, R and R², and each is measured against the
attention SVM and the SVM of the selection with the largest label margin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.data import example2, sphere_problem
from mirrormax.dynamics import joint_regularization_path
from mirrormax.experiments._contract import (
    DIFFERS,
    ERRATUM,
    MET,
    Arrays,
    Claim,
    Comparison,
    Rows,
    number,
    our_bar,
    ours_alone,
)
from mirrormax.experiments._trials import name_of
from mirrormax.experiments._work import Work
from mirrormax.svm import att_svm, label_margin, lp_svm
from mirrormax.theory import estimate_nu

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Theorem 5: the joint regularisation path of W and v"
SHORT = "Theorem 5"
PLACE = 140
SECONDS = 20
BELOW = 1e-3
SUPPORT = 1e-6  # beyond margin 1
FOUND = 1e-6  # a first-order residual above this is no minimiser, and is left out
GROWTHS = {"√R": 0.5, "R": 1.0, "R²": 2.0}
TRAINED = (
    "Training (Fig 6) follows one path from zero and may end in another selection; the regularisation path is the best "
    "of several starts."
)


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    scale: float = 0.5  # the authors ran half of what the paper prints
    smallest: float = 1.0
    largest: tuple[float, ...] = (3000.0, 3000.0, 300.0)  # for each growth of r: at r = 10⁷ no digits are left
    radii: int = 4
    problems: int = 2
    n: int = 3
    T: int = 3
    d: int = 4
    random_starts: int = 3
    samples: int = 200  # of W, for Assumption B
    seed: int = 0


PROFILES = {
    "quick": Config(),
    "paper": replace(Config(), radii=33, largest=(1e5, 1e5, 300.0), random_starts=16, problems=40),
}


def run(config: Config, work: Work) -> Arrays:
    """For every p: D_W, D_v (growths, problems, radii), Example 2 first; what was selected and what is widest."""
    cases = [None, *range(config.seed, config.seed + config.problems)]
    data: Arrays = {"p": np.array(config.p), "radii": np.stack(_radii(config))}
    found = iter(work.map(_path, [(config, p, case) for p, case in product(config.p, cases)]))
    for p in config.p:
        parts = [next(found) for _ in cases]
        data |= {f"{name}/{name_of(p)}": np.stack([part[name] for part in parts]) for name in parts[0] if name in ALL}
        data |= {f"{name}/{name_of(p)}": parts[0][name] for name in parts[0] if name not in ALL}
    return data


ALL = ("D_W", "D_v", "residual", "supported", "refuted", "same")


def _radii(config: Config) -> list[np.ndarray[Any, Any]]:
    """R for each growth of r."""
    return [np.geomspace(config.smallest, largest, config.radii) for largest in config.largest]


def _problem(config: Config, case: int | None) -> tuple[Any, Any, Any]:
    problem = example2() if case is None else sphere_problem(case, config.n, config.T, config.d)
    if case is not None:
        return problem.X, problem.y, problem.z
    X = config.scale * problem.X
    return X, problem.y, X[:, 0]


def _path(task: tuple[Config, float, int | None]) -> Arrays:
    config, p, case = task
    X, y, z = _problem(config, case)
    selections = np.array(list(product(range(X.shape[1]), repeat=len(y))))
    margins = np.asarray(label_margin(X, y, selections, p=p))
    widest = selections[int(margins.argmax())]
    chosen = X[np.arange(len(y)), widest]
    W_mm, v_mm = att_svm(X, z, widest, p=p).W, lp_svm(chosen, y, p=p).v
    paths = [
        joint_regularization_path(
            X,
            y,
            z,
            p=p,
            radii=radii,
            head_radii=radii**power,
            random_starts=config.random_starts,
            seed=config.seed,
        )
        for power, radii in zip(GROWTHS.values(), _radii(config), strict=True)
    ]
    residual = np.stack([np.maximum(path.residual, path.head_residual) for path in paths])
    found = residual <= FOUND
    return {
        "D_W": np.where(found, np.stack([np.asarray(path.divergence_to(W_mm)) for path in paths]), np.nan),
        "D_v": np.where(found, np.stack([np.asarray(path.head_divergence_to(v_mm)) for path in paths]), np.nan),
        "residual": residual,
        "same": np.array([(np.asarray(path.alpha) == widest).all() for path in paths]),
        "supported": np.array(bool((y * (chosen @ v_mm) <= 1 + SUPPORT).all())),
        "refuted": np.array(not estimate_nu(X, y, z, alpha=widest, p=p, samples=config.samples).holds),
        "alpha": np.asarray(paths[0].alpha),
        "widest": widest,
        "margins": np.sort(margins)[::-1],
    }


def ends(data: Arrays, part: str, p: float) -> np.ndarray[Any, Any]:
    """D at the largest radius, (problems, growths), Example 2 first."""
    return np.asarray(data[f"D_{part}/{name_of(p)}"][..., -1])


def summary(data: Arrays) -> Rows:
    rows = {}
    for p in data["p"]:
        key = name_of(p)
        for g, growth in enumerate(GROWTHS):
            rows[f"p={p:g}, r = {growth}"] = {
                "Example 2, divergence of W": float(ends(data, "W", p)[0, g]),
                "Example 2, divergence of v": float(ends(data, "v", p)[0, g]),
                "largest residual": float(data[f"residual/{key}"][:, g].max()),
            }
    return rows


def _counts(data: Arrays) -> tuple[int, int, int]:
    """Random problems in which every token is a label support vector, those in which B is refuted, and all."""
    supported = np.concatenate([data[f"supported/{name_of(p)}"][1:] for p in data["p"]])
    refuted = np.concatenate([data[f"refuted/{name_of(p)}"][1:] for p in data["p"]])
    return int(supported.sum()), int(refuted.sum()), supported.size


def shows(data: Arrays) -> str:
    told = "; ".join(
        f"r = {growth}: "
        + " and ".join(number(max(float(ends(data, part, p)[0, g]) for p in data["p"]), 1) for part in ("W", "v"))
        for g, growth in enumerate(GROWTHS)
    )
    supported, refuted, count = _counts(data)
    medians = ", ".join(number(_median(data, g), 1) for g in range(len(GROWTHS)))
    return (
        f"It matters how the radii grow where Assumption B fails: W's median divergence is {medians} for r = √R, R, "
        f"R². In {count - supported} of {count} random problems some chosen token is no label support vector, so that "
        f"it cannot hold (a search for a W that refutes it finds one in {refuted}). "
        f"On Example 2, W and v end at most so far from the attention SVM and the SVM of the widest selection: {told}."
    )


def _median(data: Arrays, growth: int) -> float:
    """The median divergence of W over all p and random problems at the largest radius."""
    return float(np.nanmedian(np.concatenate([ends(data, "W", p)[1:, growth] for p in data["p"]])))


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"].tolist():
        key, column = name_of(p), f"p = {p:g}"
        alpha, widest = data[f"alpha/{key}"].tolist(), data[f"widest/{key}"].tolist()
        told = ", ".join(str(token + 1) for token in alpha)
        verdict = MET if alpha == widest else DIFFERS
        quantity = "Example 2: selected tokens are those of the largest label margin"
        rows.append(
            Comparison(quantity, "yes", f"{told}: {'yes' if alpha == widest else 'no'}", verdict, TRAINED, column)
        )
        refuted = bool(data[f"refuted/{key}"][0])
        rows.append(ours_alone("Example 2: Assumption B", "refuted" if refuted else "not refuted", column=column))
        for part in ("W", "v"):
            D = ends(data, part, p)[0]
            for g, growth in enumerate(GROWTHS):
                bar = f"below {number(BELOW)} at R = {data['radii'][g, -1]:,.0f}"
                quantity = f"Example 2: D of {part} to its SVM, r = {growth}"
                rows.append(our_bar(quantity, bar, number(D[g], 2), bool(D[g] < BELOW), column=column, late=True))
        supported = data[f"supported/{key}"][1:]
        counted = f"{int(data[f'refuted/{key}'][1:].sum())} of {len(supported)}; {int((~supported).sum())}"
        quantity = "random problems: Assumption B refuted; some token no label support vector"
        rows.append(ours_alone(quantity, counted, NOT_B, column=column))
        for g, growth in enumerate(GROWTHS):
            D = ends(data, "W", p)[1:, g]
            found = D[np.isfinite(D)]
            told = f"{number(np.median(found), 2)}; {int((found < BELOW).sum())} of {len(found)}" if len(found) else "—"
            quantity = f"random problems: median D of W; how many below {number(BELOW)}, r = {growth}"
            rows.append(ours_alone(quantity, told, RADII, column=column))
    return rows


NOT_B = "A sample whose token has label margin to spare can read other tokens at no cost: ν = 0."
RADII = (
    "A sample with more label margin than the least pulls on W with e^{−r·excess}: it matters in the limit unless r/R "
    "goes to 0."
)


def claims(data: Arrays) -> list[Claim]:
    supported, _, count = _counts(data)
    slow, fast = _median(data, 0), _median(data, -1)
    holds = all((ends(data, part, p)[0] < BELOW).all() for part in ("W", "v") for p in data["p"])
    measured = (
        f"Example 2: {'yes, for r = √R, R and R²' if holds else 'not for every r'}; random problems, "
        f"{count - supported} of {count} without Assumption B: median D {number(slow, 1)} with r = √R, "
        f"{number(fast, 1)} with r = R²"
    )
    statement = "The joint path of W and v turns to both SVMs, however the radii grow (Theorem 5)"
    return [Claim(statement, measured, ERRATUM if fast > 10 * slow else MET if holds else DIFFERS)]


def draw(data: Arrays) -> Figure:
    """Divergence of W along the joint path: Example 2, and random problems for each growth of the head's radius."""
    fig, axes = row_of_axes(1 + len(GROWTHS), width=13, height=3.5)
    for p in data["p"]:
        D = np.maximum(data[f"D_W/{name_of(p)}"], 1e-16)  # exactly 0 has no place on a logarithmic axis
        axes[0].plot(data["radii"][0], D[0, 0], label=f"p = {p:g}", **look_of(p).style(markersize=5))
        for g, ax in enumerate(axes[1:]):
            supported = data[f"supported/{name_of(p)}"]
            for k in range(1, len(D)):
                style: dict[str, Any] = {"linestyle": "-" if supported[k] else ":", "linewidth": 1.2, "alpha": 0.8}
                ax.plot(data["radii"][g], D[k, g], color=look_of(p).colour, **style)
    axes[0].set_title("Example 2, r = √R", fontsize=10)
    for ax, growth in zip(axes[1:], GROWTHS, strict=True):
        ax.set_title(f"random problems, r = {growth}", fontsize=10)
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel="radius R of W", ylim=(1e-10, 3))
    axes[0].set_ylabel("divergence of W to the attention SVM")
    axes[0].legend(loc="lower left", fontsize=8)
    axes[1].plot([], [], color="black", linestyle="-", label="all tokens label support vectors")
    axes[1].plot([], [], color="black", linestyle=":", label="not all: Assumption B fails")
    axes[1].legend(loc="lower left", fontsize=8)
    slow, fast = number(_median(data, 0), 1), number(_median(data, -1), 1)
    told = f"median D on random problems {slow} for r = √R, {fast} for r = R²"
    if _median(data, -1) > 10 * _median(data, 0):
        headline(fig, f"The joint path ends at the attention SVM only if v's ball grows slowly: {told}")
    else:
        headline(fig, f"The joint path: {told}")
    return fig
