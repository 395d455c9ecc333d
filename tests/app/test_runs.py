"""The Runs page lists what is there, and serves nothing that is not."""

import json

import pytest

from mirrormax.app.folders import run_label
from mirrormax.app.runs import Runs


def test_results_are_listed_with_summary_pictures_and_reports(runs):
    found = Runs(runs).listing()
    assert found["reports"] == ["report.html"]
    (result,) = found["results"]
    assert result["name"] == "fig2"
    assert result["rows"] == [{"": "p=2", "margin": 1.5}]
    assert result["pictures"] == ["fig2/abc/fig2.svg"]
    assert result["shows"] == "It <script>shows</script>."
    assert result["seconds"] == 0.5


def test_a_picture_in_two_formats_is_listed_once_as_svg(runs):
    (runs / "fig2" / "abc" / "fig2.png").write_bytes(b"png")
    assert Runs(runs).listing()["results"][0]["pictures"] == ["fig2/abc/fig2.svg"]


def test_unfinished_and_broken_results_do_not_hide_the_others(runs):
    (runs / "fig3" / "x").mkdir(parents=True)
    (runs / "fig3" / "y").mkdir()
    (runs / "fig3" / "y" / "mirrormax.json").write_text("[1, 2]")
    (runs / "fig3" / "y" / "summary.json").write_text("{")
    names = [result["name"] for result in Runs(runs).listing()["results"]]
    assert sorted(names) == ["fig2", "fig3/y"]


def test_a_training_run_has_one_row_a_number(runs):
    folder = runs / "sentiment"
    folder.mkdir()
    (folder / "mirrormax.json").write_text('{"complete": true}')
    (folder / "config.json").write_text("{}")
    (folder / "summary.json").write_text('{"epochs": 3, "test_accuracy": NaN, "list": [1]}')
    result = next(found for found in Runs(runs).listing()["results"] if found["name"] == "sentiment")
    assert result["rows"] == [
        {"": "epochs", "value": 3},
        {"": "test_accuracy", "value": None},
        {"": "list", "value": "[1]"},
    ]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    found = Runs(tmp_path / "nowhere").listing()
    assert not found["exists"]
    assert found["results"] == []


def test_a_file_is_given_with_its_type(runs):
    path, kind = Runs(runs).file("fig2/abc/fig2.svg")
    assert path.name == "fig2.svg"
    assert kind == "image/svg+xml"


@pytest.mark.parametrize(
    "place",
    [
        "../secret.json",
        "fig2/../../secret.json",
        "/etc/passwd",
        "fig2//abc/fig2.svg",
        "./report.html",
        "fig2/abc",
        "fig2/abc/nothing.svg",
        "fig2/abc/data.npz",
        ".hidden.json",
        "link.json",
        "linked/secret.json",
        "a\\b.json",
        "a\0b.json",
        "x" * 5000 + ".json",
        "",
    ],
)
def test_places_outside_the_folder_or_of_no_known_kind_are_refused(runs, place):
    (runs / ".hidden.json").write_text("{}")
    (runs / "fig2" / "abc" / "data.npz").write_bytes(b"")
    (runs / "link.json").symlink_to(runs.parent / "secret.json")
    (runs / "linked").symlink_to(runs.parent)
    with pytest.raises(ValueError, match="is not a file that this folder of results shows"):
        Runs(runs).file(place)


def test_links_are_not_listed(runs):
    (runs / "link.html").symlink_to(runs.parent / "secret.json")
    (runs / "linked").symlink_to(runs.parent)
    found = Runs(runs).listing()
    assert found["reports"] == ["report.html"]
    assert len(found["results"]) == 1


def test_a_trained_model_comes_with_its_choices_and_curves(runs):
    folder = runs / "run"
    folder.mkdir()
    (folder / "mirrormax.json").write_text('{"complete": true}')
    config = {"task": "sentiment", "optimizer": "md", "p": 1.1, "lr": 0.18, "seed": 2, "data": "reviews"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text('{"test_accuracy": 0.7}')
    (folder / "metrics.csv").write_text("epoch,train_loss,validation_accuracy\n1,0.7,0.5\n2,nan,0.6\n")
    assert run_label({**config, "optimizer": "mirror"}) == "MirrorAdamW ℓ1.1, lr 0.18, seed 2"
    found = {result["place"]: result["training"] for result in Runs(runs).listing()["results"]}
    assert found["fig2/abc"] is None
    assert found["run"]["label"] == "ℓ1.1, lr 0.18, seed 2"
    assert found["run"]["test_accuracy"] == 0.7
    assert found["run"]["lr"] == 0.18
    assert found["run"]["curves"] == {"train_loss": [0.7, None], "validation_accuracy": [0.5, 0.6]}
