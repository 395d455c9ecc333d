"""A run says what it is about to do and what came of it, also when that is nothing."""

import json
import shlex

import numpy as np
import pytest
import torch

from mirrormax import MirrorAdamW, commands
from mirrormax.training import VisionTraining, read_metrics, train
from mirrormax.training.machine import epoch_line

TINY = shlex.split("--train-limit 60 --patch 4 --dim 8 --hidden 8 --blocks 1 --heads 2 --head-dim 4 --batch-size 16")


def told(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_run_that_ends_at_the_majority_class_says_so(tmp_path, capfd, texts):
    """First weights that answer one class only, and a step size that changes nothing."""
    sizes = "--vocab-size 100 --max-length 12 --dim 8 --hidden 8 --blocks 1 --heads 2 --batch-size 16 --lr 1e-12"
    found = set()
    for seed in range(2):
        folder = tmp_path / str(seed)
        line = ["train", "sentiment", "--data", str(texts), *sizes.split(), "--epochs", "1", "--seed", str(seed)]
        assert commands.main([*line, "--out", str(folder)]) == 0
        summary, out = told(folder), capfd.readouterr().out
        sentence = "no better than always answering the most frequent class"
        assert (sentence in out) is summary["no_better_than_majority"]
        shares = summary["majority_share"]
        if all(summary[f"{split}_accuracy"] <= shares[split] for split in ("validation", "test")):
            assert summary["no_better_than_majority"]
        found.add(summary["no_better_than_majority"])
    assert True in found


def test_a_run_that_learns_says_nothing_of_the_majority(tmp_path, image_run):
    choices = {"dim": 32, "hidden": 64, "head_dim": 16, "patch": 2, "train_limit": None, "batch_size": 32}
    folder = train(image_run(optimizer="adamw", lr=5e-3, epochs=2, dropout=0.0, **choices), tmp_path)
    assert told(folder)["no_better_than_majority"] is False
    assert told(folder)["test_accuracy"] > 0.5
    assert told(folder)["majority_share"]["test"] == pytest.approx(0.1, abs=0.02)


def test_before_the_first_epoch_a_run_says_what_it_does_and_then_a_line_per_epoch(tmp_path, capfd):
    assert commands.main(["train", "vision", *TINY, "--p", "1.5", "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    err = capfd.readouterr().err.splitlines()
    assert err[0] == "digits: 60 train, 143 validation, 359 test rows"
    assert err[1].startswith("10 classes, the most frequent is 0.1")
    assert err[2].startswith("mirror, p = 1.5, step size 0.003")
    assert err[2].endswith("(the default), rising over 0.1 of 2 epochs")
    assert err[3] == f"new run in {tmp_path / 'run'}"
    assert [line.split("  ")[0] for line in err[4:]] == ["epoch 1/2", "epoch 2/2"]
    assert max(map(len, err[:3] + err[4:])) <= 80


def test_a_line_of_the_longest_run_fits_into_80_columns():
    row = {"epoch": 2000, "train_loss": 2.302585, "train_accuracy": 1, "validation_accuracy": 1, "seconds": 1234.56}
    assert len(epoch_line(row, 2000)) <= 80


def test_a_run_that_goes_on_says_so(tmp_path, capfd, monkeypatch):
    from mirrormax.training import run

    line = ["train", "vision", *TINY, "--epochs", "1", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_results", lambda *_: (_ for _ in ()).throw(ValueError("stopped.")))
        assert commands.main(line) == 2
    assert "new run in" in capfd.readouterr().err
    assert commands.main(line) == 0
    assert "going on with the run of" in capfd.readouterr().err


def test_metrics_grow_while_the_run_goes_on_and_count_epochs_from_one(tmp_path, monkeypatch, image_run):
    from mirrormax.training import Classification

    seen, original = [], Classification.on_train_epoch_start

    def look(self):
        path = tmp_path / "metrics.csv"
        seen.append([row["epoch"] for row in read_metrics(tmp_path)] if path.exists() else [])
        return original(self)

    monkeypatch.setattr(Classification, "on_train_epoch_start", look)
    train(image_run(epochs=3), tmp_path)
    assert seen == [[], [1], [1, 2]]
    assert [row["epoch"] for row in read_metrics(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(("choices", "p"), [("", None), ("--p 1.1", 1.1), ("--config p.json", 1.7)])
def test_p_that_is_not_given_is_that_of_the_optimizer(tmp_path, monkeypatch, choices, p):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.json").write_text('{"p": 1.7}')
    assert commands.main(["train", "vision", *TINY, "--epochs", "1", *choices.split(), "--quiet", "--out", "run"]) == 0
    own = MirrorAdamW([torch.nn.Parameter(torch.ones(2, 2))]).param_groups[0]["p"]
    assert json.loads((tmp_path / "run/config.json").read_text())["p"] == (own if p is None else p)


def test_the_configuration_of_a_run_by_another_optimizer_makes_it_again(tmp_path, capsys):
    line = ["train", "vision", *TINY, "--epochs", "1", "--optimizer", "adamw", "--quiet", "--out"]
    assert commands.main([*line, str(tmp_path / "a")]) == 0
    again = ["train", "vision", "--config", str(tmp_path / "a/config.json"), "--quiet", "--out", str(tmp_path / "b")]
    assert commands.main(again) == 0
    assert (tmp_path / "a/metrics.csv").read_bytes() == (tmp_path / "b/metrics.csv").read_bytes()


def test_warm_up_of_the_small_profile_is_over_before_a_short_run_is(tmp_path):
    rows = read_metrics(train(VisionTraining(**_tiny(), warmup=None, epochs=2, lr=0.1), tmp_path / "a"))
    given = read_metrics(train(VisionTraining(**_tiny(), warmup=4.0, epochs=2, lr=0.1), tmp_path / "b"))
    assert rows[0]["lr"] == pytest.approx(0.1)
    assert given[1]["lr"] < 0.06
    assert np.isfinite(rows[1]["train_loss"])


def _tiny():
    return {"train_limit": 60, "patch": 4, "dim": 8, "hidden": 8, "blocks": 1, "heads": 2, "head_dim": 4}
