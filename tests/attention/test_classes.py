"""Several classes and heads: gradients against autograd and mpmath, the best attention against its proof."""

import mpmath
import numpy as np
import pytest
import torch

from mirrormax.attention import (
    attention_weights,
    class_state,
    class_value_gradient,
    class_weight_gradient,
    effective_scores,
    is_locally_optimal,
    labelled,
    optimal_attention,
    outputs_of,
    predict_classes,
    risk,
    scaled_gradient,
    scaled_readout_gradient,
    token_scores,
)
from mirrormax.svm import att_svm

from .problems import dot, mpmath_entries, random_mask, random_problem, relative_error, saturated_problem


def several(*batch, heads=2, classes=3, n=4, T=5, d=6, seed=0, scale=0.3):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    y = torch.randint(0, classes, (*batch, n), generator=generator)
    return normal(n, T, d), y, normal(n, d), normal(heads, classes, d), scale * normal(heads, d, d)


def two_classes(y, v):
    """Labels ±1 and readouts v (..., d) as two classes of one head."""
    return ((y + 1) / 2).long(), torch.stack([-v / 2, v / 2], -2).unsqueeze(-3)


def evaluated(X, y, z, V, W, mask=None):
    """The risk, and its gradients in W and V, each with the logarithm of its scale."""
    state = class_state(X, z, W, mask)
    labels = labelled(outputs_of(state, V), y)
    return labels.loss.mean(-1), class_weight_gradient(state, labels, z, V), class_value_gradient(state, labels)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_autograd(masked):
    X, y, z, V, W = several(3)
    mask = random_mask(3, n=4, T=5) if masked else None
    V, W = V.requires_grad_(), W.requires_grad_()
    h = torch.einsum("bntd,bhde,bne->bhnt", X, W, z)
    h = h if mask is None else h.masked_fill(~mask[:, None], -torch.inf)
    f = torch.einsum("bhcd,bntd,bhnt->bnc", V, X, h.softmax(-1))
    losses = torch.nn.functional.cross_entropy(f.flatten(0, 1), y.flatten(), reduction="none").reshape(y.shape)
    losses.mean(-1).sum().backward()
    with torch.no_grad():
        loss, (in_W, W_scale), (in_V, V_scale) = evaluated(X, y, z, V, W, mask)
        in_W, in_V = in_W * W_scale.exp()[..., None, None], in_V * V_scale.exp()[..., None, None, None]
        torch.testing.assert_close(in_W, W.grad, rtol=0, atol=1e-14)
        torch.testing.assert_close(in_V, V.grad, rtol=0, atol=1e-14)
        torch.testing.assert_close(predict_classes(X, z, V, W, mask=mask), f)
        torch.testing.assert_close(loss, losses.mean(-1))


@pytest.mark.parametrize("log_rest", [-1.0, -40.0, -3000.0])
def test_two_classes_are_the_logistic_loss_at_any_saturation(log_rest):
    X, y, z, v, W = saturated_problem(log_rest)
    labels, V = two_classes(y, v)
    loss, (ours_W, W_scale), (ours_V, _) = evaluated(X, labels, z, V, W[None])
    in_W, in_v = scaled_gradient(X, y, z, v, W=W), scaled_readout_gradient(X, y, z, v, W=W)
    rounding = 1e-13 - 1e-15 * log_rest  # logits of 3000 have so many digits
    assert relative_error(ours_W[0], in_W.scaled) < rounding
    assert relative_error(ours_V[0, 1] - ours_V[0, 0], 2 * in_v.scaled) < rounding
    torch.testing.assert_close(W_scale[0], in_W.log_scale, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(loss, risk(X, y, z, v, W=W))


def test_gradients_keep_their_digits_where_attention_has_saturated():
    X, y, z, V, W = several(heads=1, n=2, T=3, d=3)
    first, second = torch.einsum("ntd,de,ne->nt", X, W[0], z).topk(2).values.unbind(-1)
    z = z * (100 / (first - second)).unsqueeze(-1)
    _, (ours, log_scale), _ = evaluated(X, y, z, V, W)
    with mpmath.workdps(60):
        tokens, queries, rows, weights = (mpmath_entries(t) for t in (X, z, V[0], W[0]))
        exact = mpmath.matrix(3, 3)
        for i in range(2):
            h = [dot(x, [dot(row, queries[i]) for row in weights]) for x in tokens[i]]
            s = [mpmath.exp(a - max(h)) for a in h]
            s = [a / mpmath.fsum(s) for a in s]
            attended = [dot(s, [x[a] for x in tokens[i]]) for a in range(3)]
            pi = [mpmath.exp(dot(row, attended)) for row in rows]
            pi = [a / mpmath.fsum(pi) for a in pi]
            push = [(int(y[i]) == c) - pi[c] for c in range(3)]
            g = [dot(push, [dot(row, x) for row in rows]) for x in tokens[i]]
            mean = dot(s, g)
            for a in range(3):
                pull = mpmath.fsum(s[t] * (g[t] - mean) * tokens[i][t][a] for t in range(3))
                for b in range(3):
                    exact[a, b] -= pull * queries[i][b] / 2
        factor = mpmath.exp(mpmath.mpf(log_scale.item()))
        assert factor < 1e-20  # autograd has nothing left here
        largest = max(abs(entry) for entry in exact)
        error = max(abs(factor * mpmath.mpf(ours[0, a, b].item()) - exact[a, b]) for a in range(3) for b in range(3))
        assert error / largest < 1e-11


def test_the_effective_scores_of_two_classes_are_the_papers():
    X, y, _, v, _ = random_problem(2)
    labels, V = two_classes(y, v)
    outputs = torch.randn(2, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(effective_scores(X, labels, V[:, 0], outputs), token_scores(X, y, v))
    mask = random_mask(2)
    assert (effective_scores(X, labels, V[:, 0], outputs, mask=mask)[~mask] == -torch.inf).all()


@pytest.mark.parametrize(("classes", "size"), [(2, 1.0), (3, 0.1), (3, 3.0), (6, 30.0), (3, 1e5)])
def test_the_best_attention_has_its_proof(classes, size):
    X, y, _, V, _ = several(3, heads=1, classes=classes, n=20, T=7)
    V = size * V[:, 0]
    best = optimal_attention(X, y, V)
    s = best.s.clone().requires_grad_()
    f = torch.einsum("bcd,bntd,bnt->bnc", V, X, s)
    wrong = torch.nn.functional.one_hot(y, classes).bool()
    phi = (f - f.gather(-1, y[..., None])).masked_fill(wrong, -torch.inf).logsumexp(-1)
    phi.sum().backward()
    gap = ((s * s.grad).sum(-1) - s.grad.amin(-1)).detach()  # convexity: φ is at most this far above its least value
    scores = float((X @ V.mT[:, None]).abs().max())
    assert gap.max() < 1e-10 * scores
    torch.testing.assert_close(gap, best.gap, rtol=0, atol=1e-10 * scores)
    torch.testing.assert_close(best.loss, torch.nn.functional.softplus(phi).detach())
    torch.testing.assert_close(best.s.sum(-1), torch.ones(3, 20, dtype=torch.float64))
    assert (best.s >= 0).all()
    assert (best.s[~best.face] == 0).all()
    if classes == 2:
        assert best.single.all()
    else:
        assert not best.single.all() or size < 1


def test_a_token_that_is_best_alone_has_the_least_loss_of_its_own():
    X, y, _, V, _ = several(heads=1, classes=4, n=200, T=6)
    best = optimal_attention(X, y, V[0])
    own = torch.nn.functional.cross_entropy((X @ V[0].T).flatten(0, 1), y.repeat_interleave(6), reduction="none")
    single = best.single
    assert 0 < single.sum() < 200
    assert (best.s.argmax(-1)[single] == own.reshape(200, 6).argmin(-1)[single]).all()


def test_many_tokens_and_equal_ones_have_their_proof_too():
    X, y, _, V, _ = several(heads=1, classes=5, n=6, T=100)
    assert optimal_attention(X, y, 3 * V[0]).gap.max() < 1e-9
    X[:, 50:] = X[:, :50]
    twice = optimal_attention(X, y, 3 * V[0])
    assert twice.gap.max() < 1e-9
    torch.testing.assert_close(twice.loss, optimal_attention(X[:, :50], y, 3 * V[0]).loss)
    assert optimal_attention(X, y, 0 * V[0]).gap.max() == 0


def test_masks_and_offsets_of_the_best_attention():
    X, y, _, V, _ = several(heads=1, n=30)
    mask = random_mask(n=30, T=5)
    best = optimal_attention(X, y, V[0], mask=mask)
    assert (best.s[~mask] == 0).all()
    assert not best.face[~mask].any()
    garbage = torch.where(mask[..., None], X, torch.nan)
    torch.testing.assert_close(optimal_attention(garbage, y, V[0], mask=mask).s, best.s, rtol=0, atol=1e-9)
    # A second head that attends to one vector is the same as adding it to every token.
    shift = torch.ones(6, dtype=torch.float64)
    moved = optimal_attention(X, y, V[0], offset=(V[0] @ shift).expand(30, 3))
    torch.testing.assert_close(moved.loss, optimal_attention(X + shift, y, V[0]).loss)


def faces(seed=0, p=2):
    X, y, z, V, _ = several(heads=1, n=4, T=6, d=8, seed=seed)
    face = optimal_attention(X, y, V[0]).face
    return X, y, z, V[0], face, att_svm(X, z, keep=face, p=p).W


def test_the_best_faces_are_locally_optimal_and_others_are_not():
    X, y, z, V, face, W = faces()
    assert (face.sum(-1) > 1).any()
    assert is_locally_optimal(X, y, z, V=V, keep=face, W=W)
    assert is_locally_optimal(X, y, z, V=V, keep=face, support=~face)
    worst = effective_scores(X, y, V, (X[:, 0] @ V.T)).argmin(-1)
    verdict = is_locally_optimal(X, y, z, V=V, alpha=worst, W=att_svm(X, z, worst, p=2).W)
    assert not verdict
    assert verdict.offending


def test_a_token_kept_without_use_and_one_left_out_are_named():
    X, y, z, V, face, _ = faces()
    more = face.clone()
    more[0, int((~face[0]).int().argmax())] = True
    assert is_locally_optimal(X, y, z, V=V, keep=more, support=~more).offending == [
        (0, int((more & ~face)[0].int().argmax()))
    ]
    shared = int((face.sum(-1) > 1).int().argmax())
    fewer = face.clone()
    fewer[shared, int(face[shared].int().argmax())] = False
    assert shared in {sample for sample, _ in is_locally_optimal(X, y, z, V=V, keep=fewer, support=~fewer).offending}


def test_with_two_classes_local_optimality_is_the_papers():
    X, y, z, v, _ = random_problem(n=3, T=4, d=5)
    labels, V = two_classes(y, v)
    for token in range(4):
        alpha = torch.full((3,), token)
        W = att_svm(X, z, alpha, p=3).W
        a = is_locally_optimal(X, y, z, v, W, alpha)
        b = is_locally_optimal(X, labels, z, V=V[0], alpha=alpha, W=W)
        assert bool(a) == bool(b)
        assert a.offending == b.offending


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"V": np.ones((2, 1, 6))}, r"V must have a row for each of at least two classes, got the shape \(2, 1, 6\)"),
        ({"V": np.ones((3, 6))}, r"V must have the shape \(..., H, C, d\), got \(3, 6\), which has too few dimensions"),
        ({"W": np.ones((3, 6, 6))}, r"W must have the shape \(..., H, d, d\) = \(..., 2, 6, 6\)"),
        ({"z": np.full((4, 6), np.nan)}, "z holds nan"),
    ],
)
def test_bad_input_is_named(change, message):
    X, _, z, V, W = (t.numpy() for t in several())
    with pytest.raises(ValueError, match=message):
        predict_classes(**{"X": X, "z": z, "V": V, "W": W, **change})
    with pytest.raises(ValueError, match="y must hold the classes 0 to 2"):
        optimal_attention(X, [0, 3, 0, 0], V[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": np.ones(8)}, "needs v for labels ±1, or V for several classes, got both"),
        ({"V": None}, "got neither"),
        ({"V": None, "v": np.ones(8)}, "keep and offset are for several classes"),
        ({"alpha": np.zeros(4, int)}, "or keep, several of them, got both"),
        ({"W": None}, "support, got neither"),
        ({"keep": np.zeros((4, 6), bool)}, "keep leaves sample 0 without a token that is present"),
    ],
)
def test_bad_questions_of_local_optimality_are_named(change, message):
    X, y, z, V, face, W = (t.numpy() for t in faces())
    with pytest.raises(ValueError, match=message):
        is_locally_optimal(**{"X": X, "y": y, "z": z, "V": V, "keep": face, "W": W, **change})


def test_attention_of_one_head_is_that_of_the_binary_model():
    X, _, z, V, W = several(heads=1)
    s = attention_weights(X, z, W=W[0])
    torch.testing.assert_close(predict_classes(X, z, V, W), torch.einsum("nt,ntd,cd->nc", s, X, V[0]))
