"""Find three groups of patients across four hospitals, with epsilon = 1 for every patient.

Run: python examples/private_kmeans.py
"""

import numpy as np

from capedjica.applications import PrivateKMeans

GROUPS = np.array([[1.2, 0.4], [-0.9, 0.9], [-0.2, -1.2]])


def make_hospital(rng: np.random.Generator, n_patients: int) -> np.ndarray:
    """Return two standardised measurements per patient, who belongs to one of the groups."""
    group = rng.integers(len(GROUPS), size=n_patients)
    return GROUPS[group] + 0.3 * rng.standard_normal((n_patients, 2))


def main() -> None:
    """Cluster, and show the centers beside the groups that the data were made from."""
    rng = np.random.default_rng(2024)
    hospitals = [make_hospital(rng, n_patients) for n_patients in (400, 1200, 800, 600)]
    model = PrivateKMeans(n_clusters=3, radius=2.0, epsilon=1.0, random_state=0).fit(hospitals)
    nearest = model.predict(GROUPS)
    for group, cluster in zip(GROUPS, nearest, strict=True):
        center, share = model.cluster_centers_[cluster].round(2), model.shares_[cluster]
        print(f"group around {group}: center found at {center}, with {share:.0%} of the patients")
    print(model.privacy_)


if __name__ == "__main__":
    main()
