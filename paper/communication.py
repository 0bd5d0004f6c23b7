"""Communication, measured: ``python -m paper.communication [--quick] [--out FOLDER]``.

The paper's table of communication orders, and what the real protocol sends. Three ways to release means of D
numbers over S sites, one after the other as an iterative algorithm needs them, their messages counted and
weighed in both directions as they pass between the parties:

- *conventional*: every site adds its own noise and sends its mean;
- *cape*: one secure sum makes the masks of a whole block of releases, then a release is a question and an
  answer;
- *secure aggregation* of every release (Bonawitz et al. 2017, with our consistency round): a secure sum each
  time.

Numbers travel as 8-byte integers. The public state that an iteration sends along is the same for all three
and left out, but for one row: an iteration of capeDJICA, whose questions carry W and b back to the sites.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.sum_in_process import SumInProcess
from capedjica.algorithms.ica.infomax import Infomax, default_learning_rate
from capedjica.engines.embedded import EmbeddedStudy, in_process
from capedjica.engines.inprocess import Letter
from capedjica.mechanisms.contract import Query, Stage
from capedjica.report.pictures.figures import COLOURS
from paper.shared import common
from paper.shared.common import Experiment, Finding

Scheme = Literal["conventional", "cape", "capeDJICA", "secure aggregation"]


@dataclass(frozen=True)
class Setting:
    """The sizes of the experiment."""

    sites: tuple[int, ...] = (4, 8, 16, 32, 64)
    sizes: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 100_000)
    usual_sites: int = 8
    usual_size: int = 420
    releases: int = 20


QUICK = Setting(sites=(4, 8), sizes=(1, 1000), usual_sites=4, usual_size=20, releases=3)


@dataclass(frozen=True)
class Traffic:
    """One line of the table: messages and bytes per release, of the busiest site and of the aggregator.

    Attributes
    ----------
    releases : int
        How many were measured together; the other numbers are averages over them.
    online_messages, online_bytes : float
        Of a site for the last of these releases alone.
    """

    scheme: str
    sites: int
    size: int
    releases: int
    site_messages: float
    site_sent: float
    site_received: float
    aggregator_messages: float
    aggregator_sent: float
    aggregator_received: float
    online_messages: float
    online_bytes: float

    @property
    def site_bytes(self) -> float:
        """Both directions together."""
        return self.site_sent + self.site_received

    @property
    def aggregator_bytes(self) -> float:
        """Both directions together."""
        return self.aggregator_sent + self.aggregator_received


@dataclass
class Meter:
    """Counts what passes between the aggregator and each site, and hands it on as it is."""

    messages: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    def __call__(self, letter: Letter) -> list[bytes]:
        """Weigh a letter of the in-process engine."""
        self.messages[letter.site] += 1
        way = self.sent if letter.direction == "answer" else self.received
        way[letter.site] += len(letter.data)
        return [letter.data]


class CountedSum(SumInProcess):
    """A secure sum that counts its messages beside its bytes."""

    def collect(self, answers: dict[str, bytes]) -> dict[str, bytes]:
        """Count one round of answers and the requests that follow."""
        requests = super().collect(answers)
        self.messages.update(answers.keys())
        self.messages.update(requests.keys())
        return requests

    def __post_init__(self) -> None:
        super().__post_init__()
        self.messages: Counter[str] = Counter()


def by_study(
    scheme: Literal["conventional", "cape"], n_sites: int, size: int, releases: int, state: bytes = b""
) -> Traffic:
    """Run a study of some releases through the in-process engine, each question with a public state."""
    names = [f"site-{place:03d}" for place in range(n_sites)]
    meter = Meter()
    study = EmbeddedStudy(
        "communication",
        dict.fromkeys(names, 1),
        dict.fromkeys(names, _Zeros(size)),
        [Stage(Query("mean", size, 1.0), releases)],
        in_process(epsilon=1.0, mechanism=scheme),
        carrier=meter,
    )
    for _ in range(releases - 1):
        study.mean(0, state)
    before = Meter(meter.messages.copy(), meter.sent.copy(), meter.received.copy())
    study.mean(0, state)
    online = Meter(
        meter.messages - before.messages, meter.sent - before.sent, meter.received - before.received
    )
    return _traffic(scheme, n_sites, size, releases, meter, online)


def by_iterations(n_sites: int, size: int, releases: int) -> Traffic:
    """Run iterations of capeDJICA with R^2 + R numbers: gradients to the aggregator, W and b to the sites."""
    r = math.isqrt(size)
    state = Infomax(r, default_learning_rate(r)).state
    return replace(by_study("cape", n_sites, r * (r + 1), releases, state), scheme="capeDJICA")


@dataclass(frozen=True)
class _Zeros:
    """One subject whose vector is zero: what is sent does not depend on the data."""

    size: int

    def __call__(self, stage: int, published: bytes, state: bytes) -> list[NDArray[np.float64]]:
        return [np.zeros((1, self.size))]


def by_sum(n_sites: int, size: int) -> Traffic:
    """Run one release as a secure sum of its own."""
    run = CountedSum(n_sites, size)
    run.run()
    meter = Meter(run.messages, run.sent, run.received)
    return _traffic("secure aggregation", n_sites, size, 1, meter, meter)


def _traffic(scheme: Scheme, n_sites: int, size: int, releases: int, meter: Meter, online: Meter) -> Traffic:
    return Traffic(
        scheme=scheme,
        sites=n_sites,
        size=size,
        releases=releases,
        site_messages=_most(meter.messages) / releases,
        site_sent=_most(meter.sent) / releases,
        site_received=_most(meter.received) / releases,
        aggregator_messages=meter.messages.total() / releases,
        aggregator_sent=meter.received.total() / releases,
        aggregator_received=meter.sent.total() / releases,
        online_messages=_most(online.messages),
        online_bytes=_most(online.sent) + _most(online.received),
    )


def _most(counts: Mapping[str, int]) -> int:
    return max(counts.values())


def measure(setting: Setting) -> list[Traffic]:
    """Measure all schemes over S at the usual D, and over D at the usual S."""
    over_sites = [(s, setting.usual_size) for s in setting.sites]
    over_sizes = [(setting.usual_sites, d) for d in setting.sizes]
    rows: list[Traffic] = []
    for s, d in track(over_sites + over_sizes, description="communication"):
        rows.append(by_study("conventional", s, d, setting.releases))
        rows.append(by_study("cape", s, d, setting.releases))
        rows.append(by_sum(s, d))
    return [*rows, by_iterations(setting.usual_sites, setting.usual_size, setting.releases)]


def linear_fit(rows: Sequence[Traffic], scheme: Scheme) -> tuple[NDArray[np.float64], float]:
    """Fit a site's bytes by a + b S + c D, with the least relative error; return (a, b, c) and the worst."""
    chosen = [row for row in rows if row.scheme == scheme]
    terms = np.array([[1.0, row.sites, row.size] for row in chosen])
    measured = np.array([row.site_bytes for row in chosen])
    relative = terms / measured[:, None]
    found = np.linalg.lstsq(relative, np.ones(len(chosen)))[0]
    return found, float(np.abs(relative @ found - 1).max())


# Scheme, label, colour, line, marker.
_SERIES: tuple[tuple[Scheme, str, str, str, str], ...] = (
    ("secure aggregation", "secure aggregation of every release", COLOURS[5], "--", "s"),
    ("cape", "cape, its share of the masks included", COLOURS[0], "-", "o"),
    ("conventional", "conventional averaging", "#333333", ":", "^"),
)


def _panel(axis: Axes, rows: Sequence[Traffic], over: str, what: str) -> None:
    for scheme, label, colour, line, marker in _SERIES:
        chosen = sorted((r for r in rows if r.scheme == scheme), key=lambda r: float(getattr(r, over)))
        axis.plot(
            [getattr(row, over) for row in chosen],
            [getattr(row, what) for row in chosen],
            linestyle=line,
            marker=marker,
            markersize=5,
            color=colour,
            label=label,
        )
    axis.set(xscale="log", yscale="log")
    axis.grid(alpha=0.25)


def draw(setting: Setting, rows: Sequence[Traffic]) -> Figure:
    """Draw bytes of a site and of the aggregator, and messages of a site, over S and over D."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    axes = figure.subplots(2, 3)
    whats = (
        ("site_bytes", "bytes of a site"),
        ("aggregator_bytes", "bytes of the aggregator"),
        ("site_messages", "messages of a site"),
    )
    kinds = (
        ("sites", "sites S", [r for r in rows if r.size == setting.usual_size], f"D = {setting.usual_size}"),
        (
            "size",
            "numbers D",
            [r for r in rows if r.sites == setting.usual_sites],
            f"S = {setting.usual_sites}",
        ),
    )
    letters = iter("abcdef")
    for line, (over, label, chosen, fixed) in zip(axes, kinds, strict=True):
        for axis, (what, words) in zip(line, whats, strict=True):
            _panel(axis, chosen, over, what)
            axis.set(xlabel=label, ylabel=words, title=f"({next(letters)}) {fixed}")
            axis.title.set_fontsize(10)
            if what == "site_messages":
                axis.set(yscale="linear", ylim=(0, 11))
            else:
                low, high = axis.get_ylim()
                axis.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
            if over == "sites":
                axis.set_xticks(setting.sites, [str(s) for s in setting.sites])
                axis.minorticks_off()
    figure.suptitle(f"Per release, both directions; {setting.releases} releases in a block")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _at(rows: Sequence[Traffic], scheme: Scheme, n_sites: int, size: int) -> Traffic:
    return next(row for row in rows if (row.scheme, row.sites, row.size) == (scheme, n_sites, size))


def findings(setting: Setting, rows: Sequence[Traffic]) -> list[Finding]:
    """Answer the paper's claims."""
    conventional = _at(rows, "conventional", setting.usual_sites, setting.usual_size)
    (_, per_site, per_number), worst = linear_fit(rows, "cape")
    (_, sum_site, sum_number), sum_worst = linear_fit(rows, "secure aggregation")
    share = max(abs(row.aggregator_bytes / (row.sites * row.site_bytes) - 1) for row in rows)
    masked, iteration = (
        _at(rows, scheme, setting.usual_sites, setting.usual_size) for scheme in ("cape", "capeDJICA")
    )
    return [
        Finding(
            "conventional averaging needs one message of Θ(D) from each site",
            f"{conventional.online_messages:g} messages a release, the question and the answer, and "
            f"{conventional.online_bytes:,.0f} bytes at S={setting.usual_sites}, D={setting.usual_size}",
            "yes" if conventional.online_messages == 2 else "no",
        ),
        Finding(
            "cape: O(S + D) for a site, O(S² + SD) for the aggregator",
            f"a site's bytes per release fit {per_site:.0f} S + {per_number:.1f} D + constant within "
            f"{worst:.2%} ({setting.releases} releases a block); the aggregator has S times a site's, within "
            f"{share:.2%}",
            "yes" if worst < 0.1 and share < 0.05 else "no",
        ),
        Finding(
            "an iteration of capeDJICA: O(S + R²) for a site, O(S² + SR²) for the aggregator",
            f"the same with D = R² + R, one release for both gradients: {masked.site_bytes:,.0f} and "
            f"{masked.aggregator_bytes:,.0f} bytes at S={setting.usual_sites}, D={setting.usual_size}; with "
            f"W and b, which go back to the sites, {iteration.site_bytes:,.0f} and "
            f"{iteration.aggregator_bytes:,.0f}",
            "yes" if worst < 0.1 and share < 0.05 else "no",
        ),
        Finding(
            "cape has the order of secure aggregation (Bonawitz et al.)",
            f"secure aggregation of each release: {sum_site:.0f} S + {sum_number:.1f} D + constant within "
            f"{sum_worst:.2%}. Cape sends every number twice, mask and release, but shares the part in S "
            f"between {setting.releases} releases",
            "yes" if worst < 0.1 and sum_worst < 0.1 else "no",
        ),
    ]


def notes(setting: Setting, rows: Sequence[Traffic]) -> list[str]:
    """Give the paper's table of orders with a measured column, and say when cape sends more."""
    lines = [
        "| Algorithm | Site | Aggregator | Site, measured per release "
        f"(S={setting.usual_sites}, D={setting.usual_size}) |",
        "|---|---|---|---|",
    ]
    orders: tuple[tuple[str, str, str, Scheme | None], ...] = (
        ("conventional", "Θ(D)", "Θ(SD)", "conventional"),
        ("cape", "O(S + D)", "O(S² + SD)", "cape"),
        ("capeDJICA, an iteration, D = R² + R", "O(S + R²)", "O(S² + SR²)", "capeDJICA"),
        ("Heikkilä et al., M compute nodes", "Θ(DM)", "Θ(SDM)", None),
        ("Bonawitz et al., every release", "O(S + D)", "O(S² + SD)", "secure aggregation"),
    )
    for label, site, aggregator, scheme in orders:
        measured = "not implemented here"
        if scheme:
            row = _at(rows, scheme, setting.usual_sites, setting.usual_size)
            measured = f"{row.site_messages:.1f} messages, {row.site_bytes:,.0f} bytes"
        lines.append(f"| {label} | {site} | {aggregator} | {measured} |")
    return ["\n".join(lines), _trade(setting, rows)]


def _trade(setting: Setting, rows: Sequence[Traffic]) -> str:
    s, d = setting.usual_sites, setting.usual_size
    cape, conventional = _at(rows, "cape", s, d), _at(rows, "conventional", s, d)
    many, long = (
        _at(rows, "cape", *at).site_bytes / _at(rows, "secure aggregation", *at).site_bytes
        for at in ((setting.sites[-1], d), (s, setting.sizes[-1]))
    )
    return (
        f"Once its masks are made, a release of cape is {cape.online_messages:g} messages and "
        f"{cape.online_bytes:,.0f} bytes (conventional averaging: {conventional.online_bytes:,.0f}). Against "
        f"secure aggregation of every release its bytes are {many:.2f} times at S={setting.sites[-1]}, D={d} "
        f"and {long:.2f} times at S={s}, D={setting.sizes[-1]:,}: for long vectors cape sends more, in fewer "
        "rounds."
    )


def experiment(setting: Setting) -> Experiment:
    """Count messages and bytes of the real protocol."""
    rows = measure(setting)
    return Experiment(
        "communication",
        "Communication",
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
