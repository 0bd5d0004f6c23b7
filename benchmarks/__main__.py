"""Run benchmark sections: ``python -m benchmarks [section ...]``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Final

from rich.console import Console

from benchmarks.framework import EVIDENCE_WIDTH, show, write_evidence

SECTIONS: Final = ("noise", "securesum", "release", "kernels", "descent", "startup", "extraction", "whole")


def main(arguments: list[str] | None = None) -> int:
    """Run the sections asked for, or all; show each and write its evidence."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed against peers.")
    parser.add_argument("section", nargs="*", help=f"which of {', '.join(SECTIONS)}; all when none is named")
    chosen = parser.parse_args(arguments).section or list(SECTIONS)
    if unknown := [name for name in chosen if name not in SECTIONS]:
        parser.error(f"there is no section {', '.join(unknown)}; choose from {', '.join(SECTIONS)}")
    console = Console(width=None if sys.stdout.isatty() else EVIDENCE_WIDTH)
    try:
        for name in chosen:
            console.print(f"measuring {name} ...")
            section = import_module(f"benchmarks.{name}").run(console)
            show(section, console)
            write_evidence(section)
    except KeyboardInterrupt:
        console.print("interrupted: the section under way wrote nothing")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
