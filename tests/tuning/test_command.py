"""What ``mirrormax tune`` refuses, and its picture."""

import json

import pytest

from mirrormax import commands
from mirrormax._results import ResultFolder
from mirrormax.tuning.results import COLUMNS, best_of, draw, picture

from .studies import flags


def test_a_file_for_a_folder_and_a_folder_of_other_things_are_refused_and_kept(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert commands.main(flags(tmp_path / "thesis.tex", 2)) == 2
    assert commands.main(flags(tmp_path, 2, "--force")) == 2
    err = capsys.readouterr().err
    assert "is a file" in err
    assert "holds files that are not of a study (thesis.tex)" in err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def row(trial, accuracy, **other):
    return dict.fromkeys(COLUMNS) | {
        "trial": trial,
        "state": "complete",
        "optimizer": "md",
        "p": 1.5,
        "multiple": 1.0,
        "lr": 0.1,
        "score": accuracy,
        "validation_accuracy": accuracy,
        "validation_loss": 0.5,
        "hoyer": 0.3,
        **other,
    }


def test_of_equally_accurate_trials_the_lower_loss_is_best_and_pruned_ones_never_are():
    rows = [row(0, 0.8), row(1, 0.9), row(2, 0.9, validation_loss=0.4), row(3, 0.95, state="pruned")]
    assert best_of(rows)["trial"] == 2
    assert best_of([row(0, 0.9, validation_loss=None), row(1, 0.9)])["trial"] == 1


def test_the_picture_takes_all_kinds_of_trials_and_is_the_same_each_time(tmp_path):
    rows = [
        row(0, 0.8),
        row(1, 0.6, p=2.5, state="pruned", hoyer=None),
        row(2, 0.9, p=None, optimizer="adamw"),
        row(3, 0.7, p=1.05, multiple=29.0, hoyer=None),
    ]

    def drawn(rows, name):
        folder = ResultFolder(tmp_path / name, "study")
        with folder.open({}):
            draw(rows, folder)
        return [(folder.path / f"tune.{suffix}").read_bytes() for suffix in ("svg", "png")]

    first, second = (drawn(rows, name) for name in "ab")
    assert first == second
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"\x89PNG")
    points = picture(rows).axes[2].collections
    assert sum(len(part.get_offsets()) for part in points) == len(rows) + 1  # the best has a ring around it


def test_losses_are_drawn_as_losses():
    fig = picture([row(0, -2.5), row(1, -2.75)], "loss")
    over_p, _, over_lr, *_ = fig.axes
    for ax in (over_p, over_lr):
        assert ax.get_ylabel() == "validation loss"
        heights = [float(y) for part in ax.collections for _, y in part.get_offsets()]
        assert sorted(heights) == [2.5, 2.5, 2.75]  # the best has a ring around it


def test_a_language_model_is_tuned_by_its_validation_loss(tmp_path, capsys, dots):
    book = tmp_path / "book.txt"
    book.write_text("".join(f"{k} times {j} is {k * j}.\n" for k in range(1, 15) for j in range(1, 12)))
    sizes = "--context 16 --dim 8 --hidden 8 --blocks 1 --heads 2 --epochs 2 --jobs 1 --accelerator cpu"
    line = ["tune", "lm", "--data", str(book), *sizes.split(), "--trials", "2", "--optimizers", "adamw", "adabreg"]
    assert commands.main([*line, "--out", str(tmp_path / "study")]) == 0
    out, err = capsys.readouterr()
    best = json.loads((tmp_path / "study" / "best.json").read_text())
    assert best["score"] == pytest.approx(-best["validation_loss"], rel=1e-6)
    assert f"validation loss {best['validation_loss']:.4f}, test loss {best['test_loss']:.4f}" in out
    assert out.count("mirrormax train lm") == 1
    assert err.count("trial ") == 2
    assert f"validation loss {best['validation_loss']:.4f}\n" in err
    assert "validation -" not in err


def test_language_models_that_know_one_token_alone_have_learnt_frequencies(tmp_path, capsys, dots):
    (tmp_path / "book.txt").write_text("a" * 4000)
    sizes = "--context 16 --dim 8 --hidden 8 --blocks 1 --heads 2 --epochs 1 --jobs 1 --accelerator cpu --trials 1"
    line = ["tune", "lm", "--data", str(tmp_path / "book.txt"), *sizes.split(), "--optimizers", "adamw"]
    assert commands.main([*line, "--out", str(tmp_path / "study")]) == 0
    out, err = capsys.readouterr()
    assert "the most frequent token, so no more than frequencies were learnt" in out
    assert err.endswith(" (majority token)\n")
