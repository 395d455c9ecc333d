"""How an attention layer of transformers makes its queries, found by trying on its first pass.

Which rows of a packed matrix make queries, how a rotation pairs coordinates, and what a norm does to a query is not
believed but found: a :class:`Recipe` is one that gives the queries that the layer itself has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.auditing.layers import AGREEMENT

NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "norm_q")
ROTATIONS = ("half", "pairs", "doubled")
"""How coordinates are paired: j with j + r/2, 2j with 2j + 1, or the first with cosines given once for both halves."""
Edit = Callable[["Caught", Tensor], Tensor]
"""From what a layer was given and its heads' outputs (B, Q, H, d_v) to other outputs."""


@dataclass(eq=False)
class Caught:
    """What one call of a layer was given and answered."""

    hidden: Tensor | None = None  # (B, Q, d)     what queries are made of
    query: Tensor | None = None  # (B, H, Q, d_h)
    key: Tensor | None = None  # (B, G, T, d_h)   G divides H: heads share keys in groups
    value: Tensor | None = None  # (B, G, T, d_v)
    mask: Tensor | None = None  # (B, Q, T)
    bias: Tensor | None = None  # (B, H, Q, T)    added to the logits
    scale: float = 1.0
    cap: float | None = None
    sinks: Tensor | None = None  # (H,)
    turn: tuple[Tensor, Tensor] | None = None  # cosines and sines (B, Q, r) of the queries' positions
    offsets: tuple[Tensor, Tensor] | None = None  # keys of distances (H, P, d_h), and which (Q, T): added to the keys
    context: Tensor | None = None  # (B, Q, H, d_v) the heads' outputs
    probe: Tensor | None = None  # zeros added to it, to ask for gradients there
    edit: Edit | None = None

    def clear(self) -> None:
        """Forget the pass before; an edit stays."""
        edit = self.edit
        self.__init__(edit=edit)  # type: ignore[misc]

    def answered(self, context: Tensor) -> Tensor:
        """Note the heads' outputs (B, Q, H, d_v), and give on what the model is to go on with."""
        if self.edit is not None:
            context = self.edit(self, context)
        self.context = context.detach()
        if not torch.is_grad_enabled():
            return context
        self.probe = torch.zeros_like(self.context, requires_grad=True)
        return context + self.probe


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a layer's queries come about, found on its first pass."""

    weight: Tensor  # (H, d_h, d) W_Q, with the gain of the norm and what queries are multiplied by
    bias: Tensor | None  # (H, d_h)
    shift: Tensor | None  # (H, d_h) added behind the norm
    key: Tensor | None  # (H, d_h, d) W_K where keys are plain, so that there is a token form
    norm: Callable[[Tensor], Tensor] | None  # q (n, H, d_h) before the norm to 1/rms (n, H)
    rotation: str | None
    position: bool  # whether logits have a bias of position
    sinks: Tensor | None  # (H,)

    @property
    def constant(self) -> bool:
        """Whether z̃ needs a constant that it has not got from the bias."""
        needed = self.shift is not None or self.position or self.sinks is not None
        return needed and (self.bias is None or self.norm is not None)


def find_recipe(name: str, module: nn.Module, projection: str, seen: Caught) -> Recipe:
    """Find how the queries were made of the hidden states; ValueError, naming the layer, where no way gives them."""
    assert seen.query is not None
    assert seen.hidden is not None
    assert seen.key is not None
    H, size = seen.query.shape[1], seen.query.shape[-1]
    linear = module.get_submodule(projection)
    norms = (getattr(module, name, None) for name in NORMS)
    norm = next((one for one in norms if isinstance(one, nn.Module) and not isinstance(one, nn.Identity)), None)
    hidden = seen.hidden.double()
    rotations = (None,) if seen.turn is None else (*ROTATIONS, None)
    target = seen.query.double()
    for (weight, bias), rotation in product(_cuts(linear, H, size), rotations):
        if weight.shape[-1] != hidden.shape[-1] or not _fits(rotation, seen.turn, size):
            continue
        plain = torch.einsum("bqd,hkd->bhqk", hidden, weight)
        if bias is not None:
            plain = plain + bias[:, None]
        made, gain, shift, centred = _normed(norm, plain)
        if rotation is not None and seen.turn is not None:
            cos, sin = (part.double().unsqueeze(1) for part in seen.turn)
            made = rotated(made, cos, sin, rotation)
        factor = float((made * target).sum() / (made * made).sum().clamp(min=1e-300))
        error = (made * factor - target).abs().max()
        if error <= AGREEMENT * target.abs().max() * looseness(seen.query):
            break
    else:
        raise ValueError(
            f"layer {name} ({type(module).__name__}) makes its queries of {projection} in a way that "
            "the audit does not know, and so the model cannot be audited."
        )
    raw, raw_bias = weight, bias
    if centred:
        weight = weight - weight.mean(1, keepdim=True)
        bias = None if bias is None else bias - bias.mean(1, keepdim=True)
    weight = weight * gain.unsqueeze(-1) * factor
    bias = None if bias is None else bias * gain * factor
    position = seen.bias is not None
    bare = rotation is None and norm is None and not position and seen.sinks is None and seen.offsets is None
    return Recipe(
        weight=weight,
        bias=bias,
        shift=None if shift is None else shift * factor,
        key=_plain_keys(module, projection, seen) if bare else None,
        norm=None if norm is None else _normaliser(norm, raw, raw_bias),
        rotation=rotation,
        position=position,
        sinks=None if seen.sinks is None else seen.sinks.detach().double().reshape(-1),
    )


def _fits(rotation: str | None, turn: tuple[Tensor, Tensor] | None, size: int) -> bool:
    if rotation is None or turn is None:
        return True
    turned = turn[0].shape[-1] * (2 if rotation == "doubled" else 1)
    return turned <= size and turned % 2 == 0


def _cuts(linear: nn.Module, heads: int, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The ways in which W_Q (H, d_h, d) may lie in a matrix: its first rows, or the first third of every head's."""
    weight, bias = _matrix(linear)
    rows = heads * size
    if len(weight) >= rows:
        yield weight[:rows].reshape(heads, size, -1), None if bias is None else bias[:rows].reshape(heads, size)
    if len(weight) == 3 * rows:
        yield (
            weight.reshape(heads, 3, size, -1)[:, 0],
            None if bias is None else bias.reshape(heads, 3, size)[:, 0],
        )


def _matrix(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    """(out, in) and the bias in float64; GPT-2's Conv1D keeps the transpose."""
    weight: Any = linear.weight
    bias: Any = getattr(linear, "bias", None)
    matrix = weight.detach().double()
    matrix = matrix.T if type(linear).__name__ == "Conv1D" else matrix
    return matrix, None if bias is None else bias.detach().double()


def _plain_keys(module: nn.Module, projection: str, seen: Caught) -> Tensor | None:
    """W_K (H, d_h, d) where keys are a linear map of the tokens that queries are made of; else None."""
    assert seen.query is not None
    assert seen.hidden is not None
    assert seen.key is not None
    H, size = seen.query.shape[1], seen.query.shape[-1]
    if seen.key.shape[1] != H or seen.key.shape[2] != seen.hidden.shape[1]:
        return None
    children = {child for child, _ in module.named_children()}
    beside = (
        projection.replace("query", "key")
        if "query" in projection
        else projection.replace("q", "k", 1).replace("Q", "K", 1)
    )
    weight, bias = _matrix(module.get_submodule(projection))
    rows = H * size
    if len(weight) == 3 * rows:
        ways = [(weight[rows : 2 * rows].reshape(H, size, -1), None if bias is None else bias[rows : 2 * rows])]
        ways.append(
            (weight.reshape(H, 3, size, -1)[:, 1], None if bias is None else bias.reshape(H, 3, size)[:, 1].flatten())
        )
    elif beside in children:
        matrix, own = _matrix(module.get_submodule(beside))
        if len(matrix) != rows:
            return None
        ways = [(matrix.reshape(H, size, -1), own)]
    else:
        return None
    for found, shift in ways:
        keys = torch.einsum("btd,hkd->bhtk", seen.hidden.double(), found)
        keys = keys if shift is None else keys + shift.reshape(H, 1, size)
        if (keys - seen.key).abs().max() <= AGREEMENT * seen.key.abs().max() * looseness(seen.key):
            return found
    return None


def _normed(norm: nn.Module | None, q: Tensor) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    """Queries (B, H, Q, d_h) behind the norm, its gain and shift (H, d_h), and whether it takes the mean off."""
    H, size = q.shape[1], q.shape[-1]
    if norm is None:
        return q, q.new_ones(H, size), None, False
    weight: Any = getattr(norm, "weight", None)
    whole = weight is not None and weight.numel() == H * size and H > 1
    shape = (H * size,) if whole else (size,)
    kind = weight.dtype if weight is not None else torch.float32
    given = q.transpose(1, 2)
    given = given.flatten(-2) if whole else given
    with torch.no_grad():
        made = norm(given.to(kind)).double().reshape(q.transpose(1, 2).shape).transpose(1, 2)
        centred = isinstance(norm, nn.LayerNorm)
        if centred:
            gain = q.new_ones(shape) if weight is None else weight.detach().double()
            shift: Any = getattr(norm, "bias", None)
            shift = None if shift is None else shift.detach().double()
        else:  # large and equal entries have their own size for rms, whatever is added to it
            gain, shift = norm(torch.full(shape, 1e3, dtype=kind, device=q.device)).double(), None
    gain = gain.reshape(-1, size).expand(H, size)
    return made, gain, None if shift is None else shift.reshape(-1, size).expand(H, size), centred


def _normaliser(norm: nn.Module, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """z (n, d) to the 1/rms (n, H) that the norm itself divides queries by, from W_Q before it."""

    def scales(z: Tensor) -> Tensor:
        q = torch.einsum("nd,hkd->nhk", z, weight)
        q = q if bias is None else q + bias
        made, gain, shift, centred = _normed(norm, q.unsqueeze(2))
        flat = q - q.mean(-1, keepdim=True) if centred else q
        made = made[:, :, 0] - (0.0 if shift is None else shift)
        unit = flat * gain
        return (made * unit).sum(-1) / (unit * unit).sum(-1).clamp(min=1e-300)

    return scales


def looseness(x: Tensor | None) -> float:
    return 50.0 if x is not None and x.dtype in (torch.float16, torch.bfloat16) else 1.0


def rotated(x: Tensor, cos: Tensor, sin: Tensor, kind: str) -> Tensor:
    """R x for x (..., d_h); with −sin it is Rᵀ x, as R = diag(cos) + diag(sin) J and J is skew."""
    if kind == "doubled":
        cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    size = cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    if kind == "pairs":
        even, odd = turned[..., 0::2], turned[..., 1::2]
        other = torch.stack([-odd, even], -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        other = torch.cat([-second, first], -1)
    return torch.cat([turned * cos + other * sin, rest], -1)


def extended(recipe: Recipe, z: Tensor) -> Tensor:
    """z̃ (n, H, e) of z (n, d)."""
    H = len(recipe.weight)
    z = z.unsqueeze(1).expand(-1, H, -1)
    if recipe.bias is not None:
        z = torch.cat([z, torch.ones_like(z[..., :1])], -1)
    if recipe.norm is not None:
        z = z * recipe.norm(z[:, 0, : recipe.weight.shape[-1]]).unsqueeze(-1)
    return torch.cat([z, torch.ones_like(z[..., :1])], -1) if recipe.constant else z
