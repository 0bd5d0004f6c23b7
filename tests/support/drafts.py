"""Contents of study files for tests, with made-up keys."""

import msgspec

from capedjica.data.features import FeatureTable
from capedjica.securesum.identity import PublicIdentity
from capedjica.study.analyses import IcaTable
from capedjica.study.analyses.group_comparison import ColumnTable, GroupComparisonTable
from capedjica.study.analyses.pca import PcaTable
from capedjica.study.analyses.tabular import HistogramTable, KMeansTable, MeanTable, RegressionTable
from capedjica.study.study_file import PrivacyTable, SiteTable, StudyFile

# What stands under [features], though it is said together with the analysis.
OF_SCANS = ("n_features", "scan_length", "image_shape")


def apart(settings):
    """Settings of an ICA, and those of the scans it is made of."""
    return (
        {key: value for key, value in settings.items() if key not in OF_SCANS},
        {key: value for key, value in settings.items() if key in OF_SCANS},
    )


def with_ica(content, **settings):
    """The same study with other settings of its only analysis, or of its scans."""
    analysis, scans = apart(settings)
    return msgspec.structs.replace(
        content,
        analyses=(msgspec.structs.replace(content.analyses[0], **analysis),),
        features=msgspec.structs.replace(content.features, **scans),
    )


def card(name, key=None):
    number = sum(map(ord, name)) if key is None else key
    return PublicIdentity(name, number.to_bytes(32, "big")).card


def sites(*subjects, **epsilon):
    names = [f"site-{number}" for number in range(1, len(subjects) + 1)]
    return tuple(
        SiteTable(name=name, subjects=size, card=card(name), epsilon=epsilon.get(name.replace("-", "_")))
        for name, size in zip(names, subjects, strict=True)
    )


def draft(
    title="Resting state",
    subjects=(20, 30, 25, 25),
    analysis=None,
    privacy=None,
    features=None,
    **own_epsilon,
):
    """A study of four sites; the tables' values can be replaced."""
    ica, scans = apart({"n_components": 4, "n_features": 12, "scan_length": 60} | (analysis or {}))
    return StudyFile(
        title=title,
        analyses=(IcaTable(**ica),),
        features=FeatureTable(**scans | (features or {})),
        privacy=PrivacyTable(**{"epsilon": 2.0} | (privacy or {})),
        sites=sites(*subjects, **own_epsilon),
    )


TABLE = FeatureTable(kind="table", columns=("age", "volume", "dx"))
SCANS = FeatureTable(n_features=6, scan_length=60)
ICA = IcaTable(name="networks", n_components=3, max_iter=2)
# Every kind of analysis, on rows or on scans, and several of them.
ANALYSES = {
    "mean": (TABLE, (MeanTable(clip=100.0),)),
    "histogram": (TABLE, (HistogramTable(edges=((0, 40, 90), (0, 1, 2, 3), (-0.5, 0.5, 1.5))),)),
    "kmeans": (TABLE, (KMeansTable(n_clusters=2, radius=100.0, max_iter=3),)),
    "regression": (TABLE, (RegressionTable(label="dx", feature_bound=100.0, max_iter=3),)),
    "pca": (SCANS, (PcaTable(n_components=2),)),
    "ica": (SCANS, (ICA,)),
    "paper": (SCANS, (IcaTable(method="paper", n_components=3, max_iter=2),)),
    "networks, then connectivity": (
        SCANS,
        (ICA, MeanTable(name="connectivity", values="connectivity", networks="networks", clip=2.0)),
    ),
    "three": (
        SCANS,
        (
            ICA,
            MeanTable(name="amplitudes", values="amplitudes", networks="networks", clip=1.0, share=0.2),
            KMeansTable(name="groups", values="connectivity", n_clusters=2, radius=4.0, max_iter=2),
        ),
    ),
}
# Groups of people compared: by columns of the table that is analysed, and of one beside the scans.
DIAGNOSIS = ColumnTable(name="dx", levels=("0", "1"))
GROUPS = {
    "group-comparison": (
        FeatureTable(kind="table", columns=("age", "volume")),
        (
            GroupComparisonTable(
                contrast="dx", columns=(DIAGNOSIS,), center=(50, 1.5), scale=(20, 1), origin="public-cohort"
            ),
        ),
    ),
    "networks, then groups": (
        SCANS,
        (
            ICA,
            GroupComparisonTable(
                name="groups",
                values="amplitudes",
                networks="networks",
                contrast="dx",
                columns=(DIAGNOSIS, ColumnTable(name="age", range=(18.0, 90.0))),
            ),
        ),
    ),
}
_KNOWN = {"n_components": 3, "template": "template.npy", "template_origin": "public"}
# Methods that begin at a template, which is a file beside the study, and the one that looks for maps alone.
PUBLIC_KNOWLEDGE = {
    "template": (SCANS, (IcaTable(method="template", **_KNOWN),)),
    "guided": (SCANS, (IcaTable(method="guided", max_iter=2, **_KNOWN),)),
    "spatial": (SCANS, (IcaTable(method="spatial", n_components=3),)),
    "template, then connectivity": (
        SCANS,
        (
            IcaTable(name="known", method="template", group_maps=False, **_KNOWN),
            MeanTable(name="connectivity", values="connectivity", networks="known", clip=2.0),
        ),
    ),
}


def every_kind():
    """A study of every kind."""
    return [
        msgspec.structs.replace(draft(), features=features, analyses=analyses)
        for features, analyses in ANALYSES.values()
    ]


def plain(content):
    return msgspec.json.decode(msgspec.json.encode(content))
