"""Threads for whole tasks, and none for the tensors within them.

Torch shares each operation out among its threads, and waits for the slowest every time. Where operations are short,
or other work runs on the machine, that takes longer than one task a thread: forty times as long was seen.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AHEAD = 4
"""Items a thread that may be done before their turn: a slow one must neither stop the others nor pile up answers."""

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

    Torch lets go of the interpreter while it computes, and what an item gives does not depend on how many threads
    there are.
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
