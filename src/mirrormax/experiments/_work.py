"""How experiments get their tasks done, where their data is, and where the models they train are kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mirrormax._parallel import dask_client, on_cluster, on_one_thread

Answer = TypeVar("Answer")


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
    renewed: set[Path] = field(default_factory=set)

    @property
    def side_by_side(self) -> bool:
        """Whether experiments may run at the same time, as their tasks go to other processes."""
        return self.pool is not None or self.client is not None

    def told_by(self, advance: Callable[[float], None]) -> Work:
        """The same work for one experiment, which says by ``advance`` how far it is."""
        return replace(self, advance=advance)

    def begins_anew(self, folder: Path) -> bool:
        """Whether what a folder holds is to be done again: once, and only if all is."""
        again = self.anew and folder not in self.renewed
        self.renewed.add(folder)
        return again

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
