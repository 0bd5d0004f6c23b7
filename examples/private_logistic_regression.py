"""Predict a diagnosis from four test scores held by three hospitals, with epsilon = 1 for every patient.

Run: python examples/private_logistic_regression.py
"""

import numpy as np

from capedjica.applications import PrivateLogisticRegression

EFFECTS = np.array([1.5, -1.0, 0.5, 0.0])


def make_hospital(rng: np.random.Generator, n_patients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised scores, and diagnoses (0 or 1) that follow a logistic model."""
    scores = rng.standard_normal((n_patients, len(EFFECTS)))
    risk = 1 / (1 + np.exp(-(scores @ EFFECTS - 0.5)))
    return scores, (rng.random(n_patients) < risk).astype(int)


def main() -> None:
    """Fit with and without privacy, and compare on new patients."""
    rng = np.random.default_rng(2024)
    hospitals = {
        "north": make_hospital(rng, 900),
        "south": make_hospital(rng, 1500),
        "west": make_hospital(rng, 600),
    }
    X = {name: scores for name, (scores, _) in hospitals.items()}
    y = {name: diagnoses for name, (_, diagnoses) in hospitals.items()}
    new_scores, new_diagnoses = make_hospital(rng, 5000)

    private = PrivateLogisticRegression(feature_bound=3.0, epsilon=1.0).fit(X, y)
    plain = PrivateLogisticRegression(feature_bound=3.0, mechanism="none").fit(X, y)
    for name, model in {"private": private, "not private": plain}.items():
        accuracy = np.mean(model.predict(new_scores) == new_diagnoses)
        print(f"{name:>12}: {accuracy:.1%} of new patients right, weights {model.coef_.round(2)}")
    print(private.privacy_)


if __name__ == "__main__":
    main()
