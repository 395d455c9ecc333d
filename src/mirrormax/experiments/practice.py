"""In practice: what each optimizer reaches, and how much of its weights can then be cut.

Every optimizer gets the same number of step sizes. Each is tried with seed 0; the one with the best validation result
is taken, and test results are those of runs of the same length with several seeds. All have the same batches,
warm-up (a tenth of the run) and cosine, and gradients clipped at a common norm of 1, except plain ℓp descent, which is
the paper's. The matrices (not embeddings, gains, biases and heads) are then cut by magnitude, all together:

- without retraining;
- with one further epoch of the same optimizer on what is left (80 % and more), from half its step size down a cosine;
- by gradual magnitude pruning (Zhu and Gupta, 2017) with AdamW, which trains as long as the former in all: from 20 to
  80 % of the run, the share cut rises as s (1 − (1 − t)³).

Three goals, written down before the first run. A point of accuracy counts as .02 nats of a language model's loss:

1. whole, MirrorAdamW is within half a point (.01 nats) of AdamW;
2. at 80 % cut without retraining it loses at most one point (.02 nats), where AdamW loses more than ten (.2 nats);
3. its step size may be chosen from a range as wide as AdamW's: decades of the grid, joined by straight lines, on which
   the validation result is within 5 % of the best.

Before it, single runs of the language model (400 steps, one seed, reviews of IMDb) decided three things and no more:
MirrorAdamW's moments are per entry (per tensor, its loss was .17 to .2 nats higher), its weight decay is AdamW's
default (1.0 was worse whole), and AdaBreg has λ = .1 and begins with a tenth of the weights (λ = .02 and three tenths
were better whole by .03 nats and lost .2 with 80 % cut).

Two things were changed after the first whole study. Step sizes were tried in runs of half the length; on IMDb this
chose 1e-2 for AdamW, at which its longer runs fell to 61.7 %, nine points behind the others: a choice that did not
carry over, and no merit of theirs. Step sizes are tried at full length since. And as the longer trials chose 1e-3 in
places where whole models are as good at 3e-3, but can be cut far less, AdamW and MirrorAdamW are also shown at one
common step size.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from mirrormax._drawing import grid_of_axes, headline, look_of
from mirrormax._identity import identity, key
from mirrormax._results import ResultFolder
from mirrormax._statistics import Estimate, difference, mean
from mirrormax.experiments._measurements import DIFFERS, MET, OURS, UNDECIDED, Arrays, Measured, Measurement, alone
from mirrormax.experiments._numbers import percent
from mirrormax.experiments._work import Work
from mirrormax.geometry import ElasticNet
from mirrormax.optim import MirrorAdamW, MirrorDescent, param_groups, sparse_start
from mirrormax.pruning import prune
from mirrormax.training import (
    LanguageTraining,
    Prepared,
    SentimentTraining,
    TrainConfig,
    VisionTraining,
    data_digests,
    loader,
    loss_and_logits,
    prepare,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "In practice: quality, and what can be cut"
SHORT = "Practice"
PLACE = 170
SECONDS = 60
REVISION = 1
CIFAR, IMDB = "cifar-10-batches-bin", "imdb"
KIND = "run of practice"
MIRRORS = ("p = 1.1", "p = 1.25", "p = 1.5")
CUT = 0.8  # the share that the goals speak of
COMMON = 3e-3  # a step size at which all adaptive optimizers are shown, too
ENOUGH = 0.05  # of the best validation result, within which a step size counts as usable
# Whole, and lost at 80 %: what is allowed to MirrorAdamW, and what AdamW must lose more than. By unit of the task.
GOALS = {"accuracy": (0.005, 0.01, 0.1), "loss": (0.01, 0.02, 0.2)}


@dataclass(frozen=True)
class Task:
    """Data, model and batches (the optimizer's fields of ``base`` are not used), and how long to train."""

    name: str
    base: TrainConfig
    epochs: int
    tuning_epochs: int
    rows: int  # of the validation and of the test split that are looked at

    @property
    def unit(self) -> str:
        return self.base.chosen_by


@dataclass(frozen=True)
class Rival:
    """An optimizer by its name in ``_make``, and the step sizes to choose from."""

    name: str
    lrs: tuple[float, ...]


@dataclass(frozen=True)
class Config:
    tasks: tuple[Task, ...]
    rivals: tuple[Rival, ...]
    seeds: tuple[int, ...] = (3, 3, 3)  # per task
    shares: tuple[float, ...] = (0.5, 0.7, 0.8, 0.9, 0.95)
    retrained: tuple[float, ...] = (0.8, 0.9, 0.95)
    gradual: tuple[float, ...] = (0.8, 0.9)

    def __post_init__(self) -> None:
        if len({len(rival.lrs) for rival in self.rivals}) > 1:
            raise ValueError("every optimizer must get the same number of step sizes; a fair budget is the point.")
        if len(self.seeds) != len(self.tasks):
            raise ValueError(f"seeds must be one number per task, {len(self.tasks)} of them, got {self.seeds!r}.")


def _rivals(adaptive: tuple[float, ...], plain: tuple[float, ...]) -> tuple[Rival, ...]:
    names = ("AdamW", *MIRRORS, "AdaBreg")
    return (*(Rival(name, adaptive) for name in names), Rival("SGD", plain), Rival("ℓ1.1 descent", plain))


REVIEWS = SentimentTraining(
    data="imdb",
    train_limit=3000,
    embedding_std=0.3,
    batch_size=20,
    blocks=1,
    hidden=128,
    max_length=64,
    vocab_size=4000,
)
IMAGES = VisionTraining(
    data="cifar10", train_limit=6000, image_size=32, patch=8, dim=64, hidden=128, blocks=2, heads=2, head_dim=32
)
TEXT = LanguageTraining(data="imdb", train_limit=40, batch_size=8, context=64, validation=0.01)
STUDY = Config(
    (
        Task("language model", TEXT, epochs=4, tuning_epochs=4, rows=200),
        Task("IMDb", REVIEWS, epochs=4, tuning_epochs=4, rows=1000),
        Task("CIFAR-10", replace(IMAGES, dropout=0.0), epochs=4, tuning_epochs=4, rows=1000),
    ),
    _rivals((3e-4, 1e-3, 3e-3, 1e-2), (0.03, 0.1, 0.3, 1.0)),
)
BUILT_IN = replace(
    STUDY,
    tasks=(
        Task("language model", replace(TEXT, data="reviews", train_limit=2000), 6, 6, 400),
        Task("digits", VisionTraining(dropout=0.0), 8, 8, 2000),
    ),
    seeds=(3, 3),
)
QUICK = Config(
    (
        Task("language model", replace(TEXT, data="reviews", train_limit=100, dim=32, hidden=64), 2, 1, 60),
        Task("digits", VisionTraining(dropout=0.0, dim=32, hidden=64, head_dim=16), 4, 1, 300),
    ),
    _rivals((3e-3,), (0.3,)),
    seeds=(2, 2),
    shares=(0.5, 0.8, 0.9),
    retrained=(0.8,),
    gradual=(0.8,),
)
PROFILES = {"quick": QUICK, "small": BUILT_IN, "paper": BUILT_IN}


def on_data(config: Config, data_dir: Path) -> Config:
    """The study itself if the folder holds IMDb and CIFAR-10; else what the package has built in."""
    found = all((data_dir / name).is_dir() for name in (CIFAR, IMDB))
    return STUDY if found and config == BUILT_IN else config


def sources(config: Config, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read."""
    return {name: digest for task in config.tasks for name, digest in data_digests(task.base, data_dir).items()}


@dataclass(frozen=True)
class _Job:
    """One run: training, and then what is asked of its weights."""

    task: Task
    rival: str
    lr: float
    epochs: int
    seed: int = 0
    shares: tuple[float, ...] = ()
    retrained: tuple[float, ...] = ()
    gradual: float | None = None
    on_test: bool = True


def run(config: Config, work: Work) -> Arrays:
    """Tune, then train with all seeds, task by task; runs are kept under ``work.runs`` and not done twice."""
    data: Arrays = {
        "tasks": np.array([task.name for task in config.tasks]),
        "units": np.array([task.unit for task in config.tasks]),
        "rivals": np.array([rival.name for rival in config.rivals]),
        "shares": np.array(config.shares),
        "retrained": np.array(config.retrained),
        "gradual": np.array(config.gradual),
    }
    part = 1 / len(config.tasks)
    for task, count in zip(config.tasks, config.seeds, strict=True):
        trials = [
            _Job(task, rival.name, lr, task.tuning_epochs, shares=(CUT,), on_test=False)
            for rival in config.rivals
            for lr in rival.lrs
        ]
        tuned = _run_all(trials, work, 0.4 * part)
        chosen: dict[str, float] = {}
        for rival in config.rivals:
            own = [told for job, told in zip(trials, tuned, strict=True) if job.rival == rival.name]
            results = np.array([told["whole and cut"] for told in own])
            best = int((results if task.unit == "accuracy" else -results).argmax(0)[0])
            chosen[rival.name] = rival.lrs[best]
            data[f"{task.name}/{rival.name}/lrs"] = np.array(rival.lrs)
            data[f"{task.name}/{rival.name}/tuning"] = results
            data[f"{task.name}/{rival.name}/lr"] = np.array(rival.lrs[best])
        seeds = range(count)
        longer = [
            _Job(task, rival.name, chosen[rival.name], task.epochs, seed, config.shares, config.retrained)
            for seed in seeds
            for rival in config.rivals
        ]
        gradual = [
            _Job(task, "AdamW", chosen["AdamW"], task.epochs + 1, seed, gradual=share)
            for seed in seeds
            for share in config.gradual
        ]
        at_one = [rival.name for rival in config.rivals if rival.name in ("AdamW", *MIRRORS) and COMMON in rival.lrs]
        common = [
            _Job(task, name, COMMON, task.epochs, seed, config.shares, config.retrained)
            for name in at_one
            for seed in seeds
        ]
        told = _run_all([*longer, *gradual], work, 0.5 * part)
        for job, each in zip(common, _run_all(common, work, 0.1 * part), strict=True):
            place = f"{task.name}/{job.rival}/common"
            data[place] = np.array([*data.get(place, ()), each["whole and cut"]])
        for rival in config.rivals:
            own = [each for job, each in zip(longer, told, strict=False) if job.rival == rival.name]
            data[f"{task.name}/{rival.name}/test"] = np.array([each["whole and cut"] for each in own])
            data[f"{task.name}/{rival.name}/retrained"] = np.array([each["retrained"] for each in own])
        ends = np.array([each["whole and cut"][0] for each in told[len(longer) :]])
        data[f"{task.name}/gradual"] = ends.reshape(len(seeds), len(config.gradual))
        data |= {f"{task.name}/{name}": value for name, value in _costs(task, config, work.data_dir).items()}
    return data


def _run_all(jobs: Sequence[_Job], work: Work, share: float) -> list[dict[str, Any]]:
    return work.map(_kept, [(job, work.runs, work.data_dir) for job in jobs], share)


def _kept(asked: tuple[_Job, Path, Path | None]) -> dict[str, Any]:
    """What a run came to, from its folder if it was done before."""
    job, runs, data_dir = asked
    told = asdict(job)
    told["task"].pop("tuning_epochs")  # which other runs were made does not bear on this one
    about = identity(told, revision=REVISION, data=data_digests(job.task.base, data_dir))
    folder = ResultFolder(runs / f"practice-{key(about)}", KIND, within=runs.parent)
    if not folder.is_current(about):
        with folder.open(about, wait=True):
            if not folder.is_current(about):
                folder.save_json("result.json", _done(job, data_dir))
                folder.finish()
    found: dict[str, Any] = json.loads((folder.path / "result.json").read_text("utf-8"))
    return found


def _done(job: _Job, data_dir: Path | None) -> dict[str, list[float]]:
    """Results on the test or the validation split: whole and with each share cut, and after retraining."""
    prepared = _prepared(job.task.base, data_dir)
    torch.manual_seed(job.seed)
    model = type(prepared.model)(cast(Any, prepared.model).config)
    steps = job.epochs * len(loader(prepared.splits[0], job.task.base.batch_size, job.seed))
    cuts = _rising(model, job.gradual, steps) if job.gradual is not None else None
    _train(model, prepared, job, job.lr, epochs=job.epochs, warm=True, before_step=cuts)
    place = 2 if job.on_test else 1
    found: dict[str, list[float]] = {"whole and cut": [_quality(model, prepared, place, job.task)], "retrained": []}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for share in job.shares:
        cut = prune(model, share, scope="global")
        found["whole and cut"].append(_quality(model, prepared, place, job.task))
        if share in job.retrained:
            _train(model, prepared, job, job.lr / 2, epochs=1, warm=False)
            found["retrained"].append(_quality(model, prepared, place, job.task))
        cut.undo()
        model.load_state_dict(state)
    return found


@lru_cache(maxsize=3)
def _prepared(base: TrainConfig, data_dir: Path | None) -> Prepared:
    return prepare(base, data_dir)


def _make(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=lr)
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if name == "ℓ1.1 descent":
        return MirrorDescent(model.parameters(), lr=lr, p=1.1)
    if name == "AdaBreg":
        groups = param_groups(model, scope="matrices", matrices={"p": ElasticNet(LAM)}, rest={"p": 2.0})
        options: Any = {"moments": "entry", "weight_decay": 0.0, "scale": None, "trust": None, "clip": None}
        return MirrorAdamW(groups, lr=lr, **options)
    return MirrorAdamW(model, lr=lr, p=float(name.removeprefix("p = ")), moments="entry", clip=None)


# AdaBreg's threshold, and the share of the weights that it begins with.
LAM, DENSITY = 0.1, 0.1


def _train(
    model: nn.Module,
    prepared: Prepared,
    job: _Job,
    lr: float,
    *,
    epochs: int,
    warm: bool,
    before_step: Callable[[int], None] | None = None,
) -> None:
    """Train in place; a loss that is no longer finite ends it."""
    if job.rival == "AdaBreg" and warm:
        matrices = param_groups(model, scope="matrices")[0]["params"]
        sparse_start(matrices, DENSITY, generator=torch.Generator().manual_seed(job.seed))
    optimizer = _make(job.rival, model, lr)
    batches = loader(prepared.splits[0], job.task.base.batch_size, job.seed)
    steps, step = epochs * len(batches), 0
    warmup = steps / 10 if warm else 0.0
    model.train()
    for batch in _epochs(batches, epochs):
        factor = (step + 1) / (warmup + 1) if step < warmup else _cosine((step - warmup) / (steps - warmup))
        for group in optimizer.param_groups:
            group["lr"] = lr * factor
        if before_step is not None:
            before_step(step)
        optimizer.zero_grad()
        loss, _ = loss_and_logits(model, *batch)
        if not math.isfinite(float(loss.detach())):
            break
        loss.backward()
        if job.rival != "ℓ1.1 descent":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1  # noqa: SIM113
    model.eval()


def _cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def _epochs(batches: Any, epochs: int) -> Iterator[Any]:
    for epoch in range(epochs):
        batches.batch_sampler.set_epoch(epoch)
        yield from batches


def _rising(model: nn.Module, share: float, steps: int) -> Callable[[int], None]:
    """Cuts a rising share: at 20 places between 20 and 80 % of the steps, s (1 − (1 − t)³) with t from 0 to 1."""
    first, last = 0.2 * steps, 0.8 * steps
    places = {round(first + (last - first) * k / 20): k / 20 for k in range(1, 21)}

    def before_step(step: int) -> None:
        if step in places:
            prune(model, share * (1 - (1 - places[step]) ** 3), scope="global")

    return before_step


@torch.no_grad()
def _quality(model: nn.Module, prepared: Prepared, place: int, task: Task) -> float:
    """Accuracy, or nats per token, on the same rows of a split for everybody; 0 or inf where an answer is no number."""
    part = prepared.splits[place]
    rows = np.random.default_rng(0).permutation(len(part))[: task.rows]
    rows = rows[np.argsort(part.lengths()[rows], kind="stable")]
    total, correct, count = 0.0, 0, 0
    model.eval()
    for start in range(0, len(rows), 100):
        inputs, labels = part.__getitems__(rows[start : start + 100].tolist())
        loss, logits = loss_and_logits(model, inputs, labels, "sum")
        total += float(loss)
        correct += int((logits.argmax(-1) == labels).sum())
        count += labels.numel()
    if task.unit == "accuracy":
        return correct / count if math.isfinite(total) else 0.0
    return total / count if math.isfinite(total) else math.inf


def _costs(task: Task, config: Config, data_dir: Path | None) -> Arrays:
    """Per optimizer, the processor time of its own step as a multiple of AdamW's (median over rounds in which all take
    turns) and the bytes of its state per weight."""
    prepared, rounds = _prepared(task.base, data_dir), 15
    batch = next(iter(loader(prepared.splits[0], task.base.batch_size, 0)))
    optimizers = []
    for rival in config.rivals:
        torch.manual_seed(0)
        model = type(prepared.model)(cast(Any, prepared.model).config)
        optimizer = _make(rival.name, model, rival.lrs[0])
        loss_and_logits(model, *batch)[0].backward()
        optimizer.step()
        optimizers.append((model, optimizer))
    seconds = np.zeros((rounds, len(optimizers)))
    for k in range(rounds):
        for place, (_, optimizer) in enumerate(optimizers):
            start = time.process_time()  # of this process: others on the machine do not count
            optimizer.step()
            seconds[k, place] = time.process_time() - start
    weights = sum(param.numel() for param in optimizers[0][0].parameters())
    return {
        "step_time": np.median(seconds / seconds[:, :1], axis=0),
        "state_bytes": np.array([_state_bytes(optimizer) / weights for _, optimizer in optimizers]),
    }


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    found = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() * value.element_size() for value in found)


def shows(data: Arrays, found: Measured) -> str:
    told = []
    for task, unit in zip(data["tasks"].tolist(), data["units"].tolist(), strict=True):
        each = []
        for rival in data["rivals"].tolist():
            ends = data[f"{task}/{rival}/test"][:, 0], _at(data, task, rival)
            each.append(f"{rival} {' → '.join(_shown(float(end.mean()), unit) for end in ends)}")
        told.append(f"{task} ({'percent right' if unit == 'accuracy' else 'nats'}): {', '.join(each)}")
    return (
        f"Every optimizer at the step size that validation chose, whole and with {percent(CUT)} of the matrices cut. "
        "Test results whole → cut, not retrained, means over seeds (p = … is MirrorAdamW with that ℓp potential, "
        f"AdaBreg with an ElasticNet potential and a sparse start): {'; '.join(told)}."
    )


def measure(data: Arrays) -> list[Measurement]:
    """The three goals for every MirrorAdamW, AdaBreg among them, and what AdamW loses."""
    rows = []
    for task, unit in zip(data["tasks"].tolist(), data["units"].tolist(), strict=True):
        behind, lost, adamw = GOALS[unit]
        scale, word = (100, "points") if unit == "accuracy" else (1, "nats")
        reference = data[f"{task}/AdamW/test"][:, 0]
        for rival in [name for name in (*MIRRORS, "AdaBreg") if name in data["rivals"].tolist()]:
            whole = data[f"{task}/{rival}/test"][:, 0]
            pair = (reference, whole) if unit == "accuracy" else (whole, reference)
            what = f"{task}: {word} behind AdamW, whole"
            rows.append(_at_most(what, behind, difference(*pair), scale, rival))
            what = f"{task}: {word} lost with {percent(CUT)} cut"
            rows.append(_at_most(what, lost, mean(_lost(data, task, unit, rival)), scale, rival))
            ours, theirs = (_width(data, task, unit, name) for name in (rival, "AdamW"))
            verdict = MET if ours >= theirs else DIFFERS
            what, bar = f"{task}: decades of usable step sizes", f"≥ {theirs:.2f}, AdamW's"
            rows.append(Measurement(what, bar, f"{ours:.2f}", verdict, column=rival, source=OURS))
        loses = mean(_lost(data, task, unit, "AdamW"))
        verdict = MET if loses.low > adamw else DIFFERS if loses.high <= adamw else UNDECIDED
        row = alone(f"{task}: {word} that AdamW loses with {percent(CUT)} cut", loses.scaled(scale))
        rows.append(replace(row, published=f"> {scale * adamw:g}", verdict=verdict, source=OURS))
        cut = 1 + data["shares"].tolist().index(CUT)
        for name in ("AdamW", *MIRRORS):
            if f"{task}/{name}/common" in data:
                ends = data[f"{task}/{name}/common"].mean(0)
                told = f"{_shown(ends[0], unit)} → {_shown(ends[cut], unit)}"
                what = f"{task}: whole → {percent(CUT)} cut, all at lr = {COMMON:g}"
                rows.append(alone(what, told, column=name))
        for k, share in enumerate(data["gradual"].tolist()):
            what = f"{task}: {percent(share)} cut, one further epoch"
            rows.append(alone(what, _shown(data[f"{task}/gradual"][:, k].mean(), unit), column="AdamW, gradually"))
            if share in data["retrained"].tolist():
                place = data["retrained"].tolist().index(share)
                for name in data["rivals"].tolist():
                    told = _shown(data[f"{task}/{name}/retrained"][:, place].mean(), unit)
                    rows.append(alone(what, told, column=name))
    return rows


def _at_most(quantity: str, bound: float, found: Estimate, scale: float, column: str) -> Measurement:
    """A threshold that an interval is below of, above of, or neither."""
    verdict = MET if found.high <= bound else DIFFERS if found.low > bound else UNDECIDED
    why = "" if verdict != UNDECIDED else "The 95 % interval over seeds contains the threshold."
    row = alone(quantity, found.scaled(scale), why, column=column)
    return replace(row, published=f"≤ {scale * bound:g}", verdict=verdict, source=OURS)


def _at(data: Arrays, task: str, rival: str) -> Any:
    """Test results of all seeds with the share of the goals cut."""
    return data[f"{task}/{rival}/test"][:, 1 + data["shares"].tolist().index(CUT)]


def _lost(data: Arrays, task: str, unit: str, rival: str) -> Any:
    lost = data[f"{task}/{rival}/test"][:, 0] - _at(data, task, rival)
    return lost if unit == "accuracy" else -lost


def _width(data: Arrays, task: str, unit: str, rival: str) -> float:
    """Decades of step sizes within 5 % of the best validation result, between the points of the grid along lines."""
    results = data[f"{task}/{rival}/tuning"][:, 0]
    gaps = 1 - results / results.max() if unit == "accuracy" else results / results.min() - 1
    gaps = np.nan_to_num(gaps, posinf=1e9)
    places = np.log10(data[f"{task}/{rival}/lrs"])
    width = 0.0
    for k in range(len(places) - 1):
        (low, high), step = sorted(gaps[k : k + 2]), places[k + 1] - places[k]
        width += step * (1.0 if high <= ENOUGH else 0.0 if low > ENOUGH else (ENOUGH - low) / (high - low))
    return float(width)


def _shown(value: float, unit: str) -> str:
    return f"{100 * value:.1f}" if unit == "accuracy" else f"{value:.3f}"


def look(rival: str) -> dict[str, Any]:
    """As everywhere; plain descent is told from MirrorAdamW of the same p by hollow marks and dots."""
    style = look_of(rival).style(markersize=4, label=rival)
    return {**style, "markerfacecolor": "white", "linestyle": ":"} if rival.endswith("descent") else style


def draw(data: Arrays, found: Measured) -> Figure:
    """Results over the share cut, without and with retraining, and validation results over the step size.

    Where a single step size was tried, or a table does not say, there is no last row.
    """
    tasks, units = data["tasks"].tolist(), data["units"].tolist()
    rows = 3 if any(len(lrs) > 1 for name, lrs in data.items() if name.endswith("/lrs")) else 2
    fig, axes = grid_of_axes(rows, len(tasks), width=3.7 * len(tasks), height=2.9 * rows + 0.6)
    for column, (task, unit) in enumerate(zip(tasks, units, strict=True)):
        panels = [row[column] for row in axes]
        for rival in data["rivals"].tolist():
            style = look(rival)
            _curve(panels[0], [0.0, *data["shares"]], data[f"{task}/{rival}/test"], unit, style)
            _curve(panels[1], data["retrained"], data[f"{task}/{rival}/retrained"], unit, style)
            if rows == 3:
                results, lrs = data[f"{task}/{rival}/tuning"], data[f"{task}/{rival}/lrs"]
                panels[2].plot(lrs, _scaled(results[:, 0], unit), **style)
                faint = {**style, "label": "", "alpha": 0.35}
                panels[2].plot(lrs, _scaled(results[:, 1], unit), **faint)
        gradual = look_of("AdamW").style(marker="*", markersize=10, linestyle="none", label="AdamW, cut gradually")
        _curve(panels[1], data["gradual"], data[f"{task}/gradual"], unit, gradual)
        label = "percent right" if unit == "accuracy" else "nats per byte, less is better"
        titles = (f"{task}: cut, not retrained", "cut, one further epoch", f"validation; faint: {percent(CUT)} cut")
        for ax, title in zip(panels, titles, strict=False):
            ax.set_title(title, fontsize=10)
            ax.set(xlabel="percent of the matrices cut", ylabel=label)
            if unit == "loss":
                if ax is not panels[1]:
                    ax.set_ylim(top=_highest(data, task))
                ax.invert_yaxis()
        panels[1].set_xticks(100 * np.asarray(data["retrained"]))
        if rows == 3:
            panels[2].set(xlabel="step size", xscale="log")
    handles, labels = axes[1][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels) // 2, fontsize=9)
    headline(fig, _finding(data))
    return fig


def _finding(data: Arrays) -> str:
    """What cutting costs, for AdamW and for the p that loses least, by task."""
    cut = 1 + data["shares"].tolist().index(CUT)
    told = []
    for task, unit in zip(data["tasks"].tolist(), data["units"].tolist(), strict=True):
        lost = {}
        for rival in [name for name in data["rivals"].tolist() if name == "AdamW" or name.startswith("p = ")]:
            mean = data[f"{task}/{rival}/test"].mean(0)
            change = mean[cut] - mean[0] if np.isfinite(mean[0]) else np.nan
            lost[rival] = -100 * change if unit == "accuracy" else change
        best = min((rival for rival in lost if rival.startswith("p = ")), key=lambda rival: lost[rival])
        digits, name = (1, "points") if unit == "accuracy" else (2, "nats")
        first, second = (f"{lost[rival]:.{digits}f}".replace("-", "−") for rival in ("AdamW", best))
        told.append(f"{task} {first} and {second} {name} ({best})")
    return f"With {percent(CUT)} of the matrices cut, AdamW and the best p lose\n{'; '.join(told)}"


def _highest(data: Arrays, task: str) -> float:
    """Twice as far from the best result as the worst that is whole: what is worse leaves the picture."""
    whole = [data[f"{task}/{rival}/test"][:, 0] for rival in data["rivals"].tolist()]
    whole = [each for each in whole if np.isfinite(each).all()]
    return float(np.min(whole) + max(1.0, np.max(whole) - np.min(whole)) * 1.5)


def _curve(ax: Axes, shares: Any, results: Any, unit: str, look: dict[str, Any]) -> None:
    """The mean over seeds, and the range of the seeds as a band."""
    x, y = 100 * np.asarray(shares), _scaled(results, unit)
    ax.plot(x, y.mean(0), **look)
    ax.fill_between(x, y.min(0), y.max(0), color=look["color"], alpha=0.08, linewidth=0)


def _scaled(results: Any, unit: str) -> Any:
    return 100 * results if unit == "accuracy" else results
