"""Finished work is kept, and nothing else is taken for it."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from mirrormax.experiments import fig2, store
from mirrormax.experiments.runner import run_experiment
from mirrormax.experiments.store import Store
from mirrormax.experiments.work import Work

CONFIG = fig2.Config()
FILES = ["comparisons.json", "complete.json", "config.json", "data.npz", "summary.csv", "summary.json"]


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
def kept(tmp_path):
    return Store(tmp_path, ("fig2", "fig3"))


def test_results_are_plain_files_with_their_configuration(kept):
    result = run_experiment("fig2", CONFIG, kept, Work())
    assert sorted(path.name for path in result.folder.iterdir()) == FILES
    assert json.loads((result.folder / "config.json").read_text())["tol"] == CONFIG.tol
    assert json.loads((result.folder / "summary.json").read_text()) == result.summary
    assert (result.folder / "summary.csv").read_text().splitlines()[1].startswith("p=2,0.0384")
    assert np.load(result.folder / "data.npz", allow_pickle=False)["p"].tolist() == [2.0, 3.0]


def test_finished_work_is_not_redone_unless_forced(kept, counting):
    first = run_experiment("fig2", CONFIG, kept, Work())
    assert run_experiment("fig2", CONFIG, kept, Work()) == first
    assert counting.calls == 1
    run_experiment("fig2", CONFIG, kept, Work(), force=True)
    assert counting.calls == 2


def test_another_configuration_version_or_code_is_another_result(kept, monkeypatch):
    folders = {kept.folder("fig2", CONFIG), kept.folder("fig2", replace(CONFIG, tol=1e-8)), kept.folder("fig3", CONFIG)}
    monkeypatch.setattr(store.mirrormax, "__version__", "9.9")
    folders.add(kept.folder("fig2", CONFIG))
    monkeypatch.setattr(store, "code_digest", lambda name, experiments: "other")
    folders.add(kept.folder("fig2", CONFIG))
    assert len(folders) == 5


def test_the_code_of_other_experiments_and_of_readers_does_not_matter():
    names = ("fig2", "fig3")
    assert store.code_digest("fig2", names) != store.code_digest("fig3", names)
    assert store.code_digest("fig2", names) == store.code_digest("fig2", names)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "empty"])
def test_a_damaged_result_is_redone_and_never_taken_for_whole(kept, counting, file, damage):
    folder = run_experiment("fig2", CONFIG, kept, Work()).folder
    path = folder / file
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"cut": whole[:middle], "flipped": flipped, "empty": b""}[damage])
    assert kept.load("fig2", CONFIG) is None
    again = run_experiment("fig2", CONFIG, kept, Work())
    assert counting.calls == 2
    assert kept.load("fig2", CONFIG) == again
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_failure_while_writing_leaves_the_old_result(kept, monkeypatch):
    first = run_experiment("fig2", CONFIG, kept, Work())

    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(store, "save_json", full)
    with pytest.raises(OSError, match="no space"):
        run_experiment("fig2", CONFIG, kept, Work(), force=True)
    assert kept.load("fig2", CONFIG) == first
    assert len(list(first.folder.parent.iterdir())) == 1


def test_what_a_killed_run_left_behind_is_cleared_away(kept, tmp_path):
    leftover = tmp_path / "fig2" / ".abc-123"
    leftover.mkdir(parents=True)
    (leftover / "data.npz").write_bytes(b"half")
    with kept.locked():
        assert not leftover.exists()


@pytest.mark.skipif(os.name == "nt", reason="needs fcntl")
def test_two_writers_at_once_are_refused(kept):
    with kept.locked(), pytest.raises(ValueError, match="is writing to"), kept.locked():
        pass
