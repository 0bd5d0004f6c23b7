"""A site takes its approval back: nothing more leaves, also in the middle of a run."""

import pytest

from capedjica.coordinator.run.watcher import Watcher
from capedjica.errors import InputError
from capedjica.one_machine.local_run import find_sites, run_study
from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import approve
from capedjica.site.approval.revocation import find_approval, revoke
from capedjica.site.check import site_report
from capedjica.site.home import SiteHome
from tests.support.in_process import run_main
from tests.support.small_study import changed, make_study

TITLE = "A small study"


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_study(tmp_path, simulated=False)


@pytest.fixture
def homes(study, tmp_path):
    homes = find_sites(study, tmp_path / "sites")
    for home in homes:
        approve(home, study)
    return homes


@pytest.fixture
def capedjica(monkeypatch, capsys):
    return lambda *arguments: run_main(arguments, monkeypatch, capsys)


def releases(home):
    return home.totals().overall.n_releases


class Revoking(Watcher):
    """Revokes an approval between two releases, by the ledger alone, as another process would."""

    def __init__(self, home, after):
        self._home, self._left, self.released = home, after, None

    def step(self, step):
        self._left -= 1
        if self._left == 0:
            home = SiteHome.load(self._home.folder)
            revoke(home, find_approval(home, TITLE))
            self.released = releases(home)


@pytest.mark.parametrize("after", [1, 4])
def test_a_run_under_way_goes_on_without_a_site_that_revokes(study, homes, tmp_path, after):
    watcher = Revoking(homes[1], after)
    assert run_study(study, homes, tmp_path / "run", watcher=watcher).complete
    assert 0 < watcher.released == releases(homes[1])
    assert all(releases(home) > watcher.released for home in (homes[0], homes[2], homes[3]))


def test_what_was_released_stays_charged_and_the_study_cannot_be_approved_again(study, homes, tmp_path):
    assert run_study(study, homes, tmp_path / "run").complete
    home = homes[0]
    before = home.totals().overall
    revoke(home, find_approval(home, TITLE))
    assert home.totals().overall == before
    (spent,) = home.totals().studies.values()
    assert spent.revoked
    words = "the site revoked its approval, which is permanent; the coordinator must create a new study"
    with pytest.raises(InputError, match=f"site s1 cannot approve 'A small study': {words}"):
        approve(home, study)
    assert problems(home, study) == [f"site s1: {words}"]
    assert not site_report(home, study)["approval"]["approved"]
    approve(home, changed(study, tmp_path / "other.toml", title="Another study"))


def test_a_site_that_approves_by_itself_does_not_approve_what_it_revoked(tmp_path):
    study = make_study(tmp_path)
    homes = find_sites(study, tmp_path / "sites")
    approve(homes[0], study)
    revoke(homes[0], find_approval(homes[0], TITLE))
    with pytest.raises(InputError, match="site s1: the site revoked its approval"):
        run_study(study, homes, tmp_path / "run")


def test_the_command_says_what_was_spent_and_what_it_means(study, homes, tmp_path, capedjica):
    run_study(study, homes, tmp_path / "run")
    home = homes[0]
    done = capedjica("site", "revoke", str(study.folder), str(home.folder), "--yes")
    assert done.returncode == 0
    assert f"'{TITLE}'" in done.stdout
    assert f"{releases(home)} releases" in done.stdout
    for words in (
        "past releases stay released and charged",
        "the same study cannot be approved again",
        "Site s1 revoked its approval of 'A small study'. Nothing more leaves this site for it.",
        "A run in progress loses this site from its next message on",
    ):
        assert words in done.stdout
    assert f"{TITLE} (revoked)" in capedjica("ledger", "show", "--site", str(home.folder)).stdout
    assert capedjica("ledger", "verify", "--site", str(home.folder)).returncode == 0


def test_a_no_changes_nothing(study, homes, capedjica, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    done = capedjica("site", "revoke", TITLE, str(homes[0].folder))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "Not revoked; nothing was changed.")
    assert problems(homes[0], study) == []


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("Another study", "site s1 has not approved 'Another study'; approved studies: 'A small study'"),
        ("other.toml", "has not approved"),
        (TITLE, "site s1 has already revoked its approval of 'A small study'"),
    ],
)
def test_what_cannot_be_revoked(study, homes, tmp_path, capedjica, monkeypatch, named, words):
    monkeypatch.chdir(tmp_path)
    changed(study, tmp_path / "other.toml", title="Another study")
    revoke(homes[0], find_approval(homes[0], TITLE))
    done = capedjica("site", "revoke", named, str(homes[0].folder), "--yes")
    assert done.returncode == 2
    assert words in done.stderr


def test_two_studies_of_one_title_are_told_apart_by_their_files(study, homes, tmp_path):
    other = changed(study, tmp_path / "other.toml", reserve=0.1)
    approve(homes[0], other)
    with pytest.raises(InputError, match="approved 2 studies with the title 'A small study'; give the"):
        find_approval(homes[0], TITLE)
    assert find_approval(homes[0], str(tmp_path / "other.toml")).hash == other.contract.hash


def test_a_site_that_approved_nothing_has_nothing_to_revoke(study, tmp_path, capedjica):
    done = capedjica("site", "revoke", TITLE, str(tmp_path / "sites" / "s1"), "--yes")
    assert done.returncode == 2
    assert "site s1 has no ledger yet" in done.stderr
