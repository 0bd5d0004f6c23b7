"""Run the whole test suite, long cases included, and write what was seen: ``python -m tests.evidence``.

It runs in three parts, each of which can be run by itself (``python -m tests.evidence flare``), at another
time or on another machine. What was seen of a part is kept in ``docs/evidence/test-full/PART.json`` with its
commit; ``docs/evidence/test-full.txt`` is made of all parts. Tests that a lost worker did not come to, or
during which it was lost, are run once more, one at a time; what is then still not reached is named, and
counts as failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from benchmarks.evidence.stamps import commit, today
from tests.support import recording
from tests.support.places import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
N_SLOWEST = 40
PACKAGES = (
    "capedjica",
    "numpy",
    "scipy",
    "numba",
    "cryptography",
    "msgspec",
    "nvflare",
    "pytest",
    "hypothesis",
)
# Each takes some 20 to 35 minutes on two cores; the last is what the others leave.
PARTS: dict[str, tuple[str, ...]] = {
    "flare": (
        "tests/attacks/flare",
        "tests/faults/flare",
        "tests/federated",
        "tests/flare",
        "tests/web/test_flare_story.py",
    ),
    "attacks": ("tests/attacks/messages", "tests/attacks/views", "tests/securesum", "tests/statistical"),
    "rest": (),
}
# Three on two cores: tests of FLARE mostly wait. pytest-xdist can wait forever for a worker that it starts in
# place of a lost one.
TOGETHER = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
ALONE = ("-n", "1", "--dist", "loadfile", "--max-worker-restart=0")


class Case(msgspec.Struct):
    """One test: its worst outcome over setup, call and teardown, and their time."""

    name: str
    outcome: str = "passed"
    reason: str = ""
    seconds: float = 0.0

    @property
    def file(self) -> str:
        return self.name.split("::")[0].removesuffix(".py")


class Part(msgspec.Struct):
    """What was seen of a part: how many tests of each file passed in how long, and every other test."""

    commit: str
    date: str
    seconds: float
    machine: str
    passed: dict[str, tuple[int, float]]
    others: list[Case]
    slowest: list[Case]

    def count(self, outcome: str) -> int:
        return sum(case.outcome == outcome for case in self.others)

    @property
    def n_passed(self) -> int:
        return sum(number for number, _ in self.passed.values())

    @property
    def green(self) -> bool:
        return self.n_passed > 0 and not self.count("failed") and not self.count("not reached")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts, and write the summary of all parts that have been run."""
    parser = argparse.ArgumentParser(prog="python -m tests.evidence", description=__doc__.split("\n")[0])
    parser.add_argument(
        "part", nargs="*", choices=[[], *PARTS], metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    for name in parser.parse_args(arguments).part or PARTS:
        seen = run_part(where(name))
        path = EVIDENCE / "test-full" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(seen), indent=1) + b"\n")
        (EVIDENCE / "test-full.txt").write_text(summary(read_parts()), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}: {line_of(name, seen)}", flush=True)
    return 0 if all(part is not None and part.green for part in read_parts().values()) else 1


def where(name: str) -> list[str]:
    """Return what pytest is told to run for a part."""
    others = [path for paths in PARTS.values() for path in paths]
    return list(PARTS[name]) or ["tests", *(f"--ignore={path}" for path in others)]


def run_part(paths: Sequence[str]) -> Part:
    """Run tests, then those again that were not reached."""
    began, of, at = time.monotonic(), commit(), today()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        record.touch()
        ended = run_pytest(record, [*TOGETHER, *paths])
        missing = unreached(lines_of(record))
        if missing and ended:
            run_pytest(record, [*ALONE, *missing])
        lines = lines_of(record)
    cases = cases_of(lines)
    cases += [Case(name, "not reached") for name in unreached(lines)]
    return part_of(cases, of, at, time.monotonic() - began)


def run_pytest(record: Path, words: Sequence[str]) -> bool:
    """Run pytest with a record of what it sees; return whether nobody interrupted it."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.recording", "-m", "", *words]
    try:
        subprocess.run(command, check=False, cwd=ROOT, env=os.environ | {recording.VARIABLE: str(record)})
    except KeyboardInterrupt:
        return False
    return True


def lines_of(record: Path) -> list[dict]:
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]


def unreached(lines: Iterable[dict]) -> list[str]:
    """Return the tests that were collected, but of which nothing more is known than that they began."""
    collected = [name for line in lines for name in line.get("collected", ())]
    known = {line["test"] for line in lines if line.get("phase") == "teardown"}
    return [name for name in dict.fromkeys(collected) if name not in known]


def cases_of(lines: Iterable[dict]) -> list[Case]:
    """Return the tests of a record that came to their end; one that fails in any phase has failed.

    Of a test that was run twice, since a worker was lost during it, the second run counts.
    """
    cases: dict[str, Case] = {}
    ended = {}
    for line in lines:
        if "test" not in line:
            continue
        if line["phase"] == "setup":
            cases[line["test"]] = Case(line["test"])
        case = cases.setdefault(line["test"], Case(line["test"]))
        case.seconds += line["seconds"]
        if line["outcome"] == "failed":
            case.outcome = "failed"
        elif line["outcome"] == "skipped" and case.outcome == "passed":
            case.outcome, case.reason = "xfail" if line["expected"] else "skip", line["reason"]
        if line["phase"] == "teardown":
            ended[case.name] = case
    return list(ended.values())


def part_of(cases: Sequence[Case], of: str, at: str, seconds: float) -> Part:
    passed: dict[str, tuple[int, float]] = {}
    for case in cases:
        if case.outcome == "passed":
            number, so_far = passed.get(case.file, (0, 0.0))
            passed[case.file] = (number + 1, round(so_far + case.seconds, 1))
    longest = sorted(cases, key=lambda case: case.seconds, reverse=True)[:N_SLOWEST]
    others = [case for case in cases if case.outcome != "passed"]
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {packages}"
    return Part(of, at, round(seconds), machine, dict(sorted(passed.items())), others, longest)


def read_parts() -> dict[str, Part | None]:
    """Return what was seen of every part, or None of one that was not run."""
    paths = {name: EVIDENCE / "test-full" / f"{name}.json" for name in PARTS}
    return {
        name: msgspec.json.decode(path.read_bytes(), type=Part) if path.exists() else None
        for name, path in paths.items()
    }


def line_of(name: str, part: Part | None) -> str:
    if part is None:
        return f"{name}: not run"
    n_skipped = part.count("skip") + part.count("xfail")
    lost = f", {part.count('not reached')} NOT REACHED" if part.count("not reached") else ""
    return (
        f"{name}: commit {part.commit} of {part.date}, {part.n_passed} passed, "
        f"{part.count('failed')} failed, {n_skipped} skipped or failed as expected"
        f"{lost}, in {part.seconds:.0f} s"
    )


def summary(parts: dict[str, Part | None]) -> str:
    """Return the page of all parts."""
    seen = [part for part in parts.values() if part is not None]
    others = [case for part in seen for case in part.others]
    bad = [case for case in others if case.outcome in ("failed", "not reached")]
    longest = sorted((case for part in seen for case in part.slowest), key=lambda case: -case.seconds)
    files = sorted((file, *own) for part in seen for file, own in part.passed.items())
    lines = [
        "python -m tests.evidence, in parts",
        *(line_of(name, part) for name, part in parts.items()),
        *(f"{case.outcome}: {case.name}" for case in bad),
        *dict.fromkeys(part.machine for part in seen),
        "",
        "skipped, or failed as expected (xfail):",
        *(f"  {case.name}: {case.outcome}, {case.reason}" for case in others if case not in bad),
        "",
        f"{'passed':>6} {'seconds':>8}  file",
        *(f"{number:6d} {seconds:8.1f}  {file}" for file, number, seconds in files),
        "",
        f"{'seconds':>15}  the {N_SLOWEST} slowest tests",
        *(f"{case.seconds:15.1f}  {case.name}" for case in longest[:N_SLOWEST]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
