"""Two real processes (gloo): DDP and FSDP2 give what one process gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optim.distributed_worker import OPTIONS, PARTS, make, model, train

WORKER = Path(__file__).with_name("distributed_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(WORKER),
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp resumed"])
def test_two_processes_equal_one(results, kind, name):
    net = model()
    train(net, make(net, OPTIONS[name]), 4, slice(0, 8))
    for rank in range(2):
        for ours, alone in zip(results[rank][f"{kind} {name}"], net.parameters(), strict=True):
            torch.testing.assert_close(ours, alone.detach(), rtol=1e-9, atol=1e-12)


def test_a_nonfinite_shard_is_refused_by_every_process(results):
    assert all(float(result["refused"][0]) == 1 for result in results)


@pytest.mark.parametrize("kind", PARTS)
def test_what_one_process_cannot_know_is_refused_by_name(results, kind):
    assert all(float(result[kind][0]) == 1 for result in results)
