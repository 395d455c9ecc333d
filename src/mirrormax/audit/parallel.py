"""One problem a thread, and one thread a problem.

A head's problem is a few hundred products of small matrices. A BLAS that shares each of them out among all cores waits
for the slowest every time, which takes several times as long where other work runs; so each core gets its own.
NumPy and torch let go of the interpreter while they compute, and the answer does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from mirrormax.dynamics.threads import allowed_threads, single_threaded_tensors

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """``function(item)`` of every item in order, on as many threads as torch may use."""
    threads = allowed_threads()
    with single_threaded_tensors(), _single_threaded_products():
        pool = ThreadPoolExecutor(threads)
        try:
            yield from pool.map(function, items)
        finally:  # on an error or a ^C what has not begun is left undone
            pool.shutdown(cancel_futures=True)


def _single_threaded_products() -> AbstractContextManager[Any]:
    """One thread for NumPy's and SciPy's BLAS; without threadpoolctl they keep theirs, and are slower."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits
