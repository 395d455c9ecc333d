"""Training on next tokens, against a loop with autograd and against the graph SVM."""

import numpy as np
import pytest
import torch

from mirrormax.dynamics import simulate_next_token
from mirrormax.geometry import directional_divergence
from mirrormax.svm import graph_svm

E = np.random.default_rng(0).standard_normal((5, 6))
ACYCLIC = [([0, 1, 2, 4], 0), ([1, 2, 4], 1), ([3, 3, 0, 3], 3)]
CYCLIC = [*ACYCLIC, ([0, 1, 4], 1), ([0, 1, 2, 4], 0)]


def loss(W, samples):
    total = 0.0
    for tokens, y in samples:
        s = torch.softmax(torch.tensor(E[tokens]) @ W @ torch.tensor(E[tokens[-1]]), -1)
        total = total - s[[t == y for t in tokens]].sum().log()
    return total / len(samples)


@pytest.mark.parametrize("p", [1.5, 2])
@pytest.mark.parametrize("normalize", [None, "tensor"])
def test_steps_are_those_of_autograd(p, normalize):
    run = simulate_next_token(E, ACYCLIC, p=p, lr=0.2, steps=5, normalize=normalize, record="all")
    u = torch.zeros(6, 6, dtype=torch.float64)
    for k in range(6):
        W = (u.sign() * u.abs() ** (1 / (p - 1))).requires_grad_()
        value = loss(W, ACYCLIC)
        value.backward()
        np.testing.assert_allclose(run.W[k], W.detach(), atol=1e-12)
        assert run.loss[k] == pytest.approx(value.item())
        g = W.grad
        u = u - 0.2 * (g / g.abs().pow(p / (p - 1)).sum() ** (1 - 1 / p) if normalize else g)


def test_normalised_runs_turn_to_the_graph_svm():
    run = simulate_next_token(E, ACYCLIC, p=2, lr=0.1, steps=400, normalize="tensor", record=[20, 400])
    D = [float(directional_divergence(graph_svm(E, ACYCLIC, p=2).W, W, 2)) for W in run.W[1:]]
    assert D[1] < 0.01 < D[0] * 10
    assert np.isfinite(run.W).all()


def test_log_odds_of_a_cycle_settle_at_those_of_luce():
    run = simulate_next_token(E, CYCLIC, p=2, lr=0.3, steps=1500, record=[1500])
    answer = graph_svm(E, CYCLIC, p=2)
    k, y, x = answer.graph.edges[answer.graph.within].T
    reached = np.einsum("md,de,me->m", E[y] - E[x], run.W[-1], E[k])
    np.testing.assert_allclose(reached, answer.odds[answer.graph.within], atol=0.1)


def test_normalised_steps_are_refused_on_cycles_with_the_reason():
    with pytest.raises(ValueError, match=r"normalize=.* does not settle .* has a cycle"):
        simulate_next_token(E, CYCLIC, normalize="tensor")


def test_a_start_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"W0 must have the shape \(d, d\) with d = 6"):
        simulate_next_token(E, ACYCLIC, W0=np.zeros((2, 2)))
