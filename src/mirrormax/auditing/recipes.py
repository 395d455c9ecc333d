"""How an attention layer makes its queries, found by trying on its first pass.

Which rows of a packed matrix make queries, how a rotation pairs coordinates, and what a norm does to a query is not
believed but found: a :class:`Recipe` is one that gives the queries that the layer itself has computed. What a norm
does is found by trying, too: its shift is its answer to zeros, its gain that to ±1, and it takes the mean off if it
answers nothing but the shift to ones.
"""

from __future__ import annotations

from collections.abc import Callable
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

    def scales(self, q: Tensor) -> Tensor:
        """The 1/rms (B, H, Q) that it multiplies queries (B, H, Q, d_h) with, by what it answers to them."""
        gain, shift, centred = self.parts(q.shape[1], q.shape[3], q.device)
        axes = (1, 3) if self.layout == "whole" else (3,)
        unit = (q - q.mean(axes, keepdim=True) if centred else q) * gain[:, None]
        return ((self(q) - shift[:, None]) * unit).sum(-1) / (unit * unit).sum(-1).clamp(min=1e-300)


def find_recipe(name: str, module: nn.Module, projection: str, call: Call) -> Recipe:
    """Find how the queries were made of the hidden states; ValueError, naming the layer, where no way gives them."""
    H, size = call.query.shape[1], call.query.shape[-1]
    hidden, target = call.hidden.double(), call.query.double()
    matrix, biases = matrix_of(module, projection).double(), _bias_of(module, projection)
    own_bias: Any = getattr(module, "q_bias", None)  # of layers that pack projections without biases
    fits = matrix.shape[-1] == hidden.shape[-1]
    ways = [rows for rows, _ in _packings(len(matrix), H, call.key.shape[1], size)] if fits else []
    last = 0 if call.turn is None else call.turn[0].shape[-1]
    if 0 < last < size:  # DeepSeek turns the last coordinates of every head in another order
        inner = torch.arange(size)
        inner[-last:] = torch.cat([inner[-last:][0::2], inner[-last:][1::2]])
        ways += [way[:, inner] for way in ways]
    for rows in ways:
        bias = None if biases is None else biases[rows]
        if bias is None and isinstance(own_bias, Tensor):
            bias = own_bias.detach().double().reshape(H, size)
        plain = made_by(hidden, matrix[rows], bias)
        for rotation, norm in product(_rotations(call.turn, size), _norms(module)):
            try:
                made = turned(plain if norm is None or norm.behind else norm(plain), call, rotation)
                made = norm(made) if norm is not None and norm.behind else made
            except (RuntimeError, IndexError, TypeError, ValueError):  # another layout of the norm is the right one
                continue
            if made.shape != target.shape:
                continue
            factor = float((made * target).sum() / (made * made).sum().clamp(min=1e-300))
            error = (made * factor - target).abs().max()
            if error <= AGREEMENT * target.abs().max() * looseness(call.query):
                factor = 1.0 if abs(factor - 1) < 1e-5 else factor  # rounding of the layer's own numbers
                return Recipe(module, projection, call, rows, bias, rotation, norm, factor)
    raise ValueError(
        f"layer {name} ({type(module).__name__}) makes its queries of {projection} in a way that the audit does not "
        "know, and so the model cannot be audited."
    )


class Recipe:
    """How a layer's queries come about: as factor · norm(R (W z + b)), W being some rows (H, d_h) of a matrix."""

    def __init__(
        self,
        module: nn.Module,
        projection: str,
        call: Call,
        rows: Tensor,
        bias: Tensor | None,
        rotation: str | None,
        norm: Norm | None,
        factor: float,
    ) -> None:
        matrix = matrix_of(module, projection).double()
        raw, raw_bias = matrix[rows], bias
        gain, centred = torch.ones_like(raw[..., 0]), False
        self.shift: Tensor | None = None  # (H, d_h) added behind the norm
        self.gain: Tensor | None = None  # (H, d_h) of a norm behind the rotation, which goes to the keys
        self.norm: Callable[[Tensor], Tensor] | None = None  # z (n, d) to the 1/rms (n, H) of its queries
        if norm is not None:
            self.norm = lambda z: norm.scales(made_by(z.unsqueeze(1), raw, raw_bias))[..., 0]
            gain, added, centred = norm.parts(len(rows), rows.shape[1], matrix.device)
            self.shift = added * factor if added.any() else None
            if norm.behind and (centred or self.shift is not None):
                raise ValueError(
                    f"{type(module).__name__} takes the mean off its queries behind their rotation, so that they are "
                    "no linear map of its tokens, and the model cannot be audited."
                )
            if norm.behind and not torch.allclose(gain, gain[:, :1]):
                gain, self.gain = torch.ones_like(gain), gain
        axes = (0, 1) if norm is not None and norm.layout == "whole" else (1,)

        def query_of(matrix: Tensor) -> Tensor:
            weight = matrix[rows]
            weight = weight - weight.mean(axes, keepdim=True) if centred else weight
            return weight * gain.to(weight).unsqueeze(-1) * factor

        self.query_of = query_of  # from the matrix (out, in) that makes queries to ``weight``
        self.weight = query_of(matrix)  # (H, d_h, d) W_Q, with the gain of the norm and what queries are multiplied by
        if bias is not None:
            bias = (bias - bias.mean(axes, keepdim=True) if centred else bias) * gain * factor
        self.bias, self.rotation, self.scale = bias, rotation, call.scale  # bias (H, d_h), if any
        self.position = call.bias is not None  # whether logits have a bias of position
        self.sinks = None if call.sinks is None else call.sinks.detach().double().reshape(-1)  # (H,)
        constant = self.shift is not None or self.position or self.sinks is not None
        self.constant = constant and (bias is None or norm is not None)  # whether z̃ needs one beside that of the bias
        if "query" in projection:
            beside = projection.replace("query", "key")
        else:
            beside = projection.replace("q", "k", 1).replace("Q", "K", 1)
        self.key_name = beside if beside in dict(module.named_children()) else projection  # of the matrix
        keys = matrix_of(module, self.key_name).double()
        key_rows = _key_rows(module, self.key_name, self.key_name == projection, call, rotation)
        # From that matrix to W_K (H, d_h, d), or to what has its size.
        self.key_of = _key_size(keys, rows, call) if key_rows is None else lambda keys: keys[key_rows]
        # Whether queries and keys are R (W x + b) of these, with nothing else that depends on them.
        self.plain = key_rows is not None and norm is None and call.offsets is None and not call.own_bias
        self.key: Tensor | None = None  # W_K where keys are plain, so that there is a token form
        bare = all(part is None for part in (rotation, norm, call.bias, call.sinks, call.offsets))
        if bare and key_rows is not None and len(key_rows.unique()) == key_rows.numel():
            self.key = keys[key_rows]


def _norms(module: nn.Module) -> list[Norm | None]:
    """The ways to use the module's norm of queries, if it has one."""
    for norm in (getattr(module, name, None) for name in NORMS):
        if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
            return [Norm(norm, layout, behind) for behind in (False, True) for layout in ("heads", "tokens", "whole")]
    return [None]


def _rotations(turn: tuple[Tensor, Tensor] | None, size: int) -> list[str | None]:
    """The ways to rotate queries of d_h coordinates by these cosines and sines, and last not to."""
    if turn is None:
        return [None]
    ways: list[str | None] = []
    for kind in ROTATIONS:
        turned = turn[0].shape[-1] * (2 if kind == "doubled" else 1)
        if turned <= size and turned % 2 == 0:
            ways += [kind] if turned == size else [kind, kind + AT_END]
    return [*ways, None]


def _packings(count: int, heads: int, groups: int, size: int) -> list[tuple[Tensor, Tensor | None]]:
    """The ways in which the rows (H, d_h) of W_Q, and (G, d_h) of W_K if any, may lie in a matrix of ``count`` rows.

    First those of queries, behind them those of keys; behind each head's its gate; the heads of a group before the
    group's key and value; and CodeGen's four parts.
    """
    order, rows = torch.arange(count), heads * size
    if count < rows:
        return []
    first = order[:rows].reshape(heads, size)
    behind = order[rows : count - count % size].reshape(-1, size)
    ways = [(first, behind[:groups] if len(behind) >= groups else None)]
    if count == 2 * rows:
        ways.append((order.reshape(heads, 2, size)[:, 0], None))
    shared, rest = divmod(len(behind), 2)
    if not count % size and not rest and shared > 0 and heads % shared == 0:
        parts = order.reshape(shared, -1, size)
        ways += [(first, behind[:shared]), (parts[:, :-2].reshape(heads, size), parts[:, -2])]
    if count == 3 * rows and heads % 4 == 0:
        parts = order.reshape(4, 3, -1, size)
        ways.append((parts[:, 0].reshape(heads, size), parts[:, 2].reshape(heads, size)))
    return ways


def matrix_of(module: nn.Module, name: str) -> Tensor:
    """What a child or a parameter multiplies with, (out, in), sharing its memory; Conv1D keeps the transpose."""
    linear: Any = getattr(module, name)
    weight: Any = linear if isinstance(linear, Tensor) else getattr(linear, "weight", None)
    if not isinstance(weight, Tensor):
        raise ValueError(
            f"{name} of {type(module).__name__} has no weight matrix, so that the model cannot be audited."
        )
    matrix = weight.detach().flatten(1)  # of a convolution of width 1
    return matrix.T if type(linear).__name__ == "Conv1D" else matrix


def _bias_of(module: nn.Module, name: str) -> Tensor | None:
    linear: Any = getattr(module, name)
    own = isinstance(linear, Tensor)
    bias: Any = getattr(module, name.replace("weight", "bias")) if own else getattr(linear, "bias", None)
    return None if bias is None else bias.detach().double()


def _key_rows(module: nn.Module, name: str, packed: bool, call: Call, rotation: str | None) -> Tensor | None:
    """Rows (H, d_h), by head, that make keys R (W_K x + b), found by trying; None where keys are made otherwise."""
    H, size = call.query.shape[1], call.query.shape[-1]
    tokens = call.tokens.double()
    matrix, bias = matrix_of(module, name).double(), _bias_of(module, name)
    T, d = tokens.shape[1:]
    turns_others = rotation is not None and call.turn is not None and call.turn[0].shape[-2] != T
    if matrix.shape[-1] != d or call.key.shape[2:] != (T, size) or turns_others:
        return None
    if packed:
        ways = [rows for _, rows in _packings(len(matrix), H, call.key.shape[1], size) if rows is not None]
    else:
        ways = [] if len(matrix) % size else [torch.arange(len(matrix)).reshape(-1, size)]
    for rows in ways:
        if call.key.shape[1] % len(rows):
            continue
        keys = made_by(tokens, matrix[rows], None if bias is None else bias[rows])
        keys = turned(keys, call, rotation).repeat_interleave(call.key.shape[1] // len(rows), 1)
        if (keys - call.key).abs().max() <= AGREEMENT * call.key.abs().max() * looseness(call.key):
            return rows.repeat_interleave(H // len(rows), 0)
    return None


def _key_size(matrix: Tensor, rows: Tensor, call: Call) -> Callable[[Tensor], Tensor]:
    """Where W_K is not known, as behind a norm: rows of its matrix, scaled to give keys of the size that they have."""
    H, size = rows.shape
    tokens = call.tokens.double()
    groups = next((G for G in range(H, 0, -1) if H % G == 0 and G * size <= len(matrix)), 1)
    own = torch.arange(len(matrix))[-groups * size :].reshape(groups, -1)
    scale = 1.0
    if matrix.shape[-1] == tokens.shape[-1]:
        made = made_by(tokens, matrix[own], None).norm() / groups**0.5
        scale = float(call.key.double().norm() / call.key.shape[1] ** 0.5 / made.clamp(min=1e-300))
    return lambda keys: (keys[own] * scale).repeat_interleave(H // groups, 0)


def looseness(x: Tensor) -> float:
    """How many times less exact than float32 numbers may be."""
    return 50.0 if x.dtype in (torch.float16, torch.bfloat16) else 1.0


def made_by(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """W x + b (B, H, N, d_h) of x (B, N, d), weight (H, d_h, d) and bias (H, d_h)."""
    made = torch.einsum("bnd,hkd->bhnk", x, weight)
    return made if bias is None else made + bias[:, None]


def turned(x: Tensor, call: Call, rotation: str | None) -> Tensor:
    """R x for x (B, H, Q, d_h) at the queries' positions; x itself where nothing is rotated."""
    if rotation is None or call.turn is None:
        return x
    cos, sin = (part.double().unsqueeze(1) for part in call.turn)
    return rotated(x, cos, sin, rotation)


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


def extended(recipe: Recipe, z: Tensor, head: int | None = None) -> Tensor:
    """z̃ (n, H, e) of z (n, d), or (n, 1, e) of one head."""
    heads = slice(None) if head is None else slice(head, head + 1)
    made = z.unsqueeze(1).expand(-1, len(recipe.weight[heads]), -1)
    if recipe.bias is not None:
        made = torch.cat([made, torch.ones_like(made[..., :1])], -1)
    if recipe.norm is not None:
        made = made * recipe.norm(z)[:, heads].unsqueeze(-1)
    return torch.cat([made, torch.ones_like(made[..., :1])], -1) if recipe.constant else made
