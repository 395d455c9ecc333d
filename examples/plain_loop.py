"""A plain torch loop: the attention weights under l1.5 mirror descent, the rest under SGD (which is p = 2)."""

import torch
from tiny_task import TinyTransformer, accuracy, make_data
from torch.nn.functional import cross_entropy

import mirrormax as mm

torch.manual_seed(0)
ids, labels = make_data(512, seed=0)
model = TinyTransformer()

attention = [model.block.self_attn.in_proj_weight]
groups = mm.param_groups(
    model,
    attention={"p": 1.5, "lr": mm.equivalent_lr(attention, lr=0.1, p=1.5)},
    rest={"p": 2.0, "lr": 0.1},
)
print(groups)  # which parameter went where
optimizer = mm.MirrorDescent(groups, lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)

for _ in range(20):
    for batch in torch.randperm(len(ids)).split(64):
        optimizer.zero_grad()
        cross_entropy(model(ids[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()

result = accuracy(model, *make_data(256, seed=1))
print(f"accuracy on unseen sequences: {result:.3f}")
