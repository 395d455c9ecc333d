"""The plain loop under Accelerate, which brings devices, processes and mixed precision; with a checkpoint.

Run it as it is, or by `accelerate launch` on several devices.
"""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tiny_task import TinyTransformer, accuracy, make_data
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import mirrormax as mm

set_seed(0)
accelerator = Accelerator()
model = TinyTransformer()
optimizer = mm.MirrorAdamW(model, lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)
data = DataLoader(TensorDataset(*make_data(512, seed=0)), batch_size=64, shuffle=True)
model, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, data)


def train(epochs: int) -> None:
    for _ in range(epochs):
        for ids, labels in data:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(ids), labels))
            optimizer.step()
            schedule.step()


train(10)
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    train(10)
    uninterrupted = [param.detach().clone() for param in model.parameters()]
    accelerator.load_state(folder)
    train(10)

identical = all(torch.equal(a, b) for a, b in zip(uninterrupted, model.parameters(), strict=True))
result = accuracy(accelerator.unwrap_model(model), *make_data(256, seed=1))
accelerator.print(f"accuracy on unseen sequences: {result:.3f}; resumed as if never interrupted: {identical}")
