"""Max-margin and attention classifiers with the manners of scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mirrormax._extras import extra
from mirrormax.attention import attention_weights
from mirrormax.attention import predict as attention_outputs
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.svm import InfeasibleError, NotSolvedError, lp_svm

with extra("sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        check_array,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )

Array = npt.NDArray[np.float64]

QUERIES = ("last", "first", "mean")


class _OneAgainstRest(ClassifierMixin):  # type: ignore[misc]
    """From labels to one ±1 problem a class (one problem for two classes), and from their outputs back."""

    classes_: npt.NDArray[Any]

    def _signs(self, y: Any) -> Array:
        """Remember the classes; (K, n) with 1 where a sample is of the class and −1 elsewhere, K = 1 for two."""
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got one class: {self.classes_.tolist()}.")
        positive = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        return np.where(y == positive[:, None], 1.0, -1.0)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class of each sample."""
        outputs: Array = self.decision_function(X)
        index = (outputs > 0).astype(np.intp) if outputs.ndim == 1 else outputs.argmax(axis=1)
        chosen: npt.NDArray[Any] = self.classes_[index]
        return chosen


def _shaped(outputs: Any) -> Array:
    """Of K classes' outputs (K, n, ...) those of the only one, or (n, K, ...)."""
    shaped: Array = outputs[0] if len(outputs) == 1 else outputs.swapaxes(0, 1)
    return shaped


class LpSVC(_OneAgainstRest, BaseEstimator):  # type: ignore[misc]
    """The ℓp support vector classifier: min (1/p)‖v‖_p^p + C Σ_i ξ_i s.t. y_i x_iᵀv ≥ 1 − ξ_i, ξ ≥ 0.

    ``C=None`` is the hard margin, min ‖v‖_p s.t. y_i x_iᵀv ≥ 1, the paper's ℓp-SVM. Several classes are one
    against the rest. p near 1 gives sparse v, p = 2 is the usual machine.

    Args:
        p: exponent > 1.
        C: the price of a unit of slack; None raises for data that no v separates.
        fit_intercept: append the constant ``intercept_scaling`` to every sample. Its weight is the intercept and
            counts in the norm, as in scikit-learn's ``LinearSVC``; the paper's machine has none.
        intercept_scaling: a larger constant makes a given intercept cheaper.
        tol: the relative duality gap to reach.

    Attributes:
        coef_ (K, d), intercept_ (K,): the weights, K = 1 for two classes.
        margin_ (K,): 1/‖v‖_p. gap_ (K,): relative duality gap, which proves how good they are.
        support_: indices of the samples at or within the margin of some class.

    >>> LpSVC(p=1.5, C=None, fit_intercept=False).fit([[3.0, 0.0], [-3.0, 0.0]], [1, 0]).margin_.round(3)
    array([3.])
    """

    def __init__(
        self,
        p: float = 2.0,
        C: float | None = 1.0,
        *,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        tol: float = 1e-6,
    ) -> None:
        self.p, self.C, self.tol = p, C, tol
        self.fit_intercept, self.intercept_scaling = fit_intercept, intercept_scaling

    def fit(self, X: Any, y: Any) -> LpSVC:
        """Solve for the samples X (n, d) with labels y (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        signs = self._signs(y)
        points = np.hstack([X, np.full((len(X), 1), self.intercept_scaling)]) if self.fit_intercept else X
        solutions = lp_svm(points, signs, p=self.p, C=self.C, tol=self.tol, throw=False)
        if np.any(solutions.infeasible):
            worst = self.classes_[1] if len(signs) == 1 else self.classes_[int(np.argmax(solutions.infeasible))]
            raise InfeasibleError(
                f"no weights separate class {worst} from the rest, and C=None allows no slack; set C, for example "
                "to 1.0.",
                solutions,
            )
        if not np.all(np.isfinite(solutions.v)):
            raise NotSolvedError(str(solutions.status), solutions)
        if not np.all(solutions.optimal):
            warnings.warn(
                f"relative duality gap {np.max(solutions.gap):.1e} is above tol={self.tol:g}; scale the features, "
                "lower C, or raise tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
        d = X.shape[1]
        self.coef_: Array = solutions.v[:, :d]
        self.intercept_ = solutions.v[:, d] * self.intercept_scaling if self.fit_intercept else np.zeros(len(signs))
        self.margin_, self.gap_ = solutions.margin, solutions.gap
        self.support_ = np.flatnonzero(solutions.support.any(axis=0))
        return self

    def decision_function(self, X: Any) -> Array:
        """Xv + intercept: (n,) for two classes, (n, K) for more."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return _shaped((X @ self.coef_.T + self.intercept_).T)


class AttentionClassifier(_OneAgainstRest, BaseEstimator):  # type: ignore[misc]
    """One layer of attention, f(X, z) = vᵀXᵀσ(X W z), trained by ℓp mirror descent on W and v (ℓp-JointGD).

    Samples are sequences: X has shape (n, T, d). Shorter ones are padded with tokens that are NaN throughout.
    Several classes are one against the rest, all trained at once. Training starts at zero and draws no random
    numbers.

    Args:
        p: exponent > 1 of the geometry of both W and v; near 1, few entries of W are used.
        lr: step size of W. Normalised steps all have this length, in the dual norm.
        steps: how many of them.
        lr_v: step size of v; ``lr`` if None.
        query: the z of a sequence: its ``"last"`` or ``"first"`` token, or the ``"mean"`` of its tokens.
        normalize: ``"tensor"`` divides each gradient by its dual norm; None for plain steps.
        loss: ``"logistic"``, ``"exponential"`` or ``"correlation"``.
        fit_intercept: append the constant 1 to every token, so that the head has an offset and attention may
            prefer a token whatever the query; the paper's model has neither.

    Attributes:
        W_ (K, D, D), v_ (K, D): attention weights and heads, K = 1 for two classes, D = d + 1 with intercept.
        loss_ (K,): the training loss at the end.

    >>> X = np.array([[[4.0, 0.0], [0.0, 1.0]], [[-4.0, 0.0], [0.0, 1.0]]])
    >>> model = AttentionClassifier(p=1.5, steps=50).fit(X, ["left", "right"])
    >>> model.predict(X).tolist(), model.attention(X).argmax(axis=-1).tolist()
    (['left', 'right'], [0, 0])
    """

    def __init__(
        self,
        p: float = 2.0,
        lr: float = 0.1,
        steps: int = 500,
        *,
        lr_v: float | None = None,
        query: str = "last",
        normalize: Literal["tensor", "running"] | None = "tensor",
        loss: str = "logistic",
        fit_intercept: bool = True,
    ) -> None:
        self.p, self.lr, self.steps, self.lr_v = p, lr, steps, lr_v
        self.query, self.normalize, self.loss, self.fit_intercept = query, normalize, loss, fit_intercept

    def fit(self, X: Any, y: Any) -> AttentionClassifier:
        """Train on sequences X (n, T, d) with labels y (n,)."""
        problem = self._sequences(X)
        y = column_or_1d(y)
        check_consistent_length(X, y)
        signs = self._signs(y)
        self.n_features_in_ = problem["X"].shape[-1] - self.fit_intercept
        run = simulate(
            y=signs,
            v=np.zeros(problem["X"].shape[-1]),
            **problem,
            p=self.p,
            lr=self.lr,
            steps=self.steps,
            normalize=self.normalize,
            loss=self.loss,
            train_readout=True,
            record=[self.steps],
            options=SimulationOptions(lr_v=self.lr_v),
        )
        self.W_, self.v_, self.loss_ = run.W[-1], run.v[-1], run.loss[-1]
        return self

    def decision_function(self, X: Any) -> Array:
        """f(X, z): (n,) for two classes, (n, K) for more."""
        return _shaped(attention_outputs(**self._seen(X), v=self.v_, W=self.W_))

    def attention(self, X: Any) -> Array:
        """σ(X W z), what each token weighs: (n, T) for two classes, (n, K, T) for more."""
        return _shaped(attention_weights(**self._seen(X), W=self.W_))

    def _seen(self, X: Any) -> dict[str, Any]:
        check_is_fitted(self)
        problem = self._sequences(X)
        d = problem["X"].shape[-1] - self.fit_intercept
        if d != self.n_features_in_:
            raise ValueError(f"X has tokens of size {d}, but the model was fitted on size {self.n_features_in_}.")
        return problem

    def _sequences(self, X: Any) -> dict[str, Any]:
        """Tokens, queries and mask, checked, with the constant appended."""
        X = check_array(X, dtype=np.float64, allow_nd=True, ensure_all_finite=False)
        if X.ndim != 3:
            raise ValueError(f"X must have shape (n, T, d), got {X.shape}; add a feature dimension by X[:, :, None].")
        if self.query not in QUERIES:
            raise ValueError(f"query must be one of {', '.join(QUERIES)}, got {self.query!r}.")
        mask = ~np.isnan(X).all(axis=-1)
        if not mask.any(axis=1).all():
            empty = int(np.argmin(mask.any(axis=1)))
            raise ValueError(f"X[{empty}] is NaN throughout; a sequence needs at least one token.")
        X = np.where(mask[..., None], X, 0.0)
        if not np.isfinite(X).all():
            raise ValueError("X has tokens that are NaN or infinite in part; padding is NaN in all of a token.")
        if self.fit_intercept:
            X = np.concatenate([X, mask[..., None].astype(np.float64)], axis=-1)
        if self.query == "mean":
            z = X.sum(axis=1) / mask.sum(axis=1, keepdims=True)
        else:
            place = mask.argmax(axis=1) if self.query == "first" else mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
            z = X[np.arange(len(X)), place]
        return {"X": X, "z": z, "mask": mask}
