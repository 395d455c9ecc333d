"""How concentrated weights are, by measures that do not hang on one threshold, and by the paper's counts beside them.

For a matrix W of n entries with singular values σ:

* ``hoyer`` = (√n − ‖W‖₁/‖W‖₂)/(√n − 1): 1 for a single entry, 0 when all are equally large;
* ``top_mass``: the share of ‖W‖₁ in the largest 1 % of the entries (rounded up);
* ``effective_rank`` = exp(−Σ s_i log s_i), s = σ/Σσ: from 1 up to the number of singular values.

None of these changes when W is scaled. Counts do: a count of large weights measures what has left the initial
range rather than sparsity, so the share outside that range is given too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from mirrormax._attention_names import PROJECTIONS
from mirrormax.optim import param_groups

Matrix = npt.NDArray[np.float64]

TOP = 0.01
LARGE = 0.06
NEAR_ZERO = 0.01
ROLES = {"q": "query", "k": "key", "v": "value"}


@dataclass(frozen=True)
class Sparsity:
    """Measures of one matrix or of several together; see the module's description.

    ``large`` counts |w| ≥ 0.06 and ``near_zero`` |w| < 0.01, as the paper's comparisons do; ``left_range`` is the
    share of entries outside ±1/√in, the initial range of ``nn.Linear``.
    """

    entries: int
    hoyer: float
    top_mass: float
    effective_rank: float
    large: int
    near_zero: int
    left_range: float


def sparsity(*matrices: Tensor | npt.ArrayLike) -> Sparsity:
    """Measures of the entries of all matrices (out, in) together; the effective rank is the mean over matrices.

    >>> sparsity(np.eye(4)).effective_rank
    4.0
    """
    if not matrices:
        raise ValueError("give at least one matrix to measure, got none.")
    weights = [_matrix(matrix) for matrix in matrices]
    outside = sum(int((np.abs(matrix) > 1 / math.sqrt(matrix.shape[1])).sum()) for matrix in weights)
    sizes = np.concatenate([np.abs(matrix).ravel() for matrix in weights])
    return Sparsity(
        entries=sizes.size,
        hoyer=hoyer(sizes),
        top_mass=top_mass(sizes),
        effective_rank=float(np.mean([effective_rank(matrix) for matrix in weights])),
        large=int((sizes >= LARGE).sum()),
        near_zero=int((sizes < NEAR_ZERO).sum()),
        left_range=outside / sizes.size,
    )


def attention_weights(model: nn.Module) -> dict[str, list[Tensor]]:
    """The matrices of a model that make queries, keys and values, block by block.

    Found as :func:`~mirrormax.optim.param_groups` finds them; layers that pack several roles into one
    matrix raise, since how they pack is theirs to know: cut such matrices up and call :func:`sparsity`.
    """
    group = param_groups(model)[0]
    roles: dict[str, list[Tensor]] = {role: [] for role in ROLES.values()}
    for name, weight in zip(group["param_names"], group["params"], strict=True):
        layer = name.removesuffix(".weight").rpartition(".")[2]
        role = ROLES.get(PROJECTIONS.get(layer, ""))
        if role is None:
            raise ValueError(f"{name} is not the matrix of one role; cut it into query, key and value for sparsity().")
        roles[role].append(weight.detach())
    return {role: matrices for role, matrices in roles.items() if matrices}


def hoyer(weights: Tensor | npt.ArrayLike) -> float:
    """(√n − ‖w‖₁/‖w‖₂)/(√n − 1) over all n ≥ 2 entries."""
    sizes = _sizes(weights)
    if sizes.size < 2:
        raise ValueError(f"the Hoyer index needs two entries or more, got {sizes.size}; measure a whole matrix.")
    root = math.sqrt(sizes.size)
    # Rounding may leave the ratio a little above √n.
    return max(0.0, float((root - sizes.sum() / np.linalg.norm(sizes)) / (root - 1)))


def top_mass(weights: Tensor | npt.ArrayLike) -> float:
    """The share of ‖w‖₁ in the largest ⌈n/100⌉ of n entries."""
    sizes = _sizes(weights)
    count = math.ceil(TOP * sizes.size)
    return float(np.partition(sizes, sizes.size - count)[sizes.size - count :].sum() / sizes.sum())


def effective_rank(matrix: Tensor | npt.ArrayLike) -> float:
    """exp of the entropy of the singular values as shares of their sum; 0 for a matrix of zeros."""
    values = np.linalg.svd(_matrix(matrix), compute_uv=False)
    if not values.any():
        return 0.0
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _sizes(weights: Tensor | npt.ArrayLike) -> Matrix:
    sizes = np.abs(_array(weights)).ravel()
    if not sizes.any():
        raise ValueError("the weights are all zero, so nothing can be said of their shares; check the model.")
    # Powers of two are exact, and squares of tiny weights do not underflow.
    return np.ldexp(sizes, -int(np.frexp(sizes.max())[1]))


def _matrix(matrix: Tensor | npt.ArrayLike) -> Matrix:
    array = _array(matrix)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"a matrix must have shape (out, in) with something in it, got {array.shape}.")
    return array


def _array(weights: Tensor | npt.ArrayLike) -> Matrix:
    plain = weights.detach().double().cpu().numpy() if isinstance(weights, Tensor) else weights
    array = np.asarray(plain, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"the weights hold {array[~np.isfinite(array)][0]}; every one must be finite.")
    return array
