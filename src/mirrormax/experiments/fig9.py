"""Fig 9: does attention select the words that decide a review? Scores on sentences with these words marked.

Ours are 252 short reviews that we wrote, with one or more decisive words marked by hand in each; they come with the
package (``mirrormax/data/pivots.csv``). The authors' are 50 sentences by GPT-4o with one word each, which are read from
``pivots_published.csv`` in ``--data-dir`` if it is there (columns text, pivot, label).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from mirrormax import _statistics as statistics
from mirrormax._drawing import Figure, look_of, panel, row_of_axes
from mirrormax._identity import content_digest
from mirrormax._statistics import estimate, interval, number, percent
from mirrormax.auditing import METRICS, Reading, read_reviews, score_readings
from mirrormax.data import Pivot, load_pivots, word_spans
from mirrormax.experiments import _measurements as make
from mirrormax.experiments._measurements import About, Arrays, Measured, Measurement, Rows, Told, alone
from mirrormax.experiments._running import Work
from mirrormax.experiments._sweeps import PROFILES as PROFILES
from mirrormax.experiments._sweeps import TextConfig, run_sweep
from mirrormax.experiments._sweeps import on_data as on_data
from mirrormax.experiments._sweeps import sources as training_sources
from mirrormax.nets import load_model

ABOUT = About("Fig 9: attention on the decisive words", place=100, seconds=3, revision=2, after="table1")
AUTHORS_FILE = "pivots_published.csv"
# The pivotal token's attention, scaled to [0, 1], mean over those 44 of the authors' sentences whose word is one token.
PUBLISHED: dict[float, float] = {1.1: 0.439, 2.0: 0.312}
NOTEBOOK_FILE = "real-data/attn_map.ipynb of the authors' repository"
PICTURED = 12  # reviews whose maps are shown
COMPARED = ("ℓ1.1", "ℓ2")  # models whose maps stand side by side
SHOWN = ("mass", "scaled", "hit")
LABELS = {
    "mass": "attention on the decisive words, share",
    "scaled": "the paper's score",
    "hit": "hit@1",
    "rank": "rank of the best decisive word",
}
MASS = LABELS["mass"]
PER_TOKEN = ("attention", "offsets", "special")
BETTER = {"": "ℓ1.1 above ℓ2", "authors/": "authors' sentences: ℓ1.1 above ℓ2"}
WHOSE = {"": "our 252 reviews", "authors/": "the authors' sentences"}
MOST = "By the paper's score, a sentence at a time; met if the 95 % interval of the share lies above a half."


def sources(config: TextConfig, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read, the marked sentences' among them."""
    marked = [Path(str(files("mirrormax.data").joinpath("pivots.csv"))), *_authors_file(data_dir)]
    return {**training_sources(config, data_dir), **{path.name: content_digest(path) for path in marked}}


def _authors_file(data_dir: Path | None) -> list[Path]:
    """The authors' sentences, if they are there."""
    return [] if data_dir is None else [path for path in [data_dir / AUTHORS_FILE] if path.is_file()]


def authors_sentences(path: Path) -> tuple[Pivot, ...]:
    """The authors' sentences with the first word that is the decisive one, whatever its case.

    Three of the 50 name a word that they do not have, as "excellent" for "I enjoyed the movie": they are left out. The
    authors' score leaves out three more, whose word is not one of their tokens.
    """
    pivots: list[Pivot] = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            text, word = row["text"], row["pivot"].lower()
            spans = [(start, end) for start, end in word_spans(text) if word in text[start:end].lower()]
            if spans:
                pivots.append(Pivot(str(len(pivots) + 1), text, int(row["label"] == "True"), "plain", (spans[0],)))
    if not pivots:
        raise ValueError(f"{path} has no text with its pivot in it; give columns text, pivot and label.")
    return tuple(pivots)


def run(config: TextConfig, work: Work) -> Arrays:
    size, sweep = config.sizes[-1]
    numbers, finished = run_sweep(sweep, work)
    data: Arrays = {"size": np.array(size), "names": numbers["names"]}
    benchmarks = {"": load_pivots()}
    for path in _authors_file(work.data_dir):
        benchmarks["authors/"] = authors_sentences(path)
    for name, folders in finished.items():
        # A model that diverged in its first epoch reads nothing.
        trained = [load_model(folder / "model") for folder in folders]
        sound = [each for each in trained if all(weight.isfinite().all() for weight in each.model.parameters())]
        if not sound:
            raise ValueError(f"every run of {name} diverged; try smaller step sizes.")
        for prefix, pivots in benchmarks.items():
            texts = [pivot.text for pivot in pivots]
            readings = [read_reviews(each.model, each.tokenizer, texts) for each in sound]
            runs = [score_readings(each, pivots) for each in readings]
            data[f"{prefix}{name}/correct"] = np.stack([run.correct for run in runs])
            for metric in METRICS:  # (seeds, reviews)
                data[f"{prefix}{name}/{metric}"] = np.stack([run.scores[metric] for run in runs])
                data[f"{prefix}{name}/{metric}/chance"] = np.stack([run.chances[metric] for run in runs])
            if not prefix:  # what the maps of the pictured reviews need, their tokens one review after the other
                shown = [readings[0][i] for i in _chosen()]
                for key in PER_TOKEN:
                    data[f"{name}/maps/{key}"] = np.concatenate([np.asarray(getattr(each, key)) for each in shown])
                data[f"{name}/maps/lengths"] = np.array([len(each.offsets) for each in shown])
                data[f"{name}/maps/prediction"] = np.array([each.prediction for each in shown])
    return data


def maps(data: Arrays) -> tuple[list[Pivot], dict[str, list[Reading]]]:
    """The pictured reviews, and how the first model of each of two contenders reads them."""
    pivots, readings = load_pivots(), {}
    for name in COMPARED:
        kept = {key.removeprefix(f"{name}/maps/"): value for key, value in data.items()}
        ends = np.cumsum(kept["lengths"])[:-1]
        columns = (np.split(kept[key], ends) for key in PER_TOKEN)
        readings[name] = [
            Reading(attention, tuple(map(tuple, offsets.tolist())), special, int(prediction))
            for attention, offsets, special, prediction in zip(*columns, kept["prediction"], strict=True)
        ]
    return [pivots[i] for i in _chosen()], readings


def _chosen() -> list[int]:
    """Reviews at even distances through the benchmark, so that all kinds are among them."""
    return [round(place) for place in np.linspace(0, len(load_pivots()) - 1, PICTURED).tolist()]


def measure(data: Arrays) -> Rows:
    gap = PUBLISHED[1.1] - PUBLISHED[2.0]
    for metric, size in (("scaled", gap), ("mass", None), ("hit", None)):
        yield from _more(data, metric, size)
        yield from _more(data, metric, None, above_chance=True)
    yield _better(data, "")
    if "authors/ℓ1.1/scaled" in data:
        yield from _more(data, "scaled", gap, prefix="authors/")
        yield _better(data, "authors/")
    for name in data["names"].tolist():
        yield alone("answers right on the marked reviews", float(data[f"{name}/correct"].mean()), column=name)
        for metric, label in LABELS.items():
            yield alone(label, statistics.bootstrap_mean(data[f"{name}/{metric}"].mean(0)), column=name)
            yield alone(f"{label}: by chance", float(data[f"{name}/{metric}/chance"].mean()), column=name)


def _more(data: Arrays, metric: str, size: float | None, *, above_chance: bool = False, prefix: str = "") -> Rows:
    """ℓ1.1 above ℓ2: decided if it is both over reviews, the runs' mean, and over runs, the reviews' mean."""
    first, second = (data[f"{prefix}{name}/{metric}"] for name in COMPARED)
    if above_chance:
        first, second = first - data[f"ℓ1.1/{metric}/chance"], second - data[f"ℓ2/{metric}/chance"]
    over_reviews = statistics.paired_difference(first.mean(0), second.mean(0))
    over_runs = statistics.difference(first.mean(1), second.mean(1))
    verdicts = {make.decided(gain.low, gain.high) for gain in (over_reviews, over_runs)}
    verdict = verdicts.pop() if len(verdicts) == 1 else make.UNDECIDED
    if verdict == make.UNDECIDED and size is not None and max(over_reviews.high, over_runs.high) < size:
        verdict = make.SMALLER
    runs = f",{interval(over_runs.low, over_runs.high, sign=True)} over runs" if np.isfinite(over_runs.low) else ""
    quantity = f"{BETTER[prefix]}, {LABELS[metric]}{', less chance' if above_chance else ''}"
    why = "One of the intervals holds zero." if verdict == make.UNDECIDED else make.REASONS.get(verdict, "")
    ours = f"{estimate(over_reviews, digits=2, sign=True)} over reviews{runs}"
    row = replace(alone(quantity, over_reviews, why, ours=ours), published="more", verdict=verdict)
    if size is not None:
        known = number(size, sign=True)
        row = replace(row, published=known, target=size, source=make.NOTEBOOK, where=NOTEBOOK_FILE)
    yield row
    yield alone(f"over runs: {quantity}", over_runs)


def _better(data: Arrays, prefix: str) -> Measurement:
    """On how many sentences ℓ1.1 selects the decisive word better; on ties, nobody does."""
    first, second = (data[f"{prefix}{name}/scaled"].mean(0) for name in COMPARED)
    better = (first > second)[first != second]
    part = statistics.share(better)
    ours = f"{better.sum()} of {better.size}{interval(part.low, part.high)}"
    quantity = f"sentences on which ℓ1.1 selects better than ℓ2, {WHOSE[prefix]}"
    return make.above(quantity, "3 of 5", 0.5, part, MOST, where="Fig 9's caption", ours=ours)


def tell(data: Arrays, table: Measured) -> Told:
    (gain,) = table.rows(f"ℓ1.1 above ℓ2, {MASS}")
    words = {
        make.MET: "ℓ1.1 gives decisive words more attention than ℓ2",
        make.DIFFERS: "ℓ1.1 gives decisive words less attention than ℓ2, not more",
    }.get(gain.verdict, "Whether ℓ1.1 or ℓ2 gives decisive words more attention is open here")
    first, second = (percent(table.values(MASS, name)[0], 1) for name in COMPARED)
    statement = "ℓ1.1's attention selects the decisive words better than gradient descent's"
    measured = f"Decisive words get {first} of the attention under ℓ1.1, {second} under ℓ2."
    claim = table.claim(statement, measured, "ℓ1.1 above ℓ2", larger="decisive")
    # Met if every score agrees; differs if none does and at least half say the opposite; else undecided.
    verdicts = [row.verdict for row in table.rows("ℓ1.1 above ℓ2")]
    opposite = make.MET not in verdicts and 2 * verdicts.count(make.DIFFERS) >= len(verdicts)
    verdict = make.MET if set(verdicts) == {make.MET} else make.DIFFERS if opposite else make.UNDECIDED
    return Told(
        f"{words}: {number(100 * (gain.value or 0.0), 2, sign=True)} points of it",
        f"It is {first} and {second} of the [CLS] query's attention on the text of {len(load_pivots())} short reviews, "
        "which we wrote and marked.",
        replace(claim, verdict=verdict),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Each score with its chance level by model, and the paired difference ℓ1.1 − ℓ2 with its intervals."""
    fig, axes = row_of_axes(len(SHOWN) + 1, width=12.5, height=3.7, ratios=[1.0] * len(SHOWN) + [1.35])
    for ax, metric in zip(axes, SHOWN, strict=False):
        rows = table.rows(LABELS[metric])
        for place, row in enumerate(rows):
            (mean, low, high), look = np.array([row.value, row.low, row.high], float), look_of(row.column)
            ax.errorbar(place, mean, [[mean - low], [high - mean]], fmt=look.marker, color=look.colour, capsize=4)
            chance = table.values(f"{row.quantity}: by chance", row.column)[0]
            ax.hlines(chance, place - 0.3, place + 0.3, color="0.4", linestyle=":", linewidth=1.6)
        ax.set_xticks(range(len(rows)), [row.column for row in rows])
        panel(ax, LABELS[metric], xlim=(-0.6, len(rows) - 0.4), ylim=(0, None))
    axes[0].plot([], [], color="0.4", linestyle=":", label="chance")
    axes[0].legend(fontsize=8, loc="lower right")
    ax = axes[-1]
    kinds = (("", "reviews", -0.12, "black"), ("over runs: ", "runs", 0.12, "0.55"))
    for kind, name, shift, colour in kinds:
        for place, metric in enumerate(SHOWN):
            row = table.rows(f"{kind}{BETTER['']}, {LABELS[metric]}")[0]
            mean, low, high = np.array([row.value, row.low, row.high], float)
            ax.plot([low, high], [place + shift] * 2, color=colour, linewidth=2.4, solid_capstyle="butt")
            ax.plot(mean if np.isfinite(low) else np.nan, place + shift, "o", color=colour, markersize=5)
        ax.plot([], [], color=colour, linewidth=2.4, label=f"95 %, over {name}")
    gap = PUBLISHED[1.1] - PUBLISHED[2.0]
    ax.plot(gap, SHOWN.index("scaled"), "*", color="#762A83", markersize=12, linestyle="none", label="published")
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(SHOWN)), ["share", "paper's score", "hit@1"])
    panel(ax, "ℓ1.1 − ℓ2, paired by review", ylim=(len(SHOWN) - 0.4, -0.6))
    ax.locator_params(axis="x", nbins=4)
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1))  # inside it would lie on intervals
    return fig
