"""``PrivateKMeans``: differentially private k-means clustering across sites."""

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
    """Private k-means clustering (:mod:`capedjica.algorithms.tables.kmeans`).

    The cluster assignments of the subjects in X are not part of the result: they would be personal data.

    Parameters
    ----------
    n_clusters : int
        Number of clusters K.
    radius : float
        R, a public bound on the norm of a subject's features; longer rows are scaled down to it. The noise is
        proportional to it, so centre the features at a public value.
    max_iter : int, default=10
        Number of iterations J; the budget is divided evenly among them.
    random_state : int, optional
        Seed for the initial centers and the splitting of clusters, but not for the privacy noise.
    epsilon, delta, mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :class:`capedjica.estimators.base.TableEstimator`.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
        Cluster centers.
    shares_ : array of shape (n_clusters,)
        Noisy fraction of the subjects in each cluster, averaged like the centers over the second half of the
        iterations.
    privacy_ : PrivacyStatement
        The privacy guarantee.

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
        """Compute the cluster centers.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is an array (subjects, features).
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
        """Return the distance of each row to each center, shape (n_rows, n_clusters)."""
        people = read_people(X, self.cluster_centers_.shape[1])
        return distances(clip_rows(people, self.radius), self.cluster_centers_)

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return the index of the nearest center for each row."""
        nearest: NDArray[np.intp] = self.transform(X).argmin(axis=1)
        return nearest
