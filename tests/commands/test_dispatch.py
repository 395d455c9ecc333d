import re
import subprocess
import sys

import pytest
from command_line import refusal

import mirrormax
from mirrormax import commands
from mirrormax.experiments import Results


def test_the_version_is_the_packages():
    done = subprocess.run([sys.executable, "-m", "mirrormax", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"mirrormax {mirrormax.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "--out"], "argument --out: expected one argument"),
        (["reproduce", "--fast"], "unrecognized arguments: --fast; see 'mirrormax reproduce --help'"),
        (["train", "lm", "--fast"], "unrecognized arguments: --fast; see 'mirrormax train lm --help'"),
        (["--fast"], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "the following arguments are required: COMMAND"),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "mirrormax.commands.reproduce")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert commands.main(["reproduce", "fig2"]) == 2
    assert "pip install 'mirrormax[reproduce]'" in capsys.readouterr().err


def test_an_interrupt_ends_quietly(monkeypatch, capsys, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "run", interrupted)
    assert commands.main(["reproduce", "fig2", "--quiet", "--out", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_help_of_train_says_the_step_size_that_the_code_takes(capsys):
    import torch

    from mirrormax.training import VisionTraining, make_optimizer

    model = torch.nn.MultiheadAttention(4, 1)
    optimizer = make_optimizer(model, VisionTraining(optimizer="md", attention_only=True))
    rest = {model.out_proj.weight, model.out_proj.bias}
    taken = {group["lr"] for group in optimizer.param_groups if rest & set(group["params"])}
    with pytest.raises(SystemExit):
        commands.main(["train", "vision", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    found = re.search(r"step size of the rest with --attention-only; None: ([0-9.]+)", said)
    assert {float(found[1])} == taken
