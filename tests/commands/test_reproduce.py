"""``mirrormax reproduce`` from end to end at a tiny size: kept, forced, killed, resumed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny

from mirrormax import commands
from mirrormax.commands import reproduce as command
from mirrormax.experiments import Results, fig2, fig3

SCRIPT = Path(tiny.__file__)


@pytest.fixture(autouse=True)
def small(monkeypatch, dots):
    tiny.shrink(monkeypatch.setattr)


def reproduce(*arguments):
    return commands.main(["reproduce", "--jobs", "1", *map(str, arguments)])


def kept(out, name):
    return Results(out).load(name, tiny.TINY[name])


def test_reproduce_writes_data_figures_and_a_report_and_says_where(tmp_path, capsys):
    assert reproduce("fig2", "sparsity", "--out", tmp_path) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "corrected" in out
    assert (tmp_path / "report.html").as_uri() in out
    for name in ("fig2", "sparsity"):
        folder = kept(tmp_path, name).folder
        assert (folder / f"{name}.png").exists()
        assert (folder / f"{name}.svg").exists()
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.count("<section id=") == 4  # the tiles and the errata are one each
    assert text.index('id="fig2"') < text.index('id="sparsity"')


def test_the_report_has_what_earlier_commands_finished(tmp_path):
    reproduce("fig3", "--out", tmp_path, "--quiet")
    reproduce("fig2", "--out", tmp_path, "--quiet")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.index('id="fig2"') < text.index('id="fig3"')


def test_quiet_is_quiet(tmp_path, capsys):
    assert reproduce("fig2", "--out", tmp_path, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_second_run_does_nothing_again_unless_forced(tmp_path, monkeypatch):
    reproduce("fig2", "--out", tmp_path, "--quiet")
    monkeypatch.setattr(fig2, "run", None)
    assert reproduce("fig2", "--out", tmp_path, "--quiet") == 0
    with pytest.raises(TypeError, match="not callable"):
        reproduce("fig2", "--out", tmp_path, "--quiet", "--force")


def test_an_interrupt_keeps_what_was_finished(tmp_path, monkeypatch, capsys):
    def interrupted(config, work):
        raise KeyboardInterrupt

    monkeypatch.setattr(fig3, "run", interrupted)
    assert reproduce("fig2", "fig3", "--out", tmp_path, "--quiet") == 130
    assert "interrupted" in capsys.readouterr().err
    assert kept(tmp_path, "fig2") is not None
    assert kept(tmp_path, "fig3") is None
    assert not list((tmp_path).rglob(".fig*"))


def test_progress_comes_to_its_end(tmp_path, monkeypatch):
    seen = []

    def show(stage, done, total):
        seen.append(done / total)

    monkeypatch.setattr(command, "progress", lambda *_: nullcontext(show))
    reproduce("fig2", "feasibility", "--out", tmp_path)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)
    assert any(0 < share < 0.5 for share in seen)


def test_a_folder_in_use_is_refused(tmp_path, capsys):
    with Results(tmp_path).open():
        assert reproduce("fig2", "--out", tmp_path) == 2
    assert "is writing to" in capsys.readouterr().err


def foreign(out):
    """Files of somebody's that lie where experiments keep theirs, and links; a digest of all they hold."""
    elsewhere = out.parent / f"{out.name}-elsewhere"
    (elsewhere / "fig2" / "secrets").mkdir(parents=True)
    (elsewhere / "fig2" / ".key").write_text("private")
    (elsewhere / "target").write_text("precious")
    for name in (
        "vit/.git/config",
        "sparsity/.env",
        "fig2/.abc-12345678",
        "fig3/.abc/data.npz",
        ".report-abcdefgh.html",
    ):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    (out / "fig4").symlink_to(elsewhere / "fig2")
    (out / "fig5").mkdir()
    (out / "fig5" / "link").symlink_to(elsewhere / "fig2")
    (out / ".lock").symlink_to(elsewhere / "target")
    places = [*out.rglob("*"), *elsewhere.rglob("*")]
    return {path: path.is_symlink() or path.is_dir() or path.read_bytes() for path in places}


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_foreign_dotfiles_and_links_in_the_folder_are_never_touched(tmp_path):
    out = tmp_path / "proj"
    before = foreign(out)
    for options in ((), ("--force",)):
        assert reproduce("fig2", "fig3", "--out", out, "--quiet", *options) == 0
    assert {path: path.is_symlink() or path.is_dir() or path.read_bytes() for path in before} == before
    assert (out / "report.html").read_text("utf-8").count("<section") == 4


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
@pytest.mark.parametrize("name", [".mirrormax.lock", "mirrormax.json", "report.html", "fig2"])
def test_a_link_in_the_place_of_a_file_of_ours_is_refused_and_its_target_kept(tmp_path, capsys, name):
    out, target = tmp_path / "proj", tmp_path / "precious"
    out.mkdir()
    target.mkdir() if name == "fig2" else target.write_text("mine")
    (out / name).symlink_to(target)
    assert reproduce("fig2", "--out", out, "--quiet") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (out / name).is_symlink()
    assert not list(target.iterdir()) if name == "fig2" else target.read_text() == "mine"


def test_the_report_shows_what_is_current_and_nothing_else(tmp_path, monkeypatch):
    reproduce("fig2", "fig3", "--out", tmp_path, "--quiet")
    monkeypatch.setattr(fig3, "PROFILES", {"quick": replace(tiny.TINY["fig3"], tol=1e-8)})
    reproduce("fig2", "--out", tmp_path, "--quiet")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert 'id="fig2"' in text
    assert 'id="fig3"' not in text


def tasks_done(dask_worker):
    """Which process a worker is, and how many tasks it has finished."""
    return os.getpid(), dask_worker.state.executed_count


@pytest.mark.slow
def test_reproduce_spreads_its_tasks_over_the_processes_of_a_dask_cluster(tmp_path):
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the cluster's own: ports in use, clocks, closing sockets
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            address = cluster.scheduler_address
            assert address.startswith("tcp://")
            assert reproduce("fig3", "--backend", "dask", "--scheduler", address, "--out", tmp_path, "--quiet") == 0
            workers = dict(client.run(tasks_done).values())
    assert len(workers.keys() - {os.getpid()}) == 2
    assert sum(workers.values()) > 0
    with np.load(kept(tmp_path, "fig3").folder / "data.npz") as data:
        for name, array in tiny.result("fig3").items():
            np.testing.assert_array_equal(data[name], array, err_msg=name)


def start(out):
    arguments = ["reproduce", "fig2", "fig3", "fig5", "fig7", "--jobs", "1", "--quiet", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(SCRIPT), *arguments], env=environment)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize("kills", [2, 12])
def test_a_run_killed_at_any_moment_leaves_nothing_broken_and_goes_on(tmp_path, kills):
    """Killed at random moments after it has finished something more; then left to end."""
    rng = random.Random(kills)
    finished = set()
    for _ in range(kills):
        process = start(tmp_path)
        wait_for_more(tmp_path, finished, process)
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = {name for name in ("fig2", "fig3", "fig5", "fig7") if kept(tmp_path, name) is not None}
        assert finished <= now, "a finished experiment is lost"
        finished = now
        for path in tmp_path.rglob("[!.]*.json"):
            json.loads(path.read_text("utf-8"))
    stamps = {name: (kept(tmp_path, name).folder / "mirrormax.json").stat().st_mtime_ns for name in finished}
    assert stamps
    assert start(tmp_path).wait() == 0
    for name, stamp in stamps.items():
        assert (kept(tmp_path, name).folder / "mirrormax.json").stat().st_mtime_ns == stamp, f"{name} was redone"
    assert (tmp_path / "report.html").read_text("utf-8").count("<section") == 6
    assert not list(tmp_path.glob("**/.*"))


def wait_for_more(out, finished, process):
    """Until an experiment is there that was not, or the run is over."""
    while process.poll() is None:
        manifests = {path.parent.parent.name: path.read_text("utf-8") for path in out.glob("fig*/*/mirrormax.json")}
        if {name for name, text in manifests.items() if json.loads(text)["complete"]} - finished:
            return
        time.sleep(0.01)
