"""One head's problem a core.

Each is a few hundred products of small matrices, some of them NumPy's and SciPy's, whose BLAS has threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mirrormax import _parallel
from mirrormax._parallel import Answer, Item


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """``function(item)`` of every item in order, on as many threads as torch may use."""
    # The tensors first: limits on products reach torch too, and would be taken for what it may use.
    with _parallel.single_threaded_tensors(), _single_threaded_products():
        yield from _parallel.on_all_cores(function, items)


def _single_threaded_products() -> AbstractContextManager[Any]:
    """One thread for NumPy's and SciPy's BLAS; without threadpoolctl they keep theirs, and are slower."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits
