"""What the audit asks of a model: its attention layers, how to call it on a batch, and how to watch it meanwhile.

Every head is one linear unknown. Row i has a query z̃_i, tokens x̃_it and logits x̃_itᵀ W z̃_i, in one of two forms.

**Token form.** A head with inputs x_t (keys, values) and z (query) computes

    logit_t = (W_K x_t + b_K)ᵀ (W_Q z + b_Q) / √d_h,    output = W_O Σ_t softmax(logit)_t (W_V x_t + b_V) + b_O.

What is constant in t does not move a softmax, so b_K drops out and x̃_t = x_t, z̃ = (z, 1),

    W = [W_Kᵀ W_Q, W_Kᵀ b_Q] / √d_h    of shape (d, d + 1),

or z̃ = z and W = W_Kᵀ W_Q/√d_h of shape (d, d) where there is no query bias. That is the paper's W.

**Query form.** With rotary positions, normalised queries or biases of position no fixed W of that kind exists. There
the keys are kept as they are and the map that makes queries is the unknown; see :mod:`mirrormax.auditing.query_form`.
It asks how near W_Q is to the max-margin map *for these keys*; its ratios cannot be compared with the token form's.

**Scores.** The paper scores a token by γ_t = y vᵀx_t, where v is the linear head behind the
attention. Behind a head of a deep model stands everything after it; to first order that is linear as well. With G the
gradient of the model's log-odds for a class at the layer's output (the query's row),

    γ_t = Gᵀ W_O W_V x_t,

how much the log-odds would rise per unit of attention moved to token t. The log-odds of class c are
logit_c − log Σ_{k≠c} exp(logit_k): shifting all logits does not change them, and for two classes they are the paper's
y · f. A model with a single output is scored by that output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    groups: int  # of heads that have their x̃ in common: head h is in group h · groups // H


class View(ABC):
    """One layer in one batch of B sequences: Q queries, T tokens (a learned sink is the last of them), H heads."""

    mask: Tensor  # (B, Q, T) True where a query may look
    gradient: Tensor | None  # of the model's answer at the layer's output; None without one
    sink: bool = False  # whether the last token is one that the layer has of its own
    exact: bool = False  # whether the model computes in float64

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

    @abstractmethod
    def new(self) -> Any:
        """An empty record of a pass."""


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


def check_finite(name: str, x: Tensor) -> None:
    """Refuse a layer that is given what is no number."""
    if not torch.isfinite(x).all():
        raise ValueError(f"layer {name} has numbers that are not finite; check the model's weights.")


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


class Watch:
    """A model under observation; use :func:`watching`."""

    def __init__(self, adapter: Adapter, layers: list[Layer], seen: list[Any]) -> None:
        self.adapter, self.layers, self.seen = adapter, layers, seen
        self.output: Any = None  # what the model answered to the last batch

    def run(self, batch: Any, score: Callable[[Any], Tensor | None] | None = None) -> list[View]:
        """One pass: a view of every layer, with gradients of Σ score(output) at their outputs if there is a score.

        ``score`` takes the model's output and returns one number per sequence, or None where there is none.
        """
        for seen in self.seen:
            seen.clear()
        batch = _ordinary(batch)
        with torch.inference_mode(False), torch.set_grad_enabled(score is not None):
            self.output = self.adapter.call(batch)
            total = None if score is None else score(self.output)
            gradients = self._gradients(total)
        mask = self.adapter.mask(batch)
        views = [layer.view(seen, mask, g) for layer, seen, g in zip(self.layers, self.seen, gradients, strict=True)]
        for seen in self.seen:
            seen.probe = None
        return views

    def _gradients(self, total: Tensor | None) -> list[Tensor | None]:
        if total is None or not total.requires_grad:
            return [None] * len(self.seen)
        probes = [seen.probe for seen in self.seen if seen.probe is not None]
        found = iter(torch.autograd.grad(total.sum(), probes, allow_unused=True))
        return [None if seen.probe is None else next(found) for seen in self.seen]


@contextmanager
def watching(adapter: Adapter, layers: list[Layer]) -> Iterator[Watch]:
    """Hook the layers and set the model to evaluation; whatever happens, undo all of it.

    Only forward hooks are added; parameters, buffers, gradients and each module's train/eval flag stay or come back.
    Parameters ask for no gradient meanwhile: only those at the layers' outputs are wanted, and they cost less alone.
    """
    modes = [(module, module.training) for module in adapter.model.modules()]
    trained = [parameter for parameter in adapter.model.parameters() if parameter.requires_grad]
    seen = [layer.new() for layer in layers]
    handles = []
    # torch's fused encoder path would go round the attention modules, and with them round the hooks.
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        nn.Module.eval(adapter.model)
        for parameter in trained:
            parameter.requires_grad_(False)
        with adapter.prepared():
            for layer, one in zip(layers, seen, strict=True):
                handles += layer.attach(one)
            yield Watch(adapter, layers, seen)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for handle in handles:
            handle.remove()
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes:
            module.training = training


def scorer(
    adapter: Adapter, head: Callable[[Any], Tensor] | None, labels: Tensor | None
) -> Callable[[Any], Tensor | None]:
    """From a model's output to log-odds (B,), or None where it has no head."""

    def score(output: Any) -> Tensor | None:
        logits = adapter.logits(output) if head is None else head(output)
        return None if logits is None else log_odds(logits, labels)

    return score


def log_odds(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Of each row's label, or of the class it predicts: logits (B, classes) to (B,)."""
    if logits.ndim != 2:
        raise ValueError(f"the head must give logits (batch, classes), got shape {tuple(logits.shape)}.")
    if logits.shape[1] == 1:
        return logits[:, 0]
    chosen = logits.argmax(-1) if labels is None else labels.to(logits.device).long()
    one = torch.nn.functional.one_hot(chosen, logits.shape[1]).bool()
    return logits[one] - logits.masked_fill(one, -torch.inf).logsumexp(-1)


def _ordinary(batch: Any) -> Any:
    """Tensors made in inference mode cannot take part in a pass with gradients; their copies can."""
    if isinstance(batch, Tensor):
        with torch.inference_mode(False):
            return batch.clone() if batch.is_inference() else batch
    if isinstance(batch, Mapping):
        return {name: _ordinary(part) for name, part in batch.items()}
    return type(batch)(_ordinary(part) for part in batch) if isinstance(batch, tuple | list) else batch
