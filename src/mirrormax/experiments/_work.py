"""How experiments get their tasks done, where their data is, and where the models they train are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from mirrormax import _parallel

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Work(_parallel.Work):
    """Tasks for the processes that all experiments share, with the data folder and the folder of training runs."""

    def __init__(
        self,
        jobs: int = 1,
        client: Any = None,
        data_dir: Path | None = None,
        runs: Path = Path("runs"),
        anew: bool = False,
        pool: Any = None,
    ) -> None:
        super().__init__(jobs, client)
        self.data_dir, self.runs, self.pool = data_dir, runs, pool
        self.anew, self.renewed = anew, set[Path]()

    @property
    def side_by_side(self) -> bool:
        """Whether experiments may run at the same time, as their tasks go to other processes."""
        return self.pool is not None or self.client is not None

    def told_by(self, advance: Callable[[float], None]) -> Work:
        """The same work for one experiment, which says by ``advance`` how far it is."""
        own = copy(self)
        own.advance = advance
        return own

    def begins_anew(self, folder: Path) -> bool:
        """Whether what a folder holds is to be done again: once, and only if all is."""
        again = self.anew and folder not in self.renewed
        self.renewed.add(folder)
        return again

    def _answers(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        if self.pool is None:
            yield from super()._answers(function, items)
            return
        futures = [self.pool.submit(_parallel.on_one_thread, function, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


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
    with _parallel.dask_client(jobs, backend, scheduler) as client:
        if jobs == 1 or client is not None:
            yield Work(jobs, client, data_dir, runs, anew)
            return
        from joblib.externals.loky import ProcessPoolExecutor

        pool = ProcessPoolExecutor(jobs)
        try:
            yield Work(jobs, None, data_dir, runs, anew, pool)
        finally:  # all is done by now, or was interrupted
            pool.shutdown(kill_workers=True)
