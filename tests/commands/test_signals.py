"""SIGTERM ends a command as Ctrl-C does: one sentence, a code that is no success, and a run that can go on."""

import shlex
import signal
import threading

import pytest

from mirrormax import commands
from mirrormax._interrupts import Terminated, terminable
from mirrormax.commands import doctor
from mirrormax.training import Classification, read_metrics

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


def test_a_terminated_training_says_so_and_goes_on_to_the_same_result(tmp_path, monkeypatch, capsys):
    original, still = Classification.training_step, [True]

    def step(self, batch, index):
        if still and self.current_epoch == 1:
            still.clear()
            signal.raise_signal(signal.SIGTERM)
        return original(self, batch, index)

    line = ["train", "vision", *TINY, "--epochs", "2", "--quiet", "--accelerator", "cpu", "--out"]
    assert commands.main([*line, str(tmp_path / "whole")]) == 0
    monkeypatch.setattr(Classification, "training_step", step)
    assert commands.main([*line, str(tmp_path / "cut")]) == 143
    assert capsys.readouterr().err.startswith("mirrormax: terminated")
    assert len(read_metrics(tmp_path / "cut")) == 1
    assert not (tmp_path / "cut/summary.json").exists()
    assert commands.main([*line, str(tmp_path / "cut")]) == 0
    for name in ("metrics.csv", "summary.json", "mirrormax.json", "model/model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


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
