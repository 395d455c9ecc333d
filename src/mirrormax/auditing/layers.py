"""An attention layer as the audit sees it: every head is one linear unknown, exactly.

Row i has a query z̃_i, tokens x̃_it and logits x̃_itᵀ W z̃_i, in one of two forms.

**Token form.** A head with inputs x_t (keys, values) and z (query) computes

    logit_t = (W_K x_t + b_K)ᵀ (W_Q z + b_Q) / √d_h,    output = W_O Σ_t softmax(logit)_t (W_V x_t + b_V) + b_O.

What is constant in t does not move a softmax, so b_K drops out and x̃_t = x_t, z̃ = (z, 1),

    W = [W_Kᵀ W_Q, W_Kᵀ b_Q] / √d_h    of shape (d, d + 1),

or z̃ = z and W = W_Kᵀ W_Q/√d_h of shape (d, d) where there is no query bias. That is the paper's W.

**Query form.** With rotary positions, normalised queries or biases of position no fixed W of that kind exists. Token t
has the key k_t (rotated, normalised, with its bias), query i the input z_i, and

    q_i = R(i) D_i (W_Q z_i + b_Q),    logit_it = s q_iᵀ k_t + b_it,

with R(i) the rotation of position i (times a constant in yarn), D_i = diag(g)/rms(q) or 1, and b a bias of position.
Fix the keys and make the query map the unknown:

    x̃_t(i) = (R(i)ᵀ k_t, b_it),    z̃_i = (z_i, 1)/rms(q_i),    U = s [diag(g) W_Q, diag(g) b_Q],

so that logit_it = x̃_t(i)ᵀ U z̃_i exactly, b having a weight of 1 on the constant. Rms is frozen: the optimum has a
normaliser of its own, which the notes of an audit say. A learned sink is one more token (0, 1), whose weight is its
logit. The soft cap is monotone, so that selection and margins are those of the logits before it. The form asks how
near W_Q is to the max-margin map *for these keys*; its ratios cannot be compared with the token form's.

Nothing of this is believed: how a layer makes its queries is found by trying (:mod:`mirrormax.auditing.recipes`), and
x̃ᵀ W z̃ and the heads' outputs are compared with the layer's own numbers on the first batch.

**Scores.** The paper scores a token by γ_t = y vᵀx_t, where v is the linear head behind the attention. Behind a head of
a deep model stands everything after it; to first order that is linear as well. With G the gradient of the model's
log-odds for a class at the head's output (the query's row),

    γ_t = Gᵀ v_t,    v_t = W_V x_t + b_V,

how much the log-odds would rise per unit of attention moved to token t. The log-odds of class c are
logit_c − log Σ_{k≠c} exp(logit_k): shifting all logits does not change them, and for two classes they are the paper's
y · f. A model with a single output is scored by that output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mirrormax.auditing.calls import UNSEEN, Call, Edit
from mirrormax.auditing.recipes import AGREEMENT, Recipe, extended, find_recipe, looseness, matrix_of, rotated, turned

TOKEN, QUERY = "token", "query"


@dataclass(frozen=True, eq=False)
class Rows:
    """n queries of one layer as its H heads see them."""

    mask: Tensor  # (n, T)      where each may look
    z: Tensor  # (n, H, e)      z̃
    scores: Tensor | None  # (n, H, T)  γ; NaN in rows that the model's answer does not depend on; None without any
    tokens: Callable[[int], Tensor]  # head to its x̃ (n, T, a)
    groups: int  # of heads that have their x̃ in common: head h is in group h · groups // H


class Layer:
    """One attention layer of a model, that is one call of one of its modules in a pass.

    What makes queries is the child or parameter ``projection``; ``wanted_form`` is the form to have, if any. An
    ``edit`` changes what it answers in the passes to come.
    """

    def __init__(self, name: str, module: nn.Module, projection: str, wanted_form: str | None) -> None:
        self.name, self.module, self.projection, self.wanted_form = name, module, projection, wanted_form
        self.call = Call()  # of the last pass
        self.edit: Edit | None = None
        self.form = QUERY
        self.recipe: Recipe = UNSEEN  # how its queries are made, known from its first pass on

    @property
    def heads(self) -> int:
        """How many heads it has."""
        return len(self.recipe.weight)

    def view(self) -> View:
        """What the last pass showed; the first one finds out how queries are made."""
        call = self.call
        if any(part is UNSEEN for part in (call.query, call.hidden, call.context)):
            raise ValueError(
                f"layer {self.name} ({type(self.module).__name__}) did not hand queries and keys to a function that "
                "the audit knows, so that its attention cannot be recomputed; give adapter_for a way to read "
                f"{type(self.module).__name__}, see the audit guide."
            )
        if call.hidden.ndim != 3 or len(call.hidden) != len(call.query):
            raise ValueError(
                f"layer {self.name} ({type(self.module).__name__}) is given {tuple(call.hidden.shape)} and not tokens "
                "(B, T, d), so that the audit cannot read it; give a model whose layers see one sequence of tokens."
            )
        if not all(torch.isfinite(part).all() for part in (call.hidden, call.query)):
            raise ValueError(f"layer {self.name} has numbers that are not finite; check the model's weights.")
        if self.recipe is UNSEEN:
            recipe = find_recipe(self.name, self.module, self.projection, call)
            if self.wanted_form == TOKEN and recipe.key is None:
                raise ValueError(
                    f"layer {self.name} has no token form, because of rotated, normalised or shared keys or a bias of "
                    "position; leave form out, or ask for the query form."
                )
            self.recipe = recipe
            self.form = TOKEN if recipe.key is not None and self.wanted_form != QUERY else QUERY
        return View(self, call)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """What makes queries and what makes keys, (out, in) each, sharing the parameters' memory; one, where packed."""
        return matrix_of(self.module, self.projection), matrix_of(self.module, self.recipe.key_name)

    def shuffled(self, head: int, seed: Sequence[int]) -> Tensor:
        """W of a head that learned nothing: the entries of its weights in random order."""
        random = np.random.default_rng(list(seed))

        def order(values: Tensor) -> Tensor:
            flat = values.flatten()
            return flat[torch.from_numpy(random.permutation(len(flat))).to(flat.device)].reshape(values.shape)

        return self.weights(head, order)

    def weights(self, head: int, order: Callable[[Tensor], Tensor] = lambda part: part) -> Tensor:
        """W of a head in float64, (a, e), of what ``order`` makes of the parts that were learnt."""
        recipe = self.recipe
        query = order(recipe.weight[head])
        key = order(recipe.key[head]) if self.form == TOKEN and recipe.key is not None else None
        if recipe.bias is not None:
            query = torch.cat([query, order(recipe.bias[head]).unsqueeze(-1)], -1)
        if key is not None:
            return key.T @ query * recipe.scale
        U = nn.functional.pad(query, (0, int(recipe.constant))) * recipe.scale
        if recipe.shift is not None:
            U[:, -1] += order(recipe.shift[head]) * recipe.scale
        extra = U.new_zeros(int(recipe.position) + int(recipe.sinks is not None), U.shape[1])
        if recipe.position:
            extra[0, -1] = 1.0
        if recipe.sinks is not None:
            extra[-1, -1] = recipe.sinks[head]
        return torch.cat([U, extra])


class View:
    """One call of a layer in one batch: B sequences, Q queries, T tokens (a learned sink is the last), H heads."""

    gradient: Tensor | None = None  # of what was asked about, at the heads' outputs (B, R, H, d_v)

    def __init__(self, layer: Layer, call: Call) -> None:
        self.layer, self.call = layer, call
        self.sink = call.sinks is not None  # whether the last token is one that the layer has of its own
        self.mask = nn.functional.pad(call.mask, (0, 1), value=True) if self.sink else call.mask  # (B, Q, T)

    def logits(self) -> Tensor:
        """Logits (B, H, Q, T) in float64 of every query, before any soft cap."""
        call = self.call
        query, keys = call.query.double(), call.key.double()
        B, H, Q, size = query.shape
        grouped = query.reshape(B, keys.shape[1], -1, size) @ keys.transpose(-1, -2)
        logits = grouped.reshape(B, H, Q, -1)
        if call.offsets is not None:
            table, which = call.offsets
            of_distance = torch.einsum("bhqk,hpk->bhqp", query, table.double())
            logits = logits + of_distance.gather(-1, which.expand(B, H, -1, -1))
        logits = logits * call.scale
        if call.bias is not None:
            logits = logits + call.bias.double()
        if call.sinks is not None:
            sinks = call.sinks.detach().double().reshape(1, H, 1, 1).expand(B, H, Q, 1)
            logits = torch.cat([logits, sinks], -1)
        return logits

    def squashed(self, logits: Tensor) -> Tensor:
        """What the softmax is given: the logits, or capped ones."""
        if self.call.cap is None:
            return logits
        capped = torch.tanh(logits / self.call.cap) * self.call.cap
        return torch.cat([capped[..., :-1], logits[..., -1:]], -1) if self.sink else capped

    def attention(self) -> Tensor:
        """The layer's attention (B, H, Q, T) of every query; zero where it looks nowhere."""
        return attention_of(self.squashed(self.logits()), self.mask)

    def mixed(self) -> Tensor:
        """The heads' outputs (B, Q, H, d_v) in float64, recomputed; a learned sink has the value zero."""
        value = self.call.value.double()
        tokens = self.attention()[..., : value.shape[2]]
        B, H, Q, T = tokens.shape
        return (tokens.reshape(B, value.shape[1], -1, T) @ value).reshape(B, H, Q, -1).transpose(1, 2)

    def rows(self, sequence: Tensor, query: Tensor) -> Rows:
        """The rows of some queries, (n,) each: their place in the batch and their position."""
        call, recipe = self.call, self.layer.recipe
        z = extended(recipe, call.hidden[sequence, query].double())
        mask, scores = self.mask[sequence, query], self._scores(sequence, query)
        if self.layer.form == TOKEN:
            x = call.tokens[sequence]
            return Rows(mask, z, scores, lambda head: x, groups=1)
        alike = call.offsets is None and not recipe.position and recipe.gain is None
        groups = call.key.shape[1] if alike else self.layer.heads
        return Rows(mask, z, scores, lambda head: self._tokens(sequence, query, head), groups)

    def _tokens(self, sequence: Tensor, query: Tensor, head: int) -> Tensor:
        """x̃ of one head, (n, T, a)."""
        call, recipe = self.call, self.layer.recipe
        keys = call.key[sequence, self._group(head)].double()
        if call.offsets is not None:
            table, which = call.offsets
            keys = keys + table[head].double()[which[query]]
        if recipe.gain is not None:
            keys = keys * recipe.gain[head]
        if recipe.rotation is not None and call.turn is not None:
            # one row of them where all sequences have the same positions
            cos, sin = (part[sequence % len(part), query].double() for part in call.turn)
            keys = rotated(keys, cos.unsqueeze(1), -sin.unsqueeze(1), recipe.rotation)
        if recipe.position:
            assert call.bias is not None
            bias = call.bias[sequence, head, query].double().unsqueeze(-1)
            keys = torch.cat([keys, bias.masked_fill(~bias.isfinite(), 0.0)], -1)
        if recipe.sinks is not None:
            keys = nn.functional.pad(keys, (0, 1, 0, 1))
            keys[:, -1, -1] = 1.0
        return keys

    def _scores(self, sequence: Tensor, query: Tensor) -> Tensor | None:
        """γ_t = ⟨G, v_t⟩ with G the gradient at the head's output; a learned sink has the value zero."""
        if self.gradient is None:
            return None
        unread = self.mask.shape[1] - self.gradient.shape[1]  # queries whose rows were not worked out
        gradient = nn.functional.pad(self.gradient, (0, 0, 0, 0, 0, unread))[sequence, query].double()  # (n, H, d_v)
        value = self.call.value[sequence].double()
        n, H, size = gradient.shape
        scores = (gradient.reshape(n, value.shape[1], -1, size) @ value.transpose(-1, -2)).reshape(n, H, -1)
        if self.sink:
            scores = nn.functional.pad(scores, (0, 1))
        return scores.where(gradient.abs().amax((-1, -2))[:, None, None] > 0, torch.nan)

    def check(self) -> None:
        """ValueError, naming the layer, where it does not compute what the audit takes it to compute."""
        done = self.call.context.shape[1]
        check_output(self.layer.name, self.mixed()[:, :done], self.call.context, self.call.mask[:, :done].any(-1))
        # x̃ᵀ W z̃ of each sequence's last query beside the logits that the layer's own queries and keys give
        B, Q, _ = self.mask.shape
        sequence = torch.arange(B, device=self.mask.device)
        query = self.mask.any(-1).long().mul(torch.arange(1, Q + 1, device=self.mask.device)).argmax(-1)
        rows, own = self.rows(sequence, query), self.logits()[sequence, :, query]
        for head in range(self.layer.heads):
            W = self.layer.weights(head).to(own.device)
            again = torch.einsum("nta,ae,ne->nt", rows.tokens(head).double(), W, rows.z[:, head])
            # A key bias that is the same for all tokens is in the layer's logits and not in the token form.
            off = (again - own[:, head]).where(rows.mask, torch.nan)
            error = float((off - off.nanmean(-1, keepdim=True)).nan_to_num().abs().max())
            size = own[:, head].where(rows.mask, 0.0).abs().max() + 1.0
            if not error <= AGREEMENT * size * looseness(self.call.hidden):
                raise ValueError(
                    f"layer {self.layer.name} has logits that its weights do not give: head {head} is off by "
                    f"{error:.1e}, and so the model cannot be audited."
                )

    def logits_with(self, head: int, W: Tensor) -> Tensor:
        """Logits (B, Q, T) in float64 that a head would have with the weights W in the layer's form."""
        call, recipe = self.call, self.layer.recipe
        B, Q, _ = call.hidden.shape
        z = extended(recipe, call.hidden.double().flatten(0, 1), head).reshape(B, Q, -1)
        made = z @ W.to(z.device).T  # (B, Q, a)
        if self.layer.form == TOKEN:
            return made @ call.tokens.double().transpose(1, 2)
        size = call.key.shape[-1]
        query = turned(made[..., :size].unsqueeze(1), call, recipe.rotation)[:, 0]
        if recipe.gain is not None:
            query = query * recipe.gain[head]
        logits = query @ call.key[:, self._group(head)].double().transpose(1, 2)
        if call.offsets is not None:
            table, which = call.offsets
            logits = logits + (query @ table[head].double().T).gather(-1, which.expand(B, -1, -1))
        if recipe.position and call.bias is not None:
            logits = logits + made[..., size : size + 1] * call.bias[:, head].double()
        return torch.cat([logits, made[..., -1:]], -1) if recipe.sinks is not None else logits

    def output_with(self, head: int, W: Tensor) -> Tensor:
        """The output (B, Q, d_v) that a head would have with the weights W in the layer's form."""
        logits = self.logits_with(head, W).unsqueeze(1)
        attention = attention_of(self.squashed(logits), self.mask)[:, 0]
        value = self.call.value[:, self._group(head)].double()
        return attention[..., : value.shape[1]] @ value

    def _group(self, head: int) -> int:
        """The group of heads that a head shares its keys with."""
        return head // (self.layer.heads // self.call.key.shape[1])


def check_output(name: str, again: Tensor, own: Tensor, rows: Tensor) -> None:
    """Refuse a layer whose output (B, Q, …), in rows (B, Q) that look somewhere, is not the recomputed one."""
    if not rows.any():
        return
    if not own[rows].isfinite().all():
        raise ValueError(f"layer {name} gives NaN or infinite outputs on these batches; mend the batches or the model.")
    error, allowed = (again - own)[rows].abs().max(), AGREEMENT * own[rows].abs().max() * looseness(own)
    if not error <= allowed:
        raise ValueError(
            f"layer {name} does not compute the softmax attention that the audit takes it to compute: recomputed, its "
            f"output is off by {float(error):.1e}, and so the model cannot be audited."
        )


def attention_of(logits: Tensor, mask: Tensor) -> Tensor:
    """softmax over the tokens a query may look at, for logits (B, H, Q, T) and mask (B, Q, T); zero where none."""
    hidden = logits.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return torch.softmax(hidden, -1).nan_to_num(0.0)
