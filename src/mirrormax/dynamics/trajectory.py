"""What a simulation returns: plain arrays, recorded on a grid of steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrormax._arrays import A
from mirrormax._files import save_arrays
from mirrormax.attention import leads
from mirrormax.data import read_npz
from mirrormax.dynamics.setup import Mirror, to_tensor
from mirrormax.geometry import Potential, as_potential, lp_norm
from mirrormax.problem import Problem
from mirrormax.svm import Norm, att_svm

NORMS = ("l1", "l2", "linf", "spectral", "nuclear")
PER_STEP = ("W", "loss", "norm", "mass", "log_rest", "label_margins", "selected", "v", "readout_norm", "K", "Q", "V")
PER_TRIAL = ("alpha", "status", "updates", "potential")


class Margins(NamedTuple):
    """How near W is to optimal in a norm: ``shortfall`` = 1 − ``reached``/``largest``, 0 at a max-margin direction.

    ``reached`` (K, ...) is the smallest lead of W/‖W‖ over the tokens that the run ends with, ``largest`` (...) the
    margin of their attention SVM. NaN at W = 0, and where no weights select these tokens.
    """

    reached: Any
    largest: Any
    shortfall: Any


class NearestNorm(NamedTuple):
    """The norm in which a run is nearest to optimal, one name per trial, and by how much it falls short in each."""

    norm: Any
    shortfalls: dict[str, Any]


@dataclass(frozen=True, repr=False, eq=False)
class Trajectory(Generic[A]):
    """A run, or a batch of runs of shape (...), at K recorded steps.

    ``steps`` (K,)                    updates done; 0 is the start, the last is always there
    ``W`` (K, ..., d, d)              attention weights, or (1, ..., d, d) the last ones only
    ``loss``, ``norm`` (K, ...)       the risk, and ‖W‖ in the norm of the potential
    ``mass`` (K, ...)                 mean attention on the selected tokens
    ``log_rest`` (K, ..., n)          log of the attention on all others: digits where ``mass`` says 1
    ``label_margins`` (K, ..., n)     y f(X, z)
    ``selected`` (K, ..., n)          the tokens of the largest attention
    ``alpha`` (..., n)                those at the end
    ``divergence``                    by reference: directional divergences (K, ...), NaN at W = 0
    ``status`` (...)                  ``steps`` all were done, ``loss`` fell below its tolerance, ``nonfinite`` the next
                                      iterate would not have been finite, ``stationary`` the step was exactly zero
    ``updates`` (...)                 updates that trial took; from there on its rows repeat its last iterate
    ``potential`` (...)               the potentials, as JSON
    ``config``                        the other settings of the run
    ``problem``                       what it was trained on, one entry per trial; not in a file of it

    Joint runs also have the readout ``v`` (K, ..., d) and its ``readout_norm``; factored runs ``K`` and ``Q``
    (K, ..., d, m). Runs of :func:`simulate_heads` have the heads as the last axis of their trials, and
    trained readouts ``V`` (K, ..., H, C, d). ``run[i]`` is the run of trial i, or of any index into the batch.
    """

    steps: A
    W: A
    loss: A
    norm: A
    mass: A
    log_rest: A
    label_margins: A
    selected: A
    alpha: A
    status: str | NDArray[Any]
    updates: A
    potential: str | NDArray[Any]
    divergence: dict[str, Any] = field(default_factory=dict)
    v: A | Any = None
    readout_norm: A | Any = None
    K: A | Any = None
    Q: A | Any = None
    V: A | Any = None
    config: dict[str, Any] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape (...) of the trials."""
        return tuple(np.shape(self.status))

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("a single run has no length; its recorded steps are in .steps.")
        return self.batch_shape[0]

    def __getitem__(self, index: Any) -> Trajectory[A]:
        """The runs at ``index`` of the batch: a number, a slice, a mask, or a tuple of these."""
        if not self.batch_shape:
            raise IndexError("a single run has no trials to choose from.")
        trial = index if isinstance(index, tuple) else (index,)
        for place in (k for k, part in enumerate(trial) if part is ...):  # of the batch, not of what an entry holds
            whole = (slice(None),) * (len(self.batch_shape) - len(trial) + 1)
            trial = (*trial[:place], *whole, *trial[place + 1 :])
            break
        row = (slice(None), *trial)
        return self._with(lambda array: array[row], lambda array: array[trial])

    def numpy(self) -> Trajectory[NDArray[Any]]:
        """The same with numpy arrays throughout."""
        return self._with(_numpy, _numpy, steps=_numpy(self.steps))

    def potentials(self) -> np.ndarray[Any, Any]:
        """The potential of every trial, as an object array (...)."""
        specs = np.vectorize(json.loads, otypes=[object])(self.potential)
        potentials: np.ndarray[Any, Any] = np.vectorize(as_potential, otypes=[object])(specs)
        return potentials

    def divergence_to(self, reference: ArrayLike | Tensor, p: float | Potential | None = None) -> A:
        """D_ψ(reference/‖reference‖, W/‖W‖) at every recorded step, (K, ...), for references (..., d, d).

        ψ is that of the run, or ``p``. The reference is often known only when the run is over: the
        attention SVM of the tokens it has selected.
        """
        return cast("A", self._divergence("W", reference, p, 2))

    def readout_divergence_to(self, reference: ArrayLike | Tensor, p: float | Potential | None = None) -> A:
        """The same for the readout v, with references (..., d)."""
        if self.v is None:
            raise ValueError(
                "this run has a fixed readout, which diverges from nothing; simulate with train_readout=True."
            )
        return cast("A", self._divergence("v", reference, p, 1))

    def _divergence(self, name: str, reference: Any, p: float | Potential | None, core: int) -> Any:
        w, ref = to_tensor(name, getattr(self, name)), to_tensor("reference", reference)
        batch, shape = self.batch_shape, w.shape[w.ndim - core :]
        if not core <= ref.ndim <= len(batch) + core or any(
            r not in (1, b) for r, b in zip(ref.shape[::-1], (*batch, *shape)[::-1], strict=False)
        ):
            raise ValueError(
                f"reference must have the shape {(*batch, *shape)} of {name}, got {tuple(ref.shape)}; "
                "give the solution of the same problem."
            )
        flat = self.potentials().ravel().tolist() if p is None else [as_potential(p)] * int(np.prod(batch))
        w = w.reshape(len(w), -1, *[1] * (2 - core), *shape)
        ref = ref.to(w.device).expand((*batch, *shape)).reshape(w.shape[1:])
        divergence = Mirror(flat).divergence(ref.unsqueeze(1), w.transpose(0, 1)).T.reshape(len(w), *batch)
        return divergence if isinstance(self.W, Tensor) else divergence.numpy()

    def margins(self, norm: str | float = 2, *, k: int | None = None, problem: Problem | None = None) -> Margins:
        """How near W is to the attention SVM of its tokens in a norm, at every recorded step.

        ``norm`` is a p, or a name as :func:`~mirrormax.svm.att_svm` takes it, with k for the k-support norm. In norms
        in which solutions are not unique this, and no distance to one of them, says how near W is. A run that was read
        from a file does not hold its problem: pass it.
        """
        data = problem if problem is not None else self.problem
        if data is None:
            raise ValueError("this run was read from a file and does not hold its problem; pass problem=.")
        run, data = self.numpy(), data.numpy()
        norm = 2 if norm == "l2" else norm
        settings: dict[str, Any] = {"norm": norm, "k": k} if isinstance(norm, str) else {"p": norm}
        solution = att_svm(data.X, data.z, run.alpha, mask=data.mask, throw=False, **settings)
        sizes = lp_norm(run.W, norm) if not isinstance(norm, str) else Norm(norm, run.W.shape[-2:], k).sizes(run.W)
        lead = np.asarray(leads(data.X, data.z, W=run.W, alpha=run.alpha, mask=data.mask)).min((-2, -1))
        with np.errstate(invalid="ignore", divide="ignore"):
            reached = lead / sizes.reshape(lead.shape)
            largest = np.where(solution.optimal, solution.margin, np.nan)
            margins = Margins(reached, largest, 1 - reached / largest)
        return margins if not isinstance(self.W, Tensor) else Margins(*(torch.as_tensor(part) for part in margins))

    def nearest_norm(
        self, norms: Sequence[str | float] = NORMS, *, k: int | None = None, problem: Problem | None = None
    ) -> NearestNorm:
        """The norm in which the last W is nearest to optimal, of each trial, with its shortfall in all of them."""
        shortfalls = {
            str(norm): _numpy(self.margins(norm, k=k if norm == "k-support" else None, problem=problem).shortfall[-1])
            for norm in norms
        }
        table = np.stack([np.where(np.isnan(short), np.inf, short) for short in shortfalls.values()])
        names = np.array([*shortfalls])[table.argmin(0)]
        return NearestNorm(str(names) if not names.shape else names, shortfalls)

    def save(self, path: str | Path) -> None:
        """Write an ``.npz`` of plain arrays under the names above, whole or not at all."""
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"a run is saved as an .npz file, got {path}; end the name with .npz.")
        run, arrays = self.numpy(), {"steps": _numpy(self.steps)}
        for name in (*PER_STEP, *PER_TRIAL):
            if getattr(run, name) is not None:
                arrays[name] = np.asarray(getattr(run, name))
        arrays |= {f"divergence/{name}": value for name, value in run.divergence.items()}
        save_arrays(path, **arrays, config=np.array(json.dumps(self.config, sort_keys=True)))

    @classmethod
    def load(cls, path: str | Path) -> Trajectory[NDArray[Any]]:
        """Read what :meth:`save` wrote, as numpy arrays."""
        arrays = read_npz(path, "run file")
        if "margins" in arrays:  # their name until 0.2.0
            arrays["label_margins"] = arrays.pop("margins")
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        missing = [name for name in (*required, "config") if name not in arrays]
        if missing:
            raise ValueError(f"the run file {path} has no array {missing[0]!r}; save it with Trajectory.save.")
        plain: dict[str, Any] = {f.name: arrays[f.name] for f in fields(cls) if f.name in arrays}
        plain["config"] = json.loads(str(arrays["config"]))
        parts = (key.partition("/") for key in arrays)
        plain["divergence"] = {name: arrays[f"divergence/{name}"] for group, _, name in parts if group == "divergence"}
        return cast("Trajectory[NDArray[Any]]", cls(**plain))

    def __repr__(self) -> str:
        of = f" of {self.batch_shape} trials" if self.batch_shape else ""
        counted = np.unique(np.asarray(self.status), return_counts=True)
        ends = ", ".join(f"{name} {count}" for name, count in zip(*counted, strict=True))
        return f"Trajectory({len(self.steps)} records up to step {int(self.steps[-1])}{of}; ended by {ends})"

    def _with(self, per_step: Callable[[Any], Any], per_trial: Callable[[Any], Any], **changes: Any) -> Trajectory:
        changes |= {name: per_step(a) for name in PER_STEP if (a := getattr(self, name)) is not None}
        changes |= {name: per_trial(getattr(self, name)) for name in PER_TRIAL}
        changes["divergence"] = {name: per_step(a) for name, a in self.divergence.items()}
        if self.problem is not None:
            parts = {name: getattr(self.problem, name) for name in ("X", "y", "z", "v", "mask")}
            changes["problem"] = Problem(**{name: per_trial(a) for name, a in parts.items() if a is not None})
        return replace(self, **changes)


def _numpy(array: Any) -> Any:
    return array.cpu().numpy() if isinstance(array, Tensor) else array
