"""What one call of an attention layer is given and answers, and the ways to work that out.

Nearly all attention layers of transformers call one function of their file, ``eager_attention_forward``, with queries
and keys as they are *after* rotation and normalisation; while a model is watched, that function also writes down what
it is given. A layer that computes its attention in its own forward has a *way* instead: a function of a few lines that
works out queries, keys and values from the arguments of the call. :data:`WAYS` has those of our networks, of torch and
of some classes of transformers; a way of one's own goes to :func:`~mirrormax.auditing.adapter_for`.

A layer that has neither is read by its products: queries and keys are the two factors of the last product before the
softmax, and values the second factor of the first one after it. What the softmax is given is s q·k plus a mask and a
bias of position; the scale s is one for which the rest is zero where it is not hidden, or the same for every sequence
or for every query.

What a way says is not believed: the attention that follows from it is compared with the layer's own output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

HIDDEN = -9e3
"""What is added to a logit to hide a token; biases of position are far above."""
UNSEEN: Any = None
"""In the place of what a layer has not shown."""
Edit = Callable[["Call", Tensor], Tensor]
"""From what a layer was given and its heads' outputs (B, R, H, d_v) to other outputs."""
Way = Callable[[Any, Mapping[str, Any], "Call"], None]
"""From a layer and the arguments it was called with to :meth:`Call.take`."""


@dataclass(eq=False)
class Call:
    """What one call of a layer was given and answered: B sequences, Q queries, T tokens, H heads."""

    hidden: Tensor = UNSEEN  # (B, Q, d)     what queries are made of
    others: Tensor | None = None  # (B, T, d) what keys are made of; None: the same
    query: Tensor = UNSEEN  # (B, H, Q, d_h)
    key: Tensor = UNSEEN  # (B, G, T, d_h)   G divides H: heads share keys in groups
    value: Tensor = UNSEEN  # (B, G, T, d_v)
    mask: Tensor = UNSEEN  # (B, Q, T)       True where a query may look
    bias: Tensor | None = None  # (B, H, Q, T)    added to the logits
    scale: float = 1.0
    cap: float | None = None
    sinks: Tensor | None = None  # (H,)
    turn: tuple[Tensor, Tensor] | None = None  # cosines and sines (B, Q, r) of the queries' positions
    offsets: tuple[Tensor, Tensor] | None = None  # keys of distances (H, P, d_h), and which (Q, T): added to the keys
    own_bias: bool = False  # whether the bias is made of the layer's own weights
    context: Tensor = UNSEEN  # (B, R, H, d_v) the heads' outputs of the first R ≤ Q queries
    probe: Tensor = UNSEEN  # zeros added to it, to ask for gradients there
    edit: Edit | None = None
    by_function: bool = False  # whether a function that is known computes it, so that products tell nothing

    @property
    def tokens(self) -> Tensor:
        """What keys are made of, (B, T, d)."""
        return self.hidden if self.others is None else self.others

    def take(
        self,
        hidden: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        """Note what a way has worked out.

        Queries (B, H, Q, d_h), keys and values (B, G, T, …) and what the queries are made of (B, Q, d); the ``scale``
        is 1/√d_h by default. ``mask`` is True where a query may look or is added to the logits, as is ``bias``.
        """
        self.hidden = hidden if hidden is UNSEEN else hidden.detach()
        self.query, self.key, self.value = query.detach(), key.detach(), value.detach()
        self.scale = float(query.shape[-1] ** -0.5 if scale is None else scale)
        (B, H, Q, _), T = query.shape, key.shape[2]
        self.bias = None if bias is None else bias.detach().expand(B, H, Q, T)
        if mask is None:
            self.mask = torch.ones(B, Q, T, dtype=torch.bool, device=query.device)
            return
        mask = mask.detach()[..., :T].expand(B, -1, Q, T)
        seen = mask if mask.dtype == torch.bool else mask > HIDDEN
        if mask.dtype != torch.bool:
            rest = mask.masked_fill(~seen, 0.0)
            self.bias = rest.expand(B, H, Q, T) if self.bias is None else self.bias + rest
        if seen.shape[1] > 1 and not (seen == seen[:, :1]).all():
            raise ValueError("the attention mask differs from head to head; the audit needs one mask for all of them.")
        self.mask = seen[:, 0]
        if self.bias is not None and not self.bias.any():
            self.bias = None

    def answered(self, context: Tensor) -> Tensor:
        """Note the heads' outputs (B, R, H, d_v), and give on what the model is to go on with."""
        if self.turn is not None and self.query is not UNSEEN:
            cos, sin = (part if part.ndim > 2 else part.unsqueeze(0) for part in self.turn)
            # Tokens before the first that is given are not turned.
            unturned = max(0, self.query.shape[2] - cos.shape[1])
            self.turn = (
                nn.functional.pad(cos, (0, 0, unturned, 0), value=1.0),
                nn.functional.pad(sin, (0, 0, unturned, 0)),
            )
        if self.edit is not None:
            context = self.edit(self, context)
        self.context = context.detach()
        if not torch.is_grad_enabled():
            return context
        self.probe = torch.zeros_like(self.context, requires_grad=True)
        return context + self.probe


def turn_of(module: Any, given: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines (B, Q, r) of the queries' positions in what a layer is given, if any."""
    turn = given.get("position_embeddings", given.get("freqs_cis"))
    if isinstance(turn, Tensor) and turn.is_complex():  # one angle for each pair of coordinates
        return turn.real.repeat_interleave(2, -1).detach(), turn.imag.repeat_interleave(2, -1).detach()
    if isinstance(turn, tuple) and len(turn) == 2:
        return turn[0].detach(), turn[1].detach()
    waves = given.get("sinusoidal_pos")  # RoFormer's; GPT-J and CodeGen have a table
    if waves is None and "position_ids" in given and isinstance(getattr(module, "embed_positions", None), Tensor):
        waves = module.embed_positions[given["position_ids"]]
    if isinstance(waves, Tensor):
        sin, cos = waves.detach().reshape(-1, *waves.shape[-2:]).chunk(2, -1)
        return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    return None


def present(mask: Tensor) -> Tensor:
    """Which queries (B, Q) of a mask (B, Q, T) are there: they look somewhere and, where they are tokens, are seen."""
    return mask.any(-1) & mask.any(1) if mask.shape[1] == mask.shape[2] else mask.any(-1)


def by_head(made: Tensor, heads: int) -> Tensor:
    """(…, N, H · d_h) as (…, H, N, d_h)."""
    split: Tensor = made.unflatten(-1, (heads, -1))
    return split.transpose(-2, -3)


def _ours(module: Any, given: Mapping[str, Any], call: Call) -> None:
    """:class:`mirrormax.nets.layers.SelfAttention`, whose last block may answer for the first token alone."""
    x, mask = given["x"], given.get("mask")
    parts = (by_head(part(x), module.heads) for part in (module.query, module.key, module.value))
    call.take(x, *parts, mask=None if mask is None else mask[:, None, None])


def _torch(module: nn.MultiheadAttention, given: Mapping[str, Any], call: Call) -> None:
    if given["query"].ndim != 3:
        raise ValueError("the audit needs batched attention, queries (B, Q, d); add a dimension of one sequence.")
    parts = [given[name] if module.batch_first else given[name].transpose(0, 1) for name in ("query", "key", "value")]
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    weights = module.in_proj_weight.chunk(3)
    made = [nn.functional.linear(*inputs) for inputs in zip(parts, weights, biases, strict=True)]
    query, key, value = (by_head(part, module.num_heads) for part in made)
    added = query.new_zeros(len(query), 1, query.shape[2], key.shape[2])
    padding, mask = given.get("key_padding_mask"), given.get("attn_mask")
    if padding is not None:
        added = added + _added(padding, added)[:, None, None]
    if mask is not None:
        mask = _added(mask, added)
        added = added + (mask if mask.ndim == 2 else mask.unflatten(0, (len(query), -1)))
    call.take(parts[0], query, key, value, mask=added)
    call.others = parts[1].detach()


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """torch's two kinds of mask, True at what is hidden or a number to add, as numbers to add."""
    return like.new_zeros(mask.shape).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask.to(like)


def _bloom(module: Any, given: Mapping[str, Any], call: Call) -> None:
    hidden = given["hidden_states"]
    query, key, value = module._reshape(module.query_key_value(hidden))
    slopes = given["alibi"] * module.beta
    alibi = slopes.reshape(len(query), module.num_heads, 1, -1)
    scale = float(module.inv_norm_factor)
    call.take(hidden, query, key, value, scale=scale, mask=given.get("attention_mask"), bias=alibi)


def _mpnet(module: Any, given: Mapping[str, Any], call: Call) -> None:
    hidden = given["hidden_states"]
    parts = (by_head(part(hidden), module.num_attention_heads) for part in (module.q, module.k, module.v))
    call.take(hidden, *parts, mask=given.get("attention_mask"), bias=given.get("position_bias"))


def _deberta(module: Any, given: Mapping[str, Any], call: Call) -> None:
    """q·k + q·(key of the distance) + (query of the distance)·k: the second is in the keys, the third a bias."""
    heads, hidden, kinds = module.num_attention_heads, given["hidden_states"], module.pos_att_type
    first = hasattr(module, "in_proj")  # version 1, which packs its projections
    if first and module.talking_head:
        raise ValueError("DeBERTa mixes its heads (talking_head), so that no head has logits; it cannot be audited.")
    if first:
        query, key, value = by_head(module.in_proj(hidden), heads).detach().chunk(3, -1)
        query, value = query + by_head(module.q_bias[None], heads), value + by_head(module.v_bias[None], heads)
    else:
        projections = (module.query_proj, module.key_proj, module.value_proj)
        query, key, value = (by_head(part(hidden), heads).detach() for part in projections)
    terms = len(kinds) if first else sum(kind in kinds for kind in ("c2p", "p2c"))
    scale = float((module.attention_head_size * (1 + terms)) ** -0.5)
    bias = None
    if module.relative_attention:
        distance = given["relative_pos"].detach().long()
        distance = distance.reshape(-1, *distance.shape[-2:])[0]
        if first:
            most, span = module.max_relative_positions, min(hidden.shape[1], module.max_relative_positions)
            places = given["rel_embeddings"][most - span : most + span]
        else:
            span = module.pos_ebd_size
            places = given["rel_embeddings"][: 2 * span]
        shared = not first and module.share_att_key
        if "c2p" in kinds:
            keys = module.pos_proj if first else module.key_proj if shared else module.pos_key_proj
            call.offsets = (by_head(keys(places), heads).detach(), (distance + span).clamp(0, 2 * span - 1))
        if "p2c" in kinds:
            queries = module.pos_q_proj if first else module.query_proj if shared else module.pos_query_proj
            table = by_head(queries(places), heads).detach()
            scores = torch.einsum("bhtk,hpk->bhtp", key, table)  # (B, H, T, P)
            index = (-distance + span).clamp(0, 2 * span - 1)  # (T, Q) for the key's own place first
            index = index.expand(*scores.shape[:2], *index.shape)
            bias, call.own_bias = scores.gather(-1, index).transpose(-1, -2) * scale, True
    call.take(hidden, query, key, value, scale=scale, mask=given["attention_mask"].bool(), bias=bias)


def _longformer(module: Any, given: Mapping[str, Any], call: Call) -> None:
    """Attention within a window; tokens that look everywhere have projections of their own."""
    if given.get("is_global_attn"):
        raise ValueError("Longformer's global attention has weights of its own; leave global_attention_mask out.")
    hidden = given["hidden_states"]
    parts = (by_head(part(hidden), module.num_heads) for part in (module.query, module.key, module.value))
    places = torch.arange(hidden.shape[1], device=hidden.device)
    near = (places[:, None] - places).abs() <= module.one_sided_attn_window_size
    there = given["attention_mask"] == 0
    call.take(hidden, *parts, mask=near & there[:, None, None] & there[:, None, :, None])


WAYS: Mapping[str, Way] = {
    "SelfAttention": _ours,
    "MultiheadAttention": _torch,
    "BloomAttention": _bloom,
    "MPNetSelfAttention": _mpnet,
    "DisentangledSelfAttention": _deberta,
    "LongformerSelfAttention": _longformer,
}
"""Layers that compute their attention in their own forward: the class, and what it computes with."""

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
SAME = 1e-4
"""How far numbers that are to be equal may be apart, relative to the largest logit."""


class Products(TorchFunctionMode):
    """Fills a call while a layer's forward runs in it; what the model goes on with is what the call answers."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self._factors: list[tuple[Tensor, Tensor]] = []
        self._scores: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.call.by_function or self.call.context is not UNSEEN:
            return func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._fused(func, args, kwargs)
        if func in MATMUL or func is torch.baddbmm:
            a, b = args[1:3] if func is torch.baddbmm else (*args, *kwargs.values())[:2]
            if self._scores is not None and a.shape == self._scores.shape:
                return self._mix(func(*args, **kwargs), b)
            self._factors.append((a.detach(), b.detach()))
        elif func in SOFTMAX and (args[0] if args else kwargs["input"]).ndim > 2:
            self._scores = (args[0] if args else kwargs["input"]).detach().clone()
        return func(*args, **kwargs)

    def _fused(self, func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
        out = func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, mask = given["query"], given["key"], given.get("attn_mask")
        if query.ndim != 4 or self.call.hidden is UNSEEN:
            return out
        if given.get("is_causal"):
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        mask = mask if mask is None or mask.ndim == 4 else mask.expand(len(query), 1, *mask.shape[-2:])
        self.call.take(self.call.hidden, query, key, given["value"], scale=given.get("scale"), mask=mask)
        return self.call.answered(out.transpose(1, 2)).transpose(1, 2)

    def _mix(self, out: Tensor, value: Tensor) -> Tensor:
        """Attention was multiplied by values: all is known."""
        scores, hidden = self._scores, self.call.hidden
        assert scores is not None
        fitting = [
            (a, b)
            for a, b in self._factors
            if (a.shape[-2], b.shape[-1]) == scores.shape[-2:] and a.shape[:-2].numel() == scores.shape[:-2].numel()
        ]
        if hidden is UNSEEN or not fitting or scores.shape[:-2].numel() % len(hidden):
            return out
        B = len(hidden)
        query, key = fitting[-1]
        parts = (query, key.transpose(-1, -2), value.detach(), scores)
        query, key, value, scores = (part.reshape(B, -1, *part.shape[-2:]) for part in parts)
        scaled = _scale(scores.double(), query.double() @ key.double().transpose(-1, -2), query.shape[-1])
        if scaled is None:
            return out
        self.call.take(hidden, query, key, value, scale=scaled[0], mask=scaled[1])
        changed = self.call.answered(out.reshape(B, -1, *out.shape[-2:]).transpose(1, 2))
        return changed.transpose(1, 2).reshape(out.shape)


def _scale(scores: Tensor, products: Tensor, size: int) -> tuple[float, Tensor] | None:
    """The scale of the products (B, H, Q, T) in what the softmax was given, and what else was added to them."""
    allowed = SAME * scores.where(scores > HIDDEN, 0.0).abs().max().clamp(min=1.0)
    rests = {scale: scores - scale * products for scale in (float(size**-0.5), 1.0)}
    for scale, rest in rests.items():
        seen = rest > HIDDEN
        if rest.where(seen, 0.0).abs().max() <= allowed:
            return scale, seen
    for scale, rest in rests.items():
        alike = [rest[:1]] if len(rest) > 1 else []
        for other in (*alike, rest[:, :, -1:]):  # a bias of position: of every sequence alike, or of every query
            seen = (rest > HIDDEN) & (other > HIDDEN)
            if (rest - other).where(seen, 0.0).abs().max() <= allowed:
                return scale, rest
    return None
