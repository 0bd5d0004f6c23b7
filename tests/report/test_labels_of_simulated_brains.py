"""Labels of private maps of simulated brains, whose networks are known."""

import numpy as np
import pytest

from capedjica import CapeDJICA
from capedjica.algorithms.reliability import RELIABLE
from capedjica.data.simulated.brain import BrainModel
from capedjica.metrics import match_components

SITES, LENGTH = 4, 110


def scans(model):
    """Return every person's scans by site, without fMRIPrep's cosines of slow drift and without motion."""
    people = {}
    for run, volumes, confounds in model.recordings(disturbed=False):
        slow = np.vstack(
            [np.ones(len(volumes)), *(confounds[name] for name in confounds if "cosine" in name)]
        )
        fitted = np.linalg.lstsq(slow.T, volumes, rcond=None)[0]
        cleaned = ((volumes - slow.T @ fitted) / run.gain).astype(np.float32)
        people.setdefault((run.site, run.person), []).append(cleaned)
    return [[np.vstack(runs) for (s, _), runs in people.items() if s == site] for site in range(SITES)]


def regions(maps):
    """Return one label for each voxel: the network that is highest there, 0 where none is at half of it."""
    heights = maps / maps.max(axis=1, keepdims=True)
    return np.where(heights.max(axis=0) >= 0.5, 1 + heights.argmax(axis=0), 0).astype(np.int32)


def labelled(n_components, n_people, voxel_size, epsilon, seed):
    """Return for every stable map whether maps, and labels, give it the name of its true network.

    The atlas of maps holds as many networks of another brain, the one of labels has no maps at all. The true
    network of a map is the one that all maps together match one to one.
    """
    people = [n_people // SITES] * SITES
    model = BrainModel.draw(people, n_components, (LENGTH - 10, LENGTH + 10), voxel_size, seed)
    others = BrainModel.draw([1], n_components, (10, 12), voxel_size, seed + 1000)
    brain, truth = model.brain, model.signal.maps
    ica = CapeDJICA(
        n_components,
        epsilon=epsilon,
        mask_img=brain.mask_image(),
        scan_length=LENGTH,
        insecure_noise_seed=seed,
    ).fit(scans(model))
    order = match_components(ica.components_, truth).permutation
    names = [f"network {number}" for number in range(1, n_components + 1)]
    right = dict(zip(order, names, strict=True))
    atlas = 50 * np.vstack([truth, others.signal.maps]).astype(np.float32) - 20
    by_maps = ica.label(brain.image(atlas), [*names, *(f"other {name}" for name in names)])["name"]
    labels = regions(truth)
    kept = [names[number - 1] for number in np.unique(labels) if number]
    by_labels = ica.label(brain.image(labels), kept)["name"]
    stable = np.flatnonzero(ica.stability_ >= RELIABLE)
    return np.array([(by_maps[r] == right[r], by_labels[r] == right[r]) for r in stable]).reshape(-1, 2)


def test_stable_maps_have_the_right_names():
    found = labelled(4, 60, 12.0, 40.0, seed=0)
    assert len(found) >= 2
    assert found.all()


@pytest.mark.full
def test_at_least_95_of_100_stable_maps_have_the_right_names():
    cases = [(10, 256, 5.0), (10, 256, 10.0), (10, 256, 30.0), (20, 256, 10.0), (20, 256, 30.0)]
    cases += [(40, 512, 30.0), (40, 512, 100.0)]
    results = {(*case, s): labelled(*case[:2], 8.0, case[2], s) for case in cases for s in (1, 2)}
    for case, right in results.items():
        print("components, people, epsilon, seed:", case, "maps:", len(right), "right:", right.sum(axis=0))
    found = np.vstack(list(results.values()))
    print("maps:", len(found), "right by maps and by labels:", found.mean(axis=0))
    assert len(found) > 150
    assert (found.mean(axis=0) >= 0.95).all(), found.mean(axis=0)
