"""``python -m benchmarks.evidence``: which figures are stale, and make them again."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.evidence.catalogue import FIGURES, Figure
from benchmarks.evidence.checking import made_again
from benchmarks.evidence.code import ROOT
from benchmarks.evidence.quotes import fill_pages
from benchmarks.evidence.stamps import Check, changed, commit, known_stale, read, today, write


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("status", help="list every figure, its commit, and what has changed since")
    commands.add_parser("quote", help="write the numbers of the figures into the pages that quote them")
    for what, help_text in (
        ("make", "make stale figures again, or those named"),
        ("check", "make some seeds of stale figures again, or of those named, and compare"),
    ):
        command = commands.add_parser(what, help=help_text)
        command.add_argument("name", nargs="*", choices=[[], *FIGURES], metavar="NAME", help="of a figure")
        command.add_argument("--folder", type=Path, help="real data: timeseries.npz and participants.tsv")
        if what == "check":
            command.add_argument("--seeds", type=int, default=1, help="how many [1]")
    return parser


def stale(figure: Figure) -> list[str]:
    """Return why a figure is stale: the modules that changed, or that it has no stamp."""
    try:
        return changed(figure)
    except FileNotFoundError:
        return ["no stamp"]


def _status() -> int:
    found = {figure.name: stale(figure) for figure in FIGURES.values()}
    known = known_stale()
    for name, why in found.items():
        made = "" if why == ["no stamp"] else read(FIGURES[name].base).origin
        word = "fresh" if not why else "known" if name in known else "STALE"
        print(f"{word}  {name}  {made}  {', '.join(why)}".rstrip())
    n_stale = sum(map(bool, found.values()))
    print(f"{n_stale} of {len(found)} figures are stale, {len(known)} of them known to be")
    return 1 if any(why and name not in known for name, why in found.items()) else 0


def _chosen(names: Sequence[str], folder: Path | None) -> list[Figure]:
    """Return the figures to make, without those that need real data where there are none."""
    figures = [FIGURES[name] for name in names] or [f for f in FIGURES.values() if stale(f)]
    for figure in figures:
        if figure.needs_folder and folder is None:
            print(f"skipped: {figure.name} needs real data (--folder)")
    return [figure for figure in figures if folder is not None or not figure.needs_folder]


def _make(figure: Figure, folder: Path | None) -> bool:
    """Run what makes a figure, which stamps it."""
    place = "" if folder is None else str(folder.resolve())
    arguments = [place if part == "FOLDER" else part for part in figure.arguments]
    print(f"making {figure.name}: {figure.command}", flush=True)
    began = time.monotonic()
    if subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=False).returncode != 0:
        return False
    seconds = round(time.monotonic() - began, 1)
    write(figure.base, msgspec.structs.replace(read(figure.base), seconds=seconds))
    return True


def _check(figure: Figure, seeds: int, folder: Path | None) -> bool:
    """Make a part again; a figure that is still the same depends on the code of today from now on."""
    if not figure.name.startswith("utility-"):
        print(f"skipped: {figure.name} has no seeds; make it")
        return True
    found = made_again(figure.name.removeprefix("utility-"), seeds, folder)
    print(f"{figure.name}: {found}", flush=True)
    if found.different:
        return False
    command = f"python -m benchmarks.evidence check {figure.name} --seeds {seeds}"
    check = Check(command, commit(), today(), str(found))
    write(figure.base, msgspec.structs.replace(read(figure.base), code=figure.code(), check=check))
    return True


def main(arguments: list[str] | None = None) -> int:
    """List, make or check figures."""
    asked = _parser().parse_args(arguments)
    if asked.what == "status":
        return _status()
    if asked.what == "quote":
        print("\n".join(f"changed: {page}" for page in fill_pages()) or "all pages say what the figures show")
        return 0
    figures = _chosen(asked.name, asked.folder)
    try:
        if asked.what == "make":
            done = [_make(figure, asked.folder) for figure in figures]
        else:
            done = [_check(figure, asked.seeds, asked.folder) for figure in figures]
    except KeyboardInterrupt:
        print("interrupted: the figures finished so far are written")
        return 130
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
