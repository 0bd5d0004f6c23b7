"""Estimators with scikit-learn's interface: arrays or images in, differentially private results out."""

from capedjica.algorithms.ica.paper_method import PaperOptions
from capedjica.estimators.analysis import PrivateResult, private_analysis
from capedjica.estimators.djica import CapeDJICA
from capedjica.estimators.glm import GroupComparison, PrivateGLM, private_glm
from capedjica.estimators.histogram import PrivateHistogram
from capedjica.estimators.kmeans import PrivateKMeans
from capedjica.estimators.mean import PrivateMean, private_mean
from capedjica.estimators.pca import CapePCA
from capedjica.estimators.regression import PrivateLogisticRegression
from capedjica.estimators.sensitivity import SensitivityCheck, check_sensitivity
from capedjica.privacy.budget import PrivacyBudget

__all__ = [
    "CapeDJICA",
    "CapePCA",
    "GroupComparison",
    "PaperOptions",
    "PrivacyBudget",
    "PrivateGLM",
    "PrivateHistogram",
    "PrivateKMeans",
    "PrivateLogisticRegression",
    "PrivateMean",
    "PrivateResult",
    "SensitivityCheck",
    "check_sensitivity",
    "private_analysis",
    "private_glm",
    "private_mean",
]
