"""What each of two gloo processes runs for test_distributed: train, and report the whole weights."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import mirrormax
from mirrormax import MirrorDescent
from mirrormax.geometry import Hypentropy, SquaredLp

OPTIONS = {
    "p=1.1": {"p": 1.1, "lr": 0.01},
    "p=3 momentum": {"p": 3.0, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.01},
    "p=2": {"p": 2.0, "lr": 0.1},
    "tensor": {"p": 1.5, "lr": 0.01, "normalize": "tensor"},
    "global": {"p": 3.0, "lr": 0.01, "normalize": "global"},
    "hypentropy": {"p": Hypentropy(0.1), "lr": 0.01, "normalize": "global"},
    "squared": {"p": SquaredLp(1.5), "lr": 0.01},
    "held": {"p": 1.1, "lr": 0.1, "scale": "tensor", "trust": 0.05, "clip": 0.1, "momentum": 0.9},
    "adamw p=1.1": {"kind": "MirrorAdamW", "p": 1.1, "lr": 0.01, "moments": "tensor", "clip": 0.1},
    "target": {"kind": "MirrorAdamW", "p": 2.0, "lr": 0.05, "sparsity": 0.6, "total_steps": 4},
    "target by matrix": {"p": 2.0, "lr": 0.05, "sparsity": 0.5, "total_steps": 4, "scope": "matrix", "momentum": 0.9},
    "matrix": {"kind": "MirrorAdamW", "lr": 0.01, "moments": "matrix", "clip": 0.1},
    "matrix target": {"kind": "MirrorAdamW", "lr": 0.01, "moments": "matrix", "sparsity": 0.5, "total_steps": 4},
    "adamw by entry": {"kind": "MirrorAdamW", "p": 1.5, "lr": 0.01, "moments": "entry", "trust": 0.01},
}

# With these, one process knows too little; "plain" is what it can do.
PARTS = {
    "zero plain": {"p": 1.5, "normalize": "tensor"},
    "fsdp1 plain": {"p": 1.5, "momentum": 0.9},
    "fsdp1 tensor": {"p": 1.5, "normalize": "tensor"},
    "fsdp1 scale": {"p": 1.5, "scale": "tensor"},
    "fsdp1 squared": {"p": SquaredLp(1.5)},
    "fsdp1 target": {"kind": "MirrorAdamW", "p": 2.0, "clip": None, "sparsity": 0.5, "total_steps": 4},
    "zero plain adamw": {"kind": "MirrorAdamW", "p": 1.1, "clip": None},
    "fsdp1 adamw": {"kind": "MirrorAdamW", "clip": None, "trust": None},
    "fsdp1 plain adamw": {"kind": "MirrorAdamW", "clip": None, "trust": None, "scale": None},
}
CPU = torch.device("cpu")


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()


def make(net, options):
    options = dict(options)
    return getattr(mirrormax, options.pop("kind", "MirrorDescent"))(net.parameters(), **options)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 5, generator=generator, dtype=torch.float64)


def train(net, optimizer, steps, rows, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        net(batch(step)[rows]).square().mean().backward()
        optimizer.step()
        if step == 0:  # somebody else writes the weights: into a distributed tensor, not into its shard
            with torch.no_grad():
                for param in net.parameters():
                    param.mul_(0.9)


def whole(net):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in net.parameters()]


def sharded():
    mesh = init_device_mesh("cpu", (2,))
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def refused_in_parts(rank, results):
    """What needs whole tensors or all gradients must not be computed from parts of them."""
    for kind, options in PARTS.items():
        wrapper, *chosen = kind.split()
        rows = slice(4 * rank, 4 * rank + 4)
        net = (
            DistributedDataParallel(model()) if wrapper == "zero" else FullyShardedDataParallel(model(), device_id=CPU)
        )
        options = {"lr": 0.01, **options}
        chosen_class = getattr(mirrormax, options.pop("kind", "MirrorDescent"))
        try:
            if wrapper == "zero":
                optimizer = ZeroRedundancyOptimizer(net.parameters(), chosen_class, **options)
            else:
                optimizer = chosen_class(net.parameters(), **options)
            train(net, optimizer, 3, rows)
            said = "plain" in chosen
        except ValueError as error:
            said = "FSDP1" in str(error) and "plain" not in chosen
        results[kind] = [torch.tensor(float(said))]


def main(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    rows = slice(4 * rank, 4 * rank + 4)
    results = {}
    for name, options in OPTIONS.items():
        net = DistributedDataParallel(model())
        train(net, make(net, options), 4, rows)
        results[f"ddp {name}"] = whole(net)

        net = sharded()
        optimizer = make(net, options)
        train(net, optimizer, 2, rows)
        saved = copy.deepcopy(get_optimizer_state_dict(net, optimizer))
        resumed = make(net, options)
        set_optimizer_state_dict(net, resumed, saved)
        train(net, resumed, 2, rows, first=2)
        results[f"fsdp resumed {name}"] = whole(net)

    net = sharded()
    optimizer = MirrorDescent(net.parameters(), lr=0.1, p=1.5, error_if_nonfinite=True)
    net(batch(0)[rows]).square().mean().backward()
    if rank == 1:
        next(net.parameters()).grad.to_local()[0] = torch.nan
    try:
        optimizer.step()
    except RuntimeError as error:
        results["refused"] = [torch.tensor(float("NaN or Inf" in str(error)))]
    refused_in_parts(rank, results)
    torch.save(results, os.path.join(folder, f"rank{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
