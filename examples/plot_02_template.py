"""
Networks of a template
======================

If networks are already known, the budget need not be spent on finding them. ``method="template"`` releases
one mean: how far the participants' own maps are from the template. Networks that did not move keep the
template's map.
"""

# %%
# A template from other participants
# ----------------------------------
# Here the template is the truth of the simulation, with one change: in the data, the first network lies
# elsewhere.

import matplotlib.pyplot as plt
import numpy as np

from capedjica import CapeDJICA
from capedjica.data import make_synthetic

study = make_synthetic(3, n_subjects=240, n_components=4, n_timepoints=120, image_side=12, random_state=1)
template = study.mixing.T.copy()
elsewhere = np.roll(template[0].reshape(study.image_shape), 2, axis=1)
template[0] = elsewhere.ravel()
names = ["shifted", "second", "third", "fourth"]

# %%
# The origin of a template is the author's statement: the guarantee does not cover the template itself.

ica = CapeDJICA(
    method="template",
    template=template,
    template_names=names,
    template_origin="public",
    epsilon=3.0,
    image_shape=study.image_shape,
    scan_length=120,
).fit(study.sites)

# %%
# What moved
# ----------
# For each network: its distance from the template, the distance expected from the privacy noise alone, and
# whether the difference is more than noise explains.

for movement in ica.movements_:
    print(
        f"{movement.name:8}  distance {movement.distance:.2f}  by noise {movement.noise:.2f}  "
        f"{'moved' if movement.moved else 'not moved'}"
    )

# %%
# The first map went back to where the network is in the data; the others are the template's.

rows = {"template": template, "truth": study.mixing.T, "result": ica.components_}
figure, axes = plt.subplots(3, 4, figsize=(8, 6), layout="constrained")
for row, (label, maps) in zip(axes, rows.items(), strict=True):
    row[0].set_ylabel(label, fontsize=12)
    for ax, one in zip(row, maps, strict=True):
        ax.imshow((one / np.abs(one).max()).reshape(study.image_shape), cmap="RdBu_r", vmin=-1, vmax=1)
        ax.set(xticks=[], yticks=[])
for ax, name in zip(axes[0], names, strict=True):
    ax.set_title(name)
plt.show()
