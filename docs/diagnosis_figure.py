"""The four signatures of failure, drawn: ``python docs/diagnosis_figure.py`` writes ``docs/images/diagnosis.png``."""

from pathlib import Path

import numpy as np

from mirrormax._drawing import house_style, row_of_axes
from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.svm import att_svm
from mirrormax.theory import diagnose

PROBLEM = sphere_problem(0)
FAR = 100 * np.random.default_rng(0).standard_normal((10, 10))
HEALTHY, SEEN = "C0", "C3"


def against(ax, good, bad, value, labels, **settings):
    for run, colour, label in zip((good, bad), (HEALTHY, SEEN), labels, strict=True):
        steps = np.asarray(run.steps)
        ax.plot(steps[1:], np.asarray(value(run))[1:], color=colour, label=label)
    ax.set(xlabel="update", **settings)
    ax.legend(fontsize=8)


def to_own_svm(run):
    return run.divergence_to(att_svm(PROBLEM, run.alpha, p=2).W)


def main():
    healthy = simulate(PROBLEM, p=2, lr=0.1, steps=2000)
    stuck = simulate(PROBLEM, p=2, lr=0.01, steps=2000, W0=FAR)
    wild = simulate(PROBLEM, p=2, lr=1.0, steps=400, record="all", options=SimulationOptions(batch=1))
    early = simulate(PROBLEM, p=3, lr=0.1, steps=100, record="all")
    longer = simulate(PROBLEM, p=3, lr=0.1, steps=20000)
    near_one, further = (simulate(PROBLEM, p=p, lr=100, steps=300, record="all") for p in (1.01, 1.1))
    for name, run in (("healthy", healthy), ("stuck", stuck), ("wild", wild), ("early", early), ("near 1", near_one)):
        print(f"{name}: {diagnose(run, PROBLEM)}")
    with house_style():
        fig, axes = row_of_axes(4, width=16, height=3.6)
        norm = {"xscale": "log", "yscale": "log", "ylabel": "‖W‖", "title": "the norm does not grow"}
        against(axes[0], healthy, stuck, lambda run: run.norm, ("lr 0.1 from 0", "lr 0.01 from far away"), **norm)
        turns = {
            "xlim": (100, 400),
            "ylim": (0.02, 0.2),
            "yscale": "log",
            "ylabel": "divergence",
            "title": "the divergence oscillates",
        }
        against(axes[1], healthy, wild, to_own_svm, ("lr 0.1", "lr 1, one sample a step"), **turns)
        wrong = {"xscale": "log", "ylabel": "tokens unlike the last", "title": "tokens not locally optimal"}
        final = np.asarray(longer.alpha)
        against(
            axes[2],
            longer,
            early,
            lambda run: (np.asarray(run.selected) != final).sum(-1),
            ("20,000 updates", "ended after 100"),
            **wrong,
        )
        overflow = {"ylabel": "log₁₀ ‖W‖", "title": "overflow near p = 1"}
        labels = ("p = 1.1", "p = 1.01, ends by overflow")
        against(axes[3], further, near_one, lambda run: np.log10(np.maximum(run.norm, 1e-300)), labels, **overflow)
        path = Path(__file__).parent / "images" / "diagnosis.png"
        fig.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
