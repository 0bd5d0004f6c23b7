"""``private_glm`` and ``GroupComparison``: group comparisons whose errors include the privacy noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from capedjica.algorithms.glm.analysis import COVARIATE_EFFECT, GroupComparisonAnalysis
from capedjica.algorithms.glm.design import Column, Design, Mode, is_missing
from capedjica.algorithms.glm.findings import Findings
from capedjica.algorithms.glm.power import tuned
from capedjica.algorithms.outcomes import OUTCOMES
from capedjica.algorithms.tables.values import Values
from capedjica.errors import InputError
from capedjica.estimators.base import TableEstimator
from capedjica.estimators.inputs import Sites, name_sites
from capedjica.estimators.tables import read_tables
from capedjica.mechanisms.contract import MaskName, MechanismName
from capedjica.privacy import validate
from capedjica.privacy.budget import PrivacyBudget
from capedjica.privacy.statement import PrivacyStatement
from capedjica.tools.arrays import FloatArray


@dataclass(kw_only=True, eq=False, repr=False)
class _Comparison(TableEstimator):
    """Base class of :class:`PrivateGLM` and :class:`GroupComparison`."""

    contrast: str
    covariates: Sequence[str] | None = None
    bounds: Mapping[str, Any]
    center: float | ArrayLike
    scale: float | ArrayLike
    clip: float | None = None
    mode: Mode = "private"
    missing: float = 0.0
    largest_adjustment: float | None = None
    covariate_effect: float = COVARIATE_EFFECT
    correlation: ArrayLike | None = None
    level: float = 0.95
    names: Sequence[str] = ()
    findings_: Findings = field(init=False)

    @property
    def effects_(self) -> FloatArray:
        """Effects per unit of the contrast, in the units of the outcomes."""
        return self._found.effects

    @property
    def standard_errors_(self) -> FloatArray:
        """Standard errors: sampling, privacy noise and imperfect adjustment combined."""
        return self._found.standard_errors

    @property
    def p_values_(self) -> FloatArray:
        """Two-sided p-values of the individual tests."""
        return self._found.p_values

    @property
    def q_values_(self) -> FloatArray:
        """q-values by the procedure of Benjamini and Hochberg."""
        return self._found.q_values

    @property
    def intervals_(self) -> FloatArray:
        """Confidence interval of each effect, shape (d, 2)."""
        return self._found.intervals

    @property
    def names_(self) -> tuple[str, ...]:
        """Names of the outcomes."""
        return tuple(self._found.names)

    @property
    def noise_(self) -> FloatArray:
        """Standard deviation of each effect due to privacy noise alone."""
        return self._found.noise

    @property
    def _found(self) -> Findings:
        self._check_fitted("findings_")
        return self.findings_

    def _compare(self, outcomes: Mapping[str, FloatArray], design: Sites, names: Sequence[str]) -> Self:
        """Fit the model to the outcomes of every site, in their original units."""
        size = next(iter(outcomes.values())).shape[1]
        center = _public_numbers("center", self.center, size)
        scale = _public_numbers("scale", self.scale, size)
        if (scale <= 0).any():
            raise InputError("scale must be greater than 0 for every outcome")
        tables = _read_design(design, outcomes)
        plan = self._design(tables)
        sizes = {name: len(rows) for name, rows in outcomes.items()}
        terms = self._terms()
        analysis = GroupComparisonAnalysis(
            plan,
            tuple(scale.tolist()),
            sizes,
            clip=None if self.clip is None else validate.positive("clip", self.clip),
            names=tuple(names),
            largest_adjustment=self.largest_adjustment,
            missing=self._missing(),
            covariate_effect=validate.nonnegative("covariate_effect", self.covariate_effect),
            correlation=_correlation(self.correlation, size),
            level=validate.probability("level", self.level),
        )
        analysis = tuned(analysis, terms)
        rows = {
            name: analysis.rows(name, _encoded(plan, tables[name]), (values - center) / scale)
            for name, values in outcomes.items()
        }
        study = self._study("group comparison", analysis, rows, terms)
        self.findings_ = analysis.estimate(study)
        self.privacy_ = replace(study.privacy, not_covered=study.privacy.not_covered + plan.not_covered)
        return self

    def _missing(self) -> float:
        """Return the fraction that may be missing, after checking it."""
        if not 0 <= self.missing <= 0.5:
            raise InputError(f"missing must be between 0 and 0.5, got {self.missing}")
        if self.missing and self.mode == "private":
            raise InputError("missing is only needed for mode 'public-groups'; remove it")
        return float(self.missing)

    def _design(self, tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> Design:
        """Return the design after checking every value; undeclared levels raise an error here."""
        covariates = self.covariates
        if covariates is None:
            covariates = [name for name in self.bounds if name != self.contrast]
        for name in (self.contrast, *covariates):
            if name not in self.bounds:
                raise InputError(f"bounds must contain the range or the levels of column {name!r}")
        contrast = Column.of(self.contrast, self.bounds[self.contrast])
        design = Design(contrast, tuple(Column.of(name, self.bounds[name]) for name in covariates))
        for site, table in tables.items():
            for number, row in enumerate(_rows(table)):
                design.check(row, f"design of site {site}, row {number}")
        if self.mode == "private":
            return design
        if contrast.kind == "number":
            contrast = Column(contrast.name, "category", levels=_two_levels(contrast))
        sizes = {site: _group_sizes(site, contrast, table[contrast.name]) for site, table in tables.items()}
        return Design(contrast, design.covariates, self.mode, sizes)


def private_glm(
    Y: Sites,
    design: Sites,
    contrast: str,
    epsilon: float | Mapping[str, float] | None = None,
    delta: float = 1e-5,
    *,
    bounds: Mapping[str, Any],
    center: float | ArrayLike,
    scale: float | ArrayLike,
    clip: float | None = None,
    covariates: Sequence[str] | None = None,
    mode: Mode = "private",
    names: Sequence[str] = (),
    missing: float = 0.0,
    largest_adjustment: float | None = None,
    covariate_effect: float = COVARIATE_EFFECT,
    correlation: ArrayLike | None = None,
    level: float = 0.95,
    mechanism: MechanismName = "cape",
    n_colluding: int | str = "third",
    masking: MaskName = "uniform",
    insecure_noise_seed: int | None = None,
    budget: PrivacyBudget | None = None,
) -> PrivateGLM:
    r"""Estimate effects of a contrast on many outcomes, adjusted for covariates and site, across sites.

    The model is described in :mod:`capedjica.algorithms.glm.analysis`. Nothing is standardised using ``Y``.

    Parameters
    ----------
    Y : dict from site to array (M_s, d), or list of these
        Outcomes in their original units, one subject per row. A subject with NaN contributes nothing.
    design : dict from site to table, or list of these
        A table is a data frame or a dict of columns, with as many rows as ``Y``. A subject with a missing
        value (NaN, None, "n/a") contributes nothing.
    contrast : str
        Column of interest: two levels, coded -1 (the first) and 1, or a numerical variable.
    epsilon, delta : float
        Privacy budget.
    bounds : dict
        Public range or levels (strings) of every column. A range is two numbers, to which values are clipped,
        and a third if typical values are not in the middle of it: (low, high, centre).
    center, scale : float or array (d,)
        Public approximate mean and between-subject standard deviation of every outcome.
    clip : float, optional
        C, public: the largest norm of a standardised vector; by default 0.8 sqrt(d).
    covariates : sequence of str, optional
        Covariates to adjust for; by default every other column that has bounds.
    mode : {"private", "public-groups"}, default="private"
        "private" also protects the contrast. With "public-groups", the group sizes of every site and the
        group of each subject are public, which halves the noise.
    names : sequence of str, optional
        Names of the outcomes.
    missing : float, default=0
        For public groups: largest fraction of a group at a site whose rows may be missing without bias. More
        noise is added for it. With private groups missing rows never bias effects.
    largest_adjustment : float, optional
        For public groups: bound on how far the covariates shift the coded contrast.
    covariate_effect : float
        Prior for the residual confounding that noise on the moments of the covariates leaves unadjusted:
        standard deviations of an outcome per standard deviation of a covariate.
    correlation : array (d, d), optional
        Public correlation of the outcomes: less noise on correlated ones, a global test, and simultaneous
        intervals.
    level : float, default=0.95
        Confidence level of the intervals.
    mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :class:`capedjica.estimators.base.TableEstimator`.

    Returns
    -------
    PrivateGLM
        The fitted model, with attributes ``effects_``, ``standard_errors_``, ``p_values_``, ``q_values_``,
        ``intervals_``, ``names_``, ``noise_`` and ``privacy_``. ``findings_`` has further results:
        simultaneous intervals, equivalence tests and a table.

    Examples
    --------
    >>> import numpy as np
    >>> from capedjica import private_glm
    >>> rng = np.random.default_rng(0)
    >>> table = {"group": ["control", "patient"] * 100, "age": rng.uniform(20, 60, 200)}
    >>> design = dict.fromkeys("abc", table)
    >>> Y = {site: rng.normal(3.0, 0.5, (200, 4)) for site in "abc"}
    >>> result = private_glm(
    ...     Y, design, "group", epsilon=2.0, center=3.0, scale=0.5,
    ...     bounds={"group": ["control", "patient"], "age": (18, 90)},
    ... )
    >>> result.effects_.shape, result.intervals_.shape
    ((4,), (4, 2))
    """
    comparison = PrivateGLM(
        contrast=contrast,
        covariates=covariates,
        bounds=bounds,
        center=center,
        scale=scale,
        clip=clip,
        mode=mode,
        missing=missing,
        largest_adjustment=largest_adjustment,
        covariate_effect=covariate_effect,
        correlation=correlation,
        level=level,
        names=names,
        epsilon=epsilon,
        delta=delta,
        mechanism=mechanism,
        n_colluding=n_colluding,
        masking=masking,
        insecure_noise_seed=insecure_noise_seed,
        budget=budget,
    )
    return comparison.fit(Y, design)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateGLM(_Comparison):
    """Result of :func:`private_glm`; it has the same parameters.

    Attributes
    ----------
    effects_, standard_errors_, p_values_, q_values_, noise_ : array (d,)
        See :class:`capedjica.algorithms.glm.findings.Findings`.
    intervals_ : array (d, 2)
        Confidence interval of each effect.
    names_ : tuple of str
        Names of the outcomes.
    findings_ : Findings
        All results, including simultaneous and selected intervals and equivalence tests.
    privacy_ : PrivacyStatement
        The privacy guarantee.
    """

    privacy_: PrivacyStatement = field(init=False)

    def fit(self, Y: Sites, design: Sites) -> Self:
        """Fit the model to the outcomes (M_s, d) and the design of every site."""
        outcomes = read_tables(Y)
        size = next(iter(outcomes.values())).shape[1]
        names = _read_names(self.names, size)
        return self._compare(outcomes, design, names)


@dataclass(kw_only=True, eq=False, repr=False)
class GroupComparison(_Comparison):
    """Private comparison of groups on outcomes computed from each subject's scan.

    Parameters
    ----------
    outcome : str or callable
        "average" over time; one of :mod:`capedjica.algorithms.outcomes`, such as "connectivity" (Fisher's z
        of every pair) or "amplitudes" (log standard deviation, relative to the subject's mean); or a function
        from a scan (time, features) to a vector. It is computed from one subject's scan and therefore has no
        privacy cost; it must not depend on other subjects.
    networks : array (R, D), optional
        Unmixing matrix, such as ``unmixing_`` of a fitted estimator: outcomes are then computed from the time
        courses of networks instead of features.
    groups, bands, shrinkage
        Settings of "blocks", "band-power" and "partial-connectivity"
        (:class:`capedjica.algorithms.outcomes.Outcome`).
    contrast, covariates, bounds, center, scale, clip, mode, missing, largest_adjustment, \
covariate_effect, correlation, level, names
        See :func:`capedjica.private_glm`. ``names`` are the names of the features or networks, or of the
        elements of the vector returned by a function.
    epsilon, delta, mechanism, n_colluding, masking, insecure_noise_seed, budget
        See :class:`capedjica.estimators.base.TableEstimator`.

    Attributes
    ----------
    effects_, standard_errors_, p_values_, q_values_, intervals_, names_, noise_, findings_, privacy_
        As in :func:`capedjica.private_glm`.
    """

    outcome: str | Callable[[FloatArray], ArrayLike] = "amplitudes"
    networks: ArrayLike | None = None
    groups: Sequence[str] = ()
    bands: Sequence[tuple[float, float]] = ()
    shrinkage: float = 0.1

    def fit(self, X: Sites, design: Sites) -> Self:
        """Compute the outcome of every subject and compare the groups.

        Parameters
        ----------
        X : list of sites, or dict from name to site
            A site is a list of subjects; a subject is an array (time, features).
        design : dict or list, as X
            A table for each site, with one row per subject.
        """
        sites = name_sites(X)
        networks = None if self.networks is None else np.asarray(self.networks, dtype=np.float64)
        first = np.asarray(next(iter(sites.values()))[0], dtype=np.float64)
        if first.ndim != 2:
            raise InputError(f"X: a subject must be an array (time, features), got shape {first.shape}")
        if callable(self.outcome):
            function, size = self.outcome, int(np.size(self.outcome(first)))
            names = _read_names(self.names, size)
        else:
            values = self._values(first.shape[1] if networks is None else len(networks))
            n_courses = values.n_courses
            courses = _read_names(self.names, n_courses)
            names = values.names(courses or [str(number) for number in range(1, n_courses + 1)])
            size = values.size

            def function(scan: FloatArray) -> FloatArray:
                return values.of(scan, networks)

        outcomes = {name: _outcomes(function, site, size) for name, site in sites.items()}
        return self._compare(outcomes, design, names)

    def _values(self, n_courses: int) -> Values:
        """Return the outcome with the given name."""
        known = ("average", *OUTCOMES)
        if self.outcome not in known:
            raise InputError(f"outcome must be a function or one of {', '.join(known)}; got {self.outcome!r}")
        values = Values(
            self.outcome,  # type: ignore[arg-type]
            n_courses,
            groups=tuple(map(str, self.groups)),
            bands=tuple((float(low), float(high)) for low, high in self.bands),
            shrinkage=float(self.shrinkage),
        )
        if values.outcome is not None and (problems := values.outcome.problems()):
            raise InputError("; ".join(problems))
        if self.outcome == "loadings" and self.networks is None:
            raise InputError("outcome 'loadings' requires networks; pass an unmixing matrix as networks")
        return values


def _outcomes(function: Callable[[FloatArray], ArrayLike], site: Sequence[Any], size: int) -> FloatArray:
    """Return the vector of every subject, with NaN where it cannot be computed for any reason."""
    rows = np.full((len(site), size), np.nan)
    for number, scan in enumerate(site):
        try:
            rows[number] = np.asarray(function(np.asarray(scan, dtype=np.float64)), dtype=np.float64)
        except Exception:
            rows[number] = np.nan
    return rows


def _public_numbers(name: str, given: float | ArrayLike, size: int) -> FloatArray:
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must contain {size} numbers, got {type(given).__name__}") from None
    if values.shape not in ((), (size,)) or not np.isfinite(values).all():
        raise InputError(f"{name} must be one finite number, or {size} of them, one for each outcome")
    return np.array(np.broadcast_to(values, (size,)))


def _read_names(names: Sequence[str], size: int) -> tuple[str, ...]:
    if len(names) not in (0, size):
        raise InputError(f"names must contain {size} names, one for each outcome; got {len(names)}")
    return tuple(names)


def _correlation(given: ArrayLike | None, size: int) -> FloatArray | None:
    if given is None:
        return None
    matrix = np.asarray(given, dtype=np.float64)
    if (
        matrix.shape != (size, size)
        or not np.allclose(matrix, matrix.T)
        or not np.allclose(np.diag(matrix), 1)
    ):
        raise InputError(f"correlation must be a symmetric ({size}, {size}) matrix with ones on the diagonal")
    return matrix


def _read_design(design: Sites, outcomes: Mapping[str, FloatArray]) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of every site's table, each with one value per subject."""
    if isinstance(design, Mapping):
        tables = {str(name): table for name, table in design.items()}
    else:
        tables = dict(zip(outcomes, design, strict=False)) if len(design) == len(outcomes) else {}
    if set(tables) != set(outcomes):
        raise InputError(
            f"design must contain a table for each of the sites {', '.join(outcomes)}; "
            f"got {', '.join(tables)}"
        )
    return {name: _columns(name, tables[name], len(rows)) for name, rows in outcomes.items()}


def _columns(site: str, table: Any, n_people: int) -> dict[str, list[Any]]:
    """Return the columns of a data frame or a mapping."""
    if not hasattr(table, "keys"):
        raise InputError(
            f"design of site {site} must be a data frame or a dict of columns, got {type(table).__name__}"
        )
    columns = {str(name): list(table[name]) for name in table.keys()}  # noqa: SIM118 - also of a data frame
    for name, values in columns.items():
        if len(values) != n_people:
            raise InputError(
                f"design of site {site}: column {name!r} must have {n_people} values, one per subject; "
                f"got {len(values)}"
            )
    return columns


def _rows(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def _encoded(design: Design, table: Mapping[str, Sequence[Any]]) -> FloatArray:
    return np.array([design.encode(row) for row in _rows(table)])


def _two_levels(contrast: Column) -> tuple[str, ...]:
    return tuple(
        f"{int(end)}" if float(end).is_integer() else f"{end}" for end in (contrast.low, contrast.high)
    )


def _group_sizes(site: str, contrast: Column, values: Sequence[Any]) -> tuple[int, int]:
    """Return the sizes of the groups at a site; membership is public here, so it must not be missing."""
    coded = [float(contrast.encode(value)[0]) for value in values]
    if any(is_missing(value) for value in values) or not np.isfinite(coded).all():
        raise InputError(
            f"design of site {site}: with public groups every value of {contrast.name!r} must be one of "
            f"{', '.join(contrast.levels)}"
        )
    return coded.count(-1.0), coded.count(1.0)
