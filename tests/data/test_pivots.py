"""The benchmark is balanced, varied and marked as it says; a user's own file is read as strictly."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from mirrormax.data.pivots import KINDS, load_pivots, read_pivots, word_spans

HEADER = "id,label,kind,text\n"
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


def write(tmp_path, content):
    path = tmp_path / "mine.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_there_are_enough_reviews_and_each_kind_is_balanced():
    assert len(PIVOTS) >= 240
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
        assert set(pivot.spans) <= set(word_spans(pivot.text))
        assert not set("[]") & set(pivot.text)
        assert pivot.text == " ".join(pivot.text.split())


def test_a_file_of_ones_own_is_read_the_same_way(tmp_path):
    path = write(tmp_path, HEADER + 'a,1,negation,"Long, yes, but [not] [dull]."\nb,0,plain,Ça [déçoit] un peu.\n')
    first, second = read_pivots(path)
    assert (first.text, first.label, first.spans) == ("Long, yes, but not dull.", 1, ((15, 18), (19, 23)))
    assert first.words == ("not", "dull")
    assert second.words == ("déçoit",)


def test_the_shipped_file_reads_back_through_the_public_reader():
    import mirrormax.data

    assert read_pivots(Path(mirrormax.data.__file__).with_name("pivots.csv")) == PIVOTS


def test_a_spreadsheets_byte_order_mark_and_line_ends_are_no_obstacle(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbfid,label,kind,text\r\na,1,plain,A [fine] film.\r\n")
    assert read_pivots(path)[0].text == "A fine film."


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("a,2,plain,A [fine] film.", "label must be 0"),
        ("a,1,irony,A [fine] film.", "kind must be one of plain, negation, contrast, got 'irony'"),
        (",1,plain,A [fine] film.", "id is empty"),
        ("a,1,plain,A fine film.", "no word is marked"),
        ("a,1,plain,A [fine film.", "has no partner"),
        ("a,1,plain,A [[fine]] film.", "has no partner"),
        ("a,1,plain,A [] film.", "not one whole word"),
        ("a,1,plain,A [fi]ne film.", "not one whole word"),
        ("a,1,plain,A [fine film].", "not one whole word"),
        ("a,1,plain,A fine film[.]", "not one whole word"),
        ("a,1,negation,It is not [bad].", "marks the negator and the word it turns"),
        ("a,1,plain,A long, [fine] film.", "5 fields instead of 4"),
        ('a,1,plain,"A [fine] film.', "not CSV"),
        ("a,1,plain,A [fine] film.\na,1,plain,A [good] film.", "line 3: the id 'a' was used before"),
        ("a,1,plain,A [fine] film.\nb,1,plain,A [FINE] film.", "line 3: the review"),
        ("", "holds no review"),
    ],
)
def test_a_wrong_row_is_refused_in_one_sentence(tmp_path, row, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        read_pivots(write(tmp_path, HEADER + row + ("\n" if row else "")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "text,label\nA [fine] film.,1\n", b"\xff\xfe\x00"])
def test_a_file_of_another_layout_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"must begin with|not UTF-8"):
        read_pivots(write(tmp_path, content))


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_pivots(tmp_path / "none.csv")
    with pytest.raises(IsADirectoryError, match="is a directory"):
        read_pivots(tmp_path)


def test_a_mark_over_two_lines_is_refused_in_one(tmp_path):
    path = tmp_path / "pivots.csv"
    path.write_text('id,label,kind,text\n1,1,plain,"A [\nsuperb] film."\n')
    with pytest.raises(ValueError, match="is not one whole word") as caught:
        read_pivots(path)
    assert "\n" not in str(caught.value)
