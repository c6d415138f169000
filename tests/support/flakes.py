"""Repeats tests and reports which of them change their verdict.

    uv run python tests/support/flakes.py --repeats 10 tests/live -m "live or nightly"

Prints a table of every test that did not end the same way each time, and writes all of them to `--out` as JSON:
`{"repeats": N, "tests": {TEST: {"runs", "passed", "failed", "skipped", "missing", "flips", "seconds"}}}`.
A flip is a run that ended otherwise than the run before it; `seconds` is the median. Exit code 0 when nothing flipped
and all passed, 1 when something flipped, 2 when something failed each time, or pytest itself could not run.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

_NO_VERDICTS = {2, 3, 4, 5}
"""Exit codes of pytest: interrupted, internal error, bad usage, no tests."""


def outcomes_of(report: Path) -> dict[str, tuple[str, float]]:
    """{test: (passed, failed or skipped; seconds)} of one JUnit file."""
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in {"failure", "error"}:
                outcome = "failed"
            elif child.tag == "skipped" and outcome == "passed":
                outcome = "skipped"
        name = f"{case.get('classname')}::{case.get('name')}"
        # a test that fails in its call and again in its tear-down stands there twice
        worst = "failed" if found.get(name, ("", 0.0))[0] == "failed" else outcome
        found[name] = (worst, float(case.get("time") or 0))
    return found


def summary(runs: list[dict[str, tuple[str, float]]]) -> dict[str, dict[str, float]]:
    """Per test: how often it ended how, and how often otherwise than the time before. A test that is absent from a run
    (it was not collected) counts as `missing` there, which is a way to end as well."""
    sequences: defaultdict[str, list[str]] = defaultdict(list)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for name in {name for run in runs for name in run}:
        for run in runs:
            outcome, took = run.get(name, ("missing", 0.0))
            sequences[name].append(outcome)
            seconds[name].append(took)
    return {
        name: {
            "runs": len(ends),
            **{each: ends.count(each) for each in ("passed", "failed", "skipped", "missing")},
            "flips": sum(one != other for one, other in pairwise(ends)),
            "seconds": round(statistics.median(seconds[name]), 2),
        }
        for name, ends in sorted(sequences.items())
    }


def exit_code(tests: dict[str, dict[str, float]]) -> int:
    if any(one["flips"] for one in tests.values()):
        return 1
    return 2 if any(one["failed"] for one in tests.values()) or not tests else 0


def table(tests: dict[str, dict[str, float]]) -> str:
    """Those that flipped or failed, the worst first."""
    bad = [(one["flips"], name, one) for name, one in tests.items() if one["flips"] or one["failed"]]
    lines = [
        f"{one['flips']:>5} {one['passed']:>6} {one['failed']:>6} {one['skipped']:>7}  {name}"
        for _, name, one in sorted(bad, key=lambda each: (-each[0], each[1]))
    ]
    return "\n".join(["flips passed failed skipped  test", *lines]) if lines else "no test changed its verdict"


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeats tests and reports which of them change their verdict.")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("flakes.json"))
    asked, of_pytest = parser.parse_known_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="hdt-flakes-") as folder:
        for number in range(asked.repeats):
            report = Path(folder) / f"{number}.xml"
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *of_pytest]
            code = subprocess.run(command, check=False).returncode
            if code in _NO_VERDICTS:
                print(f"pytest ended with exit code {code}: {' '.join(command)}", file=sys.stderr)
                return 2
            runs.append(outcomes_of(report))
            print(f"repeat {number + 1} of {asked.repeats} is done", flush=True)
    tests = summary(runs)
    asked.out.write_text(json.dumps({"repeats": asked.repeats, "tests": tests}, indent=2) + "\n")
    flips = sum(int(one["flips"]) for one in tests.values())
    print(f"{len(tests)} tests, {asked.repeats} runs each, {flips} verdict flips\n{table(tests)}")
    return exit_code(tests)


if __name__ == "__main__":
    sys.exit(main())
