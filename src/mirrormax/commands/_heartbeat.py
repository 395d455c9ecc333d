"""A sign of life on a terminal: after a second in which a command has said nothing, how long it has been at work."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SILENCE, LOOK = 0.7, 0.1
"""Seconds without a word after which one is said, and between two looks: at most a second, with Python's own start."""
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CLEAR = "\r\x1b[K"


class Watched:
    """A stream that passes everything on, and takes the sign of life away before anything else is written."""

    def __init__(self, stream: Any, beat: Heartbeat) -> None:
        self._stream, self._beat = stream, beat

    def write(self, text: str) -> int:
        with self._beat.lock:
            self._beat.heard(text)
            written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Heartbeat:
    """Says ``mirrormax COMMAND: loading … 3 s`` on a line of its own, which the next word replaces."""

    def __init__(self, command: str) -> None:
        self.command, self.stage, self.lock = command, "loading", threading.RLock()
        self._terminal, self._shown, self._at_start = sys.stderr, False, True
        self._began = self._last = time.monotonic()
        self._ended = threading.Event()

    def heard(self, text: str) -> None:
        """Something else is about to be written."""
        if self._shown:
            self._terminal.write(CLEAR)
            self._terminal.flush()
            self._shown = False
        visible = CODES.sub("", text)
        self._at_start = visible.endswith(("\n", "\r")) if visible else self._at_start
        self._last = time.monotonic()

    def run(self) -> None:
        """Beat until :meth:`end`; a line that somebody has begun, such as a bar, is left to them."""
        while not self._ended.wait(LOOK):
            with self.lock:
                now = time.monotonic()
                if self._at_start and now - self._last >= SILENCE:
                    self._terminal.write(f"{CLEAR}mirrormax {self.command}: {self.stage} … {now - self._began:.0f} s")
                    self._terminal.flush()
                    self._shown, self._last = True, now

    def end(self) -> None:
        """Take the line away."""
        self._ended.set()
        with self.lock:
            self.heard("")


@contextmanager
def heartbeat(command: str, wanted: bool) -> Iterator[Heartbeat]:
    """A sign of life while the block runs, where it is ``wanted`` and stderr is a terminal."""
    beat = Heartbeat(command)
    if not wanted or not sys.stderr.isatty():
        yield beat
        return
    streams = sys.stdout, sys.stderr
    sys.stderr = Watched(sys.stderr, beat)
    if sys.stdout.isatty():
        sys.stdout = Watched(sys.stdout, beat)
    thread = threading.Thread(target=beat.run, daemon=True)
    thread.start()
    try:
        yield beat
    finally:
        beat.end()
        thread.join()
        sys.stdout, sys.stderr = streams
