"""Who is let in: every request that is not the owner's own is refused, and nothing is changed."""

import re
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from capedjica.web.security import COOKIE
from capedjica.web.site_pages import SitePages
from capedjica.web.study_pages import StudyPages
from tests.support.waiting import wait_for
from tests.web.client import Client, encode

PAGES = ["/", "/cohort", "/studies", "/ledger", "/withdrawals", "/results"]
NOTHING = "0" * 43


def test_nothing_is_shown_without_the_cookie(served, client):
    stranger = Client(served)
    for page in [*PAGES, "/live", "/jobs/0", "/results/0/report"]:
        answer = stranger.get(page)
        assert answer.status == 403
        assert "locked" in answer.words
        assert "s1" not in answer.words
    stranger.cookie = NOTHING
    assert stranger.get("/").status == 403


def test_the_address_is_valid_once(served):
    first, second = Client(served), Client(served)
    assert first.open().status == 200
    assert first.cookie
    answer = second.open()
    assert (answer.status, second.cookie) == (403, None)
    assert "each is valid once" in answer.words
    # Whoever has it is not locked out by another's attempt.
    assert first.get("/").status == 200


def test_guessing_replaces_the_address(served):
    guesser = Client(served)
    for number in range(5):
        answer = guesser.get(f"/open?token={number}")
        assert answer.status == 403
        assert "set-cookie" not in answer.headers
    assert len(served.addresses) == 2
    late = guesser.ask("GET", served.addresses[0].partition(str(served.port))[2], whole=True)
    assert late.status == 403
    owner = Client(served)
    assert owner.open().status == 200


def test_guessing_does_not_lock_an_open_session(served, client):
    guesser = Client(served)
    for number in range(20):
        assert guesser.get(f"/open?token={number}").status == 403
    assert client.get("/").status == 200
    assert len(served.addresses) == 1


def test_the_cookie_is_strict_and_for_one_path_only(served):
    given = Client(served).open().headers["set-cookie"]
    assert "HttpOnly" in given
    assert "SameSite=strict" in given
    assert f"Path={served.guard.base}" in given
    assert len(served.guard.base) > 20
    assert "Domain" not in given
    assert "Max-Age" not in given


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", None]
)
def test_another_host_is_refused(client, host):
    """DNS rebinding: a stranger's name that leads to 127.0.0.1 comes with the stranger's Host."""
    named = host and host.format(port=client.served.port)
    answer = client.ask("GET", "/", headers={"Host": named})
    # Without a Host header it is no HTTP at all.
    assert answer.status == (400 if host is None else 421)
    assert b"s1" not in answer.body


def test_two_hosts_are_refused(client):
    line = socket.create_connection(("127.0.0.1", client.served.port))
    own = f"127.0.0.1:{client.served.port}"
    with line:
        text = f"GET {client.base}/ HTTP/1.1\r\nHost: {own}\r\nHost: evil.example\r\n"
        line.sendall(f"{text}Cookie: {COOKIE}={client.cookie}\r\n\r\n".encode())
        assert re.match(rb"HTTP/1.1 4\d\d", line.recv(100))


def test_localhost_is_another_host(client):
    """It may lead to ::1, where another user of the machine can listen."""
    assert client.get("/", Host=f"localhost:{client.served.port}").status == 421


def test_a_cookie_of_another_port_does_not_lock_the_owner_out(client):
    for cookies in (f"{COOKIE}={NOTHING}; {COOKIE}={client.cookie}", f"{COOKIE}={client.cookie}; {COOKIE}=x"):
        assert client.get("/results", Cookie=cookies).status == 200
    assert client.get("/results", Cookie=f"{COOKIE}={NOTHING}; {COOKIE}=x; x").status == 403


@pytest.mark.parametrize("page", ["/cohort", "/withdrawals", "/results?a=1"])
def test_a_page_leaves_the_screen_when_it_is_locked(served, client, page):
    seconds, _, place = client.get(page).headers["refresh"].partition("; url=")
    assert int(seconds) == 901
    assert place == f"{client.base}{page}{'&' if '?' in page else '?'}watching"
    served.clock.now += int(seconds)
    locked = client.ask("GET", place, whole=True)
    assert locked.status == 403
    assert "refresh" not in locked.headers


def test_the_locked_page_says_nothing_about_actions(served, client):
    desk = served.pages.desk
    job = desk.start("Wait", ["site", "status", "--watch", str(served.pages.folder)], back="/", seen="0")
    try:
        answer = Client(served).get("/")
        assert answer.status == 403
        assert "Wait" not in answer.words
        assert job.id not in answer.html
    finally:
        job.running.interrupt()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_request_of_another_page_changes_nothing(client, home, headers):
    """Cross-site request forgery, although the browser sent the cookie along."""
    shown = client.get("/cohort")
    fields = {"form_token": shown.hidden("form_token"), "seen": shown.hidden("seen")}
    answer = client.post("/cohort/enrol", fields, headers=headers)
    assert answer.status == 403
    assert "nothing was changed" in answer.words
    assert not (home / "enrolled.toml").exists()


def actions(pages):
    return [route.path for route in pages.routes() if "POST" in route.methods]


@pytest.mark.parametrize("kind", [SitePages, StudyPages])
def test_every_action_needs_the_forms_token(kind, home, study, client, coordinator):
    user = client if kind is SitePages else coordinator
    pages = user.served.pages
    for path in [*actions(pages), "/lock", "/jobs/0/interrupt"]:
        for token in ("", NOTHING):
            answer = user.post(path, {"form_token": token, "seen": "0"})
            assert answer.status == 403, path
        assert user.post(path, {}).status == 403
    assert user.get("/").status == 200
    assert pages.desk.number == 0
    assert not (home / "enrolled.toml").exists()
    assert not (study / "run").exists()


@pytest.mark.parametrize("kind", [SitePages, StudyPages])
def test_no_action_by_get(kind, client, coordinator):
    user = client if kind is SitePages else coordinator
    token = user.get("/").hidden("form_token")
    for path in [*actions(user.served.pages), "/lock"]:
        answer = user.get(f"{path}?form_token={token}&seen=0")
        assert answer.status == 405, path
    assert user.served.pages.desk.number == 0
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert user.ask(method, "/").status == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../../site.toml",
        "/%2e%2e/%2e%2e/identity.pem",
        "/results/..%2f..%2fidentity.pem/report",
        "/results/../report",
        "/results/-1/report",
        "/results/99999999999999999999/report",
        "/results/group/..%2f..%2fetc%2fpasswd",
        "/studies/offer/..%2f..%2fidentity.pem",
        "/studies/revoke/..%2f..%2f",
        "/jobs/..%2f..%2f",
        "/style.css/../../identity.pem",
        "//evil.example/",
        "/templates/base.html.jinja",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    answer = client.get(path)
    assert answer.status == 404
    assert b"PRIVATE" not in answer.body
    assert b"total_epsilon" not in answer.body


def test_a_stranger_is_not_told_whether_a_page_exists(served):
    stranger = Client(served)
    assert stranger.ask("GET", "/cohort", whole=True).status == 404
    assert stranger.ask("GET", "/", whole=True).status == 404
    assert stranger.get("/no/such/page").status == stranger.get("/cohort").status == 403


def test_every_answer_has_the_policy(served, client):
    stranger = Client(served)
    answers = [client.get("/"), client.get("/style.css"), stranger.get("/"), client.get("/nothing")]
    answers.append(client.ask("GET", "/", headers={"Host": "evil.example"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "server" not in answer.headers or answer.headers["server"] == "uvicorn"


@pytest.mark.parametrize("page", PAGES)
def test_pages_hold_no_script_and_load_nothing_from_elsewhere(client, page):
    text = client.get(page).html
    assert re.findall(r"<script(?! src)", text) == []
    assert " style=" not in text
    assert re.findall(r"\son\w+=", text) == []
    sources = re.findall(r'(?:src|href|action)="([^"]*)"', text)
    assert sources
    assert all(one.startswith((client.base, "#", "data:,")) for one in sources)


def test_idle_pages_are_locked_and_a_new_address_is_announced(served, client):
    served.clock.now += 899
    assert client.get("/").status == 200
    served.clock.now += 901
    answer = client.get("/")
    assert answer.status == 403
    assert "locked" in answer.words
    assert len(served.addresses) == 2
    again = Client(served)
    again.open()
    assert again.get("/").status == 200
    assert client.get("/").status == 403


def test_a_page_that_only_watches_does_not_stay_open(served, client):
    served.clock.now += 600
    assert client.ask("HEAD", "/live").status == 200
    served.clock.now += 600
    assert client.get("/").status == 403


def test_a_page_that_loads_itself_again_does_not_stay_open(served, client):
    served.clock.now += 600
    assert client.get("/?watching").status == 200
    served.clock.now += 600
    assert client.get("/").status == 403


def test_lock_locks_at_once(client):
    answer = client.post("/lock", {"form_token": client.get("/").hidden("form_token")})
    assert "locked" in answer.words
    assert client.get("/").status == 403


def test_a_form_without_a_length_or_too_long_is_refused(client):
    body, kind = encode({"form_token": client.get("/").hidden("form_token")}, ())
    given = {"Content-Type": kind, "Origin": client.origin}
    answer = client.ask("POST", "/ledger/verify", body, given | {"Content-Length": str(1 << 40)})
    assert answer.status == 400
    assert client.ask("POST", "/ledger/verify", headers=given).status == 400


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=a", b"--a\r\nno header\r\n\r\n"),
        ("multipart/form-data; boundary=a", b"--a\r\nContent-Disposition: form-data; name=x\r\n\r\n"),
        ("application/x-www-form-urlencoded", b"%ff%fe=%00&form_token=%ff"),
        ("application/json", b"{}"),
        ("", b"\x00" * 100),
    ],
)
def test_nonsense_instead_of_a_form_changes_nothing(client, kind, body):
    given = {"Content-Type": kind, "Origin": client.origin}
    assert client.ask("POST", "/cohort/enrol", body, given).status in (400, 403)
    assert client.get("/").status == 200
    assert client.served.pages.desk.number == 0


def test_silent_connections_do_not_keep_the_owner_out(served, client):
    place = ("127.0.0.1", served.port)
    silent = [socket.create_connection(place) for _ in range(200)]
    try:
        assert client.get("/style.css").status == 200
        wait_for(lambda: len(served._server.server_state.connections) <= 65, 5)
        # The oldest ones were closed.
        silent[0].settimeout(60)
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
    finally:
        for one in silent:
            one.close()


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_a_connection_without_a_request_is_closed(served, monkeypatch, begun):
    monkeypatch.setattr("capedjica.web.server._REQUEST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as line, suppress(OSError):
        line.sendall(begun)
        assert line.recv(1) == b""


def test_the_web_process_loads_nothing_that_reads_keys_ledgers_or_scans():
    code = (
        "import sys, capedjica.web.server, capedjica.web.site_pages, capedjica.web.study_pages\n"
        "names = ('cryptography', 'nibabel', 'nilearn', 'numpy', 'nvflare', 'capedjica.site', "
        "'capedjica.privacy', 'capedjica.securesum', 'capedjica.data', 'capedjica.coordinator')\n"
        "print([name for name in names if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
