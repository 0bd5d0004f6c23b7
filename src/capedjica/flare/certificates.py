"""Validity period of the certificates of a kit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from capedjica.errors import InputError

_WARN_BEFORE: Final = timedelta(days=30)


def validity(kit: Path) -> tuple[datetime, datetime]:
    """Return the beginning and end of the period in which all certificates of a kit are valid."""
    files = [*sorted((kit / "startup").glob("*.crt")), kit / "startup" / "rootCA.pem"]
    try:
        certificates = [x509.load_pem_x509_certificate(file.read_bytes()) for file in files]
    except (OSError, ValueError) as error:
        raise InputError(f"the certificates of {kit} cannot be read: {error}") from None
    begin = max(certificate.not_valid_before_utc for certificate in certificates)
    return begin, min(certificate.not_valid_after_utc for certificate in certificates)


def check_certificates(kit: Path, now: datetime | None = None) -> str | None:
    """Refuse a kit whose certificates are not valid now; return a warning if they expire within 30 days."""
    (begin, end), now = validity(kit), now or datetime.now(UTC)
    if now < begin:
        raise InputError(
            f"the certificates of {kit} are valid from {begin.isoformat(timespec='minutes')} on, but the "
            f"clock of this machine shows {now.isoformat(timespec='minutes')}; set the clock"
        )
    when = end.isoformat(timespec="minutes")
    if end <= now:
        raise InputError(f"the certificates of {kit} expired on {when}; the study must be provisioned again")
    if end - now < _WARN_BEFORE:
        return f"the certificates of {kit} expire on {when}, in {(end - now).days} days"
    return None


def certificate_warning(kit: Path) -> str | None:
    """Return a warning if a kit's certificates have expired or expire within 30 days, else None."""
    try:
        return check_certificates(kit)
    except InputError as error:
        return str(error)
