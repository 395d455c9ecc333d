"""Which steps of a run are written down, and what is written down of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.attention import saturated
from mirrormax.dynamics.engine import Engine, weights_of
from mirrormax.dynamics.setup import Mirror, Setup
from mirrormax.problem import first_true, masked_logits

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
        chosen = np.arange(steps + 1) if record == "all" else _log_grid(LOG_POINTS, steps)
    elif np.ndim(record) == 0:
        if isinstance(record, bool) or record != int(record) or record < 1:
            raise ValueError(f"record must be at least 1 point, a whole number, got {record!r}.")
        chosen = _log_grid(int(record), steps)
    else:
        chosen = np.asarray(record)
        if chosen.ndim != 1 or (chosen != np.floor(chosen)).any() or ((chosen < 0) | (chosen > steps)).any():
            raise ValueError(f"record must hold whole numbers between 0 and steps={steps}, got {record!r}.")
    return sorted({0, steps, *(int(k) for k in chosen)})


def _log_grid(points: int, steps: int) -> np.ndarray[Any, Any]:
    return np.rint(np.geomspace(1, max(steps, 1), points)).clip(max=steps)


class Recorder:
    """Metrics of a run at the steps recorded, each a list of (B, ...) tensors.

    loss (B,), norm of W (B,), mass (B,) the mean attention on the selected tokens, log_rest (B, n) the
    logarithm of one minus that, sample by sample, margins y f (B, n), selected tokens (B, n), and the
    directional divergences (B,) to the references, (B, d, d) each; of a trained head v (B, d) the same.
    """

    def __init__(
        self, engine: Engine, references: dict[str, Tensor], head_references: dict[str, Tensor], every_weight: bool
    ) -> None:
        self.engine, self.references, self.head_references = engine, references, head_references
        self.every_weight = every_weight
        self.steps: list[int] = []
        self.kept: dict[str, list[Tensor]] = {}
        self._waiting: list[dict[str, Tensor]] = []

    def record(self, step: int) -> None:
        """Write down the current state as that after ``step`` updates."""
        self.steps.append(step)
        self._waiting.append({name: w.clone() for name, w in self.engine.primal.items()})
        if len(self._waiting) * self.engine.setup.X.numel() >= TOGETHER:
            self._measure()

    def _measure(self) -> None:
        """All metrics of the weights that wait, K of them at once."""
        if not self._waiting:
            return
        primal = {name: torch.stack([one[name] for one in self._waiting]) for name in self._waiting[0]}
        self._waiting.clear()
        engine, s, mirror = self.engine, self.engine.setup, self.engine.setup.mirror
        W = weights_of(primal)
        state = saturated(s.X, s.y, s.z, primal.get("v", s.v), W, s.mask)
        log_rest = state.log_s.logsumexp(-1)
        found = {
            "loss": engine.loss(state.margins).mean(-1),
            "norm": mirror.norm(W.transpose(0, 1), core=2).T,
            "mass": -torch.expm1(log_rest).mean(-1),
            "log_rest": log_rest,
            "margins": state.margins,
            "selected": _selected(s, W),
        }
        for name, reference in self.references.items():
            found[f"divergence/{name}"] = _divergence(mirror, reference, W, 2)
        if "v" in primal:
            found["head_norm"] = mirror.norm(primal["v"].transpose(0, 1), core=1).T
            for name, reference in self.head_references.items():
                found[f"head_divergence/{name}"] = _divergence(mirror, reference, primal["v"], 1)
        for name, values in found.items():
            self.kept.setdefault(name, []).extend(values)
        for name, w in {"W": W, **primal}.items():
            for one in w if self.every_weight else w[-1:]:
                self._keep(name, one, every=self.every_weight)

    def last(self, name: str) -> Tensor:
        """The latest of a metric."""
        self._measure()
        return self.kept[name][-1]

    def closest(self) -> Tensor:
        """The smallest divergence to a reference now, (B,); a direction that is not there is at no distance."""
        found = torch.stack([self.last(f"divergence/{name}") for name in self.references])
        return torch.where(found.isnan(), torch.inf, found).amin(0)

    def stacked(self) -> dict[str, Tensor]:
        """All metrics as (K, ..., core) in the caller's batch shape."""
        self._measure()
        batch, place = self.engine.setup.batch, torch.argsort(self.engine.setup.order)
        stacked = {name: torch.stack(kept)[:, place] for name, kept in self.kept.items()}
        return {name: t.reshape((len(t), *batch, *t.shape[2:])) for name, t in stacked.items()}

    def _keep(self, name: str, value: Tensor, every: bool = True) -> None:
        kept = self.kept.setdefault(name, [])
        if not every:
            kept.clear()
        kept.append(value)


def _divergence(mirror: Mirror, reference: Tensor, w: Tensor, core: int) -> Tensor:
    """Of w (K, B, ...) from a reference (B, ...): (K, B)."""
    return mirror.divergence(reference.unsqueeze(1), w.transpose(0, 1), core=core).T


def _selected(s: Setup, W: Tensor) -> Tensor:
    """argmax_t of the logits, the first of several, for W (K, B, d, d): (K, B, n)."""
    h = masked_logits(s.X, s.z, W, s.mask)
    return first_true(h == h.amax(-1, keepdim=True)).clamp(max=h.shape[-1] - 1)
