"""Small images as a scanner and fMRIPrep would leave them: a box of a brain, two atlases of it, a mask."""

import json

import nibabel
import numpy as np

SHAPE, T, TR = (9, 10, 8), 40, 2.0
AFFINE = np.diag([4.0, 4.0, 4.0, 1.0])
AFFINE[:3, 3] = (-16.0, -20.0, -16.0)
SPACE = "MNI152NLin2009cAsym"
INSIDE = np.zeros(SHAPE, dtype=bool)
INSIDE[1:8, 1:9, 1:7] = True
# Four regions with gaps between their numbers, one of them a single voxel.
LABELS = np.zeros(SHAPE, dtype=np.int16)
LABELS[1:4, 1:9, 1:7], LABELS[4:6, 1:9, 1:7], LABELS[6:8, 1:9, 1:7], LABELS[7, 8, 6] = 3, 7, 20, 11
MAPS = np.stack([np.exp(-((np.indices(SHAPE)[i] - 4) ** 2) / 6.0) * INSIDE for i in range(3)], axis=-1)
MOTION = [f"{kind}_{axis}" for kind in ("trans", "rot") for axis in "xyz"]


def volumes(seed=0, shape=SHAPE, n_volumes=T, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return (1000 + 20 * rng.standard_normal((*shape, n_volumes))).astype(dtype)


def image(values, affine=AFFINE, tr=TR, unit="sec"):
    made = nibabel.Nifti1Image(values, affine)
    if values.ndim == 4:
        made.header.set_zooms((*made.header.get_zooms()[:3], tr))
        made.header.set_xyzt_units("mm", unit)
    return made


def save(path, values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image(values, **options), path)
    return path


def public_files(folder):
    """An atlas of labels, one of maps and a mask, in a folder."""
    save(folder / "labels.nii.gz", LABELS)
    save(folder / "maps.nii.gz", MAPS)
    save(folder / "mask.nii.gz", INSIDE.astype(np.uint8))
    return folder


def fmriprep(folder, subject, *, task="rest", session=None, run=None, space=SPACE, seed=0, **options):
    """One run as fMRIPrep writes it; return the path of the image."""
    places = [f"sub-{subject}", *([f"ses-{session}"] if session else [])]
    entities = [*places, f"task-{task}", *([f"run-{run}"] if run else [])]
    func = folder.joinpath(*places, "func")
    stem = "_".join(entities)
    path = save(func / f"{stem}_space-{space}_desc-preproc_bold.nii.gz", volumes(seed), **options)
    path.with_name(path.name.replace(".nii.gz", ".json")).write_text(json.dumps({"RepetitionTime": TR}))
    write_confounds(func / f"{stem}_desc-confounds_timeseries.tsv", seed)
    return path


def write_confounds(path, seed=0, n_rows=T, spikes=()):
    """fMRIPrep's table of confounds: motion, tissues, cosines, and how much the head moved."""
    rng = np.random.default_rng(seed + 1000)
    columns = {}
    for name in [*MOTION, "csf", "white_matter", "global_signal"]:
        values = rng.standard_normal(n_rows)
        steps = np.concatenate([[np.nan], np.diff(values)])
        columns |= {name: values, f"{name}_derivative1": steps}
        columns |= {f"{name}_power2": values**2, f"{name}_derivative1_power2": steps**2}
    for k in range(2):
        columns[f"cosine{k:02d}"] = np.cos(np.pi / n_rows * (np.arange(n_rows) + 0.5) * (k + 1))
    columns["framewise_displacement"] = np.concatenate([[np.nan], np.full(n_rows - 1, 0.1)])
    columns["std_dvars"] = np.concatenate([[np.nan], np.full(n_rows - 1, 1.0)])
    columns["framewise_displacement"][list(spikes)] = 3.0
    rows = zip(*columns.values(), strict=True)
    lines = ["\t".join("n/a" if np.isnan(x) else f"{x:.12g}" for x in row) for row in rows]
    path.write_text("\n".join(["\t".join(columns), *lines]) + "\n")
    path.with_suffix(".json").write_text("{}")
    return path
