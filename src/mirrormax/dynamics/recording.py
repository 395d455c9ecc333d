"""Which steps of a run are written down, and what is written down of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.dynamics.engine import Engine
from mirrormax.problem import first_true, masked_logits

LOG_POINTS = 100


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

    def record(self, step: int) -> None:
        """Write down the current state as that after ``step`` updates."""
        self.steps.append(step)
        engine, mirror = self.engine, self.engine.setup.mirror
        state, W = engine.evaluate(), engine.W
        log_rest = state.log_s.logsumexp(-1)
        self._keep("loss", engine.loss(state.margins).mean(-1))
        self._keep("norm", mirror.norm(W))
        self._keep("mass", -torch.expm1(log_rest).mean(-1))
        self._keep("log_rest", log_rest)
        self._keep("margins", state.margins)
        self._keep("selected", _selected(engine))
        for name, reference in self.references.items():
            self._keep(f"divergence/{name}", mirror.divergence(reference, W))
        if "v" in engine.primal:
            self._keep("head_norm", mirror.norm(engine.v))
            for name, reference in self.head_references.items():
                self._keep(f"head_divergence/{name}", mirror.divergence(reference, engine.v))
        for name, w in {"W": W, **engine.primal}.items():
            self._keep(name, w.clone(), every=self.every_weight)

    def last(self, name: str) -> Tensor:
        """The latest of a metric."""
        return self.kept[name][-1]

    def closest(self) -> Tensor:
        """The smallest divergence to a reference now, (B,); a direction that is not there is at no distance."""
        found = torch.stack([self.last(f"divergence/{name}") for name in self.references])
        return torch.where(found.isnan(), torch.inf, found).amin(0)

    def stacked(self) -> dict[str, Tensor]:
        """All metrics as (K, ..., core) in the caller's batch shape."""
        batch, place = self.engine.setup.batch, torch.argsort(self.engine.setup.order)
        stacked = {name: torch.stack(kept)[:, place] for name, kept in self.kept.items()}
        return {name: t.reshape((len(t), *batch, *t.shape[2:])) for name, t in stacked.items()}

    def _keep(self, name: str, value: Tensor, every: bool = True) -> None:
        kept = self.kept.setdefault(name, [])
        if not every:
            kept.clear()
        kept.append(value)


def _selected(engine: Engine) -> Tensor:
    """argmax_t of the logits, the first of several: (B, n)."""
    s = engine.setup
    h = masked_logits(s.X, s.z, engine.W, s.mask)
    return first_true(h == h.amax(-1, keepdim=True)).clamp(max=h.shape[-1] - 1)
