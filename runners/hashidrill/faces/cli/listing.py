"""list: the experiments, kinds, hypotheses, runs and pages that exist. Reads only the first bytes of each verdict, as
there may be thousands of runs, and does not import the engine.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.util import safe_json
from hashidrill.core.util.files import JOURNAL_NAME, VERDICT_NAME
from hashidrill.core.util.folders import PLAYBOOKS, RUNS_DIR, named
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
"""Matches the start of a verdict's file. A verdict is written whole or not at all."""
_BEGINS_IN = 64
KINDS = {
    "experiments": "experiment",
    "faults": "fault",
    "loads": "load",
    "probes": "probe",
    "hypotheses": "hypothesis",
    "runs": "run",
    "gamedays": "game day",
    "runbooks": "runbook",
    "scenarios": "scenario",
}
"""The kinds that can be listed, each with its singular."""
_GAME_DAY = re.compile(rb"^kind:[ \t]*[\"']?GameDay\b", re.MULTILINE)
_HEADING = re.compile(r"^# (.*)$", re.MULTILINE)
_SCENARIO = re.compile(rb"^kind:[ \t]*[\"']?Scenario\b", re.MULTILINE)
_RUNBOOK = re.compile(rb"\A---\n(?:.*\n)*?runbook:", re.MULTILINE)


def register(app: typer.Typer) -> None:
    calls = ("list", "list --tag gate", "list faults", "list runs --json")
    app.command("list", epilog=examples(*calls))(list_)


def list_(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")] = "experiments",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only experiments with this tag. Repeatable.")
    ] = None,
    as_json: Json = False,
    hypotheses: Hypotheses = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """List experiments, faults, loads, probes, hypotheses, runs and more.

    One per line. Reads only names and titles: `hashidrill validate` checks whether a file is valid. Your own hypotheses
    are listed from their source text: without --hypotheses, their Python does not run.
    """
    if kind not in KINDS:
        from hashidrill.core.protocols.registry import near  # noqa: PLC0415 - few kinds are wrong

        raise UsageError(f"cannot list {kind!r}: {near(kind, KINDS)}")
    if tag and kind != "experiments":
        raise UsageError(f"--tag selects experiments; {kind} have none")
    if kind == "runs":
        _list_runs(runs_dir, as_json=as_json)
        return
    rows = rows_of(kind, hypotheses)
    if tag:
        known = {each for row in rows for each in row["tags"]}
        if unknown := [each for each in tag if each not in known]:
            raise UsageError(f"no experiment has the tag {unknown[0]!r}; there are: {', '.join(sorted(known))}")
        rows = [row for row in rows if {*tag} <= {*row["tags"]}]
    if as_json:
        print_json(rows)
    else:
        print_table((), [list(map(str, row.values()))[:2] for row in rows], clip=True)


def rows_of(kind: str, hypotheses: Path | None = None) -> list[dict[str, Any]]:
    """The rows that `hashidrill list KIND` prints, except for runs: one mapping for each line, the name first, then the
    description.
    """
    if kind == "hypotheses":
        from hashidrill.faces.cli.library import known_hypotheses  # noqa: PLC0415 - the other lists need no pydantic

        found = sorted(known_hypotheses(hypotheses).items())
        return [{"name": name, "what": one.doc.strip().partition("\n")[0]} for name, one in found]
    if kind in {"faults", "loads", "probes"}:
        from hashidrill.core.protocols import registry  # noqa: PLC0415 - as above

        return [{"kind": name, "what": what} for name, what in registry.summaries(f"hashidrill.{kind}").items()]
    rows = [_titled(name, path) for name, path in files_of(kind).items()]
    return rows if kind != "experiments" else [row if "tags" in row else {**row, "tags": []} for row in rows]


def files_of(kind: str) -> dict[str, Path]:
    """Experiments, scenarios, game days or runbooks by their names. Raises OSError, and KeyError for another kind."""
    from hashidrill.core.experiment.library import SUFFIXES, experiments  # noqa: PLC0415 - as above

    if kind == "experiments":
        return experiments()
    folder, suffixes, mark = {
        "scenarios": (f"{PLAYBOOKS}/training", SUFFIXES, _SCENARIO),
        "gamedays": (PLAYBOOKS, SUFFIXES, _GAME_DAY),
        "runbooks": (PLAYBOOKS, (".md",), _RUNBOOK),
    }[kind]
    return {name: path for name, path in named(folder, suffixes).items() if mark.search(path.read_bytes())}


def _titled(name: str, path: Path) -> dict[str, Any]:
    from hashidrill.core.experiment.library import metadata_of  # noqa: PLC0415 - as above

    if path.suffix == ".md":
        heading = _HEADING.search(path.read_text("utf-8", "replace"))
        return {"name": name, "title": heading[1] if heading else "", "path": str(path)}
    try:
        said = metadata_of(path)
    except HashidrillError:
        return {"name": name, "title": "(has an error: see `hashidrill validate`)", "path": str(path)}
    more = {key: said[key] for key in ("tags", "level") if key in said}
    return {"name": name, "title": said["title"], **more, "path": str(path)}


def _list_runs(runs_dir: Path, *, as_json: bool) -> None:
    paths = recordings(runs_dir)
    if as_json:
        from hashidrill.core.recording.journal import outcome_of  # noqa: PLC0415 - only JSON includes the outcome

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
        # for thousands of files, reading only the first bytes is quick
        file = os.open(f"{path}/{VERDICT_NAME}", os.O_RDONLY)
        try:
            first = _FIRST.match(os.read(file, _BEGINS_IN))
        finally:
            os.close(file)
        return first[1].decode() if first else Verdict(safe_json.parse((path / VERDICT_NAME).read_bytes())["verdict"])
    except FileNotFoundError:
        return "no verdict"
    except (OSError, ValueError, KeyError, TypeError):
        return "not readable"  # the other runs are still listed
