"""Threads for the kernel, and none for the small tensors around it.

Between two runs of the kernel some metrics are computed on tensors of a few thousand entries. Torch would share
each such operation out among its threads, and wait for the slowest: on a busy machine that took forty times as
long as one thread takes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
