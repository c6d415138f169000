"""capacity: finds the highest load, or other parameter, at which an SLO still holds."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition, load_signals, probe_signals, unit_trouble
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.reader import Recording
from hashidrill.core.units import Level, counted
from hashidrill.faces.cli.common import Install, Json, Plain, RunsDir, console, examples, print_json
from hashidrill.faces.cli.remembering import cut_off
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import RUNS_DIR, run_experiment
from hashidrill.lab.runs.rounds import expected_s
from hashidrill.lab.sandbox.sandbox import scratch_folder
from hashidrill.reports.live import display as live
from hashidrill.reports.live.progress import Progress
from hashidrill.rollouts.capacity import (
    REPEAT,
    TRIES,
    Outcome,
    Probe,
    Search,
    Value,
    Varied,
    confirmed,
    probe_of,
    search,
)

_NOT_HELD, _INVALID, _NOT_REVERTED, _INTERRUPTED = 1, 3, 4, 130


def register(app: typer.Typer) -> None:
    slo = '--until "kv-writes.latency.p50 < 300ms"'
    app.command(
        epilog=examples(
            f"capacity raft/slow-leader-disk --vary method.0.with.delay --from 20ms {slo}",
            f"capacity raft/slow-follower-disk --vary load.kv-writes.rate {slo}",
        )
    )(capacity)


def capacity(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name or path of an experiment.")],
    *,
    vary: Annotated[str, typer.Option(help="The parameter, as a path into the YAML: load.kv-writes.rate")],
    until: Annotated[list[str], typer.Option(help="A condition that must hold. Repeatable.")],
    from_: Annotated[str | None, typer.Option("--from", help="First value (default: the value in the YAML).")] = None,
    to: Annotated[str | None, typer.Option(help="Highest value to try.")] = None,
    precision: Annotated[str, typer.Option(help="Stop when the bounds of the answer are this close.")] = "10%",
    tries: Annotated[int, typer.Option(min=1, max=50, help="The most runs to make.")] = TRIES,
    repeat: Annotated[int, typer.Option(min=1, max=9, help="Runs that must agree at each end.")] = REPEAT,
    plain: Plain = False,
    as_json: Json = False,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Find the highest value at which an SLO holds.

    The SLO must hold in the steady state, over the method, and under each single fault; with `for`, over each window of
    that length. A run without a valid measurement counts neither way and is repeated once.

    Exit codes: 0 found, 1 the SLO fails even at the lowest value, 2 bad usage, 3 the generator was the bottleneck from
    the start, or two runs at one value were INVALID, 4 a fault could not be reverted, 130 interrupted (prints what is
    known so far).
    """
    path = find_experiment(experiment)
    experiment_ = load_experiment(path)
    conditions = [_condition(text, experiment_) for text in until]
    varied = Varied.of(path, vary)
    start, highest = _bounds(varied, from_, to)
    narrow = _precision(precision)
    say = console()
    _check(varied, start)
    allow_installing(install)
    found, whole = Search(), Progress(say)
    stuck: list[Path] = []

    def run(resolved: ResolvedExperiment) -> Path:
        title = f"{vary}: {len(found.probes) + 1}. run"
        of_it = expected_s(resolved.experiment)
        with live.LiveView(say, title, plain=plain, expected_s=of_it, whole=whole) as view:
            recording = run_experiment(resolved, runs_dir=runs_dir, events=Bus(view.event))
        if Recording(recording).outcome == "revert":
            stuck.append(recording)
            raise KeyboardInterrupt  # inject nothing more
        return recording

    judge = probe_of(varied, conditions, run)

    def probe(value: Value) -> Probe:
        live.say(say, f"{vary} = {value}")
        done = judge(value)
        live.say(say, f"{vary} = {value}: {done.outcome}: {done.text}")
        return done

    search(start, probe, highest=highest, precision=narrow, tries=tries, repeat=repeat, into=found)
    code = _NOT_REVERTED if stuck else exit_code(found)
    if as_json:
        print_json(as_document(found, vary, until, code, repeat))
    else:
        print_table(say, found, vary, until, repeat)
    if stuck:
        live.say(say, f"a fault could not be reverted: `hashidrill heal {stuck[0]}`")
    elif found.interrupted:
        again = "the same command" if found.held is None else f"the same command with --from {found.held}"
        live.say(say, cut_off(f"the recordings of {counted(len(found.probes), 'run')} in {runs_dir}", again))
    raise typer.Exit(code)


def _condition(text: str, experiment: Experiment) -> Condition:
    """Raises UsageError for a condition that could never hold because no probe measures it."""
    try:
        condition = Condition.parse(text)
    except ValueError as error:
        raise UsageError(f"--until {error}") from None
    signal = f"{condition.source}.{condition.what}"
    declared = experiment.declared_signals
    if signal in declared and (unfit := unit_trouble(condition, declared[signal])):
        raise UsageError(f"--until {unfit}")
    known = [*probe_signals(), *declared]
    for name, load in experiment.load.items():
        own = load_signals(registry.load(load.kind))
        known += [f"{name}.{what}" for what in (*LOAD_STATISTICS, *own)]
        unfit = unit_trouble(condition, own[condition.what]) if signal in {f"{name}.{what}" for what in own} else ""
        if unfit:
            raise UsageError(f"--until {unfit}")
    if signal not in known:
        raise UsageError(f"--until {text!r}: nothing measures {signal}: {registry.near(signal, known)}")
    return condition


def _precision(text: str) -> float:
    try:
        share = Level(text)
    except ValueError as error:
        raise UsageError(f"--precision {error}") from None
    if share < 0.01:
        raise UsageError(f"--precision {text}: runs are not precise enough for less than 1%")
    return float(share)


def _bounds(varied: Varied, from_: str | None, to: str | None) -> tuple[Value, Value | None]:
    present = varied.present()
    if present is None and from_ is None:
        raise UsageError(f"{'.'.join(varied.place)} is not in {varied.path}: give the first value with --from")
    start = Value.parse(present if from_ is None else from_)
    if to is None:
        return start, None
    highest = Value.parse(to)
    if highest.unit != start.unit:
        raise UsageError(f"--to {to} and the first value {start} have different units")
    if highest.number <= start.number:
        raise UsageError(f"--to {to} is not above the first value {start}")
    return start, highest


def _check(varied: Varied, value: Value) -> None:
    """Checks, before anything is run, that the changed experiment is valid. Raises ExperimentError."""
    with scratch_folder() as folder:
        load_experiment(varied.write(value, folder))


def exit_code(found: Search) -> int:
    if found.interrupted:
        return _INTERRUPTED
    if found.held is not None and found.stuck is None:
        return 0
    return _INVALID if found.bounded_by_generator or found.stuck is not None else _NOT_HELD


def answer(found: Search, vary: str, repeat: int = REPEAT) -> str:
    """One sentence: the highest value that held, the lowest that did not, the bottleneck, and how sure this is."""
    text = _bracket(found, vary)
    for value in (found.held, found.not_held):
        if value is not None and found.split(value):
            runs = found.counts(value)
            text += f"; at {value} it held in {runs[Outcome.HELD]} of {runs.total()} runs"
        if not confirmed(found, value, repeat) and not found.interrupted:
            text += f"; {value} was not run often enough for {repeat} runs to agree (--tries)"
    if found.stuck is not None:
        text += f"; the search stopped at {found.stuck.value}, where two runs were not valid: {found.stuck.text}"
    return text


def _bracket(found: Search, vary: str) -> str:
    if found.held is None:
        if found.not_held is None:
            return "nothing is known" if found.stuck is not None else "no run finished: nothing is known"
        if found.bounded_by_generator:
            return f"the generator was already the bottleneck at {vary} = {found.not_held}; start lower"
        return f"it fails even at {vary} = {found.not_held}; start lower"
    if found.not_held is None:
        return f"it held at {vary} = {found.held}, the highest value tried"
    bound = f"it holds at {vary} = {found.held}"
    if found.bounded_by_generator:
        return f"{bound}; at {found.not_held} the generator was the bottleneck, so the limit may be higher"
    return f"{bound}, and fails at {found.not_held}"


def as_document(found: Search, vary: str, until: list[str], code: int, repeat: int) -> dict[str, Any]:
    return {
        "vary": vary,
        "until": until,
        "held": None if found.held is None else found.held.written,
        "not_held": None if found.not_held is None else found.not_held.written,
        "bounded_by_generator": found.bounded_by_generator,
        "confirmed": all(confirmed(found, value, repeat) for value in (found.held, found.not_held)),
        "stuck_at": None if found.stuck is None else found.stuck.value.written,
        "interrupted": found.interrupted,
        "answer": answer(found, vary, repeat),
        "exit_code": code,
        "probes": [
            {"value": p.value.written, "outcome": p.outcome, "text": p.text, "recording": p.recording}
            for p in found.probes
        ],
    }


def print_table(say: Console, found: Search, vary: str, until: list[str], repeat: int) -> None:
    """Every value tried, from lowest to highest, and the answer."""
    table = Table(vary, "SLO", "measured", title=" and ".join(until), title_justify="left", box=None)
    marks = {
        Outcome.HELD: "✓ held",
        Outcome.BROKEN: "✗ broken",
        Outcome.GENERATOR: "! generator",
        Outcome.INVALID: "! invalid",
    }
    for probe in sorted(found.probes, key=lambda probe: probe.value.number):
        table.add_row(str(probe.value), marks[probe.outcome], probe.text)
    say.print(table)
    live.say(say, answer(found, vary, repeat))
