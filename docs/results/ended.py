"""Training that ends: the plan of the study, its runs one at a time, and the tables of those that have ended.

    python docs/results/ended.py run --runs RUNS --data-dir DATA [--study reviews]
    python docs/results/ended.py table --runs RUNS --data-dir DATA

``run`` trains what is missing of the plan, the most informative first: of each study all optimizers with every step
size, then with the chosen ones a round of seeds after the other. Every run is a folder under RUNS, named by its
configuration and data, and is gone on with if it was interrupted. ``table`` can be given at any time; it writes
``docs/results/ended/`` from the runs that have ended. What counts as "holds" is in its ``README.md``,
written before the first run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch

from mirrormax._statistics import difference
from mirrormax.auditing import attention_weights, read_reviews, score_readings, sparsity
from mirrormax.data import Pivot, load_pivots
from mirrormax.experiments.fig9 import AUTHORS_FILE, authors_sentences
from mirrormax.nets import load_model
from mirrormax.pruning import prune
from mirrormax.training import (
    EpochBatches,
    SentimentTraining,
    TrainConfig,
    VisionTraining,
    is_complete,
    prepare,
    read_metrics,
    run_key,
    train,
)

OUT = Path(__file__).parent / "ended"
GOAL = 0.995  # training accuracy at which the paper stops
TAIL = 0.2  # share of the epochs in which a run that is to have settled has not moved
SETTLED = 0.002  # of training accuracy: what moves less has not moved
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95)  # of the matrices' weights, pruned
LOST = 0.01  # of test accuracy, that pruning may cost
IMAGES = ("digits", "cifar10")
ENDS = ("goal", "plateau", "settled")  # the ways in which a training has ended
AS_GOOD = 1.0  # points of accuracy within which ℓ1.1 is as accurate as Adam on images
OPTIMIZERS = {
    "ℓ1.1": ("md", 1.1),
    "ℓ2": ("md", 2.0),
    "ℓ3": ("md", 3.0),
    "AdamW": ("adamw", None),
}


@dataclass(frozen=True)
class Study:
    """A setting, the step sizes of each optimizer, and how many seeds the chosen ones are trained with."""

    base: TrainConfig
    steps: dict[str, tuple[float, ...]]
    seeds: int
    longer: tuple[int, ...] = ()  # epochs of further trainings for a run that has not ended yet

    def configs(self, name: str, lr: float, seed: int) -> list[TrainConfig]:
        """The trainings of a run, each only if the one before did not end."""
        optimizer, p = OPTIMIZERS[name]
        choices: dict[str, Any] = {} if p is None else {"p": p}
        first = replace(self.base, optimizer=optimizer, lr=lr, seed=seed, **choices)
        return [first, *(replace(first, epochs=epochs) for epochs in self.longer)]


TEXT = SentimentTraining(
    blocks=1,
    heads=2,
    dim=64,
    hidden=256,
    max_length=64,
    batch_size=50,
    epochs=60,
    stop_accuracy=GOAL,
)
IMAGE = VisionTraining(batch_size=50, schedule="cosine-epochs", stop_accuracy=2.0, epochs=200)
SAMPLE = {"train": 5_000, "test": 2_500}  # of the texts of IMDb
PLAN = {
    "reviews": Study(
        TEXT,
        {"ℓ1.1": (0.05, 0.1, 0.2), "ℓ2": (0.1, 0.2, 0.4), "ℓ3": (0.003, 0.01, 0.03), "AdamW": (3e-4, 1e-3, 3e-3)},
        seeds=5,
        longer=(120, 240),
    ),
    "digits": Study(
        IMAGE,
        {"ℓ1.1": (0.03, 0.1, 0.3), "ℓ2": (0.03, 0.1, 0.3), "ℓ3": (0.003, 0.01, 0.03), "AdamW": (3e-4, 1e-3, 3e-3)},
        seeds=5,
    ),
    "imdb": Study(
        replace(TEXT, data="imdb", epochs=120),
        {"ℓ1.1": (0.05, 0.1, 0.2), "ℓ2": (0.1, 0.2, 0.4), "ℓ3": (0.003, 0.01, 0.03), "AdamW": (3e-4, 1e-3, 3e-3)},
        seeds=3,
    ),
    "cifar10": Study(
        replace(IMAGE, data="cifar10", image_size=32, patch=8, train_limit=2_000, epochs=600),
        {"ℓ1.1": (0.03, 0.1, 0.3), "ℓ2": (0.03, 0.1, 0.3), "ℓ3": (0.003, 0.01, 0.03), "AdamW": (3e-4, 1e-3, 3e-3)},
        seeds=3,
        longer=(1200,),
    ),
}


@dataclass(frozen=True)
class Run:
    """A finished run of the plan."""

    study: str
    optimizer: str
    lr: float
    seed: int
    folder: Path

    @property
    def rows(self) -> list[dict[str, float]]:
        return read_metrics(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary.json").read_text("utf-8")))


def ended(rows: Sequence[dict[str, float]], config: TrainConfig) -> str:
    """How a run ended: at the goal, at a plateau, settled, diverged, or not (""), by the rule of the page."""
    accuracy = [row["train_accuracy"] for row in rows]
    if not math.isfinite(rows[-1]["train_loss"]):
        return "diverged"
    if accuracy[-1] >= config.stop_accuracy:
        return "goal"
    if isinstance(config, SentimentTraining):
        losses, half = [row["validation_loss"] for row in rows], len(rows) // 2
        return "plateau" if min(losses[half:]) >= min(losses[:half]) else ""
    tail = max(1, round(TAIL * len(rows)))
    return "settled" if max(accuracy[-tail:]) - max(accuracy[:-tail]) <= SETTLED else ""


class Plan:
    """What of the plan is done, in a folder of runs."""

    def __init__(self, runs: Path, data_dir: Path | None) -> None:
        self.runs, self.data_dir = runs, data_dir

    def data(self, study: str) -> Path | None:
        """Where a study reads its data: for IMDb a sample, as evaluating 25,000 texts takes longer than training."""
        if study != "imdb" or self.data_dir is None:
            return self.data_dir
        folder = self.runs / "imdb-sample"
        if not folder.is_dir():
            write_sample(self.data_dir / "imdb", folder)
        return folder

    def folder(self, study: str, config: TrainConfig) -> Path:
        return self.runs / f"{config.task}-{run_key(config, self.data(study))}"

    def missing(self, study: str, name: str, lr: float, seed: int) -> TrainConfig | None:
        """The training that a run still needs."""
        for config in PLAN[study].configs(name, lr, seed):
            folder = self.folder(study, config)
            if not is_complete(folder, config, self.data(study)):
                return config
            if ended(read_metrics(folder), config):
                break
        return None

    def finished(self, study: str, name: str, lr: float, seed: int) -> Run | None:
        if self.missing(study, name, lr, seed) is not None:
            return None
        folders = [self.folder(study, config) for config in PLAN[study].configs(name, lr, seed)]
        return Run(study, name, lr, seed, [folder for folder in folders if folder.is_dir()][-1])

    def step(self, study: str, name: str) -> float | None:
        """The step size of the first seed's best run on validation, of those that ended; None while one is missing."""
        found = [self.finished(study, name, lr, 0) for lr in PLAN[study].steps[name]]
        if any(run is None for run in found):
            return None
        runs = [run for run in found if run is not None]
        base = PLAN[study].base
        good = [run for run in runs if ended(run.rows, base) in ENDS] or runs
        return max(good, key=lambda run: run.summary["validation_accuracy"]).lr

    def order(self, study: str, optimizers: Sequence[str]) -> Iterator[tuple[str, float, int]]:
        """The runs of a study, most informative first; the step sizes must be known when the seeds are reached."""
        steps = {name: PLAN[study].steps[name] for name in optimizers}
        for place in (1, 0, 2):  # the middle of each first
            for name, lrs in steps.items():
                yield name, lrs[place], 0
        for seed in range(1, PLAN[study].seeds):
            for name in steps:
                chosen = self.step(study, name)
                assert chosen is not None, "every step size was tried above"
                yield name, chosen, seed

    def total(self, study: str) -> int:
        plan = PLAN[study]
        return sum(len(lrs) for lrs in plan.steps.values()) + (plan.seeds - 1) * len(plan.steps)

    def all_finished(self, study: str) -> list[Run]:
        """Every finished run of a study."""
        plan, found = PLAN[study], []
        if not self.begun(plan.base.data):  # its data need not be read, which takes minutes
            return []
        for name, lrs in plan.steps.items():
            found += [self.finished(study, name, lr, 0) for lr in lrs]
            chosen = self.step(study, name)
            if chosen is not None:
                found += [self.finished(study, name, chosen, seed) for seed in range(1, plan.seeds)]
        return [run for run in found if run is not None]

    def begun(self, data: str) -> bool:
        """Whether there is a run on these data, finished or not."""
        configs = self.runs.glob("*/config.json")
        return any(json.loads(path.read_text("utf-8"))["data"] == data for path in configs)

    def chosen(self, study: str) -> dict[str, list[Run]]:
        """The finished runs with the chosen step size, by optimizer."""
        plan, found = PLAN[study], {}
        for name in plan.steps:
            lr = self.step(study, name)
            runs = [] if lr is None else [self.finished(study, name, lr, seed) for seed in range(plan.seeds)]
            found[name] = [run for run in runs if run is not None]
        return found


def write_sample(imdb: Path, folder: Path) -> None:
    """Write texts of both splits of IMDb, drawn at random, in the layout that the reader knows."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:  # a name of its own, should this be interrupted
        part = Path(temporary) / folder.name
        part.mkdir()
        for split, count in SAMPLE.items():
            table = pyarrow.parquet.read_table(sorted(imdb.glob(f"{split}-*.parquet")))
            rows = np.random.default_rng(0).permutation(table.num_rows)[:count]
            pyarrow.parquet.write_table(table.take(rows), part / f"{split}-00000-of-00001.parquet")
        part.rename(folder)


def run(plan: Plan, studies: Sequence[str], optimizers: Sequence[str]) -> None:
    """Train what is missing, one run at a time."""
    for study in studies:
        for name, lr, seed in plan.order(study, optimizers):
            while (config := plan.missing(study, name, lr, seed)) is not None:
                print(f"{study}: {name}, step {lr:g}, seed {seed}, {config.epochs} epochs", flush=True)
                folder = train(config, plan.folder(study, config), plan.data(study))
                rows = read_metrics(folder)
                how = ended(rows, config) or "not ended"
                print(f"  {how} after {len(rows)} epochs, test {rows[-1]['test_accuracy']:.4f}", flush=True)


def published_pivots(data_dir: Path | None) -> tuple[Pivot, ...]:
    """The authors' sentences, where the data folder has them, with the word that they call pivotal."""
    path = None if data_dir is None else data_dir / AUTHORS_FILE
    return authors_sentences(path) if path is not None and path.is_file() else ()


def measures(each: Run, data_dir: Path | None, test: Any) -> dict[str, float]:
    """What the model at the end of a run is like."""
    checkpoint = load_model(each.folder / "last")
    model, summary = checkpoint.model, each.summary
    found = {
        "ended": float(ended(each.rows, PLAN[each.study].base) in ENDS),
        "epochs": float(summary["epochs"]),
        "train_accuracy": summary["last_train_accuracy"],
        "test_at_the_end": summary["last_test_accuracy"],
        "test_by_validation": summary["test_accuracy"],
        "test_best_epoch": summary["best_test_accuracy"],
    }
    weights = attention_weights(model)
    hoyer = [sparsity(*(w.double().numpy() for w in matrices)).hoyer for matrices in weights.values()]
    found["hoyer"] = float(np.mean(hoyer))
    if each.study in ("reviews", "imdb"):
        for name, pivots in (("decisive_252", load_pivots()), ("decisive_published", published_pivots(data_dir))):
            if pivots:
                readings = read_reviews(model, checkpoint.tokenizer, [pivot.text for pivot in pivots])
                found[name] = float(np.mean(score_readings(readings, pivots).scores["scaled"]))
    whole, kept = accuracy(model, test), 0.0
    for share in SHARES:
        prune(model, share)
        right = accuracy(model, test)
        found[f"test_pruned_{share:g}"] = right
        if right >= whole - LOST and kept == previous(share):
            kept = share
    found["prunable"] = kept
    return found


def previous(share: float) -> float:
    """The share before this one, so that what can be pruned has no gaps."""
    return (0.0, *SHARES)[SHARES.index(share)]


def accuracy(model: Any, test: Any) -> float:
    batches = [test.__getitems__(rows) for rows in EpochBatches(test.lengths(), 200, seed=None)]
    with torch.no_grad():
        right = sum(int((model(inputs).argmax(-1) == labels).sum()) for inputs, labels in batches)
    return right / len(test)


def table(plan: Plan) -> None:
    """Write the tables of what has ended; those of studies without a run here stay as they are."""
    for study in PLAN:
        runs = plan.all_finished(study)
        if not runs:
            continue
        write(OUT / f"{study}-runs.csv", [described(run) for run in runs])
        test = prepare(PLAN[study].base, plan.data(study)).splits[2]
        by_name = {
            name: [measures(run, plan.data_dir, test) for run in runs_of]
            for name, runs_of in plan.chosen(study).items()
        }
        each = [{"optimizer": name, **row} for name, rows in by_name.items() for row in rows]
        write(OUT / f"{study}-chosen.csv", each)
        means = [
            {
                "optimizer": name,
                "seeds": len(rows),
                **{key: float(np.mean([row[key] for row in rows])) for key in rows[0]},
            }
            for name, rows in by_name.items()
            if rows
        ]
        write(OUT / f"{study}-means.csv", means)
        others = [row for row in read(OUT / "differences.csv") if row["study"] != study]
        order = list(PLAN)
        records = sorted([*others, *differences(study, by_name)], key=lambda row: order.index(row["study"]))
        write(OUT / "differences.csv", records)
    lines = []
    for study in PLAN:
        done = len(read(OUT / f"{study}-runs.csv"))
        lines.append(f"**{study}**: {done} of {plan.total(study)} runs of the plan are done.\n")
        if done:
            lines += [markdown(read(OUT / f"{study}-means.csv"), study), ""]
    lines += [
        "Differences of means over seeds, with Welch's 95 % intervals:\n",
        verdict_table(read(OUT / "differences.csv")),
    ]
    (OUT / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def described(each: Run) -> dict[str, Any]:
    rows = each.rows
    last, best = rows[-1], max(rows, key=lambda row: row["validation_accuracy"])
    return {
        "optimizer": each.optimizer,
        "lr": each.lr,
        "seed": each.seed,
        "ended": ended(rows, PLAN[each.study].base) or "no",
        "epochs": len(rows),
        "train_accuracy": last["train_accuracy"],
        "validation_accuracy": best["validation_accuracy"],
        "test_at_the_end": last["test_accuracy"],
        "test_by_validation": best["test_accuracy"],
    }


QUESTIONS = (  # of the page: quantity, in which unit, first, second, the paper's size of it where it has one
    ("test_by_validation", 100, "ℓ1.1", "ℓ2", 1.43),
    ("test_at_the_end", 100, "ℓ1.1", "ℓ2", 1.48),
    ("test_best_epoch", 100, "ℓ1.1", "ℓ2", 1.43),
    ("test_by_validation", 100, "ℓ1.1", "ℓ3", 0.90),
    ("test_by_validation", 100, "ℓ1.1", "AdamW", None),
    ("hoyer", 1, "ℓ1.1", "ℓ2", None),
    ("hoyer", 1, "ℓ1.1", "AdamW", None),
    ("prunable", 1, "ℓ1.1", "ℓ2", None),
    ("prunable", 1, "ℓ1.1", "AdamW", None),
    ("decisive_252", 1, "ℓ1.1", "ℓ2", 0.127),
    ("decisive_published", 1, "ℓ1.1", "ℓ2", 0.127),
)


def differences(study: str, by_name: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    found = []
    for quantity, unit, first, second, published in QUESTIONS:
        pair = [[unit * each[quantity] for each in by_name[name] if quantity in each] for name in (first, second)]
        if min(map(len, pair)) < 2:
            continue
        gap = difference(*pair)
        over = all(each["ended"] for name in (first, second) for each in by_name[name])
        about_accuracy = study in IMAGES and second == "AdamW" and quantity.startswith("test")
        found.append(
            {
                "study": study,
                "quantity": quantity,
                "between": f"{first} − {second}",
                "seeds": min(map(len, pair)),
                "difference": gap.mean,
                "low": gap.low,
                "high": gap.high,
                "published": published,
                "verdict": verdict(gap.low, gap.high, published, as_good=about_accuracy) if over else "not ended",
            }
        )
    return found


def verdict(low: float, high: float, published: float | None, *, as_good: bool = False) -> str:
    """By the rule of the page; ``as_good``: the claim is that the two are as accurate."""
    if as_good:
        within = low > -AS_GOOD and high < AS_GOOD
        return "holds" if within else "the reverse" if high < -AS_GOOD or low > AS_GOOD else "undecided"
    if low > 0:
        return "holds"
    if high < 0:
        return "the reverse"
    return "smaller than published" if published is not None and high < published else "undecided"


def markdown(rows: Sequence[dict[str, Any]], study: str) -> str:
    names = [
        "seeds",
        "ended",
        "epochs",
        "train_accuracy",
        "test_at_the_end",
        "test_by_validation",
        "test_best_epoch",
        "hoyer",
        "prunable",
        *(["decisive_252", "decisive_published"] if study in ("reviews", "imdb") else []),
    ]
    lines = [f"| {study} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = [f"{float(row[name]):.4g}" if name in row else "" for name in names]
        lines.append(f"| {row['optimizer']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict_table(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| study | quantity | between | seeds | difference | 95 % interval | published | verdict |",
        "|---" * 8 + "|",
    ]
    for each in records:
        difference, low, high = (float(each[name]) for name in ("difference", "low", "high"))
        interval = f"[{low:+.3g}, {high:+.3g}]"
        published = f"{float(each['published']):+g}" if each["published"] else ""
        cells = [each["study"], each["quantity"], each["between"], str(each["seeds"]), f"{difference:+.3g}"]
        lines.append(f"| {' | '.join([*cells, interval, published, each['verdict']])} |")
    return "\n".join(lines)


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs; kept outside the repository")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--study", action="append", choices=tuple(PLAN), help="these alone, in this order")
    parser.add_argument(
        "--optimizer", action="append", choices=tuple(OPTIMIZERS), help="these alone, so that several can run at once"
    )
    args = parser.parse_args()
    plan = Plan(args.runs, args.data_dir)
    torch.set_num_threads(1)
    if args.what == "table":
        table(plan)
    else:
        run(plan, args.study or tuple(PLAN), args.optimizer or tuple(OPTIMIZERS))


if __name__ == "__main__":
    main()
