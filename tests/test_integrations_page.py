"""What docs/integrations.md shows runs as it stands, and what it names exists."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "integrations.md").read_text("utf-8")


def test_the_blocks_run_in_their_order_with_nothing_defined_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for text in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        needed = re.match(r"# needs (\w+)", text)
        if needed is None or importlib.util.find_spec(needed[1]) is not None:
            exec(text, names)
    wrapped = [names["trainer"].optimizer, names["by_factory"].optimizer]
    wrapped += [names[name] for name in ("by_timm",) if name in names]
    for optimizer in wrapped:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it to train
        assert isinstance(optimizer, names["mm"].MirrorAdamW)
        assert {group["name"] for group in optimizer.param_groups} == {"matrices", "rest"}
    assert names["machine"].score(*names["load_iris"](return_X_y=True)) > 0.9
    assert names["weights"].shape == (60, 5)
    assert names["params"]["query"].shape == (2,)


@pytest.mark.parametrize("page", ["integrations.md", "clusters.md"])
def test_files_that_the_pages_name_exist(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    for path in re.findall(r"\b((?:examples|tests)/[\w/.]+\w)", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\(((?!http)[^)#]+)", text):
        assert (ROOT / "docs" / path).exists(), path


def test_torch_hub_finds_the_optimizer_in_a_copy():
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    optimizer = torch.hub.load(str(ROOT), "mirror_adamw", model, lr=0.003, source="local")
    model(torch.randn(4, 5, 8)).square().mean().backward()
    optimizer.step()
    assert type(optimizer).__name__ == "MirrorAdamW"
    assert torch.hub.load(str(ROOT), "pruned", model, 0.5, source="local").share == 0.5


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about so small a task
def test_lightnings_command_line_takes_the_class_path(tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse")
    import lightning
    from lightning.pytorch.cli import LightningCLI

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def training_step(self, batch, index):
            return self.layer(batch).square().mean()

        def train_dataloader(self):
            return torch.utils.data.DataLoader(torch.randn(8, 8), batch_size=4)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["script.py"])
    quiet = ("logger=false", "enable_checkpointing=false", "enable_progress_bar=false", "enable_model_summary=false")
    trainer = [f"--trainer.{option}" for option in ("max_steps=2", "accelerator=cpu", *quiet)]
    options = ("lr=0.024", "sparsity=0.75", "total_steps=2", "moments=matrix")
    optimizer = ["--optimizer=mirrormax.MirrorAdamW", *(f"--optimizer.{option}" for option in options)]
    cli = LightningCLI(Model, save_config_callback=None, args=["fit", *optimizer, *trainer])
    (made,) = cli.trainer.optimizers
    assert (type(made).__name__, made.param_groups[0]["lr"]) == ("MirrorAdamW", 0.024)
    assert int((cli.model.layer.weight == 0).sum()) == 48
