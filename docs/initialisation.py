"""Robustness to initialisation: ``python docs/initialisation.py problems|models`` prints a Markdown table each.

``problems``  random problems (n = 6, T = 8, d = 10), 40 of them, the same for every start: scale × distribution of W(0)
              to updates until the tokens no longer change, final divergence to their attention SVM, how many runs end
              with the tokens that the start from zero selects, and how many with locally optimal ones
``models``    text classifiers on the short reviews, 8 epochs of the profile ``small``: spread of the first embeddings
              to test accuracy
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace

import numpy as np

from mirrormax.attention import is_locally_optimal
from mirrormax.data import sphere_problem
from mirrormax.dynamics import simulate
from mirrormax.svm import att_svm
from mirrormax.training import PROFILES, train

TRIALS = 40
STEPS = {1.1: 1500, 2.0: 2000, 3.0: 20000}
SCALES = (0.01, 0.1, 1.0, 10.0)
DRAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "sparse (1 in 10)": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1) * 10**0.5,
}


def problems() -> None:
    made = [sphere_problem(seed) for seed in range(TRIALS)]
    X, y, z, v = (np.stack([getattr(each, name) for each in made]) for name in ("X", "y", "z", "v"))
    print("| p | start | settled after, median | divergence, median | as from zero | locally optimal |")
    print("|---|---|---|---|---|---|")
    for p, steps in STEPS.items():
        from_zero = None
        starts = {"zero": np.zeros((TRIALS, 10, 10))}
        for scale in SCALES:
            for name, draw in DRAWS.items():
                starts[f"{scale:g} × {name}"] = scale * draw(np.random.default_rng(0), (TRIALS, 10, 10))
        for name, W0 in starts.items():
            run = simulate(X, y, z, v, p=p, lr=0.1, steps=steps, W0=W0).numpy()
            from_zero = run.alpha if from_zero is None else from_zero
            changed = (run.selected != run.alpha).any(-1)  # (K, trials)
            last = np.where(changed.any(0), len(run.steps) - 1 - changed[::-1].argmax(0), -1)
            settled = np.median(run.steps[np.minimum(last + 1, len(run.steps) - 1)])
            solution = att_svm(X, z, run.alpha, p=p, throw=False)
            solved = np.isfinite(solution.gap)
            divergence = run.divergence_to(np.where(solved[:, None, None], solution.W, 1.0))[-1]
            optimal = np.asarray(is_locally_optimal(X, y, z, v=v, alpha=run.alpha, support=solution.support).optimal)
            same = (run.alpha == from_zero).all(-1)
            cells = [f"{p:g}", name, f"{settled:.0f}", f"{np.median(divergence[solved]):.2g}"]
            print(
                "| " + " | ".join([*cells, f"{same.mean():.0%}", f"{(optimal & solved).mean():.0%}"]) + " |", flush=True
            )


def models() -> None:
    print("| optimizer | spread of the first embeddings | test accuracy by validation | training accuracy |")
    print("|---|---|---|---|")
    base = replace(PROFILES["sentiment"]["small"], epochs=8)
    for optimizer in ("md", "adamw"):
        for spread in (0.03, 0.1, 0.3, 1.0, 3.0):
            config = replace(base, optimizer=optimizer, embedding_std=spread)  # type: ignore[call-arg]
            with tempfile.TemporaryDirectory() as folder:
                done = train(config, folder + "/run")
                summary = json.loads((done / "summary.json").read_text("utf-8"))
            name = "ℓ1.1" if optimizer == "md" else "AdamW"
            numbers = f"{100 * summary['test_accuracy']:.1f} | {100 * summary['last_train_accuracy']:.1f}"
            print(f"| {name} | {spread:g} | {numbers} |", flush=True)


if __name__ == "__main__":
    {"problems": problems, "models": models}[sys.argv[1]]()
