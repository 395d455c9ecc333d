"""The query form of a head: every kind of attention layer as one linear unknown, exactly.

Token t has the key k_t (rotated, normalised, with its bias), query i the input z_i, and

    q_i = R(i) D_i (W_Q z_i + b_Q),    logit_it = s q_iᵀ k_t + b_it,

with R(i) the rotation of position i (times a constant in yarn), D_i = diag(g)/rms(q) or 1, and b a bias of position.
Fix the keys and make the query map the unknown:

    x̃_t(i) = (R(i)ᵀ k_t, b_it),    z̃_i = (z_i, 1)/rms(q_i),    U = s [diag(g) W_Q, diag(g) b_Q],

so that logit_it = x̃_t(i)ᵀ U z̃_i exactly, b having a weight of 1 on the constant. Rms is frozen: the optimum has a
normaliser of its own, which the notes of an audit say. A learned sink is one more token (0, 1), whose weight is its
logit. The soft cap is monotone, so that selection and margins are those of the logits before it.

Nothing of this is believed: which rows of a packed matrix make queries and how a rotation pairs coordinates is found
by trying, and x̃ᵀ U z̃ and the layer's output are compared with the layer's own numbers on the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mirrormax.auditing.layers import (
    AGREEMENT,
    QUERY,
    TOKEN,
    Layer,
    Rows,
    Shuffle,
    View,
    attention_of,
    bilinear,
    check_finite,
    check_output,
)

FUNCTION = "eager_attention_forward"
NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm", "norm_q")
ROTATIONS = ("half", "pairs", "doubled")
"""How coordinates are paired: j with j + r/2, 2j with 2j + 1, or the first with cosines given once for both halves."""

Edit = Callable[["Caught", Tensor], Tensor]
"""From what a layer was given and its heads' outputs (B, Q, H, d_v) to other outputs."""
Watch = Callable[["CaughtLayer", "Caught"], list[RemovableHandle]]
"""Hooks that fill what is caught of a layer while the model runs."""


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


class CaughtLayer(Layer):
    """An attention layer of transformers; ``call`` tells the calls of a shared module apart."""

    def __init__(
        self, name: str, module: nn.Module, projection: str, call: int, watch: Watch, asked: str | None = None
    ) -> None:
        self.name, self.module, self.projection, self.call = name, module, projection, call
        self.watch, self.asked = watch, asked
        self.form = QUERY
        self.scale = 1.0
        self._recipe: Recipe | None = None

    @property
    def recipe(self) -> Recipe:
        if self._recipe is None:
            raise RuntimeError(f"layer {self.name} has not run yet, so that nothing is known of it.")
        return self._recipe

    @property
    def heads(self) -> int:
        return len(self.recipe.weight)

    def new(self) -> Caught:
        return Caught()

    def attach(self, seen: Caught) -> list[RemovableHandle]:
        return self.watch(self, seen)

    def view(self, seen: Caught, mask: Tensor | None, gradient: Tensor | None) -> View:
        if seen.query is None or seen.hidden is None or seen.context is None:
            raise ValueError(
                f"layer {self.name} ({type(self.module).__name__}) did not hand queries and keys to its "
                f"{FUNCTION}, so that its attention cannot be recomputed and the model cannot be audited."
            )
        check_finite(self.name, seen.hidden)
        if self._recipe is None:
            self._recipe, self.scale = _recipe(self, seen), seen.scale
            plain = self._recipe.key is not None and self.asked != QUERY
            self.form = TOKEN if plain else QUERY
            if self.asked == TOKEN and not plain:
                raise ValueError(
                    f"layer {self.name} has no token form, because of rotated, normalised or shared keys or a bias of "
                    "position; leave form out, or ask for the query form."
                )
        return CaughtView(self, seen, gradient)

    def weights(self, head: int) -> Tensor:
        return self._weights(head, lambda part: part)

    def shuffled(self, head: int, seed: Sequence[int]) -> Tensor:
        return self._weights(head, Shuffle(seed))

    def _weights(self, head: int, order: Callable[[Tensor], Tensor]) -> Tensor:
        one, d = self.recipe, self.recipe.weight.shape[-1]
        query = order(one.weight[head])
        if self.form == TOKEN:
            assert one.key is not None
            key = order(one.key[head])
            return bilinear(key, query, None if one.bias is None else order(one.bias[head])) * self.scale
        columns = [query] + ([] if one.bias is None else [order(one.bias[head]).unsqueeze(-1)])
        if one.constant:
            columns.append(torch.zeros_like(query[:, :1]))
        U = torch.cat(columns, -1) * self.scale
        if one.shift is not None:
            U[:, -1] += order(one.shift[head]) * self.scale
        extra = U.new_zeros(int(one.position) + int(one.sinks is not None), U.shape[1])
        if one.position:
            extra[0, -1] = 1.0
        if one.sinks is not None:
            extra[-1, -1] = one.sinks[head]
        assert not len(extra) or U.shape[1] > d
        return torch.cat([U, extra])


class CaughtView(View):
    """One call of a layer in one batch."""

    def __init__(self, layer: CaughtLayer, seen: Caught, gradient: Tensor | None) -> None:
        assert seen.mask is not None
        # What later passes write must not reach this one.
        self.layer, self.seen, self.gradient = layer, _copy(seen), gradient
        self.sink = seen.sinks is not None
        self.mask = nn.functional.pad(seen.mask, (0, 1), value=True) if self.sink else seen.mask

    def logits(self, positions: Tensor) -> Tensor:
        seen, recipe = self.seen, self.layer.recipe
        assert seen.query is not None
        assert seen.key is not None
        batch = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        query = seen.query.transpose(1, 2)[batch, positions].transpose(1, 2).double()  # (B, H, R, d_h)
        keys = seen.key.double()
        B, H, R, size = query.shape
        grouped = query.reshape(B, keys.shape[1], -1, size) @ keys.transpose(-1, -2)
        logits = grouped.reshape(B, H, R, -1)
        if seen.offsets is not None:
            table, which = seen.offsets
            of_distance = torch.einsum("bhrk,hpk->bhrp", query, table.double())
            index = which[positions].unsqueeze(1).expand(-1, H, -1, -1)
            logits = logits + of_distance.gather(-1, index)
        logits = logits * seen.scale
        if seen.bias is not None:
            logits = logits + seen.bias.double().transpose(1, 2)[batch, positions].transpose(1, 2)
        if recipe.sinks is not None:
            logits = torch.cat([logits, recipe.sinks.to(logits.device)[None, :, None, None].expand(B, H, R, 1)], -1)
        return logits

    def squashed(self, logits: Tensor) -> Tensor:
        if self.seen.cap is None:
            return logits
        capped = torch.tanh(logits / self.seen.cap) * self.seen.cap
        return torch.cat([capped[..., :-1], logits[..., -1:]], -1) if self.sink else capped

    def rows(self, sequence: Tensor, query: Tensor) -> Rows:
        seen, recipe = self.seen, self.layer.recipe
        assert seen.hidden is not None
        assert seen.value is not None
        z = _extended(recipe, seen.hidden[sequence, query].double())
        if self.layer.form == TOKEN:
            x = seen.hidden[sequence]
            return Rows(self.mask[sequence, query], z, self._scores(sequence, query), lambda head: x)
        return Rows(
            self.mask[sequence, query], z, self._scores(sequence, query), lambda h: self._tokens(sequence, query, h)
        )

    def _tokens(self, sequence: Tensor, query: Tensor, head: int) -> Tensor:
        """x̃ of one head, (n, T, a)."""
        seen, recipe = self.seen, self.layer.recipe
        assert seen.key is not None
        keys = seen.key[sequence, head // (self.layer.heads // seen.key.shape[1])].double()
        if seen.offsets is not None:
            table, which = seen.offsets
            keys = keys + table[head].double()[which[query]]
        if recipe.rotation is not None and seen.turn is not None:
            cos, sin = (_of_rows(part, sequence, query) for part in seen.turn)
            keys = _rotated(keys, cos.unsqueeze(1), -sin.unsqueeze(1), recipe.rotation)
        if recipe.position:
            assert seen.bias is not None
            bias = seen.bias[sequence, head, query].double().unsqueeze(-1)
            keys = torch.cat([keys, bias.masked_fill(~bias.isfinite(), 0.0)], -1)
        if recipe.sinks is not None:
            keys = nn.functional.pad(keys, (0, 1, 0, 1))
            keys[:, -1, -1] = 1.0
        return keys

    def _scores(self, sequence: Tensor, query: Tensor) -> Tensor | None:
        """γ_t = ⟨G, v_t⟩ with G the gradient at the head's output; a learned sink has the value zero."""
        if self.gradient is None:
            return None
        gradient = self.gradient[sequence, query].double()  # (n, H, d_v)
        assert self.seen.value is not None
        value = self.seen.value[sequence].double()
        n, H, size = gradient.shape
        scores = (gradient.reshape(n, value.shape[1], -1, size) @ value.transpose(-1, -2)).reshape(n, H, -1)
        if self.sink:
            scores = nn.functional.pad(scores, (0, 1))
        return scores.where(gradient.abs().amax((-1, -2))[:, None, None] > 0, torch.nan)

    def check(self) -> None:
        seen = self.seen
        assert seen.value is not None
        assert seen.context is not None
        attention = self.attention()
        tokens = attention[..., : seen.value.shape[2]]
        B, H, Q, T = tokens.shape
        value = seen.value.double()
        mixed = (tokens.reshape(B, value.shape[1], -1, T) @ value).reshape(B, H, Q, -1).transpose(1, 2)
        check_output(self.layer.name, mixed, seen.context, seen.mask.any(-1))  # type: ignore[union-attr]
        self._check_form()

    def _check_form(self) -> None:
        """x̃ᵀ W z̃ of a few queries beside the logits that the layer's own queries and keys give."""
        B, Q, _ = self.mask.shape
        sequence = torch.arange(B, device=self.mask.device)
        query = self.mask.any(-1).long().mul(torch.arange(1, Q + 1, device=self.mask.device)).argmax(-1)
        rows, own = self.rows(sequence, query), self.logits(query.unsqueeze(1))[:, :, 0]
        visible = rows.mask
        for head in range(self.layer.heads):
            W = self.layer.weights(head).to(own.device)
            again = torch.einsum("nta,ae,ne->nt", rows.tokens(head).double(), W, rows.z[:, head])
            # A key bias that is the same for all tokens is in the layer's logits and not in the token form.
            off = (again - own[:, head]).where(visible, torch.nan)
            off = off - off.nanmean(-1, keepdim=True)
            size = own[:, head].where(visible, 0.0).abs().max() + 1.0
            if not off.nan_to_num().abs().max() <= AGREEMENT * size * _looseness(self.seen.hidden):
                raise ValueError(
                    f"layer {self.layer.name} has logits that its weights do not give: head {head} is off by "
                    f"{float(off.nan_to_num().abs().max()):.1e}, and so the model cannot be audited."
                )


def _looseness(x: Tensor | None) -> float:
    return 50.0 if x is not None and x.dtype in (torch.float16, torch.bfloat16) else 1.0


def _copy(seen: Caught) -> Caught:
    return Caught(**{name: getattr(seen, name) for name in Caught.__dataclass_fields__})


def _of_rows(part: Tensor, sequence: Tensor, query: Tensor) -> Tensor:
    """Rows (n, r) of (B or 1, Q, r)."""
    return part[sequence if len(part) > 1 else torch.zeros_like(sequence), query].double()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, kind: str) -> Tensor:
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


def _extended(recipe: Recipe, z: Tensor) -> Tensor:
    """z̃ (n, H, e) of z (n, d)."""
    H = len(recipe.weight)
    z = z.unsqueeze(1).expand(-1, H, -1)
    if recipe.bias is not None:
        z = torch.cat([z, torch.ones_like(z[..., :1])], -1)
    if recipe.norm is not None:
        z = z * recipe.norm(z[:, 0, : recipe.weight.shape[-1]]).unsqueeze(-1)
    return torch.cat([z, torch.ones_like(z[..., :1])], -1) if recipe.constant else z


def _recipe(layer: CaughtLayer, seen: Caught) -> Recipe:
    """Find how the queries were made of the hidden states; ValueError, naming the layer, where no way gives them."""
    assert seen.query is not None
    assert seen.hidden is not None
    assert seen.key is not None
    H, size = seen.query.shape[1], seen.query.shape[-1]
    linear = layer.module.get_submodule(layer.projection)
    norms = (getattr(layer.module, name, None) for name in NORMS)
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
            made = _rotated(made, cos, sin, rotation)
        factor = float((made * target).sum() / (made * made).sum().clamp(min=1e-300))
        error = (made * factor - target).abs().max()
        if error <= AGREEMENT * target.abs().max() * _looseness(seen.query):
            break
    else:
        raise ValueError(
            f"layer {layer.name} ({type(layer.module).__name__}) makes its queries of {layer.projection} in a way that "
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
        key=_plain_keys(layer, seen) if bare else None,
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


def _plain_keys(layer: CaughtLayer, seen: Caught) -> Tensor | None:
    """W_K (H, d_h, d) where keys are a linear map of the tokens that queries are made of; else None."""
    assert seen.query is not None
    assert seen.hidden is not None
    assert seen.key is not None
    H, size = seen.query.shape[1], seen.query.shape[-1]
    if seen.key.shape[1] != H or seen.key.shape[2] != seen.hidden.shape[1]:
        return None
    name = layer.projection
    children = {child for child, _ in layer.module.named_children()}
    beside = name.replace("query", "key") if "query" in name else name.replace("q", "k", 1).replace("Q", "K", 1)
    weight, bias = _matrix(layer.module.get_submodule(name))
    rows = H * size
    if len(weight) == 3 * rows:
        ways = [(weight[rows : 2 * rows].reshape(H, size, -1), None if bias is None else bias[rows : 2 * rows])]
        ways.append(
            (weight.reshape(H, 3, size, -1)[:, 1], None if bias is None else bias.reshape(H, 3, size)[:, 1].flatten())
        )
    elif beside in children:
        matrix, own = _matrix(layer.module.get_submodule(beside))
        if len(matrix) != rows:
            return None
        ways = [(matrix.reshape(H, size, -1), own)]
    else:
        return None
    for found, shift in ways:
        keys = torch.einsum("btd,hkd->bhtk", seen.hidden.double(), found)
        keys = keys if shift is None else keys + shift.reshape(H, 1, size)
        if (keys - seen.key).abs().max() <= AGREEMENT * seen.key.abs().max() * _looseness(seen.key):
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


def other_context(layer: CaughtLayer, caught: Caught, head: int, W: Tensor) -> Tensor:
    """The output (B, Q, d_v) that a head would have with the weights W in the layer's form; see the module's text."""
    recipe, view = layer.recipe, CaughtView(layer, caught, None)
    assert caught.hidden is not None
    assert caught.key is not None
    assert caught.value is not None
    B, Q, _ = caught.hidden.shape
    z = _extended(recipe, caught.hidden.double().flatten(0, 1))[:, head].reshape(B, Q, -1)
    made = z @ W.to(z.device).T  # (B, Q, a)
    group = head // (layer.heads // caught.key.shape[1])
    if layer.form == TOKEN:
        logits = made @ caught.hidden.double().transpose(1, 2)
    else:
        size = caught.key.shape[-1]
        query = made[..., :size]
        if recipe.rotation is not None and caught.turn is not None:
            cos, sin = (part.double() for part in caught.turn)
            query = _rotated(query, cos, sin, recipe.rotation)
        logits = query @ caught.key[:, group].double().transpose(1, 2)
        if caught.offsets is not None:
            table, which = caught.offsets
            logits = logits + (query @ table[head].double().T).gather(-1, which.expand(B, -1, -1))
        if recipe.position:
            bias = caught.bias[:, head].double() if caught.bias is not None else 0.0
            logits = logits + made[..., size : size + 1] * bias
        if recipe.sinks is not None:
            logits = torch.cat([logits, made[..., -1:]], -1)
    attention = attention_of(view.squashed(logits.unsqueeze(1)), view.mask)[:, 0]
    value = caught.value[:, group].double()
    return attention[..., : value.shape[1]] @ value
