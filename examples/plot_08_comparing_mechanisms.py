"""
Comparing mechanisms
====================

What does it cost that no party is trusted? The same mean at the same ε by every mechanism, for consortia of
different sizes.
"""

# %%
# One mean, five mechanisms
# -------------------------
# ``pooled`` is the reference: a trusted curator who holds all data. ``conventional`` is independent noise of
# each site, ``local`` a single site. The noise follows from public numbers alone.

import matplotlib.pyplot as plt
import numpy as np

from capedjica import private_mean

MECHANISMS = {
    "pooled": {"mechanism": "pooled"},
    "cape, uniform masks": {"mechanism": "cape"},
    "cape, the paper's masks": {"mechanism": "cape", "masking": "paper"},
    "conventional": {"mechanism": "conventional"},
    "local": {"mechanism": "local"},
}
rng = np.random.default_rng(0)
numbers_of_sites = (3, 5, 10, 20)
noise = {name: [] for name in MECHANISMS}
for n_sites in numbers_of_sites:
    sites = [rng.normal(size=(50, 4)) for _ in range(n_sites)]
    for name, options in MECHANISMS.items():
        noise[name].append(private_mean(sites, clip=3.0, epsilon=1.0, **options).noise)

# %%
# Standard deviation of the noise, relative to the trusted curator. With uniform masks it is sqrt(S/S_H),
# where S_H of the S sites do not collude: the price of trusting no party is small and does not grow with the
# consortium.

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for name, values in noise.items():
    ax.loglog(numbers_of_sites, np.array(values) / noise["pooled"], "o-", label=name)
ax.set(xlabel="number of sites, 50 participants each", ylabel="noise relative to pooled")
ax.set_xticks(numbers_of_sites, map(str, numbers_of_sites))
ax.minorticks_off()
ax.legend()

# %%
# Who is trusted
# --------------
# Less noise is worth nothing if the wrong party is trusted: against whom each guarantee holds is part of the
# result.

for name, options in MECHANISMS.items():
    privacy = private_mean(sites[:4], clip=3.0, epsilon=1.0, **options).privacy
    print(f"{name}: against {privacy.adversary.against}\n")
plt.show()
