"""What an audit found, as plain data: to CSV, to JSON and back.

For which p does a head look most like a max-margin solution? Neither the ratio nor the divergence can be compared
across p as it is: a ratio grows with p for weights that learned nothing, and a divergence falls towards both ends. So
a head is compared with the layer's controls, whose weights are its own in random order: the best p has the largest
ratio / (median ratio of the controls), or the smallest divergence − (median divergence of the controls). Without
controls the numbers are compared as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from mirrormax._identity import identity
from mirrormax._results import ResultFolder

FORMAT = "mirrormax-audit-2"
KIND = "audit"


@dataclass(frozen=True)
class Head:
    """One head. Shares and means are over every row of the data; the problem and what follows it over the sample."""

    layer: int
    head: int
    name: str
    form: str  # "token" or "query", see mirrormax.auditing.layers
    rows: int
    mass: float  # mean attention on the selected token
    decisive: float  # share of rows with more than half of the attention on it
    entropy: float  # mean normalised entropy
    on_first: float  # share of rows that select the first token
    on_last: float  # … the last token there is
    on_self: float  # … the query itself
    on_previous: float  # … the token before it
    on_separator: float  # … a token that ends or parts texts
    on_place: float  # … the one place that it selects most often
    induction: float | None  # share on repeated random tokens, of language models
    kind: str | None  # the one that stands out, see mirrormax.auditing.kinds
    margin_all: float  # realised margin over every row and every rival
    p: float
    problem: str
    status: str
    constraints: int
    norm: float
    margin: float
    quantile_margin: float
    optimal_margin: float
    ratio: float
    quantile_ratio: float
    divergence: float
    cosine: float
    in_span: float | None
    support_tokens: int
    locally_optimal: bool | None  # None: the model has no head, so that tokens have no scores
    in_order: float | None  # share of support tokens that score below the selected one
    best_token: float | None  # share of sampled rows whose selected token scores highest of those kept
    hoyer: float
    top_mass: float
    effective_rank: float
    best_p_ratio: float | None
    best_p_divergence: float | None


@dataclass(frozen=True)
class ScanPoint:
    """A head, or a control (``head`` negative), at one p."""

    layer: int
    head: int
    p: float
    problem: str
    ratio: float
    quantile_ratio: float
    divergence: float
    status: str


@dataclass(frozen=True)
class Shuffled:
    """Which kind a control has by the rule of the heads, on the sampled rows; ``head`` is negative."""

    layer: int
    head: int
    kind: str | None
    on_first: float
    on_last: float
    on_self: float
    on_previous: float
    on_separator: float
    on_place: float
    induction: float | None


@dataclass(frozen=True)
class GrowthPoint:
    """A head's answer to the main p on the first ``rows`` of the sample."""

    rows: int
    layer: int
    head: int
    ratio: float
    divergence: float


@dataclass(frozen=True)
class Effect:
    """What changing one head does to the model's answers: the mean over texts, with a bootstrap interval of 95 %."""

    layer: int
    head: int
    kind: str  # see mirrormax.auditing.interventions
    mean: float
    low: float
    high: float
    texts: int


@dataclass(frozen=True)
class Example:
    """One sampled row to look at: its tokens, and for each layer and head the attention and what stands out."""

    sequence: int
    query: int
    tokens: list[str]
    attention: list[list[list[float]]]  # (layers, heads, T)
    selected: list[list[int]]  # (layers, heads)
    support: list[list[list[int]]]  # (layers, heads, …)


@dataclass(frozen=True)
class Audit:
    """The answer of :func:`~mirrormax.auditing.audit`."""

    config: dict[str, Any]
    heads: list[Head]
    scan: list[ScanPoint] = field(default_factory=list)
    controls: list[ScanPoint] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    chances: dict[str, float] = field(default_factory=dict)  # of the kinds' shares, were tokens selected evenly
    effects: list[Effect] = field(default_factory=list)
    growth: list[GrowthPoint] = field(default_factory=list)  # where the sample was asked to settle
    shuffled: list[Shuffled] = field(default_factory=list)  # the kinds that controls have

    def grid(self, name: str) -> list[list[float]]:
        """One number of every head as rows of layers, NaN where there is none."""
        layers = 1 + max(head.layer for head in self.heads)
        rows: list[list[float]] = [[] for _ in range(layers)]
        for head in self.heads:
            value = getattr(head, name)
            rows[head.layer].append(math.nan if value is None else float(value))
        return rows

    def save(self, folder: str | Path, *, force: bool = False) -> list[Path]:
        """Write ``audit.json``, ``heads.csv``, ``config.json`` and a manifest; of what else there is a table each.

        Raises ValueError, with nothing changed, where the folder holds files of others or another audit; ``force``
        replaces another audit, and nothing else.
        """
        results = ResultFolder(Path(folder), KIND)
        with results.open(identity(_plain(self.config), module="mirrormax.auditing.run"), force=force):
            names = self.write(results)
            results.finish()
        return [results.path / name for name in names]

    def write(self, results: ResultFolder, under: str = "") -> list[str]:
        """Write the same files into a folder that is open for writing, their names beginning with ``under``."""
        tables: dict[str, Sequence[Any]] = {"heads.csv": self.heads}
        tables |= {"scan.csv": [*self.scan, *self.controls]} if self.scan else {}
        tables |= {"effects.csv": self.effects} if self.effects else {}
        tables |= {"growth.csv": self.growth} if self.growth else {}
        tables |= {"shuffled.csv": self.shuffled} if self.shuffled else {}
        results.save_json(f"{under}audit.json", _plain({"format": FORMAT, **asdict(self)}))
        results.save_json(f"{under}config.json", _plain(self.config))
        for name, rows in tables.items():
            columns = [one.name for one in fields(rows[0])]
            cells = [{name: _cell(value) for name, value in asdict(row).items()} for row in rows]
            results.save_rows(f"{under}{name}", columns, cells)
        return [f"{under}{name}" for name in ("audit.json", "config.json", *tables)]


def load_audit(path: str | Path) -> Audit:
    """Read ``audit.json`` or the folder it is in."""
    path = Path(path)
    path = path / "audit.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError
        kinds = {"heads": Head, "scan": ScanPoint, "controls": ScanPoint, "examples": Example, "effects": Effect}
        kinds |= {"growth": GrowthPoint, "shuffled": Shuffled}
        data = {"growth": [], "shuffled": [], **data}  # earlier audits have none
        for name, kind in kinds.items():
            data[name] = [kind(**_numbers(kind, row)) for row in data[name]]
        return Audit(**data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not the audit.json of an audit; make it again with mirrormax audit.") from error


def relative_to_controls(points: Sequence[ScanPoint], controls: Sequence[ScanPoint]) -> list[tuple[float, float]]:
    """(ratio over the controls', divergence minus the controls') of every point."""
    ratios: dict[tuple[int, float], list[float]] = {}
    divergences: dict[tuple[int, float], list[float]] = {}
    for one in controls:
        ratios.setdefault((one.layer, one.p), []).append(one.ratio)
        divergences.setdefault((one.layer, one.p), []).append(one.divergence)
    found = []
    for point in points:
        key = (point.layer, point.p)
        base = median(ratios[key]) if key in ratios else 1.0
        shift = median(divergences[key]) if key in divergences else 0.0
        found.append((point.ratio / base if base > 0 else float("nan"), point.divergence - shift))
    return found


def with_best_p(heads: Sequence[Head], points: Sequence[ScanPoint], controls: Sequence[ScanPoint]) -> list[Head]:
    """The heads with ``best_p_ratio`` and ``best_p_divergence`` filled in, None where p was not scanned."""
    of_head: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    for point, (ratio, divergence) in zip(points, relative_to_controls(points, controls), strict=True):
        of_head.setdefault((point.layer, point.head), []).append((point.p, ratio, divergence))
    filled = []
    for head in heads:
        mine = of_head.get((head.layer, head.head), [])
        usable = [one for one in mine if one[1] == one[1] and one[2] == one[2]]  # NaN is not equal to itself
        filled.append(
            replace(
                head,
                best_p_ratio=max(usable, key=lambda one: one[1])[0] if usable else None,
                best_p_divergence=min(usable, key=lambda one: one[2])[0] if usable else None,
            )
        )
    return filled


def _numbers(kind: type, row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: where a float is null and may not be None, it was one."""
    strict = {one.name for one in fields(kind) if one.type == "float"}
    return {name: math.nan if value is None and name in strict else value for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
