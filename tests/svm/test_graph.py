"""The graph SVM of next-token prediction."""

import numpy as np
import pytest
from helpers import norm
from scipy.optimize import minimize

from mirrormax.svm import att_svm, causal_samples, graph_svm, luce_strengths, priority_graph


def embeddings(seed, size=6, d=8):
    E = np.random.default_rng(seed).standard_normal((size, d))
    return E / np.linalg.norm(E, axis=1, keepdims=True)


CYCLIC = [([0, 1, 2, 5], 0), ([1, 0, 3, 5], 1), ([0, 2, 4, 5], 2), ([3, 4, 5], 3), ([1, 2, 0], 0)]


def test_edges_go_from_the_next_token_to_every_other_and_cycles_are_components():
    graph = priority_graph(CYCLIC, 6)
    expected = {(k[-1], y, x) for k, y in CYCLIC for x in k if x != y}
    assert {tuple(edge) for edge in graph.edges.tolist()} == expected
    assert graph.cyclic
    within = {tuple(edge) for edge in graph.edges[graph.within].tolist()}
    assert within == {(5, 0, 1), (5, 0, 2), (5, 1, 0), (5, 2, 0)}
    assert not priority_graph(CYCLIC[3:], 6).cyclic


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_margins_across_components_and_equalities_within(p):
    E = embeddings(0)
    answer = graph_svm(E, CYCLIC, p=p)
    k, y, x = answer.graph.edges.T
    rows = np.stack([np.outer(E[a] - E[b], E[c]).ravel() for c, a, b in answer.graph.edges])
    values, within = rows @ answer.W.ravel(), answer.graph.within
    assert np.abs(values[within]).max() < 1e-9
    assert values[~within].min() == pytest.approx(1.0)
    lam, nu = answer.solution.dual[:, 1], answer.solution.nu[:, 1]
    lower = lam.sum() / norm(lam @ rows + nu @ rows, p / (p - 1))
    assert 1 - lower / norm(answer.W, p) <= 1e-9
    assert np.isnan(answer.odds[~within]).all()
    assert len(k) == len(y) == len(x) == len(answer.odds)


def test_without_cycles_it_is_the_attention_svm_of_the_edges():
    E, samples = embeddings(1), CYCLIC[3:]
    answer = graph_svm(E, samples, p=1.5)
    k, y, x = answer.graph.edges.T
    plain = att_svm(np.stack([E[y], E[x]], axis=1), E[k], np.zeros(len(k), dtype=int), p=1.5)
    np.testing.assert_allclose(answer.W, plain.W, atol=1e-5)


@pytest.mark.parametrize("counts", [(3, 1), (2, 5)])
def test_two_tokens_seen_so_often_have_the_log_of_that_ratio(counts):
    a, b = counts
    samples = [([0, 1, 2], 0)] * a + [([0, 1, 2], 1)] * b
    answer = graph_svm(embeddings(2), samples)
    first = np.flatnonzero((answer.graph.edges == [2, 0, 1]).all(1))[0]
    assert answer.odds[first] == pytest.approx(np.log(a / b))


def test_strengths_are_the_maximum_of_the_likelihood():
    samples = [([0, 1, 2, 5], 0), ([1, 0, 2, 5], 1), ([0, 2, 2, 5], 2), ([0, 1, 5], 0), ([1, 2, 5], 2)]
    h = luce_strengths(samples, priority_graph(samples, 6))[5, :3]

    def loss(free):
        logits = np.array([0.0, *free])
        total = 0.0
        for tokens, y in samples:
            seen = [t for t in tokens if t < 3]
            total += np.log(np.exp(logits[seen]).sum()) - logits[y]
        return total

    found = minimize(loss, np.zeros(2), tol=1e-12).x
    np.testing.assert_allclose(h - h[0], [0.0, *found], atol=1e-5)


def test_every_prefix_whose_next_token_occurred_is_a_sample():
    assert causal_samples([1, 2, 1, 1, 3, 2]) == [([1, 2], 1), ([1, 2, 1], 1), ([1, 2, 1, 1, 3], 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3), []), "samples is empty"),
        ((np.eye(3), [([0, 4], 0)]), "sample 0 has the token 4, but the vocabulary has 3 tokens"),
        ((np.eye(3), [([0, 1], 2)]), "the next token 2 of sample 0 is not in its prefix"),
        ((np.ones((3, 2)), [([0, 1], 0)]), "tokens 0 and 1 have the same embedding"),
        ((np.eye(3), [([0, 1, 2], 0), ([0, 1, 2], 1), ([0, 1, 2], 2)]), "no edge runs between two components"),
        ((np.ones(3), [([0, 1], 0)]), r"embeddings must be a finite \(K, d\) array"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        graph_svm(*arguments)
