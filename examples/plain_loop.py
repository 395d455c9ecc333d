"""A plain torch loop that ends with 80 % of the weights in the matrices at zero."""

import torch
from tiny_task import TinyTransformer, accuracy, make_data
from torch.nn.functional import cross_entropy

import mirrormax as mm

torch.manual_seed(0)
ids, labels = make_data(512, seed=0)
model = TinyTransformer()

optimizer = mm.MirrorAdamW(model, lr=1e-2, sparsity=0.8, total_steps=160)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)

for _ in range(20):
    for batch in torch.randperm(len(ids)).split(64):
        optimizer.zero_grad()
        cross_entropy(model(ids[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()

result = accuracy(model, *make_data(256, seed=1))
matrices = torch.cat([weight.detach().flatten() for weight in optimizer.param_groups[0]["params"]])
zeros = (matrices == 0).double().mean()
print(f"accuracy on unseen sequences: {result:.3f}; zeros in the matrices: {zeros:.0%}")
