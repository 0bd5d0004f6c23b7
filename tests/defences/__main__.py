"""Take every defence of the threat model away, one at a time, and see that its test notices.

``python -m tests.defences [--fast] [NAME ...]`` copies the sources and the tests, runs each test once as
everything is, then once for every defence with the sources changed so that this defence is gone, and writes
``docs/evidence/defences.txt``. A test notices if it fails by itself: not while it is imported, and not
because the changed source is no Python. ``--fast`` leaves out what starts real processes of FLARE or takes
minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.defences.catalogue import DEFENCES
from tests.defences.laboratory import Laboratory
from tests.defences.outcomes import REPORT, report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.defences", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these defences, or those of a marker")
    parser.add_argument("--fast", action="store_true", help="leave out those that take minutes")
    given = parser.parse_args()
    names = set(given.names)
    chosen = [one for one in DEFENCES if not names or names & {one.name, *one.changes}]
    chosen = [one for one in chosen if not (given.fast and one.slow)]
    if unknown := names - {name for one in DEFENCES for name in (one.name, *one.changes)}:
        parser.error(f"there is no defence called {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="defences-") as scratch:
        laboratory, lines = Laboratory(Path(scratch), {one.test for one in chosen}), []
        for defence in chosen:
            lines.append(laboratory.outcome(defence))
            REPORT.write_text(report(defence, lines[-1]), encoding="utf-8")
    return int(any(not line.startswith("noticed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
