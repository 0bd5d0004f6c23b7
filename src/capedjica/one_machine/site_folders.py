"""Sites whose folders are on this machine, for a coordinator who tries a study out."""

from __future__ import annotations

from capedjica.site.home import SiteHome
from capedjica.site.people.roll import call_roll
from capedjica.study.study_file import SiteTable


def site_of_folder(folder: str, subjects: int | None) -> SiteTable:
    """Return a site given by its folder; its people are counted unless their number is given."""
    home = SiteHome.load(folder)
    site = home.card()
    if subjects is None:
        subjects = len(call_roll(home).people)
    return SiteTable(name=site.name, subjects=subjects, card=site.card)
