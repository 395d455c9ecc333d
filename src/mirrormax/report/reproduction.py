"""The report of a reproduction: one HTML file with everything in it, from saved results alone.

It opens with the verdict: a tile for every claim of the paper, grouped by how it came out; then, where the paper has a
number, ours beside it with its interval; then one table of what was measured. Each experiment follows with its figure,
its verdicts, counted, and the rows that stand out; all else is folded away until it is asked for. Rows that repeat for
each p or method are one, with a column for each of these.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import mirrormax
from mirrormax import experiments
from mirrormax._files import load_arrays
from mirrormax.experiments import DIFFERS, ERRATUM, LATE, NOT_PUBLISHED, RERUN, SMALLER, VERDICTS, Measurement, Result
from mirrormax.report.pages import attention_maps, render

BADGES = {  # what a verdict on a claim of the paper is called
    "met": "holds",
    "bettered": "holds",
    "erratum": "corrected",
    "smaller than published": "smaller than published",
    "differs": "does not hold here",
    "undecided": "not decided",
    "not published": "measured",
}
SAID = {  # how many claims came out so, as the heading of their tiles: one, or several
    "holds": ("holds", "hold"),
    "corrected": ("is corrected", "are corrected"),
    "smaller than published": ("is smaller here than published", "are smaller here than published"),
    "does not hold here": ("does not hold here", "do not hold here"),
    "not decided": ("cannot be decided here", "cannot be decided here"),
    "measured": ("is measured and compared with nothing", "are measured and compared with nothing"),
}
STAND_OUT = {DIFFERS, ERRATUM, SMALLER}
"""Verdicts that a reader should not have to unfold anything to see."""
SEVERAL = {DIFFERS: "differ", ERRATUM: "errata"}
COUNTED = {  # what numbers are counted apart by, and how that is said
    (experiments.PAPER,): ("paper", "the paper"),
    (experiments.NOTEBOOK,): ("authors' notebooks", "the authors' notebooks"),
    (RERUN,): ("rerun", "a rerun of its protocol"),
    (experiments.OURS, LATE): ("our thresholds", "thresholds of our own"),
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
    for row in rows:
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
        Block(columns, tuple((name, tuple(cells.get(column) for column in columns or ("",))) for name, cells in rows))
        for (_, columns), rows in ordered
    ]


def reproduction_page(results: Sequence[Result], profile: str, data_dir: Path | None = None, missing: int = 0) -> str:
    """The document; ``missing`` experiments are still at work."""
    studies = _studies(profile)
    claims = [claim for result in results for claim in _claims(result, studies)]
    return render(
        "reproduction.html",
        version=mirrormax.__version__,
        profile=profile,
        known=experiments,
        groups=[
            {"heading": f"{len(mine)} {SAID[badge][len(mine) > 1]}", "claims": mine}
            for badge in SAID
            if (mine := [claim for claim in claims if claim["badge"] == badge])
        ],
        claims=claims,
        counts=_counts(results),
        missing=missing,
        there=[result.name for result in results],
        sections=[_section(result, profile, data_dir, studies) for result in results],
        rerun=any(row.source == RERUN for result in results for row in result.measurements),
    )


def claims_table(results: Sequence[Result], profile: str) -> list[tuple[str, str, str, str]]:
    """For each claim of the paper the experiment, the statement, what decides it, and how it came out."""
    studies = _studies(profile)
    return [
        (result.name, claim["statement"], "; ".join(claim["larger"]) or claim["measured"], claim["badge"])
        for result in results
        for claim in _claims(result, studies)
    ]


def _studies(profile: str) -> list[dict[str, Any]]:
    """The committed studies that are larger than what a profile runs."""
    return [
        study
        for study in json.loads(files(experiments).joinpath("studies.json").read_text("utf-8"))
        if profile == "quick" or (profile == "small" and study["folder"] == "ended")
    ]


def _claims(result: Result, studies: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The claims of the paper that an experiment bears on; where a larger study has decided, that decides.

    ``docs/results/studies.py`` writes what these studies found.
    """
    for claim in result.claims:
        larger = [
            {"study": study["study"], "seeds": study["seeds"], **row}
            for study in studies
            if study["experiment"] == result.name
            for row in study["rows"]
            if claim.larger and row["key"] == claim.larger
        ]
        verdict = experiments.worst_of([row["verdict"] for row in larger]) if larger else claim.verdict
        source = claim.marks[0][-1] if claim.marks else experiments.PAPER
        marks = [(*row["mark"], f"{row['study']}: {row['quantity']}", source) for row in larger if row.get("mark")]
        yield {
            "result": result,
            "statement": claim.statement,
            "measured": claim.measured,
            "larger": _larger(larger),
            "verdict": verdict,
            "badge": BADGES[verdict],
            "quick": BADGES[claim.verdict],
            "lines": _lines(marks if larger else claim.marks),
        }


def _lines(marks: Sequence[tuple[float, float, float, float, str, str]]) -> list[dict[str, Any]]:
    """Where our numbers, their intervals, what was published and zero lie on one axis that holds all, in percent."""
    seen = [0.0, *(x for mark in marks for x in mark[:4])]
    least, most = min(seen), max(seen)
    reach = (most - least) or 1.0

    def at(x: float) -> float:
        return round(100 * (0.03 + 0.94 * (x - least) / reach), 2)

    return [
        {
            "name": name,
            "zero": at(0.0),
            "paper": at(paper),
            "value": at(value),
            "low": at(low),
            "width": round(at(high) - at(low), 2),
            "ours": experiments.number(value, 2)
            + (experiments.interval(low, high, digits=2) if low < value < high else ""),
            "published": f"{source} {experiments.number(paper, 2)}",
        }
        for value, low, high, paper, name, source in marks
    ]


def _larger(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each study: what it measured, of the first of several scores."""
    first = {row["study"]: row for row in reversed(rows)}
    measured = {
        study: row.get("measured") or re.sub(r", \d+ and \d+ runs$", "", row["ours"]) for study, row in first.items()
    }
    return [f"{study}, {first[study]['seeds']} seeds: {measured[study]}" for study in reversed(first)]


def _counts(results: Sequence[Result]) -> dict[str, Any]:
    """How many single numbers came out how, by what they are compared with: a table of few rows."""
    rows = [row for result in results for row in result.measurements if row.verdict != NOT_PUBLISHED]
    verdicts = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in rows)]
    lines = []
    for sources, (_, name) in COUNTED.items():
        mine = [row for row in rows if row.source in sources]
        late = sum(row.source == LATE for row in mine)
        if mine:
            after = f" ({late} of {len(mine)} set after measuring)" if late else ""
            counted = Counter(row.verdict for row in mine)
            lines.append((f"{name}{after}", [counted[verdict] for verdict in verdicts]))
    differing = [(r.name, r.short) for r in results if any(row.verdict == DIFFERS for row in r.measurements)]
    return {"verdicts": verdicts, "lines": lines, "differing": differing}


def _several(verdicts: Iterable[str]) -> list[tuple[str, str]]:
    """Verdicts, each with how often it is there."""
    counts = Counter(verdicts)
    return [(v, f"{n} {v if n == 1 else SEVERAL.get(v, v)}") for v in VERDICTS if (n := counts[v])]


def _section(result: Result, profile: str, data_dir: Path | None, studies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    data = [] if data_dir is None else ["--data-dir", str(data_dir)]
    rows = result.measurements
    parts = [block.parted() for block in fold(rows)]
    first, *others = re.split(r"(?<=\.) (?=[A-Zℓ])", result.shows)
    maps = getattr(experiments.load_experiment(result.name), "maps", None)

    def decided(sources: tuple[str, ...]) -> list[str]:
        return [row.verdict for row in rows if row.source in sources and row.verdict != NOT_PUBLISHED]

    return {
        "result": result,
        "shows": first,
        "further": " ".join(others),
        "counted": [(name, counts) for sources, (name, _) in COUNTED.items() if (counts := _several(decided(sources)))],
        "figure": result.folder / f"{result.name}.svg",
        "maps": maps and attention_maps(*maps(load_arrays(result.folder / "data.npz"))),
        "seen": [seen for seen, _ in parts if seen.rows],
        "folded": [folded for _, folded in parts if folded.rows],
        "studies": [
            {**study, "counted": ", ".join(counts for _, counts in _several(row["verdict"] for row in study["rows"]))}
            for study in studies
            if study["experiment"] == result.name
        ],
        "reasons": list(dict.fromkeys(row.note for row in rows if row.note)),
        "command": shlex.join(["mirrormax", "reproduce", result.name, "--profile", profile, *data]),
    }
