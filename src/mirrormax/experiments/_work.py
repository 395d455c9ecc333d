"""How an experiment gets its tasks done, where its data is, and where the models it trains are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mirrormax import _parallel


class Work(_parallel.Work):
    """Parallel tasks, with the data folder and the folder of training runs that experiments share."""

    def __init__(
        self,
        jobs: int = 1,
        client: Any = None,
        data_dir: Path | None = None,
        runs: Path = Path("runs"),
        anew: bool = False,
    ) -> None:
        super().__init__(jobs, client)
        self.data_dir, self.runs = data_dir, runs
        self.anew, self.renewed = anew, set[Path]()

    def begins_anew(self, folder: Path) -> bool:
        """Whether what a folder holds is to be done again: once, and only if all is."""
        again = self.anew and folder not in self.renewed
        self.renewed.add(folder)
        return again


@contextmanager
def open_work(
    jobs: int = 1,
    backend: str = "loky",
    scheduler: str | None = None,
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
    anew: bool = False,
) -> Iterator[Work]:
    """A :class:`Work`, connected to the scheduler of a dask cluster if that is the backend.

    ``runs`` is where training runs are kept; a cluster's machines must see it, and ``data_dir``, by the same path.
    ``anew`` trains again what is trained.
    """
    with _parallel.dask_client(jobs, backend, scheduler) as client:
        yield Work(jobs, client, data_dir, runs, anew)
