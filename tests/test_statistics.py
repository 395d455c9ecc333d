"""Intervals agree with another implementation, are repeatable, and shrink when differences are paired."""

import numpy as np
import pytest
from scipy import stats

from mirrormax._statistics import Estimate, Sample, bootstrap_mean, difference, mean, paired_difference, share


def test_the_interval_agrees_with_scipys_percentile_bootstrap():
    values = np.random.default_rng(0).exponential(size=80)
    ours = bootstrap_mean(values, seed=1)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20000, method="percentile", random_state=np.random.default_rng(2)
    ).confidence_interval
    assert ours.mean == values.mean()
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_one_seed_gives_one_interval_and_another_seed_another():
    values = np.random.default_rng(0).random(30)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_a_shift_that_is_the_same_everywhere_has_no_uncertainty():
    values = np.random.default_rng(0).integers(0, 8, 50) / 8
    assert paired_difference(values + 0.25, values) == Estimate(0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"values": []}, "something in it"),
        ({"values": [[1.0]]}, "one row"),
        ({"values": [1.0, np.nan]}, "holds nan"),
    ],
)
def test_what_has_no_interval_is_refused(arguments, complaint):
    with pytest.raises((TypeError, ValueError), match=complaint):
        bootstrap_mean(**arguments)


def test_values_that_are_no_pairs_are_refused():
    with pytest.raises(ValueError, match="first has 2 values and second 3"):
        paired_difference([1, 2], [1, 2, 3])


RUNS = np.random.default_rng(0).normal(1, 1, 6), np.random.default_rng(1).normal(0, 3, 4)


def test_a_mean_has_students_interval_and_a_difference_welchs():
    first, second = RUNS
    expected = stats.ttest_1samp(first, 0).confidence_interval(0.95)
    assert (mean(first).low, mean(first).high) == pytest.approx((expected.low, expected.high))
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    ours = difference(first, second)
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high))
    assert ours.mean == pytest.approx(first.mean() - second.mean())
    assert difference(first, Sample.of(second)) == ours, "a published sample counts like its values"


def test_single_runs_and_missing_values_decide_nothing():
    assert mean([1.0]) == Estimate(1.0, -np.inf, np.inf)
    assert difference([1.0], [0.0, 0.1]).high == np.inf
    assert mean([1.0, np.nan, 3.0]) == mean([1.0, 3.0])


def test_a_share_has_the_interval_of_clopper_and_pearson():
    assert share(0, 20) == Estimate(0.0, 0.0, pytest.approx(0.1684, abs=1e-4))
    assert share([True] * 20) == Estimate(1.0, pytest.approx(0.8316, abs=1e-4), 1.0)
    assert share([]).high == 1.0
