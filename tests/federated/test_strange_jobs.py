"""A site's part in a job that is about another study, or whose site has another key: it takes none."""

import msgspec
import pytest

from capedjica.flare.parcels import VERSION, Parcel, Slip
from capedjica.mechanisms.messages import VERSION as PROTOCOL
from capedjica.mechanisms.messages import Hello, encode
from capedjica.securesum.identity import Identity
from capedjica.site.flare import kits
from capedjica.site.flare.party import SiteParty

pytest.importorskip("nvflare")

OTHER = "ab" * 32


def answered(home, study, named):
    """Return what a site's desk gives back to a greeting, in a job that names a study."""
    party = SiteParty(named)
    desk = party._open_desk(kits.find_kit(home).path / "local")
    try:
        hello = encode(Hello(PROTOCOL, study.contract.hash, b"", [], b"", bytes(16)))
        while True:
            data = desk.receive(msgspec.msgpack.encode(Parcel(VERSION, b"number-1", hello)))
            slip = msgspec.msgpack.decode(data, type=Slip)
            if slip.state != "busy":
                return slip.state, slip.data
    finally:
        desk.close()
        party.close()


def refusal():
    return "refused", b"it does not take part; its own log says why"


def log_of(home):
    return (home.folder / "site.log").read_text()


def check_untouched(home, study):
    """Nothing was charged and no block begun."""
    with home.open_ledger(must_exist=True) as ledger:
        assert ledger.totals().overall.n_releases == 0
        assert ledger.last_block(study.contract.hash) == -1


@pytest.mark.parametrize("named", [OTHER, "", "{study}"])
def test_a_job_about_another_study_is_refused_and_nothing_is_charged(ready, study, named):
    assert answered(ready, study, named) == refusal()
    assert f"the job is about study {named[:16]}, this kit about 'A small study'" in log_of(ready)
    check_untouched(ready, study)
    # The control: the job of its own study is answered.
    assert answered(ready, study, study.hash.hex())[0] == "done"


def test_the_beginning_of_a_hash_is_not_enough(ready, study):
    assert answered(ready, study, study.hash.hex()[:16]) == refusal()
    assert answered(ready, study, study.hash.hex().upper()) == refusal()
    check_untouched(ready, study)


@pytest.mark.parametrize(
    ("with_ledger", "words"),
    [(True, "the storage key is not the one of the ledger"), (False, "the study names another key for it")],
)
def test_a_site_whose_identity_was_exchanged_does_not_take_part(ready, study, with_ledger, words):
    changed = (
        [ready.identity_path] if with_ledger else [ready.identity_path, ready.ledger_path, ready.head_path]
    )
    own = {path: path.read_bytes() for path in changed}
    for path in changed:
        path.unlink()
    Identity.generate().save(ready.identity_path)
    assert answered(ready, study, study.hash.hex()) == refusal()
    assert words in log_of(ready)
    for path, content in own.items():
        path.write_bytes(content)
    check_untouched(ready, study)
