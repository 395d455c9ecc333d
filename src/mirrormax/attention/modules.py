"""The one-layer model as ``nn.Module``s, for any optimizer of torch and for mirror descent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mirrormax.attention.model import forward
from mirrormax.problem import check_shapes


class _OneLayer(nn.Module):
    """f(X, z) = vᵀ Xᵀ σ(X W z) with a head v (d,), trained or fixed; a subclass says what W is."""

    v: Tensor

    def __init__(self, d: int, head: Tensor | None, train_head: bool | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        if isinstance(d, bool) or not isinstance(d, int) or d < 1:
            raise ValueError(f"d must be a positive integer, the dimension of the tokens, got {d!r}.")
        if head is None and train_head is False:
            raise ValueError("a head that is not trained must be given; pass head=, of shape (d,), or train_head=True.")
        v = torch.zeros(d, dtype=dtype) if head is None else torch.as_tensor(head, dtype=dtype).detach().clone()
        if v.shape != (d,):
            raise ValueError(f"head must have the shape (d,) = ({d},), got {tuple(v.shape)}.")
        if not v.is_floating_point():
            v = v.to(torch.get_default_dtype())
        if head is None or train_head:
            self.v = nn.Parameter(v)
        else:
            self.register_buffer("v", v)
        self.d = d

    @property
    def weight(self) -> Tensor:
        """W, of shape (d, d)."""
        raise NotImplementedError

    def forward(self, X: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predictions (..., n) for tokens X (..., n, T, d), queries z (..., n, d) and mask (..., n, T)."""
        W = self.weight
        check_shapes(X, z=z, v=self.v, W=W, mask=mask)
        return forward(X, z, self.v, W, mask)


class Attention(_OneLayer):
    """f(X, z) = vᵀ Xᵀ σ(X W z) with the parameter W (d, d), zero at the start.

    ``head`` is v (d,); it stays fixed unless ``train_head``. Without a head, v starts at zero and is
    trained, the paper's joint problem.
    """

    def __init__(
        self,
        d: int,
        head: Tensor | None = None,
        *,
        train_head: bool | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d, head, train_head, dtype)
        self.W = nn.Parameter(torch.zeros(d, d, dtype=self.v.dtype))

    @property
    def weight(self) -> Tensor:
        """W, of shape (d, d)."""
        return self.W

    def extra_repr(self) -> str:
        return f"d={self.d}, train_head={isinstance(self.v, nn.Parameter)}"


class FactoredAttention(_OneLayer):
    """f(X, z) = vᵀ Xᵀ σ(X K Qᵀ z) with the parameters K and Q, of shape (d, rank).

    K = Q = 0 is a stationary point, so both start from N(0, 1/d); ``generator`` seeds them. The head
    is that of :class:`Attention`.
    """

    def __init__(
        self,
        d: int,
        head: Tensor | None = None,
        *,
        rank: int | None = None,
        train_head: bool | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d, head, train_head, dtype)
        rank = d if rank is None else rank
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank must be a positive integer, the columns of K and Q, got {rank!r}.")
        self.rank = rank
        self.K = nn.Parameter(torch.randn(d, rank, generator=generator, dtype=self.v.dtype) / d**0.5)
        self.Q = nn.Parameter(torch.randn(d, rank, generator=generator, dtype=self.v.dtype) / d**0.5)

    @property
    def weight(self) -> Tensor:
        """W = K Qᵀ, of shape (d, d)."""
        return self.K @ self.Q.mT

    def extra_repr(self) -> str:
        return f"d={self.d}, rank={self.rank}, train_head={isinstance(self.v, nn.Parameter)}"
