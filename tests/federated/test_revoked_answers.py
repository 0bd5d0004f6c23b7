"""After a revocation a site hands out nothing: not even the answers that it kept in case one got lost."""

import msgspec
import pytest

from capedjica.engines.flare.carriage import VERSION, Desk, Parcel, Slip
from capedjica.mechanisms.messages import VERSION as PROTOCOL
from capedjica.mechanisms.messages import Hello, encode
from capedjica.study.federated import kits
from capedjica.study.federated.parties import SiteParty
from capedjica.study.federated.provisioning import provision
from capedjica.study.participation import approve
from capedjica.study.revocation import find_approval, revoke
from capedjica.study.site_home import SiteHome
from tests.study.small_study import make_study

pytest.importorskip("nvflare")


@pytest.fixture
def party(tmp_path, monkeypatch):
    """A site of a real study, its home, and the desk at which FLARE leaves parcels."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    study = make_study(tmp_path, simulated=False)
    provision(study, "localhost", 8123)
    home = SiteHome.load(tmp_path / "sites" / "s1")
    with kits.received(home, tmp_path / "federation" / "kits" / "s1.zip") as (given, keep):
        approve(home, given)
        keep()
    party = SiteParty(study.hash.hex())
    desk = Desk(party.open(kits.find_kit(home).path / "local"))
    yield study, home, desk
    desk.close()
    party.close()


def asked(desk, number, question):
    parcel = msgspec.msgpack.encode(Parcel(VERSION, number, question))
    while (slip := msgspec.msgpack.decode(desk.receive(parcel), type=Slip)).state == "busy":
        pass
    return slip


def test_a_kept_answer_is_not_handed_out_after_a_revocation(party):
    study, home, desk = party
    hello = encode(Hello(PROTOCOL, study.contract.hash, b"", [], b""))
    first = asked(desk, b"number-1", hello)
    assert first.state == "done"
    assert asked(desk, b"number-1", hello) == asked(desk, b"number-1", None) == first
    other = SiteHome.load(home.folder)
    revoke(other, find_approval(other, study.content.title))
    for number, question in ((b"number-1", hello), (b"number-1", None), (b"number-2", hello)):
        slip = asked(desk, number, question)
        assert (slip.state, slip.data) == ("refused", b"it gives no answers any more")
