"""Kinds of heads: planted selections are counted, chances are those of an even choice."""

import pytest
import torch
from audited_architectures import batch_of, make

import mirrormax
from mirrormax.auditing import Vocabulary, adapter_for
from mirrormax.auditing.kinds import Places, Selections, find_induction, kind_of, place_counts, place_shares


def test_shares_and_chances_of_planted_selections():
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    words = torch.tensor([[7, 5, 5, 9, 0], [7, 5, 9, 9, 5]])
    places = Places(torch.tensor([3, 4]), torch.zeros(2).long(), words, torch.tensor([9]), False)
    alpha = torch.tensor([[0, 2, 3], [0, 3, 4]])
    found, chances = place_shares(alpha, mask, places)
    assert found["on_first"].tolist() == [[True, False, False]] * 2
    assert found["on_previous"].tolist() == [[False, True, False]] * 2
    assert found["on_self"].tolist() == found["on_last"].tolist() == [[False, False, True]] * 2
    assert found["on_separator"].tolist() == [[False, False, True], [False, True, False]]
    assert chances["on_separator"].tolist() == [1 / 4, 2 / 5]
    assert chances["on_previous"].tolist() == [1 / 4, 1 / 5]
    first, back = place_counts(alpha, places)
    assert first[0, 0] == 2
    assert back[1, 1] == 2


def test_a_previous_token_that_a_window_hides_has_no_chance():
    mask = torch.tensor([[0, 0, 1]]).bool()
    _, chances = place_shares(
        torch.tensor([[2]]), mask, Places(torch.tensor([2]), torch.zeros(1).long(), None, torch.tensor([]), False)
    )
    assert chances["on_previous"].tolist() == chances["on_first"].tolist() == [0]
    assert chances["on_self"].tolist() == [1]


def test_the_first_token_is_the_first_that_is_there():
    mask = torch.tensor([[0, 1, 1]]).bool()
    places = Places(torch.tensor([2]), torch.tensor([1]), None, torch.tensor([]), False)
    found, chances = place_shares(torch.tensor([[1, 2]]), mask, places)
    assert found["on_first"].tolist() == [[True, False]]
    assert chances["on_first"].tolist() == [1 / 2]


def test_a_learned_sink_is_no_place():
    mask = torch.ones(1, 4, dtype=torch.bool)
    found, chances = place_shares(
        torch.tensor([[3, 2]]), mask, Places(torch.tensor([2]), torch.zeros(1).long(), None, torch.tensor([]), True)
    )
    assert found["on_last"].tolist() == [[False, True]]
    assert chances["on_last"].tolist() == [1 / 4]


@pytest.mark.parametrize(
    ("shares", "chances", "kind"),
    [
        ({"on_previous": 0.9, "on_first": 0.1}, {"on_previous": 0.1, "on_first": 0.1}, "previous token"),
        ({"on_first": 0.6, "on_previous": None}, {"on_first": 0.1}, "first-token sink"),
        ({"on_first": 0.6}, {"on_first": 0.5}, None),
        ({"on_first": 0.4, "induction": 0.4}, {"on_first": 0.1, "induction": 0.0}, None),
        ({"induction": 0.9, "on_first": 0.9}, {"on_first": 0.1, "induction": 0.03}, "induction"),
    ],
)
def test_a_kind_needs_half_the_rows_and_twice_its_chance(shares, chances, kind):
    assert kind_of(shares, chances) == kind


def test_induction_is_asked_of_the_token_behind_the_earlier_one():
    model = make("gpt2")
    with torch.no_grad():  # every head of layer 0 sees places alone and looks 3 back, where the next token stood
        attention = model.transformer.h[0].attn
        attention.c_attn.weight.zero_()
        attention.c_attn.bias.zero_()
        size = attention.head_dim
        model.transformer.wte.weight.zero_()
        model.transformer.wpe.weight.zero_()
        angle = torch.arange(32) * torch.pi / 4  # a turn in 8 places, so that 3 back is one place
        model.transformer.wpe.weight[:, 0], model.transformer.wpe.weight[:, 1] = angle.cos(), angle.sin()
        model.transformer.h[0].ln_1.weight.fill_(1.0)
        model.transformer.h[0].ln_1.bias.zero_()
        cos, sin = (f(torch.tensor(-3 * torch.pi / 4)) for f in (torch.cos, torch.sin))
        turn = torch.tensor([[cos, sin], [-sin, cos]])
        for head in range(4):
            attention.c_attn.weight[:2, head * size : head * size + 2] = turn * 50
            attention.c_attn.weight[:2, 16 + head * size : 16 + head * size + 2] = torch.eye(2)
    layers = [Selections() for _ in model.transformer.h]
    nowhere = Places(torch.tensor([1]), torch.zeros(1).long(), None, torch.tensor([]), False)
    for selections in layers:
        selections.add(torch.zeros(1, 4).long(), torch.ones(1, 2, dtype=torch.bool), nowhere)
    find_induction(
        adapter_for(model), Vocabulary(ordinary=range(3, 40)), [(each,) for each in layers], length=4, sequences=3
    )
    assert [layers[0].of_head(head)["induction"] for head in range(4)] == [1.0] * 4
    assert layers[0].chances()["induction"] == pytest.approx(sum(1 / m for m in (5, 6, 7, 8)) / 4)


def test_repeated_tokens_are_as_many_as_a_model_can_read():
    words = Vocabulary(ordinary=range(3, 40))  # twice 24 of them are more than the 32 positions of this one
    found = mirrormax.audit(make("mpt"), [batch_of("mpt")], vocabulary=words, samples=2, controls=0)
    assert all(0 <= head.induction <= 1 for head in found.heads)


def test_a_first_token_that_selects_itself_is_no_sink():
    mask = torch.ones(2, 3, dtype=torch.bool)
    places = Places(torch.tensor([0, 2]), torch.zeros(2).long(), None, torch.tensor([]), False)
    found, chances = place_shares(torch.tensor([[0], [0]]), mask, places)
    assert found["on_first"].tolist() == [[False], [True]]
    assert found["on_self"].tolist() == [[True], [False]]
    assert chances["on_first"].tolist() == [0, 1 / 3]


def test_a_previous_token_head_is_learned_beside_shuffled_ones_whatever_query_is_asked():
    """One planted head: positions are one-hot, and the key of token t is the query of token t + 1."""
    torch.manual_seed(0)
    size = 8
    attention = torch.nn.MultiheadAttention(size, 1, bias=False, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight[:size] = 5 * torch.eye(size).roll(-1, 0)
        attention.in_proj_weight[size : 2 * size] = 5 * torch.eye(size)
    positions = torch.eye(size).expand(4, size, size)
    for query in ("first", "last", "all"):
        (head,) = mirrormax.audit(attention, [positions], query=query, samples=2, controls=0).heads
        assert head.kind == "previous token"
        assert head.learned is True
    (few,) = mirrormax.audit(attention, [positions], query="all", samples=2, controls=0, shuffled=5).heads
    assert few.learned is None
