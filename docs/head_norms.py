"""Norms of trained heads: what AdamW, Muon and MirrorAdamW leave in W_K W_Qᵀ, beside first and shuffled weights.

Run ``python docs/head_norms.py``; it prints the second table of docs/math/norms.md (some minutes of processor time).

If a head turned to the solution of its optimizer's norm, its W = W_Kᵀ W_Q would be *small in that norm for its size in
ℓ2*: entries alike and ℓ∞/ℓ2 low for sign-like steps, singular values alike and spectral/ℓ2 low for Muon, few large
entries and Hoyer's index high for p < 2. What is compared is each trained head with the first weights of the same head
(training), and with its own entries in random places (structure beyond the sizes of entries), by the 95 % interval of
the mean of log ratios over heads. Written before the first run: something is *seen* if that interval excludes zero.

A language model of bytes (two blocks of four heads, 64 numbers a token, windows of 64), the reviews that come with
the package, the same batches for all, gradients clipped at 1, warm-up and cosine. Muon trains the matrices of the
blocks, and AdamW the rest; weight decay is that of each optimizer's default.
"""

from __future__ import annotations

import argparse
import math
from copy import deepcopy
from functools import cache
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import nn

from mirrormax._statistics import mean
from mirrormax.nets.models import CausalAttention
from mirrormax.optim import MirrorAdamW, param_groups
from mirrormax.training import LanguageTraining, Prepared, loader, loss_and_logits, prepare

RATIOS = ("linf", "spectral", "nuclear", "hoyer")
OPTIMIZERS = ("AdamW", "Muon", "MirrorAdamW, p = 1.1", "MirrorAdamW, p = 1.5")
LR = {"AdamW": 3e-3, "Muon": 2e-2, "MirrorAdamW, p = 1.1": 3e-3, "MirrorAdamW, p = 1.5": 3e-3}


def optimizers_of(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    if name == "AdamW":
        return [torch.optim.AdamW(model.parameters(), lr=LR[name])]
    if name.startswith("MirrorAdamW"):
        return [MirrorAdamW(model.parameters(), lr=LR[name], p=float(name.split()[-1]))]
    matrices = param_groups(model, scope="matrices")[0]["params"]
    inside = {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in inside]
    return [torch.optim.Muon(matrices, lr=LR[name]), torch.optim.AdamW(rest, lr=LR["AdamW"])]


def heads_of(model: nn.Module) -> np.ndarray[Any, Any]:
    """W_Kᵀ W_Q (d, d) of every head of every block, as they meet where key and query stand at the same place."""
    found = []
    for module in model.modules():
        if isinstance(module, CausalAttention):
            parts = [part.weight.detach().double() for part in (module.k_proj, module.q_proj)]
            keys, queries = (part.unflatten(0, (module.heads, -1)) for part in parts)
            found.append((keys.mT @ queries).numpy())
    return np.concatenate(found)


def ratios(W: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """‖W‖_∞/‖W‖₂, spectral/‖W‖₂, nuclear/‖W‖₂ and Hoyer's index of heads (H, d, d): (4, H)."""
    size = np.linalg.norm(W, axis=(1, 2))
    values = np.linalg.svd(W, compute_uv=False)
    root = math.sqrt(W[0].size)
    hoyer = (root - np.abs(W).sum((1, 2)) / size) / (root - 1)
    return np.stack([np.abs(W).max((1, 2)) / size, values[:, 0] / size, values.sum(1) / size, hoyer])


def shuffled(W: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(head.ravel()).reshape(head.shape) for head in W])


@cache
def prepared_by(seed: int) -> Prepared:
    return prepare(LanguageTraining(data="reviews", seed=seed, context=64, dim=64, hidden=128))


def trained(name: str, seed: int, steps: int) -> tuple[float, list[np.ndarray[Any, Any]]]:
    """The loss over the last tenth of the steps, and ratios (4, H) before, after, and of shuffled entries."""
    prepared, losses = prepared_by(seed), []
    model = deepcopy(prepared.model)
    first, optimizers = heads_of(model), optimizers_of(name, model)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    batches: Any = loader(prepared.splits[0], 16, seed)
    for step, batch in enumerate(islice(cycle(batches), steps)):
        warm = steps / 10
        factor = (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))
        for optimizer, own in zip(optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, own, strict=True):
                group["lr"] = rate * factor
            optimizer.zero_grad()
        loss, _ = loss_and_logits(model, *batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    last = heads_of(model)
    return float(np.mean(losses[-steps // 10 :])), [ratios(W) for W in (first, last, shuffled(last, seed))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    print("| optimizer | loss | weights | ℓ∞/ℓ2 | spectral/ℓ2 | nuclear/ℓ2 | Hoyer |\n|---|---|---|---|---|---|---|")
    for name in OPTIMIZERS:
        runs = [trained(name, seed, args.steps) for seed in range(args.seeds)]
        loss = mean([loss for loss, _ in runs])
        first, last, mixed = (np.concatenate([parts[k] for _, parts in runs], 1) for k in range(3))
        rows = (("first", first, None), ("trained", last, first), ("trained, shuffled", mixed, last))
        for told, values, before in rows:
            cells = [f"{middle:.3f}" for middle in values.mean(1)]
            if before is not None:
                changes = [mean(np.log(after / then)) for after, then in zip(values, before, strict=True)]
                cells = [
                    f"{cell} (× {math.exp(change.mean):.2f}, {math.exp(change.low):.2f} to {math.exp(change.high):.2f})"
                    for cell, change in zip(cells, changes, strict=True)
                ]
            said = f"{loss.mean:.3f} ({loss.low:.3f} to {loss.high:.3f})" if told == "trained" else ""
            print(f"| {name} | {said} | {told} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
