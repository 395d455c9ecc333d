"""SIGTERM as an exception, so that a job which is told to end ends as it does on Ctrl-C: tidily, and not in success."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN = 0.05  # seconds


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
    announced, hook = threading.Event(), sys.unraisablehook
    timers: list[threading.Timer] = []

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever cleans up must not be stopped by a second one
        announced.set()
        raise Terminated

    def again(unraisable: Any) -> None:
        """C code that was calling back into Python, such as a compiler, cannot pass an exception on: come again."""
        if not issubclass(unraisable.exc_type, Terminated):
            hook(unraisable)
            return
        signal.signal(signal.SIGTERM, handle)
        timers.append(threading.Timer(AGAIN, os.kill, [os.getpid(), signal.SIGTERM]))
        timers[-1].start()

    signal.signal(signal.SIGTERM, handle)
    sys.unraisablehook = again
    try:
        yield
    except SystemExit as end:  # a library's own way to end on the signal, which it would call a success
        if announced.is_set():
            raise Terminated from end
        raise
    finally:
        for timer in timers:  # what ended in the meantime must not be killed afterwards
            timer.cancel()
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
