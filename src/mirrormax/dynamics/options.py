"""The options of a simulated training that most runs leave alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._checks import integer, number

BACKENDS = ("auto", "tensor", "numba")


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """What :func:`simulate` and :func:`simulate_heads` take beside the problem, the steps and their rule.

    Attributes:
        batch: how many samples a step sees, in epochs that are shuffled anew per trial; all of them if not given.
            Plain steps and the running scale still turn W to the attention SVM. ``normalize="tensor"`` does not: it
            gives every batch the same push however well it is separated, and W turns to the max of the *mean* margin of
            batches (b = 1: a divergence of about .03 at n = 6; ``mirrormax reproduce batches``).
        momentum: β of m ← βm + ∇L, whose step is then normalised; it is of use while the logits move by less than
            about 1 over its window.
        seed: of the batches.
        factors: starts ``(K, Q)``, each ``(..., d, m)``, to train these in W = K Qᵀ instead of W.
        lr_v: the step size of a trained readout; that of W if not given.
        weights: ``"all"`` keeps W at every recorded step, ``"last"`` only the last one.
        references: weights ``(..., d, d)``, or a mapping of names to such, whose directional divergence is recorded.
        loss_tol: stop a trial when its loss falls below this, which is looked at where the run is recorded.
        backend: ``"tensor"`` does every run on any device; ``"numba"``, a compiled kernel (extra ``fast``), those on a
            CPU with ℓp potentials, a named loss and no factors; ``"auto"`` takes the kernel where it can do the run
            and the run is long enough to be worth loading it.
        progress: called with the number of updates done, after each record.
    """

    batch: int | None = None
    momentum: float = 0.0
    seed: int = 0
    factors: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None
    lr_v: ArrayLike | Tensor | None = None
    weights: Literal["all", "last"] = "all"
    references: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor] | None = None
    loss_tol: float | None = None
    backend: str = "auto"
    progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        if self.batch is not None:
            integer("batch", self.batch, at_least=1)
        number("momentum", self.momentum, at_least=0.0, below=1.0)
        integer("seed", self.seed, at_least=0)
        if self.factors is not None and (not isinstance(self.factors, (tuple, list)) or len(self.factors) != 2):
            raise ValueError(f"factors must be the pair (K, Q), got {self.factors!r}.")
        if self.weights not in ("all", "last"):
            raise ValueError(f"weights must be 'all' or 'last', got {self.weights!r}.")
        if self.loss_tol is not None:
            number("loss_tol", self.loss_tol)
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {self.backend!r}.")
