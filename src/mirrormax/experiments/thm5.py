"""Theorem 5: the joint regularisation path of W and v on Example 2 turns to both max-margin solutions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import COLOURS, MARKERS, row_of_axes
from mirrormax.data import example2
from mirrormax.dynamics import joint_regularization_path
from mirrormax.experiments._contract import Arrays, Comparison, Rows, claim
from mirrormax.experiments._trials import name_of
from mirrormax.experiments._work import Work
from mirrormax.svm import att_svm, label_margin, lp_svm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Theorem 5: the joint regularisation path turns to both SVMs"
SHORT = "Theorem 5"
PLACE = 140
SECONDS = 1
BELOW = 1e-3
TRAINED = (
    "Training (Fig 6) follows one path from zero and may end in another selection; the regularisation path is the best "
    "of several starts."
)


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    scale: float = 0.5  # the authors ran half of what the paper prints
    smallest: float = 1.0
    largest: float = 10000.0
    radii: int = 9
    random_starts: int = 4
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), radii=33, largest=1e6, random_starts=16)}


def run(config: Config, work: Work) -> Arrays:
    data: Arrays = {"p": np.array(config.p), "radii": np.geomspace(config.smallest, config.largest, config.radii)}
    for p, found in zip(config.p, work.map(_path, [(config, p) for p in config.p]), strict=True):
        data |= {f"{name}/{name_of(p)}": array for name, array in found.items()}
    return data


def _path(task: tuple[Config, float]) -> Arrays:
    config, p = task
    problem = example2()
    X, y = config.scale * problem.X, problem.y
    z = X[:, 0]
    radii = np.geomspace(config.smallest, config.largest, config.radii)
    path = joint_regularization_path(X, y, z, p=p, radii=radii, random_starts=config.random_starts, seed=config.seed)
    selections = np.array(list(product(range(X.shape[1]), repeat=len(y))))
    margins = np.asarray(label_margin(X, y, selections, p=p))
    alpha = selections[int(margins.argmax())]
    W_mm, v_mm = att_svm(X, z, alpha, p=p).W, lp_svm(X[np.arange(len(y)), alpha], y, p=p).v
    return {
        "D_W": np.asarray(path.divergence_to(W_mm)),
        "D_v": np.asarray(path.head_divergence_to(v_mm)),
        "residual": np.maximum(path.residual, path.head_residual),
        "head_radii": np.asarray(path.head_radii),
        "alpha": np.asarray(path.alpha),
        "widest": alpha,
        "margins": np.sort(margins)[::-1],
    }


def summary(data: Arrays) -> Rows:
    rows = {}
    for p in data["p"]:
        key = name_of(p)
        rows[f"p={p:g}"] = {
            **{f"token of sample {i + 1}": int(token) for i, token in enumerate(data[f"alpha/{key}"])},
            "divergence of W": float(data[f"D_W/{key}"][-1]),
            "divergence of v": float(data[f"D_v/{key}"][-1]),
            "largest residual": float(data[f"residual/{key}"].max()),
            "widest label margin": float(data[f"margins/{key}"][0]),
            "next label margin": float(data[f"margins/{key}"][1]),
        }
    return rows


def shows(data: Arrays) -> str:
    worst = {part: max(float(data[f"D_{part}/{name_of(p)}"][-1]) for p in data["p"]) for part in ("W", "v")}
    chosen = "; ".join(f"p = {p:g}: {data[f'alpha/{name_of(p)}'].tolist()}" for p in data["p"])
    return (
        "Minimised together over growing balls, W and v turn to the attention SVM and the SVM of the selection with "
        f"the largest label margin ({chosen}), with divergences of at most {worst['W']:.1g} and {worst['v']:.1g}. "
        "The radius of v grows like the root of that of W, so that no sample outweighs the others for good."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"]:
        key = name_of(p)
        alpha, widest = data[f"alpha/{key}"].tolist(), data[f"widest/{key}"].tolist()
        rows.append(
            claim(
                f"selected tokens, p = {p:g}",
                "largest label margin",
                f"{alpha}, widest {widest}",
                alpha == widest,
                TRAINED,
            )
        )
        for part, limit in (("W", "attention SVM"), ("v", "SVM")):
            D = data[f"D_{part}/{key}"]
            text = f"D = {D[-1]:.1g} at R = {data['radii'][-1]:g}"
            why = f"Met means below {BELOW:g}, a bar of ours."
            rows.append(claim(f"limit of {part}, p = {p:g}", f"the {limit}", text, bool(D[-1] < BELOW), why))
    return rows


def draw(data: Arrays) -> Figure:
    """Divergences of W and v along the joint regularisation path."""
    fig, axes = row_of_axes(2, width=8.5, height=3.3)
    for ax, part, limit in zip(axes, ("W", "v"), ("the attention SVM", "the SVM"), strict=True):
        for p, colour, marker in zip(data["p"], COLOURS, MARKERS, strict=False):
            # A divergence of exactly 0 has no place on a logarithmic axis.
            D = np.maximum(data[f"D_{part}/{name_of(p)}"], 1e-16)
            ax.plot(data["radii"], D, color=colour, marker=marker, markersize=5, label=f"p = {p:g}")
        ax.set(xscale="log", yscale="log", xlabel="radius R of W", title=f"divergence of {part} to {limit}")
        ax.title.set_fontsize(10)
    axes[0].legend(loc="lower left")
    return fig
