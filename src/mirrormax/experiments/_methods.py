"""Ways to a sparse model: optimizers, and what some of them do to the matrices between two steps.

All see the same batches, the same warm-up and cosine, and gradients clipped at a common norm of 1; η is the step size
of the moment. ``knob`` is what each of them is tuned over besides the step size, and ``share`` what is to be zero at
the end, for those who are told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from mirrormax.geometry import ElasticNet
from mirrormax.optim import MirrorAdamW, MirrorDescent, param_groups, sparse_start
from mirrormax.pruning import prune

Trial = tuple[float, Any]  # a step size and a knob
TINY = 1e-12  # what a weight counts as at least where it is raised to a negative power


class Method:
    """AdamW or Muon, whose knob is the weight decay, and nothing between steps; the others say what they do besides."""

    takes_share = False

    def __init__(self, model: nn.Module, lr: float, knob: Any, share: float, steps: int, seed: int, muon: bool) -> None:
        self.model, self.knob, self.share, self.steps, self.muon = model, knob, share, steps, muon
        self.matrices: list[Tensor]
        self.matrices, self.rest = (group["params"] for group in param_groups(model, scope="matrices"))
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizers = self.start(lr)

    def start(self, lr: float) -> list[Optimizer]:
        """The optimizers."""
        return self.base(lr, self.knob)

    def before(self, t: int) -> None:
        """Before the gradient of step t, counted from 0, is taken."""

    def after(self, t: int, lr: float) -> None:
        """After step t of size ``lr``."""

    def finish(self) -> None:
        """After the last step."""

    def base(self, lr: float, weight_decay: float = 0.01) -> list[Optimizer]:
        """AdamW; or torch's Muon on the matrices, with steps as large as AdamW's, and AdamW on the rest."""
        if not self.muon:
            return [AdamW(self.model.parameters(), lr=lr, weight_decay=weight_decay)]
        muon = torch.optim.Muon(self.matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        return [muon, AdamW(self.rest, lr=lr)]


class Sgd(Method):
    """SGD with momentum; the knob is its weight decay."""

    def start(self, lr: float) -> list[Optimizer]:
        return [SGD(self.model.parameters(), lr=lr, momentum=0.9, weight_decay=self.knob)]


class SoftThreshold(Method):
    """w ← sign(w) (|w| − ηλ)₊ after each step: proximal steps for λ‖w‖₁. The knob is λ."""

    def start(self, lr: float) -> list[Optimizer]:
        return self.base(lr)

    def after(self, t: int, lr: float) -> None:
        for w in self.matrices:
            w.copy_(w.sign() * (w.abs() - lr * self.knob).clamp_min(0))


class NormDecay(SoftThreshold):
    """w ← w/(1 + ηλ|w|^{p − 2}) after each step, p = .8: decay by a p-norm. The knob is λ."""

    def after(self, t: int, lr: float) -> None:
        for w in self.matrices:
            w.div_(1 + lr * self.knob * w.abs().clamp_min(TINY) ** (0.8 - 2))


class Gradual(Method):
    """Gradual magnitude pruning (Zhu and Gupta, 2017), all matrices together, by s(1 − (1 − x)³).

    x goes from 0 to 1 between the two shares of the training that are its knob, in 20 prunings.
    """

    takes_share = True

    def start(self, lr: float) -> list[Optimizer]:
        first, last = self.knob
        self.places = {round(self.steps * (first + (last - first) * k / 20)): k / 20 for k in range(1, 21)}
        return self.base(lr)

    def before(self, t: int) -> None:
        if t in self.places:
            self.pruned = prune(self.model, self.share * (1 - (1 - self.places[t]) ** 3), scope="global")

    def finish(self) -> None:
        self.pruned.finish()


class Pat(Method):
    """torchao's PruneOptimizer around AdamW: the smallest of all latent weights are zero, by a cubic schedule.

    The schedule goes from the first to the second of the shares of the training that are its knob; then the support
    stays as it is ("healing").
    """

    takes_share = True

    def start(self, lr: float) -> list[Optimizer]:
        from torchao.prototype.pat.optim import PruneOptimizer

        first, last = (round(part * self.steps) for part in self.knob)
        sparse: dict[str, Any] = {"params": self.matrices, "min_sparsity": self.share, "min_sparsity_schedule": True}
        sparse |= {"prox_type": "GlobalMinSparsityConstraint", "group_type": "KElementGrouper", "k": 1}
        base = AdamW([sparse, {"params": self.rest}], lr=lr)
        return [PruneOptimizer(base, warmup_steps=first, healing_start_step=last)]


class RigL(Method):
    """A sparse model whose support moves (Evci and others, 2020): sparse from the start, each matrix alike.

    Sixty times within the first three quarters of the training a part of the weights, the knob times a cosine, goes by
    magnitude, and as many come back at zero where the gradient is largest.
    """

    takes_share = True

    def start(self, lr: float) -> list[Optimizer]:
        self.masks = []
        for w in self.matrices:
            order = torch.rand(w.numel(), generator=self.generator).argsort().argsort()
            self.masks.append((order >= round(self.share * w.numel())).view_as(w))
            w.mul_(self.masks[-1] * (1 - self.share) ** -0.5)
        self.every = max(1, round(0.75 * self.steps / 60))
        return self.base(lr)

    def after(self, t: int, lr: float) -> None:
        moves = t and t % self.every == 0 and t < 0.75 * self.steps
        for k, w in enumerate(self.matrices):
            if moves:
                self.masks[k] = self._moved(w, self.masks[k], 0.5 * (1 + math.cos(math.pi * t / (0.75 * self.steps))))
            w.mul_(self.masks[k])

    def _moved(self, w: Tensor, mask: Tensor, part: float) -> Tensor:
        count = int(self.knob * part * int(mask.sum()))
        assert w.grad is not None
        drop = torch.where(mask, w.abs(), torch.inf).flatten().topk(count, largest=False).indices
        grow = torch.where(mask, -1.0, w.grad.abs()).flatten().topk(count).indices
        moved = mask.clone().flatten()
        moved[drop], moved[grow] = False, True
        w.view(-1)[grow] = 0.0
        return moved.view_as(mask)


class PlainDescent(Method):
    """The paper's mirror descent, with the ℓp potential on everything; the knob is p."""

    def start(self, lr: float) -> list[Optimizer]:
        return [MirrorDescent(self.model.parameters(), lr=lr, p=self.knob)]


class Mirror(Method):
    """MirrorAdamW; the knob is p."""

    def start(self, lr: float) -> list[Optimizer]:
        return [MirrorAdamW(self.model, lr=lr, p=self.knob, clip=None)]


class AdaBreg(Method):
    """MirrorAdamW with the elastic net λ‖w‖₁ + ½‖w‖² from a sparse start; the knob is λ and the share to start with."""

    def start(self, lr: float) -> list[Optimizer]:
        lam, density = self.knob
        sparse_start(self.matrices, density, generator=self.generator)
        groups = param_groups(self.model, scope="matrices", matrices={"p": ElasticNet(lam)}, rest={"p": 2.0})
        options: Any = {"weight_decay": 0.0, "scale": None, "trust": None, "clip": None}
        return [MirrorAdamW(groups, lr=lr, **options)]


class Target(Method):
    """MirrorAdamW with ``sparsity=``, by Muon's direction with moments of matrices; the knob is its weight decay."""

    takes_share = True

    def start(self, lr: float) -> list[Optimizer]:
        options: Any = {"sparsity": self.share, "total_steps": self.steps, "weight_decay": self.knob, "clip": None}
        return [MirrorAdamW(self.model, lr=lr, moments="matrix" if self.muon else "entry", **options)]


@dataclass(frozen=True)
class Way:
    """A method as it takes part in the study."""

    kind: type[Method]
    trials: tuple[Trial, ...]
    look: tuple[str, str, Any]  # colour, marker and dash of its line
    muon: bool = False  # whether Muon makes the steps of the matrices
    small: bool = False  # whether the model is a small dense one with as many weights as a sparse one keeps

    @property
    def takes_share(self) -> bool:
        """Whether it depends on the share of zeros that is asked for."""
        return self.small or self.kind.takes_share


LARGE = (6e-3, 1.2e-2, 2.4e-2)  # for orthogonalised steps
LRS, DECAYS, SCHEDULES = (3e-3, 6e-3, 1.2e-2), (0.01, 0.3), ((0.25, 0.75), (0.05, 0.6))
OF_MIRROR = ((1.5e-3, 1.1), (3e-3, 1.1), (3e-3, 1.25), (6e-3, 1.25), (3e-3, 1.5), (6e-3, 1.5))
METHODS = {  # by the names that tables use
    "AdamW": Way(Method, tuple(product(LRS, DECAYS)), ("#CC79A7", "h", (0, (8, 2)))),
    "small dense": Way(Method, tuple(product(LRS, DECAYS)), ("#3D3D3D", "s", ":"), small=True),
    "soft threshold": Way(SoftThreshold, tuple(product(LRS, (0.03, 0.1))), ("#E69F00", "P", "-.")),
    "p-norm decay": Way(NormDecay, tuple(product(LRS, (0.03, 0.06))), ("#0072B2", "o", "-")),
    "gradual pruning": Way(Gradual, tuple(product(LRS, SCHEDULES)), ("#009E73", "^", "-")),
    "MirrorAdamW": Way(Mirror, OF_MIRROR, ("#56B4E9", "v", (0, (3, 1, 1, 1)))),
    "AdaBreg": Way(AdaBreg, tuple(product(LRS, ((0.03, 0.3), (0.1, 0.1)))), ("#999933", "X", (0, (2, 1)))),
    "target": Way(Target, tuple(product(LRS, DECAYS)), ("#AA4499", ".", "-")),
    "target, matrix": Way(Target, tuple(product(LARGE, DECAYS)), ("#882255", "*", "-"), muon=True),
    "SGD": Way(Sgd, tuple(product((0.1, 0.3, 1.0), (0.0, 1e-4))), ("#8C8C8C", "x", (0, (1, 1)))),
    "Muon": Way(Method, tuple(product(LARGE, DECAYS)), ("#8C5FA8", "<", "--"), muon=True),
    "small dense, Muon": Way(Method, tuple(product(LARGE, DECAYS)), ("#3D3D3D", "s", "-"), muon=True, small=True),
    "p-norm decay, Muon": Way(NormDecay, tuple(product(LARGE, (0.03, 0.06))), ("#332288", "o", "--"), muon=True),
    "gradual pruning, Muon": Way(Gradual, tuple(product(LARGE, SCHEDULES)), ("#44AA99", ">", "-"), muon=True),
    "RigL": Way(RigL, tuple(product(LRS, (0.3, 0.1))), ("#D55E00", "D", "--")),
    "ℓp descent": Way(PlainDescent, tuple(product((0.1, 0.3, 1.0), (1.1, 1.5))), ("#8C8C8C", "p", (0, (4, 2)))),
    "torchao pat": Way(Pat, tuple(product(LRS, SCHEDULES)), ("#117733", "d", "--")),
}
