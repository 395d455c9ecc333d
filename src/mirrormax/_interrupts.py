"""SIGTERM as an exception, so that a job which is told to end ends as it does on Ctrl-C: tidily, and not in success."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process was told to end, as by Slurm, Kubernetes or ``kill``; whoever handles Ctrl-C handles this."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block, SIGTERM raises :class:`Terminated` in the main thread, where the default would end the process.

    A handler of the program's own is left in place.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever cleans up must not be stopped by a second one
    raise Terminated
