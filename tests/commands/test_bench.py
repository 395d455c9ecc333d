"""``mirrormax bench``: ratios as JSON, a history to compare with, and signs of life. Quick stand-ins are measured."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrormax.bench import describe, read_history
from mirrormax.commands import _shared, main

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Stand-ins for two benchmarks; the names of those that were run."""
    ran = []

    def stand_in(name, ratios):
        def bench(show):
            ran.append(name)
            show("first part", 0, 2)
            print(f"the table of {name}")
            show("second part", 1, 2)
            return ratios

        monkeypatch.setitem(sys.modules, f"mirrormax.bench.{name}", SimpleNamespace(main=bench))

    stand_in("optimizer", {"p=1.1": 2.5, "p=2": 0.5})
    stand_in("svm", {"one problem": 7.0})
    return ran


def test_json_alone_is_on_stdout_with_every_field(capsys):
    assert main(["bench", "--json", "svm", "optimizer"]) == 0
    out, err = capsys.readouterr()
    run = json.loads(out)
    assert run["ratios"] == {"optimizer": {"p=1.1": 2.5, "p=2": 0.5}, "svm": {"one problem": 7.0}}
    assert set(run) == {"kind", "date", "processor", "cores", "dispatch", "versions", "ratios"}
    assert set(run["versions"]) == {"mirrormax", "python", "torch", "numpy", "scipy"}
    assert run["dispatch"]["torch"]
    assert "the table of svm" in err


def test_tables_are_on_stdout_and_a_line_per_benchmark_on_stderr(capsys):
    assert main(["bench", "optimizer", "svm"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["the table of optimizer", "the table of svm"]
    assert err.splitlines() == ["mirrormax bench: optimizer, 1 of 2", "mirrormax bench: svm, 2 of 2"]


def test_the_parts_of_long_benchmarks_are_told(capsys, monkeypatch):
    monkeypatch.setattr(_shared, "LINE_EVERY", -1.0)
    assert main(["bench", "svm"]) == 0
    told = capsys.readouterr().err
    assert "first part 0%" in told
    assert "second part 50%" in told


def test_runs_are_appended_and_compared(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    older = describe({"optimizer": {"p=1.1": 5.0}})
    path.write_text(json.dumps(older) + "\n")
    assert main(["bench", "optimizer", "--append", str(path), "--compare", str(path)]) == 0
    runs = read_history(path)
    assert runs[0] == older
    assert [run["ratios"] for run in runs[1:]] == [{"optimizer": {"p=1.1": 2.5, "p=2": 0.5}}]
    lines = capsys.readouterr().out.splitlines()
    assert any("of this processor" in line for line in lines)
    assert [line.split()[-3:] for line in lines if line.startswith("optimizer: ")] == [
        ["2.5", "5", "0.5"],
        ["0.5", "—", "—"],
    ]


def test_the_comparison_does_not_disturb_json(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    assert main(["bench", "svm", "--append", str(path)]) == 0
    capsys.readouterr()
    assert main(["bench", "svm", "--json", "--compare", str(path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["ratios"] == {"svm": {"one problem": 7.0}}
    assert "now/then" in err


@pytest.mark.parametrize("option", ["--append", "--compare"])
def test_a_bad_history_is_told_before_anything_is_measured(tmp_path, capsys, measured, option):
    path = tmp_path / "diary.txt"
    path.write_text("dear diary\n")
    assert main(["bench", "svm", option, str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), measured) == ("", 1, [])
    assert "line 1 of" in err
    assert path.read_text() == "dear diary\n"


def test_a_link_is_no_place_for_a_run(tmp_path, capsys, measured):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert main(["bench", "svm", "--append", str(tmp_path / "link")]) == 2
    assert "is a link" in capsys.readouterr().err
    assert measured == []
    assert not (tmp_path / "nowhere").exists()


def test_the_committed_history_can_be_read():
    assert read_history(ROOT / "docs" / "benchmarks.jsonl")
