"""The page from data to a report: each of its ways, with small data of simulated participants laid out so."""

import re
import shutil

import numpy as np
import pytest

from tests.docs.guides.test_guide_scans import make_abide
from tests.docs.test_docs import ROOT
from tests.support.shell import run_script

PAGE = ROOT / "docs" / "user-guide" / "getting-started.md"


def ways():
    """The text of each section by its heading."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def fenced(heading, language):
    return "".join(re.findall(rf"```{language}\n(.*?)```", ways()[heading], re.DOTALL))


def simulated(folder):
    """Run the commands of the page that simulate data."""
    run_script(fenced("Simulated data", "sh"), folder)
    for fifo in ("ask", "answer"):
        (folder / fifo).unlink()


def arrays(folder):
    make_abide(folder, per_site=4, length=60, sites=["NYU", "PITT", "UM_1", "YALE"])
    (folder / "abide_cc200").mkdir()
    (folder / "series.npz").rename(folder / "abide_cc200" / "timeseries.npz")
    (folder / "people.tsv").rename(folder / "abide_cc200" / "participants.tsv")
    shutil.rmtree(folder / "nilearn_data")
    shutil.copy(ROOT / "examples" / "cc200_centres.csv", folder)


def people(folder):
    rng = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        (folder / "my_participants" / site).mkdir(parents=True)
        rows = [f"sub-{n:02}\t{rng.normal(50, 9):.1f}\t{rng.normal(1400, 90):.1f}" for n in range(12)]
        text = "\n".join(["participant_id\tage\tvolume", *rows])
        (folder / "my_participants" / site / "participants.tsv").write_text(f"{text}\n")
    (folder / "means.toml").write_text(fenced("A participant table", "toml"))


LAYOUTS = {
    "Arrays in one archive": arrays,
    "Tables of regions": simulated,
    "fMRIPrep derivatives": simulated,
    "A participant table": people,
}
# The other ways differ in what is read, and that is tested where it is read.
LONG = {"fMRIPrep derivatives"}
# Ways whose results have positions in a brain.
IN_A_BRAIN = {"Arrays in one archive", "fMRIPrep derivatives"}


def test_every_way_has_a_layout():
    assert {heading for heading in ways() if fenced(heading, "bash")} == set(LAYOUTS)


@pytest.mark.parametrize(
    "heading",
    [pytest.param(name, marks=pytest.mark.full if name in LONG else ()) for name in LAYOUTS],
)
def test_six_commands_from_data_to_a_report(heading, tmp_path):
    LAYOUTS[heading](tmp_path)
    commands = fenced(heading, "bash")
    assert len(commands.splitlines()) <= 6
    run_script(commands, tmp_path)
    (page,) = tmp_path.glob("*/run/report.html")
    assert page.stat().st_size > 10_000
    assert ('id="volumes"' in page.read_text("utf-8")) == (heading in IN_A_BRAIN)
