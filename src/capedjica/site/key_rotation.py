"""A new key for a site.

The steps, each durable before the next; what is interrupted is finished by beginning again:

1. the new key is made, as ``identity-next.pem``;
2. the old one gets a second name, ``identity-FINGERPRINT.pem``, under which it stays: older copies of the
   ledger are sealed with it;
3. the ledger takes the new key, in one entry that the old one signs (:mod:`capedjica.privacy.ledger.keys`),
   and its head is signed by the new key;
4. the card is written;
5. the new key takes the place of the old one.

Between 3 and 5 the ledger opens with neither key but here: nothing can leave.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from capedjica.errors import InputError
from capedjica.privacy.ledger import WrongKeyError
from capedjica.securesum.identity import Identity, PublicIdentity
from capedjica.site.approval.admission import approved
from capedjica.site.home import SiteHome
from capedjica.site.idle import resting
from capedjica.site.participants.enrolment import read_enrolment
from capedjica.tools.atomic_files import sync_folder


@dataclass(frozen=True)
class Rotation:
    """A change of key.

    Attributes
    ----------
    old, new : PublicIdentity
        Who the site was and is.
    aside : Path
        Where the old key is kept.
    """

    old: PublicIdentity
    new: PublicIdentity
    aside: Path


def bound_studies(home: SiteHome) -> list[str]:
    """Return the titles of the approved studies that name the site's present key, the latest first."""
    card = home.card().card
    return [
        study.title for study in approved(home, finished=False) if card in {site.card for site in study.sites}
    ]


def rotate_key(home: SiteHome) -> Rotation:
    """Give a site a new key, or finish what was begun; not while it takes part in a study."""
    # defence: a-key-is-not-changed-during-a-run
    with resting(home):
        try:
            return _rotate(home)
        except OSError as error:
            raise InputError(
                f"the key of site {home.settings.name} cannot be changed: {error.strerror}; the same command "
                "goes on"
            ) from None


def _rotate(home: SiteHome) -> Rotation:
    place, coming, name = home.identity_path.resolve(), home.next_identity_path, home.settings.name
    old = home.identity()
    if not coming.exists():
        Identity.generate().save(coming)
    new = Identity.load(coming)
    aside = place.with_name(f"{place.stem}-{old.fingerprint.replace(' ', '')}{place.suffix}")
    with suppress(FileExistsError):
        os.link(place, aside)
    # Before the ledger can need it, the new key is there to stay.
    sync_folder(place.parent)
    # defence: the-ledger-changes-first
    _change_ledger(home, old, new)
    enrolment = read_enrolment(home)
    home.write_card(new, None if enrolment is None else len(enrolment.enrolled))
    # defence: the-identity-changes-last
    os.replace(coming, place)
    sync_folder(place.parent)
    return Rotation(old.public(name), new.public(name), aside)


def _change_ledger(home: SiteHome, old: Identity, new: Identity) -> None:
    """Let the new key take over the ledger, unless it did, and verify everything with it."""
    if not home.has_ledger:
        return
    try:
        home.open_ledger_as(new).close()
    except WrongKeyError:
        with home.open_ledger_as(old) as ledger:
            ledger.verify_chain()
            # defence: a-new-key-begins-no-new-ledger
            ledger.change_key(storage_key=new.derive_key("ledger"), old=old.public_key, new=new.public_key)
    with home.open_ledger_as(new) as ledger:
        ledger.verify_chain()
