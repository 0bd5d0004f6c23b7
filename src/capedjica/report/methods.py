"""Methods paragraph for an article, with its references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from capedjica.algorithms.reliability import RELIABLE
from capedjica.privacy.statement import PrivacyStatement
from capedjica.tools.text import counted

if TYPE_CHECKING:
    from capedjica.report.group import Findings


@dataclass(frozen=True)
class Reference:
    """A publication, with its short citation and its BibTeX fields."""

    key: str
    short: str
    kind: str
    fields: tuple[tuple[str, str], ...]

    @property
    def link(self) -> str:
        """URL of the publication; empty if it has neither a DOI nor an arXiv number."""
        given = dict(self.fields)
        if "doi" in given:
            return f"https://doi.org/{given['doi']}"
        return f"https://arxiv.org/abs/{given['eprint']}" if "eprint" in given else ""

    @property
    def bibtex(self) -> str:
        """BibTeX entry."""
        lines = [f"  {name} = {{{value}}}," for name, value in self.fields]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}"])

    @property
    def words(self) -> str:
        """Entry for a list of references, as text."""
        given = dict(self.fields)
        where = given.get("journal") or given.get("booktitle") or f"version {given.get('version', '')}"
        names = given["author"].replace("{", "").replace("}", "").replace(" and ", "; ")
        title = given["title"].replace("{", "").replace("}", "")
        parts = [given.get("volume", ""), given.get("pages", "").replace("--", "–")]
        place = ": ".join(part for part in parts if part)
        return f"{names} ({given['year']}). {title}. {where}{' ' * bool(place)}{place}."


IMTIAZ: Final = Reference(
    "imtiaz2021correlated",
    "Imtiaz et al., 2021",
    "article",
    (
        (
            "author",
            "Imtiaz, Hafiz and Mohammadi, Jafar and Silva, Rogers and Baker, Bradley and Plis, Sergey M. and "
            "Sarwate, Anand D. and Calhoun, Vince D.",
        ),
        (
            "title",
            "A Correlated Noise-Assisted Decentralized Differentially Private Estimation Protocol, and its "
            "Application to {fMRI} Source Separation",
        ),
        ("journal", "IEEE Transactions on Signal Processing"),
        ("volume", "69"),
        ("pages", "6355--6370"),
        ("year", "2021"),
        ("eprint", "1910.12913"),
    ),
)
DONG: Final = Reference(
    "dong2022gaussian",
    "Dong, Roth and Su, 2022",
    "article",
    (
        ("author", "Dong, Jinshuo and Roth, Aaron and Su, Weijie J."),
        ("title", "Gaussian Differential Privacy"),
        ("journal", "Journal of the Royal Statistical Society Series B"),
        ("volume", "84"),
        ("pages", "3--37"),
        ("year", "2022"),
        ("doi", "10.1111/rssb.12454"),
    ),
)
BONAWITZ: Final = Reference(
    "bonawitz2017practical",
    "Bonawitz et al., 2017",
    "inproceedings",
    (
        (
            "author",
            "Bonawitz, Keith and Ivanov, Vladimir and Kreuter, Ben and Marcedone, Antonio and McMahan, H. "
            "Brendan and Patel, Sarvar and Ramage, Daniel and Segal, Aaron and Seth, Karn",
        ),
        ("title", "Practical Secure Aggregation for Privacy-Preserving Machine Learning"),
        ("booktitle", "ACM Conference on Computer and Communications Security"),
        ("pages", "1175--1191"),
        ("year", "2017"),
        ("doi", "10.1145/3133956.3133982"),
    ),
)
BAKER: Final = Reference(
    "baker2019decentralized",
    "Baker et al., 2019",
    "article",
    (
        (
            "author",
            "Baker, Bradley T. and Abrol, Anees and Silva, Rogers F. and Damaraju, Eswar and Sarwate, Anand "
            "D. and Calhoun, Vince D. and Plis, Sergey M.",
        ),
        (
            "title",
            "Decentralized temporal independent component analysis: Leveraging {fMRI} data in collaborative "
            "settings",
        ),
        ("journal", "NeuroImage"),
        ("volume", "186"),
        ("pages", "557--569"),
        ("year", "2019"),
        ("doi", "10.1016/j.neuroimage.2018.10.072"),
    ),
)
NILEARN: Final = Reference(
    "abraham2014machine",
    "Abraham et al., 2014",
    "article",
    (
        (
            "author",
            "Abraham, Alexandre and Pedregosa, Fabian and Eickenberg, Michael and Gervais, Philippe and "
            "Mueller, Andreas and Kossaifi, Jean and Gramfort, Alexandre and Thirion, Bertrand and "
            "Varoquaux, Gael",
        ),
        ("title", "Machine learning for neuroimaging with scikit-learn"),
        ("journal", "Frontiers in Neuroinformatics"),
        ("volume", "8"),
        ("pages", "14"),
        ("year", "2014"),
        ("doi", "10.3389/fninf.2014.00014"),
    ),
)
_METHOD_WORDS: Final = {
    "subject": "each participant contributed one short vector of bounded norm to every step",
    "paper": "the scans were reduced by capePCA and unmixed by capeDJICA ({imtiaz})",
    "guided": "estimation started from the networks of a template ({source}), and each participant "
    "contributed one short vector of bounded norm to every step",
    "spatial": "the independence of the maps was maximised (spatial ICA), and each participant contributed "
    "one short vector of bounded norm to every step",
    "djica": "the scans were reduced by PCA and unmixed by decentralized joint ICA ({baker})",
    "dp-djica": "the scans were reduced by PCA and unmixed by DP-djICA, with Laplace noise on the gradients",
}
# Networks that were not estimated by independent component analysis.
_TEMPLATE_WORDS: Final = {
    "template": "{count} networks of a template ({source}) were adjusted by the mean difference between "
    "participants' own maps, estimated by dual regression, and the template, shrunk according to its noise",
    "known": "{count} networks of a template ({source}) were used unchanged, and nothing was released for "
    "them",
}
_MECHANISM_WORDS: Final = {
    "cape": "Each site added correlated noise to its sums ({imtiaz}): random masks from a secure sum "
    "({bonawitz}), which cancel between the sites, and Gaussian noise drawn at the site, which does not.",
    "conventional": "Each site added its own Gaussian noise to its sums, sufficient without that of others.",
    "local": "Only one site was used, which added Gaussian noise to its sums.",
    "pooled": "A trusted aggregator received the sums of all sites and added Gaussian noise to the means.",
    "none": "No noise was added to the sums.",
}


def _software(version: str) -> Reference:
    fields = (
        ("author", "{The capedjica developers}"),
        ("title", "{capedjica}: differentially private decentralized joint {ICA} of {fMRI}"),
        ("version", version),
        ("year", "2026"),
    )
    return Reference("capedjica", "The capedjica developers", "software", fields)


def references(findings: Findings) -> list[Reference]:
    """Return the references that the paragraph cites."""
    found = [_software(findings.version)]
    cape = findings.contract.mechanism == "cape"
    found += [IMTIAZ] * (cape or findings.method == "paper") + [BONAWITZ] * cape
    found += [BAKER] * (findings.method == "djica") + [DONG] * findings.private
    return found + [NILEARN] * _is_drawn(findings)


def paragraph(findings: Findings) -> str:
    """Return the methods paragraph."""
    parts = [_analysis(findings), _lost(findings), findings.prepared, _noise(findings), _cost(findings)]
    drawn = f"Maps are shown on the MNI152 template included in nilearn ({NILEARN.short})."
    return " ".join(part for part in (*parts, _maps(findings), drawn * _is_drawn(findings)) if part)


def _is_drawn(findings: Findings) -> bool:
    """Return whether maps are slices of a brain."""
    return findings.maps is not None and findings.maps.look == "slices"


def _analysis(findings: Findings) -> str:
    who = findings.who
    without = f"{findings.where.article} (capedjica {findings.version})"
    sentences = []
    if findings.maps is not None:
        sentences.append(_networks(findings, who, without))
    others = "; ".join(section.article for section in findings.sections)
    if others and sentences:
        sentences.append(f"In the same study, {others}.")
    elif others:
        sentences.append(f"From {who}, {without}, {others}.")
    return " ".join(sentences)


def _lost(findings: Findings) -> str:
    people = [number for name, number in findings.participants.items() if name in findings.privacy.lost]
    if not people:
        return ""
    without = f"{counted(len(people), 'site')} ({counted(sum(people), 'participant')})"
    return f"The last steps were computed without {without} lost during the run."


def _networks(findings: Findings, who: str, without: str) -> str:
    assert findings.maps is not None
    count = len(findings.maps)
    if findings.method == "template":
        words = _TEMPLATE_WORDS["template" if findings.tables else "known"]
        taken = words.format(count=count, source=findings.template_source)
        return f"In a study of {who}, {without}, {taken}."
    how = _METHOD_WORDS[findings.method].format(
        imtiaz=IMTIAZ.short, baker=BAKER.short, source=findings.template_source
    )
    return (
        f"Brain networks of {who} were estimated by one joint independent component analysis with "
        f"{counted(count, 'component')}, {without}: {how}."
    )


def _noise(findings: Findings) -> str:
    words = _MECHANISM_WORDS[findings.contract.mechanism]
    said = words.format(imtiaz=IMTIAZ.short, bonawitz=BONAWITZ.short)
    return f"{findings.where.sites_were} {said}".lstrip()


def _cost(findings: Findings) -> str:
    guarantee = findings.privacy.guarantee.article
    return f"{guarantee} {_accounting(findings.privacy)}" if findings.private else guarantee


def _accounting(privacy: PrivacyStatement) -> str:
    pure = sum(release.pure_epsilon > 0 for release in privacy.releases)
    exactly = f"accounted for exactly with Gaussian differential privacy ({DONG.short})"
    if not pure:
        one = len(privacy.releases) == 1
        return f"The {'one release was' if one else f'{len(privacy.releases)} releases were'} {exactly}."
    return (
        f"Releases with Gaussian noise ({len(privacy.releases) - pure}) were {exactly}; for those with "
        f"Laplace noise ({pure}), the values of ε were added."
    )


def _maps(findings: Findings) -> str:
    if findings.maps is None or not findings.maps.reliability.known:
        return ""
    what, graded = "each map", "maps"
    if findings.maps.of_difference:
        what, graded = "the difference of each map from the template", "differences"
    return (
        f"The correlation of {what} with that of another run with fresh noise was predicted from the "
        f"published results; {findings.maps.reliability.n_reliable} of {len(findings.maps)} {graded}, with a "
        f"predicted correlation of at least {RELIABLE:g}, are interpreted."
    )
