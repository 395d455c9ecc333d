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
def alone():
    """The weights that one process ends with."""
    weights = {}
    for name, options in OPTIONS.items():
        net = model()
        train(net, make(net, options), 4, slice(0, 8))
        weights[name] = [param.detach() for param in net.parameters()]
    return weights


@pytest.fixture(scope="module")
def results(tmp_path_factory, alone):  # after what is compiled is in the cache, from which two processes read it
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, WORKER, folder]
    workers = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True, env=environment) for rank in range(2)
    ]
    try:
        said = [worker.communicate(timeout=240)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert not any(worker.returncode for worker in workers), "\n".join(said)[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["ddp", "fsdp resumed"])
def test_two_processes_equal_one(alone, results, kind, name):
    for rank in range(2):
        for ours, expected in zip(results[rank][f"{kind} {name}"], alone[name], strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


def test_a_nonfinite_shard_is_refused_by_every_process(results):
    assert all(float(result["refused"][0]) == 1 for result in results)


@pytest.mark.parametrize("kind", PARTS)
def test_what_one_process_cannot_know_is_refused_by_name(results, kind):
    assert all(float(result[kind][0]) == 1 for result in results)
