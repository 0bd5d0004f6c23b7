"""Sites that join a study in the making: the file keeps every other byte, and is never written by halves."""

import os

import pytest

from capedjica.coordinator.drafts import add_sites
from capedjica.errors import InputError
from capedjica.study.study_file import SiteTable, Study, read_study_file, write_study
from tests.support.drafts import card, draft


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    write_study(path, draft(subjects=()), draft=True)
    return path


def add_site(file, one):
    return add_sites(file, [one])


def site(name, subjects=20, epsilon=None):
    return SiteTable(name=name, subjects=subjects, card=card(name), epsilon=epsilon)


def test_every_other_byte_stays(file):
    text = file.read_bytes().replace(b"[privacy]", b"# talked over on Monday\n\n[privacy]  # ours")
    file.write_bytes(text + b"# the end, without a line break")
    before = file.read_bytes()
    add_site(file, site("north"))
    first = file.read_bytes()
    grown = add_site(file.parent, site("south", 30, 0.25))
    assert first.startswith(before + b"\n")
    assert file.read_bytes().startswith(first)
    study = Study.load(file)
    assert study.content.sites == (site("north"), site("south", 30, 0.25))
    assert study.hash == grown.hash


def test_a_study_grown_site_by_site_is_the_study_written_at_once(file, tmp_path):
    whole = draft(site_2=0.5)
    for one in whole.sites:
        add_site(file, one)
    write_study(tmp_path / "whole.toml", whole)
    assert Study.load(file).hash == Study.load(tmp_path / "whole.toml").hash


def test_line_ends_mode_and_links_stay(file, tmp_path):
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    add_site(link, site("north"))
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert file.read_bytes().count(b"\n") == file.read_bytes().count(b"\r\n")
    assert read_study_file(file).sites == (site("north"),)


def test_sites_in_brackets_cannot_be_added_to(file):
    inline = f'{{name = "north", subjects = 20, card = "{card("north")}"}}'
    file.write_text(file.read_text().replace("schema = 2\n", f"schema = 2\nsites = [{inline}]\n"))
    before = file.read_bytes()
    with pytest.raises(InputError, match=r"its sites must be tables, each with the header \[\[sites\]\]"):
        add_site(file, site("south"))
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["study.toml"]


def test_a_full_disk_changes_nothing(file, monkeypatch):
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"study\.toml cannot be written: No space left on device"):
        add_site(file, site("north"))
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["study.toml"]


def test_a_study_that_waits_for_more_sites_than_two_can_grow(file):
    """Three sites are needed before two may collude; until then it is said, and nothing is refused."""
    file.write_text(file.read_text().replace('n_colluding = "third"', "n_colluding = 2"))
    grown = [add_site(file, site(name)) for name in ("a", "b", "c", "d")]
    assert [bool(study.problems()) for study in grown] == [True, True, False, False]


def test_a_draft_with_a_mistake_is_not_built_upon(file):
    file.write_text(file.read_text().replace('"Resting state"', '" "'))
    with pytest.raises(InputError, match=r"site north cannot be added to .*: title is empty"):
        add_site(file, site("north"))
