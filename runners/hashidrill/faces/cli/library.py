"""show, schema: what a part of the library says, and how a file of each kind is written."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core import hypothesis
from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.library import complete, find_experiment, read_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.schema import schema_text
from hashidrill.core.experiment.variants import variant_of
from hashidrill.core.hypothesis.files import outlines, unrun
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.signed_runs import audit_told
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.folders import say_own_wins
from hashidrill.faces.cli.common import (
    Hypotheses,
    RunsDir,
    console,
    examples,
    find_recording,
    is_comparison,
    print_text,
)
from hashidrill.lab.runs.launch import RUNS_DIR
from hashidrill.reports.live import display as live
from hashidrill.reports.markdown import markdown_summary

_SCHEMAS = ("experiment", "gameday", "attach", "scenario", "campaign")


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("show raft/frozen-leader", "show disk.latency", "show last"))(show)
    app.command(epilog=examples("schema > experiments/schema.json", "schema scenario > scenario.schema.json"))(schema)


def known_hypotheses(named: Path | None) -> dict[str, hypothesis.Hypothesis]:
    """Those that ship and those of the named folder; of one's own nearby, what their text says."""
    own = {} if named is not None else outlines()
    shipped = hypothesis.all_hypotheses(named=named) | hypothesis.all_comparisons(named=named)
    for name in own.keys() & shipped.keys():
        say_own_wins(f"{own[name].path}: {name}", Path(own[name].path), Path(shipped[name].path))
    return shipped | own


def show(
    name: Annotated[str, typer.Argument(help="An experiment, a fault, a load, a hypothesis, a run, or `last`.")],
    hypotheses: Hypotheses = None,
    runs_dir: RunsDir = RUNS_DIR,
    whole: Annotated[
        bool, typer.Option("--complete", help="An experiment's file with all that it extends merged in.")
    ] = False,
    variant: Annotated[str | None, typer.Option(metavar="NAME", help="One variant of an experiment, complete.")] = None,
) -> None:
    """Show an experiment, a fault, a load, a hypothesis or a run.

    Prints an experiment's file, the parameters of a kind, or the summary of a run. Runs no Python of the working
    directory. With --hypotheses, shows the parameters of your own hypotheses too, and judges a run by those that it
    resolved.
    """
    faults, loads = registry.faults(), registry.loads()
    if name in faults:
        _show_kind(name, faults[name].__doc__, faults[name].Params, faults[name].observer)
    elif name in loads:
        _show_kind(name, loads[name].__doc__, loads[name].Params)
    elif name in (known := known_hypotheses(hypotheses)):
        if hypotheses is None and name in outlines():
            _show_outline(known[name])
        else:
            _show_kind(name, known[name].doc, known[name].Params)
    elif (
        name == "last"
        or (runs_dir / name).is_dir()
        or (Path(name) / JOURNAL_NAME).is_file()
        or is_comparison(Path(name))
    ):
        _show_run(find_recording(name, runs_dir, comparisons=True), hypotheses or False)
    else:
        path = _find_shown(name, [*faults, *loads, *known])
        if variant is not None:
            with hypothesis.looking_up(unrun(path)):
                print_text(variant_of(resolve(path), variant).text)
            return
        print_text(complete(read_experiment(path)) if whole else path.read_text())


def _find_shown(name: str, kinds: list[str]) -> Path:
    """An experiment's file. Raises UnknownNameError, which also suggests faults, loads and hypotheses."""
    try:
        return find_experiment(name)
    except UnknownNameError as error:
        close = registry.near(name, kinds)
        raise error if close.startswith("there are") else UnknownNameError(f"there is no {name!r}: {close}") from None


def _show_outline(one: hypothesis.Hypothesis) -> None:
    _show_text(one.name, one.doc)
    live.say(console(), "")
    live.say(console(), f"{one.path}:{one.line} was read, and not run: --hypotheses {one.path.parent} shows parameters")


def _show_run(path: Path, resolved: Path | bool) -> None:
    from hashidrill.core.judging.judge import judge  # noqa: PLC0415 - only runs need it
    from hashidrill.gamedays.runbooks.judge import is_rehearsal, rehearsal_verdict  # noqa: PLC0415 - as above

    if is_comparison(path):
        from hashidrill.core.compare.comparison_file import read_comparison  # noqa: PLC0415 - as above
        from hashidrill.core.compare.judged import judge_comparison  # noqa: PLC0415 - as above
        from hashidrill.reports.compared import markdown  # noqa: PLC0415 - as above

        print_text(markdown(judge_comparison(read_comparison(path), recorded_hypotheses=resolved), path) + "\n")
        return
    recording = Recording(path)
    report = path / "report.html"
    verdict = (
        rehearsal_verdict(recording) if is_rehearsal(recording) else judge(recording, recorded_hypotheses=resolved)
    )
    print_text(markdown_summary(recording, verdict, report=report if report.exists() else None) + "\n")
    if told := audit_told(path, str(recording.run.get("id", path.name))):
        print_text(f"\n{told}\n")


def _show_text(name: str, doc: str | None) -> None:
    say = console()
    live.say(say, name, "bold")
    live.say(say, "")
    for line in (doc or "").strip().splitlines():
        live.say(say, line.removeprefix("    "))


def _show_kind(name: str, doc: str | None, params: Any, observer: Observer | None = None) -> None:
    say = console()
    _show_text(name, doc)
    if observer is not None:
        live.say(say, "")
        live.say(say, f"Observed through {observer.through}.")
        live.say(say, f"Shared with the injector: {observer.shares or 'nothing'}.")
    fields = params.model_json_schema(by_alias=True).get("properties", {})
    live.say(say, "")
    if not fields:
        live.say(say, "No parameters.")
    required = set(params.model_json_schema(by_alias=True).get("required", []))
    documented = meanings(params)
    for field, about in fields.items():
        default = "required" if field in required else f"default {about.get('default')}"
        examples = f"like {', '.join(str(value) for value in about['examples'])}" if about.get("examples") else ""
        choices = f"one of {', '.join(map(str, about['enum']))}" if about.get("enum") else ""
        live.say(say, f"  {field:<12} {'; '.join(part for part in (default, choices, examples) if part)}")
        if meaning := documented[field] or COMMON.get(field, ""):
            live.say(say, f"  {'':<12} {meaning}")


COMMON = {
    "load": "the load that is judged",
    "client": "the client: its operations, and its attempts as `CLIENT.attempts`",
    "fault": "only this fault: its kind, or the name of its step",
    "within": "how long it may take",
    "p50_below": "limit for a fast operation",
    "window": "width of the sliding window",
    "since": "`start`: counts from the moment the first fault was put in force; `end`: from the end of the last one",
    "errors_below": "share of errors from then on",
    "over": "how much is judged, before the step and at its end; the step has to last longer than this",
    "snapshot": "the name of the snapshot that was restored",
    "rolled_back_at_least": "with fewer rolled back, the restore shows nothing, and the result is INVALID",
    "wrong_at_least": "how many the fault must make wrong, for this to say anything",
    "p99_below": "limit of the p99",
    "at_most": "the most that is allowed: attempts per operation, a share, or writes rolled back",
    "retries": "the most retries, after the first attempt",
    "deadline": "what one operation may take",
    "clients": "number of operations needed",
    "capacity": "attempts per second that the upstream can serve",
    "candidate": "the variant that is judged",
    "baseline": "the variant that it is compared with",
    "after": "judges this long after the step was put in force, not at its end",
}
"""Parameters that many hypotheses have. The text of a hypothesis says what its others mean."""


def meanings(model: Any) -> dict[str, str]:
    """What each parameter means, by its name in YAML: its description, or the text below it in its class."""
    below: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        with contextlib.suppress(OSError, TypeError):  # no source: a model that was made of a function's signature
            [defined] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            for field, text in itertools.pairwise(getattr(defined, "body", ())):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                        below[name] = " ".join(said.split()).rstrip(".")
    return {
        about.alias or name: (about.description or below.get(name, "")) for name, about in model.model_fields.items()
    }


def parameters(model: Any) -> list[tuple[str, str, str]]:
    """Name in YAML, default as YAML writes it (or `required`), and meaning of each parameter."""
    described = model.model_json_schema(by_alias=True)
    required, said = described.get("required", []), meanings(model)
    rows = []
    for name, about in described.get("properties", {}).items():
        default = "none" if about.get("default") is None else str(about["default"])
        rows.append((name, "required" if name in required else default, said[name]))
    return rows


def schema(
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help=f"One of {', '.join(_SCHEMAS)}.")] = "experiment",
    hypotheses: Hypotheses = None,
) -> None:
    """Print the JSON Schema of experiments and other files.

    It has schemas of game days, existing datacenters, training scenarios and campaigns. Editors and CI check files with
    it. It knows your own hypotheses with --hypotheses, in the schema of experiments.
    """
    if kind not in _SCHEMAS:
        raise UsageError(f"there is no schema of {kind!r}: {registry.near(kind, _SCHEMAS)}")
    if kind == "experiment":
        print_text(schema_text(hypotheses))
        return
    # the other lists and schemas need none of them
    if kind == "attach":
        from hashidrill.staging.attach import target as of_attach  # noqa: PLC0415 - as above

        print_text(of_attach.schema_text())
        return
    if kind == "gameday":
        from hashidrill.gamedays.gameday import model as of_days  # noqa: PLC0415 - as above

        print_text(of_days.schema_text())
        return
    from hashidrill.gamedays.training import schema as of_training  # noqa: PLC0415 - as above

    print_text(of_training.schema_text(kind))
