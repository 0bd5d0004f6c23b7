"""Key rotation of a site.

Each step is durable before the next. An interrupted rotation is completed by starting it again:

1. the new key is generated, as ``identity-next.pem``;
2. the old key is kept under a second name, ``identity-FINGERPRINT.pem``, because older copies of the ledger
   are sealed with it;
3. the ledger changes to the new key, in one entry signed by the old key
   (:mod:`capedjica.privacy.ledger.keys`), and its head is signed by the new key;
4. the card is written;
5. the new key replaces the old one.

Between steps 3 and 5, only this module can open the ledger, so nothing can leave the site.
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
    """A completed key rotation.

    Attributes
    ----------
    old, new : PublicIdentity
        Public identity of the site before and after.
    aside : Path
        File of the old key.
    """

    old: PublicIdentity
    new: PublicIdentity
    aside: Path


def bound_studies(home: SiteHome) -> list[str]:
    """Return the titles of the approved studies that name the site's current key, latest first."""
    card = home.card().card
    return [
        study.title for study in approved(home, finished=False) if card in {site.card for site in study.sites}
    ]


def rotate_key(home: SiteHome) -> Rotation:
    """Rotate the key of a site, or complete an interrupted rotation; refuse during a run."""
    # defence: a-key-is-not-changed-during-a-run
    with resting(home):
        try:
            return _rotate(home)
        except OSError as error:
            raise InputError(
                f"the key of site {home.settings.name} could not be changed: {error.strerror}; run the same "
                "command again to continue"
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
    # The new key must be durable before the ledger depends on it.
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
    """Change the ledger to the new key, unless already done, and verify it with that key."""
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
