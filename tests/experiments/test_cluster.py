"""``mirrormax reproduce`` on a cluster of real processes, one of which is killed in the middle."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

TINY = Path(__file__).parents[1] / "tiny.py"
PYTHON = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def process(*arguments):
    """A Python process that does not outlive the test."""
    path = os.pathsep.join([str(TINY.parent), PYTHON.get("PYTHONPATH", "")])
    started = subprocess.Popen(
        [sys.executable, *arguments],
        env={**PYTHON, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def wait_for(condition, seconds=280):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def busy(client):
    return [worker for worker, tasks in client.processing().items() if tasks]


def arrays(out):
    (found,) = out.glob("fig4/*/data.npz")
    with np.load(found, allow_pickle=False) as data:
        return dict(data)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_worker_killed_in_the_middle_of_reproduce_changes_nothing(tmp_path):
    distributed = pytest.importorskip("distributed")
    address = tmp_path / "scheduler.json"
    worker = ("-m", "distributed.cli.dask_worker", "--scheduler-file", str(address), "--nthreads", "1", "--no-nanny")
    scheduler = (
        "-m",
        "distributed.cli.dask_scheduler",
        "--scheduler-file",
        str(address),
        "--port",
        "0",
        "--no-dashboard",
    )
    with process(*scheduler), process(*worker) as victim, process(*worker):
        wait_for(address.exists)
        with distributed.Client(scheduler_file=str(address), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=180)
            place = ("--backend", "dask", "--scheduler", client.scheduler.address)
            command = (str(TINY), "reproduce", "fig4", "--quiet", "--out", str(tmp_path / "spread"), *place)
            with process(*command) as reproduce:
                wait_for(lambda: len(busy(client)) == 2 or reproduce.poll() is not None)
                victim.send_signal(signal.SIGKILL)
                output, _ = reproduce.communicate(timeout=280)
                assert reproduce.returncode == 0, output.decode()[-3000:]
            assert len(client.scheduler_info()["workers"]) == 1
    alone = (str(TINY), "reproduce", "fig4", "--quiet", "--out", str(tmp_path / "alone"))
    with process(*alone) as reproduce:
        output, _ = reproduce.communicate(timeout=280)
        assert reproduce.returncode == 0, output.decode()[-3000:]
    spread, one = arrays(tmp_path / "spread"), arrays(tmp_path / "alone")
    assert spread.keys() == one.keys()
    for name in one:
        np.testing.assert_array_equal(spread[name], one[name], err_msg=name)
