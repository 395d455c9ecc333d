"""Damaged folders are listed with the reason, and hide no other."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

from mirrormax.app.checkpoints import Checkpoints
from mirrormax.app.runs import Runs

DEEP = '{"a": ' * 100 + "1" + "}" * 100
DEEPER = "[" * 100_000
HUGE = '{"a": ' + "9" * 10_000 + "}"


def write(name, content):
    def damage(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def missing(name):
    return lambda folder: (folder / name).unlink()


def instead(name, make):
    def damage(folder):
        (folder / name).unlink()
        make(folder / name)

    return damage


def loop(path):
    path.symlink_to(path.name)


def dangling(path):
    path.symlink_to("nowhere")


def device(path):
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        pytest.skip("only root makes device nodes")


RESULTS = {
    "truncated manifest": (write("mirrormax.json", '{"files": {'), "mirrormax.json is no JSON"),
    "manifest is a list": (write("mirrormax.json", "[1, 2]"), "mirrormax.json holds no JSON object"),
    "manifest is empty": (write("mirrormax.json", ""), "mirrormax.json is no JSON"),
    "manifest is binary": (write("mirrormax.json", b"\xff\xfe\0\1"), "mirrormax.json is no JSON"),
    "manifest nests deep": (write("mirrormax.json", DEEP), "nested more than"),
    "manifest nests deeper": (write("mirrormax.json", DEEPER), "mirrormax.json is no JSON"),
    "manifest lists files by number": (write("mirrormax.json", '{"complete": true, "files": 5}'), "no list of files"),
    "manifest names what is not there": (
        write("mirrormax.json", '{"complete": true, "files": {"data.npz": "0"}}'),
        "data.npz is missing",
    ),
    "another sum": (
        write("mirrormax.json", '{"complete": true, "files": {"summary.json": "0"}}'),
        "summary.json is not as it was",
    ),
    "manifest is a pipe": (instead("mirrormax.json", os.mkfifo), "is no regular file"),
    "manifest is a folder": (instead("mirrormax.json", os.mkdir), "is no regular file"),
    "manifest is a device": (instead("mirrormax.json", device), "is no regular file"),
    "manifest is a link to itself": (instead("mirrormax.json", loop), "mirrormax.json"),
    "manifest is a dangling link": (instead("mirrormax.json", dangling), "mirrormax.json"),
    "truncated summary": (write("summary.json", "{"), "summary.json is no JSON"),
    "summary is a number": (write("summary.json", "7"), "summary.json holds no JSON object"),
    "summary is missing": (missing("summary.json"), "summary.json is missing"),
    "summary is huge": (write("summary.json", f'{{"a": "{"x" * 2_000_000}"}}'), "more than 1,000,000 bytes"),
    "summary has a number too long": (write("summary.json", HUGE), "summary.json is no JSON"),
    "summary nests deep": (write("summary.json", DEEP), "nested more than"),
    "summary is a pipe": (instead("summary.json", os.mkfifo), "summary.json is missing"),
    "comparisons is a number": (write("comparisons.json", '{"comparisons": 5}'), "no list of comparisons"),
    "comparisons is a list": (write("comparisons.json", "[]"), "comparisons.json holds no JSON object"),
    "config is binary": (write("config.json", b"\x80\x81"), "config.json is no JSON"),
    "config is a link loop": (instead("config.json", loop), "config.json"),
}
ODD = {  # what is not damaged, and must not hide others either
    "not a number": write("summary.json", '{"a": NaN, "b": Infinity, "c": 1e999}'),
    "half a surrogate pair": write("summary.json", '{"a\\ud800": "\\udfff"}'),
    "seconds are a text": write("mirrormax.json", '{"complete": true, "facts": {"seconds": "long"}}'),
    "config of other types": write("config.json", '{"experiment": [1], "note": {"a": [null]}}'),
    "rows of every kind": write("summary.json", '{"a": [1], "b": {"c": {}}, "d": null}'),
    "a picture that is a pipe": lambda folder: os.mkfifo(folder / "x.svg"),
}


@pytest.fixture
def beside(runs):
    """A copy of a sound result, to be damaged."""
    shutil.copytree(runs / "fig2" / "abc", runs / "broken")
    return runs / "broken"


@pytest.mark.parametrize("name", RESULTS)
def test_a_damaged_result_is_told_and_hides_no_other(client, beside, name):
    damage, why = RESULTS[name]
    damage(beside)
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    found = {result["place"]: result for result in answer.json()["results"]}
    assert found["fig2/abc"]["damaged"] is None
    assert found["fig2/abc"]["rows"] == [{"": "p=2", "margin": 1.5}]
    assert why in found["broken"]["damaged"]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_result_hides_no_other(client, beside, name):
    ODD[name](beside)
    answer = client.get("/api/runs")
    assert answer.status_code == 200
    assert {result["place"]: result["damaged"] for result in answer.json()["results"]} == {
        "fig2/abc": None,
        "broken": None,
    }


def test_all_of_them_at_once_hide_nothing(client, runs, beside):
    for number, (damage, _) in enumerate(RESULTS.values()):
        shutil.copytree(beside, runs / f"broken-{number}")
        damage(runs / f"broken-{number}")
    found = client.get("/api/runs").json()["results"]
    assert sum(result["damaged"] is not None for result in found) == len(RESULTS) >= 20
    assert {result["place"] for result in found if result["damaged"] is None} == {"fig2/abc", "broken"}


def test_unfinished_results_are_not_listed(runs, beside):
    (beside / "mirrormax.json").write_text('{"complete": false, "files": {}}')
    assert [result["place"] for result in Runs(runs).listing()["results"]] == ["fig2/abc"]
    (beside / "mirrormax.json").write_text('{"complete": true, "files": {}, "facts": {"seconds": 2}}')
    found = {result["place"]: result for result in Runs(runs).listing()["results"]}
    assert found["broken"]["damaged"] is None
    assert found["broken"]["seconds"] == 2


# A process of its own, as a fork of this one would have the threads of whatever other tests have imported.
LIST_AS_NOBODY = """
import json, os, sys
from pathlib import Path
from mirrormax.app.runs import Runs
os.setuid(65534)
print(json.dumps({result["place"]: result["damaged"] for result in Runs(Path(sys.argv[1])).listing()["results"]}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
def test_a_folder_that_may_not_be_read_is_told(runs, beside):
    with tempfile.TemporaryDirectory() as place:  # which others can reach, unlike the folders of pytest
        os.chmod(place, 0o755)
        folder = shutil.copytree(runs, f"{place}/results")
        os.chmod(f"{folder}/broken", 0)
        found = subprocess.run(
            [sys.executable, "-c", LIST_AS_NOBODY, folder], capture_output=True, text=True, check=True
        )
        assert json.loads(found.stdout) == {"fig2/abc": None, "broken": "it cannot be read"}


MODELS = {
    "truncated config": (write("config.json", '{"kind": "sentiment"'), "config.json is no JSON"),
    "config is a list": (write("config.json", "[]"), "config.json holds no JSON object"),
    "config nests deep": (write("config.json", DEEPER), "config.json is no JSON"),
    "config is a pipe": (instead("config.json", os.mkfifo), "is no regular file"),
    "config is a link loop": (instead("config.json", loop), "config.json"),
    "sizes of other types": (write("config.json", '{"kind": "sentiment", "model": 5}'), ""),
    "no tokenizer": (missing("tokenizer.json"), "tokenizer.json"),
    "weights are a pipe": (instead("model.safetensors", os.mkfifo), "is no regular file"),
}


@pytest.fixture
def copies(models, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(models / "first", tmp_path / "copies" / name)
    return tmp_path / "copies"


@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_checkpoint_is_told_and_hides_no_other(copies, name, tmp_path):
    damage, why = MODELS[name]
    damage(copies / "bad")
    checkpoints = Checkpoints(copies, shipped=tmp_path / "none")
    found = {entry.name: entry.damaged for entry in checkpoints.entries()}
    assert found["good"] is None
    assert why in found["bad"]
    json.dumps([found, [entry.about for entry in checkpoints.entries()]], allow_nan=False).encode()
    with pytest.raises(ValueError, match="'bad' is damaged"):
        checkpoints.load("bad")
    assert checkpoints.load("good").loaded.tokenizer


def test_weights_that_cannot_be_loaded_hide_no_other_reading(client, models):
    path = models / "run" / "model" / "model.safetensors"
    before = path.read_bytes()
    try:
        path.write_bytes(before[:100])
        found = client.post("/api/attention", json={"text": "a warm film", "models": ["run", "first"]}).json()
        assert "model.safetensors" in found[0]["damaged"]
        assert found[1]["damaged"] is None
        assert len(found[1]["heads"]) == 2
        alone = client.post("/api/attention", json={"text": "a warm film", "models": ["run"]})
        assert alone.status_code == 400
    finally:
        path.write_bytes(before)
