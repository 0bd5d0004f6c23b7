"""A study small enough to run in a second or two, on disk as real ones are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from capedjica.data import FeatureTable, make_synthetic
from capedjica.site.home import SiteHome
from capedjica.study.analyses import IcaTable
from capedjica.study.study_file import (
    PrivacyTable,
    SiteTable,
    Study,
    StudyFile,
    write_study,
)

SIZES = (6, 9, 7, 8)
COMPONENTS = 3
SIDE = 10
LENGTH = 60


def make_study(folder: Path, simulated: bool = True, iterations: int = 6, **privacy) -> Study:
    """Write four sites and a study.toml into ``folder``; return the study as it is read back."""
    data = make_synthetic(4, sum(SIZES), COMPONENTS, LENGTH, SIDE, 1, site_sizes=SIZES)
    homes = []
    for number, subjects in enumerate(data.sites, start=1):
        home = SiteHome.create(
            folder / "sites" / f"s{number}", f"s{number}", 50.0, 20.0, 1e-5, simulated=simulated
        )
        (home.folder / "data").mkdir()
        for index, subject in enumerate(subjects):
            np.save(home.folder / "data" / f"sub-{index:02d}.npy", subject)
        homes.append(home)
    (folder / "truth").mkdir()
    np.save(folder / "truth" / "mixing.npy", data.mixing)
    content = StudyFile(
        title="A small study",
        analyses=(IcaTable(n_components=COMPONENTS, max_iter=iterations),),
        features=FeatureTable(n_features=SIDE * SIDE, scan_length=LENGTH, image_shape=(SIDE, SIDE)),
        privacy=PrivacyTable(**({"epsilon": 10.0} | privacy)),
        sites=tuple(
            SiteTable(name=home.settings.name, subjects=size, card=home.card().card)
            for home, size in zip(homes, SIZES, strict=True)
        ),
    )
    write_study(folder / "study.toml", content)
    return Study.load(folder)


def changed(study: Study, path: Path, *, title: str | None = None, **privacy) -> Study:
    """Write the same study with another title or other privacy."""
    content = msgspec.structs.replace(
        study.content,
        title=title or study.content.title,
        privacy=msgspec.structs.replace(study.content.privacy, **privacy),
    )
    write_study(path, content)
    return Study.load(path)
