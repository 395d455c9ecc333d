"""Training on several processes or machines: DDP and FSDP2 end where a single process does.

    torchrun --standalone --nproc-per-node 2 examples/distributed.py

Each process takes its share of every batch. Under DDP all of them hold the whole model and the whole optimizer
state; under FSDP2 each holds a shard of both, and MirrorDescent steps on its shard. Nothing is said to the
optimizer about either.
"""

import os

import torch
import torch.distributed as dist
from tiny_task import TinyTransformer, accuracy, make_data
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import mirrormax as mm

STEPS, BATCH = 60, 64


def make_model() -> TinyTransformer:
    torch.manual_seed(0)
    return TinyTransformer().double()


def in_shards() -> nn.Module:
    model = make_model()
    fully_shard(model.block)
    return fully_shard(model)


def train(model: nn.Module, share: slice) -> list[torch.Tensor]:
    """Train on this share of every batch; the whole weights, wherever they are."""
    groups = mm.param_groups(model, attention={"p": 1.5, "lr": 0.1}, rest={"p": 2.0, "lr": 0.1})
    optimizer = mm.MirrorDescent(groups, lr=0.1, momentum=0.9, normalize=None)
    for step in range(STEPS):
        ids, labels = make_data(BATCH, seed=step)
        optimizer.zero_grad()
        cross_entropy(model(ids[share]), labels[share]).backward()
        optimizer.step()
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]


def distance(ours: list[torch.Tensor], alone: list[torch.Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, alone, strict=True))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # "nccl" on GPUs
    rank, size = dist.get_rank(), dist.get_world_size()
    share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    model = make_model()
    alone = train(model, slice(None))
    ddp = distance(train(DistributedDataParallel(make_model()), share), alone)
    fsdp = distance(train(in_shards(), share), alone)
    if rank == 0:
        result = accuracy(model, *make_data(256, seed=10_000))
        print(f"processes: {size}; accuracy: {result:.3f}; distance to one process: DDP {ddp:.1e}, FSDP2 {fsdp:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        raise SystemExit("start me by torchrun --standalone --nproc-per-node 2 examples/distributed.py")
    main()
