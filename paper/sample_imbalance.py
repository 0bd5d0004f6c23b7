r"""Noise with sites of unequal size: ``python -m paper.sample_imbalance [--quick] [--out FOLDER]``.

The paper's Remark 2: with noise :math:`\tau_s = \Delta(N_s)/\mu`, local noise of variance
:math:`\tau_s^2/S` and equal weights, the variance of the mean over that of the pooled mean is

.. math:: H(n) = \frac{N^2}{S^3} \sum_s \frac{1}{N_s^2}, \qquad
          1 \le H(n) \le \frac{N^2}{S^3} \left(\frac{1}{(N - S + 1)^2} + S - 1\right) .

Two things are measured while sites grow unequal at fixed N and S:

- *the paper's scheme*: Gaussian masks, their real secure sum, local noise, equal weights; the variance of
  what is left when masks are taken off, and the exact mu of every site, which H(n) does not look at;
- *the same exact epsilon for all*: this package's protocol with equal weights, and with weights N_s/N, its
  default. With those the variance over pooled is S/S_H whatever the sizes, and the mean is that of the
  people, not of the sites.

All data are zero, so what is released is the noise. The variance of D numbers has a relative standard error
of sqrt(2/D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.sum_in_process import SumInProcess
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.mechanisms.contract import MechanismName, Query, Stage
from capedjica.privacy import Cape
from capedjica.report.pictures.figures import COLOURS
from capedjica.securesum.noise import NoiseSource
from capedjica.securesum.ring import lift
from paper.shared import common, formulas
from paper.shared.common import Experiment, Finding

# Grid of the paper's scheme: the least local noise is this many steps.
FINENESS = 2.0**20


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment; a ratio r makes each site r times as large as the one before."""

    n_samples: int = 1000
    n_sites: int = 10
    ratios: tuple[float, ...] = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
    size: int = 10_000
    epsilon: float = 1.0
    delta: float = 1e-5


QUICK = Setting(n_samples=120, n_sites=4, ratios=(1.0, 0.5), size=2000)


@dataclass(frozen=True)
class Imbalance:
    """One line of the table: variances over that of the pooled mean.

    Attributes
    ----------
    worst_mu_squared : float
        The paper's scheme: largest exact mu^2 of a site over the mu^2 it was calibrated for.
    equal_weights_stated, size_weights_stated : float
        What the plan of the release says of its noise, at the same exact epsilon.
    """

    sizes: str
    largest_over_smallest: float
    h_formula: float
    h_measured: float
    worst_mu_squared: float
    equal_weights_stated: float
    equal_weights_measured: float
    size_weights_stated: float
    size_weights_measured: float


def all_sizes(setting: Setting) -> list[tuple[int, ...]]:
    """Return the sizes of every ratio, and the most unequal ones: all but one of one sample."""
    n, s = setting.n_samples, setting.n_sites
    return [*(site_sizes(n, s, ratio) for ratio in setting.ratios), (n - s + 1, *(1,) * (s - 1))]


def site_sizes(n_samples: int, n_sites: int, ratio: float) -> tuple[int, ...]:
    """Split the samples in proportion to 1, r, r^2, ..., at least one each; the first site takes the rest."""
    shares = ratio ** np.arange(n_sites)
    sizes = np.maximum(1, np.floor(n_samples * shares / shares.sum())).astype(int)
    sizes[0] += n_samples - sizes.sum()
    return tuple(sizes.tolist())


def paper_scheme(sizes: Sequence[int]) -> Cape:
    """Return Algorithm 2 for unequal sizes: tau_s = 1/N_s (mu = 1), equal weights, S_C = ceil(S/3) - 1."""
    tau, s = 1 / np.array(sizes, dtype=float), len(sizes)
    return Cape(tau**2, tau**2 / s, np.full(s, 1 / s))


def paper_noise(scheme: Cape, size: int, source: NoiseSource) -> NDArray[np.float64]:
    """Release a mean of zeros by Algorithm 2, the masks added up by the real secure sum."""
    local = np.sqrt(scheme.local_var)
    step = float(local.min()) / FINENESS
    masks = [_draw(source, math.sqrt(var) / step, size) for var in scheme.mask_var]
    messages = [mask + _draw(source, noise / step, size) for mask, noise in zip(masks, local, strict=True)]
    left = np.add.reduce(messages) - secure_sum(masks)
    return lift(left) * np.float64(step / scheme.n_sites)


def _draw(source: NoiseSource, sigma: float, size: int) -> NDArray[np.uint64]:
    return source.discrete_gaussian(sigma, size).view(np.uint64)


def secure_sum(vectors: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Run one secure sum over the bytes of the protocol."""
    parties = SumInProcess(len(vectors), len(vectors[0]))
    sites = {name: parties.site(name, v) for name, v in zip(parties.identities, vectors, strict=True)}
    requests = parties.collect({name: site.start() for name, site in sites.items()})
    while not parties.aggregator.done:
        requests = parties.collect({name: sites[name].receive(data) for name, data in requests.items()})
    return parties.aggregator.result


def release(
    setting: Setting, sizes: Sequence[int], mechanism: MechanismName, equal_weights: bool = False
) -> tuple[NDArray[np.float64], float]:
    """Release a mean of zeros by this package's protocol; return it and the noise that its plan states."""
    names = [f"site-{place:03d}" for place in range(len(sizes))]
    study = EmbeddedStudy(
        "sample imbalance",
        dict(zip(names, sizes, strict=True)),
        {name: _Zeros(count, setting.size) for name, count in zip(names, sizes, strict=True)},
        [Stage(Query("mean", setting.size, 1.0))],
        in_process(epsilon=setting.epsilon, delta=setting.delta, mechanism=mechanism),
        weights=dict.fromkeys(names, 1 / len(names)) if equal_weights else None,
    )
    return study.mean(0), study.aggregator.releases[-1].noise


@dataclass(frozen=True)
class _Zeros:
    """The subjects of a site, all zero."""

    count: int
    size: int

    def __call__(self, stage: int, published: bytes, state: bytes) -> list[NDArray[np.float64]]:
        return [np.zeros((1, self.size))] * self.count


def imbalance(setting: Setting, sizes: tuple[int, ...], source: NoiseSource) -> Imbalance:
    """Measure one vector of sizes."""
    n = setting.n_samples
    scheme = paper_scheme(sizes)
    pooled = release(setting, sizes, "pooled")[1]
    equal, equal_stated = release(setting, sizes, "cape", equal_weights=True)
    sized, sized_stated = release(setting, sizes, "cape")
    return Imbalance(
        sizes=" ".join(map(str, sizes)),
        largest_over_smallest=max(sizes) / min(sizes),
        h_formula=formulas.sample_size_ratio(sizes),
        h_measured=_mean_square(paper_noise(scheme, setting.size, source)) * n**2,
        worst_mu_squared=float(np.max(scheme.mu(1 / np.array(sizes)) ** 2)),
        equal_weights_stated=(equal_stated / pooled) ** 2,
        equal_weights_measured=_mean_square(equal) / pooled**2,
        size_weights_stated=(sized_stated / pooled) ** 2,
        size_weights_measured=_mean_square(sized) / pooled**2,
    )


def _mean_square(values: NDArray[np.float64]) -> float:
    return float(values @ values) / len(values)


def measure(setting: Setting) -> list[Imbalance]:
    """Measure every vector of sizes."""
    source = NoiseSource(purpose="sample imbalance")
    sizes = all_sizes(setting)
    return [imbalance(setting, each, source) for each in track(sizes, description="imbalance")]


_OPEN = "open: all sites but one have one sample"
# Start of the names in the table, name of what is expected, label, colour, line, marker.
_SERIES = (
    ("h", "h_formula", "the paper's noise, equal weights: H(n)", COLOURS[5], "--", "s"),
    ("equal_weights", "equal_weights_stated", "cape at equal exact ε, equal weights", COLOURS[1], ":", "v"),
    ("size_weights", "size_weights_stated", "cape at equal exact ε, weights by size", COLOURS[0], "-", "o"),
)


def draw(setting: Setting, rows: Sequence[Imbalance]) -> Figure:
    """Draw variances over pooled on the left, the exact mu^2 of the paper's scheme on the right."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_variances(left, setting, rows)
    for part, fill in ((rows[:-1], COLOURS[5]), (rows[-1:], "white")):
        x = [row.largest_over_smallest for row in part]
        y = [row.worst_mu_squared for row in part]
        right.plot(x, y, color=COLOURS[5], marker="s", markerfacecolor=fill, linestyle="--")
    right.set(
        ylabel="exact μ² over the one calibrated for",
        ylim=(0, None),
        title="(b) the worst site under the paper's noise",
    )
    for axis in (left, right):
        axis.set(xscale="log", xlabel="largest site over smallest")
        axis.grid(alpha=0.25)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_variances(axis: Axes, setting: Setting, rows: Sequence[Imbalance]) -> None:
    """Lines are what is expected, marks what was measured; the open ones are of another family of sizes."""
    x = [row.largest_over_smallest for row in rows]
    for name, expected, label, colour, line, marker in _SERIES:
        axis.plot(x[:-1], [getattr(row, expected) for row in rows[:-1]], color=colour, linestyle=line)
        y = [getattr(row, f"{name}_measured") for row in rows]
        axis.plot(x[:-1], y[:-1], color=colour, marker=marker, linestyle="", label=f"{label}, measured")
        axis.plot(x[-1], y[-1], color=colour, marker=marker, markerfacecolor="white", linestyle="")
    axis.plot([], [], color="#333333", marker="D", markerfacecolor="white", linestyle="", label=_OPEN)
    for bound, shift in zip(
        formulas.sample_size_ratio_bounds(setting.n_samples, setting.n_sites), (-10, 4), strict=True
    ):
        axis.axhline(bound, color="#888888", linewidth=0.9, linestyle=(0, (1, 3)))
        axis.annotate(
            "bound of H(n), Remark 2", (4, bound), (0, shift), textcoords="offset points", fontsize=8
        )
    axis.set(yscale="log", ylim=(0.5, None), ylabel="variance of the mean, over pooled")
    axis.set_title("(a) marks measured, lines expected")


def findings(setting: Setting, rows: Sequence[Imbalance]) -> list[Finding]:
    """Answer the claims of Remark 2; six standard errors are allowed."""
    allowed = 6 * math.sqrt(2 / setting.size)
    off = max(abs(row.h_measured / row.h_formula - 1) for row in rows)
    low, high = formulas.sample_size_ratio_bounds(setting.n_samples, setting.n_sites)
    within = all(low * (1 - 1e-9) <= row.h_formula <= high * (1 + 1e-9) for row in rows)
    even, most = rows[0], rows[-1]
    worst = max(row.worst_mu_squared for row in rows)
    return [
        Finding(
            "H(n) = N²/S³ Σ 1/N_s²",
            f"measured within {off:.1%} for all {len(rows)} vectors of sizes "
            f"(six standard errors: {allowed:.1%})",
            "yes" if off < allowed else "no",
        ),
        Finding(
            f"{low:g} ≤ H(n) ≤ {high:,.0f}, the least for equal sites",
            f"H = {even.h_measured:.3g} for equal sites, {most.h_measured:,.0f} for sizes "
            f"({_short(most.sizes)}), where the formula attains the upper bound",
            "yes" if within else "no",
        ),
        Finding(
            "cape has the pooled variance for equal sites (H = 1), at the same privacy",
            f"it is so at the same τ, whose exact μ² is {even.worst_mu_squared:.2f} times the one calibrated "
            f"for; with unequal sites up to {worst:.2f} times, close to conventional's S: the noise of "
            "larger sites is too small to help hide a small one",
            "no",
        ),
        proposition_2(setting),
        asymmetric(setting),
        dropouts(setting),
    ]


# A statistic of n samples, its sensitivity up to a constant.
SENSITIVITIES: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("1/N", lambda n: 1 / n),
    ("1/√N", lambda n: 1 / math.sqrt(n)),
    ("1/N²", lambda n: 1 / n**2),
)


def proposition_2(setting: Setting) -> Finding:
    """Evaluate H(n) and the conditions of Proposition 2 for equal sites."""
    sizes = [setting.n_samples / setting.n_sites] * setting.n_sites
    ratios = [(label, formulas.low_sensitivity_ratio(of, sizes)) for label, of in SENSITIVITIES]
    agree = all(
        all(formulas.low_sensitivity_conditions(of, sizes)) == math.isclose(ratio, 1.0)
        for (_, of), (_, ratio) in zip(SENSITIVITIES, ratios, strict=True)
    )
    words = ", ".join(f"{ratio:.3g} for Δ(N) = {label}" for label, ratio in ratios)
    return Finding(
        "Proposition 2: H(n) = 1 if Δ(N/S) = S Δ(N)",
        f"{setting.n_sites} equal sites: {words}; the conditions hold where H = 1 and nowhere else. This is "
        "noise at the same τ: with H < 1 there is less of it than in the pooled mean, which cannot be as "
        "private (departure 2)",
        "in part" if agree else "no",
    )


def asymmetric(setting: Setting) -> Finding:
    """Solve the paper's system for unequal sites with weights by size, and look at what it protects."""
    sizes = np.array(site_sizes(setting.n_samples, setting.n_sites, 0.9), dtype=float)
    scheme = formulas.asymmetric_cape(1 / sizes, 1 / setting.n_samples, sizes / sizes.sum(), "third")
    variance = scheme.output_variance * setting.n_samples**2
    exact = float(np.max(scheme.mu(1 / sizes) ** 2))
    printed = [
        2 * formulas.asymmetric_mu_z(scheme, _honest(scheme, s), 1 / sizes[s]) for s in range(len(sizes))
    ]
    return Finding(
        "the asymmetric scheme has the pooled variance τ_pool² at the privacy asked for",
        f"sizes {sizes[0]:.0f} to {sizes[-1]:.0f}, weights by size: variance {variance:.3f} times the pooled "
        f"one, exact μ² up to {exact:.2f} times the one calibrated for, where the covariance as printed "
        f"gives {min(printed):.3g} to {max(printed):.3g} (departure 7)",
        "in part" if math.isclose(variance, 1.0) else "no",
    )


def _honest(scheme: Cape, site: int) -> list[int]:
    """Return a site, then the others that are honest when the worst for it collude."""
    colluding = scheme.worst_colluders(site)
    return [site, *(other for other in range(scheme.n_sites) if other not in (site, *colluding))]


def dropouts(setting: Setting) -> Finding:
    """Lose as many sites as may collude, with noise that was sized for all."""
    s, lost = setting.n_sites, paper_scheme([1] * setting.n_sites).n_colluding
    noise = [(n, Cape(1.0, 1 / s, np.full(n, 1 / n), lost)) for n in (s, s - lost)]
    gains = [1 / n / scheme.output_variance for n, scheme in noise]
    before, after = (float(np.max(scheme.mu(1.0) ** 2)) for _, scheme in noise)
    return Finding(
        "when sites drop out the gain over conventional stays the same",
        f"S={s}, S_C={lost}, {lost} lost: gain {gains[0]:.3g} before, {gains[1]:.3g} after at the same τ; "
        f"but fewer honest sites hide each other, and the exact μ² grows {after / before:.2f} times "
        "(departure 9)",
        "in part" if math.isclose(*gains) else "no",
    )


def notes(setting: Setting, rows: Sequence[Imbalance]) -> list[str]:
    """Say what weighting by size gives."""
    sized = [row.size_weights_measured for row in rows]
    equal = [row.equal_weights_measured for row in rows]
    return [
        "H(n) is a consequence of equal weights. At the same exact ε for everyone, weights N_s/N give a "
        f"variance of {min(sized):.2f} to {max(sized):.2f} times the pooled one (stated: "
        f"{rows[0].size_weights_stated:.2f}, which is S/S_H) whatever the sizes; equal weights give "
        f"{equal[0]:.2f} to {equal[-1]:,.0f} times. Equal weights also estimate another quantity, the mean "
        "of the sites' means."
    ]


def _short(sizes: str) -> str:
    largest, *others = sizes.split()
    return f"{largest}, then {len(others)} of {others[0]}"


def experiment(setting: Setting) -> Experiment:
    """Measure noise with sites of unequal size."""
    rows = measure(setting)
    return Experiment(
        "sample_imbalance",
        "Sites of unequal size or lost: H(n)",
        setting,
        rows,
        draw(setting, rows),
        findings(setting, rows),
        notes(setting, rows),
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment and write its results."""
    common.run(experiment, Setting(), QUICK, arguments)


if __name__ == "__main__":
    main()
