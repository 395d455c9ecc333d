"""SIGTERM ends a command as Ctrl-C does: one sentence, a code that is no success, and a run that can go on."""

import shlex
import signal
import threading

import pytest

from mirrormax import commands
from mirrormax._interrupts import Terminated, terminable
from mirrormax.commands import doctor

TINY = shlex.split("--train-limit 60 --patch 4 --dim 8 --hidden 8 --blocks 1 --heads 2 --head-dim 4 --batch-size 16")


@pytest.fixture(autouse=True)
def default_handler():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_terminated_command_is_one_sentence_and_exit_code_143(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "run", lambda args: signal.raise_signal(signal.SIGTERM))
    assert commands.main(["doctor"]) == 143
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("mirrormax: terminated; what was finished is kept")
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
