"""Print what is installed for capedjica as a CycloneDX list of components, without a network.

``python deploy/sbom.py [EXTRA ...]``, by the interpreter of the environment in question; extras are those of
capedjica, by default ``federated``. The hash of a component is that of its RECORD, in which its installer
wrote the SHA-256 of every file: ``--check`` compares the files with it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

ROOT = "capedjica"


def closure(name: str, extras: Iterable[str]) -> dict[str, Distribution]:
    """Return an installed package and all that it needs, by their names."""
    found: dict[str, Distribution] = {}
    waiting = [(name, frozenset(extras))]
    seen = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            there = distribution(one[0])
        except PackageNotFoundError:
            continue
        found[canonical(one[0])] = there
        waiting += [(need.name, frozenset(need.extras)) for need in needs(there, one[1])]
    return dict(sorted(found.items()))


def canonical(name: str) -> str:
    """Return a name as package registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(there: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what a package needs here, with some extras."""
    for text in there.requires or ():
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield need


def component(name: str, there: Distribution) -> dict[str, object]:
    """Return a package as CycloneDX writes it."""
    record = there.read_text("RECORD") or ""
    said = there.metadata
    licence = said.get("License-Expression") or said.get("License") or "see the package"
    return {
        "type": "library",
        "name": name,
        "version": there.version,
        "purl": f"pkg:pypi/{name}@{there.version}",
        "licenses": [{"license": {"name": licence.splitlines()[0][:80]}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(record.encode()).hexdigest()}],
    }


def changed_files(there: Distribution) -> Iterator[str]:
    """Yield the files of a package that are others than its installer wrote."""
    for file in there.files or ():
        if file.hash is None or file.hash.mode != "sha256":
            continue
        try:
            found = hashlib.sha256(file.locate().read_bytes()).digest()
        except OSError:
            found = b""
        if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != file.hash.value:
            yield f"{there.metadata['Name']}: {file}"


def main(words: list[str]) -> int:
    """Print the list, or the files that were changed."""
    installed = closure(ROOT, [word for word in words if word != "--check"] or ["federated"])
    if "--check" in words:
        changed = [file for there in installed.values() for file in changed_files(there)]
        sys.stdout.write("".join(f"{file}\n" for file in changed))
        return int(bool(changed))
    components = [component(name, there) for name, there in installed.items()]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
