"""
Guided by a template
====================

``method="guided"`` starts at a template and estimates the networks of the participants as far as the budget
allows. It also measures the *support* of each network: how much of its map lies in the main directions of
the scans. A network without support comes from the template, not from the data.
"""

# %%
# A template that is partly wrong
# -------------------------------
# Five networks are in the data. In the template they are blurred and one pixel off, as in a template of
# other scanners, and it has a sixth that does not exist: random values.

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter

from capedjica import CapeDJICA
from capedjica.data import make_synthetic
from capedjica.metrics import matched_map_correlation

study = make_synthetic(4, n_subjects=400, n_components=5, n_timepoints=150, image_side=16, random_state=2)
truth, shape = study.mixing.T, study.image_shape
blurred = [np.roll(gaussian_filter(one.reshape(shape), 1.0), 1, axis=0).ravel() for one in truth]
invented = gaussian_filter(np.random.default_rng(0).normal(size=shape), 1).ravel()
template = np.array([*blurred, invented / np.abs(invented).max()])
names = [*(f"network {number}" for number in range(1, 6)), "invented"]

ica = CapeDJICA(
    method="guided",
    template=template,
    template_names=names,
    template_origin="public",
    epsilon=8.0,
    image_shape=shape,
    scan_length=150,
).fit(study.sites)

# %%
# Support and movement
# --------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
support = [movement.support or 0.0 for movement in ica.movements_]
left.barh(names, support, xerr=[2 * movement.support_noise for movement in ica.movements_], color="tab:blue")
left.axvline(ica.movements_[0].least_support, color="black", linestyle="--")
left.set(xlabel="support in the scans", title="Which networks are in the data?")
left.invert_yaxis()
for measured, label in ((template, "template"), (ica.components_, "result")):
    agreement = [abs(np.corrcoef(one, other)[0, 1]) for one, other in zip(measured, truth, strict=False)]
    right.plot(range(1, 6), agreement, "o-", label=label)
right.set(xlabel="network", ylabel="correlation with the truth", xticks=range(1, 6))
right.legend()

# %%
# Left: the dashed line is the support below which a network is not considered part of these data. Right:
# where the evidence allows, maps leave the template towards the truth. Not every map gains: unlike the
# template, the estimate has privacy noise, and a network that does not exist disturbs the others.

before, after = (matched_map_correlation(maps[:5], truth) for maps in (template, ica.components_))
print(f"correlation with the truth: template {before:.3f}, result {after:.3f}")
print(ica.privacy_.guarantee.protected)
plt.show()
