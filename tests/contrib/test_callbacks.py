"""Trainers that know how long a training is tell it to an optimizer with a target."""

import pytest
import torch
from torch import nn

from mirrormax import MirrorAdamW


def share_of_zeros(optimizer):
    weights = torch.cat([w.detach().flatten() for w in optimizer.param_groups[0]["params"]])
    return int((weights == 0).sum()), len(weights)


def test_the_hugging_face_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from mirrormax.contrib.trainer import SparsityCallback

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=8, num_labels=2, **size)
    model = transformers.BertForSequenceClassification(config)
    rows = [{"input_ids": torch.randint(50, (8,)), "labels": torch.tensor(k % 2)} for k in range(8)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True
    )
    chosen = (MirrorAdamW, {"model": model, "lr": 1e-3, "sparsity": 0.75})
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, optimizer_cls_and_kwargs=chosen, callbacks=[SparsityCallback()]
    )
    trainer.train()
    zeros, count = share_of_zeros(trainer.optimizer)
    assert trainer.optimizer.param_groups[0]["total_steps"] == 4
    assert zeros == round(0.75 * count)


def test_lightning():
    lightning = pytest.importorskip("lightning")
    from mirrormax.contrib.lightning import SparsityCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def training_step(self, batch, index):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            self.optimizer = MirrorAdamW(self, lr=1e-2, sparsity=0.5)
            return self.optimizer

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SparsityCallback()],
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(6, 8), batch_size=2))
    assert module.optimizer.param_groups[0]["total_steps"] == 6
    assert int((module.layer.weight == 0).sum()) == 32
