"""After a revocation a site hands out nothing: not even the answers that it kept in case one got lost."""

import msgspec
import pytest

from capedjica.flare.parcels import VERSION, Parcel, Slip
from capedjica.mechanisms.messages import VERSION as PROTOCOL
from capedjica.mechanisms.messages import Hello, encode
from capedjica.site.approval.revocation import find_approval, revoke
from capedjica.site.flare import kits
from capedjica.site.flare.desk import Desk
from capedjica.site.flare.party import SiteParty
from capedjica.site.home import SiteHome

pytest.importorskip("nvflare")


@pytest.fixture
def party(study, ready):
    """A site of a real study, its home, and the desk at which FLARE leaves parcels."""
    party = SiteParty(study.hash.hex())
    desk = Desk(party.open(kits.find_kit(ready).path / "local"))
    yield study, ready, desk
    desk.close()
    party.close()


def asked(desk, number, question):
    parcel = msgspec.msgpack.encode(Parcel(VERSION, number, question))
    while (slip := msgspec.msgpack.decode(desk.receive(parcel), type=Slip)).state == "busy":
        pass
    return slip


def test_a_kept_answer_is_not_handed_out_after_a_revocation(party):
    study, home, desk = party
    hello = encode(Hello(PROTOCOL, study.contract.hash, b"", [], b"", bytes(16)))
    first = asked(desk, b"number-1", hello)
    assert first.state == "done"
    assert asked(desk, b"number-1", hello) == asked(desk, b"number-1", None) == first
    other = SiteHome.load(home.folder)
    revoke(other, find_approval(other, study.content.title))
    for number, question in ((b"number-1", hello), (b"number-1", None), (b"number-2", hello)):
        slip = asked(desk, number, question)
        assert (slip.state, slip.data) == ("refused", b"it gives no answers any more")
