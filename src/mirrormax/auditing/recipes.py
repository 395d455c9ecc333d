"""How an attention layer makes its queries, found by trying on its first pass.

Which rows of a packed matrix make queries, how a rotation pairs coordinates, and what a norm does to a query is not
believed but found: a :class:`Recipe` is one that gives the queries that the layer itself has computed. What a norm
does is found by trying, too: its shift is its answer to zeros, its gain that to ±1, and it takes the mean off if it
answers nothing but the shift to ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.auditing.calls import Call

NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "norm_q", "qk_norm")
ROTATIONS = ("half", "pairs", "doubled", "interleaved")
"""How coordinates are paired: j with j + r/2, 2j with 2j + 1, the first with cosines given once for both halves, the
second with cosines given for the first halves."""
AT_END = " at the end"
"""Of rotations that turn the last coordinates, and not the first."""
AGREEMENT = 1e-3
"""How far recomputed numbers may be from a layer's own, relative to the largest; float32 has 1e-6."""
LARGE = 1e3
"""Beside which nothing that a norm adds to a size counts."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """How a layer's queries come about, found on its first pass."""

    weight: Tensor  # (H, d_h, d) W_Q, with the gain of the norm and what queries are multiplied by
    bias: Tensor | None  # (H, d_h)
    shift: Tensor | None  # (H, d_h) added behind the norm
    gain: Tensor | None  # (H, d_h) of a norm behind the rotation, which goes to the keys
    key: Tensor | None  # (H, d_h, d) W_K where keys are plain, so that there is a token form
    norm: Callable[[Tensor], Tensor] | None  # z (n, d) to the 1/rms (n, H) of its queries
    rotation: str | None
    position: bool  # whether logits have a bias of position
    sinks: Tensor | None  # (H,)

    @property
    def constant(self) -> bool:
        """Whether z̃ needs a constant that it has not got from the bias."""
        needed = self.shift is not None or self.position or self.sinks is not None
        return needed and (self.bias is None or self.norm is not None)


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm of queries (B, H, Q, d_h), given to the module by ``layout``; behind the rotation, or before it."""

    module: nn.Module
    layout: str  # "heads": (B, H, Q, d_h), "tokens": (B, Q, H, d_h), "whole": (B, Q, H d_h)
    behind: bool

    def __call__(self, q: Tensor) -> Tensor:
        """Queries behind the norm, in float64."""
        weight = next(self.module.parameters(), None)
        given = q.to(torch.float32 if weight is None else weight.dtype)
        given = given if self.layout == "heads" else given.transpose(1, 2)
        with torch.no_grad():
            made: Tensor = self.module(given.flatten(-2) if self.layout == "whole" else given).double()
        if self.layout == "whole":
            made = made.unflatten(-1, (q.shape[1], -1))
        return made if self.layout == "heads" else made.transpose(1, 2)

    def parts(self, heads: int, size: int, device: torch.device) -> tuple[Tensor, Tensor, bool]:
        """Its gain and shift (H, d_h), and whether it takes the mean off."""
        ones = torch.ones(1, heads, 1, size, dtype=torch.float64, device=device)
        signs = ones.clone()
        signs[..., 1::2] = -1.0
        zero, plain, turned = (self(LARGE * x)[0, :, 0] for x in (0 * ones, ones, signs))
        gain = (turned - zero) * signs[0, :, 0]
        return gain, zero, bool((plain - zero).abs().max() < 0.1 * gain.abs().max())


def find_recipe(name: str, module: nn.Module, projection: str, call: Call) -> Recipe:
    """Find how the queries were made of the hidden states; ValueError, naming the layer, where no way gives them."""
    assert call.query is not None
    assert call.hidden is not None
    H, size = call.query.shape[1], call.query.shape[-1]
    hidden, target = call.hidden.double(), call.query.double()
    own_bias: Any = getattr(module, "q_bias", None)  # of layers that pack projections without biases
    for weight, bias in _cuts(*_matrix(module, projection), H, size, call.turn):
        if weight.shape[-1] != hidden.shape[-1]:
            continue
        if bias is None and isinstance(own_bias, Tensor):
            bias = own_bias.detach().double().reshape(H, size)
        plain = torch.einsum("bqd,hkd->bhqk", hidden, weight)
        if bias is not None:
            plain = plain + bias[:, None]
        for rotation, norm in product(_rotations(call.turn, size), _norms(module)):
            made = _made(plain, call, rotation, norm)
            if made is None or made.shape != target.shape:
                continue
            factor = float((made * target).sum() / (made * made).sum().clamp(min=1e-300))
            error = (made * factor - target).abs().max()
            if error <= AGREEMENT * target.abs().max() * looseness(call.query):
                factor = 1.0 if abs(factor - 1) < 1e-5 else factor  # rounding of the layer's own numbers
                return _recipe(module, projection, call, weight, bias, rotation, norm, factor)
    raise ValueError(
        f"layer {name} ({type(module).__name__}) makes its queries of {projection} in a way that the audit does not "
        "know, and so the model cannot be audited."
    )


def _made(plain: Tensor, call: Call, rotation: str | None, norm: Norm | None) -> Tensor | None:
    """Queries (B, H, Q, d_h) by norm and rotation; None where the norm does not take them."""
    try:
        made = plain if norm is None or norm.behind else norm(plain)
        if rotation is not None and call.turn is not None:
            cos, sin = (part.double().unsqueeze(1) for part in call.turn)
            made = rotated(made, cos, sin, rotation)
        return norm(made) if norm is not None and norm.behind else made
    except (RuntimeError, IndexError, TypeError, ValueError):  # another layout is the right one
        return None


def _recipe(
    module: nn.Module,
    projection: str,
    call: Call,
    weight: Tensor,
    bias: Tensor | None,
    rotation: str | None,
    norm: Norm | None,
    factor: float,
) -> Recipe:
    """The recipe of queries factor · norm(R (W z + b))."""
    H, size = weight.shape[:2]
    position = call.bias is not None
    bare = rotation is None and norm is None and not position and call.sinks is None and call.offsets is None
    raw, raw_bias = weight, bias
    gain, shift = torch.ones_like(weight[..., 0]), None
    if norm is not None:
        gain, added, centred = norm.parts(H, size, weight.device)
        shift = added if added.any() else None
        if centred:
            axes = (0, 1) if norm.layout == "whole" else (1,)
            weight = weight - weight.mean(axes, keepdim=True)
            bias = None if bias is None else bias - bias.mean(axes, keepdim=True)
        if norm.behind and (centred or shift is not None):
            raise ValueError(
                f"{type(module).__name__} takes the mean off its queries behind their rotation, so that they are no "
                "linear map of its tokens, and the model cannot be audited."
            )
    on_keys = gain if norm is not None and norm.behind and not torch.allclose(gain, gain[:, :1]) else None
    gain = torch.ones_like(gain) if on_keys is not None else gain
    return Recipe(
        weight=weight * gain.unsqueeze(-1) * factor,
        bias=None if bias is None else bias * gain * factor,
        shift=None if shift is None else shift * factor,
        gain=on_keys,
        key=_plain_keys(module, projection, call) if bare else None,
        norm=None if norm is None else _normaliser(norm, raw, raw_bias),
        rotation=rotation,
        position=position,
        sinks=None if call.sinks is None else call.sinks.detach().double().reshape(-1),
    )


def _norms(module: nn.Module) -> list[Norm | None]:
    """The ways to use the module's norm of queries, if it has one."""
    children = (getattr(module, name, None) for name in NORMS)
    norm = next((one for one in children if isinstance(one, nn.Module) and not isinstance(one, nn.Identity)), None)
    if norm is None:
        return [None]
    return [Norm(norm, layout, behind) for behind in (False, True) for layout in ("heads", "tokens", "whole")]


def _rotations(turn: tuple[Tensor, Tensor] | None, size: int) -> list[str | None]:
    """The ways to rotate queries of d_h coordinates by these cosines and sines, and last not to."""
    if turn is None:
        return [None]
    found: list[str | None] = []
    for kind in ROTATIONS:
        turned = turn[0].shape[-1] * (2 if kind == "doubled" else 1)
        if turned <= size and turned % 2 == 0:
            found += [kind] if turned == size else [kind, kind + AT_END]
    return [*found, None]


def _cuts(
    weight: Tensor, bias: Tensor | None, heads: int, size: int, turn: tuple[Tensor, Tensor] | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The ways in which W_Q (H, d_h, d) and its bias may lie in a matrix with more in it.

    Its first rows; behind each head's its gate; the heads of a group before the group's key and value; CodeGen's four
    parts; and with the last coordinates of every head in another order, as DeepSeek turns them.
    """
    whole = weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], -1)
    rows = heads * size
    ways = [whole[:rows].reshape(heads, size, -1)] if len(whole) >= rows else []
    if len(whole) == 2 * rows:
        ways.append(whole.reshape(heads, 2, size, -1)[:, 0])
    groups, rest = divmod(len(whole) - rows, 2 * size)
    if not rest and groups > 1 and heads % groups == 0:
        each = heads // groups
        ways.append(whole.reshape(groups, each + 2, size, -1)[:, :each].reshape(heads, size, -1))
    if len(whole) == 3 * rows and heads % 4 == 0:
        ways.append(whole.reshape(4, 3, heads // 4, size, -1)[:, 0].reshape(heads, size, -1))
    last = 0 if turn is None else turn[0].shape[-1]
    if 0 < last < size:
        order = torch.arange(size)
        order[-last:] = torch.cat([order[-last:][0::2], order[-last:][1::2]])
        ways += [way[:, order.to(way.device)] for way in ways]
    for way in ways:
        yield (way, None) if bias is None else (way[..., :-1], way[..., -1])


def _matrix(module: nn.Module, projection: str) -> tuple[Tensor, Tensor | None]:
    """(out, in) and the bias in float64 of a child or a parameter; GPT-2's Conv1D keeps the transpose."""
    linear: Any = getattr(module, projection)
    if not isinstance(linear, Tensor) and not isinstance(getattr(linear, "weight", None), Tensor):
        raise ValueError(
            f"{projection} of {type(module).__name__} has no weight matrix, so that the model cannot be audited."
        )
    weight: Any = linear if isinstance(linear, Tensor) else linear.weight
    bias: Any = (
        getattr(module, projection.replace("weight", "bias")) if weight is linear else getattr(linear, "bias", None)
    )
    matrix = weight.detach().double().flatten(1)  # of a convolution of width 1
    matrix = matrix.T if type(linear).__name__ == "Conv1D" else matrix
    return matrix, None if bias is None else bias.detach().double()


def key_projection(module: nn.Module, projection: str) -> str | None:
    """The child that makes keys beside the one that makes queries; None where one makes both, or none is known."""
    if "query" in projection:
        beside = projection.replace("query", "key")
    else:
        beside = projection.replace("q", "k", 1).replace("Q", "K", 1)
    return beside if beside != projection and beside in dict(module.named_children()) else None


def key_weights(module: nn.Module, projection: str, call: Call) -> Tensor | None:
    """W_K (H, d_h, d) by head, of the size that the layer's keys have behind any norm; None where it is not found.

    What is packed with queries is taken to stand behind them, which for sizes of heads is near enough.
    """
    assert call.query is not None
    assert call.hidden is not None
    assert call.key is not None
    H, size = call.query.shape[1], call.query.shape[-1]
    beside = key_projection(module, projection)
    matrix = _matrix(module, beside or projection)[0]
    matrix = matrix if beside is not None else matrix[H * size :]
    tokens = (call.hidden if call.tokens is None else call.tokens).double()
    groups = next((G for G in range(H, 0, -1) if H % G == 0 and G * size <= len(matrix)), 0)
    if not groups or matrix.shape[-1] != tokens.shape[-1]:
        return None
    weights = matrix[: groups * size].reshape(groups, size, -1)
    made = torch.einsum("btd,gkd->btgk", tokens, weights).norm() / groups**0.5
    own = call.key.double().norm() / call.key.shape[1] ** 0.5
    found: Tensor = weights * (own / made.clamp(min=1e-300))
    return found.repeat_interleave(H // groups, 0)


def _plain_keys(module: nn.Module, projection: str, call: Call) -> Tensor | None:
    """W_K (H, d_h, d) where keys are a linear map of the tokens that queries are made of; else None."""
    assert call.query is not None
    assert call.hidden is not None
    assert call.key is not None
    H, size = call.query.shape[1], call.query.shape[-1]
    tokens = call.hidden if call.tokens is None else call.tokens
    if call.key.shape[1] != H or call.key.shape[2] != tokens.shape[1]:
        return None
    beside = key_projection(module, projection)
    weight, bias = _matrix(module, projection)
    rows = H * size
    if len(weight) == 3 * rows:
        ways = [(weight[rows : 2 * rows].reshape(H, size, -1), None if bias is None else bias[rows : 2 * rows])]
        ways.append(
            (weight.reshape(H, 3, size, -1)[:, 1], None if bias is None else bias.reshape(H, 3, size)[:, 1].flatten())
        )
    elif beside is not None:
        matrix, own = _matrix(module, beside)
        if len(matrix) != rows:
            return None
        ways = [(matrix.reshape(H, size, -1), own)]
    else:
        return None
    for found, shift in ways:
        keys = torch.einsum("btd,hkd->bhtk", tokens.double(), found)
        keys = keys if shift is None else keys + shift.reshape(H, 1, size)
        if (keys - call.key).abs().max() <= AGREEMENT * call.key.abs().max() * looseness(call.key):
            return found
    return None


def _normaliser(norm: Norm, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """z (n, d) to the 1/rms (n, H) that the norm itself divides queries by, from W_Q before it."""
    gain, shift, centred = norm.parts(weight.shape[0], weight.shape[1], weight.device)
    axes = (1, 2) if norm.layout == "whole" else (2,)

    def scales(z: Tensor) -> Tensor:
        q = torch.einsum("nd,hkd->nhk", z, weight)
        q = q if bias is None else q + bias
        made = norm(q.unsqueeze(2))[:, :, 0] - shift
        unit = (q - q.mean(axes, keepdim=True) if centred else q) * gain
        return (made * unit).sum(-1) / (unit * unit).sum(-1).clamp(min=1e-300)

    return scales


def looseness(x: Tensor | None) -> float:
    """How many times less exact than float32 numbers may be."""
    return 50.0 if x is not None and x.dtype in (torch.float16, torch.bfloat16) else 1.0


def rotated(x: Tensor, cos: Tensor, sin: Tensor, kind: str) -> Tensor:
    """R x for x (..., d_h); with −sin it is Rᵀ x, as R = diag(cos) + diag(sin) J and J is skew."""
    pairing = kind.removesuffix(AT_END)
    if pairing == "doubled":
        cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    if pairing == "interleaved":
        cos, sin = (part[..., : part.shape[-1] // 2].repeat_interleave(2, -1) for part in (cos, sin))
    size = cos.shape[-1]
    first, last = (x[..., :size], x[..., size:]) if pairing == kind else (x[..., -size:], x[..., :-size])
    if pairing in ("pairs", "interleaved"):
        even, odd = first[..., 0::2], first[..., 1::2]
        other = torch.stack([-odd, even], -1).flatten(-2)
    else:
        left, right = first.chunk(2, -1)
        other = torch.cat([-right, left], -1)
    turned = first * cos + other * sin
    return torch.cat([turned, last] if pairing == kind else [last, turned], -1)


def extended(recipe: Recipe, z: Tensor) -> Tensor:
    """z̃ (n, H, e) of z (n, d)."""
    H = len(recipe.weight)
    z = z.unsqueeze(1).expand(-1, H, -1)
    if recipe.bias is not None:
        z = torch.cat([z, torch.ones_like(z[..., :1])], -1)
    if recipe.norm is not None:
        z = z * recipe.norm(z[:, 0, : recipe.weight.shape[-1]]).unsqueeze(-1)
    return torch.cat([z, torch.ones_like(z[..., :1])], -1) if recipe.constant else z
