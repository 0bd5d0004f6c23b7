"""Names for analyses of other packages, stable within a major version.

An analysis states its queries (`Stage`, `Query`), computes a vector of each subject at the sites, and a
`Result` from the released means. Its table in ``study.toml`` is a subclass of `AnalysisTable`, or of
`RowsTable` for one vector per subject, registered in the entry-point group ``capedjica.analyses``.
`private_analysis` runs it in one process; `check_sensitivity` looks for subjects that break its claims.
"""

from capedjica.algorithms.analysis import Analysis, Means, Progress, ReleasedMean, Result, ResultTable
from capedjica.algorithms.state import pack, read_arrays
from capedjica.estimators.analysis import PrivateResult, private_analysis
from capedjica.estimators.sensitivity import SensitivityCheck, check_sensitivity
from capedjica.mechanisms.contract import Query, Stage, Statistics
from capedjica.study.analyses.base import AnalysisTable, Setting
from capedjica.study.analyses.tabular import RowsTable

__all__ = [
    "Analysis",
    "AnalysisTable",
    "Means",
    "PrivateResult",
    "Progress",
    "Query",
    "ReleasedMean",
    "Result",
    "ResultTable",
    "RowsTable",
    "SensitivityCheck",
    "Setting",
    "Stage",
    "Statistics",
    "check_sensitivity",
    "pack",
    "private_analysis",
    "read_arrays",
]
