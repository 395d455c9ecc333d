"""A Lightning module: `configure_optimizers` is the only place that knows about the optimizer.

Several devices or nodes are flags of the Trainer: `Trainer(devices=4, num_nodes=2, strategy="ddp")`.
"""

import logging
import tempfile
from typing import Any

import lightning
import torch
from tiny_task import TinyTransformer, accuracy, make_data
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import mirrormax as mm

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
EPOCHS = 20


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = TinyTransformer()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        ids, labels = batch
        return cross_entropy(self.model(ids), labels)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = mm.MirrorAdamW(self.model, lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def train(epochs: int, folder: str, checkpoint: str | None = None) -> Classifier:
    lightning.seed_everything(0, verbose=False)
    module = Classifier()
    data = DataLoader(TensorDataset(*make_data(512, seed=0)), batch_size=64)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, default_root_dir=folder, enable_checkpointing=False, **quiet
    )
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    trainer.save_checkpoint(f"{folder}/{epochs}.ckpt")
    return module


with tempfile.TemporaryDirectory() as folder:
    uninterrupted = train(EPOCHS, folder)
    train(EPOCHS // 2, folder)
    resumed = train(EPOCHS, folder, checkpoint=f"{folder}/{EPOCHS // 2}.ckpt")

identical = all(torch.equal(a, b) for a, b in zip(uninterrupted.parameters(), resumed.parameters(), strict=True))
result = accuracy(resumed.model, *make_data(256, seed=1))
print(f"accuracy on unseen sequences: {result:.3f}; resumed as if never interrupted: {identical}")
