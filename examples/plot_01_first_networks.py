"""
First networks
==============

Four hospitals estimate brain networks jointly. No scan leaves its hospital, and each participant is
protected with ε = 5 against all parties outside their hospital.
"""

# %%
# The data
# --------
# Simulated scans, so that the truth is known: 300 participants, each with 150 time points of a small image
# in which six networks are active.

import matplotlib.pyplot as plt
import numpy as np

from capedjica import CapeDJICA
from capedjica.data import make_synthetic
from capedjica.metrics import match_components

study = make_synthetic(4, n_subjects=300, n_components=6, n_timepoints=150, image_side=16, random_state=0)
print("participants at each site:", [len(site) for site in study.sites])
print("one scan (time, features):", study.sites[0][0].shape)

# %%
# The estimate
# ------------
# A list of sites, each a list of subjects. All sites run in this process and exchange the real messages of
# the protocol. ``scan_length`` comes from the scanning protocol, never from the scans.

ica = CapeDJICA(n_components=6, epsilon=5.0, image_shape=study.image_shape, scan_length=150)
ica.fit(study.sites)
print(ica.privacy_)

# %%
# The maps
# --------
# ``stability_`` predicts the correlation of each map with that of another run with fresh noise: good from
# 0.9, unreliable below 0.7. It is computed from published results alone. In each title: the stability, and
# the correlation with the truth, which a real study does not know.

match = match_components(ica.components_, study.mixing.T)
figure, axes = plt.subplots(2, 6, figsize=(10, 4), layout="constrained")
for number, (true, found) in enumerate(zip(range(6), match.permutation, strict=True)):
    agreement = abs(np.corrcoef(study.mixing[:, true], ica.components_[found])[0, 1])
    axes[0, number].imshow(study.mixing[:, true].reshape(study.image_shape), cmap="magma")
    axes[1, number].imshow(ica.components_[found].reshape(study.image_shape), cmap="magma")
    axes[1, number].set_title(f"{ica.stability_[found]:.2f}, {agreement:.2f}", fontsize=10)
for row, label in zip(axes, ("truth", "ε = 5"), strict=True):
    row[0].set_ylabel(label, fontsize=12)
    for ax in row:
        ax.set(xticks=[], yticks=[])

# %%
# Time courses
# ------------
# A site computes the time courses of its own participants with the published maps. They are individual
# results, which are not private: they stay at the site.

courses = ica.transform(study.sites[0][0])
figure, ax = plt.subplots(figsize=(10, 3), layout="constrained")
ax.plot(courses[:, :3] + np.arange(3) * 4 * courses[:, :3].std())
ax.set(xlabel="time point", yticks=[], title="three networks of one participant")
plt.show()
