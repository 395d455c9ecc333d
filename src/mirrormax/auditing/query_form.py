"""The query form of a head: every kind of attention layer as one linear unknown, exactly.

Token t has the key k_t (rotated, normalised, with its bias), query i the input z_i, and

    q_i = R(i) D_i (W_Q z_i + b_Q),    logit_it = s q_iᵀ k_t + b_it,

with R(i) the rotation of position i (times a constant in yarn), D_i = diag(g)/rms(q) or 1, and b a bias of position.
Fix the keys and make the query map the unknown:

    x̃_t(i) = (R(i)ᵀ k_t, b_it),    z̃_i = (z_i, 1)/rms(q_i),    U = s [diag(g) W_Q, diag(g) b_Q],

so that logit_it = x̃_t(i)ᵀ U z̃_i exactly, b having a weight of 1 on the constant. Rms is frozen: the optimum has a
normaliser of its own, which the notes of an audit say. A learned sink is one more token (0, 1), whose weight is its
logit. The soft cap is monotone, so that selection and margins are those of the logits before it.

Nothing of this is believed: how a layer makes its queries is found by trying (:mod:`mirrormax.auditing.recipes`), and
x̃ᵀ U z̃ and the layer's output are compared with the layer's own numbers on the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from mirrormax.auditing.recipes import Caught, Recipe, extended, find_recipe, looseness, rotated

FUNCTION = "eager_attention_forward"
Watch = Callable[["CaughtLayer", "Caught"], list[RemovableHandle]]
"""Hooks that fill what is caught of a layer while the model runs."""


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
        check_finite(self.name, seen.query)
        if self._recipe is None:
            self._recipe, self.scale = find_recipe(self.name, self.module, self.projection, seen), seen.scale
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
        self.exact = seen.hidden is not None and seen.hidden.dtype == torch.float64
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
        z = extended(recipe, seen.hidden[sequence, query].double())
        if self.layer.form == TOKEN:
            x = seen.hidden[sequence]
            return Rows(self.mask[sequence, query], z, self._scores(sequence, query), lambda head: x, groups=1)
        assert seen.key is not None
        alike = seen.offsets is None and not recipe.position
        return Rows(
            self.mask[sequence, query],
            z,
            self._scores(sequence, query),
            lambda head: self._tokens(sequence, query, head),
            groups=seen.key.shape[1] if alike else self.layer.heads,
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
            keys = rotated(keys, cos.unsqueeze(1), -sin.unsqueeze(1), recipe.rotation)
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
            if not off.nan_to_num().abs().max() <= AGREEMENT * size * looseness(self.seen.hidden):
                raise ValueError(
                    f"layer {self.layer.name} has logits that its weights do not give: head {head} is off by "
                    f"{float(off.nan_to_num().abs().max()):.1e}, and so the model cannot be audited."
                )


def _copy(seen: Caught) -> Caught:
    return Caught(**{name: getattr(seen, name) for name in Caught.__dataclass_fields__})


def _of_rows(part: Tensor, sequence: Tensor, query: Tensor) -> Tensor:
    """Rows (n, r) of (B or 1, Q, r)."""
    return part[sequence if len(part) > 1 else torch.zeros_like(sequence), query].double()


def other_context(layer: CaughtLayer, caught: Caught, head: int, W: Tensor) -> Tensor:
    """The output (B, Q, d_v) that a head would have with the weights W in the layer's form; see the module's text."""
    recipe, view = layer.recipe, CaughtView(layer, caught, None)
    assert caught.hidden is not None
    assert caught.key is not None
    assert caught.value is not None
    B, Q, _ = caught.hidden.shape
    z = extended(recipe, caught.hidden.double().flatten(0, 1))[:, head].reshape(B, Q, -1)
    made = z @ W.to(z.device).T  # (B, Q, a)
    group = head // (layer.heads // caught.key.shape[1])
    if layer.form == TOKEN:
        logits = made @ caught.hidden.double().transpose(1, 2)
    else:
        size = caught.key.shape[-1]
        query = made[..., :size]
        if recipe.rotation is not None and caught.turn is not None:
            cos, sin = (part.double() for part in caught.turn)
            query = rotated(query, cos, sin, recipe.rotation)
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
