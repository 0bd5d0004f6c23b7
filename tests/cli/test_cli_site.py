"""``capedjica site`` and ``capedjica ledger`` as a data manager meets them, on a real ledger."""

import json
import os
import sqlite3

import numpy as np
import pytest

from capedjica.privacy.charges import Cap
from capedjica.privacy.ledger import Summary
from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from tests.support.small_study import SIDE, make_study
from tests.support.terminal import Terminal


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


def test_init_makes_a_site_once(tmp_path, cli):
    made = cli("site", "init", "north", "--folder", str(tmp_path / "n"), "--total-epsilon", "4")
    assert made.returncode == 0
    assert "capedjica-site-1 north" in made.stdout
    home = SiteHome.load(tmp_path / "n" / "site.toml")
    assert home.policy.total.epsilon == 4
    assert home.card().card in made.stdout
    assert str(tmp_path / "n" / "north.card") in made.stdout
    assert (tmp_path / "n" / "north.card").read_text() == f"{home.card().card}\n"
    assert (tmp_path / "n" / "identity.pem").stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "n" / "identity.pem").read_bytes()
    again = cli("site", "init", "north", "--folder", str(tmp_path / "n"))
    assert again.returncode == 2
    assert "already exists" in again.stderr
    assert (tmp_path / "n" / "identity.pem").read_bytes() == key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nor/th"], "site name 'nor/th' cannot be used"),
        (["north", "--total-epsilon", "-1"], "epsilon must be a finite number above 0, got -1.0"),
        (["north", "--delta", "2"], "delta must lie strictly between 0 and 1, got 2.0"),
    ],
)
def test_a_site_that_cannot_be_made_leaves_nothing_behind(tmp_path, arguments, message, cli):
    result = cli("site", "init", *arguments, "--folder", str(tmp_path / "x"))
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "x").exists()


def test_ledger_show_and_outbox(home, cli):
    spend(home)
    shown = cli("ledger", "show", "--site", str(home.folder)).stdout
    assert "Resting state" in shown
    assert "protects each" in shown
    assert "subject" in shown
    rows = json.loads(cli("ledger", "show", "--site", str(home.folder), "--json").stdout)
    assert [row["releases"] for row in rows] == [2, 2]
    assert rows[0]["aborted"] == 1
    assert rows[0]["mu_squared"] == pytest.approx(0.02)
    assert rows[0]["epsilon_text"] in shown
    sent = cli("site", "outbox", "--site", str(home.folder)).stdout
    assert sent.count("to study 'Resting state': a mean; 7 values") == 2
    assert "later aborted" in sent
    assert "2 messages in total." in sent
    words = " ".join(sent.split())
    assert "It omits messages that do not depend on any data: to agree on masks, public keys" in words
    assert "(up to 0.1 kB in total)" in words
    assert "refusals, in words that do not depend on any participant's data" in words
    assert len(json.loads(cli("site", "outbox", "--site", str(home.folder), "--json").stdout)) == 2


def test_ledger_verify_and_export(home, tmp_path, cli):
    spend(home)
    assert "The ledger is valid" in cli("ledger", "verify", "--site", str(home.folder)).stdout
    out = tmp_path / "ledger.json"
    assert cli("ledger", "export", str(out), "--site", str(home.folder)).returncode == 0
    assert json.loads(out.read_text())["totals"]["n_releases"] == 2
    assert "message" not in out.read_text().replace("n_messages", "")


def test_an_edited_ledger_is_noticed(home, cli):
    spend(home)
    with sqlite3.connect(home.ledger_path) as database:
        triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            database.execute(f"DROP TRIGGER {name}")
        table = database.execute(
            "SELECT name FROM sqlite_master WHERE type='table' AND sql LIKE '%mu2%'"
        ).fetchone()[0]
        database.execute(f"UPDATE {table} SET mu2 = 0.0 WHERE mu2 IS NOT NULL")
    result = cli("ledger", "verify", "--site", str(home.folder))
    assert result.returncode == 5
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_a_lost_head_is_made_again_only_when_asked_for(home, cli):
    spend(home)
    site = ("--site", str(home.folder))
    assert "nothing was done" in cli("ledger", "rebuild-head", *site, "--yes").stdout
    home.head_path.unlink()
    refused = cli("ledger", "show", *site)
    assert refused.returncode == 5
    assert "capedjica ledger rebuild-head" in refused.stderr
    asked = cli("ledger", "rebuild-head", *site)
    assert asked.returncode == 2
    assert "confirm it with --yes" in asked.stderr
    assert not home.head_path.exists()
    made = cli("ledger", "rebuild-head", *site, "--yes")
    assert (made.returncode, made.stderr) == (0, "")
    assert home.head_path.exists()
    with home.open_ledger() as ledger:
        assert ledger.entries()[-1].kind == "head-rebuilt"
    assert cli("ledger", "show", *site).returncode == 0


def test_an_older_ledger_gets_no_new_head(home, cli):
    with home.open_ledger():
        pass
    older = home.ledger_path.read_bytes()
    spend(home)
    home.ledger_path.write_bytes(older)
    result = cli("ledger", "rebuild-head", "--site", str(home.folder), "--yes")
    assert result.returncode == 5
    assert "older copy was restored" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_person_is_asked_before_a_head_is_made_again(home):
    spend(home)
    home.head_path.unlink()
    terminal = Terminal("ledger", "rebuild-head", "--site", str(home.folder), cwd=home.folder)
    terminal.answer("latest ledger, not restored from a backup? [y/N]", "n")
    terminal.expect("Nothing was done.")
    assert terminal.close() == 1
    assert not home.head_path.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("schema = 1\n", "name is missing"),
        ("schema = 1\nnam = 'x'\n", "nam is not a known key; did you mean name?"),
        ("not toml at all [", "site.toml"),
    ],
)
def test_a_broken_site_file_is_named(tmp_path, content, message, cli):
    (tmp_path / "site.toml").write_text(content)
    result = cli("ledger", "show", "--site", str(tmp_path))
    assert result.returncode == 2
    assert message in result.stderr
    assert str(tmp_path) in result.stderr
    assert "Traceback" not in result.stderr


def test_no_site_and_no_ledger(tmp_path, home, cli):
    missing = cli("ledger", "show", "--site", str(tmp_path / "nowhere")).stderr
    assert "cannot be read" in missing
    assert "expected a site's folder or its site.toml; to create a site: capedjica site init NAME" in missing
    for command in (("site", "outbox"), ("ledger", "show")):
        said = cli(*command, str(home.folder))
        assert (said.returncode, said.stderr) == (0, "")
        assert "othing computed from participants' data has ever" in said.stdout
        assert json.loads(cli(*command, str(home.folder), "--json").stdout) == []
    for command in (("ledger", "verify"), ("ledger", "export", str(tmp_path / "all.json"))):
        assert "nothing has ever left it" in cli(*command, str(home.folder)).stderr
    assert not home.has_ledger


def test_a_ledger_that_is_gone_is_not_one_that_was_never_begun(home, cli):
    home.open_ledger().close()
    home.ledger_path.unlink()
    assert home.head_path.exists()
    for command in (("site", "outbox"), ("ledger", "show"), ("ledger", "verify")):
        said = cli(*command, str(home.folder))
        assert said.returncode == 5
        assert "ever left" not in said.stdout + said.stderr


# Before, beside and after a study


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Sites that have to be asked, with a study for them."""
    folder = tmp_path_factory.mktemp("trial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        make_study(folder, simulated=False)
        yield folder


def state_of(folder):
    """Every file of a site that its budget and its identity rest on."""
    kept = ("ledger.sqlite", "ledger.sqlite-wal", "identity.pem", "site.toml", "enrolled.toml")
    files = [*(folder / name for name in kept), *folder.parent.parent.glob("state/**/*.head")]
    return {str(path): path.read_bytes() for path in files if path.exists()}


def test_check_without_a_study_says_what_is_there(trial, cli):
    site = trial / "sites" / "s1"
    before = state_of(site)
    checked = cli("site", "check", str(site / "site.toml"))
    assert checked.returncode == 0, checked.stderr
    words = " ".join(checked.stdout.split())
    for fact in (
        "tables of region time series, one per participant. 6 participants, 6 runs.",
        "Time points per run: 60.",
        f"Each time point has {SIDE * SIDE} columns (6 runs).",
        "No enrolment yet: all 6 participants found would take part.",
        "This site allows epsilon 20 per study and 50 for all studies in total, at delta 1e-5. Spent so far: "
        "epsilon 0.",
        "Site s1 is ready for any study.",
    ):
        assert fact in words, fact
    assert state_of(site) == before
    assert not (site / "ledger.sqlite").exists()


def test_check_with_a_study_says_what_leaves_and_what_it_costs_and_spends_nothing(trial, cli):
    site, study = trial / "sites" / "s2", trial / "study.toml"
    asked = cli("site", "check", str(site), "--study", str(study))
    assert asked.returncode == 2
    assert "is not ready for 'A small study': it has not approved 'A small study'" in asked.stderr
    assert not (site / "ledger.sqlite").exists()
    assert cli("site", "approve", str(study), "--site", str(site)).returncode == 0
    before = state_of(site)
    assert str(site / "ledger.sqlite") in before
    checked = cli("site", "check", str(site), "--study", str(study))
    assert checked.returncode == 0, checked.stderr
    words = " ".join(checked.stdout.split())
    for fact in (
        "Participants' data do not leave their site.",
        "rotation 6 3",
        "This study may cost each participant (all of their data) here at most epsilon 10.",
        "the mu of these sites add up: at two sites, epsilon is 24.39 and not 10.",
        "This check spent nothing.",
        "with the data of that time. The data have not changed since.",
        "Site s2 is ready for 'A small study'.",
    ):
        assert fact in words, fact
    facts = json.loads(cli("site", "check", str(site), "--study", str(study), "--json").stdout)
    assert facts["obstacles"] == []
    assert facts["data"]["people"] == 9
    assert facts["study"]["own_epsilon"] == 10
    assert state_of(site) == before


def test_check_says_what_changed_since_the_approval(trial, cli):
    site, study = trial / "sites" / "s2", trial / "study.toml"
    assert cli("site", "approve", str(study), "--site", str(site)).returncode == 0
    scan = site / "data" / "sub-01.npy"
    content = scan.read_bytes()
    scan.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    checked = cli("site", "check", str(site), "--study", str(study))
    assert checked.returncode == 2
    words = "the data of 1 of 9 participants changed since the study was approved; the first is sub-01"
    assert words in checked.stderr
    assert f"But {words}" in " ".join(checked.stdout.split())
    scan.write_bytes(content)
    assert cli("site", "check", str(site), "--study", str(study)).returncode == 0


def test_approving_shows_what_is_approved(trial, cli):
    site, study = trial / "sites" / "s1", Study.load(trial)
    shown = cli("site", "approve", str(trial), "--site", str(site))
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    for peer in study.contract.roster.sites:
        assert peer.fingerprint in words
    for fact in (
        "s1 (this site): 6 participants",
        "3 brain networks",
        "rotation 6 3",
        "Each participant (all of their data) is protected with epsilon 10 at delta 1e-5, for all releases",
        "It does NOT hold against an aggregator that colludes with more than 1 other site,",
        "a factor of more than 22,027",
        "This site allows epsilon 20 per study and 50 for all studies in total",
        "The total of all studies would then be epsilon 10 at most. Later studies could then spend epsilon",
        "3 of the 4 sites must stay to the end",
        study.hash.hex(),
        "Site s1 approved 'A small study' for epsilon 10 at delta 1e-5 for each",
    ):
        assert fact in words, fact


@pytest.mark.parametrize("answer", ["n", ""])
def test_on_a_terminal_approval_is_asked_for(trial, answer):
    site = trial / "sites" / "s3"
    before = sorted(site.rglob("*"))
    terminal = Terminal("site", "approve", str(trial), "--site", str(site), cwd=trial)
    terminal.expect("Compare it by phone or in person")
    terminal.answer("Approve? [y/N]", answer)
    terminal.expect("Not approved; nothing was changed.")
    assert terminal.close() == 1
    assert sorted(site.rglob("*")) == before


def test_on_a_terminal_yes_is_an_answer_and_a_flag(trial):
    site = trial / "sites" / "s4"
    terminal = Terminal("site", "approve", str(trial), "--site", str(site), cwd=trial)
    terminal.answer("Approve? [y/N]", "y")
    terminal.expect("Site s4 approved 'A small study'")
    assert terminal.close() == 0
    terminal = Terminal("site", "approve", str(trial), "--site", str(site), "--yes", cwd=trial)
    terminal.expect("Site s4 approved 'A small study'")
    assert "[y/N]" not in terminal.text
    assert terminal.close() == 0


def test_check_lists_all_that_is_wrong_and_enrol_leaves_it_out(trial, cli):
    site, study = trial / "sites" / "s3", trial / "study.toml"
    (site / "data" / "sub-00.npy").write_bytes(b"")
    (site / "data" / "sub-01.npy").write_bytes((site / "data" / "sub-02.npy").read_bytes())
    np.save(site / "data" / "sub-03.npy", np.ones((2, SIDE * SIDE)))
    checked = cli("site", "check", str(site), "--study", str(study))
    assert checked.returncode == 2
    for name, why in {
        "sub-00.npy": "an empty file",
        "sub-02.npy": "the same content as",
        "sub-03.npy": "constant values in every feature",
    }.items():
        assert any(name in line and why in line for line in checked.stdout.splitlines()), name
    assert "problems with the data, listed above" in checked.stderr
    enrolled = cli("site", "enrol", str(site), "--study", str(study))
    assert enrolled.returncode == 0
    assert enrolled.stdout.count("excluded: ") >= 3
    assert "Site s3 enrolled 4 participants" in enrolled.stdout
    after = cli("site", "check", str(site))
    assert after.returncode == 0
    assert "4 participants enrolled on" in after.stdout
    refused = cli("site", "enrol", str(site))
    assert refused.returncode == 2
    assert "replace it with --again" in refused.stderr
    again = cli(
        "site", "enrol", str(site), "--again", "--participant-label", "04", "--participant-label", "05"
    )
    assert "Site s3 enrolled 2 participants" in again.stdout
    assert not (site / "ledger.sqlite").exists()


def test_a_study_is_told_when_its_people_change(trial, cli):
    site, study = trial / "sites" / "s4", trial / "study.toml"
    assert cli("site", "approve", str(study), "--site", str(site)).returncode == 0
    assert "was approved" not in cli("site", "enrol", str(site)).stdout
    (site / "data" / "sub-00.npy").unlink()
    again = cli("site", "enrol", str(site), "--again")
    assert "'A small study' was approved for 8 participants here, not 7: it cannot run" in again.stdout


def test_a_site_of_no_study_and_a_folder_without_scans(trial, home, cli):
    (home.folder / "data").mkdir()
    empty = cli("site", "check", str(home.folder))
    assert empty.returncode == 2
    assert "contains no .npy" in empty.stderr
    foreign = cli("site", "check", str(home.folder), "--study", str(trial))
    assert "it is not a site of 'A small study'; the sites are s1, s2, s3, s4" in foreign.stderr
    assert "Traceback" not in foreign.stderr


def test_results_and_purge(tmp_path, cli):
    study = make_study(tmp_path)
    assert cli("run", str(tmp_path)).returncode == 0
    site = tmp_path / "sites" / "s1"
    made = cli("site", "results", str(tmp_path / "run"), "--site", str(site))
    assert made.returncode == 0, made.stderr
    assert f"Results of 6 participants: {site / 'results' / study.hash.hex()[:16]}" in made.stdout
    assert "must not leave this site" in made.stdout
    again = cli("site", "results", str(tmp_path / "run"), "--site", str(site))
    assert "6 participants (6 of them already existed)" in again.stdout
    cli("site", "enrol", str(site))
    before = state_of(site)
    (site / "cache").mkdir()
    np.save(site / "cache" / f"{'a' * 64}.npy", np.ones(3))
    (site / "cache" / "mine.txt").write_text("not of the cache")
    purged = cli("site", "purge", str(site))
    assert "Removed 1 extracted series" in purged.stdout
    assert os.listdir(site / "cache") == ["mine.txt"]
    assert (site / "results").exists()
    purged = cli("site", "purge", str(site), "--results")
    assert "Removed 0 extracted series" in purged.stdout
    assert "Removed the results of 1 study" in purged.stdout
    assert not (site / "results").exists()
    assert state_of(site) == before
    nothing = cli("site", "results", str(tmp_path / "none"), "--site", str(site))
    assert nothing.returncode == 2
    assert "cannot be read" in nothing.stderr


def test_show_states_the_budget_spent_reserved_and_left_and_opens_no_scan(home, cli):
    fresh = json.loads(cli("site", "show", str(home.folder), "--json").stdout)
    assert fresh["fingerprint"] == home.card().fingerprint
    assert fresh["budget"]["spent_part"] == fresh["budget"]["reserved_part"] == 0
    assert fresh["budget"]["left_part"] == 1
    assert not home.ledger_path.exists()
    spend(home)
    facts = json.loads(cli("site", "show", str(home.folder), "--json").stdout)
    budget, (study,) = facts["budget"], facts["studies"]
    limit = home.policy.total.mu2
    assert budget["spent_part"] == pytest.approx(2 * 0.1**2 / limit)
    assert budget["spent_part"] + budget["reserved_part"] == pytest.approx(Cap(1.5, 1e-5).mu2 / limit)
    assert budget["spent_part"] + budget["reserved_part"] + budget["left_part"] == pytest.approx(1)
    assert study["state"] == "approved"
    shown = cli("site", "show", str(home.folder)).stdout
    assert "Resting state" in shown
    with home.open_ledger() as ledger:
        ledger.revoke(b"s" * 32, "revoked by the site")
    facts = json.loads(cli("site", "show", str(home.folder), "--json").stdout)
    assert facts["studies"][0]["state"] == "revoked"
    assert facts["budget"]["reserved_part"] == 0


def test_terms_are_shown_without_approving_and_a_hash_binds_the_approval(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    study = make_study(tmp_path, simulated=False)
    home = tmp_path / "sites" / "s1"
    words = cli("site", "approve", str(tmp_path), str(home), "--show")
    assert words.returncode == 0
    assert "Who takes part" in words.stdout
    facts = json.loads(cli("site", "approve", str(tmp_path), str(home), "--show", "--json").stdout)
    assert facts["hash"] == study.hash.hex()
    assert facts["refusals"] == []
    assert not SiteHome.load(home).has_ledger
    wrong = cli("site", "approve", str(tmp_path), str(home), "--hash", "0" * 16)
    assert wrong.returncode == 2
    assert "nothing was approved" in wrong.stderr
    assert cli("site", "approve", str(tmp_path), str(home), "--hash", facts["hash"][:4]).returncode == 2
    assert cli("site", "approve", str(tmp_path), str(home), "--json").returncode == 2
    assert not SiteHome.load(home).has_ledger
    assert cli("site", "approve", str(tmp_path), str(home), "--hash", facts["hash"][:16]).returncode == 0
    assert SiteHome.load(home).has_ledger


def test_a_card_with_another_key_than_the_study_refuses_the_approval(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    make_study(tmp_path, simulated=False)
    home, card = tmp_path / "sites" / "s1", tmp_path / "sites" / "s2" / "s2.card"
    forged = tmp_path / "forged.card"
    forged.write_text((tmp_path / "sites" / "s3" / "s3.card").read_text().replace(" s3 ", " s2 "))
    refused = cli("site", "approve", str(tmp_path), str(home), "--card", str(card), "--card", str(forged))
    assert refused.returncode == 2
    assert "another key in this study" in refused.stderr
    missing = cli("site", "approve", str(tmp_path), str(home), "--card", str(tmp_path / "nothing"))
    assert missing.returncode == 2
    assert not SiteHome.load(home).has_ledger
    assert cli("site", "approve", str(tmp_path), str(home), "--card", str(card)).returncode == 0
