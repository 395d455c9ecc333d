"""What p does to attention weights: one problem, one optimizer, three potentials.

The paper's setting (n = 6 sequences of T = 8 tokens in d = 10 dimensions, all uniform on the unit
sphere), trained by normalised ℓp mirror descent through ``MirrorDescent`` and autograd, as any model
would be. Saved: the final weights, and on the way the loss and the attention on the selected token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from mirrormax.attention import Attention, attention_weights
from mirrormax.optim import MirrorDescent


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.1, 2.0, 3.0)
    n: int = 6
    T: int = 8
    d: int = 10
    lr: float = 0.1
    steps: int = 1500
    seed: int = 0


def run(config: Config, track: Callable[[Iterable[Any]], Iterable[Any]]) -> dict[str, np.ndarray[Any, Any]]:
    generator = torch.Generator().manual_seed(config.seed)

    def sphere(*shape: int) -> torch.Tensor:
        return functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    X, z, v = sphere(config.n, config.T, config.d), sphere(config.n, config.d), sphere(config.d)
    y = torch.randint(2, (config.n,), generator=generator).double() * 2 - 1
    weights, losses, selected = [], [], []
    for p in track(config.p):
        model = Attention(config.d, head=v, dtype=torch.float64)
        optimizer = MirrorDescent(model.parameters(), lr=config.lr, p=p, normalize="tensor")
        loss_of_step, selected_of_step = [], []
        for _ in range(config.steps):
            optimizer.zero_grad()
            loss = functional.softplus(-y * model(X, z)).mean()
            loss.backward()
            loss_of_step.append(float(loss.detach()))
            selected_of_step.append(float(attention_weights(X, model.W.detach(), z).amax(-1).mean()))
            optimizer.step()
        weights.append(model.W.detach().numpy().copy())
        losses.append(loss_of_step)
        selected.append(selected_of_step)
    return {
        "p": np.array(config.p),
        "W": np.array(weights),
        "loss": np.array(losses),
        "attention": np.array(selected),
    }


def summary(data: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """How many entries of W hold nine tenths of its ℓ1 mass, for each p."""
    return {
        f"p={p:g}": {
            "entries": int(W.size),
            "entries with 90 % of the weight": entries_for_mass(W, 0.9),
            "final loss": float(loss[-1]),
            "attention on the selected token": float(attention[-1]),
        }
        for p, W, loss, attention in zip(data["p"], data["W"], data["loss"], data["attention"], strict=True)
    }


def entries_for_mass(W: np.ndarray[Any, Any], share: float) -> int:
    """The least number of entries whose absolute values sum to ``share`` of the total."""
    mass = np.cumsum(np.sort(np.abs(W).ravel())[::-1])
    return int(np.searchsorted(mass, share * mass[-1]) + 1)
