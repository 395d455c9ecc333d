"""What a study came to: ``trials.csv`` with a row per trial, ``best.json``, and the picture ``tune.svg`` and ``.png``.

The picture shows accuracy, or the loss of language models, over p and over the step size, and how sparse attention
became.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from mirrormax._drawing import house_style, look_of, row_of_axes, save
from mirrormax._results import ResultFolder
from mirrormax.training import PROFILES, TrainConfig, with_choices
from mirrormax.tuning.study import FARTHEST, LEAST_P, MOST_P, STUDY, Plan, trial_folder

Row = dict[str, Any]
COLUMNS = (
    *("trial", "state", "optimizer", "p", "multiple", "lr", "score", "validation_accuracy", "validation_loss"),
    *("train_accuracy", "epoch", "epochs", "hoyer", "top_mass", "majority"),
)
NAMES = {"adabreg": "AdaBreg", "adamw": "AdamW", "sgd": "SGD"}
LABELS = {"p - 1": "p − 1", "multiple": "step size, multiples of the rule's"}
ENDS = {"p - 1": (LEAST_P - 1, MOST_P - 1), "multiple": (1 / FARTHEST, FARTHEST)}
MARKERS = {"finished": "o", "given up early": "v", "diverged": "x"}
SHADES = "viridis_r"


def rows_of(trials: Sequence[FrozenTrial]) -> list[Row]:
    """A row per trial; what a trial has not is None. ``score`` is what it is chosen by, the best validation accuracy of
    its epochs or minus the loss of a language model. Test accuracies are left out: nothing may be chosen by them."""
    rows = []
    for trial in trials:
        outcome = {"trial": trial.number, "state": trial.state.name.lower(), "score": trial.value}
        outcome["epochs"] = len(trial.intermediate_values)
        rows.append({name: trial.user_attrs.get(name) for name in COLUMNS} | outcome)
    return rows


def best_of(rows: Sequence[Row]) -> Row:
    """The finished trial of highest score; of equals, the one with the lower validation loss."""
    complete = [row for row in rows if row["state"] == "complete"]
    losses = {row["trial"]: math.inf if row["validation_loss"] is None else row["validation_loss"] for row in complete}
    return max(complete, key=lambda row: (row["score"], -losses[row["trial"]]))


def write_results(plan: Plan, folder: ResultFolder, trials: Sequence[FrozenTrial], data_dir: Path | None) -> Row:
    """Write all files and return what ``best.json`` says."""
    rows = rows_of(trials)
    folder.save_rows("trials.csv", COLUMNS, rows)
    best = best_of(rows)
    choices = {"optimizer": best["optimizer"], "lr": best["lr"]} | ({} if best["p"] is None else {"p": best["p"]})
    config = with_choices(plan.base, choices)
    result = {
        **best,
        "no_better_than_majority": bool(best["majority"]),
        **{name: trials[best["trial"]].user_attrs.get(name) for name in ("test_accuracy", "test_loss")},
        "command": train_command(config, data_dir),
        "config": config.to_dict(),
        "model": str(trial_folder(Path(), best["trial"]) / "model"),
        "trials": len(rows),
        "pruned": sum(row["state"] == TrialState.PRUNED.name.lower() for row in rows),
    }
    folder.save_json("best.json", result)
    draw(rows, folder, plan.base.chosen_by)
    folder.finish(STUDY, trials=len(rows))  # which Optuna's dashboard may write to
    return result


def train_command(config: TrainConfig, data_dir: Path | None) -> str:
    """The ``mirrormax train`` that does the same run: a flag for all that is not the default."""
    usual, words = asdict(PROFILES[config.task]["small"]), ["mirrormax", "train", config.task]
    for field in fields(config):
        value, flag = getattr(config, field.name), field.name.replace("_", "-")
        if isinstance(value, bool):
            words += [f"--{flag}" if value else f"--no-{flag}"] if value != usual[field.name] else []
        elif value != usual[field.name] or (field.name in ("p", "lr") and field.name not in config.ignored()):
            words += [f"--{flag}", str(value)]
    return shlex.join(words + ([] if data_dir is None else ["--data-dir", str(data_dir)]))


def draw(rows: Sequence[Row], folder: ResultFolder, chosen_by: str = "accuracy") -> None:
    """Write ``tune.svg`` and ``tune.png``."""
    with house_style():
        save(picture(rows, chosen_by), folder, "tune")


def picture(rows: Sequence[Row], chosen_by: str = "accuracy") -> Figure:
    """Three panels: validation accuracy, or ``"loss"``, over p and over the step size, and sparsity over p.

    The chosen trial has a ring around it; optimizers without a p have their own colours and names. p is drawn on the
    scale on which it is searched, the logarithm of p − 1.
    """
    fig, axes = row_of_axes(3, width=13.5, height=3.9)
    sign = -1 if chosen_by == "loss" else 1  # a score is minus the loss
    rows = [
        {**row, "quality": sign * row["score"], "p - 1": None if row["p"] is None else row["p"] - 1} for row in rows
    ]
    best, quality = best_of(rows), f"validation {chosen_by}"
    panels = (
        ("p - 1", "quality", quality),
        ("p - 1", "hoyer", "Hoyer index of $W_Q$, $W_K$, $W_V$"),
        ("multiple", "quality", quality),
    )
    for ax, (x, y, label) in zip(axes, panels, strict=True):
        shade = "multiple" if x == "p - 1" else "p - 1"
        norm = LogNorm(*ENDS[shade])
        for state, marker in MARKERS.items():
            points = [row for row in rows if _state(row) == state and None not in (row["p"], row[y])]
            places, heights, shades = ([row[name] for row in points] for name in (x, y, shade))
            if points:
                ax.scatter(places, heights, c=shades, norm=norm, cmap=SHADES, marker=marker, label=state)
        if best[x] is not None and best[y] is not None:
            ax.scatter(best[x], best[y], s=150, facecolors="none", edgecolors="black", linewidths=1.8, label="chosen")
        ax.set(xscale="log", xlim=(ENDS[x][0] / 1.15, ENDS[x][1] * 1.15), xlabel=LABELS[x], ylabel=label)
        ax.margins(y=0.1)  # room for the ring
        fig.colorbar(ScalarMappable(norm, SHADES), ax=ax, label=LABELS[shade])
    for name in sorted({row["optimizer"] for row in rows if row["p"] is None}):
        own = [row for row in rows if row["optimizer"] == name]
        look = look_of(NAMES[name])
        places, heights = ([row[column] for row in own] for column in ("multiple", "quality"))
        axes[2].scatter(places, heights, marker=look.marker, color=look.colour, s=34, label=NAMES[name])
    handles, labels = axes[2].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return fig


def _state(row: Row) -> str:
    """How a trial ended; one that diverged ran to its end and had no finite loss to show for it."""
    if row["state"] != "complete":
        return "given up early"
    return "diverged" if row["validation_loss"] is None else "finished"
