"""A study on the real FLARE, from kits to results: who is refused, what comes out, what is left behind."""

import base64
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization

from capedjica.coordinator.flare import status
from capedjica.coordinator.flare.progress import read_progress
from capedjica.coordinator.flare.remote_run import Follower
from capedjica.errors import CapedjicaError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.securesum.noise import NoiseSource
from capedjica.site.approval.participation import approve
from capedjica.site.flare import status as site_status
from capedjica.study.reliability_file import read_reliability
from tests.attacks.views.leaks import Needles, contents
from tests.federated.consortium import CALM, Consortium
from tests.support.in_process import run_main
from tests.support.small_study import make_study
from tests.support.waiting import wait_for

SEED = 7
ODD = ("Zoë-Quux-{}", "patient {} of ward 7741", "MRN_00{}9-4471-X")


@dataclass
class Story:
    """What happened to one consortium."""

    parties: Consortium
    errors: dict[str, CapedjicaError] = field(default_factory=dict)
    spent: dict[str, list[float]] = field(default_factory=dict)
    under_way: dict[str, Any] = field(default_factory=dict)
    at_a_site: dict[str, Any] = field(default_factory=dict)
    rolls: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.parties.folder

    def try_to_run(self, title: str, **options) -> None:
        with pytest.raises(CapedjicaError) as error:
            self.parties.run(Keeper(self, title), seed=SEED, patience=CALM, **options)
        self.errors[title] = error.value
        self.spent[title] = [spent_by(home) for home in self.parties.homes.values()]

    def keep_progress(self, title: str) -> None:
        """Keep how far the run is at this moment, as a run folder of its own."""
        (self.folder / title).mkdir(exist_ok=True)
        shutil.copy(self.folder / "run" / "progress.json", self.folder / title)


def spent_by(home) -> float:
    totals = home.totals()
    return 0.0 if totals is None else totals.overall.mu2


class Keeper(Follower):
    """Looks at the run while it goes on, as other terminals would."""

    def __init__(self, story: Story, title: str) -> None:
        self.story, self.title = story, title

    def roll_call(self, sites) -> None:
        self.story.rolls.setdefault(self.title, []).append(sites)

    def progress(self, progress) -> None:
        story = self.story
        if progress.phase == "running" and progress.n_done and not story.under_way:
            story.under_way = status.look(story.parties.study, story.folder / "run")
            (story.at_a_site,) = site_status.look(story.parties.homes["s1"])


def make_parties(folder: Path) -> Consortium:
    """Four hospitals with unmistakable people that approve nothing by themselves, but seeded noise."""
    study = make_study(folder, simulated=False, insecure_noise=True, iterations=40)
    for number, file in enumerate(sorted((folder / "sites").glob("*/site.toml"))):
        text = file.read_text().replace("allow_unprotected = false", "allow_unprotected = true")
        file.write_text(text)
        for index, scan in enumerate(sorted((file.parent / "data").iterdir())):
            np.save(scan, np.load(scan).astype(np.float64) * np.pi + 0.123456789 * index)
            scan.rename(scan.with_stem(ODD[index % 3].format(10 * number + index)))
    return Consortium(study)


def forget_approval(home) -> None:
    """Make a site as if it had received its kit and not approved it."""
    for path in (home.ledger_path, home.head_path):
        path.unlink()
    shutil.rmtree(home.approved_path)


def change_a_scan(home) -> None:
    scan = sorted(home.data_path.iterdir())[3]
    values = np.load(scan)
    values[7, 7] += 1.0
    np.save(scan, values)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One consortium for all: nobody is there; one did not approve and one has other scans; all is well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        parties = make_parties(tmp_path_factory.mktemp("unmistakable-place"))
        story = Story(parties)
        try:
            story.try_to_run("nobody is there", wait=0.0)
            homes = parties.homes
            forget_approval(homes["s1"])
            change_a_scan(homes["s2"])
            parties.start()
            story.try_to_run("two do not take part")
            story.keep_progress("refused")
            for name in ("s1", "s2"):
                approve(homes[name], parties.study)
            parties.run(Keeper(story, "all is well"), seed=SEED, patience=CALM)
            yield story
        finally:
            parties.stop()


def test_too_few_sites_are_named(story):
    error = story.errors["nobody is there"]
    assert "0 sites are connected, 3 are needed; missing: s1, s2, s3, s4" in str(error)
    assert error.exit_code == 4
    assert story.spent["nobody is there"] == [0.0] * 4


def test_sites_that_did_not_approve_or_have_other_scans_are_named_and_nothing_is_charged(story):
    error = story.errors["two do not take part"]
    assert "2 sites answered, 3 are needed; missing: s1, s2" in str(error)
    assert "s1: it does not take part; its own log says why" in str(error)
    assert error.exit_code == 4
    assert story.spent["two do not take part"] == [0.0] * 4


def test_the_roll_is_called_once_and_tells_of_every_site_whether_it_has_approved(story):
    assert "nobody is there" not in story.rolls
    (refused,), (well,) = story.rolls["two do not take part"], story.rolls["all is well"]
    for roll in (refused, well):
        assert {site["name"]: site["enrolled"] for site in roll} == story.parties.study.contract.enrolled
        assert all(site["connected"] for site in roll)
    assert [site["approved"] for site in refused] == [False, False, True, True]
    assert refused[0]["words"] == (
        "connected; lost during the run: it does not take part; its own log says why"
    )
    # One that did not approve and one whose scans changed are told alike.
    assert refused[0]["words"] == refused[1]["words"]
    assert {site["words"] for site in well} == {"connected; has approved"}


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("s1", "it has not approved 'A small study'"),
        ("s2", "to use the current data, approve the study again"),
    ],
)
def test_a_sites_own_log_says_why_it_does_not_take_part(story, site, words):
    """Neither what its programs print nor FLARE's logs have a word of it, and none names anybody."""
    home, kit = story.parties.homes[site], story.parties.kit(site)
    assert words in (home.folder / "site.log").read_text()
    logs = [data.decode(errors="replace") for _, data in contents(kit.workspace)]
    logs += [file.read_text() for file in kit.path.glob("*.log")]
    assert any("SiteRelay" in log for log in logs)
    assert not any(words in log for log in logs)
    assert [scan.stem for scan in home.data_path.iterdir() if any(scan.stem in log for log in logs)] == []


def test_status_at_a_site_tells_that_it_is_connected_and_what_it_spent(story):
    facts = story.at_a_site
    assert facts["state"] == "connected", facts["words"]
    assert facts["server"] == f"localhost:{story.parties.federation.seal.port}"
    assert "last question" in facts["agent"]
    assert facts["carrier"].startswith("confined by ")
    assert facts["spent"]["releases"] > 0
    assert facts["spent"]["epsilon_text"] == "NOT PRIVATE"


def test_every_site_is_told_that_the_study_is_over_and_disconnects(story):
    for name, home in story.parties.homes.items():
        assert (story.parties.kit(name).path / "over.txt").exists()
        assert "the coordinator ended the study" in (home.folder / "site.log").read_text()
        wait_for(lambda name=name: not any(story.parties.processes_of(name).values()))
        (facts,) = site_status.look(home)
        assert (facts["state"], "the coordinator ended the study on" in facts["words"]) == ("stopped", True)


def test_the_estimate_equals_that_of_one_process_to_the_last_bit(story, tmp_path):
    """The same sites with ledgers of their own, as a second run of a study; the first ones are stale then."""
    shutil.copytree(story.folder / "sites", tmp_path / "sites")
    study = story.parties.study
    run_study(study, find_sites(study, tmp_path / "sites"), tmp_path / "here", insecure_noise_seed=SEED)
    np.testing.assert_array_equal(story.parties.unmixing(), np.load(tmp_path / "here" / "unmixing.npy"))


def test_a_run_that_is_complete_is_not_run_again(story, monkeypatch, capsys):
    """Nobody is asked: the sites could be gone."""
    arguments = ["run", str(story.folder), "--engine", "flare", "--insecure-noise-seed", str(SEED)]
    before = (story.folder / "run" / "progress.json").read_bytes()
    ended = run_main([*arguments, "--resume"], monkeypatch, capsys)
    assert ended.returncode == 0
    said = " ".join(ended.stdout.split())
    reliability = read_reliability(story.folder / "run", story.parties.study, story.parties.study.networks)
    assert f"{reliability.headline} from 30 participants at 4 sites in " in said
    assert "; no participant's data left their site." in said
    assert reliability.banner in said
    assert "Site" not in ended.stdout
    assert (story.folder / "run" / "progress.json").read_bytes() == before


@pytest.mark.parametrize(
    ("out", "code", "state"),
    [
        ("run", 0, "complete"),
        ("absent", 10, "not begun"),
        ("refused", 12, "stopped"),
    ],
)
def test_status_tells_scripts_how_a_run_stands(story, monkeypatch, capsys, out, code, state):
    arguments = ["status", str(story.folder), "--out", str(story.folder / out), "--json"]
    ended = run_main(arguments, monkeypatch, capsys)
    facts = json.loads(ended.stdout)
    assert (ended.returncode, facts["state"]) == (code, state)
    assert [site["connected"] for site in facts["sites"]] == [False] * 4
    assert facts["n_total"] >= facts["n_done"] >= 0


def test_status_of_a_run_under_way(story):
    facts = story.under_way
    assert facts["state"] == "running"
    assert [site["connected"] for site in facts["sites"]] == [True] * 4
    assert facts["n_total"] >= facts["n_done"] > 0


def test_status_for_people_names_the_sites_that_were_lost(story, monkeypatch, capsys):
    arguments = ["status", str(story.folder), "--out", str(story.folder / "refused")]
    said = run_main(arguments, monkeypatch, capsys).stdout
    assert "lost during the run: it does not take part; its own log says why" in said
    assert "NOT PRIVATE" not in said
    assert read_progress(story.folder / "refused").lost.keys() == {"s1", "s2"}


# What is left behind


def whereabouts(story):
    """All that the aggregator and its server wrote: results, kits, jobs, logs, and FLARE's workspace."""
    for name in ("federation", "run", "refused"):
        yield from contents(story.folder / name)


def test_nothing_of_a_subject_is_with_the_aggregator(story):
    """Names, paths and numbers of everybody, in any file of the server and of the run."""
    needles = Needles()
    for name, home in story.parties.homes.items():
        needles.add_words({str(home.data_path), f"sites/{name}"})
        for scan in home.data_path.iterdir():
            needles.add_words({scan.stem})
            values = np.load(scan)
            needles.add_arrays(scan.stem, [values, values.mean(axis=0), values - values.mean(axis=0)])
    found = list(whereabouts(story))
    names = {name for name, _ in found}
    assert {"log.txt", "maps.csv", "progress.json", "sealed.json", "server/log.txt"} <= names
    assert needles.search(found) == []
    planted = b"...".join([b"careless", np.load(scan)[3].astype(np.float32).tobytes()])
    assert needles.search([("a log", planted)]) == [f"{scan.stem} in a log"]


def forms(secret: bytes) -> list[bytes]:
    """A secret as somebody could have written it."""
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), base64.b64encode(secret)[:-2]]


def signing_key(home) -> list[bytes]:
    pem = (home.folder / "identity.pem").read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    raw = key.private_bytes(
        serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
    )
    return [pem.splitlines()[1], *forms(raw)]


def test_no_secret_of_a_site_is_with_the_aggregator_or_in_a_log(story):
    """Its signing key, and the masks of its first block: known here, as noise and masks are seeded."""
    written = list(whereabouts(story))
    for name, home in story.parties.homes.items():
        masks = NoiseSource(insecure_noise_seed=SEED, purpose=name).branch("masks").uniform(4).tobytes()
        secrets = [*signing_key(home), *forms(masks), *forms(masks[:16])]
        own = [*contents(home.folder / "studies"), *contents(home.folder / "carrier")]
        own += [("site.log", (home.folder / "site.log").read_bytes())]
        assert {"site.log"} < {Path(place).name for place, _ in own}
        assert [place for place, data in written + own if any(secret in data for secret in secrets)] == []
        assert any(secret in (home.folder / "identity.pem").read_bytes() for secret in secrets)


def test_the_key_of_a_site_for_the_network_is_in_its_own_kit_only(story):
    keys = {
        name: (story.parties.kit(name).workspace / "startup" / "client.key").read_bytes().splitlines()[3]
        for name in story.parties.homes
    }
    for name, home in story.parties.homes.items():
        holds = {
            other for other, key in keys.items() if any(key in data for _, data in contents(home.folder))
        }
        assert holds == {name}
