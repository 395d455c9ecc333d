"""The plain way is no straw man: it gives what ours gives. Times are nobody's business here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from mirrormax.bench import training
from mirrormax.bench.optimizer import plain_step
from mirrormax.bench.training import PlainClassifier
from mirrormax.data import TextData, Texts
from mirrormax.nets import TransformerClassifier, TransformerConfig
from mirrormax.optim import MirrorDescent

CONFIG = TransformerConfig(vocab_size=50, max_length=12, dim=8, hidden=16, blocks=2, heads=2, dropout=0.0)


@pytest.fixture(params=[2, 3], ids=["two classes", "three classes"])
def both(request):
    torch.manual_seed(0)
    ours = TransformerClassifier(replace(CONFIG, classes=request.param), sparse_embedding=True)
    plain = PlainClassifier(ours.config)
    plain.load_state_dict(ours.state_dict())
    ids = torch.randint(1, 50, (6, 9))
    for row, length in enumerate((9, 4, 7, 9, 3, 5)):
        ids[row, length:] = 0
    labels = torch.arange(6) % request.param
    losses = [functional.cross_entropy(model(ids), labels, reduction="sum") for model in (ours, plain)]
    for loss in losses:
        loss.backward()
    return ours, plain, losses


def dense(grad):
    return grad.to_dense() if grad.is_sparse else grad


def test_both_ways_have_the_same_loss_and_gradients(both):
    ours, plain, losses = both
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    assert ours.tokens.weight.grad.is_sparse
    assert not plain.tokens.weight.grad.is_sparse
    for (name, one), (same, other) in zip(ours.named_parameters(), plain.named_parameters(), strict=True):
        assert name == same
        torch.testing.assert_close(dense(one.grad), other.grad, rtol=1e-5, atol=1e-5)


def test_both_ways_take_the_same_step(both):
    ours, plain, _ = both
    before = plain.head.weight.clone()
    MirrorDescent(ours.parameters(), lr=1e-3, p=1.5).step()
    plain_step(plain.parameters(), 1.5, 1e-3)()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert not torch.equal(plain.head.weight, before)


def test_the_bench_tells_the_ratio_and_the_optimizers_share(monkeypatch, capsys):
    words = np.array(["good", "bad", "film", "plot", "a", "the", "slow", "bright"])
    drawn = np.random.default_rng(0)
    texts = tuple(" ".join(drawn.choice(words, drawn.integers(2, 30))) for _ in range(40))
    data = TextData("tiny", ("0", "1"), Texts(texts, np.arange(40) % 2), None)
    sizes = {"vocab_size": 100, "max_length": 32, "dim": 8, "hidden": 8, "blocks": 1, "heads": 1, "batch_size": 4}
    monkeypatch.setattr(training, "load_text", lambda *_: data)
    monkeypatch.setattr(training, "PAPER", replace(training.PAPER, **sizes))
    monkeypatch.delenv("MIRRORMAX_DATA", raising=False)
    batches, _, source = training.imdb_batches(None)
    lengths = [ids.shape[1] for ids, _ in batches]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert "learnt" in source
    training.main()
    told = capsys.readouterr().out
    assert "10 batches of 4 IMDb reviews" in told
    assert "times as many tokens a second (goal 4.5)" in told
    assert "of a step in the median (goal at most 5%)" in told
