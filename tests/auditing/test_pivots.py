"""Scores are what their definitions say, by hand and by enumeration, and do not depend on padding."""

import json
from itertools import permutations

import numpy as np
import pytest
import torch
from readers import attentive_reader, piece_tokenizer, reader

from mirrormax.auditing import Data, load_for_audit, make_batches
from mirrormax.auditing.sides import (
    METRICS,
    Reading,
    chance_level,
    compare,
    measure_side,
    read_reviews,
    score_readings,
    score_review,
)
from mirrormax.data import KINDS, Pivot, load_pivots, word_spans
from mirrormax.nets import save_model

#                [CLS] It      is      not     bor     ing      .        [SEP]
OFFSETS = ((0, 0), (0, 2), (3, 5), (6, 9), (10, 13), (13, 16), (16, 17), (0, 0))
REVIEW = Pivot("1", "It is not boring.", 1, "negation", ((6, 9), (10, 16)))
TEXTS = [pivot.text for pivot in load_pivots()]


def reading(attention, offsets=OFFSETS, prediction=1):
    special = [end == 0 for _, end in offsets]
    return Reading(np.array(attention, dtype=float), offsets, np.array(special), prediction)


def score(model, tokenizer, pivots=None):
    pivots = load_pivots() if pivots is None else pivots
    return score_readings(read_reviews(model, tokenizer, [pivot.text for pivot in pivots]), pivots)


def blind_scores(tokenizer, seed, power=1):
    """Scores of attention drawn for each review anew: a weight by token id would repeat its luck in every review."""
    rng = np.random.default_rng(seed)
    encodings = tokenizer.encode_batch(TEXTS)
    weights = [rng.uniform(0.1, 1.1, len(encoding.ids)) ** power for encoding in encodings]
    readings = [
        Reading(w / w.sum(), encoding.offsets, np.array(encoding.special_tokens_mask, dtype=bool), 0)
        for w, encoding in zip(weights, encodings, strict=True)
    ]
    return score_readings(readings, load_pivots())


@pytest.fixture(scope="module")
def tokenizer():
    return piece_tokenizer(TEXTS)


def test_scores_of_a_review_computed_by_hand():
    score = score_review(reading([0.2, 0.1, 0.05, 0.1, 0.08, 0.09, 0.08, 0.3]), REVIEW)
    assert score["mass"] == pytest.approx(0.27 / 0.5)  # [CLS] and [SEP] do not count
    assert score["scaled"] == pytest.approx((0.1 - 0.05) / (0.3 - 0.05))  # here they do
    assert score["hit"] == 1  # "boring" has 0.17, more than any word, though neither of its pieces has
    assert score["rank"] == 1


def test_the_rank_is_that_of_the_best_decisive_word():
    score = score_review(reading([0, 0.3, 0.25, 0.2, 0.05, 0.05, 0.15, 0]), REVIEW)
    assert (score["hit"], score["rank"]) == (0, 3)


def test_a_decisive_word_alone_gets_everything():
    score = score_review(reading([0, 0, 0, 1, 0, 0, 0, 0]), REVIEW)
    assert (score["mass"], score["scaled"], score["hit"], score["rank"]) == (1, 1, 1, 1)


def test_attention_that_leaves_the_text_selects_nothing_and_is_blind_among_words():
    got = score_review(reading([1, 0, 0, 0, 0, 0, 0, 0]), REVIEW)
    assert (got["mass"], got["scaled"]) == (0, 0)
    assert (got["hit"], got["rank"]) == (pytest.approx(2 / 5), pytest.approx(6 / 3))  # two words of five


def test_uniform_attention_scores_the_chance_levels():
    uniform = reading(np.full(8, 1 / 8))
    got, chance = score_review(uniform, REVIEW), chance_level(uniform, REVIEW, shuffles=3)
    assert got == pytest.approx(chance)
    assert (got["mass"], got["scaled"]) == (pytest.approx(3 / 6), 0)


def test_ties_count_as_their_mean_over_all_orders():
    words = np.array([0.3, 0.1, 0.1, 0.1, 0.1])  # It, is, not, boring, .
    score = score_review(reading([0, 0.3, 0.1, 0.1, 0.05, 0.05, 0.1, 0]), REVIEW)
    ranks = []
    for order in permutations(range(5)):
        placed = sorted(range(5), key=lambda word, order=order: (-words[word], order[word]))
        ranks.append(1 + min(placed.index(2), placed.index(3)))
    assert score["rank"] == pytest.approx(np.mean(ranks))


def test_chance_levels_are_means_over_all_orders_of_the_attention_on_the_text():
    attention = np.array([0.2, 0.11, 0.05, 0.12, 0.09, 0.07, 0.06, 0.3])
    chance = chance_level(reading(attention), REVIEW, shuffles=20000)
    every = [
        score_review(reading([attention[0], *order, attention[-1]]), REVIEW) for order in permutations(attention[1:-1])
    ]
    for metric in METRICS:
        assert chance[metric] == pytest.approx(np.mean([s[metric] for s in every]), rel=0.02)
    assert chance["mass"] == pytest.approx(3 / 6, rel=0.01)


def test_long_words_alone_do_not_pass_for_skill(tokenizer):
    scores = blind_scores(tokenizer, seed=0).to_dict()
    assert scores["hit"]["chance"] > 1.5 * np.mean([len(p.spans) / len(word_spans(p.text)) for p in load_pivots()])
    for metric in METRICS:
        above = scores[metric]["above_chance"]
        assert above["low"] < 0 < above["high"]


def test_a_leading_space_or_a_swallowed_full_stop_does_not_lose_the_word():
    offsets = ((0, 0), (0, 2), (2, 5), (5, 9), (9, 17), (0, 0))
    score = score_review(reading([0, 0.1, 0.2, 0.3, 0.4, 0], offsets), REVIEW)
    assert (score["mass"], score["hit"]) == (pytest.approx(0.7), 1)


def test_a_review_that_was_cut_off_is_refused():
    with pytest.raises(ValueError, match="do not cover the review"):
        score_review(reading(np.ones(6) / 6, OFFSETS[:6]), REVIEW)


def test_readings_are_the_mean_over_heads_in_the_last_block(tokenizer):
    model = reader(tokenizer)
    text = TEXTS[0]
    (got,) = read_reviews(model, tokenizer, [text])
    with torch.no_grad():
        logits, maps = model.eval()(torch.tensor([tokenizer.encode(text).ids]), attention=True)
    assert got.attention == pytest.approx(maps[-1, 0, :, 0].mean(0).numpy(), rel=1e-5)
    assert got.attention.sum() == pytest.approx(1)
    assert got.prediction == int(logits.argmax())


@pytest.mark.parametrize("padding", [False, True])
def test_a_review_is_read_the_same_alone_and_in_a_batch(padding):
    tokenizer = piece_tokenizer(TEXTS)
    model = reader(tokenizer).train()
    alone = [read_reviews(model, tokenizer, [text])[0] for text in TEXTS[:9]]
    if padding:
        tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=50)
    together = read_reviews(model, tokenizer, TEXTS[:9], batch_size=4)
    assert model.training
    for a, b in zip(alone, together, strict=True):
        assert a.attention == pytest.approx(b.attention, rel=1e-5)
        assert (a.offsets, a.prediction) == (b.offsets, b.prediction)


def test_a_model_that_attends_to_decisive_words_is_told_from_one_that_does_not(tokenizer):
    pivots = [pivot for pivot in load_pivots() if pivot.kind == "plain" and len(pivot.spans) == 1][:40]
    pieces = {token for pivot in pivots for word in pivot.words for token in tokenizer.encode(word).ids[1:-1]}
    scores = score(attentive_reader(tokenizer, pieces), tokenizer, pivots)
    blind = score(reader(tokenizer), tokenizer, pivots)
    told = scores.to_dict()
    assert told["hit"]["mean"] > 0.9
    assert told["mass"]["low"] > told["mass"]["chance"]
    assert compare(scores, blind)["mass"].low > 0.2


def test_the_summary_is_plain_numbers_for_all_reviews_and_for_each_kind(tokenizer):
    scores = score(reader(tokenizer), tokenizer)
    summary = json.loads(json.dumps(scores.to_dict()))
    assert summary["reviews"] == len(TEXTS)
    assert sum(summary["kinds"][kind]["reviews"] for kind in KINDS) == len(TEXTS)
    for part in (summary, *summary["kinds"].values()):
        for metric in METRICS:
            assert part[metric]["low"] <= part[metric]["mean"] <= part[metric]["high"]
            above = part[metric]["above_chance"]["mean"]
            assert part[metric]["mean"] - part[metric]["chance"] == pytest.approx(above)
        assert 0 <= part["accuracy"]["mean"] <= 1


def test_evenness_of_attention_alone_makes_no_difference_above_chance(tokenizer):
    ours, theirs = blind_scores(tokenizer, seed=1), blind_scores(tokenizer, seed=2, power=8)
    assert compare(ours, theirs)["scaled"].low > 0.1
    for one in (ours, theirs):
        above = one.to_dict()["scaled"]["above_chance"]
        assert above["low"] < 0 < above["high"]


def test_what_a_model_cannot_read_is_refused_in_words(tokenizer):
    with pytest.raises(ValueError, match="the model reads 5; shorten"):
        read_reviews(reader(tokenizer, max_length=5), tokenizer, TEXTS[:1])
    bare = piece_tokenizer(TEXTS)
    bare.post_processor = None
    with pytest.raises(ValueError, match=r"puts no \[CLS\]"):
        read_reviews(reader(tokenizer), bare, TEXTS[:1])


def test_a_model_of_more_than_two_classes_is_not_scored(tokenizer, tmp_path):
    for classes, scored in ((2, True), (3, False)):
        save_model(
            tmp_path / f"{classes}",
            reader(tokenizer, classes=classes, max_length=512),
            tuple("abc"[:classes]),
            tokenizer,
        )
        loaded = load_for_audit(tmp_path / f"{classes}")
        side = measure_side("a", loaded, make_batches(loaded, Data(tuple(TEXTS)), 16, 2), None)
        assert (side.pivots is not None, len(side.readings)) == (scored, len(load_pivots()) if scored else 0)
