"""Where to start: which step size at a given p, and from which weights under a threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from mirrormax._checks import instance, number, several
from mirrormax.geometry import Potential, as_potential


def equivalent_lr(params: Iterable[Tensor] | Iterable[tuple[str, Tensor]], lr: float, p: float | Potential) -> float:
    """The step size with which mirror descent moves weights as SGD does with ``lr``.

    A small step moves a weight w by η g / ψ''(w), so for weights of root mean square s

        η = ψ''(s) · lr,      which is (p − 1) s^{p−2} · lr for ℓp.

    It is a place to start a search, not its end; docs/choose.md says how it fared. ``scale="tensor"`` does this
    for each tensor by itself.

    >>> round(equivalent_lr([torch.full((64, 64), 0.05)], lr=0.1, p=1.1), 3)
    0.148
    """
    potential, lr = as_potential(p), number("lr", lr, at_least=0)
    if isinstance(params, nn.Module):
        raise TypeError(
            f"params must be tensors, got a {type(params).__name__}; give those that share lr, as model.parameters()."
        )
    squares, count = 0.0, 0
    for param in _tensors(params):
        squares += float(param.detach().double().square().sum())
        count += param.numel()
    if not 0 < squares < math.inf:
        raise ValueError(
            f"params must be finite and not all zero to have a typical size, got a sum of squares of {squares}; "
            "pass the weights after initialisation."
        )
    return potential.curvature(math.sqrt(squares / count)) * lr


@torch.no_grad()
def sparse_start(
    params: nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    density: float | None = None,
    *,
    rescale: bool = True,
    generator: torch.Generator | None = None,
) -> None:
    """Set all but a random share of each tensor's entries to zero, in place: how training under a threshold starts.

    Under :class:`~mirrormax.ElasticNet` these zeros stay until their gradients ask for them.

    Args:
        params: the tensors, of which vectors are better left out; of a model its matrices are taken.
        density: the share of entries that is kept, in (0, 1].
        rescale: multiply what is kept by 1/√density, so that each tensor keeps its mean square.
        generator: source of randomness; torch's default one if None.

    >>> w = torch.nn.Parameter(torch.ones(100, 100))
    >>> sparse_start([w], density=0.25, generator=torch.Generator().manual_seed(0))
    >>> w.detach().unique()
    tensor([0., 2.])
    """
    if density is None:
        raise TypeError("sparse_start needs density, the share of weights to keep; write sparse_start(model, 0.1).")
    density = number("density", density, above=0)
    if density > 1:
        raise ValueError(f"density must be at most 1, got {density!r}.")
    if isinstance(params, nn.Module):
        params = [param for param in params.parameters() if param.ndim > 1]
    for param in _tensors(params):
        keep = torch.rand(param.shape, generator=generator, device=param.device) < density
        param.mul_(keep.to(param.dtype) * (density**-0.5 if rescale else 1.0))


def _tensors(params: Iterable[Tensor] | Iterable[tuple[str, Tensor]]) -> Iterator[Tensor]:
    what = "tensors, such as model.parameters()"
    for item in params if isinstance(params, Tensor) else several("params", params, what):
        yield instance("params", item[1] if isinstance(item, tuple) else item, Tensor, f"a list of {what}")
