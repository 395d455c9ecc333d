"""Optimizers compared fairly: the same number of step sizes tried for each, chosen on held-out data, then seeds.

Every run is a folder of its own under ``work.runs``, named by its configuration and data, so that finished runs
are never done again, interrupted ones go on, and experiments share them. At the end, the trained query, key and value
matrices: histograms, and how concentrated they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from mirrormax import training
from mirrormax._drawing import Axes, look_of, panel
from mirrormax.auditing import attention_weights, sparsity
from mirrormax.experiments._measurements import Arrays
from mirrormax.experiments._running import Work
from mirrormax.nets import load_model
from mirrormax.training import SentimentTraining, TrainConfig

# What is kept of a finished run.
NUMBERS = ("validation_accuracy", "test_accuracy", "best_test_accuracy", "last_test_accuracy", "epochs")


@dataclass(frozen=True)
class Contender:
    """An optimizer, the step sizes to try for it, and how many seeds to train it with."""

    optimizer: str
    p: float
    lrs: tuple[float, ...]
    seeds: int

    @property
    def name(self) -> str:
        return f"ℓ{self.p:g}" if self.optimizer == "md" else {"adamw": "AdamW", "sgd": "SGD"}[self.optimizer]


def contenders(steps: Mapping[float, tuple[float, ...]], adamw: tuple[float, ...], seeds: int) -> tuple[Contender, ...]:
    """Mirror descent with the step sizes to try for each p, and AdamW with its own."""
    ours = [Contender("md", p, lrs, seeds) for p, lrs in steps.items()]
    return (*ours, Contender("adamw", 2.0, adamw, seeds))


@dataclass(frozen=True)
class Sweep:
    """Contenders on one task. Step sizes are tried for ``tuning_epochs``, each with the first seed; a single one, which
    leaves nothing to choose, is not."""

    base: TrainConfig
    contenders: tuple[Contender, ...]
    tuning_epochs: int

    def __post_init__(self) -> None:
        if len({len(contender.lrs) for contender in self.contenders}) > 1:
            raise ValueError("every contender must get the same number of step sizes; a fair budget is the point.")


Runs = dict[str, list[Path]]
"""A folder for each seed, by the contender's name."""


def run_sweep(sweep: Sweep, work: Work, share: float = 1.0) -> tuple[Arrays, Runs]:
    """Tune every contender on the validation split, then train it with every seed: its numbers, and its runs."""
    every = [(contender, lr) for contender in sweep.contenders for lr in contender.lrs if len(contender.lrs) > 1]
    trials = [replace(_with(sweep.base, *each, seed=0), epochs=sweep.tuning_epochs) for each in every]
    cost = len(trials) * sweep.tuning_epochs
    longest = sweep.base.epochs * sum(contender.seeds for contender in sweep.contenders)
    tuning = np.full((len(sweep.contenders), len(sweep.contenders[0].lrs)), np.nan)
    if trials:
        tried = _numbers(_train_all(trials, work, share * cost / (cost + longest)))
        tuning = np.reshape(tried["validation_accuracy"], tuning.shape)
    tuned = [(each, each.lrs[int(row.argmax())], row) for each, row in zip(sweep.contenders, tuning, strict=True)]
    runs = [_with(sweep.base, contender, lr, seed) for contender, lr, _ in tuned for seed in range(contender.seeds)]
    folders = iter(_train_all(runs, work, share * longest / (cost + longest)))
    data: Arrays = {"names": np.array([contender.name for contender in sweep.contenders])}
    finished: Runs = {}
    for each, lr, row in tuned:
        finished[each.name] = list(islice(folders, each.seeds))
        numbers = _numbers(finished[each.name]) | {"lr": np.array(lr), "lrs": np.array(each.lrs), "tuning": row}
        data |= {f"{each.name}/{key}": values for key, values in numbers.items()}
    return data, finished


def data_of(sweeps: Sequence[Sweep], data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that these sweeps read, and the revision of what trains on them."""
    digests = {"training": f"revision {training.REVISION}"}
    for sweep in sweeps:
        digests |= training.data_digests(sweep.base, data_dir)
    return digests


def _with(base: TrainConfig, contender: Contender, lr: float, seed: int) -> TrainConfig:
    p = contender.p if contender.optimizer == "md" else base.p
    return replace(base, optimizer=contender.optimizer, p=p, lr=lr, seed=seed)


def _numbers(folders: Sequence[Path]) -> Arrays:
    """What is kept of the runs; NaN of a validation split, which the paper's protocol does not have."""
    summaries = [json.loads((folder / "summary.json").read_text("utf-8")) for folder in folders]
    return {key: np.array([summary[key] for summary in summaries], float) for key in NUMBERS}


def _train_all(configs: Sequence[TrainConfig], work: Work, share: float) -> list[Path]:
    folders = [work.runs / f"{config.task}-{training.run_key(config, work.data_dir)}" for config in configs]
    anew = [work.anew and folder not in work.renewed for folder in folders]
    work.renewed.update(folders)
    tasks = zip(configs, folders, [work.data_dir] * len(configs), anew, strict=True)
    return work.each(_train, list(tasks), share)


def _train(config: TrainConfig, folder: Path, data_dir: Path | None, force: bool) -> Path:
    return training.train(config, folder, data_dir, force=force)


# The weights of a sweep's models.

ROLES = ("key", "query", "value")
MEASURES = ("hoyer", "top_mass", "effective_rank", "large", "near_zero", "left_range")

BINS = 121
WIDEST = 99.9  # percent of the weights that the histograms show
LARGE = 0.06  # the paper counts, and draws, entries of at least this size
WIDTH = 0.005  # of the bins of its histogram


def weight_arrays(finished: Runs) -> Arrays:
    """Measures (seeds,) and histograms (bins,), a mean over seeds, by contender and role; models as training left them.

    Runs that diverged have no weights to measure: they are counted under ``diverged`` and left out. The histograms
    share their bins, whose ends leave out the outermost weights of the widest contender.
    """
    weights, diverged = {}, {}
    for name, folders in finished.items():
        trained = [attention_weights(load_model(str(folder / "last")).model) for folder in folders]
        runs = [{role: [w.double().numpy() for w in run[role]] for role in ROLES} for run in trained]
        weights[name] = [run for run in runs if all(np.isfinite(_flat(run[role])).all() for role in ROLES)]
        diverged[name] = len(runs) - len(weights[name])
        if not weights[name]:
            raise ValueError(f"every run of {name} diverged, so its weights cannot be shown; try smaller step sizes.")
    every = [np.abs(_flat(run[role])) for runs in weights.values() for run in runs for role in ROLES]
    reach = max(float(np.percentile(sizes, WIDEST)) for sizes in every)
    edges = np.linspace(-reach, reach, BINS + 1)
    data: Arrays = {"edges": edges}
    for name, runs in weights.items():
        data[f"{name}/diverged"] = np.array(diverged[name])
        for role in ROLES:
            measures, flat = [sparsity(*run[role]) for run in runs], [_flat(run[role]) for run in runs]
            largest = [np.abs(each).max() for each in flat]
            bins = np.arange(LARGE, max(largest) + 2 * WIDTH, WIDTH)
            kept = {key: np.array([getattr(each, key) for each in measures], float) for key in MEASURES} | {
                "entries": np.array(measures[0].entries),
                "histogram": np.mean([np.histogram(each, edges)[0] for each in flat], axis=0),
                "largest": np.array(largest),
                "tail": np.mean([np.histogram(np.abs(each), bins)[0] for each in flat], axis=0),
            }
            data |= {f"{name}/{role}/{key}": array for key, array in kept.items()}
    return data


def _flat(matrices: Sequence[Any]) -> Any:
    return np.concatenate([matrix.ravel() for matrix in matrices])


def bar(ax: Axes, at: float, values: Any, **style: Any) -> None:
    """A bar as high as the mean, and every run a point."""
    ax.bar(at, values.mean(), **{"linewidth": 0, **style})
    ax.scatter(np.full(len(values), at), values, s=9, color="black", zorder=3)


def draw_measures(ax: Axes, data: Arrays, roles: tuple[str, ...]) -> None:
    """Hoyer index and mass in the top 1 % of every contender."""
    names = data["names"].tolist()
    hatched = {"alpha": 0.55, "hatch": "///", "edgecolor": "white"}
    measures: Any = (("hoyer", "Hoyer index", {"alpha": 0.9}), ("top_mass", "ℓ1 mass in the top 1 %", hatched))
    for offset, (measure, _, style) in enumerate(measures):
        for place, name in enumerate(names):
            values = np.mean([data[f"{name}/{role}/{measure}"] for role in roles], axis=0)
            at = place + (offset - 0.5) * 0.4
            bar(ax, at, values, width=0.36, color=look_of(name).colour, **style)
            mean, top = f"{values.mean():.2f}", (at, values.max())
            ax.annotate(mean, top, (0, 3), textcoords="offset points", ha="center", fontsize=7)
    for _, label, style in measures:
        ax.bar(0, 0, color="0.4", label=label, **style)
    panel(ax, "concentration, each run a point", xticks=range(len(names)), xticklabels=names)
    ax.margins(y=0.3)
    ax.grid(axis="x", visible=False)
    ax.legend(fontsize=8, loc="upper right")


# The sweeps over text classifiers that Table 1, Fig 8 and Fig 9 share.

PAPER_SIZES = {"3 blocks": 3, "4 blocks": 4, "6 blocks": 6}
IMDB = ("imdb", "aclImdb")


@dataclass(frozen=True)
class TextConfig:
    """One sweep for each size of model, by the name of the size; the largest comes last."""

    sizes: tuple[tuple[str, Sweep], ...]


ONE_BLOCK = cast(SentimentTraining, replace(training.PROFILES["sentiment"]["small"], warmup=2.0))
SHORT, LONG = (0.1, 0.3, 0.9), (0.3, 0.9, 2.7)  # step sizes of mirror descent
EVERYBODY = contenders({1.1: SHORT, 1.5: LONG, 2.0: LONG, 3.0: SHORT}, (3e-4, 1e-3, 3e-3), seeds=5)
REVIEWS = Sweep(ONE_BLOCK, EVERYBODY, tuning_epochs=12)
OF_TABLE_1 = tuple(contender for contender in REVIEWS.contenders if contender.p != 1.5)
THREE_SEEDS = tuple(replace(contender, seeds=3) for contender in OF_TABLE_1)
ON_IMDB = Sweep(replace(ONE_BLOCK, data="imdb", warmup=3.0, epochs=14), THREE_SEEDS, tuning_epochs=7)
ONE_STEP = tuple(replace(contender, lrs=contender.lrs[1:2], seeds=2) for contender in OF_TABLE_1)
QUICK = Sweep(replace(ONE_BLOCK, epochs=5), ONE_STEP, tuning_epochs=5)
PAPER = cast(SentimentTraining, training.PROFILES["sentiment"]["paper"])


def _as_in_the_paper(blocks: int) -> Sweep:
    """The authors' model and step sizes, on ten seeds; as theirs, it holds nothing out and tries no other step."""
    base = replace(PAPER, blocks=blocks, heads=blocks)
    steps = {p: training.with_published_step(replace(base, p=p)).lr for p in (1.1, 2.0, 3.0)}
    rivals = tuple(Contender("md", p, (lr,), 10) for p, lr in steps.items() if lr is not None)
    return Sweep(base, rivals, tuning_epochs=base.epochs)


PROFILES = {
    "quick": TextConfig((("1 block", QUICK),)),
    "small": TextConfig((("1 block", REVIEWS),)),
    "paper": TextConfig(tuple((size, _as_in_the_paper(blocks)) for size, blocks in PAPER_SIZES.items())),
}
OF_IMDB = {
    REVIEWS: ON_IMDB,
    QUICK: replace(QUICK, base=replace(QUICK.base, data="imdb", train_limit=5000, warmup=1.0, epochs=4)),
}


def on_data(config: TextConfig, data_dir: Path) -> TextConfig:
    """The same on IMDb if the folder holds it; else the embedded reviews stay."""
    if not any((data_dir / name).is_dir() for name in IMDB):
        return config
    return TextConfig(tuple((name, OF_IMDB.get(sweep, sweep)) for name, sweep in config.sizes))


def sources(config: TextConfig, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read."""
    return data_of([sweep for _, sweep in config.sizes], data_dir)
