"""Batches in pieces against whole batches."""

import pytest
import torch
from torch.nn import functional

from mirrormax.nets import TransformerClassifier, TransformerConfig
from mirrormax.training import pieces
from mirrormax.training.pieces import loss_and_logits

LABELS = torch.arange(9) % 2


def model_and_batch(**choices):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=30, max_length=16, dim=8, hidden=12, blocks=2, heads=2, dropout=0.0)
    model = TransformerClassifier(config, **choices).double()
    ids = torch.randint(1, 30, (9, 16))
    for row, length in enumerate((16, 3, 5, 5, 2, 9, 1, 4, 4)):
        ids[row, length:] = 0
    return model, ids


def gradients(model):
    found = [parameter.grad for parameter in model.parameters()]
    return [None if grad is None else grad.to_dense().clone() for grad in found]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 40, 100, 1000])
def test_loss_answers_and_gradients_are_those_of_the_whole_batch(tokens, sparse, reduction, monkeypatch):
    model, ids = model_and_batch(sparse_embedding=sparse)
    whole = model(ids)
    expected = functional.cross_entropy(whole, LABELS, reduction=reduction)
    (3 * expected).backward()
    wanted = gradients(model)
    model.zero_grad()
    monkeypatch.setattr(pieces, "TOKENS", tokens)
    loss, logits = loss_and_logits(model, ids, LABELS, reduction)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits, whole.detach())
    assert not logits.requires_grad
    for grad, want in zip(gradients(model), wanted, strict=True):
        torch.testing.assert_close(grad, want)


def test_frozen_parameters_get_no_gradient_and_evaluation_makes_none(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 40)
    model, ids = model_and_batch()
    model.head.requires_grad_(False)
    loss_and_logits(model, ids, LABELS)[0].backward()
    assert model.head.weight.grad is None
    assert model.tokens.weight.grad is not None
    with torch.no_grad():
        loss, _ = loss_and_logits(model, ids, LABELS)
    assert not loss.requires_grad


def test_gradients_add_up_over_batches(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 40)
    model, ids = model_and_batch()
    loss_and_logits(model, ids, LABELS)[0].backward()
    once = gradients(model)
    loss_and_logits(model, ids, LABELS)[0].backward()
    for grad, single in zip(gradients(model), once, strict=True):
        torch.testing.assert_close(grad, 2 * single)


def test_pieces_are_small_and_cut_to_their_longest_text(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 48)
    model, ids = model_and_batch()
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    loss_and_logits(model, ids, LABELS)
    assert seen == [(3, 16), (3, 9), (3, 4)]


def test_texts_of_padding_alone_keep_one_token(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 4)
    seen = []
    model = torch.nn.Linear(1, 2)
    model.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)) or args[0].float())
    loss_and_logits(model, torch.zeros(3, 4, dtype=torch.int64), LABELS[:3])
    assert seen == [(1, 1)] * 3


def test_images_go_through_whole(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 1)
    seen = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    model.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    loss_and_logits(model, torch.zeros(4, 3, 2, 2), LABELS[:4])[0].backward()
    assert seen == [(4, 3, 2, 2)]
