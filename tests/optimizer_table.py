"""The conformance table: one row per optimizer."""

from dataclasses import dataclass, field
from typing import Any

import torch

from mirrormax.geometry import ElasticNet, GroupElasticNet, Hypentropy, Lp, Potential, SquaredLp
from mirrormax.optim import MirrorAdamW, MirrorDescent


@dataclass(frozen=True)
class Row:
    name: str
    options: dict[str, Any] = field(hash=False)
    lr: float = 0.05
    kind: type = MirrorDescent

    def __call__(self, params: Any, **more: Any) -> MirrorDescent | MirrorAdamW:
        return self.kind(params, **{"lr": self.lr, **self.options, **more})

    @property
    def potential(self) -> Potential:
        p = self.options["p"]
        return p if isinstance(p, Potential) else Lp(p)


PLAIN: dict[str, Any] = {"scale": None, "trust": None, "clip": None}

ROWS = [
    Row("p=1.01", {"p": 1.01}, lr=1e-3),
    Row("p=1.1", {"p": 1.1}, lr=0.02),
    Row("p=1.5", {"p": 1.5}),
    Row("p=1.75", {"p": 1.75}),
    Row("p=2", {"p": 2.0}, lr=0.1),
    Row("p=3", {"p": 3.0}),
    Row("p=6", {"p": 6.0}),
    Row("p=50", {"p": 50.0}, lr=0.01),
    Row("squared p=1.5", {"p": SquaredLp(1.5)}),
    Row("squared p=3", {"p": SquaredLp(3.0)}),
    Row("hypentropy", {"p": Hypentropy(1.0)}),
    Row("momentum", {"p": 1.5, "momentum": 0.9}, lr=0.01),
    Row("nesterov", {"p": 1.5, "momentum": 0.9, "nesterov": True}, lr=0.01),
    Row("weight decay", {"p": 1.5, "weight_decay": 0.1}),
    Row("decay and momentum", {"p": 3.0, "weight_decay": 0.1, "momentum": 0.5, "nesterov": True}, lr=0.02),
    Row("sgd with all", {"p": 2.0, "weight_decay": 0.1, "momentum": 0.5, "nesterov": True}, lr=0.02),
    Row("normalised by tensor", {"p": 1.5, "normalize": "tensor"}, lr=0.01),
    Row("normalised globally", {"p": 3.0, "normalize": "global"}, lr=0.01),
    Row("maximise", {"p": 1.5, "maximize": True}),
    Row("scaled", {"p": 1.1, "scale": "tensor"}),
    Row("scaled and normalised", {"p": 3.0, "scale": "tensor", "normalize": "tensor"}, lr=0.005),
    Row("held", {"p": 1.25, "scale": "tensor", "trust": 0.04, "clip": 0.5, "momentum": 0.9}, lr=0.05),
    Row("held at p=2", {"p": 2.0, "trust": 0.01, "weight_decay": 0.1}, lr=0.1),
    Row("held squared", {"p": SquaredLp(1.5), "trust": 0.02}),
    Row("LinBreg", {"p": ElasticNet(0.02, 2.0)}),
    Row("LinBreg by row", {"p": GroupElasticNet(0.01), "momentum": 0.5}),
    Row("AdamW", {"p": 2.0, "moments": "entry", **PLAIN}, lr=0.01, kind=MirrorAdamW),
    Row("Adam p=1.1", {"p": 1.1}, lr=0.01, kind=MirrorAdamW),
    Row(
        "Adam p=1.25 held",
        {"p": 1.25, "moments": "tensor", "trust": 0.004, "betas": (0.5, 0.9)},
        lr=0.01,
        kind=MirrorAdamW,
    ),
    Row("Adam p=1.5 by entry", {"p": 1.5, "moments": "entry", "weight_decay": 0.2}, lr=0.01, kind=MirrorAdamW),
    Row("Adam p=3 by entry", {"p": 3.0, "moments": "entry", "trust": 0.005, "clip": 0.1}, lr=0.01, kind=MirrorAdamW),
    Row("Adam hypentropy", {"p": Hypentropy(0.5), "moments": "tensor", "maximize": True}, lr=0.01, kind=MirrorAdamW),
    Row("Adam squared", {"p": SquaredLp(1.5), "moments": "tensor", "eps": 1e-3}, lr=0.01, kind=MirrorAdamW),
    Row(
        "AdaBreg",
        {"p": ElasticNet(0.02), "moments": "entry", "weight_decay": 0.0, **PLAIN},
        lr=0.01,
        kind=MirrorAdamW,
    ),
    Row("Adam elastic with decay", {"p": ElasticNet(0.02, 0.5), "weight_decay": 0.3}, lr=0.01, kind=MirrorAdamW),
]


def parameters(dtype=torch.float64, seed=0):
    """A matrix, a vector, a scalar and a strided matrix, with values of ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(3, 4), (5,), ()]]
    tensors.append(torch.randn(4, 3, generator=generator, dtype=torch.float64).t())
    return [torch.nn.Parameter((0.5 * t).to(dtype)) for t in tensors]


def set_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        gradient = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        param.grad = (0.1 * gradient).to(param.dtype)


def run(optimizer, params, steps, first=0):
    """Steps with gradients that depend on the step's number alone."""
    for step in range(first, first + steps):
        set_gradients(params, seed=100 + step)
        optimizer.step()
    return params
