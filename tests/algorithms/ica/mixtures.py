"""Whitened mixtures of synthetic sources with known truth, and what other people's ICA makes of them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from capedjica.data.simulated.synthetic import make_synthetic
from capedjica.metrics import normalized_gain_index


class Mixture(NamedTuple):
    """Four sites of whitened subjects (T, R), the same as one (N, R) array, and the true mixing matrix."""

    sites: list[list[np.ndarray]]
    samples: np.ndarray
    mixing: np.ndarray

    def gain_index(self, unmixing):
        return normalized_gain_index(unmixing @ self.mixing)


@lru_cache(maxsize=1)
def make_mixture(n_subjects=64, n_components=8, n_timepoints=250, seed=0):
    study = make_synthetic(4, n_subjects, n_components, n_timepoints, image_side=10, random_state=seed)
    sources = study.sources.astype(np.float64)
    mixing = np.random.default_rng(seed + 1).normal(size=(n_components, n_components))
    pooled = (sources @ mixing.T).reshape(-1, n_components)
    values, vectors = np.linalg.eigh(pooled.T @ pooled / len(pooled))
    whitening = vectors / np.sqrt(values) @ vectors.T
    subjects = sources @ (whitening @ mixing).T
    sites = [list(site) for site in np.split(subjects, 4)]
    return Mixture(sites, subjects.reshape(-1, n_components), whitening @ mixing)


def fastica(samples):
    from sklearn.decomposition import FastICA

    estimator = FastICA(whiten=False, w_init=np.eye(samples.shape[1]), tol=1e-6, max_iter=200)
    return estimator.fit(samples).components_


def picard(samples):
    from picard import picard

    start = np.eye(samples.shape[1])
    return picard(samples.T, ortho=False, whiten=False, centering=False, w_init=start, tol=1e-5)[1]


def mne_infomax(samples):
    from mne.preprocessing import infomax

    options = {"n_small_angle": None, "w_change": 1e-7, "max_iter": 1000, "verbose": "ERROR"}
    return infomax(samples, extended=False, random_state=0, **options)


PEERS = {"FastICA": fastica, "Picard": picard, "MNE Infomax": mne_infomax}
