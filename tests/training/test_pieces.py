"""Batches in pieces against whole batches."""

import pytest
import torch
from torch.nn import functional

from mirrormax.nets import TransformerClassifier, TransformerConfig
from mirrormax.training import pieces
from mirrormax.training.pieces import in_pieces


def model_and_batch():
    torch.manual_seed(0)
    model = TransformerClassifier(
        TransformerConfig(vocab_size=30, max_length=16, dim=8, hidden=12, blocks=2, heads=2, dropout=0.0)
    ).double()
    ids = torch.randint(1, 30, (9, 16))
    for row, length in enumerate((16, 3, 5, 5, 2, 9, 1, 4, 4)):
        ids[row, length:] = 0
    return model, ids


@pytest.mark.parametrize("tokens", [1, 16, 40, 100, 1000])
def test_answers_and_gradients_are_those_of_the_whole_batch(tokens, monkeypatch):
    model, ids = model_and_batch()
    labels = torch.arange(9) % 2
    monkeypatch.setattr(pieces, "TOKENS", tokens)
    found = []
    for answer in (model, lambda ids: in_pieces(model, ids)):
        model.zero_grad()
        logits = answer(ids)
        functional.cross_entropy(logits, labels, reduction="sum").backward()
        found.append((logits.detach(), *(parameter.grad for parameter in model.parameters())))
    for whole, piecewise in zip(*found, strict=True):
        torch.testing.assert_close(piecewise, whole)


def test_pieces_are_small_and_cut_to_their_longest_text(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 48)
    _, ids = model_and_batch()
    seen = []

    def model(piece):
        seen.append(tuple(piece.shape))
        return torch.zeros(len(piece), 2)

    assert in_pieces(model, ids).shape == (9, 2)
    assert seen == [(3, 16), (3, 9), (3, 4)]


def test_images_go_through_whole(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 1)
    seen = []
    in_pieces(lambda pixels: seen.append(pixels.shape) or pixels, torch.zeros(4, 3, 2, 2))
    assert seen == [(4, 3, 2, 2)]


def test_texts_of_padding_alone_keep_one_token(monkeypatch):
    monkeypatch.setattr(pieces, "TOKENS", 4)
    assert in_pieces(lambda piece: piece.double(), torch.zeros(3, 4, dtype=torch.int64)).shape == (3, 1)
