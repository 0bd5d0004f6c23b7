"""scikit-learn's own checks of an estimator, wherever they make sense for a list of sites."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from capedjica import CapeDJICA, CapePCA
from capedjica.applications import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression

# These make an estimator and look at its parameters.
PARAMETER_CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_get_params_invariance",
    "check_set_params",
    "check_mixin_order",
]


ESTIMATORS = [
    CapeDJICA(2, 1.0),
    CapePCA(2, 1.0),
    PrivateHistogram([0, 1], epsilon=1.0),
    PrivateKMeans(2, 1.0, epsilon=1.0),
    PrivateLogisticRegression(1.0, epsilon=1.0),
]


@pytest.mark.parametrize("check", PARAMETER_CHECKS)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_parameters(estimator, check):
    getattr(estimator_checks, check)(type(estimator).__name__, estimator)


class OneTable:
    """Lets the rows of one table be the time points of six people at two sites."""

    def fit(self, X, y=None):
        if np.ndim(X) != 2:
            raise ValueError("Expected 2D array, got another. Reshape your data.")
        parts = np.array_split(X, 6)
        return super().fit({"north": parts[:3], "south": parts[3:]})

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.no_validation = True
        return tags


class TableICA(OneTable, CapeDJICA, BaseEstimator):
    pass


class TablePCA(OneTable, CapePCA, BaseEstimator):
    pass


_SPARSE = "scans are dense"
_SEVERAL = "takes one component, and one alone separates nothing"
NOT_OURS = {
    "check_estimator_sparse_tag": _SPARSE,
    "check_estimator_sparse_array": _SPARSE,
    "check_estimator_sparse_matrix": _SPARSE,
}
NOT_OF_ICA = NOT_OURS | {
    "check_dont_overwrite_parameters": _SEVERAL,
    "check_fit2d_1sample": _SEVERAL,
    "check_fit2d_1feature": _SEVERAL,
}


def expected_failures(estimator):
    return NOT_OF_ICA if isinstance(estimator, CapeDJICA) else NOT_OURS


@parametrize_with_checks(
    [TableICA(2, mechanism="none", on_bad="zero"), TablePCA(1, mechanism="none", clip=10.0, on_bad="zero")],
    expected_failed_checks=expected_failures,
)
def test_of_one_table(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [CapeDJICA(2, 1.0), CapePCA(2, 1.0)], ids=lambda e: type(e).__name__)
def test_before_it_is_fitted(estimator):
    with pytest.raises(NotFittedError, match="is not fitted yet; call fit first"):
        estimator.transform(np.ones((4, 3)))


def test_parameters_by_name():
    estimator = CapeDJICA(5, epsilon=1.0, basis=np.eye(3))
    assert repr(estimator) == "CapeDJICA(n_components=5, epsilon=1.0, basis=<ndarray of shape (3, 3)>)"
    assert estimator.set_params(epsilon=2.0).epsilon == 2.0
    with pytest.raises(ValueError, match="'epsilonn' is not a parameter of CapeDJICA"):
        estimator.set_params(epsilonn=2.0)


def test_parameters_of_the_masker():
    from nilearn.maskers import NiftiMasker

    estimator = CapeDJICA(5, masker=NiftiMasker(smoothing_fwhm=4.0))
    assert estimator.get_params()["masker__smoothing_fwhm"] == 4.0
    assert estimator.set_params(masker__smoothing_fwhm=6.0).masker.smoothing_fwhm == 6.0


def test_arrays_alone_do_not_load_nilearn_or_scikit_learn():
    program = """
import sys
import numpy as np
from capedjica import CapeDJICA
rng = np.random.default_rng(0)
sites = [[rng.laplace(size=(40, 4)) for _ in range(3)] for _ in range(3)]
CapeDJICA(2, mechanism="none", max_iter=2).fit(sites)
print([name for name in ("nilearn", "sklearn", "nibabel") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
