"""Aggregator of a run: from the sites' answers to the results, with a journal of all releases."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

from capedjica.coordinator.run.journal import Journal, JournaledMeans
from capedjica.coordinator.run.results import SiteFacts, write_results
from capedjica.coordinator.run.run_folder import RunFolder, RunState
from capedjica.coordinator.run.site_standing import open_standing
from capedjica.coordinator.run.watcher import Step, Watcher
from capedjica.errors import BudgetExceededError, InputError
from capedjica.mechanisms.aggregator.driving import Aggregator, Exchange
from capedjica.mechanisms.aggregator.history import privacy_statement
from capedjica.privacy.statement import PrivacyStatement
from capedjica.securesum.noise import NoiseSource
from capedjica.study.study_file import Study

_log = logging.getLogger("capedjica.run")


def check_seed(study: Study, seed: int | None) -> None:
    """Require a seed if and only if the study sets insecure_noise."""
    if study.contract.insecure_noise and seed is None:
        raise InputError(
            "study.toml sets insecure_noise = true, but no seed is given; give --insecure-noise-seed or "
            "remove insecure_noise"
        )
    if not study.contract.insecure_noise and seed is not None:
        raise InputError(
            "--insecure-noise-seed is given, but study.toml does not set insecure_noise = true under "
            "[privacy]; a run with seeded noise protects no one, so the study itself must state it"
        )


def conduct(
    study: Study,
    folder: RunFolder,
    state: RunState,
    exchange: Exchange,
    insecure_noise_seed: int | None,
    watcher: Watcher,
    *,
    ahead: bool = False,
) -> None:
    """Release the means that are missing in the journal of a claimed folder, and compute the results.

    ``exchange`` carries messages to sites and their answers back; with ``ahead``, it is called from two
    threads.
    """
    contract = study.contract
    with Journal.open(folder.journal_path, contract) as journal:
        _log.info("%s: %s", "resumed" if state.resumed else "started", study.content.title)
        curator = NoiseSource(insecure_noise_seed=insecure_noise_seed, purpose="aggregator")
        aggregator = Aggregator(
            contract,
            exchange,
            curator if contract.mechanism == "pooled" else None,
            done=journal.releases,
            n_done=journal.n_done(len(contract.stages)),
            ahead=ahead,
            on_event=watcher.event,
            standing=open_standing(folder, contract),
        )
        with closing(aggregator):
            _estimate(study, folder, state, aggregator, journal, watcher)


def _estimate(
    study: Study,
    folder: RunFolder,
    state: RunState,
    aggregator: Aggregator,
    journal: Journal,
    watcher: Watcher,
) -> None:
    contract, done = study.contract, [0] * len(study.contract.stages)

    def report(stage: int) -> None:
        done[stage] += 1
        agreed = contract.stages[stage]
        spent = privacy_statement(contract, aggregator.releases)
        step = Step(agreed.query.label, done[stage], agreed.count, sum(done), spent)
        _log.info("%s, %d of at most %d", step.label, step.number, step.count)
        watcher.step(step)

    try:
        found = study.analysis.estimate(JournaledMeans(journal, aggregator, report))
    except BudgetExceededError as error:
        raise BudgetExceededError(f"{error}. The releases made so far are in {folder.path}") from None
    spent = privacy_statement(contract, aggregator.releases, aggregator.charged())
    privacy = replace(spent, not_covered=study.not_covered)
    sites = SiteFacts(_left_out(aggregator, privacy), aggregator.standing.carriers)
    write_results(folder, study, found, privacy, state, sites)
    folder.finish(state)
    _log.info("complete. %s", " ".join(str(privacy).split()))


def _left_out(aggregator: Aggregator, privacy: PrivacyStatement) -> dict[str, str]:
    """Return the reason for each lost or dishonest site."""
    standing = aggregator.standing
    reasons = {**aggregator.refusals, **standing.reasons}
    names = {*privacy.lost, *standing.liars}
    return {name: reasons.get(name, "no answer") for name in aggregator.contract.roster.in_order(names)}
