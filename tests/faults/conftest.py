"""A launcher of runs that end badly, and what whole runs leave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pytest
import torch
from readers import piece_tokenizer

from mirrormax.data import save_problem, sphere_problem
from mirrormax.nets import TransformerClassifier, TransformerConfig, save_model

from .runs import COMMANDS, contents


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
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "MPLCONFIGDIR": matplotlib.get_cachedir(),  # else it would look for all fonts anew
        }
        self.talk = (folder / "launcher.err").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.talk,
            text=True,
            env=environment,
        )

    def __call__(self, *arguments, cwd, **how):
        """Run a command line in ``cwd``, sent a signal after seconds or killed before its n-th change, or without room
        for files; with ``pictures``, or a dot in the place of each."""
        request = self._request("talk", arguments, cwd, **how)
        return self._ended("talk", self._ask(request))

    def race(self, *arguments, cwd, processes=2):
        """Run a command line in several processes at once."""
        names = [f"talk{number}" for number in range(processes)]
        codes = self._ask([self._request(name, arguments, cwd) for name in names])
        return [self._ended(name, code) for name, code in zip(names, codes, strict=True)]

    def _request(
        self,
        name,
        arguments,
        cwd,
        *,
        kill_after=None,
        signal=signal.SIGKILL,
        die_at=None,
        largest_file=None,
        pictures=False,
    ):
        (self.folder / f"{name}.changes").unlink(missing_ok=True)
        words = [str(word) for word in arguments]
        how = {"kill_after": kill_after, "signal": int(signal), "die_at": die_at, "largest_file": largest_file}
        return {"arguments": words, "cwd": str(cwd), "talk": str(self.folder / name), "pictures": pictures, **how}

    def _ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def _ended(self, name, code):
        changes, *streams = (self.folder / f"{name}.{suffix}" for suffix in ("changes", "out", "err"))
        texts = [path.read_text("utf-8") if path.exists() else "" for path in streams]
        return Ended(code, *texts, int(changes.read_text()) if changes.exists() else None)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.talk.close()


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork and SIGKILL")
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A folder with a problem, texts and a checkpoint, from which every run begins."""
    folder = tmp_path_factory.mktemp("inputs")
    save_problem(folder / "problem.npz", sphere_problem(seed=0, n=3, T=4, d=4))
    words = ["good", "bad", "film", "story", "warm", "dull", "moving", "town"]
    texts = [" ".join(words[(3 * k + j * j) % 8] for j in range(3 + k % 5)) for k in range(60)]
    rows = "".join(f"{text},{('bad', 'good')[k % 2]}\n" for k, text in enumerate(texts))
    (folder / "texts.csv").write_text("text,label\n" + rows)
    tokenizer = piece_tokenizer(texts)
    sizes = {"max_length": 32, "dim": 8, "hidden": 8, "blocks": 1, "heads": 2}
    for seed, name in enumerate(("checkpoint", "other")):
        torch.manual_seed(seed)
        model = TransformerClassifier(TransformerConfig(vocab_size=tokenizer.get_vocab_size(), **sizes))
        save_model(folder / name, model, ("bad", "good"), tokenizer)
    return folder


@pytest.fixture
def begin(inputs, tmp_path):
    """Makes fresh folders to run in."""
    count = iter(range(10**6))

    def make():
        return Path(shutil.copytree(inputs, tmp_path / f"run{next(count)}"))

    return make


@pytest.fixture(scope="session")
def whole(inputs, launch, tmp_path_factory):
    """What an uninterrupted run of a command leaves, and how long it took and how often it changed files."""
    known = {}

    def made(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("whole") / "here"
            shutil.copytree(inputs, folder)
            start = time.monotonic()
            ended = launch(*COMMANDS[name], cwd=folder)
            assert (ended.code, ended.err) == (0, "")
            known[name] = contents(folder), time.monotonic() - start, ended.changes
        return known[name]

    return made
