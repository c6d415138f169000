"""demo, run, check: make recordings and judge them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from hashidrill.core.compare.judged import read_comparison
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import experiment_name, find_experiment, own_experiments
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.hypothesis.files import folder_in
from hashidrill.core.judging.verdict import RunVerdict, Verdict, merge
from hashidrill.core.protocols.events import Audience, Bus
from hashidrill.core.recording.provenance import HYPOTHESES_NAME
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.interrupts import finish, when_hung_up
from hashidrill.faces.cli.attached import AttachTo, allow_all, for_run, resolve_all, stands
from hashidrill.faces.cli.common import (
    Install,
    Json,
    Plain,
    RunsDir,
    console,
    examples,
    find_recording,
    is_comparison,
    on_interrupt,
    only_json,
    print_json,
    print_line,
    print_text,
)
from hashidrill.faces.cli.remembering import Memory, Notify, cut_short
from hashidrill.faces.cli.serving import NOBODY, Metrics, Onlookers, Port, Serve, elsewhere, war_room
from hashidrill.gamedays.runbooks.judge import is_rehearsal, rehearsal_verdict
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import RUNS_DIR, prepare, run_experiment
from hashidrill.lab.runs.rounds import expected_s, play_variants, total_s
from hashidrill.reports.compared import judge_and_report_comparison
from hashidrill.reports.live import display as live
from hashidrill.reports.live.display import comparison_summary
from hashidrill.reports.live.progress import Progress
from hashidrill.reports.live.sentences import JsonLines
from hashidrill.reports.write import judge_and_report, judged, report_of

if TYPE_CHECKING:
    from hashidrill.staging.runs.launch_attached import Attached

DEMO = "raft/slow-leader-disk"
_NOT_REVERTED, _INTERRUPTED = 4, 130
_STOPPED = "interrupted"
"""The outcome of a run that was ended early: by Ctrl-C, by the stop button, or because its arming ended."""

AsLines = Annotated[
    bool,
    typer.Option("--json-lines", callback=only_json, help="Print each event of a run as one line of JSON, at once."),
]
ForWhom = Annotated[
    Audience, typer.Option("--audience", help="Who reads the JSON lines; a `trainee` is not told what the faults are.")
]


def register(app: typer.Typer) -> None:
    app.command(epilog=examples("demo"))(demo)
    calls = (
        "run",
        "run raft/frozen-leader",
        "run experiments/raft/*.yaml --json",
        "run raft/frozen-leader --json-lines",
        "run state/snapshot-reset --attach staging.yaml",
    )
    app.command(epilog=examples(*calls))(run)
    app.command(epilog=examples("check last", "check .hashidrill/runs/*", "check RUN --json"))(check)


def demo(plain: Plain = False, as_json: Json = False, install: Install = False, runs_dir: RunsDir = RUNS_DIR) -> None:
    """Slow down the disk of a real Consul leader, and judge it.

    See what the health checks say. Takes about a minute.
    """
    say = console()
    allow_installing(install)
    live.say(
        say, "Starting a Consul datacenter on this machine, in its own namespaces: three servers and a client agent."
    )
    live.say(
        say, "In about ten seconds each fsync of its leader's disk will take 500 ms. Watch the latency and the leader."
    )
    code, result = Runs(runs_dir, say, Memory.of(), plain).one(resolve(find_experiment(DEMO)))
    if as_json:
        print_json(result)
    raise typer.Exit(code)


def run(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT", help="Names or paths (default: all of your own `experiments/`)."),
    ] = None,
    *,
    plain: Plain = False,
    as_json: Json = False,
    json_lines: AsLines = False,
    audience: ForWhom = Audience.OPERATOR,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run this one variant of an experiment that has variants.")
    ] = None,
    no_faults: Annotated[
        bool,
        typer.Option("--no-faults", help="Break nothing: does the steady state hold, and do the probes answer?"),
    ] = False,
    attach: AttachTo = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --attach: print what would be touched, in order. Touches nothing.")
    ] = False,
    breaks_quorum: Annotated[
        bool,
        typer.Option("--breaks-quorum", help="With --attach: experiments with breaks_quorum may break a quorum."),
    ] = False,
    serve: Serve = False,
    port: Port = 0,
    metrics: Metrics = None,
    notify: Notify = None,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Run experiments, each with a live view and a report.

    An experiment with variants runs each of them, and compares.

    Exit codes: 0 PASS, 1 FAIL, 2 bad usage or bad YAML, 3 INVALID, 4 a fault could not be reverted, 130 interrupted (by
    Ctrl-C, or stopped from outside: then no further experiment starts).
    """
    if as_json and json_lines:
        raise UsageError(
            "--json and --json-lines both print to standard output: use one; `judged`, the last line of a"
            " run, has the verdict too"
        )
    if audience is not Audience.OPERATOR and not json_lines:
        raise UsageError(f"--audience {audience} is about who reads the JSON lines; use it with --json-lines")
    memory = Memory.of(notify)
    say = console()  # this text is for operators; the JSON may go to another program
    if not experiments and attach is not None:
        raise UsageError("name the experiments to run in an existing datacenter")
    experiments = experiments or _own(say)
    there = for_run(experiments, attach, plan=plan, breaks_quorum=breaks_quorum)
    resolved = resolve_all(experiments, there, variant)  # check all of them before running any
    if no_faults:
        from hashidrill.core.experiment.without_faults import without_faults  # noqa: PLC0415 - most runs break something

        resolved = [without_faults(each) for each in resolved]
    if plan:
        from hashidrill.faces.cli.plan import show  # noqa: PLC0415 - most runs print no plan

        raise typer.Exit(show(there, resolved, as_json=as_json))
    allow_all(resolved, there)
    lines = (JsonLines(sys.stdout).event, audience) if json_lines else None
    plain = plain or json_lines  # its lines come at once, maybe to the same terminal
    plays = list(zip(resolved, there, strict=True))
    with war_room(serve, port, say) as room, elsewhere(metrics, say) as others:
        allow_installing(install)
        if room is not None and len(plays) > 1 and not any(each.experiment.variants for each in resolved):
            room.plans("", [each.name for each in resolved])
        several = len(resolved) > 1 or any(each.experiment.variants for each in resolved)
        whole = Progress(say, sum(map(total_s, resolved))) if several else None
        results = Runs(runs_dir, say, memory, plain, Onlookers(lines, room, others), whole).until_stopped(plays)
    if as_json:
        print_json([result for _, result in results])
    elif len(results) > 1:
        _print_table(say, results)
    stopped = memory.interrupted and len(results) < len(plays)
    raise typer.Exit(_worst([*(code for code, _ in results), *([_INTERRUPTED] if stopped else [])]))


def _own(say: Console) -> list[str]:
    """The user's own experiments that start a datacenter: an existing one is only touched if it is named."""
    own = {path: stands(path) for path in own_experiments()}
    if left := [path.name for path, there in own.items() if there]:
        live.say(say, f"not run, because they need an existing datacenter: {', '.join(left)}; name them to run them")
    if found := [str(path) for path, there in own.items() if not there]:
        return found
    raise UsageError(
        "name an experiment (`hashidrill list` shows what ships): you have no experiments in experiments/ here;"
        " `hashidrill init` writes one"
    )


@dataclass(frozen=True)
class Runs:
    """What the runs of one command share. `looking` gets their events too, like the live view."""

    runs_dir: Path
    say: Console
    memory: Memory
    plain: bool
    looking: Onlookers = NOBODY
    whole: Progress | None = None
    """The progress of all runs together, if there are several."""

    def until_stopped(
        self, plays: Sequence[tuple[ResolvedExperiment, Attached | None]]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Runs all experiments. If an experiment in an existing datacenter is stopped or leaves a fault there, the next
        one does not begin.

        The next one does not begin either if Ctrl-C came after a run had ended; that run counts.
        """
        results: list[tuple[int, dict[str, Any]]] = []
        for each, there in plays:
            if there is not None:
                results.append(self.one(each, there.run))
                if results[-1][0] in {_NOT_REVERTED, _INTERRUPTED}:
                    break
            else:
                results.append(self.variants(each) if each.experiment.variants else self.one(each))
            if self.memory.interrupted:
                break
        if left := len(plays) - len(results):
            live.say(self.say, f"stopped: {left} of {len(plays)} experiments were not begun")
        return results

    def one(self, resolved: ResolvedExperiment, go: Callable[..., Path] | None = None) -> tuple[int, dict[str, Any]]:
        """(exit code, what --json prints) of one run."""
        recording, verdict, report, interrupted = self.recorded(resolved, go)
        live.final_summary(self.say, verdict, recording, report)
        kept = self.memory.keep(recording, verdict, self.say)
        code = _exit_code(recording, verdict, interrupted=interrupted or recording.outcome == _STOPPED)
        if interrupted:
            live.say(self.say, cut_short(recording.path, f"hashidrill run {experiment_name(resolved.path)}"))
            raise typer.Exit(code)
        return code, run_data(recording, verdict, report, code) | kept

    def recorded(
        self, resolved: ResolvedExperiment, go: Callable[..., Path] | None = None
    ) -> tuple[Recording, RunVerdict, Path | None, bool]:
        """One run with its live view, judged and reported, and whether it was interrupted."""
        of = f" ({resolved.variant})" if resolved.variant else ""
        title = f"{resolved.name}{of}: {resolved.experiment.metadata.title}"
        interrupted = False
        try:
            of_it = expected_s(resolved.experiment)
            with live.LiveView(self.say, title, plain=self.plain, expected_s=of_it, whole=self.whole) as view:
                events = Bus(view.event)
                self.looking.join(events, title)
                path = (go or run_experiment)(resolved, runs_dir=self.runs_dir, events=events)
        except KeyboardInterrupt as stop:
            if not stop.args:
                raise
            interrupted, path = True, stop.args[0]
        when_hung_up(self.memory.stop)  # the run has ended, and its verdict stands
        recording = Recording(path)
        verdict, report = judge_and_report(recording, near_to=resolved.path)
        events.publish(judged(recording, verdict, report))
        self.looking.keep_notes(path)
        return recording, verdict, report, interrupted

    def variants(self, resolved: ResolvedExperiment) -> tuple[int, dict[str, Any]]:
        """Like `one`, for every variant of an experiment, followed by their comparison."""
        known: dict[Path, RunVerdict] = {}

        def run_variant(one: ResolvedExperiment, *, runs_dir: Path, events: Bus) -> Path:
            del events  # each run has its own live view
            recording, verdict, _, interrupted = replace(self, runs_dir=runs_dir).recorded(one)
            known[recording.path] = verdict
            self.memory.keep(recording, verdict, self.say)
            if interrupted or self.memory.interrupted:
                raise KeyboardInterrupt(recording.path)
            return recording.path

        interrupted = False
        try:
            folder = play_variants(
                resolved,
                runs_dir=self.runs_dir,
                run=run_variant,
                say=lambda text: live.say(self.say, text, "bold"),
                prepare=prepare,
            )
        except KeyboardInterrupt as stop:
            if not stop.args:
                raise
            interrupted, folder = True, stop.args[0]
        code, result = _compared(folder, self.say, near_to=resolved.path, known=known)
        if interrupted:
            last = max(known, default=folder, key=lambda path: path.name)
            live.say(self.say, cut_short(last, f"hashidrill run {experiment_name(resolved.path)}", kept=folder))
            raise typer.Exit(code if code == _NOT_REVERTED else _INTERRUPTED)
        return code, result


def _compared(
    folder: Path,
    say: Console | None,
    *,
    near_to: Path | None,
    known: Mapping[Path, RunVerdict] | None = None,
    recorded_hypotheses: bool | Path = False,
) -> tuple[int, dict[str, Any]]:
    """(exit code, what --json prints) of a comparison."""
    verdict, report = judge_and_report_comparison(
        read_comparison(folder), near_to=near_to, known=known, recorded_hypotheses=recorded_hypotheses
    )
    code = _worst(
        [_exit_code(run.recording, run.verdict, interrupted=False) for run in verdict.runs]
        + [verdict.verdict.exit_code]
    )
    if say is not None:
        comparison_summary(say, verdict, folder, report)
    return code, verdict.to_data() | {
        "exit_code": code,
        "recording": str(folder),
        "report": str(report) if report else None,
    }


def _exit_code(recording: Recording, verdict: RunVerdict, *, interrupted: bool) -> int:
    if recording.outcome == "revert":
        return _NOT_REVERTED
    return _INTERRUPTED if interrupted else verdict.verdict.exit_code


def _worst(codes: list[int]) -> int:
    """A fault that was not reverted outranks everything; an interruption outranks the verdicts; the verdicts merge."""
    for code in (_NOT_REVERTED, _INTERRUPTED):
        if code in codes:
            return code
    by_code = {verdict.exit_code: verdict for verdict in Verdict}
    return merge(by_code[code] for code in codes).exit_code


def run_data(recording: Recording, verdict: RunVerdict, report: Path | None, code: int) -> dict[str, Any]:
    """A run as every command with --json prints it."""
    return {
        "experiment": recording.run.get("experiment"),
        "verdict": verdict.verdict,
        "exit_code": code,
        "outcome": recording.outcome,
        "invalid": verdict.invalid,
        "doubts": verdict.doubts,
        "notes": verdict.notes,
        "expectations": list(map(asdict, verdict.judgements)),
        "faults": [asdict(fault) for fault in recording.faults],
        "recording": str(recording.path),
        "report": str(report) if report else None,
    }


def _print_table(say: Console, results: list[tuple[int, dict[str, Any]]]) -> None:
    live.say(say, "")
    for _, result in results:
        live.say(say, f"{result['verdict']:<8} {result['experiment']:<24} {result['report']}")


def check(
    recordings: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="A recording, or a comparison: its path, its name, or `last`. Repeatable."),
    ],
    hypotheses: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the run's hypotheses that do not ship; found by SHA-256."),
    ] = None,
    recorded_hypotheses: Annotated[
        bool,
        typer.Option("--recorded-hypotheses", help="Run the Python stored in the recording. Only if you trust it."),
    ] = False,
    as_json: Json = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Judge a recording again, offline. For several recordings, prints one line each.

    Judges a comparison of several recordings too, with the hypotheses that ship. Runs no code from the recording or the
    working directory. With --hypotheses, runs those files in that folder that the run used; it finds them by SHA-256.
    Names each hypothesis that is missing, or that differs from the one the run used.
    """
    when_hung_up(finish)
    paths = [find_recording(name, runs_dir, comparisons=True) for name in recordings]
    if hypotheses is not None:
        folder_in(hypotheses)
    resolved = recorded_hypotheses or (hypotheses or False)
    for path in paths if recorded_hypotheses else ():
        print_text(f"hashidrill: warning: running Python from {path / HYPOTHESES_NAME}\n", stderr=True)
    if len(paths) == 1:
        code, result = _judged_again(paths[0], None if as_json else console(), resolved)
        if as_json:
            print_json(result)
        raise typer.Exit(code)
    results: list[tuple[int, dict[str, Any]]] = []
    again = f"nothing ran; {{}} of {len(paths)} reports are kept; to go on, run hashidrill check with the others"
    with Progress(console(stderr=True)) as progress, on_interrupt(lambda: again.format(len(results))):
        for number, path in enumerate(paths, start=1):
            progress.item(f"{number} of {len(paths)}: {path.name}", done=(number - 1) / len(paths))
            results.append(_judged_again(path, None, resolved))
            if not as_json:
                print_line(f"{results[-1][1]['verdict']:<8} {path.name}")
    if as_json:
        print_json([result for _, result in results])
    raise typer.Exit(_worst([code for code, _ in results]))


def _judged_again(path: Path, say: Console | None, resolved: bool | Path) -> tuple[int, dict[str, Any]]:
    """Returns (exit code, what --json prints); with a console, also prints the summary."""
    if is_comparison(path):
        return _compared(path, say, near_to=None, recorded_hypotheses=resolved)
    found = Recording(path)
    if is_rehearsal(found):  # judged by the runbook's effect; the experiment's expectations apply to a whole run
        verdict, report = report_of(found, rehearsal_verdict(found))
    else:
        verdict, report = judge_and_report(found, recorded_hypotheses=resolved)
    code = _exit_code(found, verdict, interrupted=False)
    if say is not None:
        live.final_summary(say, verdict, found, report)
    return code, run_data(found, verdict, report, code)
