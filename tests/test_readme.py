"""What the README shows must run as it stands, in its order."""

import re
from pathlib import Path

import torch

README = Path(__file__).parents[1] / "README.md"


def test_the_python_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names = {"torch": torch, "model": torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)}
    for block in blocks:
        exec(block, names)
    assert names["solution"].gap <= 1e-9
    assert "self_attn.in_proj_weight" in capsys.readouterr().out


def test_the_files_that_the_readme_names_exist():
    for path in re.findall(r"\]\(((?!http)[^)#]+)", README.read_text(encoding="utf-8")):
        assert (README.parent / path).exists(), path
