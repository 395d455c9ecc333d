"""Next-token prediction with one layer of attention: which tokens win for good, and by how much the others may.

Vocabulary E = (e_1 … e_K) in R^d. A sample is a prefix x_1 … x_T that ends with the token k, its query is e_k, and the
next token y occurs in it (no attention could predict it otherwise). The model gives y the attention of all its copies,
ŷ(y) = Σ_{t: x_t = y} s_t, and the loss −log ŷ(y) is convex in W (Li et al. 2024, for p = 2).

**Graph**, one per last token k: an edge y → x for every x ≠ y in a prefix that ends with k, y its next token. Edges
*between* strongly connected components are preferences without contradiction; edges *within* one lie on a cycle.

**Graph SVM**: min ‖W‖_p s.t. (e_y − e_x)ᵀ W e_k ≥ 1 for edges between components, = 0 for edges within.

**Finite part**: within a component the logits h minimise Σ_i [log Σ_{t in the component} e^{h_t} − h_{y_i}], the
likelihood of Luce's choice model, which is strictly convex up to a constant because the component is strongly
connected. Training turns W to the graph SVM while (e_y − e_x)ᵀ W e_k → h_y − h_x within components (a conjecture for
p ≠ 2, with numbers in ``mirrormax reproduce next_token``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from mirrormax._arrays import as_array, as_tensor
from mirrormax.geometry import Potential
from mirrormax.svm.api import att_svm
from mirrormax.svm.rows import Array, Bools, Index
from mirrormax.svm.solution import Solution

Sample = tuple[Sequence[int], int]  # a prefix, and the token that follows it
NEWTON_STEPS = 100
STATIONARY = 1e-13


class PriorityGraph(NamedTuple):
    """Edges (m, 3) as rows (k, y, x), whether each is ``within`` a component, and ``component`` (K, K) of j at k."""

    edges: Index
    within: Bools
    component: Index

    @property
    def cyclic(self) -> bool:
        """Whether some component has two tokens: then parts of W stay finite."""
        return bool(self.within.any())


@dataclass(frozen=True, eq=False)
class GraphSolution:
    """The graph SVM of some samples.

    ``W`` (d, d)         its weights, at minimum margin 1
    ``solution``         the certificate; row i of its arrays is edge i, in column 1
    ``graph``            the :class:`PriorityGraph`
    ``odds`` (m,)        h_y − h_x, the finite log-odds of Luce's model at edges within a component; NaN at the others
    """

    W: Array
    solution: Solution
    graph: PriorityGraph
    odds: Array


def causal_samples(sequence: Sequence[int]) -> list[Sample]:
    """Every (prefix, next token) of a sequence whose next token occurs in the prefix.

    >>> causal_samples([3, 1, 3, 2])
    [([3, 1], 3)]
    """
    tokens = [int(token) for token in sequence]
    return [(tokens[:t], tokens[t]) for t in range(1, len(tokens)) if tokens[t] in tokens[:t]]


def priority_graph(samples: Sequence[Sample], size: int) -> PriorityGraph:
    """The graph of a vocabulary of ``size`` tokens, for every last token, and its strongly connected components.

    >>> graph = priority_graph([([0, 1, 2], 0), ([1, 0, 2], 1)], 3)
    >>> graph.edges[graph.within].tolist()  # 0 beats 1 and 1 beats 0, both before the last token 2
    [[2, 0, 1], [2, 1, 0]]
    """
    checked = check_samples(samples, size)
    triples = sorted({(tokens[-1], y, x) for tokens, y in checked for x in tokens if x != y})
    edges: Index = np.array(triples, dtype=np.intp).reshape(-1, 3)
    component: Index = np.tile(np.arange(size), (size, 1))
    for k in np.unique(edges[:, 0]):
        _, y, x = edges[edges[:, 0] == k].T
        adjacency = csr_matrix((np.ones(len(y)), (y, x)), shape=(size, size))
        component[k] = connected_components(adjacency, directed=True, connection="strong")[1]
    k, y, x = edges.T
    return PriorityGraph(edges, component[k, y] == component[k, x], component)


def luce_strengths(samples: Sequence[Sample], graph: PriorityGraph) -> Array:
    """h (K, K): logits of the tokens of each component under each last token, of mean 0 there, by maximum likelihood.

    >>> import numpy as np
    >>> samples = [([0, 1, 2], 0)] * 3 + [([0, 1, 2], 1)]
    >>> h = luce_strengths(samples, priority_graph(samples, 3))
    >>> float(np.exp(h[2, 0] - h[2, 1]).round(9))  # seen 3 : 1
    3.0
    """
    size = len(graph.component)
    checked, h = check_samples(samples, size), np.zeros((size, size))
    for k in range(size):
        labels, counts = np.unique(graph.component[k], return_counts=True)
        for label in labels[counts > 1]:
            members = np.flatnonzero(graph.component[k] == label)
            seen = [(tokens, y) for tokens, y in checked if tokens[-1] == k and y in members]
            times = np.array([np.bincount(tokens, minlength=size)[members] for tokens, _ in seen], dtype=np.float64)
            h[k, members] = _luce(times, np.searchsorted(members, [y for _, y in seen]))
    return h


def graph_svm(
    embeddings: ArrayLike | Tensor,
    samples: Sequence[Sample],
    *,
    p: float | Potential = 2,
    tol: float = 1e-9,
    throw: bool = True,
) -> GraphSolution:
    """min ‖W‖_p s.t. (e_y − e_x)ᵀ W e_k ≥ 1 for edges between components, = 0 within; with the finite log-odds.

    Args:
        embeddings: the vocabulary, ``(K, d)``, no two tokens alike.
        samples: pairs of a prefix (token ids) and the next token, which occurs in it; see :func:`causal_samples`.
        p: as for :func:`att_svm`.
        tol: as for :func:`att_svm`.
        throw: as for :func:`att_svm`; linearly independent embeddings have a W.

    >>> import numpy as np
    >>> answer = graph_svm(np.eye(3), [([0, 1, 2], 0), ([1, 0, 2], 1)], p=2)
    >>> answer.W.round(6) + 0.0  # 0 and 1 share what follows 2, which comes after both
    array([[ 0.      ,  0.      ,  0.333333],
           [ 0.      ,  0.      ,  0.333333],
           [ 0.      ,  0.      , -0.666667]])
    """
    E = vocabulary(embeddings)  # the answer is numpy's, like the graph
    graph = priority_graph(samples, len(E))
    if graph.within.all():
        raise ValueError("no edge runs between two components, so that no token wins for good and W stays finite.")
    k, y, x = graph.edges.T
    keep = np.stack([np.ones(len(k), dtype=bool), graph.within], axis=-1)
    solution = att_svm(np.stack([E[y], E[x]], axis=1), E[k], keep=keep, p=p, tol=tol, throw=throw)
    h = luce_strengths(samples, graph)
    return GraphSolution(np.asarray(solution.W), solution, graph, np.where(graph.within, h[k, y] - h[k, x], np.nan))


def vocabulary(embeddings: ArrayLike | Tensor) -> Array:
    """Embeddings (K, d) as float64, finite and all different."""
    E = np.asarray(as_array(as_tensor("embeddings", embeddings).double()))
    if E.ndim != 2 or not np.isfinite(E).all():
        raise ValueError(f"embeddings must be a finite (K, d) array, got the shape {E.shape}.")
    _, first, counts = np.unique(E, axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        twice = np.flatnonzero((E[first[counts > 1][0]] == E).all(1))[:2]
        raise ValueError(f"tokens {twice[0]} and {twice[1]} have the same embedding; no attention tells them apart.")
    return E


def check_samples(samples: Sequence[Sample], size: int) -> list[tuple[list[int], int]]:
    """Samples as lists of whole numbers below ``size``, each next token in its prefix."""
    checked = [([int(token) for token in tokens], int(y)) for tokens, y in samples]
    if not checked:
        raise ValueError("samples is empty; give pairs of a prefix and its next token, as causal_samples makes them.")
    for i, (tokens, y) in enumerate(checked):
        wrong = next((token for token in [*tokens, y] if not 0 <= token < size), None)
        if wrong is not None:
            raise ValueError(f"sample {i} has the token {wrong}, but the vocabulary has {size} tokens.")
        if y not in tokens:
            raise ValueError(f"the next token {y} of sample {i} is not in its prefix; leave the sample out.")
    return checked


def _luce(times: Array, won: npt.NDArray[Any]) -> Array:
    """argmin Σ_i log(times_i · e^h) − h_{won_i}, of mean 0, by Newton's method with halving."""
    size = times.shape[1]
    h = np.zeros(size)

    def value(h: Array) -> float:
        return float((np.log(times @ np.exp(h - h.max())) + h.max() - h[won]).sum())

    for _ in range(NEWTON_STEPS):
        share = times * np.exp(h - h.max())
        share /= share.sum(1, keepdims=True)
        gradient = share.sum(0) - np.bincount(won, minlength=size)
        if np.abs(gradient).max() < STATIONARY * len(won):
            break
        hessian = np.diag(share.sum(0)) - share.T @ share
        step = np.linalg.solve(hessian + 1 / size, -gradient)  # what is added fixes the mean of h
        length, before = 1.0, value(h)
        while value(h + length * step) > before + 1e-4 * length * (gradient @ step) + 1e-15 and length > 1e-8:
            length /= 2
        h = h + length * step
    return np.asarray(h - h.mean())
