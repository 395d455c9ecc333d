"""A launcher of runs that end badly, and what whole runs leave."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code (−9: killed), what it said, and how often it changed files."""

    code: int
    out: str
    err: str
    changes: int | None

    @property
    def refused(self):
        """Whether it ended with exit code 2 and one sentence."""
        return self.code == 2 and self.err.startswith("mirrormax: ") and self.err.count("\n") == 1


class Launcher:
    """Starts command lines in processes of their own."""

    def __init__(self, folder):
        self.folder = folder
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __call__(self, *arguments, cwd, kill_after=None, die_at=None, largest_file=None):
        """Run a command line in ``cwd``, killed after seconds or before its n-th change, or without room for files."""
        talk = self.folder / "talk"
        (self.folder / "talk.changes").unlink(missing_ok=True)
        told = {"kill_after": kill_after, "die_at": die_at, "largest_file": largest_file}
        request = {"arguments": [str(word) for word in arguments], "cwd": str(cwd), "talk": str(talk), **told}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = json.loads(self.process.stdout.readline())
        changes = self.folder / "talk.changes"
        texts = [Path(f"{talk}.{stream}").read_text("utf-8") if Path(f"{talk}.{stream}").exists() else ""
                 for stream in ("out", "err")]
        return Ended(code, *texts, int(changes.read_text()) if changes.exists() else None)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork and SIGKILL")
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launcher
    launcher.close()
