"""Problems that several tests share."""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath
import torch
from hypothesis import settings
from torch import Tensor

from mirrormax.attention import scaled_readout_gradient

LOSSES = ("logistic", "exponential", "correlation")

# The same examples every time, and no clock: a busy machine must not fail a test.
repeatable = settings(derandomize=True, deadline=None, max_examples=30)


class Problem(NamedTuple):
    X: Tensor
    y: Tensor
    z: Tensor
    v: Tensor
    W: Tensor


def random_problem(*batch: int, n: int = 6, T: int = 8, d: int = 10, scale: float = 0.3, seed: int = 0) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    return Problem(normal(n, T, d), normal(n).sign(), normal(n, d), normal(d), scale * normal(d, d))


def readout_gradient(*problem: Tensor, **options: Any) -> Tensor:
    """∇_v L, from its scaled form."""
    scaled, log_scale = scaled_readout_gradient(*problem, **options)
    return scaled * log_scale.exp().unsqueeze(-1)


def random_mask(*batch: int, n: int = 6, T: int = 8, seed: int = 0) -> Tensor:
    """A ragged mask: every sequence has between 1 and T tokens, the first ones."""
    lengths = torch.randint(1, T + 1, (*batch, n), generator=torch.Generator().manual_seed(seed))
    return torch.arange(T) < lengths.unsqueeze(-1)


def saturated_problem(log_rest: float, n: int = 4, T: int = 5, d: int = 6, seed: int = 0) -> Problem:
    """Every sequence gives its best unselected token the weight e^log_rest (queries are scaled to it)."""
    X, y, z, v, W = random_problem(n=n, T=T, d=d, seed=seed)
    h = torch.einsum("ntd,de,ne->nt", X, W, z)
    first, second = h.topk(2).values.unbind(-1)
    return Problem(X, y, z * (-log_rest / (first - second)).unsqueeze(-1), v, W)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest entry of the difference over the largest entry of ``expected``."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


# Example 1 of the paper: two sequences of two tokens, the first of each chosen and its own query.
EXAMPLE_1_X = torch.tensor([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]], dtype=torch.float64)
EXAMPLE_1_Y = torch.tensor([1.0, -1.0], dtype=torch.float64)
EXAMPLE_1_Z = EXAMPLE_1_X[:, 0]
EXAMPLE_1_W = {
    2: torch.tensor([[25.0, 0.0], [-5.0, 0.0]], dtype=torch.float64) / 650,
    3: torch.tensor([[0.03672, 0.0], [-0.01642, 0.0]], dtype=torch.float64),
}


def exact_gradients(problem: Problem, loss: str, digits: int = 120) -> tuple[Any, Any, Any]:
    """∇_W and ∇_v by the textbook formula in ``digits`` decimals, and 1 − max s of every sample."""
    with mpmath.workdps(digits):
        X, y, z, v, W = (mpmath_entries(t) for t in problem)
        n, d = len(X), len(v)
        grad_W, grad_v, rest = mpmath.matrix(d, d), mpmath.matrix(d, 1), []
        for i in range(n):
            query = [dot(row, z[i]) for row in W]
            weights = [mpmath.exp(dot(x, query)) for x in X[i]]
            s = [w / mpmath.fsum(weights) for w in weights]
            gamma = [y[i] * dot(v, x) for x in X[i]]
            mean = dot(s, gamma)
            slope = SLOPES[loss](mean)
            c = [s_t * (g - mean) for s_t, g in zip(s, gamma, strict=True)]
            for a in range(d):
                feature = [x[a] for x in X[i]]
                grad_v[a] += slope * y[i] * dot(s, feature) / n
                for b in range(d):
                    grad_W[a, b] += slope * dot(c, feature) * z[i][b] / n
            rest.append(1 - max(s))
        return grad_W, grad_v, rest


SLOPES = {
    "logistic": lambda x: -1 / (1 + mpmath.exp(x)),
    "exponential": lambda x: -mpmath.exp(-x),
    "correlation": lambda x: mpmath.mpf(-1),
}


def exact_error(scaled: Tensor, log_scale: Tensor, expected: Any, digits: int = 120) -> float:
    """The largest entry of scaled · e^log_scale − expected over the largest entry of ``expected``."""
    with mpmath.workdps(digits):
        factor = mpmath.exp(mpmath.mpf(log_scale.item()))
        actual = [factor * mpmath.mpf(entry) for entry in scaled.flatten().tolist()]
        wanted = list(expected)
        return float(max(abs(a - e) for a, e in zip(actual, wanted, strict=True)) / max(abs(e) for e in wanted))


def mpmath_entries(tensor: Tensor) -> Any:
    return [mpmath.mpf(t.item()) if t.ndim == 0 else mpmath_entries(t) for t in tensor]


def dot(a: list[Any], b: list[Any]) -> Any:
    return mpmath.fsum(p * q for p, q in zip(a, b, strict=True))
