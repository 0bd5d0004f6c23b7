"""A sealed study, made once, and kits that were tampered with."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from capedjica.flare.kit import STARTUP, Label
from capedjica.securesum.identity import Identity

Files = dict[str, bytes]


def unzip(kit: Path) -> Files:
    """Return the files of a kit by their names."""
    with zipfile.ZipFile(kit) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rezip(files: Files, target: Path) -> Path:
    """Write files as a kit."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


def altered(kit: Path, target: Path, change: Callable[[Files], object]) -> Path:
    """Write a kit with something changed in it, on its way."""
    files = unzip(kit)
    change(files)
    return rezip(files, target)


def signed(
    kit: Path,
    target: Path,
    change: Callable[[Files], object] = lambda files: None,
    key: Identity | None = None,
    **label: object,
) -> Path:
    """Write a kit with something changed in it by its coordinator, or by another who signs it."""
    files = unzip(kit)
    change(files)
    own = key or Identity.load(kit.parents[1] / "coordinator.pem")
    written = msgspec.json.decode(files["kit.json"], type=Label)
    written = msgspec.structs.replace(written, coordinator=own.public_key.hex(), **label)
    written = written.signed(own, {name: files[f"startup/{name}"] for name in STARTUP})
    files["kit.json"] = msgspec.json.encode(written)
    return rezip(files, target)


def with_member(kit: Path, target: Path, name: str, data: bytes = b"x", mode: int = 0o100600) -> Path:
    """Write a kit with one more member, whatever it is called."""
    shutil.copy(kit, target)
    member = zipfile.ZipInfo("placeholder")
    member.filename, member.external_attr = name, mode << 16
    with zipfile.ZipFile(target, "a") as archive:
        archive.writestr(member, data)
    return target


def lying_zip(files: Files, name: str, data: bytes, claimed: int) -> bytes:
    """Return a kit with a member that unpacks to more than its directory says."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for other, content in files.items():
            archive.writestr(other, content)
        archive.writestr(name, data)
    true, false = (size.to_bytes(4, "little") for size in (len(data), claimed))
    packed = buffer.getvalue()
    assert packed.count(true) == 2
    return packed.replace(true, false)


def certificate(end: datetime) -> bytes:
    """Return a certificate that ends at some time, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "s1")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(min(end, days_from_now(0)) - timedelta(days=365))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def days_from_now(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
