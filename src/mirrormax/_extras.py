"""What only an extra installs: one helper that says which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

ROOMS: dict[str, str] = {
    "app": "explore",
    "auditing": "audit",
    "experiments": "reproduce",
    "nets": "train",
    "report": "reproduce",
    "training": "train",
    "tuning": "tune",
}
"""The extra that a room of the package needs as a whole."""
COMMANDS: dict[str, str] = {
    **{name: name for name in ("audit", "bench", "explore", "reproduce", "train", "tune")},
    **dict.fromkeys(("compare", "prune"), "audit"),
}
"""The extra that a command needs as a whole."""


def install(extra: str) -> str:
    """What to type for an extra: the package may be an installed one or a checkout."""
    return f"pip install 'mirrormax[{extra}]', or '.[{extra}]' in a checkout"


class MissingExtraError(ModuleNotFoundError):
    """A module that an extra brings is not installed; the message says which extra."""


@contextmanager
def extra(name: str | None) -> Iterator[None]:
    """Say of a module of others that is missing in this block that the extra ``name`` brings it.

    The outermost block is what somebody asked for, and its extra brings what those within it need.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if name is None or str(error.name).partition(".")[0] == "mirrormax":
            raise
        raise MissingExtraError(f"this needs {error.name!r}; {install(name)}.", name=error.name) from error
