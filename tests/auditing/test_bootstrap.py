"""Intervals agree with another implementation, are repeatable, and shrink when differences are paired."""

import numpy as np
import pytest
from scipy import stats

from mirrormax.auditing.bootstrap import Estimate, mean_interval, paired_difference


def test_the_interval_agrees_with_scipys_percentile_bootstrap():
    values = np.random.default_rng(0).exponential(size=80)
    ours = mean_interval(values, seed=1, resamples=20000)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20000, method="percentile", random_state=np.random.default_rng(2)
    ).confidence_interval
    assert ours.mean == values.mean()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_one_seed_gives_one_interval_and_another_seed_another():
    values = np.random.default_rng(0).random(30)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)
    assert mean_interval(values, seed=3) != mean_interval(values, seed=4)


def test_a_lower_level_gives_an_interval_inside():
    values = np.random.default_rng(0).random(30)
    wide, narrow = mean_interval(values, level=0.95), mean_interval(values, level=0.5)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high


def test_a_shift_that_is_the_same_everywhere_has_no_uncertainty():
    values = np.random.default_rng(0).integers(0, 8, 50) / 8
    assert paired_difference(values + 0.25, values) == Estimate(0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"values": []}, "something in it"),
        ({"values": [[1.0]]}, "one row"),
        ({"values": [1.0, np.nan]}, "holds nan"),
        ({"values": [1.0], "level": 1.0}, "level"),
        ({"values": [1.0], "resamples": 0}, "resamples"),
        ({"values": [1.0], "resamples": 1.5}, "whole number"),
    ],
)
def test_what_has_no_interval_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        mean_interval(**arguments)


def test_values_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="first has 2 values and second 3"):
        paired_difference([1, 2], [1, 2, 3])
