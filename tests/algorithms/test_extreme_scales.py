"""One subject moves a site's integers by no more than the plan says, at any scale of the data and the clip.

The bounds below 2C rest on what vectors are: positive semidefinite, projectors, in one cell or cluster. That
must survive floating-point arithmetic wherever it leads, so a hill climb looks for pairs of subjects that are
further apart than allowed, over scales from 1e-300 to 1e300.
"""

import math
from functools import partial

import numpy as np
import pytest

from capedjica import CapePCA, private_mean
from capedjica.algorithms.ica.subject_level import SUBSPACE, SubjectMethod, SubjectSite
from capedjica.algorithms.pca import pca_query, sample_moments, subject_moments
from capedjica.algorithms.state import pack
from capedjica.algorithms.tables.histogram import cell_query, person_cells
from capedjica.algorithms.tables.kmeans import cluster_query, person_clusters
from capedjica.applications import PrivateHistogram, PrivateKMeans
from capedjica.errors import InputError
from capedjica.mechanisms.contract import Contract, Query, Stage
from capedjica.mechanisms.release import plan_release
from capedjica.mechanisms.site.clipping import sum_subjects
from capedjica.securesum.identity import Identity
from capedjica.securesum.parameters import Roster

D, T, R = 8, 5, 2
STEPS = 150


class Release:
    """What a site of one subject adds up in a release, and how far one subject may move it."""

    def __init__(self, query):
        identities = [Identity.generate().public(name) for name in ("a", "b", "c")]
        roster = Roster(tuple(identities), 3, 1)
        contract = Contract("scales", roster, (1, 1, 1), (Stage(query),), (1.0,) * 3, 1e-5)
        self.plan = plan_release(contract, query, 1.0, ("a", "b", "c"))
        in_steps = query.clip * self.plan.scale["a"] / self.plan.step
        self.allowed = query.spread * in_steps + math.sqrt(query.size)

    def integers(self, vectors):
        return sum_subjects(lambda: vectors, self.plan, "a", 1)[0].astype(np.float64)

    def excess(self, statistic, left, right):
        """Return how far two subjects are apart, in units of what is allowed."""
        here, there = (self.integers(statistic([one])) for one in (left, right))
        return float(np.linalg.norm(here - there)) / self.allowed


def changed(rng, pair, number, exponent):
    """Return the pair with one of both changed: drawn anew, scaled, thinned, or the other one mirrored."""
    shape, trial = pair[0].shape, list(pair)
    match rng.integers(5):
        case 0:
            trial[number] = rng.normal(size=shape) * 10.0 ** (exponent + rng.uniform(-2, 1, shape))
        case 1:
            trial[number] = trial[number] * 10.0 ** rng.uniform(-0.5, 0.5, shape)
        case 2:
            trial[number] = np.where(rng.random(shape) < 0.8, trial[number], 0.0)
        case 3:
            trial[number] = trial[number] * rng.choice([-1, 1], (1, shape[1]))
        case 4:
            trial[number] = trial[number] * 10.0 ** rng.uniform(-0.5, 0.5, (1, shape[1]))
            trial[1 - number] = trial[number] * rng.choice([-1, 1], (1, shape[1]))
    return trial


def climb(query, statistic, shape, exponent, seed):
    """Return the largest distance found from a random pair, changed as long as it helps."""
    rng, release, best = np.random.default_rng(seed), Release(query), 0.0
    pair = [np.zeros(shape), np.zeros(shape)]
    with np.errstate(all="ignore"):
        for step in range(STEPS):
            trial = changed(rng, pair, step % 2, exponent)
            found = release.excess(statistic, *trial)
            if found >= best:
                best, pair = found, trial
    return best


def edges():
    return [np.linspace(-1, 1, 4)] * D


def center_state():
    return pack(centers=np.eye(3, D))


def statistics(clip):
    """The statistics that rely on more than their clip, each with its query and the shape of a subject."""
    return {
        "subject moments": (pca_query(D, clip), partial(subject_moments, clip=clip), (1, D)),
        "moments of many": (pca_query(D, clip), partial(subject_moments, clip=clip), (T, D)),
        "sample moments": (pca_query(D, clip), partial(sample_moments, clip=clip), (1, D)),
        "projectors": (
            SubjectMethod(D, R, T).stages()[SUBSPACE].query,
            lambda subjects: SubjectSite(subjects, R)(SUBSPACE, b"", b""),
            (T, D),
        ),
        "clusters": (
            cluster_query(3, D, clip),
            lambda subjects: person_clusters(subjects[0], 3, clip, center_state()),
            (1, D),
        ),
        "cells": (cell_query(edges()), lambda subjects: person_cells(subjects[0], edges()), (1, D)),
    }


NAMES = tuple(statistics(1.0))


CLIPS = (1e-70, 3e-23, 1e-22, 3e-22, 1e-20, 1.0, 1e20, 1e70)


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        (name, clip)
        for name in NAMES
        for clip in (CLIPS if name not in ("projectors", "cells") else CLIPS[5:6])
    ],
)
def test_nobody_moves_more_than_allowed(name, clip):
    query, statistic, shape = statistics(clip)[name]
    near, rng = math.log10(clip), np.random.default_rng(7)
    for seed, exponent in enumerate([near, near, near + 1, *rng.uniform(-300, 300, 2), -300, 297]):
        assert climb(query, statistic, shape, exponent, seed) <= 1


def test_the_climb_finds_what_is_there_to_be_found():
    """Without a reason for sqrt(2) the same search exceeds it, so it would notice a reason that fails."""
    query = Query("any vectors", D, 1.0, math.sqrt(2))
    found = climb(query, lambda subjects: [np.asarray(subjects[0])], (1, D), 0.0, 0)
    assert found > 1.2


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-20, 1.0, 1e20, 1e40, 1e300])
def test_the_units_of_a_scan_do_not_matter(scale):
    """Projectors are those of the directions, whatever the units in which a scan is written."""
    scan = np.random.default_rng(3).normal(size=(40, D)) * np.geomspace(1, 20, D)
    site = SubjectSite([scan, scan * scale], R)
    plain, other = (row[0] for row in site(SUBSPACE, b"", b""))
    assert np.linalg.norm(plain) > 1
    np.testing.assert_allclose(other, plain, atol=1e-5)


@pytest.mark.parametrize("clip", [1e-60, 1e-20, 1e20, 1e60])
def test_small_and_large_clips_find_the_same_components(clip):
    rng = np.random.default_rng(0)
    sites = [[rng.normal(size=(30, D)) * np.geomspace(9, 1, D) for _ in range(4)] for _ in range(3)]
    plain = CapePCA(R, mechanism="none", clip=1.0).fit(sites)
    other = CapePCA(R, mechanism="none", clip=clip).fit([[scan * clip for scan in site] for site in sites])
    np.testing.assert_allclose(other.components_, plain.components_, atol=1e-5)


@pytest.mark.parametrize("clip", [1e-300, 1e-150, 1e150, 1e300])
def test_a_clip_beyond_exact_arithmetic_is_refused(clip):
    sites = [np.ones((3, 2))] * 3
    with pytest.raises(InputError, match=r"must lie between 1e-140 and 1e\+140, got"):
        private_mean(sites, clip=clip, epsilon=1.0)
    with pytest.raises(InputError, match=r"clip must be between 1e-70 and 1e\+70, got"):
        CapePCA(2, 1.0, clip=clip).fit([[np.ones((4, 3))] * 2] * 3)
    with pytest.raises(InputError, match="must lie between"):
        PrivateKMeans(n_clusters=2, radius=clip, epsilon=1.0).fit(sites)
    PrivateHistogram([0.0, clip], epsilon=1.0).fit([[0.0, 1.0]] * 3)
