"""Next-token prediction by ℓp mirror descent: W trained on prefixes and the tokens that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._checks import number
from mirrormax.dynamics.recording import record_steps
from mirrormax.geometry import Lp, as_potential
from mirrormax.svm import Sample, check_samples, priority_graph, vocabulary


class NextTokenRun(NamedTuple):
    """``steps`` (R,) recorded, ``W`` (R, d, d) and the mean ``loss`` (R,) there."""

    steps: npt.NDArray[np.int64]
    W: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]


def simulate_next_token(
    embeddings: ArrayLike | Tensor,
    samples: Sequence[Sample],
    *,
    p: float | Lp = 2,
    lr: float = 0.1,
    steps: int = 1000,
    normalize: Literal["tensor"] | None = None,
    W0: ArrayLike | None = None,
    record: Literal["log", "all"] | int | ArrayLike | None = None,
) -> NextTokenRun:
    """Minimise −log Σ_{t: x_t = y} s_t, s = σ(X W e_k), by ∇ψ(W⁺) = ∇ψ(W) − η∇L(W), or normalised by ‖∇L‖_*.

    With r_t = (x_t − e_y)ᵀ W e_k over the tokens t other than y, and m copies of y, s_t = e^{r_t}/(m + Σ e^r) and
    ∇L = (1/n) Σ_i Σ_t s_it (x_it − e_y) e_kᵀ: relative to the right token, so that nothing cancels. W turns to the
    :func:`~mirrormax.svm.graph_svm`.

    Normalised steps raise ValueError where the priority graph has a cycle. There the gradient of the finite part never
    vanishes against that of the margins, so that a step of fixed length makes it rattle by about η for ever, while the
    margins grow like log k only.

    Args:
        embeddings: the vocabulary, ``(K, d)``.
        samples: pairs of a prefix (token ids) and the next token, which occurs in it.
        p: the exponent.
        lr: the step size η.
        steps: how many updates.
        normalize: ``"tensor"`` divides the gradient by its dual norm; for graphs without cycles.
        W0: the start ``(d, d)``; zero if not given.
        record: as for :func:`simulate`.
    """
    E, psi = vocabulary(embeddings), as_potential(p)
    if not isinstance(psi, Lp):
        raise ValueError(f"p must be a number or Lp(p), got {p!r}.")
    if normalize not in (None, "tensor"):
        raise ValueError(f"normalize must be None or 'tensor', got {normalize!r}.")
    checked, rate = check_samples(samples, len(E)), number("lr", lr, above=0.0)
    if normalize and priority_graph(samples, len(E)).cyclic:
        raise ValueError(
            "normalize='tensor' does not settle on these samples: their priority graph has a cycle, whose log-odds "
            "stay finite and rattle under steps of fixed length; use normalize=None."
        )
    longest, embedded = max(len(tokens) for tokens, _ in checked), torch.from_numpy(E)
    y = torch.tensor([y for _, y in checked])
    prefixes = torch.tensor([[*tokens, *[y] * (longest - len(tokens))] for tokens, y in checked])
    offsets, other = embedded[prefixes] - embedded[y].unsqueeze(1), prefixes != y.unsqueeze(1)
    queries = embedded[[tokens[-1] for tokens, _ in checked]]
    lengths = torch.tensor([len(tokens) for tokens, _ in checked])
    log_copies = (lengths - other.sum(1)).double().log()
    start = np.zeros((E.shape[1],) * 2) if W0 is None else np.asarray(W0, dtype=np.float64)
    if start.shape != (E.shape[1],) * 2:
        raise ValueError(f"W0 must have the shape (d, d) with d = {E.shape[1]}, got {start.shape}.")
    u, grid, kept = psi.mirror_map(torch.from_numpy(start.copy())), record_steps(record, steps), []
    for k in range(steps + 1):
        W = psi.inverse_map(u)
        r = (offsets @ (queries @ W.T).unsqueeze(-1)).squeeze(-1).masked_fill(~other, -torch.inf)
        log_total = torch.logsumexp(torch.cat([log_copies[:, None], r], -1), -1)
        if k in grid:
            kept.append((k, W.numpy().copy(), float((log_total - log_copies).mean())))
        log_s = r - log_total[:, None]
        scale = log_s.max() if normalize else torch.tensor(0.0, dtype=torch.float64)
        g = torch.einsum("nt,ntd,ne->de", torch.exp(log_s - scale), offsets, queries) / len(queries)
        u = u - rate * (g / psi.dual_norm(g) if normalize else g)
    arrays = [np.array(part) for part in zip(*kept, strict=True)]
    return NextTokenRun(*arrays)
