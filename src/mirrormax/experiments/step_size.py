"""Which step size to start from: the rule lr = (p−1) s^{p−2} · lr of SGD, tried on real images.

A small transformer reads scikit-learn's 8 × 8 digits row by row (8 tokens). All parameters are trained
by ℓp mirror descent, with multiples of the step size that :func:`mirrormax.equivalent_lr` gives for
the weight matrices. If the rule is right, accuracy depends on the multiple and not on p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from mirrormax._drawing import Figure, look_of, panel, row_of_axes
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone
from mirrormax.experiments._running import Work
from mirrormax.optim import MirrorDescent, equivalent_lr

ABOUT = About("Step size: which to start from, for each p", place=160, seconds=28, revision=1)
AT_RULE = "test accuracy on digits at the rule's step size"


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.1, 1.5, 2.0, 3.0)
    multiples: tuple[float, ...] = (1 / 27, 1 / 9, 1 / 3, 1.0, 3.0, 9.0)
    lr: float = 0.1  # of SGD, at multiple 1
    epochs: int = 8
    batch: int = 50
    training_images: int = 1400
    width: int = 32
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), p=(1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0), epochs=40)}


class RowReader(nn.Module):
    """8 rows of 8 pixels as tokens, two encoder layers, mean over tokens, ten classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.1 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.encoder(self.embed(images) + self.position)
        return self.classify(tokens.mean(1))  # type: ignore[no-any-return]


def run(config: Config, work: Work) -> Arrays:
    trained = work.each(_train, [(config, p, multiple) for p, multiple in product(config.p, config.multiples)])
    lr, accuracy = np.reshape(trained, (len(config.p), len(config.multiples), 2)).transpose(2, 0, 1)
    return {"p": np.array(config.p), "multiples": np.array(config.multiples), "lr": lr, "accuracy": accuracy}


def _train(config: Config, p: float, multiple: float) -> tuple[float, float]:
    """The step size, and the test accuracy after training; 0 if the loss left the finite numbers."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(config.seed))
    images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 8, 8)[order] / 16, torch.tensor(labels)[order]
    torch.manual_seed(config.seed)
    model = RowReader(config.width)
    lr = multiple * equivalent_lr([param for param in model.parameters() if param.ndim > 1], config.lr, p)
    optimizer, cut = MirrorDescent(model.parameters(), lr=lr, p=p), config.training_images
    for epoch in range(config.epochs):
        order = torch.randperm(cut, generator=torch.Generator().manual_seed(config.seed + epoch))
        for batch in torch.split(order, config.batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if not math.isfinite(float(loss.detach())):
                return lr, 0.0
    with torch.no_grad():
        return lr, float((model(images[cut:]).argmax(1) == labels[cut:]).double().mean())


def measure(data: Arrays) -> Rows:
    rule = int(np.abs(np.log(data["multiples"])).argmin())  # multiple 1
    for p, accuracies in zip(data["p"], data["accuracy"], strict=True):
        yield alone(AT_RULE, float(accuracies[rule]), column=p)
        yield alone("… at the best multiple tried", float(accuracies.max()), column=p)
        yield alone("the best multiple", float(data["multiples"][int(accuracies.argmax())]), column=p)


def tell(data: Arrays, table: Measured) -> Told:
    pairs = zip(table.values("… at the best"), table.values(AT_RULE), strict=True)
    short = max(best - at_rule for best, at_rule in pairs)
    return Told(
        f"The rule's step size is within {100 * short:.0f} points of the best multiple tried, for every p",
        "No single learning rate suits every p; one multiple of the rule does.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Accuracy over the step size as it is, with the rule's for each p, and over its multiple; crosses diverged."""
    fig, (left, right) = row_of_axes(2, width=10, height=4.0)
    for k, (p, lr, accuracy) in enumerate(zip(data["p"], data["lr"], data["accuracy"], strict=True)):
        look = look_of(p)
        for ax, x, rule in ((left, lr, (lr / data["multiples"])[0]), (right, data["multiples"], 1.0)):
            kept = accuracy > 0
            ax.plot(x[kept], accuracy[kept], label=f"p = {p:g}", **look.style(markersize=5))
            lost = x[~kept] * 1.09**k  # beside each other where several have diverged
            ax.scatter(lost, np.zeros(len(lost)), marker="X", s=50, color=look.colour, zorder=4, clip_on=False)
            ax.axvline(rule, color=look.colour if ax is left else "0.3", linewidth=1.1, linestyle=":", zorder=0)
    left.scatter([], [], marker="X", color="0.3", label="diverged")
    left.plot([], [], color="0.3", linestyle=":", linewidth=1.1, label="the rule's step size")
    panel(left, "over the step size itself", "step size", "test accuracy", log="x", ylim=(-0.03, 1))
    panel(right, "over its multiple of the rule (p−1) s$^{p-2}$ · 0.1", "multiple", log="x", ylim=(-0.03, 1))
    left.set_xlim(left=min(data["lr"].min() / 8, left.get_xlim()[0]))  # room for the legend
    left.legend(loc="upper left", fontsize=9)
    return fig
