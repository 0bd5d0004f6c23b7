"""Private regression, clustering and histograms with scikit-learn's interface.

Each **row is one subject**, and the guarantee covers replacing one row. A subject with NaN or infinity among
its features contributes zero. Choose every parameter from public knowledge: selecting one by its score on the
data is a use of the data that ``privacy_`` does not account for.
"""

from capedjica.estimators import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression

__all__ = ["PrivateHistogram", "PrivateKMeans", "PrivateLogisticRegression"]
