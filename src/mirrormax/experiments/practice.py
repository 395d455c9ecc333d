"""In practice: a model with a given share of zeros, and what each way to it costs.

Every method is tried with the same number of pairs of step size and knob, at full length, with seed 0. For each of
three goals (dense, 80 % and 90 % zeros) the pair with the best validation result is trained with all seeds; methods
that are told the share are tuned at 80 %, and take the same pair for 90 %. A model that is not sparse enough is pruned
at the end, without retraining, by magnitude over all matrices, by Wanda or by SparseGPT, whichever is best on
validation. Numbers are test results, differences are paired by seed (same start, same batches).

Goals, written before the first run (nats; a point of accuracy counts as .1 nats, so .05 nats are .5 points):

1. dense, MirrorAdamW's default is at most .005 behind AdamW;
2. with ``sparsity=.8`` the target is at most .05 behind dense AdamW;
3. and 4. at 80 % and at 90 % it is ahead of every opponent.

A goal is met if the 95 % interval of the paired difference lies on its side, missed if on the other, else undecided. A
training has settled if validation falls by less than .01 within its last tenth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from mirrormax._drawing import Figure, grid_of_axes, panel
from mirrormax._statistics import Estimate, mean, percent
from mirrormax.experiments import _measurements as make
from mirrormax.experiments._measurements import OURS, About, Arrays, Measured, Measurement, Rows, Told, alone
from mirrormax.experiments._methods import LARGE, METHODS
from mirrormax.experiments._running import Work
from mirrormax.experiments._trainings import PRUNERS, REVISION, SHARES, Job, Task, kept
from mirrormax.training import LanguageTraining, SentimentTraining, VisionTraining, data_digests

ABOUT = About("In practice: a model with a given share of zeros", place=170, seconds=60, revision=REVISION)
CIFAR, IMDB = "cifar-10-batches-bin", "imdb"
GOALS = (0.0, 0.8, 0.9)
TUNED = 0.8  # the share at which methods are tuned that are told one
OURS_IS, DENSE = "target, matrix", "AdamW"
BEHIND = {"MirrorAdamW": (0.0, 0.005), "AdaBreg": (0.0, 0.005), OURS_IS: (TUNED, 0.05)}
"""By method, at a share, the nats that it may be behind dense AdamW."""
COSTS = {
    "seconds": "processor time of a step, times that of AdamW",
    "state": "memory of the state, times that of the weights",
}
Outcomes = dict[Job, dict[str, Any]]
LOST = (0.02, 0.1)  # nats that a sparse model may be behind dense AdamW


@dataclass(frozen=True)
class Unit:
    """What results are in: nats, of which fewer are better, or shares of right answers, shown in percent and points."""

    word: str  # of a difference
    results: str
    axis: str
    sign: int  # 1 if more is better
    scale: float  # what is shown, times what is kept
    places: int
    per_nat: float  # what counts as a nat

    def behind(self, values: Any, reference: Any) -> Any:
        """How far results are behind others."""
        return self.sign * self.scale * (reference - values)

    def printed(self, number: Estimate, sign: str = "") -> str:
        """A number with its interval."""
        places = f"{sign}.{self.places}f"
        ends = f" [{number.low:{places}}, {number.high:{places}}]" if np.isfinite(number.low) else ""
        return f"{number.mean:{places}}{ends}".replace("-", "−")


UNITS = {  # by what the epochs of a task are chosen by
    "loss": Unit("nats", "nats", "nats per byte (less is better)", -1, 1.0, 3, per_nat=1.0),
    "accuracy": Unit("points", "percent right", "percent right", 1, 100.0, 1, per_nat=10.0),
}


@dataclass(frozen=True)
class Config:
    tasks: tuple[Task, ...]


EVERYBODY = tuple((name, way.trials) for name, way in METHODS.items() if name != "torchao pat")
BEST = ("AdamW", "p-norm decay", "gradual pruning", "AdaBreg", "target", "target, matrix")
SIX = tuple(pair for pair in EVERYBODY if pair[0] in BEST)
# On further tasks: whoever came near the target on the language model, which took Muon's direction too.
RIVALS = ("AdamW", "AdaBreg", "p-norm decay, Muon", "gradual pruning, Muon", "small dense, Muon", "target, matrix")
FURTHER = tuple(pair for pair in EVERYBODY if pair[0] in RIVALS)
LONGER = tuple((name, trials[2:] if trials[0][0] in LARGE[:1] else trials[:4]) for name, trials in FURTHER)
TEXT = LanguageTraining(
    data="imdb", train_limit=2000, validation=0.01, batch_size=16, context=64, dim=64, hidden=128, heads=2
)
REVIEWS = SentimentTraining(
    data="imdb", embedding_std=0.3, batch_size=20, blocks=1, hidden=128, max_length=64, vocab_size=4000
)
IMAGES = VisionTraining(
    data="cifar10", image_size=32, patch=8, dim=64, hidden=128, blocks=2, heads=2, head_dim=32, dropout=0.0
)
PAT = (("torchao pat", METHODS["torchao pat"].trials),) if find_spec("torchao") else ()  # by the extra "practice"
LANGUAGE = Task("language model", TEXT, 800, 250, EVERYBODY + PAT)
SHORT_REVIEWS = Task("reviews", replace(REVIEWS, data="reviews"), 1000, 400, SIX)
STUDY = Config((LANGUAGE, SHORT_REVIEWS))
ON_IMDB, ON_CIFAR = Task("IMDb", REVIEWS, 3000, 1000, SIX), Task("CIFAR-10", IMAGES, 6000, 1000, FURTHER)
FOUR_TIMES = Task("language model, 4 x longer", replace(TEXT, train_limit=8000), 3200, 250, LONGER)
WHOLE = Config((LANGUAGE, SHORT_REVIEWS, ON_IMDB, ON_CIFAR, FOUR_TIMES))
BUILT_IN = Config((replace(LANGUAGE, base=replace(TEXT, data="reviews"), rows=100, methods=EVERYBODY),))
SMALL_TEXT = replace(TEXT, data="reviews", train_limit=200, dim=32, hidden=64)
ONCE = tuple((name, trials[:1]) for name, trials in EVERYBODY)
QUICK = Config((Task("language model", SMALL_TEXT, 40, 20, ONCE, seeds=2),))
PROFILES = {"quick": QUICK, "small": STUDY, "paper": WHOLE}


def on_data(config: Config, data_dir: Path) -> Config:
    """The study itself if the folder holds its data; else what the package has built in."""
    complete = all((data_dir / name).is_dir() for name in ((IMDB,) if config == STUDY else (IMDB, CIFAR)))
    return config if complete or config not in (STUDY, WHOLE) else BUILT_IN


def sources(config: Config, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read."""
    return {name: digest for task in config.tasks for name, digest in data_digests(task.base, data_dir).items()}


def run(config: Config, work: Work) -> Arrays:
    """Tune with seed 0, choose, train with all seeds; trainings are kept under ``work.runs`` and not done twice."""
    units = [task.base.chosen_by for task in config.tasks]
    data: Arrays = {"tasks": np.array([task.name for task in config.tasks]), "units": np.array(units)}
    data["shares"] = np.array(SHARES)

    def outcomes(jobs: list[Job], share: float) -> Outcomes:
        tasks = [(job, work.runs, work.data_dir) for job in jobs]
        return dict(zip(jobs, work.each(kept, tasks, share / len(config.tasks)), strict=True))

    for task in config.tasks:
        tuned = outcomes(_trials(task), 0.6)
        chosen = _chosen(task, tuned)
        results = tuned | outcomes(_finals(task, chosen), 0.4)
        data |= {f"{task.name}/{name}": value for name, value in _gathered(task, tuned, chosen, results).items()}
    return data


def _trials(task: Task) -> list[Job]:
    """All trials, the first of every method before the second of any, so that an early look sees everybody."""
    count = len(task.methods[0][1])
    return [
        Job(task, name, *trials[k], TUNED if METHODS[name].takes_share else None)
        for k in range(count)
        for name, trials in task.methods
    ]


def _chosen(task: Task, tuned: Outcomes) -> dict[tuple[str, float], Job]:
    """For each method and goal the trial that is best on validation."""
    chosen: dict[tuple[str, float], Job] = {}
    sign = UNITS[task.base.chosen_by].sign
    for name, _ in task.methods:
        own = [job for job in tuned if job.method == name]
        takes_share = METHODS[name].takes_share
        for goal in GOALS[1:] if takes_share else GOALS:
            at = TUNED if takes_share else goal
            best = max(own, key=lambda job: sign * _best(tuned[job], "validation", task, at)[0])
            chosen[name, goal] = replace(best, share=goal) if takes_share else best
    return chosen


def _finals(task: Task, chosen: dict[tuple[str, float], Job]) -> list[Job]:
    """The chosen trials with every seed, each once."""
    return list(dict.fromkeys(replace(job, seed=seed) for seed in range(task.seeds) for job in chosen.values()))


def _best(result: dict[str, Any], split: str, task: Task, share: float) -> tuple[float, str]:
    """The result at a share by the pruner that is best on validation, and the pruner."""
    place, sign = SHARES.index(share), UNITS[task.base.chosen_by].sign
    best = max(PRUNERS, key=lambda name: sign * result["validation"][name][place])
    return result[split][best][place], best


def _gathered(task: Task, tuned: Outcomes, chosen: dict[tuple[str, float], Job], results: Outcomes) -> Arrays:
    """Results as arrays: of each method and goal over seeds, its curve over shares, its trials, zeros and settling."""
    data: Arrays = {"methods": np.array([name for name, _ in task.methods])}
    for (name, goal), job in chosen.items():
        each = [results[replace(job, seed=seed)] for seed in range(task.seeds)]
        curves = np.array([[_best(result, "test", task, share)[0] for share in SHARES] for result in each])
        parts = {
            "test": curves[:, SHARES.index(goal)],
            "curve": curves.mean(0),
            "pruners": np.mean([[result["test"][by] for by in PRUNERS] for result in each], 0),
            **{key: np.array([result[key] for result in each]) for key in ("settling", "zeros", *COSTS)},
            "chosen": np.array([_said(job), _best(each[0], "test", task, goal)[1]]),
        }
        data |= {f"{name}/{percent(goal)}/{key}": value for key, value in parts.items()}
    for name, _ in task.methods:
        own = [job for job in tuned if job.method == name]
        best = [[_best(tuned[job], "validation", task, goal)[0] for goal in GOALS] for job in own]
        data |= {f"{name}/trials": np.array([_said(job) for job in own]), f"{name}/validation": np.array(best)}
    return data


def _said(job: Job) -> str:
    return f"lr {job.lr:g}, {job.knob}"


def _tasks(data: Arrays) -> list[tuple[str, Unit]]:
    return [(task, UNITS[unit]) for task, unit in zip(data["tasks"].tolist(), data["units"].tolist(), strict=True)]


def measure(data: Arrays) -> Rows:
    """The four goals, and every result they are made of."""
    for task, unit in _tasks(data):
        methods = data[f"{task}/methods"].tolist()
        tests = {
            (name, goal): data[f"{task}/{name}/{percent(goal)}/test"]
            for name, goal in product(methods, GOALS)
            if f"{task}/{name}/{percent(goal)}/test" in data
        }
        for (name, goal), values in tests.items():
            result, (lr, by) = mean(unit.scale * values), data[f"{task}/{name}/{percent(goal)}/chosen"].tolist()
            why = f"{lr}; {by}" if goal else lr
            yield alone(f"{task}: {_named(goal)}", result, why, column=name, ours=unit.printed(result))
        for (cost, quantity), name in product(COSTS.items(), methods):
            cost_of = {each: data[f"{task}/{each}/{percent(TUNED)}/{cost}"].mean() for each in (name, DENSE)}
            times = cost_of[DENSE] if cost == "seconds" else 1.0
            yield alone(f"{task}: {quantity}", f"{cost_of[name] / times:.2f}", column=name)
        for lost, name in product((unit.per_nat * nats for nats in LOST), methods):
            # The largest share at which the mean over seeds is at most so far behind.
            gaps = unit.behind(_curve(data, task, name, unit), tests[DENSE, 0.0].mean())
            reached = max((share for share, gap in zip(SHARES, gaps, strict=True) if gap <= lost), default=0.0)
            yield alone(f"{task}: zeros within {lost:g} {unit.word} of dense AdamW", percent(reached), column=name)
        for name, (goal, nats) in BEHIND.items():
            if name in methods:
                gap, bound = mean(unit.behind(tests[name, goal], tests[DENSE, 0.0])), unit.per_nat * nats
                verdict = make.decided(bound - gap.high, bound - gap.low)
                why = "The interval holds the threshold." if verdict == make.UNDECIDED else ""
                quantity = f"{task}: {unit.word} behind dense AdamW, {_named(goal)}"
                row = alone(quantity, gap, why, column=name, ours=unit.printed(gap, "+"))
                yield replace(row, published=f"≤ {bound:g}", verdict=verdict, source=OURS)
        opponents = [name for name in methods if name != OURS_IS] if OURS_IS in methods else []
        for goal, name in product(GOALS[1:], opponents):
            ahead = mean(unit.behind(tests[name, goal], tests[OURS_IS, goal]))
            quantity = f"{task}: {unit.word} by which the target is ahead, {_named(goal)}"
            yield make.above(quantity, "> 0", 0.0, ahead, column=name, ours=unit.printed(ahead, "+"), source=OURS)


def _named(goal: float) -> str:
    return f"{percent(goal)} zeros" if goal else "dense"


def _curve(data: Arrays, task: str, name: str, unit: Unit) -> Any:
    """At each share the best of the method's goals; those who are told a share begin with it."""
    curves = [data.get(f"{task}/{name}/{percent(goal)}/curve") for goal in GOALS]
    values = unit.sign * np.stack([unit.sign * curve for curve in curves if curve is not None]).max(0)
    return np.where(np.array(SHARES) < TUNED, np.nan, values) if METHODS[name].takes_share else values


def _ranked(table: Measured, task: str, unit: Unit, goal: float) -> list[Measurement]:
    """The results of the methods of a task at a share, the best first."""
    rows = [row for row in table.rows(f"{task}: {_named(goal)}") if row.value is not None]
    return sorted(rows, key=lambda row: -unit.sign * cast(float, row.value))


def _best_of(table: Measured, task: str, unit: Unit, goal: float, count: int) -> str:
    """The best methods of a task at a share, with their results."""
    return ", then ".join(f"{row.column} {row.ours.split(' [')[0]}" for row in _ranked(table, task, unit, goal)[:count])


def tell(data: Arrays, table: Measured) -> Told:
    """The best two at 80 and 90 %; of several tasks the panels name the best."""
    tasks, sentences = _tasks(data), []
    for (task, unit), goal in product(tasks, GOALS):
        results = [f"{row.column} {row.value:.{unit.places}f}" for row in _ranked(table, task, unit, goal)]
        sentences.append(f"{task}, {_named(goal)} ({unit.results}): {', '.join(results)}")
    finding = [f"{percent(goal)} zeros: {_best_of(table, *tasks[0], goal, 2)}" for goal in GOALS[1:]]
    return Told(
        "\n".join(finding) if len(tasks) == 1 else "The best method at 80 and at 90 % zeros, task by task",
        f"Test results, means over seeds, best first. {'; '.join(sentences)}.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Results over the share of zeros, one line for each method, the best at each share ringed."""
    tasks, shares = _tasks(data), 100 * np.array(SHARES)
    columns = min(2, len(tasks))
    rows = -(-len(tasks) // columns)
    fig, grid = grid_of_axes(rows, columns, width=max(7.5, 4.2 * columns), height=4.8 * rows)
    axes = [ax for row in grid for ax in row]
    for ax in axes[len(tasks) :]:
        ax.remove()
    lines: dict[str, Any] = {}  # of the legend
    for ax, (task, unit) in zip(axes, tasks, strict=False):
        methods = data[f"{task}/methods"].tolist()
        curves = unit.scale * np.stack([_curve(data, task, name, unit) for name in methods])
        curves[~np.isfinite(curves)] = np.nan
        for name, values in zip(methods, curves, strict=True):
            (colour, marker, line), known = METHODS[name].look, np.isfinite(values)
            style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": line}
            (lines[name],) = ax.plot(shares[known], values[known], linewidth=3 if name == OURS_IS else 1.2, **style)
        best = unit.sign * np.nanmax(unit.sign * curves, 0)
        ax.plot(shares, best, "o", markersize=14, fillstyle="none", color="#3D3D3D")
        winners = [f"{_best_of(table, task, unit, goal, 1)} at {percent(goal)}" for goal in GOALS[1:]]
        title = "\n".join([task, *winners]) if len(tasks) > 1 else ""
        panel(ax, title, "zeros in the matrices, percent", unit.axis)
        if unit.sign > 0:  # ten points at least, or the noise of three seeds fills the panel
            ax.set_ylim(min(best.max() - 10, ax.get_ylim()[0]), best.max() + 1)
        else:
            ax.set_ylim(best.min() - 0.03, best.min() + 0.75)
            ax.invert_yaxis()
    fig.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize=9)
    return fig
