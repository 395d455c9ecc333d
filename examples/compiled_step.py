"""A whole training step under torch.compile; the schedule moves the step size and nothing is compiled again.

Two things make it so: the step size is a tensor, which the scheduler fills in place, and the optimizer's step is
called inside of the compiled function. `MirrorDescent(..., compile=True)` is the other way: it compiles its own
update, takes a step size of any kind, and leaves the rest of the loop as it is.
"""

import argparse

import torch
from tiny_task import TinyTransformer, accuracy, make_data
from torch.nn.functional import cross_entropy

import mirrormax as mm

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--backend", default="inductor", help="of torch.compile; eager traces without making kernels")
backend = parser.parse_args().backend

torch.manual_seed(0)
ids, labels = make_data(512, seed=0)
model = TinyTransformer()
optimizer = mm.MirrorDescent(model.parameters(), lr=torch.tensor(0.05), p=1.5, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=160, cycle_momentum=False)


@torch.compile(backend=backend)
def training_step(ids: torch.Tensor, labels: torch.Tensor) -> None:
    cross_entropy(model(ids), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


for epoch in range(20):
    # The first epoch compiles. From then on a recompilation would be an error.
    with torch.compiler.set_stance("default" if epoch == 0 else "fail_on_recompile"):
        for batch in torch.randperm(len(ids)).split(64):
            training_step(ids[batch], labels[batch])
            schedule.step()

result = accuracy(model, *make_data(256, seed=1))
print(f"accuracy on unseen sequences: {result:.3f}; last step size: {float(optimizer.param_groups[0]['lr']):.1e}")
