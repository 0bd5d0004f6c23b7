"""
Private GLM on regional volumes
===============================

The volumes of 40 regions of the brain at four hospitals: which shrink with age? One call of
:func:`capedjica.private_glm` estimates all effects with confidence intervals; nothing but noisy means leaves
a hospital.
"""

# %%
# Regions and volumes
# -------------------
# The regions are made up: pieces of the brain mask that comes with nilearn. A real study has the table of
# volumes from FreeSurfer or CAT12. Volumes are in standard units of a public cohort; half of the regions,
# those in front, lose 0.02 per year.

import matplotlib.pyplot as plt
import numpy as np
from nibabel.nifti1 import Nifti1Image
from nilearn.datasets import load_mni152_brain_mask
from nilearn.plotting import plot_stat_map
from scipy.cluster.vq import kmeans2

from capedjica import private_glm

N_REGIONS = 40
mask = load_mni152_brain_mask(resolution=6)
inside = np.asarray(mask.dataobj) > 0
places = np.argwhere(inside) @ mask.affine[:3, :3].T + mask.affine[:3, 3]
centres, region = kmeans2(places, N_REGIONS, minit="++", rng=0)
in_front = centres[:, 1] > np.median(centres[:, 1])
true_effects = np.where(in_front, -0.02, 0.0)

rng = np.random.default_rng(0)
design, volumes = {}, {}
for site, n_participants in (("north", 320), ("south", 250), ("west", 400), ("east", 230)):
    age, sex = rng.uniform(20, 80, n_participants), rng.choice(["f", "m"], n_participants)
    noise = rng.normal(size=(n_participants, N_REGIONS)) + 0.3 * (sex == "m")[:, np.newaxis]
    design[site] = {"age": age, "sex": sex}
    volumes[site] = (age - 50)[:, np.newaxis] * true_effects + noise

# %%
# The model
# ---------
# Age is the contrast; sex and hospital are adjusted for. Ranges, centre and scale are public.

result = private_glm(
    volumes,
    design,
    contrast="age",
    epsilon=3.0,
    bounds={"age": (18, 90), "sex": ["f", "m"]},
    center=0.0,
    scale=1.0,
    names=[f"region {number}" for number in range(1, N_REGIONS + 1)],
)
found = result.q_values_ < 0.05
print(f"{found[in_front].sum()} of {in_front.sum()} true effects found, {found[~in_front].sum()} false ones")
print(f"effects of clipped outcomes are smaller by a factor of about {result.findings_.attenuation:.2f}")
print(result.privacy_.guarantee.protected)

# %%
# Effects on the brain, and their intervals
# -----------------------------------------

values = np.zeros(mask.shape, dtype=np.float32)
values[inside] = (result.effects_ * found)[region]
plot_stat_map(
    Nifti1Image(values, mask.affine),
    display_mode="z",
    cut_coords=5,
    draw_cross=False,
    title="significant effects of age, per year",
)

order = np.argsort(true_effects, kind="stable")
figure, ax = plt.subplots(figsize=(10, 3.4), layout="constrained")
low, high = result.intervals_[order].T
ax.vlines(range(N_REGIONS), low, high, color="tab:blue")
ax.plot(true_effects[order] * result.findings_.attenuation, "k_", label="truth, attenuated by clipping")
ax.axhline(0, color="black", linewidth=0.8)
ax.set(xlabel="region", ylabel="effect of a year, 95% interval")
ax.legend()
plt.show()
