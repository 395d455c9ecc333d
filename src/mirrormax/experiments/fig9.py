"""Fig 9: does attention select the words that decide a review? Scores on a benchmark with these words marked."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax._identity import content_digest
from mirrormax.auditing import METRICS, PivotScores, Reading, compare, mean_scores, read_reviews, score_readings
from mirrormax.data import Pivot, load_pivots
from mirrormax.experiments._contract import (
    DIFFERS,
    MET,
    REASONS,
    SMALLER,
    UNDECIDED,
    Arrays,
    Claim,
    Comparison,
    Rows,
    Values,
    decided,
    interval,
    number,
    ours_alone,
    percent,
    welch_interval,
)
from mirrormax.experiments._sentiment import PROFILES as PROFILES
from mirrormax.experiments._sentiment import Config, run_sizes
from mirrormax.experiments._sentiment import on_data as on_data
from mirrormax.experiments._sentiment import sources as training_sources
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Fig 9: attention on the decisive words"
SHORT = "Fig 9"
PLACE = 100
SECONDS = 10
# The pivotal token's attention, scaled to [0, 1], mean over 44 reviews.
PUBLISHED: dict[float, float] = {1.1: 0.439, 2.0: 0.312}
PICTURED = 12  # reviews whose maps are shown
COMPARED = ("ℓ1.1", "ℓ2")  # models whose maps stand side by side
SHOWN = ("mass", "scaled", "hit")
LABELS = {
    "mass": "attention on the decisive words, share",
    "scaled": "the paper's score",
    "hit": "hit@1",
    "rank": "rank of the best decisive word",
}


def sources(config: Config, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read, the benchmark's among them."""
    benchmark = Path(str(files("mirrormax.data").joinpath("pivots.csv")))
    return {**training_sources(config, data_dir), benchmark.name: content_digest(benchmark)}


def run(config: Config, work: Work) -> Arrays:
    size, finished = run_sizes(config, work, last_only=True)[0]
    names = [each.contender.name for each in finished]
    data: Arrays = {"size": np.array(size), "names": np.array(names)}
    for each in finished:
        found = [_readings(folder / "model") for folder in each.folders]
        readings = [reading for reading in found if reading is not None]
        if not readings:
            raise ValueError(f"every run of {each.contender.name} diverged; try smaller step sizes.")
        data[f"{each.contender.name}/diverged"] = np.array(len(found) - len(readings))
        data |= _scores(each.contender.name, readings)
        data |= _maps(each.contender.name, readings[0])
    return data


def _readings(folder: Path) -> tuple[Reading, ...] | None:
    """How a model reads the benchmark; None if it diverged in its first epoch and so reads nothing."""
    from mirrormax.nets import load_model

    checkpoint = load_model(folder)
    if not all(weight.isfinite().all() for weight in checkpoint.model.parameters()):
        return None
    return read_reviews(checkpoint.model, checkpoint.tokenizer, [pivot.text for pivot in load_pivots()])


def _scores(name: str, readings: list[tuple[Reading, ...]]) -> Arrays:
    """Every score (seeds, reviews) of a contender, its chance level, and whether the answer was right."""
    runs = [score_readings(each, load_pivots()) for each in readings]
    data: Arrays = {f"{name}/correct": np.stack([each.correct for each in runs])}
    for metric in METRICS:
        data[f"{name}/{metric}"] = np.stack([each.scores[metric] for each in runs])
        data[f"{name}/{metric}/chance"] = np.stack([each.chances[metric] for each in runs])
    return data


def _maps(name: str, readings: tuple[Reading, ...]) -> Arrays:
    """What the maps of the pictured reviews need, a row each, padded."""
    shown = [readings[i] for i in _chosen()]
    longest = max(len(reading.offsets) for reading in shown)
    attention, offsets = np.zeros((len(shown), longest)), np.zeros((len(shown), longest, 2), int)
    special, lengths = np.zeros((len(shown), longest), bool), np.array([len(reading.offsets) for reading in shown])
    for row, reading in enumerate(shown):
        end = lengths[row]
        attention[row, :end], offsets[row, :end], special[row, :end] = (
            reading.attention,
            reading.offsets,
            reading.special,
        )
    said = np.array([reading.prediction for reading in shown])
    kept = {"attention": attention, "offsets": offsets, "special": special, "lengths": lengths, "prediction": said}
    return {f"{name}/maps/{key}": value for key, value in kept.items()}


def maps(data: Arrays) -> tuple[list[Pivot], dict[str, list[Reading]]]:
    """The pictured reviews, and how the first model of each of two contenders reads them."""
    pivots = load_pivots()
    return [pivots[i] for i in _chosen()], {name: _pictured(data, name) for name in COMPARED}


def _pictured(data: Arrays, name: str) -> list[Reading]:
    kept = {key: data[f"{name}/maps/{key}"] for key in ("attention", "offsets", "special", "prediction", "lengths")}
    return [
        Reading(
            kept["attention"][row, :end],
            tuple(map(tuple, kept["offsets"][row, :end].tolist())),
            kept["special"][row, :end],
            int(kept["prediction"][row]),
        )
        for row, end in enumerate(kept["lengths"].tolist())
    ]


def _chosen() -> list[int]:
    """Reviews at even distances through the benchmark, so that all kinds are among them."""
    return [round(place) for place in np.linspace(0, len(load_pivots()) - 1, PICTURED).tolist()]


def scores_of(data: Arrays, name: str) -> PivotScores:
    """Review by review the mean over a contender's seeds."""
    return mean_scores(
        [
            PivotScores(
                load_pivots(),
                {metric: data[f"{name}/{metric}"][seed] for metric in METRICS},
                {metric: data[f"{name}/{metric}/chance"][seed] for metric in METRICS},
                data[f"{name}/correct"][seed],
            )
            for seed in range(len(data[f"{name}/correct"]))
        ]
    )


def summary(data: Arrays) -> Rows:
    rows = {}
    for name in data["names"].tolist():
        scores = scores_of(data, name)
        rows[name] = {"accuracy": scores.estimate("accuracy").mean}
        for metric in METRICS:
            estimate = scores.estimate(metric)
            rows[name] |= {
                metric: estimate.mean,
                f"{metric} low": estimate.low,
                f"{metric} high": estimate.high,
                f"{metric} chance": scores.chance(metric),
            }
    return rows


def shows(data: Arrays) -> str:
    told = []
    for name in data["names"].tolist():
        scores = scores_of(data, name)
        told.append(f"{name} {percent(scores.estimate('mass').mean, 1)} (chance {percent(scores.chance('mass'), 1)})")
    gain = compare(scores_of(data, "ℓ1.1"), scores_of(data, "ℓ2"))["mass"]
    return (
        f"Under ℓ1.1 the decisive words get {number(abs(gain.mean), 2)} {'more' if gain.mean > 0 else 'less'} of the "
        f"attention than under ℓ2 (difference {number(gain.mean, 2, sign=True)}, 95 % interval"
        f"{interval(gain.low, gain.high, sign=True)} over reviews). "
        f"Their shares of the [CLS] query's attention on the text of {len(load_pivots())} short reviews are: "
        f"{', '.join(told)}."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    gap = PUBLISHED[1.1] - PUBLISHED[2.0]
    rows = []
    for metric, size in (("scaled", gap), ("mass", None), ("hit", None)):
        told = "more" if size is None else number(size, sign=True)
        rows.append(_more(data, metric, told, above_chance=False, size=size))
        rows.append(_more(data, metric, "more", above_chance=True))
    for name in data["names"].tolist():
        scores = scores_of(data, name)
        for metric, label in LABELS.items():
            value = scores.estimate(metric)
            told = f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}], chance {scores.chance(metric):.3f}"
            rows.append(ours_alone(label, told, column=name))
    return rows


def claims(data: Arrays) -> list[Claim]:
    rows = [row for row in comparisons(data) if row.quantity.startswith("ℓ1.1 above ℓ2")]
    means = [percent(scores_of(data, name).estimate("mass").mean, 1) for name in COMPARED]
    return [
        Claim(
            "ℓ1.1's attention selects the decisive words better than gradient descent's",
            f"{means[0]} of the attention under ℓ1.1, {means[1]} under ℓ2",
            _majority(rows),
            larger="decisive",
        )
    ]


def _majority(rows: list[Comparison]) -> str:
    """Met if every score agrees; differs if none does and at least half say the opposite; else undecided."""
    found = [row.verdict for row in rows]
    if set(found) == {MET}:
        return MET
    return DIFFERS if MET not in found and 2 * found.count(DIFFERS) >= len(found) else UNDECIDED


def _more(data: Arrays, metric: str, told: str, *, above_chance: bool, size: float | None = None) -> Comparison:
    """ℓ1.1 above ℓ2: decided if it is both over reviews, the runs' mean, and over runs, the reviews' mean."""
    gain = compare(scores_of(data, "ℓ1.1"), scores_of(data, "ℓ2"), above_chance=above_chance)[metric]
    first, second = (_run_means(data, name, metric, above_chance) for name in ("ℓ1.1", "ℓ2"))
    low, _, high = welch_interval(first, second)
    verdicts = {decided(gain.low, gain.high), decided(low, high)}
    verdict = verdicts.pop() if len(verdicts) == 1 else UNDECIDED
    if verdict == UNDECIDED and size is not None and max(gain.high, high) < size:
        verdict = SMALLER
    over_runs = f",{interval(low, high, sign=True)} over runs" if np.isfinite(low) else ""
    return Comparison(
        f"ℓ1.1 above ℓ2, {LABELS[metric]}{', less chance' if above_chance else ''}",
        told,
        f"{number(gain.mean, 2, sign=True)}{interval(gain.low, gain.high, sign=True)} over reviews{over_runs}",
        verdict,
        "One of the intervals holds zero." if verdict == UNDECIDED else REASONS.get(verdict, ""),
    )


def _run_means(data: Arrays, name: str, metric: str, above_chance: bool) -> Values:
    chance = data[f"{name}/{metric}/chance"] if above_chance else 0.0
    means: Values = (data[f"{name}/{metric}"] - chance).mean(axis=1)
    return means


class Score(NamedTuple):
    """A model's mean score with its interval over reviews, and what chance would give."""

    mean: float
    low: float
    high: float
    chance: float


class Gain(NamedTuple):
    """ℓ1.1 − ℓ2 of a score, with its intervals over reviews and over runs; infinite ones are not drawn."""

    mean: float
    over_reviews: tuple[float, float]
    over_runs: tuple[float, float]


def draw(data: Arrays) -> Figure:
    """Each score above its chance level by model, and the paired difference ℓ1.1 − ℓ2 with its intervals."""
    scores: dict[str, dict[str, Score]] = {metric: {} for metric in SHOWN}
    for name in data["names"].tolist():
        found = scores_of(data, name)
        for metric in SHOWN:
            value = found.estimate(metric)
            scores[metric][name] = Score(value.mean, value.low, value.high, found.chance(metric))
    gains, found_gains = {}, compare(scores_of(data, "ℓ1.1"), scores_of(data, "ℓ2"))
    for metric in SHOWN:
        gain = found_gains[metric]
        first, second = (_run_means(data, name, metric, False) for name in COMPARED)
        low, _, high = welch_interval(first, second)
        gains[metric] = Gain(gain.mean, (gain.low, gain.high), (low, high))
    return draw_scores(scores, gains, _more(data, "mass", "more", above_chance=False).verdict)


def draw_scores(scores: dict[str, dict[str, Score]], gains: dict[str, Gain], verdict: str) -> Figure:
    """The same from a table of scores by metric and model, and of gains by metric."""
    fig, axes = row_of_axes(len(SHOWN) + 1, width=12.5, height=3.7, ratios=[1.0] * len(SHOWN) + [1.35])
    for ax, metric in zip(axes, SHOWN, strict=False):
        for place, (name, score) in enumerate(scores[metric].items()):
            look, reach = look_of(name), [[score.mean - score.low], [score.high - score.mean]]
            ax.errorbar(place, score.mean, reach, fmt=look.marker, color=look.colour, capsize=4)
            ax.hlines(score.chance, place - 0.3, place + 0.3, color="0.4", linestyle=":", linewidth=1.6)
        names = [*scores[metric]]
        ax.set(xticks=range(len(names)), xticklabels=names, ylim=(0, None))
        ax.set_xlim(-0.6, len(names) - 0.4)
        ax.set_title(LABELS[metric], fontsize=10)
    axes[0].plot([], [], color="0.4", linestyle=":", label="chance")
    axes[0].legend(fontsize=8, loc="lower right")
    _differences(axes[-1], gains)
    headline(fig, _finding(verdict, gains["mass"].mean))
    return fig


def _differences(ax: Axes, gains: dict[str, Gain]) -> None:
    """ℓ1.1 − ℓ2, over reviews and over runs, and what the paper has."""
    for place, metric in enumerate(SHOWN):
        gain = gains[metric]
        for (low, high), shift, colour in ((gain.over_reviews, -0.12, "black"), (gain.over_runs, 0.12, "0.55")):
            if np.isfinite(low):
                ax.plot([low, high], [place + shift] * 2, color=colour, linewidth=2.4, solid_capstyle="butt")
                ax.plot(gain.mean, place + shift, "o", color=colour, markersize=5)
    gap = PUBLISHED[1.1] - PUBLISHED[2.0]
    ax.plot(gap, SHOWN.index("scaled"), "*", color="#762A83", markersize=12)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.plot([], [], color="black", linewidth=2.4, label="95 %, over reviews")
    ax.plot([], [], color="0.55", linewidth=2.4, label="95 %, over runs")
    ax.plot([], [], "*", color="#762A83", markersize=10, linestyle="none", label="published")
    ax.set(yticks=range(len(SHOWN)), yticklabels=["share", "paper's score", "hit@1"], ylim=(len(SHOWN) - 0.4, -0.6))
    ax.set_title("ℓ1.1 − ℓ2, paired by review", fontsize=10)
    ax.locator_params(axis="x", nbins=4)
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1))  # inside it would lie on intervals


def _finding(verdict: str, gain: float) -> str:
    words = {
        MET: "ℓ1.1 gives decisive words more attention than ℓ2",
        DIFFERS: "ℓ1.1 gives decisive words less attention than ℓ2, not more",
    }.get(verdict, "Whether ℓ1.1 or ℓ2 gives decisive words more attention is open here")
    return f"{words}: {number(100 * gain, 2, sign=True)} points of it"
