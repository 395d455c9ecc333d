"""Batches in pieces against whole batches."""

import pytest
import torch
from torch.nn import functional

from mirrormax.nets import TransformerClassifier, TransformerConfig
from mirrormax.training import batches, loss_and_logits

LABELS = torch.arange(9) % 2


@pytest.fixture
def in_pieces(monkeypatch):
    """Small batches in pieces of some tokens."""

    def choose(tokens, whole=0, multiple=1):
        monkeypatch.setattr(batches, "WHOLE", whole)
        monkeypatch.setattr(batches, "TOKENS", tokens)
        monkeypatch.setattr(batches, "ROUND", multiple)

    return choose


def model_and_batch(dropout=0.0, dtype=torch.float64, **choices):
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=30, max_length=16, dim=8, hidden=12, blocks=2, heads=2, dropout=dropout)
    model = TransformerClassifier(config, **choices).to(dtype)
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
def test_loss_answers_and_gradients_are_those_of_the_whole_batch(tokens, sparse, reduction, in_pieces, three_threads):
    model, ids = model_and_batch(sparse_embedding=sparse)
    whole = model(ids)
    expected = functional.cross_entropy(whole, LABELS, reduction=reduction)
    (3 * expected).backward()
    wanted = gradients(model)
    model.zero_grad()
    in_pieces(tokens)
    loss, logits = loss_and_logits(model, ids, LABELS, reduction)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits, whole.detach())
    assert not logits.requires_grad
    for grad, want in zip(gradients(model), wanted, strict=True):
        torch.testing.assert_close(grad, want)


def test_frozen_parameters_get_no_gradient(in_pieces):
    in_pieces(40)
    model, ids = model_and_batch()
    model.head.requires_grad_(False)
    loss_and_logits(model, ids, LABELS)[0].backward()
    assert model.head.weight.grad is None
    assert model.tokens.weight.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_computes_no_gradients_and_draws_nothing(mode, in_pieces, three_threads, monkeypatch):
    in_pieces(40)
    model, ids = model_and_batch(dropout=0.4)
    model.eval()
    expected = functional.cross_entropy(model(ids), LABELS)
    monkeypatch.setattr(torch.autograd, "grad", None)
    before = torch.get_rng_state()
    with mode():
        loss, logits = loss_and_logits(model, ids.clone(), LABELS)
    torch.testing.assert_close(loss, expected)
    assert not loss.requires_grad
    assert not logits.requires_grad
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_can_be_differentiated_again_but_not_its_gradient(in_pieces):
    in_pieces(40)
    model, ids = model_and_batch()
    loss = loss_and_logits(model, ids, LABELS)[0]
    loss.backward(retain_graph=True)
    once = gradients(model)
    loss.backward(retain_graph=True)
    for grad, single in zip(gradients(model), once, strict=True):
        torch.testing.assert_close(grad, 2 * single)
    with pytest.raises(RuntimeError, match="can be differentiated once; give smaller ones"):
        torch.autograd.grad(loss, model.head.weight, create_graph=True)


def test_gradients_add_up_over_batches(in_pieces):
    in_pieces(40)
    model, ids = model_and_batch()
    loss_and_logits(model, ids, LABELS)[0].backward()
    once = gradients(model)
    loss_and_logits(model, ids, LABELS)[0].backward()
    for grad, single in zip(gradients(model), once, strict=True):
        torch.testing.assert_close(grad, 2 * single)


def one_step(model, ids):
    """The loss and gradients with dropout, and where torch's generator stands afterwards."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = loss_and_logits(model, ids, LABELS)[0]
    loss.backward()
    return [loss.detach(), *gradients(model), torch.get_rng_state()]


@pytest.mark.usefixtures("three_threads")
def test_with_dropout_a_seed_decides_everything_on_any_number_of_threads(in_pieces):
    in_pieces(20)
    model, ids = model_and_batch(dropout=0.4)
    on_three = one_step(model, ids)
    torch.set_num_threads(1)
    for one, other in zip(on_three, one_step(model, ids), strict=True):
        assert torch.equal(one, other)
    assert loss_and_logits(model, ids, LABELS)[0] != on_three[0]


def test_each_piece_drops_other_entries(in_pieces):
    in_pieces(16)
    model, ids = model_and_batch(dropout=0.4)
    _, logits = loss_and_logits(model, ids[:1].expand(9, -1), LABELS)
    assert len(logits.unique(dim=0)) == 9


@pytest.mark.usefixtures("three_threads")
def test_pieces_are_as_precise_as_the_caller_asks(in_pieces):
    in_pieces(20)
    model, ids = model_and_batch(dtype=torch.float32)
    seen = []
    model.blocks[0].expand.register_forward_hook(lambda *args: seen.append(args[-1].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss_and_logits(model, ids, LABELS)[0].backward()
    assert set(seen) == {torch.bfloat16}
    assert {grad.dtype for grad in gradients(model)} == {torch.float32}


def test_small_batches_go_through_whole(in_pieces):
    in_pieces(20, whole=9 * 16)
    model, ids = model_and_batch()
    assert shapes_seen(model, ids) == [(9, 16)]


@pytest.mark.parametrize(("tokens", "multiple", "count"), [(48, 1, 3), (48, 2, 4), (100, 2, 2), (20, 8, 8), (1, 8, 9)])
def test_pieces_are_even_in_number_with_texts_of_like_length_cut_to_their_longest(tokens, multiple, count, in_pieces):
    in_pieces(tokens, multiple=multiple)
    model, ids = model_and_batch()
    seen = shapes_seen(model, ids)
    parts = ids[(ids != 0).sum(1).argsort()].tensor_split(count)
    assert sorted(seen) == sorted((len(part), int((part != 0).sum(1).max())) for part in parts)
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1


def shapes_seen(model, ids):
    seen = []
    model.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    loss_and_logits(model, ids, LABELS)
    return seen


def test_texts_of_padding_alone_keep_one_token(in_pieces):
    in_pieces(4)
    seen = []
    model = torch.nn.Linear(1, 2)
    model.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)) or args[0].float())
    loss_and_logits(model, torch.zeros(3, 4, dtype=torch.int64), LABELS[:3])
    assert seen == [(1, 1)] * 3


def test_images_go_through_whole(in_pieces):
    in_pieces(1)
    seen = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    model.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    loss_and_logits(model, torch.zeros(4, 3, 2, 2), LABELS[:4])[0].backward()
    assert seen == [(4, 3, 2, 2)]
