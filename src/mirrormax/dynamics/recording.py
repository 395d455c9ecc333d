"""Which steps of a run are written down, and what is written down of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.attention import class_state
from mirrormax.dynamics.engine import Engine, weights_of

LOG_POINTS = 100
TOGETHER = 1 << 18
"""Numbers in the tokens of as many records as are measured at once: a call on small tensors costs more than they do."""


def record_steps(record: Any, steps: int) -> list[int]:
    """The numbers of updates after which to record: increasing, with 0 and ``steps`` among them.

    ``None`` or ``"log"`` is about a hundred steps at equal ratios, a whole number that many of them,
    ``"all"`` every step, and an array (or a list) of whole numbers just these.
    """

    if record is None or isinstance(record, str):
        if record not in (None, "log", "all"):
            raise ValueError(f"record must be 'log', 'all', a number of points or the steps, got {record!r}.")
        record = np.arange(steps + 1) if record == "all" else LOG_POINTS
    if np.ndim(record) == 0:
        points = number("record", record, at_least=1)
        if not points.is_integer():
            raise ValueError(f"record must be at least 1 point, a whole number, got {record!r}.")
        chosen = np.rint(np.geomspace(1, max(steps, 1), int(points))).clip(max=steps)
    else:
        chosen = np.asarray(record)
        if chosen.ndim != 1 or (chosen != np.floor(chosen)).any() or ((chosen < 0) | (chosen > steps)).any():
            raise ValueError(f"record must hold whole numbers between 0 and steps={steps}, got {record!r}.")
    return sorted({0, steps, *(int(k) for k in chosen)})


class Recorder:
    """Metrics of a run at the steps recorded, each a list of (B, H, ...) tensors.

    loss of all heads together and norm of W (B, H), mass (B, H) the mean attention on the selected tokens, log_rest
    (B, H, n) the logarithm of one minus that, sample by sample, label margins y f or f_y − max_{c≠y} f_c (B, H, n),
    selected tokens (B, H, n), and the directional divergences (B, H) to the references, (B, H, d, d) each.
    """

    def __init__(self, engine: Engine, references: dict[str, Tensor], every_weight: bool) -> None:
        self.engine, self.references, self.every_weight = engine, references, every_weight
        self.steps: list[int] = []
        self.kept: dict[str, list[Tensor]] = {}
        self._waiting: list[dict[str, Tensor]] = []

    def record(self, step: int) -> None:
        """Write down the current state as that after ``step`` updates."""
        self.steps.append(step)
        self._waiting.append({name: w.clone() for name, w in self.engine.primal.items()})
        setup = self.engine.setup
        if len(self._waiting) * setup.X.numel() * setup.V.shape[1] >= TOGETHER:
            self._measure()

    def _measure(self) -> None:
        """All metrics of the weights that wait, K of them at once."""
        if not self._waiting:
            return
        primal = {name: torch.stack([weights[name] for weights in self._waiting]) for name in self._waiting[0]}
        self._waiting.clear()
        engine, s = self.engine, self.engine.setup
        W, V = weights_of(primal), primal.get("V", s.V)
        state = class_state(s.X, s.z, W, s.mask)
        labels = engine.label(state, V)
        log_rest = state.log_s.logsumexp(-1)
        shape = W.shape[:3]
        metrics = {
            "loss": labels.loss.mean(-1, keepdim=True).expand(shape),
            "norm": s.mirror.norm(W.transpose(0, 1)).transpose(0, 1),
            "mass": -torch.expm1(log_rest).mean(-1),
            "log_rest": log_rest,
            "label_margins": labels.margins.unsqueeze(-2).expand(*shape, -1),
            "selected": state.alpha,
        }
        for name, reference in self.references.items():
            divergence = s.mirror.divergence(reference.unsqueeze(1), W.transpose(0, 1))
            metrics[f"divergence/{name}"] = divergence.transpose(0, 1)
        if "V" in primal:
            metrics["readout_norm"] = s.mirror.norm(V.transpose(0, 1)).transpose(0, 1)
        for name, values in metrics.items():
            self.kept.setdefault(name, []).extend(values)
        for name, w in {"W": W, **primal}.items():
            if self.every_weight:
                self.kept.setdefault(name, []).extend(w)
            else:
                self.kept[name] = [w[-1]]

    def loss(self) -> Tensor:
        """Of the last record, (B,)."""
        self._measure()
        return self.kept["loss"][-1][:, 0]

    def stacked(self) -> dict[str, Tensor]:
        """All metrics as (K, ..., core) in the caller's batch shape."""
        self._measure()
        setup = self.engine.setup
        stacked = {name: setup.unflat(torch.stack(kept), axis=1) for name, kept in self.kept.items()}
        if setup.binary and "V" in stacked:
            stacked["v"] = stacked.pop("V").squeeze(-2)
        return stacked
