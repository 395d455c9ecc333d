"""Kinds of heads: planted selections are counted, chances are those of an even choice."""

from dataclasses import replace

import pytest
import torch
from audited_architectures import batch_of, make

import mirrormax
from mirrormax.auditing import Vocabulary, adapter_for
from mirrormax.auditing.kinds import SHARES, Places, Selections, find_induction, kind_of


def selected(alpha, mask, places):
    """Of every row whether each head selects each kind of token, and the chances that an even choice would."""
    rows = []
    for k in range(len(alpha)):
        row = slice(k, k + 1)
        words = None if places.words is None else places.words[row]
        rows.append(Selections())
        rows[-1].add(
            alpha[row], mask[row], replace(places, query=places.query[row], first=places.first[row], words=words)
        )
    found = {name: [[row.of_head(head)[name] for head in range(alpha.shape[1])] for row in rows] for name in SHARES}
    return found, {name: [row.chances()[name] for row in rows] for name in SHARES}


def test_shares_and_chances_of_planted_selections():
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    words = torch.tensor([[7, 5, 5, 9, 0], [7, 5, 9, 9, 5]])
    places = Places(torch.tensor([3, 4]), torch.zeros(2).long(), words, torch.tensor([9]), False)
    alpha = torch.tensor([[0, 2, 3], [0, 3, 4]])
    found, chances = selected(alpha, mask, places)
    assert found["on_first"] == [[True, False, False]] * 2
    assert found["on_previous"] == [[False, True, False]] * 2
    assert found["on_self"] == found["on_last"] == [[False, False, True]] * 2
    assert found["on_separator"] == [[False, False, True], [False, True, False]]
    assert chances["on_separator"] == [1 / 4, 2 / 5]
    assert chances["on_previous"] == [1 / 4, 1 / 5]


@pytest.mark.parametrize(
    ("query", "alpha", "share"),
    [((3, 4, 4), (0, 1, 0), 2 / 3), ((1, 2, 4), (0, 1, 3), 3 / 3), ((3, 3, 3), (0, 1, 3), 1 / 3)],
    ids=["the first place", "one place back", "all over"],
)
def test_the_place_that_is_selected_most_is_counted_from_the_start_and_from_the_query(query, alpha, share):
    selections = Selections()
    places = Places(torch.tensor(query), torch.zeros(3).long(), None, torch.tensor([]), False)
    selections.add(torch.tensor(alpha).unsqueeze(1), torch.ones(3, 5, dtype=torch.bool), places)
    assert selections.of_head(0)["on_place"] == share
    assert selections.chances()["on_place"] == pytest.approx(1 / 5)


def test_a_previous_token_that_a_window_hides_has_no_chance():
    mask = torch.tensor([[0, 0, 1]]).bool()
    places = Places(torch.tensor([2]), torch.zeros(1).long(), None, torch.tensor([]), False)
    _, chances = selected(torch.tensor([[2]]), mask, places)
    assert chances["on_previous"] == chances["on_first"] == [0]
    assert chances["on_self"] == [1]


def test_the_first_token_is_the_first_that_is_there():
    mask = torch.tensor([[0, 1, 1]]).bool()
    places = Places(torch.tensor([2]), torch.tensor([1]), None, torch.tensor([]), False)
    found, chances = selected(torch.tensor([[1, 2]]), mask, places)
    assert found["on_first"] == [[True, False]]
    assert chances["on_first"] == [1 / 2]


def test_a_learned_sink_is_no_place():
    places = Places(torch.tensor([2]), torch.zeros(1).long(), None, torch.tensor([]), True)
    found, chances = selected(torch.tensor([[3, 2]]), torch.ones(1, 4, dtype=torch.bool), places)
    assert found["on_last"] == [[False, True]]
    assert chances["on_last"] == [1 / 4]


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
    found, chances = selected(torch.tensor([[0], [0]]), mask, places)
    assert found["on_first"] == [[False], [True]]
    assert found["on_self"] == [[True], [False]]
    assert chances["on_first"] == [0, 1 / 3]


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
