"""show, schema: the documentation of a part of the library, and the schema of each kind of file."""

import ast
import contextlib
import inspect
import itertools
import re
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from hashidrill.core import hypothesis
from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import complete, find_experiment, read_experiment
from hashidrill.core.experiment.loader import resolve, variant_of
from hashidrill.core.experiment.schema import schema_text
from hashidrill.core.hypothesis.files import outlines, unrun
from hashidrill.core.protocols import registry
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.core.util.folders import RUNS_DIR, say_own_wins
from hashidrill.faces.cli.common import (
    Hypotheses,
    Json,
    RunsDir,
    examples,
    find_recording,
    folded,
    is_comparison,
    print_json,
    print_text,
)

_LIST = re.compile(r"^(?:[-*] |    )", re.MULTILINE)
"""Lines of a docstring that keep their line breaks."""
_SCHEMAS = ("experiment", "gameday", "attach", "scenario", "campaign")


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("show raft/frozen-leader", "show disk.latency", "show last"))(show)
    app.command(epilog=examples("schema > experiments/schema.json", "schema scenario > scenario.schema.json"))(schema)


def known_hypotheses(named: Path | None) -> dict[str, hypothesis.Hypothesis]:
    """Imports the shipped hypotheses and the named folder's; without a folder, only parses your own nearby files."""
    own = {} if named is not None else outlines()
    shipped = hypothesis.all_hypotheses(named=named) | hypothesis.all_comparisons(named=named)
    for name in own.keys() & shipped.keys():
        say_own_wins(f"{own[name].path}: {name}", Path(own[name].path), Path(shipped[name].path))
    return shipped | own


def show(
    name: Annotated[
        str, typer.Argument(help="An experiment, a fault, a load, a probe, a hypothesis, a run, or `last`.")
    ],
    *,
    hypotheses: Hypotheses = None,
    runs_dir: RunsDir = RUNS_DIR,
    whole: Annotated[
        bool, typer.Option("--complete", help="Show an experiment's file merged with all that it extends.")
    ] = False,
    variant: Annotated[str | None, typer.Option(metavar="NAME", help="One variant of an experiment, complete.")] = None,
    as_json: Json = False,
) -> None:
    """Show an experiment, fault, load, probe, hypothesis or run.

    Prints an experiment's file, the parameters of a kind, or the summary of a run. Runs no Python of the working
    directory. With --hypotheses, also shows the parameters of your own hypotheses, and judges a run with the hypotheses
    that the run itself used.
    """
    if (told := _of_kind(name, hypotheses)) is not None:
        print_json(told) if as_json else print_text(_page(told))
    elif (
        name == "last"
        or (runs_dir / name).is_dir()
        or (Path(name) / JOURNAL_NAME).is_file()
        or is_comparison(Path(name))
    ):
        _show_run(find_recording(name, runs_dir, comparisons=True), hypotheses or False, as_json=as_json)
    else:
        path = _find_shown(name, hypotheses)
        if variant is not None:
            with hypothesis.looking_up(unrun(path)):
                text = variant_of(resolve(path), variant).text
        else:
            text = complete(read_experiment(path)) if whole or as_json else path.read_text()
        print_json({"path": str(path), "experiment": Document(str(path), text).data}) if as_json else print_text(text)


def _of_kind(name: str, hypotheses: Path | None) -> dict[str, Any] | None:
    """The documentation of a fault, a load, a probe or a hypothesis; None if the name is unknown."""
    if name in registry.fault_kinds():
        fault = registry.fault(name)
        observer = {"through": fault.observer.through, "shares": fault.observer.shares} if fault.observer else None
        return {"kind": name, "what": inspect.cleandoc(fault.__doc__ or ""), "observer": observer} | _told(fault.Params)
    for kinds, found in ((registry.load_kinds, registry.load), (registry.probe_kinds, registry.probe)):
        if name in kinds():
            return {"kind": name, "what": inspect.cleandoc(found(name).__doc__ or "")} | _told(found(name).Params)
    if not name.isidentifier() or (one := known_hypotheses(hypotheses).get(name)) is None:
        return None
    told = {"kind": name, "what": inspect.cleandoc(one.doc)}
    if hypotheses is None and name in outlines():
        read = f"{one.path}:{one.line} was read but not run: --hypotheses {one.path.parent} shows the parameters"
        return told | {"note": read}
    return told | _told(one.Params, name)


def _told(params: Any, of: str = "") -> dict[str, Any]:
    described = params.model_json_schema(by_alias=True)
    said = meanings(params)
    return {
        "parameters": [
            {
                "name": name,
                "required": name in described.get("required", []),
                "default": about.get("default"),
                "choices": about.get("enum", []),
                "examples": about.get("examples", []),
                "meaning": said[name] or OWN.get(f"{of}.{name}") or OWN.get(name) or COMMON.get(name, ""),
            }
            for name, about in described.get("properties", {}).items()
        ]
    }


def _page(told: dict[str, Any]) -> str:
    """The page as text. On a terminal, lines break between words to fit its width."""
    parts = [told["kind"], *told["what"].split("\n\n")]
    if observer := told.get("observer"):
        shares = observer["shares"] or "nothing"
        parts.append(f"Observed through {observer['through']}.\nShared with the injector: {shares}.")
    parts += [told["note"]] if "note" in told else []
    text = "\n\n".join(part if _LIST.search(part) else folded(part) for part in parts)
    rows = told.get("parameters", [])
    wide = max([12, *(len(row["name"]) for row in rows)]) + 2
    for number, row in enumerate(rows):
        default = "required" if row["required"] else f"default {row['default']}"
        choices = f"one of {', '.join(map(str, row['choices']))}" if row["choices"] else ""
        like = f"like {', '.join(map(str, row['examples']))}" if row["examples"] else ""
        first = "; ".join(part for part in (default, choices, like) if part)
        indent = " " * (wide + 1)
        text += "\n" if number else "\n\n"
        text += folded(f"  {row['name']:<{wide - 1}}{first}", indent)
        text += f"\n{folded(indent + row['meaning'], indent)}" if row["meaning"] else ""
    return text + ("\n" if rows or "note" in told else "\n\nNo parameters.\n")


def _find_shown(name: str, hypotheses: Path | None) -> Path:
    """An experiment's file. Raises UnknownNameError, which also suggests faults, loads and hypotheses."""
    try:
        return find_experiment(name)
    except UnknownNameError as error:
        kinds = [*registry.fault_kinds(), *registry.load_kinds(), *known_hypotheses(hypotheses)]
        close = registry.near(name, kinds)
        raise error if close.startswith("there are") else UnknownNameError(f"there is no {name!r}: {close}") from None


def _show_run(path: Path, resolved: Path | bool, *, as_json: bool) -> None:
    from hashidrill.core.judging.judge import judge  # noqa: PLC0415 - only runs need it
    from hashidrill.core.recording.reader import Recording  # noqa: PLC0415 - as above
    from hashidrill.core.recording.signed_runs import audit_told  # noqa: PLC0415 - as above
    from hashidrill.gamedays.runbooks.judge import is_rehearsal, rehearsal_verdict  # noqa: PLC0415 - as above
    from hashidrill.reports.markdown import markdown_summary  # noqa: PLC0415 - as above

    if is_comparison(path):
        from hashidrill.core.compare.judged import judge_comparison, read_comparison  # noqa: PLC0415 - as above
        from hashidrill.reports.compared import markdown  # noqa: PLC0415 - as above

        compared = judge_comparison(read_comparison(path), recorded_hypotheses=resolved)
        print_json(compared.to_data()) if as_json else print_text(markdown(compared, path) + "\n")
        return
    recording = Recording(path)
    report = path / "report.html"
    verdict = (
        rehearsal_verdict(recording) if is_rehearsal(recording) else judge(recording, recorded_hypotheses=resolved)
    )
    if as_json:
        from hashidrill.faces.cli.runs import run_data  # noqa: PLC0415 - as above

        print_json(run_data(recording, verdict, report if report.exists() else None, verdict.verdict.exit_code))
        return
    print_text(markdown_summary(recording, verdict, report=report if report.exists() else None) + "\n")
    if told := audit_told(path, str(recording.run.get("id", path.name))):
        print_text(f"\n{told}\n")


COMMON = {
    "load": "the load that is judged",
    "client": "the client: its operations, and its attempts as `CLIENT.attempts`",
    "fault": "only this fault: its kind, or the name of its step",
    "within": "how long it may take",
    "p50_below": "limit of the p50; a failed operation is infinitely slow. 300 ms: Roblox's normal p50 of Consul KV",
    "window": "width of the sliding window",
    "since": "`start`: counts from the moment the first fault was put in force; `end`: from the end of the last one",
    "errors_below": "limit for the share of errors from then on",
    "over": "length of the two periods that are judged, before the step and at its end; the step must last longer",
    "snapshot": "the name of the snapshot that was restored",
    "rolled_back_at_least": "with fewer writes rolled back, the restore proves nothing, and the result is INVALID",
    "wrong_at_least": "how many the fault must make wrong; with fewer, the result is INVALID",
    "p99_below": "limit of the p99",
    "at_most": "the most that is allowed: attempts per operation, a share, or writes rolled back",
    "retries": "the most retries, after the first attempt",
    "deadline": "how long one operation may take",
    "clients": "number of operations needed",
    "capacity": "attempts per second that the upstream can serve",
    "candidate": "the variant that is judged",
    "baseline": "the variant that the candidate is compared with",
    "after": "how long after the step was put in force it is judged, instead of at the step's end",
}
"""Parameters that many hypotheses have."""
OWN = {
    "available_during.success": "of the operations due during the fault, the share that is acknowledged",
    "present.success": "of the operations with a failed attempt, the share that succeeds in the end",
    "black_hole_is_avoided.share_below": "limit for the broken node's share of all placements",
    "black_hole_is_avoided.placed_at_least": "with fewer allocations placed in all, the result is INVALID",
    "black_hole_is_avoided.mitigation": "a later step, by name or kind: only placements while both are in force count",
    "cascade_within.spared": "loads that must never be in breach",
    "cascade_within.waits": "loads that wait for something: an operation that takes `wait_below` or more is a breach",
    "cascade_within.wait_below": "limit for one operation of `waits`",
    "checks_keep_interval.at_least": "share of the health checks that arrive in time",
    "green_but_sick.at_least": "how long users suffer without a break while all checks are green",
    "vault_green_but_sick.at_least": "how long users suffer without a break while all checks are green",
    "replicas_stay.at_least": "how many replicas run at every moment",
    "profile_names.function": "regular expression that finds the function's name, like `stream\\.`",
    "profile_names.kind": "which kind of profile is judged",
    "profile_names.host": "only profiles of this host, or of the `leader`",
    "profile_names.share": "the least share of the profile that stacks with the function must have",
    "profile_names.times": "the least that the function must weigh, in multiples of the steady state's",
    "condition": "a signal, a comparison and a limit, like `page.ok == 1`",
    "gap": "how long looks may fail or be missing; without it, none may fail",
    "during": "the time that is judged: the method, the recovery, or the whole run",
    "cold_start_within.limit": "how long it may take until the last replica runs",
    "contrast.of": "the hypothesis that holds for `good` and breaks for `bad`",
    "contrast.good": "a client or load, or the parameters, for which it must hold",
    "contrast.bad": "a client or load, or the parameters, for which it must break",
    "contrast.params": "parameters of `of` that `good` and `bad` share",
    "does_not_help.by": "the measure did help if it makes the p50 faster by this share or more",
    "renewals_before_claims.by": "points by which the renewals' success rate must exceed the claims'",
    "better_than.by": "the least difference that counts",
    "no_worse_than.by": "the difference that counts; each figure has its own default",
    "gate_opens.require": "conditions that must all hold before the next step",
    "alert": "the name of an alert, as its rule names it",
    "alert_fires.before": "when users are hurt: the alert has to fire before this condition holds",
    "alert_fires.clears_within": "how long after the last fault's end the alert may fire; then it must stay quiet",
    "probe": "the name of the probe, from the experiment's `probes`, whose looks are judged",
    "metrics_exist.probes": "the names of the probes, from the experiment's `probes`, whose looks are judged",
    "slo_met.budget": "share of the error budget that the run may burn",
    "telemetry_lag_below.lag": "how old the newest sample of a series may be",
    "gate_opens.before": "the next step: the gate must open before that step's agents are started again",
    "jitter.reference": "a client without jitter, with whose gaps this client's gaps are compared",
    "grace": "a state that lasts no longer than this counts as one late answer of the probe",
    "linearizable.configurations": "after this many search steps a key is undecided, and the result is INVALID",
    "load_is_shed.refused": "of the unacknowledged operations, the share that gets 429 or 503",
    "no_alloc_lost.once": "no task may have started twice",
    "no_write_lost_but_rolled_back.leave_out": "prefixes of keys that are not compared",
    "nodes_reappear.away_at_least": "with fewer nodes that went away, the result is INVALID",
    "nodes_reappear.duplicates_at_most": "how many names may be registered twice at the end",
    "progress_stays.finished": "operations finished per second during the fault, as a share of those before it",
    "raft_commit_below.below": "limit for a sample of raft.commitTime",
    "raft_commit_below.percent": "share of the samples that are below the limit",
    "goodput": "share of the goodput before the fault that must be reached again",
    "recovers_without_restart.served_within": "an operation that takes longer than this does not count as goodput",
    "registrations_stay_wrong.for_at_least": "with less time after the fault, the result is INVALID",
    "replicas_on_distinct_hosts.most": "how many replicas of a job one host may run",
    "replicas_return.lost_at_least": "with fewer replicas that went away, the result is INVALID",
    "returns_in_steps.to": "the level that the load must reach again",
    "returns_in_steps.step": "the largest step up",
    "starved_while_idle.host": "the host whose agent serves the load",
    "write_amplification_below.host": "the host that is measured (default: the leader)",
    "starved_while_idle.p50_above": "while the load is starved, its p50 is above this",
    "starved_while_idle.cpu_below": "the agent uses fewer cores than this in nine of ten samples",
    "streaming_no_worse_than_long_poll.steps_of": "the load whose profile has the steps",
    "streaming_no_worse_than_long_poll.settle": "time after the start of a step that is not judged",
    "streaming_no_worse_than_long_poll.churn": "loads whose changes per second the text reports",
    "streaming_no_worse_than_long_poll.p50_at_most": "limit of streaming's p50 / long polling's, at levels both kept",
    "streaming_no_worse_than_long_poll.find_knee": "a run in which neither arm broke is INVALID",
    "survives_leader_changes.changes": "how often leadership changes; with fewer, the result is INVALID",
    "survives_leader_changes.served_within": "operations that take longer count as not acknowledged",
    "telemetry_survives.gap_below": "the longest time without metrics of a server",
    "telemetry_survives.targets_at_least": "how many servers must be read (default: all of them)",
    "watchers_converge.writes": "the load whose last change counts",
    "write_amplification_below.times": "limit of the bytes that a commit writes, in multiples of the steady state's",
    "figure": "what is compared, like `kv-writes.latency.p50`",
    "no_worse_than.or_below": "a candidate under this in every round is no worse, whatever the baseline",
}
"""Parameters that few hypotheses have. With a hypothesis's name: for that hypothesis only."""


def meanings(model: Any) -> dict[str, str]:
    """The meaning of each parameter, by its YAML name: its description, or the docstring below it in the class."""
    below: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        with contextlib.suppress(OSError, TypeError):  # no source: a model made from a function's signature
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
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(_SCHEMAS)}.")] = "experiment",
    hypotheses: Hypotheses = None,
) -> None:
    """Print the JSON Schema of experiments and other files.

    Editors and CI check files with it. With --hypotheses, the schema of experiments includes your own hypotheses.
    """
    if kind not in _SCHEMAS:
        raise UsageError(f"there is no schema of {kind!r}: {registry.near(kind, _SCHEMAS)}")
    if kind == "experiment":
        print_text(schema_text(hypotheses))
        return
    # the imports below are for one schema each
    if kind == "attach":
        from hashidrill.staging.attach import target as of_attach  # noqa: PLC0415 - as above

        print_text(of_attach.schema_text())
        return
    if kind == "gameday":
        from hashidrill.gamedays.gameday import plan as of_days  # noqa: PLC0415 - as above

        print_text(of_days.schema_text())
        return
    from hashidrill.gamedays.training import schema as of_training  # noqa: PLC0415 - as above

    print_text(of_training.schema_text(kind))
