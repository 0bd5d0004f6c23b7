"""The Python face of the package, in the manner of scikit-learn: arrays in, private results out."""

from capedjica.estimators.djica import CapeDJICA
from capedjica.estimators.inputs import Sites, name_sites
from capedjica.estimators.mean import PrivateMean, private_mean
from capedjica.estimators.pca import CapePCA
from capedjica.privacy.budget import PrivacyBudget

__all__ = ["CapeDJICA", "CapePCA", "PrivacyBudget", "PrivateMean", "Sites", "name_sites", "private_mean"]
