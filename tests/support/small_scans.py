"""A small study of images: sites as fMRIPrep leaves them, made by the simulation."""

from pathlib import Path

import msgspec
import nibabel
import numpy as np

from capedjica.one_machine.simulation import Simulation, simulate
from capedjica.study.study_file import Study, write_study

SUBJECTS = (5, 6, 5)
COMPONENTS = 3


def make_scans(folder: Path, subjects: tuple[int, ...] = SUBJECTS) -> Study:
    """Write three sites with images and a study of the voxels of a mask."""
    simulation = Simulation.usual(
        "bids",
        subjects=subjects,
        n_components=COMPONENTS,
        n_timepoints=(60, 70),
        voxel_size=12.0,
        epsilon=50.0,
    )
    simulate(simulation, folder)
    return Study.load(folder)


def write_atlas(mask: Path, atlas: Path, edge: int = 4) -> int:
    """Cut the brain of a mask into cubes, with numbers that leave some out; return how many there are."""
    image = nibabel.load(mask)
    places = np.indices(image.shape) // edge
    cubes = 10 + places[0] + 20 * places[1] + 400 * places[2]
    labels = np.where(np.asarray(image.dataobj) > 0, cubes, 0).astype(np.int32)
    nibabel.save(nibabel.Nifti1Image(labels, image.affine), atlas)
    return len(np.unique(labels)) - 1


def atlas_study(study: Study) -> Study:
    """Write a study of the same sites whose features are the regions of an atlas; their names are known."""
    n_regions = write_atlas(study.folder / "mask.nii.gz", study.folder / "atlas.nii.gz")
    (study.folder / "atlas.tsv").write_text(
        "index\tname\n" + "".join(f"{n}\tcube {n}\n" for n in range(9999))
    )
    features = msgspec.structs.replace(
        study.content.features,
        kind="atlas",
        atlas="atlas.nii.gz",
        mask=None,
        mask_sha256=None,
        n_features=n_regions,
    )
    content = msgspec.structs.replace(
        study.content,
        title="Regions",
        features=features,
    )
    write_study(study.folder / "atlas.toml", content)
    return Study.load(study.folder / "atlas.toml")
