"""Runs on a terminal, one after the other and side by side, whatever became of their files."""

import shutil
import sys

import numpy as np
import pytest

from capedjica.cli import main
from capedjica.coordinator.run.run_folder import RunFolder
from tests.one_machine.test_local_run import run
from tests.support.small_study import changed, make_study


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a complete run of a study, whose names mean something to a terminal's markup."""
    folder = tmp_path_factory.mktemp("studies") / "a [bold] place"
    folder.mkdir()
    study = make_study(folder)
    (folder / "study.toml").unlink()
    run(folder, changed(study, folder / "study.toml", title="Rest [/bold]"), "run")
    return folder


@pytest.fixture
def capedjica(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["capedjica", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return exited.value.code, out, err

    return command


def test_nothing_is_cut_off_on_a_narrow_terminal(made, capedjica):
    code, shown, _ = capedjica(
        "compare", made / "run", made / "run", "--truth", made / "truth" / "mixing.npy"
    )
    assert code == 0
    lines = shown.splitlines()
    assert sum(line.strip() == str(made / "run") for line in lines) == 2
    for words in (
        "method",
        "mechanism",
        "epsilon",
        "gain index",
        "correlation",
        "worst map",
        "subject",
        "cape",
    ):
        assert words in shown
    assert "…" not in shown
    assert all(len(line) <= 80 for line in lines if str(made) not in line)


def test_a_run_tells_where_its_results_are(made, capedjica):
    code, shown, errors = capedjica("run", made)
    assert (code, errors) == (0, "")
    assert f"The maps: {made / 'run' / 'maps.png'}\n" in shown
    assert f"Privacy cost in detail: {made / 'run' / 'privacy.json'}\n" in shown


def test_an_interruption_of_the_checks_says_that_nothing_was_begun(tmp_path, capedjica, monkeypatch):
    make_study(tmp_path)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("capedjica.one_machine.local_run.problems", interrupt)
    code, shown, errors = capedjica("run", tmp_path)
    assert (code, errors) == (130, "capedjica: interrupted\n")
    assert shown.strip() == "Interrupted before the run started; nothing was spent."


def test_a_title_is_shown_as_it_is(made, capedjica):
    site = made / "sites" / "s1"
    assert "Rest [/bold]" in capedjica("ledger", "show", "--site", site)[1]
    assert "'Rest [/bold]'" in capedjica("site", "outbox", "--site", site)[1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("privacy.json", b"[]"),
        ("privacy.json", b"{}"),
        ("privacy.json", b"\xff"),
        ("privacy.json", None),
        ("provenance.json", b'{"study": 3}'),
        ("mixing.npy", b"\x93NUMPY\x01\x00"),
        ("mixing.npy", None),
        ("mixing.npy", np.zeros(3)),
        ("mixing.npy", np.full((100, 3), np.nan)),
        ("mixing.npy", np.zeros((100, 2))),
        ("run.json", b"{"),
        ("run.json", None),
    ],
)
def test_a_damaged_run_is_named(made, tmp_path, capedjica, name, content):
    folder = shutil.copytree(made / "run", tmp_path / "run")
    (folder / name).unlink()
    if isinstance(content, np.ndarray):
        np.save(folder / name, content)
    elif content is not None:
        (folder / name).write_bytes(content)
    code, _, errors = capedjica("compare", made / "run", folder)
    assert code == 2
    assert errors.count("\n") == 1
    assert str(folder) in errors
    assert "Errno" not in errors


def test_folders_without_a_complete_run_are_all_named(made, tmp_path, capedjica):
    folder = RunFolder(shutil.copytree(made / "run", tmp_path / "run"))
    text = (folder.path / "run.json").read_text()
    (folder.path / "run.json").write_text(text.replace('"complete": true', '"complete": false'))
    code, _, errors = capedjica("compare", folder.path, made, tmp_path / "none", made / "study.toml")
    assert code == 2
    assert f"{folder.path} is not complete; resume it with capedjica run" in errors
    assert f"  - {made} contains no run; did you mean {made / 'run'}?\n" in errors
    for path in (tmp_path / "none", made / "study.toml"):
        assert f"  - {path} contains no run\n" in errors
