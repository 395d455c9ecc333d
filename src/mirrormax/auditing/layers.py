"""What the audit asks of a model: its attention layers, how to watch them, and how to call the model on a batch.

Every head is one linear unknown. Row i has a query z̃_i, tokens x̃_it and logits x̃_itᵀ W z̃_i, in one of two forms.

**Token form.** A head with inputs x_t (keys, values) and z (query) computes

    logit_t = (W_K x_t + b_K)ᵀ (W_Q z + b_Q) / √d_h,    output = W_O Σ_t softmax(logit)_t (W_V x_t + b_V) + b_O.

What is constant in t does not move a softmax, so b_K drops out and x̃_t = x_t, z̃ = (z, 1),

    W = [W_Kᵀ W_Q, W_Kᵀ b_Q] / √d_h    of shape (d, d + 1),

or z̃ = z and W = W_Kᵀ W_Q/√d_h of shape (d, d) where there is no query bias. That is the paper's W.

**Query form.** With rotary positions, normalised queries or biases of position no fixed W of that kind exists. There
the keys are kept as they are and the map that makes queries is the unknown; see :mod:`mirrormax.auditing.query_form`.
It asks how near W_Q is to the max-margin map *for these keys*; its ratios cannot be compared with the token form's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

AGREEMENT = 1e-3
"""How far a layer's recomputed output may be from its own, relative to its largest entry; float32 has 1e-6."""
TOKEN, QUERY = "token", "query"


@dataclass(frozen=True, eq=False)
class Rows:
    """n queries of one layer as its H heads see them."""

    mask: Tensor  # (n, T)      where each may look
    z: Tensor  # (n, H, e)      z̃
    scores: Tensor | None  # (n, H, T)  γ; NaN in rows that the model's answer does not depend on; None without any
    tokens: Callable[[int], Tensor]  # head to its x̃ (n, T, a)


class View(ABC):
    """One layer in one batch of B sequences: Q queries, T tokens (a learned sink is the last of them), H heads."""

    mask: Tensor  # (B, Q, T) True where a query may look
    gradient: Tensor | None  # of the model's answer at the layer's output; None without one
    sink: bool = False  # whether the last token is one that the layer has of its own

    @abstractmethod
    def logits(self, positions: Tensor) -> Tensor:
        """Logits (B, H, R, T) in float64 of the queries at positions (B, R), before any soft cap."""

    @abstractmethod
    def rows(self, sequence: Tensor, query: Tensor) -> Rows:
        """The rows of some queries, (n,) each: their place in the batch and their position."""

    @abstractmethod
    def check(self) -> None:
        """ValueError, naming the layer, where it does not compute what the audit takes it to compute."""

    def squashed(self, logits: Tensor) -> Tensor:
        """What the softmax is given: the logits, or capped ones."""
        return logits

    def attention(self, positions: Tensor | None = None) -> Tensor:
        """The layer's attention (B, H, R, T) at positions (B, R), by default of every query; zero where none is."""
        B, Q, _ = self.mask.shape
        if positions is None:
            positions = torch.arange(Q, device=self.mask.device).expand(B, Q)
        batch = torch.arange(B, device=self.mask.device).unsqueeze(1)
        return attention_of(self.squashed(self.logits(positions)), self.mask[batch, positions])


class Layer(ABC):
    """One attention layer of a model."""

    name: str
    form: str  # TOKEN or QUERY

    @property
    @abstractmethod
    def heads(self) -> int:
        """How many heads it has."""

    @abstractmethod
    def attach(self, seen: Any) -> list[RemovableHandle]:
        """Hook the layer so that a forward pass fills what :meth:`new` gave."""

    @abstractmethod
    def view(self, seen: Any, mask: Tensor | None, gradient: Tensor | None) -> View:
        """What a pass showed; ``mask`` (B, T) is the batch's own, for layers that are told none."""

    @abstractmethod
    def weights(self, head: int) -> Tensor:
        """W of a head in float64, (a, e)."""

    @abstractmethod
    def shuffled(self, head: int, seed: Sequence[int]) -> Tensor:
        """W of a head that learned nothing: the entries of its weights in random order."""

    def new(self) -> Any:
        """An empty record of a pass."""
        return Seen()


@dataclass(eq=False)
class Seen:
    """What one forward pass showed of one layer; gradients are filled in later, where there is a head."""

    x: Tensor | None = None  # (B, T, d)       what keys and values are made of
    z: Tensor | None = None  # (B, Q, d)       what queries are made of; None: of the same tokens x
    mask: Tensor | None = None  # (B, Q, T)    True where a query may look; None: the batch's own mask
    output: Tensor | None = None  # (B, R, d)  after the output projection, of the first R ≤ Q queries
    probe: Tensor | None = None  # (B, R, d)   zeros added to the output, to ask for gradients there

    def clear(self) -> None:
        """Forget the pass before."""
        self.x = self.z = self.mask = self.output = self.probe = None


@dataclass(frozen=True, eq=False)
class Projection:
    """Weights of one of the four maps by head: ``weight (H, d_h, d)``, ``bias (H, d_h)`` or None."""

    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None, heads: int) -> Projection:
        """Rows of ``weight (H·d_h, d)`` belong to the heads one after the other."""
        rows, d = weight.shape
        weight = weight.detach().double().reshape(heads, rows // heads, d)
        return Projection(weight, None if bias is None else bias.detach().double().reshape(heads, -1))

    def __call__(self, x: Tensor) -> Tensor:
        """x (..., N, d) to (..., H, N, d_h)."""
        y = torch.einsum("...nd,hkd->...hnk", x.double(), self.weight)
        return y if self.bias is None else y + self.bias.unsqueeze(-2)


@dataclass(frozen=True, eq=False)
class AttentionLayer(Layer):
    """A layer in token form by its projections, and ``hook``, which makes a pass fill a :class:`Seen`."""

    name: str
    query: Projection
    key: Projection
    value: Projection
    output: Tensor  # (H, d, d_h)
    output_bias: Tensor | None
    hook: Callable[[Seen], list[RemovableHandle]]
    form: str = TOKEN

    @property
    def heads(self) -> int:
        return len(self.query.weight)

    @property
    def scale(self) -> float:
        return float(self.query.weight.shape[1] ** -0.5)

    def attach(self, seen: Seen) -> list[RemovableHandle]:
        return self.hook(seen)

    def weights(self, head: int) -> Tensor:
        return self._weights(head, lambda part: part)

    def shuffled(self, head: int, seed: Sequence[int]) -> Tensor:
        return self._weights(head, Shuffle(seed))

    def _weights(self, head: int, order: Callable[[Tensor], Tensor]) -> Tensor:
        query, key = order(self.query.weight[head]), order(self.key.weight[head])
        bias = None if self.query.bias is None else order(self.query.bias[head])
        return (bilinear(key, query, bias) if self.form == TOKEN else with_bias(query, bias)) * self.scale

    def extended(self, z: Tensor) -> Tensor:
        """z̃: with a 1 appended where the query has a bias."""
        z = z.double()
        return z if self.query.bias is None else torch.cat([z, torch.ones_like(z[..., :1])], -1)

    def logits(self, x: Tensor, z: Tensor) -> Tensor:
        """x (B, T, d), z (B, Q, d) to (B, H, Q, T); b_K is left in, as the model has it."""
        queries = self.query(z) * self.scale
        size = queries.shape[-1]
        if z.shape[-2] >= size:
            return queries @ self.key(x).transpose(-1, -2)
        # Few queries: q·(W_K x) = (W_Kᵀq)·x spares the keys of all tokens.
        logits = torch.einsum("bhqd,btd->bhqt", queries @ self.key.weight, x.double())
        return logits if self.key.bias is None else logits + (queries @ self.key.bias.unsqueeze(-1))

    def mix(self, attention: Tensor, x: Tensor) -> Tensor:
        """The layer's output (B, Q, d) from attention (B, H, Q, T) and x (B, T, d)."""
        mixed = torch.einsum("bhqk,hdk->bqd", attention @ self.value(x), self.output)
        return mixed if self.output_bias is None else mixed + self.output_bias

    def pulled_back(self, gradient: Tensor) -> Tensor:
        """(W_O W_V)ᵀ g for g (..., d) at the output: (..., H, d), so that γ_t = ⟨·, x_t⟩ up to a constant in t."""
        return torch.einsum("...e,hek,hkd->...hd", gradient.double(), self.output, self.value.weight)

    def view(self, seen: Seen, mask: Tensor | None, gradient: Tensor | None) -> View:
        if seen.x is None or seen.output is None:
            raise ValueError(
                f"layer {self.name} was not called in the forward pass; the audit needs every layer to run."
            )
        z = seen.x if seen.z is None else seen.z
        shape = (len(seen.x), z.shape[1], seen.x.shape[1])
        if seen.mask is not None:
            whole = seen.mask
        elif mask is None:
            whole = torch.ones(shape, dtype=torch.bool, device=seen.x.device)
        else:
            whole = own_mask(mask, shape)
        check_finite(self.name, seen.x)
        return PlainView(self, seen.x, z, whole, seen.output, gradient)


@dataclass(frozen=True, eq=False)
class PlainView(View):
    """x (B, T, d), z (B, Q, d), mask (B, Q, T), output and its gradient (B, R, d) or None.

    The output is that of the first R ≤ Q queries: a last layer need not work out rows that nobody reads.
    """

    layer: AttentionLayer
    x: Tensor
    z: Tensor
    mask: Tensor
    output: Tensor
    gradient: Tensor | None

    def logits(self, positions: Tensor) -> Tensor:
        batch = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        return self.layer.logits(self.x, self.z[batch, positions])

    def rows(self, sequence: Tensor, query: Tensor) -> Rows:
        x, scores = self.x[sequence], None
        if self.gradient is not None and self.gradient.shape[1] > int(query.max()):
            gradient = self.gradient[sequence, query]
            scores = torch.einsum("ntd,nhd->nht", x.double(), self.layer.pulled_back(gradient))
            scores = scores.where(gradient.abs().amax(-1)[:, None, None] > 0, torch.nan)
        z = self.layer.extended(self.z[sequence, query]).unsqueeze(1).expand(-1, self.layer.heads, -1)
        if self.layer.form == TOKEN:
            return Rows(self.mask[sequence, query], z, scores, lambda head: x)
        keys = self.layer.key(x)
        return Rows(self.mask[sequence, query], z, scores, lambda head: keys[:, head])

    def check(self) -> None:
        done = self.output.shape[1]
        mask = self.mask[:, :done]
        attention = attention_of(self.layer.logits(self.x, self.z[:, :done]), mask)
        check_output(self.layer.name, self.layer.mix(attention, self.x), self.output, mask.any(-1))


class Shuffle:
    """Entries of a tensor in random order, each call drawing on from one seed."""

    def __init__(self, seed: Sequence[int]) -> None:
        self._random = np.random.default_rng(list(seed))

    def __call__(self, values: Tensor) -> Tensor:
        flat = values.flatten()
        return flat[torch.from_numpy(self._random.permutation(len(flat))).to(flat.device)].reshape(values.shape)


def bilinear(key: Tensor, query: Tensor, bias: Tensor | None) -> Tensor:
    """[W_Kᵀ W_Q, W_Kᵀ b_Q] from W_K and W_Q (d_h, d) and b_Q (d_h,), or W_Kᵀ W_Q without one."""
    return key.T @ with_bias(query, bias)


def with_bias(query: Tensor, bias: Tensor | None) -> Tensor:
    """[W_Q, b_Q], or W_Q without one."""
    return query if bias is None else torch.cat([query, bias.unsqueeze(-1)], -1)


def own_mask(mask: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """A batch's mask (B, T) for every query, (B, Q, T)."""
    if mask.shape != (shape[0], shape[2]):
        raise ValueError(f"the mask of a batch has shape {tuple(mask.shape)}, its tokens {(shape[0], shape[2])}.")
    return mask.unsqueeze(1).expand(shape)


def check_finite(name: str, x: Tensor) -> None:
    """Refuse a layer that is given what is no number."""
    if not torch.isfinite(x).all():
        raise ValueError(f"layer {name} was given numbers that are not finite; check the model's weights.")


def check_output(name: str, again: Tensor, own: Tensor, rows: Tensor) -> None:
    """Refuse a layer whose output (B, Q, …), in rows (B, Q) that look somewhere, is not the recomputed one."""
    if not rows.any():
        return
    error, allowed = (again - own)[rows].abs().max(), AGREEMENT * own[rows].abs().max()
    if own.dtype in (torch.float16, torch.bfloat16):
        allowed = allowed * 50
    if not error <= allowed:
        raise ValueError(
            f"layer {name} does not compute the softmax attention that the audit takes it to compute: recomputed, its "
            f"output is off by {float(error):.1e}, and so the model cannot be audited."
        )


def attention_of(logits: Tensor, mask: Tensor) -> Tensor:
    """softmax over the tokens a query may look at, for logits (B, H, Q, T) and mask (B, Q, T); zero where none."""
    hidden = logits.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return torch.softmax(hidden, -1).nan_to_num(0.0)


def by_head(weight: Tensor, heads: int) -> Tensor:
    """Columns of an output projection (d, H·d_h) as (H, d, d_h)."""
    d, columns = weight.shape
    return weight.detach().double().reshape(d, heads, columns // heads).transpose(0, 1)


def linear_layer(
    name: str, heads: int, query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear, given: nn.Module
) -> AttentionLayer:
    """A self-attention layer whose four projections are modules of their own, ``output`` called once a pass.

    ``given`` is the module that is called with all tokens: the layer itself, or its keys. The layer may work out its
    first few queries only, as a last layer does whose other rows nobody reads.
    """
    sizes = {len(query.weight), len(key.weight), len(value.weight), output.in_features}
    if heads < 1 or len(sizes) > 1 or len(query.weight) % heads:
        raise ValueError(
            f"layer {name} has projections of sizes {sorted(sizes)} for {heads} heads, and every head needs its own "
            "query, key and value of one size; grouped or shared heads cannot be audited."
        )

    def attach(seen: Seen) -> list[RemovableHandle]:
        def see_x(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen.x = args[0].detach()

        def see_output(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
            return probed(seen, out)

        return [
            given.register_forward_pre_hook(see_x),
            output.register_forward_hook(see_output),
        ]

    q, k, v = (Projection.of(part.weight, part.bias, heads) for part in (query, key, value))
    bias = None if output.bias is None else output.bias.detach().double()
    return AttentionLayer(name, q, k, v, by_head(output.weight, heads), bias, attach)


def probed(seen: Seen, out: Tensor) -> Tensor | None:
    """Note an output; where gradients are on, add a zero to it that they can be asked for."""
    seen.output = out.detach()
    if not torch.is_grad_enabled():
        return None
    seen.probe = torch.zeros_like(seen.output, requires_grad=True)
    return out + seen.probe


def check_layers(layers: Sequence[Layer], what: str) -> list[Layer]:
    """The layers as a list, refused if there are none."""
    if not layers:
        raise ValueError(
            f"{what} has no attention layer that the audit knows; give a model of mirrormax.nets, a module with "
            "nn.MultiheadAttention, or one of transformers."
        )
    return list(layers)


class Adapter(ABC):
    """A model, its attention layers, and how to call it on a batch.

    To audit another make of model, write one of these and give it to :func:`~mirrormax.auditing.audit` instead.
    """

    causal = False  # whether it is a language model, which answers at every token
    looks_back = False  # whether tokens look back only, so that the last query is the one to ask about

    def __init__(self, model: nn.Module, form: str | None = None) -> None:
        self.model, self.form = model, form

    @classmethod
    @abstractmethod
    def knows(cls, model: nn.Module) -> bool:
        """Whether this adapter can read the model."""

    @abstractmethod
    def layers(self) -> list[Layer]:
        """The attention layers in the order in which they run."""

    def formed(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers in the form that was asked for."""
        asked = self.form
        return [replace(one, form=asked) if asked and isinstance(one, AttentionLayer) else one for one in layers]

    @abstractmethod
    def call(self, batch: Any) -> Any:
        """Run the model on a batch."""

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Whatever else a model needs while it is watched; undone on the way out."""
        yield

    def mask(self, batch: Any) -> Tensor | None:
        """True at tokens that are there, (B, T); None where all are."""
        return None

    def labels(self, batch: Any) -> Tensor | None:
        """The labels (B,) that came with a batch, if any."""
        return None

    def ids(self, batch: Any) -> Tensor | None:
        """Token numbers (B, T), for people to read; None where tokens are not words."""
        return None

    def has_head(self) -> bool:
        """Whether :meth:`logits` finds any, so that gradients are worth their price."""
        return False

    def logits(self, output: Any) -> Tensor | None:
        """Class logits (B, classes) in what :meth:`call` returned; None where the model has no such head."""
        return None


def inputs_and_labels(batch: Any, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
    """A batch given as a tensor, a pair (inputs, labels), or a mapping with one of ``names`` and maybe ``labels``."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        for name in names:
            if name in batch:
                return batch[name], batch.get("labels")
        raise ValueError(f"a batch has the keys {sorted(batch)}; it needs one of {', '.join(names)}.")
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    raise TypeError(
        f"a batch must be a tensor, a pair of tensors (inputs, labels) or a mapping, got {type(batch).__name__}."
    )
