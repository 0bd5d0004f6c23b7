"""A site killed in a release while somebody withdraws: after the next start no series of theirs is left."""

import signal
import subprocess
import sys

import pytest

from capedjica.site.approval.admission import problems
from capedjica.site.approval.participation import approve
from capedjica.site.consent.consents import Consenting
from capedjica.site.consent.withdrawal import withdraw
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import open_people
from tests.support.places import ROOT
from tests.support.small_study import make_study

PERSON = "sub-03"


def attend(home, study):
    with home.open_ledger() as ledger:
        Consenting(home, ledger, open_people(home, study), study.analysis.site)


@pytest.mark.parametrize("moment", ["kept", "half"])
@pytest.mark.parametrize("start", [attend, lambda home, study: problems(home, study)], ids=["run", "check"])
def test_no_series_of_somebody_who_withdrew_outlives_the_next_start(tmp_path, moment, start):
    """The series is written after the withdrawal removed all; the process dies before it learns of it."""
    study, home = make_study(tmp_path), SiteHome.load(tmp_path / "sites" / "s1")
    approve(home, study)
    command = [sys.executable, "-m", "tests.faults.withdrawal_worker"]
    words = [str(study.folder), str(home.folder), PERSON, moment]
    with subprocess.Popen(
        [*command, *words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as site:
        assert site.stdout.readline() == "reading\n"
        withdraw(home, PERSON)
        site.stdin.write("\n")
        site.stdin.flush()
        assert site.stdout.readline() == f"{moment}\n"
        site.kill()
        assert site.wait() == -signal.SIGKILL
    assert len(list(home.cache_path.iterdir())) == 1
    start(home, study)
    assert not list(home.cache_path.glob("*"))
