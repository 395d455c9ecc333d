"""SIGTERM ends a command as Ctrl-C does: one sentence, a code that is no success, and a run that can go on.

So does a reader that goes away, without the sentence."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from importlib import import_module

import pytest

from mirrormax import commands
from mirrormax._interrupts import Terminated, terminable
from mirrormax.data import save_problem, sphere_problem

TINY = shlex.split("--train-limit 60 --patch 4 --dim 8 --hidden 8 --blocks 1 --heads 2 --head-dim 4 --batch-size 16")


@pytest.fixture(autouse=True)
def default_handler():
    """Of a program in the foreground: one that was begun in the background ignores Ctrl-C."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {sent: signal.signal(sent, handler) for sent, handler in usual.items()}
    yield
    for sent, handler in before.items():
        signal.signal(sent, handler)


@pytest.mark.parametrize(("command", "goes_on"), [("tune", True), ("doctor", False)])
@pytest.mark.parametrize(("signal_sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_stopped_says_whether_it_can_go_on(monkeypatch, capsys, command, goes_on, signal_sent, code):
    arguments = {"tune": ["tune", "vision"], "doctor": ["doctor"]}[command]
    monkeypatch.setattr(
        import_module(f"mirrormax.commands.{command}"), "run", lambda _: signal.raise_signal(signal_sent)
    )
    assert commands.main(arguments) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert ("is kept" in err) == goes_on
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_signal_does_not_stop_the_cleaning_up():
    cleaned = []
    with pytest.raises(Terminated), terminable():  # noqa: PT012 - what happens on the way out is the point
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)
    assert cleaned


def test_a_handler_of_the_programs_own_is_left_in_place():
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
    with terminable():
        signal.raise_signal(signal.SIGTERM)
    assert heard


def test_in_another_thread_signals_are_left_alone():
    seen = []

    def look():
        with terminable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_command_whose_reader_has_gone_ends_without_a_word(tmp_path):
    save_problem(tmp_path / "problem.npz", sphere_problem(0))
    reader, writer = os.pipe()
    os.close(reader)  # as head does when it has seen enough
    command = [sys.executable, "-m", "mirrormax", "svm", "problem.npz", "--out", "solution.npz"]
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")
    assert (tmp_path / "solution.npz").exists()
