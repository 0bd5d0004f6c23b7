"""Record of the standing of sites in a run's folder: dishonest sites stay excluded when the run resumes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from capedjica.coordinator.run.run_folder import RunFolder
from capedjica.errors import InputError
from capedjica.mechanisms.aggregator.standing import Standing
from capedjica.mechanisms.contract import Contract
from capedjica.mechanisms.messages import CarrierName

STANDING: Final = "standing.json"
_SCHEMA: Final = 1

_log = logging.getLogger("capedjica.run")


class _Content(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The content of ``standing.json``.

    It does not record how often a site was lost: a site missing in one attempt may be back in the next.
    """

    schema: int
    block: Annotated[int, Meta(ge=-1, le=2**62)]
    asked: dict[str, Annotated[float, Meta(ge=0)]]
    liars: list[str]
    reasons: dict[str, str]
    carriers: dict[str, CarrierName] = {}


def open_standing(folder: RunFolder, contract: Contract) -> Standing:
    """Open the record of the sites of a run; every change is written to disk before it takes effect.

    Parameters
    ----------
    folder : RunFolder
        Folder of the run, claimed.
    contract : Contract
        Contract of the study, whose roster names the sites.

    Raises
    ------
    InputError
        If the file is damaged; or, later, if it cannot be written.
    """
    content = _read(folder.path / STANDING, contract)
    told = set(content.liars)

    def save(standing: Standing) -> None:
        folder.write(STANDING, _encode(standing))
        for name in sorted(standing.liars - told):
            _log.warning("site %s is permanently excluded: %s", name, standing.reasons[name])
        told.update(standing.liars)

    return Standing(
        block=content.block,
        asked=dict(content.asked),
        reasons=dict(content.reasons),
        # defence: liars-are-remembered
        liars=set(content.liars),
        carriers=dict(content.carriers),
        save=save,
    )


def requested(folder: RunFolder, contract: Contract) -> dict[str, float]:
    """Return the mu^2 requested of each site so far, including that of releases lost to interruptions."""
    asked, total = _read(folder.path / STANDING, contract).asked, contract.total_mu
    return {name: share * total[name] ** 2 for name, share in asked.items()}


def _read(file: Path, contract: Contract) -> _Content:
    try:
        content = msgspec.json.decode(file.read_bytes(), type=_Content)
    except FileNotFoundError:
        return _Content(schema=_SCHEMA, block=-1, asked={}, liars=[], reasons={})
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a valid record of the sites of a run: {error}") from None
    if content.schema != _SCHEMA:
        raise InputError(f"{file}: schema must be {_SCHEMA}, got {content.schema}")
    told = {*content.asked, *content.liars, *content.reasons, *content.carriers}
    if strangers := told - set(contract.roster.names):
        named = ", ".join(repr(name[:80]) for name in sorted(strangers))
        raise InputError(f"{file} names {named}, which the roster of this study does not contain")
    return content


def _encode(standing: Standing) -> bytes:
    content = _Content(
        schema=_SCHEMA,
        block=standing.block,
        asked=standing.asked,
        liars=sorted(standing.liars),
        reasons=standing.reasons,
        carriers=standing.carriers,
    )
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
