"""Ways to use all cores: threads for tensors, processes for tasks of their own, and a dask cluster for many machines.

**Threads.** Torch shares each operation out among its threads, and waits for the slowest every time. Where operations
are short, or other work runs on the machine, that takes longer than one task per thread: forty times as long was seen.
:func:`on_all_cores` gives each thread a task and lets torch use one thread within it.

**Processes.** A task that goes to another process, on this machine or on a cluster's, runs on one thread
(:func:`on_one_thread`), so that its answer is the same to the last bit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any, TypeVar

import torch

from mirrormax._extras import extra

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AHEAD = 4
"""Items per thread that may be done before their turn: a slow one must neither stop the others nor pile up answers."""
BACKENDS = ("loky", "dask")
CONNECT_SECONDS = 10

_lock = threading.Lock()
_users = 0
_threads = 1


def allowed_threads() -> int:
    """As many as torch may use, by ``torch.set_num_threads`` or its environment."""
    with _lock:
        return _threads if _users else torch.get_num_threads()


@contextmanager
def single_threaded_tensors() -> Iterator[None]:
    """One thread for torch while any block like this runs; the setting is the process's, so the last restores it."""
    global _users, _threads  # noqa: PLW0603
    with _lock:
        if _users == 0:
            _threads = torch.get_num_threads()
            torch.set_num_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_threads)


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """``function(item)`` of every item in order, one at a time on each of as many threads as torch may use.

    Torch releases the GIL while it computes, and what an item gives does not depend on the number of threads.
    """
    threads = allowed_threads()
    with single_threaded_tensors():
        pool = ThreadPoolExecutor(threads)
        waiting: deque[Future[Answer]] = deque()
        try:
            for item in items:
                if len(waiting) == AHEAD * threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(function, item))
            while waiting:
                yield waiting.popleft().result()
        finally:  # on an error or a ^C what has not begun is left undone
            pool.shutdown(cancel_futures=True)


def single_threaded_products() -> AbstractContextManager[Any]:
    """One thread for NumPy's and SciPy's BLAS; without threadpoolctl they keep theirs, and are slower."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def on_one_thread(function: Callable[[Item], Answer], item: Item) -> Answer:
    """``function(item)`` while torch, NumPy and SciPy use one thread.

    Small tasks want no more: waking a second thread for every operation on a few hundred numbers costs more than it
    brings, and processes fill the cores better. Threads of BLAS that wait for each other do so at full speed: with two
    processes on two cores they took several times the processor time of the work itself.
    """
    # The tensors first: limits on products reach torch too, and would be taken for what it may use.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with single_threaded_products():
            return function(item)
    finally:
        torch.set_num_threads(before)


@contextmanager
def dask_client(jobs: int, backend: str, scheduler: str | None) -> Iterator[Any]:
    """Check the options of a command that spreads its work; a connected dask client, or None for local processes."""
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}.")
    if backend not in BACKENDS:
        raise ValueError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if (backend == "dask") != (scheduler is not None):
        raise ValueError("--backend dask and --scheduler ADDRESS go together; give both or neither.")
    if scheduler is None:
        yield None
        return
    with extra("reproduce"):
        from distributed import Client
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"no dask scheduler answers at {scheduler}; start one, or correct --scheduler.") from error
    try:
        yield client
    finally:
        client.close()


def on_cluster(
    client: Any, function: Callable[[Item], Answer], items: Iterable[Item], ahead: int | None = None
) -> Iterator[Answer]:
    """The scheduler holds every task with its arguments, and gives what a worker took with it to another one.

    joblib's dask backend would hand larger arguments to a single worker, and they would die with it. Where arguments
    are large, no more than ``ahead`` tasks are handed over before the first of them is done.
    """
    with extra("reproduce"):
        from distributed import KilledWorker
    waiting = iter(items)
    futures = deque(client.submit(on_one_thread, function, item, pure=False) for item in islice(waiting, ahead))
    try:
        while futures:
            yield futures[0].result()
            futures.popleft()
            futures += (client.submit(on_one_thread, function, item, pure=False) for item in islice(waiting, 1))
    except KilledWorker as error:
        raise OSError(
            "one task was given to several workers of the cluster and each of them died; look at their logs, and give "
            "them more memory if that was the cause."
        ) from error
    finally:
        client.cancel(list(futures))
