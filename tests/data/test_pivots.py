"""The benchmark is balanced, varied and marked as it says."""

import re
from collections import Counter
from itertools import combinations

import pytest

from mirrormax.data import KINDS, load_pivots, word_spans

NEGATOR = re.compile(r"\b(not|never|no|none|nothing|nobody|neither|hardly|without|lacks|cannot)\b|n['’]t\b", re.I)

PIVOTS = load_pivots()


def words(text):
    return [text[a:b].lower() for a, b in word_spans(text) if text[a].isalnum()]


def position(pivot):
    """Where the middle of the decisive words is, 0 at the beginning of the review and 1 at its end."""
    places = [place for place, span in enumerate(_spelled(pivot.text)) if span in pivot.spans]
    return (sum(places) / len(places) + 0.5) / len(words(pivot.text))


def _spelled(text):
    return [span for span in word_spans(text) if text[span[0]].isalnum()]


def unmarked(pivot):
    return {pivot.text[a:b].lower() for a, b in _spelled(pivot.text) if (a, b) not in pivot.spans}


def test_there_are_enough_reviews_and_each_kind_is_balanced():
    assert len({pivot.id for pivot in PIVOTS}) == len(PIVOTS) >= 240
    for kind in KINDS:
        labels = [pivot.label for pivot in PIVOTS if pivot.kind == kind]
        assert len(labels) >= 30
        assert sum(labels) * 2 == len(labels)
    assert sum(pivot.kind == "negation" for pivot in PIVOTS) >= 50


@pytest.mark.parametrize("label", [0, 1])
def test_the_decisive_words_are_spread_evenly_over_the_review(label):
    thirds = Counter(int(3 * position(pivot)) for pivot in PIVOTS if pivot.label == label)
    wanted = sum(thirds.values()) / 3
    assert all(abs(thirds[third] - wanted) <= 0.1 * wanted for third in range(3))


def test_reviews_are_short_and_of_many_lengths():
    lengths = Counter(len(words(pivot.text)) for pivot in PIVOTS)
    assert min(lengths) >= 5
    assert max(lengths) <= 25
    assert len(lengths) >= 15


def test_no_review_resembles_another():
    bags = [set(words(pivot.text)) for pivot in PIVOTS]
    assert max(len(a & b) / len(a | b) for a, b in combinations(bags, 2)) < 0.4
    openings = Counter(tuple(words(pivot.text)[:3]) for pivot in PIVOTS)
    assert max(openings.values()) == 1


def test_few_decisive_words_come_twice():
    turned = Counter(word.lower() for pivot in PIVOTS for word in pivot.words if not NEGATOR.search(word))
    assert max(turned.values()) <= 4
    assert sum(count == 1 for count in turned.values()) >= 0.8 * len(turned)


def test_no_other_word_decides_a_review_unless_it_is_there_to_distract():
    decisive = {word.lower() for pivot in PIVOTS if pivot.kind == "plain" for word in pivot.words}
    for pivot in PIVOTS:
        if pivot.kind != "contrast":
            assert not unmarked(pivot) & decisive, pivot


def test_negators_are_marked_and_in_negations_only():
    for pivot in PIVOTS:
        for negator in NEGATOR.finditer(pivot.text):
            assert pivot.kind == "negation", pivot
            assert any(start <= negator.start() and negator.end() <= end for start, end in pivot.spans), pivot


def test_marks_are_whole_words_and_are_gone_from_the_text():
    for pivot in PIVOTS:
        assert pivot.spans
        assert set(pivot.spans) <= set(word_spans(pivot.text))
        assert pivot.kind in KINDS
        assert not set("[]") & set(pivot.text)
        assert pivot.text == " ".join(pivot.text.split())
