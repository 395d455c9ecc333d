"""The classifiers behave as scikit-learn asks, and are the machines they say."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from mirrormax import InfeasibleError, lp_svm
from mirrormax.contrib.sklearn import AttentionClassifier, LpSVC


@parametrize_with_checks([LpSVC(), LpSVC(p=1.5, fit_intercept=False)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def test_p_2_is_the_linear_svc_with_the_hinge(iris):
    X, y = iris
    theirs = LinearSVC(loss="hinge", C=1.0, tol=1e-8, max_iter=1_000_000).fit(X, y == 1)
    ours = LpSVC(p=2, C=1.0).fit(X, y == 1)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0.01, atol=0.01)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("p", [1.1, 1.5, 3.0])
def test_no_other_weights_have_a_lower_objective(iris, p):
    X, y = iris
    sign = np.where(y == 1, 1.0, -1.0)
    model = LpSVC(p=p, C=0.5, fit_intercept=False).fit(X, y == 1)

    def objective(v):
        return (np.abs(v) ** p).sum() / p + 0.5 * np.maximum(1 - sign * (X @ v), 0).sum()

    best = objective(model.coef_[0])
    generator = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        assert best <= min(objective(model.coef_[0] + size * generator.standard_normal(4)) for _ in range(50)) + 1e-9


def test_the_hard_margin_without_intercept_is_the_papers():
    X, y = make_blobs(40, centers=[[3, 3], [-3, -3]], cluster_std=0.5, random_state=0)
    model = LpSVC(p=1.5, C=None, fit_intercept=False).fit(X, y)
    solution = lp_svm(X, np.where(y == 1, 1, -1), p=1.5)
    np.testing.assert_allclose(model.coef_[0], solution.v, rtol=1e-3)
    np.testing.assert_allclose(model.margin_, solution.margin, rtol=1e-6)
    assert model.support_.tolist() == np.flatnonzero(solution.support).tolist()
    assert model.intercept_.tolist() == [0.0]


def test_data_that_a_hard_margin_cannot_separate_are_refused_and_a_soft_one_takes_them():
    X, y = [[1.0], [2.0], [3.0]], ["a", "b", "a"]
    with pytest.raises(InfeasibleError, match="no weights separate class b from the rest, and C=None"):
        LpSVC(C=None).fit(X, y)
    assert LpSVC().fit(X, y).predict(X).shape == (3,)


def test_a_tolerance_out_of_reach_warns():
    X, y = make_blobs(4, centers=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"above tol=1e-300"):
        LpSVC(tol=1e-300).fit(X, y)


def test_several_classes_are_one_against_the_rest(iris):
    X, y = iris
    model = LpSVC(p=1.5).fit(X, y)
    assert model.decision_function(X).shape == (150, 3)
    alone = LpSVC(p=1.5).fit(X, y == 2)
    np.testing.assert_allclose(model.decision_function(X)[:, 2], alone.decision_function(X), rtol=1e-6, atol=1e-6)
    assert model.score(X, y) > 0.9


def needles(n=60, T=5, seed=0, classes=2):
    """Sequences of noise in which one token, marked by its first entry, tells the class."""
    generator = np.random.default_rng(seed)
    X, y = 0.3 * generator.standard_normal((n, T, 4)), generator.integers(classes, size=n)
    place = generator.integers(T, size=n)
    X[np.arange(n), place, 0] += 2.0
    X[np.arange(n), place, 1] += 2.0 * np.cos(2 * np.pi * y / classes)
    X[np.arange(n), place, 2] += 2.0 * np.sin(2 * np.pi * y / classes)
    return X, y, place


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("query", ["last", "first", "mean"])
def test_attention_finds_the_token_that_tells(p, query):
    X, y, _ = needles()
    model = AttentionClassifier(p=p, query=query, steps=200).fit(X, y)
    unseen, truth, where = needles(seed=1)
    assert model.score(unseen, truth) > 0.9
    assert (model.attention(unseen).argmax(axis=-1) == where).mean() > 0.9


def test_attention_takes_several_classes_by_name():
    X, y, _ = needles(n=90, classes=3)
    names = np.array(["ant", "bee", "cat"])[y]
    model = AttentionClassifier(p=1.75, steps=300).fit(X, names)
    assert model.decision_function(X).shape == (90, 3)
    assert model.attention(X).shape == (90, 3, 5)
    np.testing.assert_allclose(model.attention(X).sum(axis=-1), 1.0)
    assert model.score(X, names) > 0.9


def test_padding_changes_nothing():
    X, y, _ = needles()
    padded = np.concatenate([X, np.full((60, 2, 4), np.nan)], axis=1)
    for query in ("last", "first", "mean"):
        plain = AttentionClassifier(p=1.5, steps=50, query=query).fit(X, y)
        longer = AttentionClassifier(p=1.5, steps=50, query=query).fit(padded, y)
        np.testing.assert_allclose(longer.decision_function(padded), plain.decision_function(X), rtol=1e-9)
        assert (longer.attention(padded)[:, 5:] == 0).all()


def test_without_intercept_it_is_the_papers_model():
    X, y, _ = needles()
    model = AttentionClassifier(p=2, steps=20, fit_intercept=False).fit(X, y)
    W, v = model.W_[0], model.v_[0]
    assert W.shape == (4, 4)
    scores = X @ (X[:, -1] @ W.T)[:, :, None]
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.decision_function(X), ((X @ v) * weights[..., 0]).sum(axis=1), rtol=1e-9)


def test_a_grid_search_chooses_p():
    X, y, _ = needles()
    search = GridSearchCV(AttentionClassifier(steps=60), {"p": [1.25, 1.75, 3.0]}, cv=3, error_score="raise")
    search.fit(X, y)
    assert search.best_params_["p"] in (1.25, 1.75, 3.0)
    assert search.best_estimator_.p == search.best_params_["p"]
    assert search.best_score_ > 0.8
    assert search.score(*needles(seed=2)[:2]) > 0.8


def test_it_is_a_well_behaved_estimator():
    X, y, _ = needles()
    model = AttentionClassifier(p=1.5, steps=10)
    with pytest.raises(NotFittedError):
        model.predict(X)
    twin = clone(model.set_params(lr=0.2))
    assert twin.get_params()["lr"] == 0.2
    np.testing.assert_array_equal(twin.fit(X, y).W_, model.fit(X, y).W_)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: {"X": X[:, 0]}, r"X must have shape \(n, T, d\), got \(60, 4\)"),
        (lambda X, y: {"y": y * 0}, "at least two classes"),
        (lambda X, y: {"y": y[:-1]}, "inconsistent numbers of samples"),
        (lambda X, y: {"y": y + 0.5}, "Unknown label type"),
        (lambda X, y: {"X": np.where(np.arange(60)[:, None, None] == 3, np.nan, X)}, r"X\[3\] is NaN throughout"),
        (lambda X, y: {"X": np.where(np.arange(4) == 3, np.inf, X)}, "infinite in part"),
    ],
)
def test_sequences_that_it_cannot_learn_are_refused(change, message):
    X, y, _ = needles()
    with pytest.raises(ValueError, match=message):
        AttentionClassifier(steps=1).fit(**{"X": X, "y": y, **change(X, y)})


def test_bad_settings_and_other_token_sizes_are_refused():
    X, y, _ = needles()
    with pytest.raises(ValueError, match="query must be one of last, first, mean, got 'any'"):
        AttentionClassifier(query="any").fit(X, y)
    with pytest.raises(ValueError, match="p must be"):
        AttentionClassifier(p=1).fit(X, y)
    with pytest.raises(ValueError, match="tokens of size 3, but the model was fitted on size 4"):
        AttentionClassifier(steps=1).fit(X, y).predict(X[:, :, :3])
