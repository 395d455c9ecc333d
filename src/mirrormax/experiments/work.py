"""How an experiment gets its tasks done: in this process, in several, or on a dask cluster.

Tasks are cut the same way however many processes there are, each one depends on its arguments alone and runs on one
thread, so the answer is the same to the last bit. One thread because these tasks are small: waking a second one for
every operation on a few hundred numbers costs more than it brings, and processes fill the cores better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Answer = TypeVar("Answer")

BACKENDS = ("loky", "dask")
CONNECT_SECONDS = 10


class Work:
    """Does lists of tasks, in order, and says when each is done."""

    def __init__(
        self,
        jobs: int = 1,
        client: Any = None,
        data_dir: Path | None = None,
        runs: Path = Path("runs"),
        anew: bool = False,
    ) -> None:
        self.jobs, self.client, self.data_dir, self.runs = jobs, client, data_dir, runs
        self.anew, self.renewed = anew, set[Path]()
        self.advance: Callable[[float], None] = lambda share: None

    def begins_anew(self, folder: Path) -> bool:
        """Whether what a folder holds is to be done again: once, and only if all is."""
        again = self.anew and folder not in self.renewed
        self.renewed.add(folder)
        return again

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item], share: float = 1.0) -> list[Answer]:
        """``[function(item) for item in items]``; the function must be found by its name in a module.

        ``share`` is how much of the whole experiment these tasks are.
        """
        found = []
        for answer in self._answers(function, items):
            found.append(answer)
            self.advance(share / len(items))
        return found

    def _answers(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        if self.client is not None:
            yield from _on_cluster(self.client, function, items)
        elif self.jobs == 1 or len(items) == 1:
            for item in items:
                yield on_one_thread(function, item)
        else:
            import joblib

            tasks = (joblib.delayed(on_one_thread)(function, item) for item in items)
            yield from joblib.Parallel(n_jobs=self.jobs, backend="loky", return_as="generator")(tasks)


def _on_cluster(client: Any, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """The scheduler holds every task with its arguments, and gives what a worker took with it to another one.

    joblib's dask backend would hand larger arguments to a single worker, and they would die with it.
    """
    from distributed import KilledWorker

    futures = deque(client.submit(on_one_thread, function, item, pure=False) for item in items)
    try:
        while futures:
            yield futures[0].result()
            futures.popleft()
    except KilledWorker as error:
        raise OSError(
            "one task was given to several workers of the cluster and each of them died; look at their logs, and give "
            "them more memory if that was the cause."
        ) from error
    finally:
        client.cancel(list(futures))


def on_one_thread(function: Callable[[Item], Answer], item: Item) -> Answer:
    """``function(item)`` while torch uses one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(item)
    finally:
        torch.set_num_threads(before)


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
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}.")
    if backend not in BACKENDS:
        raise ValueError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if (backend == "dask") != (scheduler is not None):
        raise ValueError("--backend dask and --scheduler ADDRESS go together; give both or neither.")
    if scheduler is None:
        yield Work(jobs, None, data_dir, runs, anew)
        return
    client = _connect(scheduler)
    try:
        yield Work(jobs, client, data_dir, runs, anew)
    finally:
        client.close()


def _connect(scheduler: str) -> Any:
    from distributed import Client

    try:
        return Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no dask scheduler answers at {scheduler}; start one, or correct --scheduler.") from error
