"""``PrivateKMeans``: clusters of people, across sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capedjica.algorithms.tables.kmeans import ClustersOfRows, distances
from capedjica.algorithms.tables.rows import clip_rows
from capedjica.estimators.base import TableEstimator
from capedjica.estimators.inputs import Sites
from capedjica.estimators.tables import read_people, read_tables
from capedjica.privacy import validate
from capedjica.tools.arrays import FloatArray


@dataclass(eq=False, repr=False)
class PrivateKMeans(TableEstimator):
    """k-means clustering (:mod:`capedjica.algorithms.tables.kmeans`).

    Which cluster each person of X belongs to is not part of the result: that would be personal data.

    Parameters
    ----------
    n_clusters : int
        K.
    radius : float
        R, a public bound on the norm of a person's features; longer rows are shortened. Noise grows with
        it, so features should be centred at a public value.
    max_iter : int
        J, the number of steps; the budget is spread evenly over them.
    random_state : int, optional
        Seeds the first centers and the splitting of clusters; not the privacy noise.
    epsilon, delta, mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :class:`capedjica.estimators.base.TableEstimator`.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
        The centers.
    shares_ : array of shape (n_clusters,)
        Noisy share of the people in each cluster, averaged like the centers over the second half of the run.
    privacy_ : PrivacyStatement
        The guarantee.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica.applications import PrivateKMeans
    >>> people = np.repeat([[-1.0, 0.0], [1.0, 0.0]], 200, axis=0)
    >>> model = PrivateKMeans(n_clusters=2, radius=1.5, epsilon=10.0, random_state=0).fit([people] * 3)
    >>> len(set(model.predict([[-1.0, 0.0], [1.0, 0.0]]).tolist()))
    2
    """

    n_clusters: int
    radius: float
    max_iter: int = 10
    random_state: int | None = None
    cluster_centers_: FloatArray = field(init=False)
    shares_: FloatArray = field(init=False)

    def fit(self, X: Sites, y: Any = None) -> Self:
        """Find the centers.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is an array (people, features).
        y : None
            Ignored.
        """
        n_clusters = validate.count("n_clusters", self.n_clusters)
        radius = validate.positive("radius", self.radius)
        max_iter = validate.count("max_iter", self.max_iter)
        tables = read_tables(X)
        n_features = next(iter(tables.values())).shape[1]
        seed = self.random_state
        if seed is not None:
            validate.count("random_state", seed, minimum=0)
        analysis = ClustersOfRows(n_clusters, n_features, radius, max_iter, seed)
        title = f"private k-means with {n_clusters} clusters"
        study = self._study(title, analysis, tables, self._terms())
        found = analysis.estimate(study)
        self.cluster_centers_, self.shares_ = found.centers, found.shares
        self.privacy_ = study.privacy
        return self

    def transform(self, X: ArrayLike) -> FloatArray:
        """Return the distance of each row to each center, shape (people, n_clusters)."""
        people = read_people(X, self.cluster_centers_.shape[1])
        return distances(clip_rows(people, self.radius), self.cluster_centers_)

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return the number of the center nearest to each row."""
        nearest: NDArray[np.intp] = self.transform(X).argmin(axis=1)
        return nearest
