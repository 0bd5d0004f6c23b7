"""
Comparing groups
================

Do the networks of patients and controls differ? Effects with confidence intervals that account for the
privacy noise, for participants of three hospitals, adjusted for age and hospital.
"""

# %%
# The data
# --------
# Simulated scans of six features. In patients, the first feature is stronger and the second weaker.

import matplotlib.pyplot as plt
import numpy as np

from capedjica import GroupComparison

rng = np.random.default_rng(0)
LEVELS, N_FEATURES = ["control", "patient"], 6


def make_site(n_participants):
    """Return scans, and the columns of participants.tsv."""
    patient = rng.random(n_participants) < 0.5
    age = rng.uniform(20, 70, n_participants)
    strength = np.ones((n_participants, N_FEATURES))
    strength[patient, 0], strength[patient, 1] = 1.6, 0.65
    strength *= np.exp(0.15 * rng.normal(size=strength.shape))
    scans = [rng.normal(size=(120, N_FEATURES)) * one for one in strength]
    return scans, {"group": np.array(LEVELS)[patient.astype(int)], "age": age}


sites = {name: make_site(n) for name, n in (("north", 130), ("south", 90), ("west", 180))}

# %%
# The comparison
# --------------
# Ranges, levels, centre and scale are public: they state what is possible and come from the literature,
# never from these participants. The outcome is the log standard deviation of each feature, relative to the
# participant's mean.

comparison = GroupComparison(
    outcome="amplitudes",
    contrast="group",
    bounds={"group": LEVELS, "age": (18, 80)},
    center=0.0,
    scale=0.25,
    epsilon=3.0,
).fit(
    {name: scans for name, (scans, _) in sites.items()}, {name: table for name, (_, table) in sites.items()}
)

# %%
# The findings
# ------------
# Groups are coded -1 and 1, so an effect is half the difference between the groups. Gray: the part of the
# uncertainty that is privacy noise.

figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
place = np.arange(N_FEATURES)
low, high = comparison.intervals_.T
ax.bar(
    place, 4 * comparison.noise_, 0.5, bottom=comparison.effects_ - 2 * comparison.noise_, color="lightgray"
)
ax.vlines(place, low, high, color="tab:blue")
ax.plot(place, comparison.effects_, "o", color="tab:blue")
ax.axhline(0, color="black", linewidth=0.8)
ax.set(
    xticks=place, xticklabels=[f"q = {q:.2g}" for q in comparison.q_values_], ylabel="effect, 95% interval"
)
ax.set_title("Amplitudes: half the difference between patients and controls")

# %%
# "Not significant" does not mean "no difference": read the interval.

for name, effect, q in zip(comparison.names_, comparison.effects_, comparison.q_values_, strict=True):
    print(f"{name:>12}: {effect:+.3f}  {'found' if q < 0.05 else 'not found at this ε'}")
print(comparison.privacy_.guarantee.protected)
plt.show()
