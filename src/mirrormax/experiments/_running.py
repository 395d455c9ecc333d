"""Running experiments: what a module must hold to be one, how its tasks get done, and its results in a folder.

``OUT/<experiment>/<key>/`` is a :class:`~mirrormax._results.ResultFolder` whose key is that of its identity: the
configuration, the contents of the data, and the experiment's revision. A result of anything else lies elsewhere, so
nothing stale is taken for current and nothing finished is taken away. ``data.npz`` is what ``run`` made; all else is
told from it, and told anew without a run when the package has changed.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import mirrormax
from mirrormax._drawing import Figure, headline, house_style, save
from mirrormax._files import load_arrays
from mirrormax._identity import choices, identity, key, this_code
from mirrormax._parallel import dask_client, on_cluster, on_one_thread
from mirrormax._results import ResultFolder
from mirrormax.experiments import load_experiment
from mirrormax.experiments._measurements import About, Arrays, Claim, Measured, Measurement, Told

Answer = TypeVar("Answer")
BEYOND = 150.0
"""Experiments placed here or later go beyond the paper, and are run only if they are asked for."""


class Experiment(Protocol):
    """A module of this package, seen from outside: arrays, every number worked out of them once, and what is told and
    drawn of these. Some have more:

    - ``on_data(config, data_dir)``: the configuration for what a data folder holds;
    - ``sources(config, data_dir)``: a digest of every data file that is read;
    - ``maps(data)``: reviews, and by model how it reads them, to be shown as attention maps.
    """

    ABOUT: About
    PROFILES: dict[str, Any]  # of its configuration, which is frozen

    def run(self, config: Any, work: Work) -> Arrays: ...
    def measure(self, data: Arrays) -> Iterable[Measurement]: ...
    def tell(self, data: Arrays, table: Measured) -> Told: ...
    def draw(self, data: Arrays, table: Measured) -> Figure: ...


@dataclass(eq=False)
class Work:
    """Does lists of tasks, in order, and calls ``advance`` with the share of the whole that each one is.

    Tasks are cut the same way however many processes there are. Each depends on its arguments alone and runs on one
    thread, so the answer is the same to the last bit, whether it comes from here, from the processes of ``pool``, which
    all experiments share, or from a dask ``client``.
    """

    jobs: int = 1
    client: Any = None
    data_dir: Path | None = None
    runs: Path = Path("runs")
    anew: bool = False
    pool: Any = None
    advance: Callable[[float], None] = lambda share: None
    renewed: set[Path] = field(default_factory=set)  # folders whose contents were done again: ``anew`` is that once

    def each(
        self, function: Callable[..., Answer], tasks: Sequence[tuple[Any, ...]], share: float = 1.0
    ) -> list[Answer]:
        """``[function(*task) for task in tasks]``; the function must be found by its name in a module.

        ``share`` is how much of everything to be done these tasks are.
        """
        calls = [(function, *task) for task in tasks]
        coming: Iterator[Any]
        if self.client is not None:
            coming = on_cluster(self.client, _call, calls)
        elif self.pool is None:
            coming = (on_one_thread(_call, call) for call in calls)
        else:
            # Not cancelled if one fails: the pool ends then, and its manager stumbles over futures that are gone.
            futures = [self.pool.submit(on_one_thread, _call, call) for call in calls]
            coming = (future.result() for future in futures)
        answers = []
        for answer in coming:
            answers.append(answer)
            self.advance(share / len(tasks))
        return answers


def _call(call: tuple[Any, ...]) -> Any:
    return call[0](*call[1:])


@contextmanager
def open_work(
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str | None = None,
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
    anew: bool = False,
) -> Iterator[Work]:
    """A :class:`Work` with ``jobs`` processes, or connected to the scheduler of a dask cluster if that is the backend.

    ``runs`` is where training runs are kept; a cluster's machines must see it, and ``data_dir``, by the same path.
    ``anew`` trains again what is trained.
    """
    with dask_client(jobs, backend, scheduler) as client:
        if jobs == 1 or client is not None:
            yield Work(jobs, client, data_dir, runs, anew)
            return
        from joblib.externals.loky import ProcessPoolExecutor

        pool = ProcessPoolExecutor(jobs)
        with warnings.catch_warnings():
            # loky replaces a process whose memory has grown, and nothing is lost.
            warnings.filterwarnings("ignore", "A worker stopped", UserWarning)
            try:
                yield Work(jobs, None, data_dir, runs, anew, pool)
            finally:  # all is done by now, or was interrupted
                pool.shutdown(kill_workers=True)


@dataclass(frozen=True)
class Result:
    """A finished experiment: where it is and what it says."""

    name: str
    title: str
    folder: Path
    config: dict[str, Any]
    shows: str
    measurements: list[Measurement]
    claims: list[Claim]
    seconds: float

    @property
    def short(self) -> str:
        """Its name in lists."""
        return self.title.partition(":")[0]


def config_of(name: str, profile: str, data_dir: Path | None = None) -> Any:
    """The configuration of an experiment in a profile, on the data of a folder if it uses any.

    ``small`` is for trained models; other experiments have no such profile and are quick.
    """
    experiment = load_experiment(name)
    config = experiment.PROFILES.get(profile, experiment.PROFILES["quick"])
    on_data = getattr(experiment, "on_data", None)
    return config if on_data is None or data_dir is None else on_data(config, data_dir)


class Results:
    """The results in the folder ``out``, of the data in ``data_dir`` where an experiment reads any."""

    def __init__(self, out: Path, data_dir: Path | None = None) -> None:
        self.out, self.data_dir = out, data_dir
        self._telling = threading.RLock()  # matplotlib draws one figure at a time
        self.report = ResultFolder(out, "report of mirrormax reproduce", shared=True)

    @contextmanager
    def open(self) -> Iterator[None]:
        """One writer at a time; refused at once if a ``report.html`` that is not ours is in the way."""
        with self.report.open({}):
            self.report.claim("report.html")
            yield

    def write_report(self, page: str) -> None:
        """Write the report, whole or not at all, within :meth:`open`."""
        with self._telling:
            self.report.save_text("report.html", page)
            self.report.finish()

    def identity(self, name: str, config: Any) -> dict[str, Any]:
        """What the result of a configuration depends on."""
        experiment = load_experiment(name)
        sources = getattr(experiment, "sources", None)
        return identity(
            {"experiment": name, **choices(config)},
            revision=experiment.ABOUT.revision,
            data=None if sources is None else sources(config, self.data_dir),
        )

    def load(self, name: str, config: Any) -> Result | None:
        """The finished result of this configuration, data and code; None if there is none or a byte has changed."""
        if not (self.out / name).exists():  # never run here: neither its code nor its data need be read
            return None
        try:
            about, folder = self._place(name, config)
            manifest = folder.manifest() if folder.is_current(about) else None
        except (ValueError, OSError):  # its data is not there, or a link or a folder of somebody's is in its place
            return None
        if manifest is None:
            return None
        if manifest.facts.get("told_by") != this_code():
            with self._telling, folder.open(about):
                _tell(folder, name, load_arrays(folder.path / "data.npz"), manifest.facts["seconds"])
        return _read(folder, name)

    def run(self, name: str, config: Any, work: Work, force: bool = False) -> Result:
        """The finished result if there is one, unless ``force``; else a new one, which is then kept."""
        finished = None if force else self.load(name, config)
        if finished is not None:
            return finished
        about, folder = self._place(name, config)
        folder.manifest()  # refuses links, and folders of somebody's, before the work and not after it
        start = time.perf_counter()
        data = load_experiment(name).run(config, work)
        seconds = time.perf_counter() - start
        with self._telling, folder.open(about, force=True):
            folder.save_arrays("data.npz", **data)
            folder.save_json("config.json", {**about["config"], "version": mirrormax.__version__})
            _tell(folder, name, data, seconds)
        return _read(folder, name)

    def _place(self, name: str, config: Any) -> tuple[dict[str, Any], ResultFolder]:
        about = self.identity(name, config)
        return about, ResultFolder(self.out / name / key(about), f"result of {name}", within=self.out)


def _tell(folder: ResultFolder, name: str, data: Arrays, seconds: float) -> None:
    """Write what the data says: every number once, the sentences made from them, the figure."""
    experiment = load_experiment(name)
    table = Measured(experiment.measure(data))
    text, rows = experiment.tell(data, table), [asdict(row) for row in table]
    folder.save_rows("measurements.csv", COLUMNS, rows)
    claims = [asdict(claim) for claim in text.claims]
    folder.save_json("measurements.json", {"shows": text.shows, "rows": rows, "claims": claims})
    with house_style():
        fig = experiment.draw(data, table)
        headline(fig, text.headline)
        save(fig, folder, name)
    folder.finish(seconds=seconds, told_by=this_code())


COLUMNS = ("quantity", "column", "value", "low", "high", "ours", "published", "source", "where", "verdict")


def _read(folder: ResultFolder, name: str) -> Result:
    experiment, manifest = load_experiment(name), folder.manifest()
    if manifest is None or not manifest.complete or folder.damaged() is not None:
        raise OSError(f"the result in {folder.path} does not read back as it was written; check the disk.")
    stored = json.loads((folder.path / "measurements.json").read_text("utf-8"))
    return Result(
        name=name,
        title=experiment.ABOUT.title,
        folder=folder.path,
        config=json.loads((folder.path / "config.json").read_text("utf-8")),
        shows=stored["shows"],
        measurements=[Measurement(**row) for row in stored["rows"]],
        claims=[Claim(**claim) for claim in stored["claims"]],
        seconds=float(manifest.facts["seconds"]),
    )
