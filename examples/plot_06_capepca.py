"""
Principal components
====================

capePCA: the directions of largest variation of scans at several hospitals, with correlated noise (Imtiaz et
al.), compared with what a single hospital could release and with the components of the pooled data.
"""

# %%
# Data with a known subspace
# --------------------------
# Each subject has 60 time points of 20 features, most of whose variance lies in three directions.

import matplotlib.pyplot as plt
import numpy as np

from capedjica import CapePCA
from capedjica.metrics import captured_energy

rng = np.random.default_rng(3)
axes_true = np.linalg.qr(rng.normal(size=(20, 3)))[0]
strength = np.array([1.0, 0.7, 0.5])


def make_subject():
    """Return the (time, features) array of a subject, of norm about 1 at each time point."""
    return rng.normal(size=(60, 3)) * strength @ axes_true.T + 0.1 * rng.normal(size=(60, 20))


sites = {
    name: [make_subject() for _ in range(n)] for name, n in (("a", 60), ("b", 90), ("c", 50), ("d", 100))
}

# %%
# Components at several ε
# -----------------------
# The quality is the energy of the pooled data that the components capture, relative to the best three
# directions. ``clip``, the largest norm of a time point, is public.

moments = sum(subject.T @ subject / len(subject) for site in sites.values() for subject in site) / 300
budgets = (0.1, 0.3, 1.0, 3.0)
mechanisms = {
    "cape": "four hospitals (cape)",
    "conventional": "independent noise",
    "local": "the largest hospital alone",
}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for mechanism, label in mechanisms.items():
    quality = []
    for budget in budgets:
        pca = CapePCA(3, epsilon=budget, clip=2.0, mechanism=mechanism).fit(sites)
        quality.append(captured_energy(pca.components_.T, moments, relative=True))
    left.semilogx(budgets, quality, "o-", label=label)
left.set(xlabel="ε", ylabel="captured energy, relative to the best", ylim=(0, 1.05))
left.set_xticks(budgets, map(str, budgets))
left.legend()

# %%
# Right: the cosines between the components at ε = 3 and the true directions. Components of about equal
# variance may rotate among each other; the subspace they span is what is estimated.

pca = CapePCA(3, epsilon=3.0, clip=2.0).fit(sites)
image = right.imshow(np.abs(pca.components_ @ axes_true), vmin=0, vmax=1, cmap="Blues")
right.set(xlabel="true direction", ylabel="component", xticks=range(3), yticks=range(3), title="|cosine|")
figure.colorbar(image)
print(pca.privacy_.guarantee.protected)
plt.show()
