"""What p does to attention weights: one problem, one optimizer, three potentials.

The paper's setting (n = 6 sequences of T = 8 tokens in d = 10 dimensions, all uniform on the unit sphere), trained by
normalised ℓp mirror descent through ``MirrorDescent`` and autograd, as any model would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from mirrormax._drawing import AROUND_ZERO, Figure, colour_map, curve, panel, row_of_axes
from mirrormax.attention import Attention, attention_weights
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Size, stacked
from mirrormax.optim import MirrorDescent

ABOUT = About("Sparsity: what p does to the weights", place=150, seconds=9, revision=1)


@dataclass(frozen=True)
class Config(Size):
    p: tuple[float, ...] = (1.1, 2.0, 3.0)
    lr: float = 0.1
    steps: int = 1500


PROFILES = {"quick": Config(), "paper": replace(Config(), p=(1.1, 1.5, 2.0, 3.0, 6.0), steps=15000)}


def run(config: Config, work: Work) -> Arrays:
    return {"p": np.array(config.p), **stacked(work.each(_train, [(config, p) for p in config.p]))}


def _train(config: Config, p: float) -> Arrays:
    n, T, d, generator = config.n, config.T, config.d, torch.Generator().manual_seed(config.seed)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((n, T, d), (n, d), (d,)))
    X, z, v = (functional.normalize(each, dim=-1) for each in drawn)
    y = torch.randint(2, (n,), generator=generator).double() * 2 - 1
    model = Attention(d, readout=v, dtype=torch.float64)
    optimizer = MirrorDescent(model.parameters(), lr=config.lr, p=p, normalize="tensor")
    losses, selected = [], []
    for _ in range(config.steps):
        optimizer.zero_grad()
        loss = functional.softplus(-y * model(X, z)).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        selected.append(float(attention_weights(X, z, W=model.W.detach()).amax(-1).mean()))
        optimizer.step()
    return {"W": model.W.detach().numpy().copy(), "loss": np.array(losses), "attention": np.array(selected)}


def entries_for_mass(W: Any, share: float) -> int:
    """The least number of entries whose absolute values sum to ``share`` of the total."""
    mass = np.cumsum(np.sort(np.abs(W).ravel())[::-1])
    return int(np.searchsorted(mass, share * mass[-1]) + 1)


def measure(data: Arrays) -> Rows:
    for p, W, loss, attention in zip(*(data[name] for name in ("p", "W", "loss", "attention")), strict=True):
        yield alone(f"entries of {W.size} with 90 % of the weight", float(entries_for_mass(W, 0.9)), column=p)
        yield alone("final loss", float(loss[-1]), column=p)
        yield alone("attention on the selected token", float(attention[-1]), column=p)


def tell(data: Arrays, table: Measured) -> Told:
    first, *_, last = table.rows("entries of")
    few = f"{first.ours} of {data['W'][0].size} entries at {first.column}, {last.ours} at {last.column}"
    small = "Small p, few weights: " if (first.value or 0) < (last.value or 0) else ""
    return Told(
        f"{small}90 % of the weight in {few}",
        "The problem and the step size are the same. Attention converges to one token of each sequence all the same.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """The trained weights as pictures, and how attention converges to one token."""
    count = len(data["p"])
    fig, axes = row_of_axes(count + 1, width=11, height=3.3, ratios=[1.0] * count + [1.5])
    for ax, p, W in zip(axes, data["p"], data["W"], strict=False):
        limit = np.abs(W).max()
        ax.imshow(W, cmap=colour_map(AROUND_ZERO), vmin=-limit, vmax=limit)
        few = f"{entries_for_mass(W, 0.9)} of {W.size} entries"
        panel(ax, f"p = {p:g}: {few}\nhold 90 % of the weight", xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[["right", "top"]].set_visible(True)
    steps = np.arange(1, data["attention"].shape[1] + 1)
    for p, attention in zip(data["p"], data["attention"], strict=True):
        curve(axes[-1], steps, attention, p, markevery=0.15)
    panel(axes[-1], "attention on the selected token\n(mean over sequences)", "step", log="x", legend="lower right")
    return fig
