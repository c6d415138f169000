"""list: what there is. Of thousands of runs it reads no more than it prints, and imports nothing that runs any."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.util import foreign
from hashidrill.core.util.files import JOURNAL_NAME, VERDICT_NAME
from hashidrill.core.util.folders import RUNS_DIR
from hashidrill.faces.cli.common import (
    Hypotheses,
    Json,
    RunsDir,
    examples,
    print_json,
    print_table,
    print_text,
    recordings,
)

_FIRST = re.compile(rb'\{\s*"verdict": "(PASS|FAIL|INVALID)",')
"""As a verdict is written: all of it, or none."""
_BEGINS_IN = 64
KINDS = ("experiments", "faults", "loads", "hypotheses", "runs")


def register(app: typer.Typer) -> None:
    app.command("list", epilog=examples("list", "list faults", "list runs --json"))(list_)


def list_(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help=f"One of {', '.join(KINDS)}.")] = "experiments",
    as_json: Json = False,
    hypotheses: Hypotheses = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """List experiments, faults, loads, hypotheses or runs, one per line.

    Your own hypotheses are listed by their text: without --hypotheses, none of them runs.
    """
    if kind == "runs":
        _list_runs(runs_dir, as_json=as_json)
        return
    from hashidrill.core.protocols import registry  # noqa: PLC0415 - `list runs` needs neither this nor what follows
    from hashidrill.faces.cli.library import rows_of  # noqa: PLC0415 - as above

    if kind not in KINDS:
        raise UsageError(f"there is no list of {kind!r}: {registry.near(kind, KINDS)}")
    rows = rows_of(kind, hypotheses)
    if as_json:
        print_json(rows)
        return
    if rows:
        print_table((), [list(map(str, row.values()))[:2] for row in rows])


def _list_runs(runs_dir: Path, *, as_json: bool) -> None:
    paths = recordings(runs_dir)
    if as_json:
        from hashidrill.core.recording.journal import outcome_of  # noqa: PLC0415 - a line of text says no outcome

        print_json(
            [
                {
                    "run": path.name,
                    "verdict": _verdict(path),
                    "outcome": outcome_of(path / JOURNAL_NAME),
                    "path": str(path),
                }
                for path in paths
            ]
        )
    elif paths:
        longest = max(len(path.name) for path in paths)
        print_text("".join(f"{path.name:<{longest}} {_verdict(path)}\n" for path in paths))
    else:
        print_text(f"no recordings in {runs_dir} yet; make one with `hashidrill run raft/frozen-leader`\n")


def _verdict(path: Path) -> str:
    try:
        file = os.open(f"{path}/{VERDICT_NAME}", os.O_RDONLY)  # of thousands, its first bytes alone are quick
        try:
            first = _FIRST.match(os.read(file, _BEGINS_IN))
        finally:
            os.close(file)
        return first[1].decode() if first else Verdict(foreign.parse((path / VERDICT_NAME).read_bytes())["verdict"])
    except FileNotFoundError:
        return "no verdict"
    except (OSError, ValueError, KeyError, TypeError):
        return "not readable"  # one of many
