"""The report of a reproduction: one HTML file with everything in it, from saved results alone.

It opens with the verdict: sentences and one table of the paper's claims, both counted from the results. Each experiment
follows with its figure, its verdicts, counted, and the rows that stand out; all else is folded away until it is asked
for. Rows that repeat for each p or method are one, with a column for each of these.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

import mirrormax
from mirrormax._files import load_arrays
from mirrormax.experiments import (
    DIFFERS,
    ERRATA,
    ERRATUM,
    LATE,
    MISPRINTS,
    NOT_PUBLISHED,
    NOTEBOOK,
    OURS,
    PAPER,
    READINGS,
    RERUN,
    SMALLER,
    VERDICTS,
    Measurement,
    Result,
    load_experiment,
    worst_of,
)
from mirrormax.report.maps import attention_maps
from mirrormax.report.pages import render

BADGES = {  # what a verdict on a claim of the paper is called
    "met": "holds",
    "bettered": "holds",
    "erratum": "corrected",
    "differs": "does not hold here",
    "smaller than published": "smaller than published",
    "undecided": "not decided",
    "not published": "measured",
}
STAND_OUT = {DIFFERS, ERRATUM, SMALLER}
"""Verdicts that a reader should not have to unfold anything to see."""
SEVERAL = {DIFFERS: "differ", ERRATUM: "errata"}
COUNTED = {  # what numbers are counted apart by, and how that is said
    (PAPER,): ("paper", "the paper"),
    (NOTEBOOK,): ("authors' notebooks", "the authors' notebooks"),
    (RERUN,): ("rerun", "a rerun of its protocol"),
    (OURS, LATE): ("our thresholds", "thresholds of our own"),
}


@dataclass(frozen=True)
class Block:
    """Measurements that share their columns: a row for each quantity, a cell for each column, None where there is none.

    A block without columns is a plain list of comparisons.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Measurement | None, ...]], ...]

    @property
    def decides(self) -> bool:
        """Whether any cell has a verdict."""
        return any(cell is not None and cell.verdict != NOT_PUBLISHED for _, cells in self.rows for cell in cells)

    def parted(self) -> tuple[Block, Block]:
        """The rows in which a verdict stands out, and the others."""
        parts: tuple[list[Any], list[Any]] = [], []
        for row in self.rows:
            parts[all(cell is None or cell.verdict not in STAND_OUT for cell in row[1])].append(row)
        return replace(self, rows=tuple(parts[0])), replace(self, rows=tuple(parts[1]))


def fold(rows: Iterable[Measurement]) -> list[Block]:
    """Rows of one quantity side by side, and the quantities that have the same columns, or some of these, in one block.

    What was compared with something comes before what nobody published.
    """
    quantities: dict[tuple[bool, str], dict[str, Measurement]] = {}
    for row in _with_columns([*rows]):
        kept = quantities.setdefault((row.verdict == NOT_PUBLISHED, row.quantity), {})
        if row.column in kept:
            raise ValueError(f"two measurements are called {row.name!r}; give them other names.")
        kept[row.column] = row
    blocks: dict[tuple[bool, tuple[str, ...]], list[tuple[str, dict[str, Measurement]]]] = {}
    for (alone, quantity), cells in quantities.items():
        own = () if [*cells] == [""] else tuple(cells)
        wider = (tuple(others) for (other, _), others in quantities.items() if other == alone and {*own} < {*others})
        blocks.setdefault((alone, max(wider, key=len, default=own) if own else own), []).append((quantity, cells))
    ordered = sorted(blocks.items(), key=lambda block: block[0][0])
    return [
        Block(columns, tuple((name, tuple(cells.get(column) for column in columns or ("",))) for name, cells in found))
        for (_, columns), found in ordered
    ]


REPEATED = re.compile(r"(.+), (p = [\d.]+)")


def _with_columns(rows: Sequence[Measurement]) -> list[Measurement]:
    """Rows whose names differ in a p at their end get it as their column; their names stay the same."""
    ends = [None if row.column else REPEATED.fullmatch(row.quantity) for row in rows]
    count = Counter((row.verdict == NOT_PUBLISHED, end[1]) for row, end in zip(rows, ends, strict=True) if end)
    return [
        replace(row, quantity=end[1], column=end[2]) if end and count[row.verdict == NOT_PUBLISHED, end[1]] > 1 else row
        for row, end in zip(rows, ends, strict=True)
    ]


def reproduction_page(
    results: Sequence[Result], profile: str, data_dir: Path | None = None, *, missing: int = 0
) -> str:
    """The document; ``missing`` experiments are still at work."""
    studies = _studies() if profile == "quick" else []
    claims = [claim for result in results for claim in _claims(result, studies)]
    return render(
        "reproduction.html",
        version=mirrormax.__version__,
        profile=profile,
        sentences=_sentences(claims, results, profile),
        claims=claims,
        missing=missing,
        errata=[{"at": _at(results, each.shown_by), **each._asdict()} for each in ERRATA],
        misprints=MISPRINTS,
        readings=READINGS,
        sections=[_section(result, profile, data_dir, studies) for result in results],
        rerun=any(row.source == RERUN for result in results for row in result.measurements),
    )


def _studies() -> list[dict[str, Any]]:
    """What the committed larger studies decided; ``docs/results/studies.py`` writes it."""
    found: list[dict[str, Any]] = json.loads(files("mirrormax.experiments").joinpath("studies.json").read_text("utf-8"))
    return found


def _claims(result: Result, studies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims of the paper that an experiment bears on; where a larger study has decided, that decides."""
    found = []
    for claim in result.claims:
        larger = [
            {"study": study["study"], "seeds": study["seeds"], **row}
            for study in studies
            if study["experiment"] == result.name
            for row in study["rows"]
            if claim.larger and row["key"] == claim.larger
        ]
        verdict = worst_of([row["verdict"] for row in larger]) if larger else claim.verdict
        found.append(
            {
                "statement": claim.statement,
                "measured": claim.measured,
                "larger": _larger(larger),
                "verdict": verdict,
                "badge": BADGES[verdict],
                "quick": BADGES[claim.verdict] if larger else "",
                "name": result.name,
                "short": _short(result),
            }
        )
    return found


def _larger(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each study: its number, or of several the verdict that decides, and how many have it."""
    studies = dict.fromkeys((row["study"], row["seeds"]) for row in rows)
    lines = []
    for study, seeds in studies:
        mine = [row for row in rows if row["study"] == study]
        verdicts = [row["verdict"] for row in mine]
        if len(mine) == 1:
            told = re.sub(r", \d+ and \d+ runs$", "", mine[0]["ours"])
        else:
            told = f"{BADGES[worst_of(verdicts)]}, {verdicts.count(worst_of(verdicts))} of {len(mine)} scores"
        lines.append(f"{study}, {seeds} seeds: {told}")
    return lines


def _sentences(claims: Sequence[dict[str, Any]], results: Sequence[Result], profile: str) -> list[str]:
    """Six plain sentences, none of them typed by hand: what holds, is corrected, does not hold, is open; on what."""
    by = {badge: [claim for claim in claims if claim["badge"] == badge] for badge in dict.fromkeys(BADGES.values())}
    trained = [claim for claim in claims if claim["larger"]]

    def told(badge: str, one: str, more: str, none: str) -> str:
        """How many, and where: "2 are corrected (Fig 2, Theorem 5)"."""
        found = by[badge]
        places = ", ".join(dict.fromkeys(claim["short"] for claim in found))
        return f"{len(found)} {one if len(found) == 1 else more} ({places})" if found else none

    sentences = [
        f"of the {len(claims)} statements of the paper that are tested here, "
        + told("holds", "holds", "hold", "none holds"),
        told("corrected", "is corrected", "are corrected", "none is corrected")
        + f", and {len(ERRATA)} errata of print, proof and protocol are listed below",
        told("does not hold here", "does not hold on our data", "do not hold on our data", "none fails on our data")
        + ", and "
        + told(SMALLER, f"is {SMALLER}", f"are {SMALLER}", f"none is {SMALLER}"),
        told("not decided", "cannot be decided here", "cannot be decided here", "nothing is left undecided"),
        f"the {profile} profile trains every model with two seeds only, so the {len(trained)} statements about trained "
        "models are judged by larger studies, whose numbers come first"
        if trained
        else f"all verdicts are those of the {profile} profile; no statement here rests on a larger study",
        _counted(results),
    ]
    return [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences]


def _counted(results: Sequence[Result]) -> str:
    """How many comparisons came out how: agreements with the paper apart from those with thresholds of our own."""
    rows = [row for result in results for row in result.measurements if row.verdict != NOT_PUBLISHED]
    parts = []
    for sources, (_, name) in COUNTED.items():
        mine = [row for row in rows if row.source in sources]
        late = sum(row.source == LATE for row in mine)
        if mine:
            after = f" ({late} of {len(mine)} set after measuring)" if late else ""
            parts.append(f"{name}{after} {_verdicts(row.verdict for row in mine)}")
    differing = []
    for result in results:
        names = [row.name for row in result.measurements if row.verdict == DIFFERS]
        if names:
            differing.append(f"{_short(result)}{f' ({len(names)})' if len(names) > 1 else ''}")
    return f"number by number, against {'; '.join(parts) or 'nothing'}; " + (
        f"what differs is in {', '.join(differing)}" if differing else "no number differs"
    )


SENTENCE = re.compile(r"(?<=\.) (?=[A-Zℓ])")


def _by_source(rows: Sequence[Measurement]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What ours was compared with, and how often that came out how."""
    counted = []
    for sources, (name, _) in COUNTED.items():
        counts = Counter(row.verdict for row in rows if row.source in sources and row.verdict != NOT_PUBLISHED)
        if counts:
            told = [(verdict, _several(verdict, counts[verdict])) for verdict in VERDICTS if counts[verdict]]
            counted.append((name, told))
    return counted


def _verdicts(found: Iterable[str]) -> str:
    """Verdicts, counted."""
    counts = Counter(found)
    return ", ".join(_several(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict])


def _several(verdict: str, count: int) -> str:
    """So many of a verdict."""
    return f"{count} {verdict if count == 1 else SEVERAL.get(verdict, verdict)}"


def _short(result: Result) -> str:
    return result.short[:1].upper() + result.short[1:]


def _at(results: Sequence[Result], name: str) -> Result | None:
    return next((result for result in results if result.name == name), None)


def _section(result: Result, profile: str, data_dir: Path | None, studies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    data = [] if data_dir is None else ["--data-dir", str(data_dir)]
    rows = result.measurements
    parts = [block.parted() for block in fold(rows)]
    first, *others = SENTENCE.split(result.shows)
    return {
        "name": result.name,
        "title": result.title,
        "short": _short(result),
        "shows": first,
        "further": " ".join(others),
        "counted": _by_source(rows),
        "figure": result.folder / f"{result.name}.svg",
        "maps": _maps(result),
        "seen": [seen for seen, _ in parts if seen.rows],
        "folded": [folded for _, folded in parts if folded.rows],
        "studies": [
            {**study, "counted": _verdicts(row["verdict"] for row in study["rows"])}
            for study in studies
            if study["experiment"] == result.name
        ],
        "reasons": list(dict.fromkeys(row.note for row in rows if row.note)),
        "command": shlex.join(["mirrormax", "reproduce", result.name, "--profile", profile, *data]),
        "config": json.dumps(result.config, indent=2, sort_keys=True, ensure_ascii=False),
        "seconds": result.seconds,
    }


def _maps(result: Result) -> Markup | None:
    """Attention maps, where an experiment has them."""
    maps = getattr(load_experiment(result.name), "maps", None)
    return None if maps is None else attention_maps(*maps(load_arrays(result.folder / "data.npz")))
