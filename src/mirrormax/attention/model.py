"""The one-layer attention model f(X, z) = vᵀ Xᵀ σ(X W z), as functions of tensors and as an ``nn.Module``.

Shapes throughout: tokens X (..., n, T, d), queries z (..., n, d), readout v (..., d), weights
W (..., d, d), labels y (..., n), and for sequences of unequal length a boolean mask (..., n, T) that
is True where a token is present. Leading dimensions are a batch and broadcast. Half precision and
integers are computed in a wider type (at least float32), which is the type of the answer. A
:class:`~mirrormax.problem.Problem` may take the place of its arrays: ``logits(problem, W)``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mirrormax._arrays import in_kind
from mirrormax._checks import integer
from mirrormax.attention.losses import Loss, as_loss
from mirrormax.problem import blank_padding, check, check_shapes, common_type, masked_logits, takes_problem, values


@takes_problem
@in_kind
def logits(X: Tensor, z: Tensor, W: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """h_i = X_i W z_i, of shape (..., n, T); −inf where the mask leaves a token out."""
    check(X, z=z, W=W, mask=mask)
    X, z, W = common_type(X, z, W)
    return masked_logits(blank_padding(X, mask), z, W, mask)


@takes_problem
@in_kind
def attention_weights(X: Tensor, z: Tensor, W: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """s_i = σ(X_i W z_i), of shape (..., n, T): nonnegative, sums to 1 over the tokens, 0 at padding."""
    return torch.softmax(logits(X, z, W=W, mask=mask), -1)


@takes_problem
@in_kind
def attend(X: Tensor, z: Tensor, W: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """X_iᵀ σ(X_i W z_i), of shape (..., n, d): the token that attention hands to the readout."""
    s = attention_weights(X, z, W=W, mask=mask)
    return (s.unsqueeze(-2) @ blank_padding(X, mask).to(s.dtype)).squeeze(-2)


@takes_problem
@in_kind
def predict(X: Tensor, z: Tensor, v: Tensor, W: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """f(X_i, z_i) = vᵀ X_iᵀ σ(X_i W z_i), of shape (..., n); its sign is the predicted label.

    >>> X, z = [[[5.0, 0.0], [0.0, 1.0]]], [[5.0, 0.0]]
    >>> predict(X, z, v=[1.0, 0.0], W=[[0.0, 0.0], [0.0, 0.0]])
    array([2.5])
    """
    check(X, z=z, v=v, W=W, mask=mask)
    return _outputs(X, z, v, W, mask)


def _outputs(X: Tensor, z: Tensor, v: Tensor, W: Tensor, mask: Tensor | None) -> Tensor:
    """:func:`predict` of arguments that were checked before."""
    X, z, v, W = common_type(X, z, v, W)
    X = blank_padding(X, mask)
    s = torch.softmax(masked_logits(X, z, W, mask), -1)
    return (s * values(X, v)).sum(-1)


@takes_problem
@in_kind
def risk(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    W: Tensor,
    *,
    loss: str | Loss = "logistic",
    mask: Tensor | None = None,
) -> Tensor:
    """L(W, v) = (1/n) Σ_i l(y_i f(X_i, z_i)), of shape (...), the paper's (ERM)."""
    check(X, y=y, z=z, v=v, W=W, mask=mask)
    f = _outputs(X, z, v, W, mask)
    return as_loss(loss)(y.to(f.dtype) * f).mean(-1)


class Attention(nn.Module):
    """f(X, z) = vᵀ Xᵀ σ(X W z) with the parameter W (d, d), zero at the start.

    ``readout`` is v (d,); it stays fixed unless ``train_readout``. Without one, v starts at zero and is
    trained, the paper's joint problem.
    """

    v: Tensor

    def __init__(
        self,
        d: int,
        readout: Tensor | None = None,
        *,
        train_readout: bool | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        integer("d", d, at_least=1)
        if readout is None and train_readout is False:
            raise ValueError(
                "a readout that is not trained must be given; pass readout=, of shape (d,), or train_readout=True."
            )
        v = torch.zeros(d, dtype=dtype) if readout is None else torch.as_tensor(readout, dtype=dtype).detach().clone()
        if v.shape != (d,):
            raise ValueError(f"readout must have the shape (d,) = ({d},), got {tuple(v.shape)}.")
        if not v.is_floating_point():
            v = v.to(torch.get_default_dtype())
        if readout is None or train_readout:
            self.v = nn.Parameter(v)
        else:
            self.register_buffer("v", v)
        self.W = nn.Parameter(torch.zeros(d, d, dtype=v.dtype))

    def forward(self, X: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predictions (..., n) for tokens X (..., n, T, d), queries z (..., n, d) and mask (..., n, T)."""
        check_shapes(X, z=z, v=self.v, W=self.W, mask=mask)
        return _outputs(X, z, self.v, self.W, mask)

    def extra_repr(self) -> str:
        return f"d={len(self.W)}, train_readout={isinstance(self.v, nn.Parameter)}"
