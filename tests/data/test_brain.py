"""Simulated brains: what the volumes are made of, what the confounds say of them, what is on disk."""

import json
import tracemalloc

import nibabel
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.ndimage import gaussian_filter, label, shift

from capedjica.data.simulated.brain import BASELINE, MOTION, SPACE, BrainModel, mni_brain
from capedjica.data.simulated.brain_files import BidsFolder, NiftiFolder
from capedjica.errors import InputError

SITES, R, VOLUMES, SIZE = (3, 4, 3), 4, (60, 90), 12.0


def draw(**changes):
    return BrainModel.draw(SITES, R, VOLUMES, SIZE, changes.pop("seed", 0), **changes)


@pytest.fixture(scope="module")
def model():
    return draw(noise=0.0)


@pytest.fixture(scope="module")
def recordings(model):
    return list(model.recordings())


# The brain --------------------------------------------------------------------------------------------------


def test_the_usual_box_of_mni_space():
    brain = mni_brain(3.0)
    assert brain.mask.shape == (61, 73, 61)
    assert_array_equal(brain.affine[:3, 3], [-90, -126, -72])
    # The volume of the template's brain, in litres, whatever the voxels.
    volumes = [mni_brain(size).n_voxels * size**3 / 1e6 for size in (3.0, 6.0, 8.0, 12.0)]
    assert_allclose(volumes, 1.88, rtol=0.03)
    assert brain.places.min() > -126
    assert mni_brain(3.0) is brain


@pytest.mark.parametrize("size", [0.0, 1.0, 13.0, float("nan")])
def test_voxels_of_another_world(size):
    with pytest.raises(InputError, match=r"voxel_size must be between 2 and 12 mm, got"):
        mni_brain(size)


def test_features_are_the_voxels_in_nilearns_order(model):
    from nilearn.maskers import NiftiMasker

    brain = model.brain
    masker = NiftiMasker(brain.mask_image(), standardize=None).fit()
    maps = model.signal.maps.astype(np.float32)
    assert_array_equal(masker.transform(brain.image(maps)), maps)


# The maps ---------------------------------------------------------------------------------------------------


def test_networks_of_one_to_three_compact_blobs_some_bilateral():
    model = BrainModel.draw((2, 2), 12, (60, 60), 6.0, 3)
    maps, brain = model.signal.maps, model.brain
    assert_allclose(maps.max(axis=1), 1.0, atol=0.3)
    assert maps.min() >= 0
    assert np.linalg.svd(maps / np.linalg.norm(maps, axis=1, keepdims=True), compute_uv=False).min() > 0.3
    counts, sides = [], []
    for one in maps:
        above = brain.image((one > 0.35 * one.max()).astype(np.uint8)).get_fdata() > 0
        counts.append(label(above)[1])
        weight = one * np.sign(brain.places[:, 0])
        sides.append(abs(weight.sum()) / one.sum())
    assert set(counts) <= {1, 2, 3}
    assert len(set(counts)) > 1
    assert min(sides) < 0.2
    assert max(sides) > 0.8


def test_no_room_for_thousands_of_networks():
    with pytest.raises(InputError, match="n_components is too large for voxel_size 12 mm"):
        BrainModel.draw((2, 2), 500, (60, 60), 12.0)


# The volumes ------------------------------------------------------------------------------------------------


def disturbances(brain):
    """Every pattern that equation (1) adds to the signal, as rows."""
    ventricles = np.exp(-0.5 * (np.linalg.norm(brain.places - (0, -20, 15), axis=1) / 25) ** 2)
    return np.vstack(
        [np.ones(brain.n_voxels), brain.places.T, brain.baseline, ventricles, brain.motion_patterns]
    )


def outside(volumes, patterns):
    """How much of centred volumes is outside the span of some patterns."""
    basis = np.linalg.qr(patterns.T)[0]
    centred = volumes - volumes.mean(axis=0)
    return np.linalg.norm(centred - centred @ basis @ basis.T) / np.linalg.norm(centred)


def test_a_volume_is_what_the_equation_says_and_nothing_else(model, recordings):
    maps, others = model.signal.maps, disturbances(model.brain)
    shuffled = np.random.default_rng(0).permutation(maps.T).T
    for _, volumes, _ in recordings:
        assert outside(volumes, np.vstack([maps, others])) < 1e-4
        assert outside(volumes, np.vstack([shuffled, others])) > 0.03
        assert outside(volumes, maps) > 0.03


def test_the_baseline_is_a_hundred_times_a_per_cent(model, recordings):
    for run, volumes, _ in recordings:
        mean = volumes.mean(axis=0) / run.gain
        deep = model.brain.baseline > 0.99
        assert_allclose(mean[deep], BASELINE, rtol=0.05)


def has_noise_scale(noisy, model, noise):
    """Whether noise has this scale: 600,000 values outside all patterns, standard error 0.1%."""
    basis = np.linalg.qr(np.vstack([model.signal.maps, disturbances(model.brain)]).T)[0]
    squares, count = 0.0, 0
    for run, volumes, _ in noisy.recordings():
        values = volumes / run.gain
        values -= values.mean(axis=0)
        residual = values - values @ basis @ basis.T
        squares += np.sum(residual**2)
        count += (len(values) - 1) * (basis.shape[0] - basis.shape[1])
    unit = np.sqrt(np.sum(model.signal.maps**2) / model.brain.n_voxels)
    return abs(np.sqrt(squares / count) / (noise * unit) - 1) < 0.01  # false alarm below 1e-9


def test_noise_has_the_stated_scale_and_no_other(model):
    noisy = draw(noise=0.5)
    assert has_noise_scale(noisy, model, 0.5)
    assert not has_noise_scale(noisy, model, 0.5 / 0.7)
    assert not has_noise_scale(noisy, model, 0.5 / 1.3)


def test_sites_differ_and_some_people_have_two_runs():
    runs = BrainModel.draw((40, 40, 40), R, VOLUMES, SIZE, 0).runs
    by_site = [
        {(run.n_volumes, run.repetition_time, run.gain) for run in runs if run.site == s} for s in range(3)
    ]
    assert [len(kinds) for kinds in by_site] == [1, 1, 1]
    lengths, times, gains = zip(*(next(iter(kinds)) for kinds in by_site), strict=True)
    assert len(set(lengths)) == len(set(times)) == len(set(gains)) == 3
    assert all(60 <= length <= 90 for length in lengths)
    assert [run.person for run in runs if run.is_last] == list(range(120))
    assert 6 < sum(run.number == 2 for run in runs) < 48  # false alarm below 1e-4 for a new seed; it is fixed
    assert all(run.is_last == (run.number in (None, 2)) for run in runs)


def test_a_displaced_head_is_the_shifted_image():
    brain = mni_brain(3.0)
    smooth = gaussian_filter(brain.mask.astype(float), 2)  # voxels, 6 mm
    change = (shift(smooth, (0.5 / 3, 0, 0), order=3) - smooth)[brain.mask]
    linear = 0.5 * brain.motion_patterns[0]
    assert np.corrcoef(change, linear)[0, 1] > 0.99
    assert_allclose(np.polyfit(linear, change, 1)[0], 1, atol=0.05)


def test_images_without_confounds_have_neither_motion_nor_physiology(model):
    brain = model.brain
    slow = np.vstack([model.signal.maps, np.ones(brain.n_voxels), brain.places.T])
    for _, volumes, _ in model.recordings(disturbed=False):
        assert outside(volumes, slow) < 1e-4


def test_the_seed_decides_everything():
    first, again, other = (list(draw(seed=seed).recordings()) for seed in (5, 5, 6))
    for (run, volumes, confounds), (same_run, same_volumes, same_confounds) in zip(first, again, strict=True):
        assert run == same_run
        assert_array_equal(volumes, same_volumes)
        for name, column in confounds.items():
            assert_array_equal(column, same_confounds[name])
    assert not np.array_equal(first[0][1][:60], other[0][1][:60])


@pytest.mark.parametrize("noise", [-1.0, float("inf"), float("nan")])
def test_bad_noise(noise):
    with pytest.raises(InputError, match="noise must be"):
        draw(noise=noise)


# Confounds --------------------------------------------------------------------------------------------------


def test_outliers_are_the_volumes_in_which_the_head_jerked(recordings):
    n_outliers = 0
    for _, _, confounds in recordings:
        flagged = {
            int(column.argmax()) for name, column in confounds.items() if name.startswith("motion_out")
        }
        moved = set(np.flatnonzero(confounds["framewise_displacement"] > 0.5))
        assert moved <= flagged
        n_outliers += len(moved)
        assert np.isnan(confounds["framewise_displacement"][0])
        assert_allclose(np.nanmedian(confounds["std_dvars"]), 1)
    assert n_outliers > 5


def test_confounds_explain_what_disturbs(model, recordings):
    """Least squares on the confounds leaves the signal, and hardly anything else."""
    patterns = disturbances(model.brain)
    signal = np.linalg.pinv(np.vstack([model.signal.maps, patterns]))
    for run, volumes, confounds in recordings:
        columns = [column for name, column in confounds.items() if name in (*MOTION, "csf", "white_matter")]
        columns += [column for name, column in confounds.items() if name.startswith("cosine")]
        trend = np.linspace(-1, 1, run.n_volumes)
        design = np.linalg.qr(np.column_stack([np.ones(run.n_volumes), trend, *columns]))[0]
        cleaned = volumes - design @ (design.T @ volumes)
        before, after = ((x - x.mean(axis=0)) @ signal[:, R:] @ patterns for x in (volumes, cleaned))
        assert np.linalg.norm(after) < 0.3 * np.linalg.norm(before)


# Files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def derivatives(tmp_path_factory, model, recordings):
    folder = tmp_path_factory.mktemp("site") / "data"
    site = BidsFolder(folder, ["sub-0001", "sub-0002", "sub-0003"])
    for run, volumes, confounds in recordings:
        if run.site == 0:
            site.write(f"sub-{run.person + 1:04}", model.brain, run, volumes, confounds)
    return folder


def test_derivatives_are_laid_out_as_fmriprep_does(derivatives):
    description = json.loads((derivatives / "dataset_description.json").read_text())
    assert description["DatasetType"] == "derivative"
    assert description["GeneratedBy"][0]["Name"] == "capedjica simulate"
    lines = (derivatives / "participants.tsv").read_text().splitlines()
    assert lines == ["participant_id", "sub-0001", "sub-0002", "sub-0003"]
    for image in derivatives.glob("sub-*/func/*_desc-preproc_bold.nii.gz"):
        assert f"_task-rest_{'run-' if 'run-' in image.name else 'space-'}" in image.name
        assert f"_space-{SPACE}_" in image.name
        assert image.with_name(image.name.replace("preproc_bold", "brain_mask")).exists()
        facts = json.loads(image.with_name(image.name.replace(".nii.gz", ".json")).read_text())
        assert facts["RepetitionTime"] == nibabel.load(image).header.get_zooms()[3]
    assert len(list(derivatives.glob("sub-*/func/*.tsv"))) == len(
        list(derivatives.glob("sub-*/func/*bold.json"))
    )


def test_integers_with_a_factor_hold_the_volumes(model, recordings, tmp_path):
    run, volumes, confounds = recordings[0]
    NiftiFolder(tmp_path / "data", []).write("sub-0001", model.brain, run, volumes, confounds)
    (path,) = (tmp_path / "data").iterdir()
    image = nibabel.load(path)
    assert image.get_data_dtype() == np.int16
    assert image.dataobj.slope != 1
    assert image.shape == (*model.brain.mask.shape, run.n_volumes)
    assert_array_equal(image.affine, model.brain.affine)
    assert image.header.get_xyzt_units() == ("mm", "sec")
    assert image.header["sform_code"] == image.header["qform_code"] == 4
    # Rounded to a part of 4095 of the largest value.
    assert_allclose(
        image.get_fdata()[model.brain.mask].T, volumes, rtol=0, atol=0.51 * np.abs(volumes).max() / 4095
    )
    assert not image.get_fdata()[~model.brain.mask].any()


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        (("motion", "wm_csf", "high_pass"), {"trans_x", "rot_z_derivative1_power2", "csf", "cosine00"}),
        (("motion", "high_pass", "scrub"), {"trans_x_power2", "rot_x_derivative1"}),
        (("high_pass", "global_signal"), {"global_signal", "cosine00"}),
    ],
)
def test_nilearn_reads_the_confounds(derivatives, strategy, names):
    from nilearn.interfaces.fmriprep import load_confounds

    for image in derivatives.glob("sub-*/func/*_desc-preproc_bold.nii.gz"):
        confounds, kept = load_confounds(str(image), strategy=strategy)
        assert names <= set(confounds.columns)
        assert len(confounds) == nibabel.load(image).shape[3]
        assert np.isfinite(confounds.to_numpy()).all()
        assert kept is None or len(kept) < len(confounds)


def test_memory_is_that_of_one_run():
    model = BrainModel.draw((10, 10), R, (60, 60), 6.0)
    size = 4 * 60 * model.brain.n_voxels
    for _ in draw().recordings():  # compiles and loads what is needed
        pass
    tracemalloc.start()
    for _ in model.recordings():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(model.runs) > 20
    assert peak < 5 * size
