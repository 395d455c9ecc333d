"""Texts and labels belong together, and a source is a name or a table."""

import numpy as np
import pytest

from mirrormax.data import TextData, Texts, load_text


def test_a_subset_takes_texts_and_labels_in_the_given_order():
    part = Texts(("a", "b", "c"), np.array([0, 1, 2])).subset([2, 0])
    assert part.texts == ("c", "a")
    assert part.labels.tolist() == [2, 0]
    assert part.labels.dtype == np.int64
    assert len(part) == 2


def test_labels_that_do_not_fit_the_texts_are_refused():
    with pytest.raises(ValueError, match=r"labels must have shape \(2,\), one for each row, got \(3,\)"):
        Texts(("a", "b"), np.zeros(3, dtype=np.int64))


def test_data_say_how_much_there_is():
    texts = Texts(("a", "b"), np.array([0, 1]))
    assert TextData("x", ("no", "yes"), texts, None).describe() == "x: 2 texts to train on, none to test on, 2 classes"
    assert "2 texts to test on" in TextData("x", ("no", "yes"), texts, texts).describe()


@pytest.mark.parametrize("source", ["review", "imdb.txt", "", "data.csv.gz"])
def test_an_unknown_source_is_refused_with_those_that_are_known(source):
    with pytest.raises(ValueError, match="is no text data; choose 'reviews', 'imdb'"):
        load_text(source)


def test_a_source_that_is_no_name_is_refused():
    with pytest.raises(TypeError, match=r"source must be a name or a path, got 3 \(int\)"):
        load_text(3)
