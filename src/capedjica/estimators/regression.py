"""``PrivateLogisticRegression``: differentially private logistic regression across sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capedjica.algorithms.tables.regression import LogisticOfRows, extend, probability
from capedjica.estimators.base import TableEstimator
from capedjica.estimators.inputs import Sites
from capedjica.estimators.tables import read_labels, read_people, read_tables
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray


@dataclass(eq=False, repr=False)
class PrivateLogisticRegression(TableEstimator):
    """Private logistic regression by gradient descent (:mod:`capedjica.algorithms.tables.regression`).

    Labels are 0 and 1.

    Parameters
    ----------
    feature_bound : float
        B, a public bound on the norm of a subject's features; longer rows are scaled down to it, also in
        prediction. Scale the features to norms of about one.
    clip : float, optional
        C, the largest norm of a gradient; by default sqrt(B^2 + 1) / 3. With C >= sqrt(B^2 + 1) nothing is
        clipped.
    max_iter : int, default=30
        Number of steps J; the budget is divided evenly among them.
    learning_rate : float, optional
        Learning rate; by default 4 / (B^2 + 1).
    l2 : float, default=0.0
        Regularization strength lambda: the penalty is lambda/2 times the squared norm of the coefficients,
        without the intercept.
    epsilon, delta, mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :class:`capedjica.estimators.base.TableEstimator`.

    Attributes
    ----------
    coef_ : array of shape (n_features,)
        Coefficients of the features.
    intercept_ : float
        Intercept, the score of a subject whose features are all 0.
    privacy_ : PrivacyStatement
        The privacy guarantee.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica.applications import PrivateLogisticRegression
    >>> scores = np.linspace(-1, 1, 400)
    >>> model = PrivateLogisticRegression(feature_bound=1.0, epsilon=5.0)
    >>> model.fit([scores, scores, scores], [scores > 0] * 3).predict([-0.9, 0.9])
    array([0, 1])
    """

    feature_bound: float
    clip: float | None = None
    max_iter: int = 30
    learning_rate: float | None = None
    l2: float = 0.0
    coef_: FloatArray = field(init=False)
    intercept_: float = field(init=False)

    def fit(self, X: Sites, y: Sites) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is an array (subjects, features).
        y : list of sites, or dict from name to site
            Labels of each site, 0 or 1, one for each row of X.
        """
        max_iter = validate.count("max_iter", self.max_iter)
        bound = validate.positive("feature_bound", self.feature_bound)
        rate = _positive_or_none("learning_rate", self.learning_rate)
        clip = _positive_or_none("clip", self.clip)
        tables = read_tables(X)
        labels = read_labels(y, tables)
        n_features = next(iter(tables.values())).shape[1]
        l2 = validate.nonnegative("l2", self.l2)
        analysis = LogisticOfRows(n_features, bound, clip, max_iter, rate, l2)
        rows = {name: np.column_stack([table, labels[name]]) for name, table in tables.items()}
        study = self._study("private logistic regression", analysis, rows, self._terms())
        found = analysis.estimate(study)
        self.coef_, self.intercept_ = found.coefficients, found.intercept
        self.privacy_ = study.privacy
        return self

    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return the probabilities of labels 0 and 1 for each row, shape (n_rows, 2)."""
        extended = extend(read_people(X, len(self.coef_)), self.feature_bound)
        ones = probability(extended, np.append(self.coef_, self.intercept_))
        return np.column_stack([1 - ones, ones])

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return the more probable label of each row."""
        labels: NDArray[np.intp] = self.predict_proba(X).argmax(axis=1)
        return labels


def _positive_or_none(name: str, value: float | None) -> float | None:
    return None if value is None else validate.positive(name, value)
