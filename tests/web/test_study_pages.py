"""The pages of the coordinator."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

from capedjica.site.home import SiteHome
from capedjica.study.study_file import Study
from capedjica.web.study_pages import StudyPages, chart
from tests.support.waiting import wait_for
from tests.web.client import Client, Served


def test_every_page_is_there_and_changes_nothing(coordinator, study):
    before = {path for path in study.rglob("*") if "sites" not in path.parts}
    for page, command in {
        "/": "capedjica study sites",
        "/terms": "capedjica study show",
        "/plan": "capedjica plan",
        "/kits": "capedjica study provision",
        "/run": "capedjica run",
    }.items():
        answer = coordinator.get(page)
        assert answer.status == 200
        assert command in answer.words
        assert "What leaves this machine" in answer.words
    assert "not complete" in coordinator.get("/results").words
    assert coordinator.get("/results/read").status == 404
    assert {path for path in study.rglob("*") if "sites" not in path.parts} == before


def test_a_study_is_written_and_sites_are_added(tmp_path, study, commands):
    with Served(StudyPages(tmp_path / "new", commands("study"))) as served:
        client = Client(served)
        client.open()
        (tmp_path / "new").mkdir()
        assert "no study in" in client.get("/").words
        given = {"components": "3", "timepoints": "60", "epsilon": "2", "image-shape": "10x10"}
        assert "Not done" in client.act("/", "/new", title="Joint", **(given | {"epsilon": "x"})).words
        assert "Not done" in client.act("/", "/new", title="--help", **given).words
        assert not (tmp_path / "new" / "study.toml").exists()
        assert "It is a draft" in client.act("/", "/new", title="Joint", **given).words
        assert "Not ready yet" in client.get("/").words
        assert client.get("/terms").status == 503
        assert client.get("/plan").status == 200
        homes = [SiteHome.load(study / "sites" / name) for name in ("s1", "s2", "s3")]
        cards = [home.identity().card(home.settings.name, 9) for home in homes]
        path = study / "sites" / "s1" / "s1.card"
        for wrong in ("nonsense", "capedjica-site-1 x y", "--help", "", str(path)):
            assert "Not done" in client.act("/", "/add", cards=wrong).words
        assert "Added site s1" in client.act("/", "/add", cards=f"{cards[0]}\n{cards[1]}").words
        answer = client.act("/", "/add", files=[("s3.card", f"{cards[2]}\n".encode())])
        assert "Added site s3" in answer.words
        assert client.act("/", "/add", files=[("s3.card", b"\xff\xfe")]).status == 400
        assert "Not done" in client.act("/", "/add", cards=cards[0]).words
        shown = client.get("/")
        assert homes[2].card().fingerprint in shown.words
        assert Study.load(tmp_path / "new").hash.hex() in shown.words


def test_the_plan_of_the_study_is_its_own(coordinator, study):
    """Where the sliders stand as the study does, and where they are moved and moved back."""
    shown = coordinator.get("/plan")
    assert f"capedjica plan {study}" in shown.words
    own = coordinator.served.pages.commands.run("plan", str(study), "--json").json()
    first = own["stages"][0]
    assert f"subspace 1 {first['n_values']} {first['noise_norm']:.3g}" in shown.words
    moved = coordinator.get("/plan?epsilon=10.1&subjects=30&sites=4")
    assert "capedjica plan --epsilon 10.1" in moved.words
    assert f"subspace 1 {first['n_values']} " in moved.words
    assert coordinator.get("/plan?epsilon=10&subjects=30&sites=4").words == shown.words


def test_a_prediction_beyond_the_sliders_is_refused(coordinator):
    own = {"epsilon": "2", "subjects": "30", "sites": "4"}
    for wrong in ({"epsilon": "inf"}, {"subjects": "1e9"}, {"sites": "1"}, {"epsilon": "nan"}):
        answer = coordinator.act("/plan", "/plan/predict", **(own | wrong))
        assert answer.status == 400
        assert "must be a number from" in answer.words


def test_studies_that_sliders_cannot_move_are_planned_as_they_are(coordinator, study):
    text = (study / "study.toml").read_text()
    (study / "study.toml").write_text(text.replace('mechanism = "cape"', 'mechanism = "conventional"'))
    shown = coordinator.get("/plan")
    assert shown.status == 200
    assert "Sliders are for studies of brain networks" in shown.words
    assert 'type="range"' not in shown.html


def test_sliders_draw_the_plan(coordinator):
    few = coordinator.get("/plan/draw?epsilon=2&subjects=50&sites=4")
    many = coordinator.get("/plan/draw?epsilon=2&subjects=500&sites=4")
    noise = [float(re.search(r"subspace\D+1 \d+ ([\d.]+)", one.words)[1]) for one in (few, many)]
    assert noise[0] > 4 * noise[1]
    assert "<svg" in few.html
    for wrong in ("epsilon=0", "epsilon=x", "subjects=3", "sites=1", "sites=1e9", "subjects=nan"):
        assert coordinator.get(f"/plan/draw?{wrong}").status == 400
    assert "must be" in coordinator.get("/plan/draw?subjects=4&sites=100").words


def test_a_prediction_follows_the_sliders(coordinator):
    drawn = coordinator.get("/plan/prediction?epsilon=8&subjects=30&sites=4")
    assert "for 30 participants at 4 sites" in drawn.words
    assert "must be" in coordinator.get("/plan/prediction?epsilon=8&subjects=4&sites=100").words
    assert coordinator.get("/plan/prediction?epsilon=x").status == 400


def test_a_prediction_is_given_up_for_the_next(coordinator):
    slow = "/plan/prediction?epsilon=8&subjects=2000&sites=4"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(coordinator.get, slow)
        pages = coordinator.served.pages
        wait_for(lambda: pages._predicting, 120)
        second = coordinator.get("/plan/prediction?epsilon=8&subjects=30&sites=4")
        assert "for 30 participants" in second.words
        assert "interrupted" in first.result().words
    assert pages._predicting is None


def test_the_time_left_is_estimated_from_what_was_seen(study, commands, monkeypatch):
    pages, now = StudyPages(study, commands("study")), iter([0.0, 10.0, 20.0, 30.0])
    monkeypatch.setattr("capedjica.web.study_pages.time.monotonic", lambda: next(now))
    seen = [{"state": "running", "n_done": done, "n_total": 10} for done in (2, 2, 4)]
    assert [pages._timed(one)["seconds_left"] for one in seen] == [None, None, 60]
    assert pages._timed({"state": "complete", "n_done": 10, "n_total": 10})["seconds_left"] is None
    pages.close()


def test_a_prediction_is_drawn(coordinator):
    answer = coordinator.act("/plan", "/plan/predict", epsilon="8", subjects="30", sites="4")
    assert answer.path == "/plan"
    assert "Predicted correlation of maps with the truth" in answer.words
    assert "Not done" in coordinator.act("/plan", "/plan/predict", epsilon="x", subjects="3", sites="4").words


def test_kits_are_made_once(coordinator, study):
    assert "Not done" in coordinator.act("/kits", "/kits/make").words
    assert "Not done" in coordinator.act("/kits", "/kits/make", host="localhost", port="x").words
    assert "Not done" in coordinator.act("/kits", "/kits/make", host="--help").words
    assert not (study / "federation").exists()
    answer = coordinator.act("/kits", "/kits/make", host="localhost", port="8123")
    assert "Sealed 'A small study'" in answer.words
    shown = coordinator.get("/kits")
    assert str(study / "federation" / "kits" / "s1.zip") in shown.words
    assert "Not done" in coordinator.act("/kits", "/kits/make", host="localhost").words
    assert "have stopped working" in coordinator.act("/kits", "/kits/make", again="yes").words
    assert "sealed" in coordinator.get("/").words
    assert "NVIDIA FLARE" in coordinator.get("/run").words


def test_a_run_is_started_followed_and_read(coordinator, study):
    for file in study.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("auto_approve = false", "auto_approve = true"))
    assert coordinator.act("/run", "/run/start", engine="x").status == 400
    assert coordinator.act("/run", "/run/stop").status == 400
    answer = coordinator.act("/run", "/run/start", engine="inprocess")
    assert answer.path in ("/run", answer.path)
    end = time.monotonic() + 240
    while "state complete" not in (shown := coordinator.get("/run")).words:
        assert time.monotonic() < end, shown.words
        time.sleep(0.5)
    assert json.loads((study / "run" / "run.json").read_text())["complete"]
    assert "Done" in coordinator.act("/results", "/results/report").words
    report = coordinator.get("/results/read")
    assert "A small study" in report.words
    assert "sandbox" in report.headers["content-security-policy"]


def test_a_damaged_study_is_a_clear_page(coordinator, study):
    (study / "study.toml").write_text("nonsense")
    for page in ("/", "/terms", "/kits"):
        answer = coordinator.get(page)
        assert answer.status == 503
        assert "Cannot be shown" in answer.words
    assert "is not valid TOML" in coordinator.get("/run").words or coordinator.get("/run").status == 200


def test_a_chart_has_every_point_inside():
    drawn = chart([(0.5, 10.0), (2.0, 1.0)], (1.0, 4.0), "x", "y")
    for x, y, _ in drawn["dots"]:
        assert drawn["margin"] <= x <= drawn["width"] - drawn["margin"]
        assert drawn["margin"] <= y <= drawn["height"] - drawn["margin"]
