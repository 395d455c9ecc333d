"""Every script under examples/ runs as it stands, and what it claims is so."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch):
    """Run a script in this process; returns the names it leaves."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    state = torch.random.get_rng_state()

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    yield run
    torch.random.set_rng_state(state)
    sys.modules.pop("tiny_task", None)


def test_the_plain_loop_learns_and_ends_sparse(run):
    left = run("plain_loop.py")
    assert left["result"] > 0.95
    assert abs(left["zeros"] - 0.8) < 1e-3


@pytest.mark.parametrize("name", ["huggingface_trainer.py", "accelerate_loop.py", "lightning_module.py"])
# What the libraries say to themselves, or about so small a task.
@pytest.mark.filterwarnings("ignore:::lightning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_library_that_trains_also_saves_and_resumes_bit_for_bit(run, name):
    left = run(name)
    assert left["identical"]
    assert left["result"] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["trainer", "loop", "lightning"])
@pytest.mark.filterwarnings("ignore:::lightning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sentences_are_learnt_and_most_of_the_weights_can_be_cut_whoever_drives(run, driver):
    left = run("sentences.py", "--by", driver)
    assert left["result"] > 0.65
    assert left["cut"] > left["result"] - 0.05


def test_a_compiled_step_is_not_compiled_again_when_the_schedule_moves(run):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    left = run("compiled_step.py", "--backend", "eager")
    assert left["result"] > 0.95
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert float(left["optimizer"].param_groups[0]["lr"]) < 1e-4
    torch._dynamo.reset()


@pytest.mark.slow
def test_the_compiled_step_learns_with_real_kernels(run):
    torch._dynamo.reset()
    assert run("compiled_step.py")["result"] > 0.95
    torch._dynamo.reset()


@pytest.mark.slow  # tests/optim/test_distributed.py holds the same of the optimizer
def test_two_processes_by_torchrun_end_where_one_does():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(EXAMPLES / "distributed.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"processes: 2; accuracy: (\S+); .* DDP (\S+), FSDP2 (\S+)", done.stdout)
    assert found, done.stdout
    accuracy, ddp, fsdp = map(float, found.groups())
    assert accuracy > 0.95
    assert ddp < 1e-9
    assert fsdp < 1e-9


def test_without_torchrun_it_says_how_to_start_it(run, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="torchrun --standalone"):
        run("distributed.py")


def test_every_example_is_tried():
    tried = Path(__file__).read_text("utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert script.name in tried or script.name == "tiny_task.py", script.name
