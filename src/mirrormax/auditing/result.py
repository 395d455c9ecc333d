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
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from mirrormax._extras import extra
from mirrormax._identity import identity
from mirrormax._results import ResultFolder

if TYPE_CHECKING:
    import pandas

FORMAT = "mirrormax-audit-4"
KIND = "audit"
REVISION = 3
"""Raised when the same audit or comparison would come to other numbers."""


class Column(NamedTuple):
    """A number of a head that tables show."""

    heading: str
    meaning: str


@dataclass(frozen=True)
class OfHead:
    """What is about one head, or about control c of a layer, which is head −1 − c."""

    layer: int
    head: int

    @property
    def name(self) -> str:
        """``3.1`` for head 1 of layer 3, both counted from 0."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True)
class Selected(OfHead):
    """What a head, or a shuffled one, selects: its kind, and shares of rows, every token of the texts being one."""

    kind: Annotated[
        str | None, Column("kind", "what it selects in more than half of the rows and twice as often as chance")
    ]
    on_first: Annotated[float, Column("first", "share of rows, every token being one, that select the first token")]
    on_previous: Annotated[float, Column("previous", "share that selects the token before the query")]
    on_self: Annotated[float, Column("self", "share that selects the query itself")]
    on_last: Annotated[float, Column("last", "share that selects the last token there is")]
    on_separator: Annotated[float, Column("separator", "share that selects a token that ends or parts texts")]
    on_place: Annotated[float, Column("place", "share of the one place that it selects most often")]
    induction: Annotated[
        float | None, Column("induction", "share, on repeated random tokens, that looks behind the earlier occurrence")
    ]


@dataclass(frozen=True)
class Head(Selected):
    """One head. Shares and means are over every row of the data; the problem and what follows it over the sample."""

    module: str  # of the model, by its name there
    form: str  # "token" or "query", see mirrormax.auditing.layers
    rows: int
    mass: Annotated[float, Column("mass", "mean attention on the selected token")]
    decisive: Annotated[float, Column("decisive", "share of rows with more than half of the attention on it")]
    entropy: Annotated[float, Column("entropy", "normalised entropy, 1 is uniform")]
    learned: Annotated[bool | None, Column("learned", "whether it shows its kind more clearly than all shuffled heads")]
    importance: Annotated[
        float | None, Column("Taylor", "importance: first-order change of the loss, in nats, without the head")
    ]
    margin_all: Annotated[float, Column("margin, all", "realised margin over every row of the data and every rival")]
    p: float
    problem: str
    status: str
    constraints: int
    norm: float
    margin: Annotated[float, Column("margin", "realised margin on the sample")]
    quantile_margin: float
    optimal_margin: Annotated[float, Column("optimum", "best margin of any weights on the sample")]
    ratio: Annotated[float, Column("ratio", "realised over optimal margin")]
    quantile_ratio: Annotated[float, Column("at quantile", "the same at the quantile of the rows")]
    divergence: Annotated[float, Column("divergence", "distance of the direction from the optimal one")]
    cosine: float
    in_span: float | None
    support_tokens: Annotated[int, Column("support", "tokens on the optimal margin")]
    locally_optimal: bool | None  # None: the model has no head, so that tokens have no scores
    in_order: Annotated[float | None, Column("in order", "share of support tokens that score below the selected one")]
    best_token: float | None  # share of sampled rows whose selected token scores highest of those kept
    hoyer: Annotated[float, Column("Hoyer", "sparsity of W")]
    top_mass: float
    effective_rank: Annotated[float, Column("eff. rank", "effective rank of W")]
    best_p_ratio: float | None = None
    best_p_divergence: float | None = None


def columns() -> dict[str, Column]:
    """The fields of a head that tables show."""
    hints = get_type_hints(Head, include_extras=True)
    return {name: column for name, hint in hints.items() for column in getattr(hint, "__metadata__", ())}


@dataclass(frozen=True)
class ScanPoint(OfHead):
    """A head, or a control, at one p."""

    p: float
    problem: str
    ratio: float
    quantile_ratio: float
    divergence: float
    status: str


@dataclass(frozen=True)
class GrowthPoint:
    """A head's answer to the main p on the first ``rows`` of the sample."""

    rows: int
    layer: int
    head: int
    ratio: float
    divergence: float


@dataclass(frozen=True)
class Effect(OfHead):
    """What changing one head does to the model's answers: the mean over texts, with a bootstrap interval of 95 %."""

    kind: str  # "off", "mean" or "max-margin", see mirrormax.auditing.changes; "direct" of logit attribution
    mean: float
    low: float
    high: float
    texts: int


@dataclass(frozen=True)
class Removal:
    """How far the loss rises, the mean over texts with its interval, when the first heads of an order are off."""

    order: str  # "taylor" for least important first, "sink" for most sink-like first, or "random"
    heads: int
    mean: float
    low: float
    high: float
    texts: int


@dataclass(frozen=True)
class Robustness(OfHead):
    """What rounding or pruning queries and keys does to the selections of one head."""

    scheme: str  # see mirrormax.auditing.robustness
    predicted: float  # share of selections that change
    certified: float | None  # share of rows where none can, for the same inputs; None where that is not proven
    measured: float | None  # share on held-out texts, where that was asked
    rows: int


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
class Favourite(OfHead):
    """What a head selects most often: tokens, or pairs of a query's token and the selected one, with their rows."""

    tokens: list[tuple[str, int]]
    pairs: list[tuple[str, str, int]]


@dataclass(frozen=True, repr=False)
class Audit:
    """The answer of :func:`~mirrormax.auditing.audit`; in a notebook it is shown as a table of its heads."""

    config: dict[str, Any]
    heads: list[Head]
    scan: list[ScanPoint] = field(default_factory=list)
    controls: list[ScanPoint] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    chances: dict[str, float] = field(default_factory=dict)  # of the kinds' shares, were tokens selected evenly
    effects: list[Effect] = field(default_factory=list)
    growth: list[GrowthPoint] = field(default_factory=list)  # where the sample was asked to settle
    shuffled: list[Selected] = field(default_factory=list)  # the kinds that controls have
    robustness: list[Robustness] = field(default_factory=list)
    removal: list[Removal] = field(default_factory=list)
    favourites: list[Favourite] = field(default_factory=list)  # of texts, on the first of them

    def __repr__(self) -> str:
        kinds = Counter(head.kind or "no kind" for head in self.heads)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        layers = 1 + max(head.layer for head in self.heads)
        return f"<Audit of a {self.config['model']}: {len(self.heads)} heads in {layers} layers ({counted})>"

    def _repr_html_(self) -> str:
        frame = self.to_frame()[["kind", "learned", "mass", "entropy", "ratio", *self.schemes]]
        return f"<p>{escape(repr(self))}</p>{frame.to_html(float_format='{:.3g}'.format, na_rep='', max_rows=60)}"

    @property
    def schemes(self) -> list[str]:
        """What robustness was asked of."""
        return list(dict.fromkeys(row.scheme for row in self.robustness))

    def to_frame(self) -> pandas.DataFrame:
        """A row per head, by its name, with everything of :class:`Head` and the predicted share of each scheme."""
        with extra("frames"):
            import pandas

        frame = pandas.DataFrame([asdict(head) for head in self.heads], index=[head.name for head in self.heads])
        for scheme in self.schemes:
            frame[scheme] = [row.predicted for row in self.robustness if row.scheme == scheme]
        return frame.rename_axis("name")

    def head(self, name: str) -> Head:
        """The head of a name such as ``"3.1"``."""
        known = {head.name: head for head in self.heads}
        if name not in known:
            raise ValueError(f"name must be between {self.heads[0].name!r} and {self.heads[-1].name!r}, got {name!r}.")
        return known[name]

    def grid(self, name: str) -> npt.NDArray[np.float64]:
        """One number of every head, layer × head, NaN where there is none."""
        places = np.array([(head.layer, head.head) for head in self.heads])
        grid = np.full(places.max(0) + 1, np.nan)
        grid[tuple(places.T)] = [math.nan if (value := getattr(head, name)) is None else value for head in self.heads]
        return grid

    def save(self, folder: str | Path, *, force: bool = False) -> list[Path]:
        """Write ``audit.json``, ``heads.csv``, ``config.json`` and a manifest; of what else there is a table each.

        Raises ValueError, with nothing changed, where the folder holds files of others or another audit; ``force``
        replaces another audit, and nothing else.
        """
        results = ResultFolder(Path(folder), KIND)
        with results.open(identity(_plain(self.config), revision=REVISION), force=force):
            names = self.write(results)
            results.finish()
        return [results.path / name for name in names]

    def write(self, results: ResultFolder, under: str = "") -> list[str]:
        """Write the same files into a folder that is open for writing, their names beginning with ``under``."""
        names = ("effects", "growth", "shuffled", "robustness", "removal")
        scan = [*self.scan, *self.controls] if self.scan else []
        rows_of = {"heads": self.heads, "scan": scan, **{name: getattr(self, name) for name in names}}
        tables = {f"{name}.csv": rows for name, rows in rows_of.items() if rows}
        results.save_json(f"{under}audit.json", _plain({"format": FORMAT, **asdict(self)}))
        results.save_json(f"{under}config.json", _plain(self.config))
        for name, rows in tables.items():
            columns = [column.name for column in fields(rows[0])]
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
        for name, hint in get_type_hints(Audit).items():
            kind = next(iter(get_args(hint)), None)
            if isinstance(kind, type) and is_dataclass(kind):
                data[name] = [kind(**_numbers(kind, row)) for row in data[name]]
        return Audit(**data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not the audit.json of an audit; make it again with mirrormax audit.") from error


def relative_to_controls(points: Sequence[ScanPoint], controls: Sequence[ScanPoint]) -> list[tuple[float, float]]:
    """(ratio over the controls', divergence minus the controls') of every point."""
    relative = []
    for point in points:
        mine = [control for control in controls if (control.layer, control.p) == (point.layer, point.p)]
        base = median(control.ratio for control in mine) if mine else 1.0
        shift = median(control.divergence for control in mine) if mine else 0.0
        relative.append((point.ratio / base if base > 0 else math.nan, point.divergence - shift))
    return relative


def with_best_p(heads: Sequence[Head], points: Sequence[ScanPoint], controls: Sequence[ScanPoint]) -> list[Head]:
    """The heads with ``best_p_ratio`` and ``best_p_divergence`` filled in, None where p was not scanned."""
    relative = relative_to_controls(points, controls)
    filled = []
    for head in heads:
        pairs = zip(points, relative, strict=True)
        mine = [(point.p, *numbers) for point, numbers in pairs if point.name == head.name]
        usable = [scores for scores in mine if not any(map(math.isnan, scores))]
        by_ratio = max(usable, key=lambda scores: scores[1])[0] if usable else None
        by_divergence = min(usable, key=lambda scores: scores[2])[0] if usable else None
        filled.append(replace(head, best_p_ratio=by_ratio, best_p_divergence=by_divergence))
    return filled


def _numbers(kind: type, row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: where a float is null and may not be None, it was one."""
    strict = {name for name, hint in get_type_hints(kind).items() if hint is float}
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
