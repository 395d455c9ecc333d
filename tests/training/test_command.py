"""``mirrormax train`` as it is typed."""

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import fields

import pytest
from command_line import exit_code

from mirrormax.nets import load_model
from mirrormax.training import PROFILES, Classification, read_metrics

TINY = shlex.split("--train-limit 60 --patch 4 --dim 8 --hidden 8 --blocks 1 --heads 2 --head-dim 4 --batch-size 16")


def call(*arguments):
    return exit_code("train", *arguments)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_quiet_says_nothing_and_the_effective_configuration_makes_the_same_run_again(here, capfd):
    assert call("vision", *TINY, "--p", "1.5", "--epochs", "1", "--out", "first", "--quiet") == 0
    assert call("vision", "--config", "first/config.json", "--out", "second", "--quiet") == 0
    assert capfd.readouterr() == ("", "")
    for name in ("config.json", "metrics.csv", "summary.json", "model/model.safetensors", "model/config.json"):
        assert (here / "first" / name).read_bytes() == (here / "second" / name).read_bytes()
    told = json.loads((here / "first/config.json").read_text())
    assert (told["task"], told["p"], told["epochs"], told["dim"]) == ("vision", 1.5, 1, 8)


def test_a_run_tells_its_result_and_whether_it_diverged(here, capfd):
    choices = ["--epochs", "2", "--optimizer", "sgd", "--lr", "1e30"]
    assert call("vision", *TINY, *choices) == 0
    out = capfd.readouterr().out
    assert "epoch 1 of 1" in out
    assert "The training diverged" in out
    folder = out.splitlines()[-1]
    assert folder.startswith("runs/vision-")
    load_model(here / folder)


def test_ctrl_c_is_one_sentence_and_exit_code_130_and_the_run_goes_on(here, capfd, monkeypatch, ctrl_c):
    original, still = Classification.training_step, [True]

    def step(self, data, index):
        if still and self.current_epoch == 1:
            still.clear()
            ctrl_c()
        return original(self, data, index)

    monkeypatch.setattr(Classification, "training_step", step)
    arguments = ("vision", *TINY, "--epochs", "2", "--out", "run", "--quiet")
    assert call(*arguments) == 130
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("mirrormax: interrupted; what was finished is kept")
    assert not (here / "run/summary.json").exists()
    assert call(*arguments) == 0
    assert len(read_metrics(here / "run")) == 2


@pytest.mark.parametrize("task", PROFILES)
def test_help_explains_every_choice(task, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call(task, "--help") == 0
    text = capsys.readouterr().out
    for field in fields(PROFILES[task]["small"]):
        assert f"--{field.name.replace('_', '-')} " in text or f"--{field.name.replace('_', '-')}, " in text
        assert field.metadata["meaning"] in text


def start(*arguments):
    command = [sys.executable, "-m", "mirrormax", "train", "vision", *TINY, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: the last bits of a sum depend on the threads
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_be_the_one_that_was_not(here):
    longest = ("--epochs", "30", "--optimizer", "adamw", "--quiet", "--out")
    with start(*longest, "killed") as process:
        while not (here / "killed/resume.ckpt").exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    assert not (here / "killed/summary.json").exists()
    assert call("vision", *TINY, *longest, "killed") == 0
    assert call("vision", *TINY, *longest, "whole") == 0
    for name in ("metrics.csv", "summary.json", "model/model.safetensors", "last/model.safetensors"):
        assert (here / "killed" / name).read_bytes() == (here / "whole" / name).read_bytes()


@pytest.mark.slow
def test_two_processes_train_one_model_and_one_of_them_writes(here):
    arguments = ("--epochs", "2", "--devices", "2", "--strategy", "ddp", "--accelerator", "cpu", "--out", "run")
    for extra in ((), ("--force",)):
        with start(*arguments, "--quiet", *extra) as process:
            assert process.communicate() == ("", "")
        assert process.returncode == 0
        names = {path.name for path in (here / "run").iterdir()}
        assert names == {"config.json", "metrics.csv", "timing.csv", "summary.json", "mirrormax.json", "model", "last"}
        assert len(read_metrics(here / "run")) == 2


@pytest.mark.slow
def test_two_processes_take_sparse_gradients(here, texts):
    sizes = shlex.split("--vocab-size 100 --dim 8 --hidden 8 --heads 2 --blocks 1 --batch-size 16 --epochs 1")
    machine = shlex.split("--devices 2 --strategy ddp --accelerator cpu --quiet --out run")
    command = [sys.executable, "-m", "mirrormax", "train", "sentiment", "--data", str(texts), *sizes, *machine]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (here / "run/summary.json").is_file()
