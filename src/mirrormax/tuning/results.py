"""What a study came to: ``trials.csv`` with a row per trial, ``best.json``, and the picture ``tune.svg`` and ``.png``.

The picture shows accuracy, or the loss of language models, over p and over the step size, and how sparse attention
became.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from optuna.trial import FrozenTrial, TrialState

from mirrormax._drawing import house_style, look_of, row_of_axes, save
from mirrormax._results import ResultFolder
from mirrormax.training import PROFILES, TrainConfig, with_choices
from mirrormax.tuning.study import STUDY, Plan, trial_folder
from mirrormax.tuning.trials import FARTHEST, LEAST_P, MOST_P

Row = dict[str, Any]
COLUMNS = (
    *("trial", "state", "optimizer", "p", "multiple", "lr", "score", "validation_accuracy", "validation_loss"),
    *("train_accuracy", "epoch", "epochs", "hoyer", "top_mass", "majority"),
)
NAMES = {"adabreg": "AdaBreg", "adamw": "AdamW", "sgd": "SGD"}
TICKS = (1.05, 1.1, 1.25, 1.5, 2, 3, 4)
MULTIPLES = (0.1, 0.3, 1, 3, 10, 30)
SHADES = "viridis_r"
GREY = "#555555"


def rows_of(trials: Sequence[FrozenTrial]) -> list[Row]:
    """A row per trial; what a trial has not is None. ``score`` is what it is chosen by, the best validation accuracy of
    its epochs or minus the loss of a language model. Test accuracies are left out: nothing may be chosen by them."""
    rows = []
    for trial in trials:
        row = {name: trial.user_attrs.get(name) for name in COLUMNS}
        row |= {"trial": trial.number, "state": trial.state.name.lower(), "score": trial.value}
        row["epochs"] = len(trial.intermediate_values)
        rows.append(row)
    return rows


def best_of(rows: Sequence[Row]) -> Row:
    """The finished trial of highest score; of equals, the one with the lower validation loss."""
    complete = [row for row in rows if row["state"] == "complete"]
    return max(complete, key=lambda row: (row["score"], -_loss(row)))


def _loss(row: Row) -> float:
    return float("inf") if row["validation_loss"] is None else float(row["validation_loss"])


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
    for suffix in ("svg", "png"):
        folder.claim(f"tune.{suffix}")
    with house_style():
        save(picture(rows, chosen_by), folder.path, "tune")


def picture(rows: Sequence[Row], chosen_by: str = "accuracy") -> Figure:
    """Three panels: validation accuracy, or ``"loss"``, over p and over the step size, and sparsity over p.

    Trials given up are hollow, those that diverged crosses, the chosen one has a ring around it.
    """
    fig, (over_p, sparse, over_lr) = row_of_axes(3, width=13.5, height=3.9)
    sign = -1 if chosen_by == "loss" else 1  # a score is minus the loss
    rows = [{**row, "quality": sign * row["score"]} for row in rows]
    mirror = [row for row in rows if row["p"] is not None]
    measured = [row for row in mirror if row["hoyer"] is not None]
    by_multiple: dict[str, Any] = {"shade": "multiple", "norm": LogNorm(1 / FARTHEST, FARTHEST)}
    _scatter(over_p, mirror, "quality", x="p", **by_multiple)
    multiples = _scatter(sparse, measured, "hoyer", x="p", **by_multiple)
    exponents = _scatter(over_lr, mirror, "quality", x="multiple", shade="p", norm=LogNorm(LEAST_P - 1, MOST_P - 1))
    _others(over_lr, rows)
    for ax, x, y in (
        (over_p, "p", "quality"),
        (sparse, "p", "hoyer"),
        (over_lr, "multiple", "quality"),
    ):
        _ring(ax, rows, x, y)
        ax.margins(y=0.1)  # room for the ring
        if x == "p":
            _axis_of_p(ax)
        else:
            _axis_of_multiples(ax)
    over_p.set(ylabel=f"validation {chosen_by}", title=f"{chosen_by} over p")
    sparse.set(ylabel="Hoyer index of $W_Q$, $W_K$, $W_V$", title="sparsity over p")
    over_lr.set(ylabel=f"validation {chosen_by}", title=f"{chosen_by} over the step size")
    _bar(fig, multiples, sparse, "step size, multiples of the rule's", MULTIPLES, MULTIPLES)
    _bar(fig, exponents, over_lr, "p", [p - 1 for p in TICKS], TICKS)
    marks: list[Any] = [_mark("finished", markerfacecolor=GREY), _mark("given up early")]
    marks += [_mark("diverged", marker="x")] if any(map(_diverged, mirror)) else []
    marks += [_mark("chosen", markersize=12, markeredgecolor="black"), *over_lr.get_legend_handles_labels()[0]]
    fig.legend(handles=marks, loc="outside lower center", ncols=len(marks))
    return fig


def _mark(label: str, **style: Any) -> Line2D:
    """An entry of the legend."""
    usual: dict[str, Any] = {"marker": "o", "linestyle": "none", "markerfacecolor": "none", "markeredgecolor": GREY}
    return Line2D([], [], label=label, **{**usual, **style})


def _scatter(ax: Axes, rows: Sequence[Row], y: str, *, x: str, shade: str, norm: LogNorm) -> Any:
    """Points coloured by another column; a mappable for the colour bar."""
    drawn = ScalarMappable(norm, SHADES)
    for row in rows:
        colour: Any = drawn.to_rgba(row[shade] - 1 if shade == "p" else row[shade])
        style: dict[str, Any] = {"s": 32, "linewidths": 1.3, "zorder": 3}
        if _diverged(row):
            ax.scatter(_place(row, x), row[y], marker="x", color=[colour], **style)
        else:
            face = colour if row["state"] == "complete" else "none"
            ax.scatter(_place(row, x), row[y], facecolors=face, edgecolors=[colour], **style)
    return drawn


def _diverged(row: Row) -> bool:
    """Whether a trial ran to its end and had no finite loss to show for it."""
    return row["state"] == "complete" and row["validation_loss"] is None


def _place(row: Row, x: str) -> float:
    return float(row[x]) - 1 if x == "p" else float(row[x])


def _others(ax: Axes, rows: Sequence[Row]) -> None:
    """Optimizers without a p, in their own colours and with a name."""
    for name in sorted({row["optimizer"] for row in rows if row["p"] is None}):
        own = [row for row in rows if row["optimizer"] == name]
        x, y = ([row[key] for row in own] for key in ("multiple", "quality"))
        look = look_of(NAMES[name])
        ax.scatter(x, y, marker=look.marker, color=look.colour, s=34, zorder=3, label=NAMES[name])


def _ring(ax: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    best = best_of(rows)
    if best[x] is not None and best[y] is not None:
        ax.scatter(_place(best, x), best[y], s=150, facecolors="none", edgecolors="black", linewidths=1.8, zorder=4)


def _axis_of_p(ax: Axes) -> None:
    """p on the scale on which it is searched, the logarithm of p − 1."""
    ax.set_xscale("log")
    ax.set_xlim((LEAST_P - 1) / 1.15, (MOST_P - 1) * 1.15)
    ax.set_xticks([p - 1 for p in TICKS], [f"{p:g}" for p in TICKS])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("p")


def _axis_of_multiples(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.set_xlim(1 / FARTHEST / 1.15, FARTHEST * 1.15)
    ax.set_xticks(MULTIPLES, [f"{multiple:g}" for multiple in MULTIPLES])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("multiple of the rule's step size")


def _bar(fig: Figure, shades: Any, ax: Axes, label: str, places: Sequence[float], names: Sequence[float]) -> None:
    """A colour bar with these ticks alone."""
    bar = fig.colorbar(shades, ax=ax, label=label)
    bar.set_ticks(list(places), labels=[f"{name:g}" for name in names])
    bar.ax.yaxis.set_minor_locator(NullLocator())
