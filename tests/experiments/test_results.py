"""Finished work is kept, nothing else is taken for it, and nothing of anybody's is touched."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mirrormax
from mirrormax import _identity
from mirrormax.experiments import Results, Work, _running, experiment_names, fig2
from mirrormax.experiments._measurements import Told

CONFIG = fig2.Config()
DATA, MANIFEST = "data.npz", "mirrormax.json"
TOLD = ["fig2.png", "fig2.svg", "measurements.csv", "measurements.json"]
FILES = sorted([DATA, "config.json", MANIFEST, *TOLD])


class Counting:
    """A stand-in for an experiment's run that counts how often it is asked."""

    def __init__(self, monkeypatch):
        self.calls, original = 0, fig2.run

        def run(config, work):
            self.calls += 1
            return original(config, work)

        monkeypatch.setattr(fig2, "run", run)


@pytest.fixture
def counting(monkeypatch):
    return Counting(monkeypatch)


@pytest.fixture
def kept(tmp_path, dots):
    return Results(tmp_path)


def run(kept, **options):
    return kept.run("fig2", CONFIG, Work(), **options)


def test_results_are_plain_files_with_their_configuration(kept):
    result = run(kept)
    assert sorted(path.name for path in result.folder.iterdir()) == FILES
    assert json.loads((result.folder / "config.json").read_text())["tol"] == CONFIG.tol
    assert len(json.loads((result.folder / "measurements.json").read_text())["rows"]) == len(result.measurements)
    assert (result.folder / "measurements.csv").read_text().splitlines()[0].startswith("quantity,column,value,")
    assert np.load(result.folder / DATA, allow_pickle=False)["p"].tolist() == [2.0, 3.0]


def test_finished_work_is_not_redone_unless_forced(kept, counting):
    first = run(kept)
    assert run(kept) == first
    assert counting.calls == 1
    run(kept, force=True)
    assert counting.calls == 2


def test_another_configuration_or_revision_is_another_result(kept, monkeypatch):
    folders = {run(kept).folder, kept.run("fig2", replace(CONFIG, tol=1e-8), Work()).folder}
    monkeypatch.setattr(fig2, "ABOUT", replace(fig2.ABOUT, revision=10**6))
    assert kept.load("fig2", CONFIG) is None
    folders.add(run(kept).folder)
    assert len(folders) == 3
    assert all((folder / DATA).exists() for folder in folders), "an older result is not current, and not deleted"


def test_other_contents_of_the_data_are_another_result(kept, counting, monkeypatch, tmp_path):
    file = tmp_path / "numbers.csv"

    def sources(config, data_dir):
        return {file.name: _identity.content_digest(file)}

    monkeypatch.setattr(fig2, "sources", sources, raising=False)
    file.write_text("1")
    first = run(kept)
    file.write_text("22")
    assert kept.load("fig2", CONFIG) is None
    assert run(kept).folder != first.folder
    file.write_text("1")
    assert run(kept) == first
    assert counting.calls == 2


def test_what_an_experiment_says_is_said_anew_without_a_run_when_its_words_change(kept, counting, monkeypatch):
    before = run(kept)
    data = (before.folder / DATA).stat()
    tell = fig2.tell
    monkeypatch.setattr(fig2, "tell", lambda *given: Told("Other words", "And more.", *tell(*given).claims))
    assert run(kept) == before, "the code on disk is the same"
    monkeypatch.setattr(_running, "this_code", lambda: "9.9 (code abc)")
    after = run(kept)
    assert counting.calls == 1
    assert after.shows == "Other words. And more."
    assert after == replace(before, shows=after.shows)
    assert (before.folder / DATA).stat().st_mtime_ns == data.st_mtime_ns
    assert kept.load("fig2", CONFIG) == after


def test_a_damaged_result_is_redone_and_never_taken_for_whole(kept, counting):
    folder = run(kept).folder
    (folder / DATA).write_bytes((folder / DATA).read_bytes()[:-1])
    assert kept.load("fig2", CONFIG) is None
    again = run(kept)
    assert counting.calls == 2
    assert kept.load("fig2", CONFIG) == again
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_folder_that_cannot_be_proven_ours_is_refused_before_the_work(kept, counting):
    manifest = run(kept).folder / MANIFEST
    manifest.write_text("{")
    assert kept.load("fig2", CONFIG) is None
    with pytest.raises(ValueError, match="no manifest that this version reads"):
        run(kept)
    assert counting.calls == 1
    assert manifest.read_text() == "{"


def test_a_report_of_somebody_elses_is_refused_and_kept(kept, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match="is in the way"), kept.open():
        pass
    assert (tmp_path / "report.html").read_text() == "mine"


NEW = '''
"""An experiment of one file."""

from dataclasses import dataclass

import numpy as np

from mirrormax._drawing import row_of_axes
from mirrormax.experiments._measurements import About, Told, alone

ABOUT = About("Fig 99: squares", place=25, seconds=1, revision=1)


@dataclass(frozen=True)
class Config:
    count: int = 4


PROFILES = {"quick": Config(), "paper": Config(40)}


def run(config, work):
    return {"square": np.array(work.each(_square, [(k,) for k in range(config.count)]))}


def _square(k):
    return float(k * k)


def measure(data):
    return [alone("the largest square", float(data["square"].max()))]


def tell(data, found):
    return Told("Squares grow", "And grow.")


def draw(data, found):
    fig, (ax,) = row_of_axes(1)
    ax.plot(data["square"])
    return fig
'''


HELP_AND_RUN = """
import contextlib
from mirrormax.commands import main
with contextlib.suppress(SystemExit):
    main(["reproduce", "--help"])
raise SystemExit(main("reproduce fig2 fig99 fig3 --out out --jobs 1".split()))
"""


def test_a_new_file_is_a_new_experiment_that_is_run_drawn_and_in_the_report(tmp_path):
    copy = tmp_path / "lib" / "mirrormax"
    shutil.copytree(Path(mirrormax.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "models"))
    (copy / "experiments" / "fig99.py").write_text(NEW)
    command, there = [sys.executable, "-c", HELP_AND_RUN], {**os.environ, "PYTHONPATH": str(copy.parent)}
    told = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, check=True).stdout
    assert "fig9, fig99, " in " ".join(told.split())
    assert "the largest square" in told
    (folder,) = (tmp_path / "out" / "fig99").iterdir()
    assert (folder / "fig99.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert report.index('id="fig2"') < report.index("<h2>Fig 99: squares</h2>") < report.index('id="fig3"')
    assert 'href="#fig99">Fig 99<' in report


def test_names_come_from_files_without_importing_them():
    code = "import sys, mirrormax.experiments as e; print(e.experiment_names(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{experiment_names()} False\n"
