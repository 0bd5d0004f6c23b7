"""What else private means are good for: regression, clustering and densities, in the manner of scikit-learn.

Here one **row is one person**, and replacing one row is what the guarantee covers. A person with NaN or
infinity among the features contributes zero. Every parameter is to be chosen from public knowledge: one
picked by its score on the data is a use of the data that ``privacy_`` does not know about.
"""

from capedjica.estimators import PrivateHistogram, PrivateKMeans, PrivateLogisticRegression

__all__ = ["PrivateHistogram", "PrivateKMeans", "PrivateLogisticRegression"]
