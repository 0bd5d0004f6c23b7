"""``capedjica site`` and ``capedjica ledger`` as a data manager meets them, on a real ledger."""

import json
import sqlite3

import pytest

from capedjica.privacy.ledger import Cap, Summary
from capedjica.study.site_home import SiteHome
from tests.test_cli import run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    return SiteHome.create(tmp_path / "north", "north", 10.0, 2.0, 1e-5)


def spend(home, mu=0.1):
    study = b"s" * 32
    with home.open_ledger() as ledger:
        ledger.register_study(study, "Resting state", Cap(1.5, 1e-5))
        ledger.claim(study, 0, 0)
        for slot in range(2):
            ledger.release(
                study,
                0,
                0,
                slot,
                ["north", "south"],
                bytes([slot]) * 32,
                mu,
                lambda: b"payload",
                Summary("a mean", 7),
            )
        ledger.record_abort(study, 0, 0, 1, "south was lost")


def test_init_makes_a_site_once(tmp_path):
    made = run("site", "init", "north", "--folder", str(tmp_path / "n"), "--total-epsilon", "4")
    assert made.returncode == 0
    assert "capedjica-site-1 north" in made.stdout
    home = SiteHome.load(tmp_path / "n" / "site.toml")
    assert home.policy.total.epsilon == 4
    assert home.card().card in made.stdout
    assert (tmp_path / "n" / "identity.pem").stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "n" / "identity.pem").read_bytes()
    again = run("site", "init", "north", "--folder", str(tmp_path / "n"))
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert (tmp_path / "n" / "identity.pem").read_bytes() == key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nor/th"], "site name 'nor/th' cannot be used"),
        (["north", "--total-epsilon", "-1"], "epsilon must be a finite number above 0, got -1.0"),
        (["north", "--delta", "2"], "delta must lie strictly between 0 and 1, got 2.0"),
    ],
)
def test_a_site_that_cannot_be_made_leaves_nothing_behind(tmp_path, arguments, message):
    result = run("site", "init", *arguments, "--folder", str(tmp_path / "x"))
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "x").exists()


def test_ledger_show_and_outbox(home):
    spend(home)
    shown = run("ledger", "show", "--site", str(home.folder)).stdout
    assert "Resting state" in shown
    rows = json.loads(run("ledger", "show", "--site", str(home.folder), "--json").stdout)
    assert [row["releases"] for row in rows] == [2, 2]
    assert rows[0]["aborted"] == 1
    assert rows[0]["mu_squared"] == pytest.approx(0.02)
    assert rows[0]["epsilon_text"] in shown
    sent = run("site", "outbox", "--site", str(home.folder)).stdout
    assert sent.count("to study 'Resting state': a mean; 7 numbers") == 2
    assert "later aborted" in sent
    assert "2 messages in all." in sent
    assert len(json.loads(run("site", "outbox", "--site", str(home.folder), "--json").stdout)) == 2


def test_ledger_verify_and_export(home, tmp_path):
    spend(home)
    assert "The ledger is sound" in run("ledger", "verify", "--site", str(home.folder)).stdout
    out = tmp_path / "ledger.json"
    assert run("ledger", "export", str(out), "--site", str(home.folder)).returncode == 0
    assert json.loads(out.read_text())["totals"]["n_releases"] == 2
    assert "message" not in out.read_text().replace("n_messages", "")


def test_an_edited_ledger_is_noticed(home):
    spend(home)
    with sqlite3.connect(home.ledger_path) as database:
        triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            database.execute(f"DROP TRIGGER {name}")
        table = database.execute(
            "SELECT name FROM sqlite_master WHERE type='table' AND sql LIKE '%mu2%'"
        ).fetchone()[0]
        database.execute(f"UPDATE {table} SET mu2 = 0.0 WHERE mu2 IS NOT NULL")
    result = run("ledger", "verify", "--site", str(home.folder))
    assert result.returncode == 5
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("schema = 1\n", "name is missing"),
        ("schema = 1\nnam = 'x'\n", "nam is not a known key; did you mean name?"),
        ("not toml at all [", "site.toml"),
    ],
)
def test_a_broken_site_file_is_named(tmp_path, content, message):
    (tmp_path / "site.toml").write_text(content)
    result = run("ledger", "show", "--site", str(tmp_path))
    assert result.returncode == 2
    assert message in result.stderr
    assert str(tmp_path) in result.stderr
    assert "Traceback" not in result.stderr


def test_no_site_and_no_ledger(tmp_path, home):
    assert "cannot be read" in run("ledger", "show", "--site", str(tmp_path / "nowhere")).stderr
    assert "nothing ever left" in run("site", "outbox", "--site", str(home.folder)).stderr
