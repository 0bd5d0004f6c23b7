"""How old are the patients of five hospitals? A histogram with epsilon = 0.5 for every patient.

Run: python examples/private_histogram.py
"""

import numpy as np

from capedjica.applications import PrivateHistogram

EDGES = np.arange(20, 91, 10)


def main() -> None:
    """Count patients by decade of age, and show the counts beside the true ones."""
    rng = np.random.default_rng(2024)
    hospitals = {
        name: rng.normal(mean_age, 12, size=n_patients)
        for name, mean_age, n_patients in [
            ("north", 45, 300),
            ("south", 62, 250),
            ("west", 50, 400),
            ("east", 55, 150),
            ("central", 38, 200),
        ]
    }
    histogram = PrivateHistogram(EDGES, epsilon=0.5).fit(hospitals)
    true, _ = np.histogram(np.concatenate(list(hospitals.values())), EDGES)
    print(f"age      true  private (noise: {histogram.noise_:.0f})")
    for low, count, estimate in zip(EDGES, true, histogram.counts_, strict=False):
        print(f"{low}-{low + 9}   {count:5d}  {estimate:7.0f}  {'#' * max(0, round(estimate / 10))}")
    print(f"density at 50: {histogram.pdf([50])[0]:.4f} per year")
    print(histogram.privacy_)


if __name__ == "__main__":
    main()
