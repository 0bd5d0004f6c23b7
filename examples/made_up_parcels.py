"""A made-up image of regions in MNI space, to try out what tables of regions look like on a brain.

The brain mask that nilearn brings along is cut into regions of about equal size by k-means. They are no
anatomy: use the image of the atlas that your tables were made with. Beside the image goes a table of names,
with the side of the brain as the system of each region.

Run: python examples/made_up_parcels.py 200 parcels.nii.gz
"""

import sys
from pathlib import Path

import numpy as np
from nibabel.nifti1 import Nifti1Image
from nilearn.datasets import load_mni152_brain_mask
from scipy.cluster.vq import kmeans2


def main(n_regions: int, out: Path) -> None:
    """Write an image of labels from 1 on, and ``.tsv`` beside it."""
    mask = load_mni152_brain_mask(resolution=4)
    inside = np.asarray(mask.dataobj) > 0
    places = np.argwhere(inside) @ mask.affine[:3, :3].T + mask.affine[:3, 3]
    centres, regions = kmeans2(places, n_regions, minit="++", rng=0)
    labels = np.zeros(mask.shape, dtype=np.int16)
    labels[inside] = regions + 1
    Nifti1Image(labels, mask.affine).to_filename(out)
    rows = ["index\tname\tsystem"]
    for number, (x, y, z) in enumerate(centres, start=1):
        side = "left" if x < -5 else "right" if x > 5 else "midline"
        rows.append(f"{number}\tparcel {number} ({x:.0f}, {y:.0f}, {z:.0f})\t{side}")
    table = out.with_name(out.name.removesuffix(".gz").removesuffix(".nii") + ".tsv")
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
