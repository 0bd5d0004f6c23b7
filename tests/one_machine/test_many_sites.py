"""Sites made of a collection in one command: all or none, and only of what can be used."""

import numpy as np
import pytest

from capedjica.errors import InputError
from capedjica.one_machine.many_sites import Limits, make_sites, unnamed_arrays
from capedjica.site.home import SiteHome
from capedjica.site.participants.cohort import call_roll

LIMITS = Limits(20.0, 10.0, 1e-5)
PEOPLE = {"a1": "North", "a2": "North", "b1": "South West", "b2": "South West", "b3": "South West"}


@pytest.fixture
def collection(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    rng = np.random.default_rng(0)
    folder = tmp_path / "collection"
    folder.mkdir()
    np.savez(folder / "timeseries.npz", **{name: rng.normal(size=(30, 8)) for name in PEOPLE})
    write_table(folder, PEOPLE.items())
    return folder


def write_table(folder, rows, header="participant_id\tsite"):
    lines = [header, *("\t".join(row) for row in rows)]
    (folder / "participants.tsv").write_text("\n".join(lines) + "\n")


def test_an_archive_becomes_sites_with_the_same_numbers(collection, tmp_path):
    out = tmp_path / "sites"
    assert make_sites(out, collection, LIMITS) == {"North": 2, "South-West": 3}
    with np.load(collection / "timeseries.npz") as series:
        for name, site in PEOPLE.items():
            written = out / site.replace(" ", "-") / "data" / f"{name}.npy"
            np.testing.assert_array_equal(np.load(written), series[name])
    homes = [SiteHome.load(out / name) for name in ("North", "South-West")]
    assert [len(call_roll(home).people) for home in homes] == [2, 3]
    # Their people are real: they approve nothing by themselves.
    assert not any(home.settings.policy.auto_approve for home in homes)
    assert homes[0].card().public_key != homes[1].card().public_key
    with pytest.raises(InputError, match="already exists and is not empty"):
        make_sites(out, collection, LIMITS)


def test_arrays_without_a_row_are_counted(collection, tmp_path, cli):
    assert unnamed_arrays(collection) == 0
    write_table(collection, list(PEOPLE.items())[1:4])
    made = cli("sites", "init", str(tmp_path / "sites"), "--data", str(collection))
    assert f"Not used: 2 arrays without a row in {collection / 'participants.tsv'}." in made.stdout


def test_a_folder_for_each_site(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("north", "south"):
        (tmp_path / "data" / name).mkdir(parents=True)
        np.save(tmp_path / "data" / name / "sub-01.npy", np.eye(4))
    assert make_sites(tmp_path / "sites", tmp_path / "data", LIMITS) == {"north": 1, "south": 1}
    assert SiteHome.load(tmp_path / "sites" / "north").data_path == tmp_path / "data" / "north"


def without_archive(folder):
    (folder / "timeseries.npz").write_bytes(b"no archive")


BROKEN = {
    "has no column 'site'": lambda folder: write_table(folder, [("a1",)], "participant_id"),
    "names 'nobody', but": lambda folder: write_table(folder, [*PEOPLE.items(), ("nobody", "North")]),
    "names 'a1' twice": lambda folder: write_table(folder, [*PEOPLE.items(), ("a1", "North")]),
    "has 1 site; a study needs at least 2. Expected a folder": lambda folder: write_table(
        folder, [("a1", "North")]
    ),
    "is not a valid NumPy archive": without_archive,
    "2 .npz archives": lambda folder: np.savez(folder / "more.npz", x=np.eye(2)),
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_cannot_be_used_is_named_and_nothing_is_made(collection, tmp_path, message):
    BROKEN[message](collection)
    with pytest.raises(InputError, match=message):
        make_sites(tmp_path / "sites", collection, LIMITS)
    assert not (tmp_path / "sites").exists()


def test_somebody_at_two_sites_is_refused(collection, tmp_path):
    """They would be protected half as well."""
    write_table(collection, [*PEOPLE.items(), ("a1", "South West")])
    with pytest.raises(InputError, match="names 'a1' twice"):
        make_sites(tmp_path / "sites", collection, LIMITS)


def test_one_site_that_cannot_be_made_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("north", "south"):
        (tmp_path / "data" / name).mkdir(parents=True)
    np.save(tmp_path / "data" / "north" / "sub-01.npy", np.eye(4))
    with pytest.raises(InputError, match=r"south contains no \.npy"):
        make_sites(tmp_path / "sites", tmp_path / "data", LIMITS)
    assert not (tmp_path / "sites").exists()
    # Nor in a folder that was there before.
    (tmp_path / "sites").mkdir()
    with pytest.raises(InputError, match=r"south contains no \.npy"):
        make_sites(tmp_path / "sites", tmp_path / "data", LIMITS)
    assert list((tmp_path / "sites").iterdir()) == []
    with pytest.raises(InputError, match="study_epsilon must be at most total_epsilon"):
        make_sites(tmp_path / "sites", tmp_path / "data", Limits(1.0, 2.0, 1e-5))
