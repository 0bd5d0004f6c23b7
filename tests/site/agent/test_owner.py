"""The owner's commands while an agent runs: it does them itself, for whoever can read its token."""

import os
import re

import msgspec
import pytest

from capedjica.errors import CapedjicaError
from capedjica.flare import link
from capedjica.flare.link import VERSION, Caller, Greeting, LinkError, connect, socket_path
from capedjica.mechanisms.messages import Refusal, Status
from capedjica.site.agent import owner_commands
from capedjica.site.agent.owner_commands import Command, Outcome, ask, carry_out, standing
from capedjica.site.consent.consents import read_withdrawn
from capedjica.site.flare import kits
from tests.site.agent.agents import agent_process, asked, hello, read
from tests.support.in_process import run_main

REFUSED = "this socket is for the site's owner alone"


@pytest.fixture
def agent(ready):
    with agent_process(ready) as running:
        yield running


@pytest.fixture
def capedjica(monkeypatch, capsys):
    return lambda *arguments: run_main(arguments, monkeypatch, capsys)


def greet(agent, role="owner", token=None):
    given = (agent.kit.path / "owner.token").read_bytes() if token is None else token
    path = socket_path(agent.kit.path, "owner")
    return Caller(connect(path, Greeting(VERSION, role, given), 1 << 20))


# Who is the owner


def test_without_the_token_or_as_somebody_else_nobody_is_admitted(agent):
    for token in (b"", b"x", bytes(32), bytes(64)):
        with pytest.raises(LinkError, match=REFUSED):
            greet(agent, token=token)
    for role in ("carrier", "relay", "", "OWNER"):
        with pytest.raises(LinkError, match=REFUSED):
            greet(agent, role)
    greet(agent).close()


def test_the_token_is_for_the_owner_alone_and_good_for_one_agent(ready):
    with agent_process(ready) as running:
        file = running.kit.path / "owner.token"
        assert file.stat().st_mode & 0o777 == 0o600
        earlier = file.read_bytes()
        assert len(earlier) == 32
    with agent_process(ready) as running, pytest.raises(LinkError, match=REFUSED):
        greet(running, token=earlier)


def test_another_user_is_not_the_owner():
    assert os.getuid() in link.owners()
    assert 61234 not in link.owners()


# What it does


def test_a_command_that_is_none_is_an_outcome_in_words(agent):
    line = greet(agent)
    for data in (b"", b"\xc1", msgspec.msgpack.encode({"what": "dance"}), b"\x91" * 3000):
        outcome = msgspec.msgpack.decode(line.call(data, 60), type=Outcome)
        assert outcome.error
        assert outcome.error.isprintable()
        assert outcome.exit_code != 0
    line.close()
    assert standing(agent.kit) is not None


def test_how_the_agent_stands(agent, study):
    found = standing(agent.kit)
    assert (found.connected, found.asked) == (False, None)
    assert found.carrier == "NOTHING: it runs unconfined"
    asked(agent.receive, study, hello(study))
    found = standing(agent.kit)
    assert found.connected
    assert found.asked >= 0


def test_revoking_through_the_agent_ends_its_answers(agent, ready, study):
    assert isinstance(read(study, hello(study), asked(agent.receive, study, hello(study))), Status)
    lines = carry_out(ready, Command("revoke", study.content.title))
    assert any("A small study" in line for line in lines)
    for nonce in (0, 1):
        reply = read(study, hello(study, nonce), asked(agent.receive, study, hello(study, nonce)))
        assert isinstance(reply, Refusal)
    assert ready.totals().studies[study.contract.hash].revoked


def test_withdrawing_through_the_agent(agent, ready):
    assert carry_out(ready, Command("withdraw", "sub-03"))
    assert list(read_withdrawn(ready)) == ["sub-03"]


def test_what_the_agent_refuses_has_the_words_and_the_code_of_the_command(agent, ready):
    with pytest.raises(CapedjicaError, match="no such study") as error:
        carry_out(ready, Command("revoke", "no such study"))
    assert error.value.exit_code == 2


def test_an_agent_that_gives_no_answer_is_an_error_in_words(agent, monkeypatch):
    monkeypatch.setattr(owner_commands, "_SECONDS", 0.0)
    with pytest.raises(
        CapedjicaError, match=r"the agent of study '[0-9a-f]{16}' did not answer: no answer within"
    ):
        ask(agent.kit, Command("status"))
    assert standing(agent.kit) is None


def test_without_an_agent_nobody_is_asked(ready):
    kit = kits.find_kit(ready)
    assert ask(kit, Command("status")) is None
    assert carry_out(ready, Command("withdraw", "sub-03")) is None
    assert read_withdrawn(ready) == {}
    # What an agent that was killed left behind changes nothing.
    with agent_process(ready) as running:
        running.process.kill()
        running.wait()
        assert socket_path(kit.path, "owner").exists()
        assert ask(kit, Command("status")) is None


# The commands, with and without an agent


@pytest.mark.parametrize("running", [True, False])
def test_the_commands_do_the_same_with_and_without_an_agent(ready, study, capedjica, running, monkeypatch):
    through = []
    real = owner_commands.carry_out
    monkeypatch.setattr(
        owner_commands, "carry_out", lambda *given: through.append(real(*given)) or through[-1]
    )

    def use():
        done = capedjica("site", "withdraw", "03", str(ready.folder))
        assert done.returncode == 0, done.stderr
        assert "sub-03" in done.stdout
        done = capedjica("site", "revoke", "A small study", str(ready.folder))
        assert done.returncode == 0, done.stderr
        assert "A small study" in done.stdout
        done = capedjica("site", "revoke", "A small", str(ready.folder))
        again = capedjica("site", "withdraw", "nobody-at-all", str(ready.folder))
        return done, again

    if running:
        with agent_process(ready):
            outcomes = use()
    else:
        outcomes = use()
    assert [one is not None for one in through[:2]] == [running, running]
    assert list(read_withdrawn(ready)) == ["sub-03"]
    assert ready.totals().studies[study.contract.hash].revoked
    for outcome in outcomes:
        assert outcome.returncode in (0, 2)
        assert len(outcome.stderr.splitlines()) <= 1


@pytest.mark.parametrize("running", [True, False])
def test_status_shows_agent_and_carrier(ready, study, capedjica, running):
    def said():
        done = capedjica("site", "status", str(ready.folder))
        return done.returncode, re.sub(r"\s+", " ", done.stdout)

    if running:
        with agent_process(ready) as agent:
            # No supervisor and no carrier: the agent alone is seen.
            code, text = said()
            assert standing(agent.kit).network in text
            assert "no question yet" in text
            assert "confined by NOTHING" in text
    else:
        code, text = said()
        assert "agent not running" in text
        assert "carrier not running" in text
    assert code == (11 if running else 10)
