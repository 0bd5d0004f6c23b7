"""Every reason why a site cannot take part, through every command that asks: they find the same ones."""

import re
import shutil
from typing import get_args

import msgspec
import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.mechanisms.messages import Refusal, Status
from capedjica.one_machine.local_run import run_study
from capedjica.securesum.identity import Identity
from capedjica.site.agent.study_session import SiteParty
from capedjica.site.approval.admission import Kind, Scans, why_not
from capedjica.site.approval.participation import approve
from capedjica.site.approval.revocation import find_approval, revoke
from capedjica.site.consent.consents import withdrawn_path
from capedjica.site.consent.withdrawal import withdraw
from capedjica.site.home import SiteHome
from capedjica.site.participants.approved_scans import record_path
from capedjica.site.participants.cohort import enrol
from capedjica.site.participants.enrolment import enrolment_path
from capedjica.study.study_file import Study, write_study
from tests.site.agent.agents import hello, read
from tests.site.test_settled import begin
from tests.support.small_study import changed, make_study

SILENT = "it does not take part; its own log says why"


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A study that its four sites approved."""
    folder = tmp_path_factory.mktemp("template") / "study"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        study = make_study(folder, simulated=False)
    for home in homes_in(folder):
        approve(home, study)
    return folder


@pytest.fixture
def folder(template, tmp_path):
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace(str(template), str(tmp_path)))
    return tmp_path


def homes_in(folder):
    return [SiteHome.load(file) for file in sorted(folder.glob("sites/*/site.toml"))]


# What is wrong: each changes the site, or returns another study


def setting(old, new):
    def change(home, study):
        file = home.folder / "site.toml"
        assert re.search(old, file.read_text())
        file.write_text(re.sub(old, new, file.read_text()))

    return change


def another(**privacy):
    return lambda home, study: changed(study, study.folder / "other.toml", **privacy)


def with_sites(study, sites):
    write_study(study.folder / "other.toml", msgspec.structs.replace(study.content, sites=sites))
    return Study.load(study.folder / "other.toml")


def without_it(home, study):
    return with_sites(study, study.content.sites[1:])


def another_key(home, study):
    first, *others = study.content.sites
    card = Identity.generate().public("s1").card
    return with_sites(study, (msgspec.structs.replace(first, card=card), *others))


def revoked_peer(home, study):
    peer = homes_in(study.folder)[2].card().fingerprint
    setting("# revoked = .*", f'revoked = ["{peer}"]')(home, study)


def exchanged_identity(home, study):
    home.identity_path.unlink()
    Identity.generate().save(home.identity_path)


def revoked_approval(home, study):
    revoke(home, find_approval(home, study.content.title))


def fewer_enrolled(home, study):
    np.save(home.data_path / "sub-03.npy", np.full((60, 100), np.nan))
    enrol(home, home.settings.data, study)


def damaged_enrolment(home, study):
    enrolment_path(home).write_text("[")


def lost_list(home, study):
    withdraw(home, "sub-03")
    withdrawn_path(home).unlink()


def lost_record(home, study):
    record_path(home, study).unlink()


def changed_scan(home, study):
    np.save(home.data_path / "sub-03.npy", np.random.default_rng(0).standard_normal((60, 100)))


def somebody_new(home, study):
    np.save(home.data_path / "sub-99.npy", np.random.default_rng(0).standard_normal((60, 100)))


def no_folder(home, study):
    shutil.rmtree(home.data_path)


def nobody_left(home, study):
    enrol(home, home.settings.data, study)
    approve(home, study)
    for file in sorted(home.data_path.iterdir()):
        file.rename(file.with_name(f"other-{file.name}"))


def unreadable_scan(home, study):
    (home.data_path / "sub-03.npy").write_bytes(b"")
    approve(home, study)


def begun(change):
    def later(home, study):
        begin(home, study)
        return change(home, study)

    return later


# The kind, what is done, the words, and whether it keeps from approving too; None: only a look tells.
CASES = {
    "not a site": ("membership", without_it, "it is not a site of 'A small study'", True),
    "another key": ("key", another_key, "the study lists a different key for this site", True),
    "a peer's key": ("key", revoked_peer, "site s3 of the study has a key that this site revoked", True),
    "its ledger": ("approval", exchanged_identity, "the storage key is not that of the ledger", True),
    "unprotected": ("policy", another(mechanism="none", epsilon=None), "not allow mechanism 'none'", True),
    "no colluders": ("policy", another(n_colluding=0), "privacy.n_colluding is 0", True),
    "enrolment": ("enrolment", fewer_enrolled, "expects 6 subjects, but this site enrolled 5", True),
    "damaged enrolment": ("enrolment", damaged_enrolment, "enrolled.toml is not valid TOML", True),
    "cap": ("budget", setting("study_epsilon = 20.0", "study_epsilon = 5.0"), "at most epsilon 5", True),
    "revoked": ("approval", revoked_approval, "the site revoked its approval", True),
    "not approved": ("approval", another(title="Another"), "it has not approved 'Another'", False),
    "changed": ("approval", another(epsilon=9.0), "the study was changed after it was approved", False),
    "total": (
        "budget",
        setting("total_epsilon = 50.0", "total_epsilon = 9.0"),
        "all studies in total",
        True,
    ),
    "list of the withdrawn": ("consent", lost_list, "lacks 1 of the 1 withdrawals of consent", True),
    "the same, begun": ("consent", begun(lost_list), "lacks 1 of the 1 withdrawals of consent", True),
    "no record": ("record", lost_record, "is missing or malformed", False),
    "no record, begun": ("record", begun(lost_record), "restore it from a backup", False),
    "a scan changed": ("record", changed_scan, "the first is sub-03; to use the current data", False),
    "somebody came": ("scans", somebody_new, "the study expects 6 subjects", True),
    "no folder": ("scans", no_folder, "is not a folder; expected a folder with scans", True),
    "no folder, begun": ("scans", begun(no_folder), "is not a folder; expected a folder with scans", True),
    "nobody left": ("scans", nobody_left, "none of its 6 enrolled participants is usable", True),
    "a scan that cannot be read": ("scans", unreadable_scan, "sub-03.npy: an empty file", None),
}


def asked(home, study, place):
    """Greet the site's agent; return what it answers, and the bytes."""
    party = SiteParty(home, study, None, place, "none")
    try:
        data = party.handle(hello(study))
    finally:
        party.close()
    return data


def test_every_kind_of_reason_is_tried():
    assert {kind for kind, *_ in CASES.values()} == set(get_args(Kind))


def test_without_a_reason_all_admit(folder, cli):
    study, homes = Study.load(folder), homes_in(folder)
    assert why_not(homes[0], study, Scans(homes[0], study)) == []
    assert cli("site", "check", str(homes[0].folder), "--study", str(folder)).returncode == 0
    assert isinstance(read(study, hello(study), asked(homes[0], study, folder)), Status)
    assert cli("site", "approve", str(folder / "study.toml"), "--site", str(homes[0].folder)).returncode == 0
    assert run_study(study, homes, folder / "run").complete


@pytest.mark.parametrize("case", CASES)
def test_every_command_finds_every_reason(folder, cli, case):
    kind, change, words, of_terms = CASES[case]
    study = Study.load(folder)
    study = change(homes_in(folder)[0], study) or study
    homes = homes_in(folder)
    home, file = homes[0], folder / ("other.toml" if (folder / "other.toml").exists() else "study.toml")
    reasons = why_not(home, study, Scans(home, study))
    (reason,) = (one for one in reasons if words in one.words)
    assert (reason.kind, reason.of_terms) == (kind, of_terms is not False)

    checked = cli("site", "check", str(home.folder), "--study", str(file))
    assert checked.returncode != 0
    assert words in checked.stderr

    with pytest.raises(InputError, match=r"cannot be run; nothing was spent") as refused:
        run_study(study, homes, folder / "run")
    assert f"site s1: {reason.words}" in str(refused.value)

    # The agent counts people and files; every scan was read by `site start`.
    found = [one.words for one in why_not(home, study, Scans(home, study, read=False))]
    assert (reason.words in found) == (of_terms is not None)
    data = asked(home, study, folder)
    if found:
        assert SILENT.encode() in data
        assert f"does not take part: site s1: {found[0]}" in (home.folder / "site.log").read_text()
        assert b"sub-" not in data
    else:
        assert not isinstance(read(study, hello(study), data), Refusal)

    approving = cli("site", "approve", str(file), "--site", str(home.folder))
    assert (approving.returncode != 0) == bool(of_terms)
    assert not of_terms or words in approving.stderr
