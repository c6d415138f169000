"""gate: refuses a change of configuration or version that would not survive a fault."""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hashidrill.clients.audit.audited import Severity
from hashidrill.core.compare.figures import figures
from hashidrill.core.errors import UsageError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.events import Bus, Event, Note, Subscriber, Tick
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import counted
from hashidrill.core.util.interrupts import finish, when_hung_up
from hashidrill.faces.cli.common import (
    FailOn,
    Install,
    Json,
    RunsDir,
    console,
    duration_s,
    examples,
    options_given,
    print_json,
    print_text,
)
from hashidrill.faces.cli.remembering import cut_off
from hashidrill.lab.provision import binaries
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import RUNS_DIR
from hashidrill.lab.runs.rounds import AT_MOST
from hashidrill.lab.sandbox.sandbox import scratch_folder
from hashidrill.reports.live import display as live
from hashidrill.reports.live.progress import Progress
from hashidrill.reports.text import human_duration
from hashidrill.rollouts.gate.configuration import (
    Side,
    Source,
    check_taken,
    from_git,
    git_names,
    product_of,
    sides,
    sources_of,
)
from hashidrill.rollouts.gate.differences import differences_of
from hashidrill.rollouts.gate.playing import (
    ROUNDS,
    InterruptedGate,
    Means,
    Plan,
    calibrate,
    calibration_lines,
    play_all,
    runs_of,
    sides_of,
)
from hashidrill.rollouts.gate.report import (
    MOST_ROUNDS_ASKED,
    as_document,
    change_lines,
    check_writable,
    clear,
    plan_lines,
    verdict_lines,
    write_all,
)
from hashidrill.rollouts.gate.suite import TAG, Member, key_map, picked, suite
from hashidrill.rollouts.gate.verdict import GateVerdict, Ran, Result, audited

_INTERRUPTED = 130
OUTPUT = Path(".hashidrill/gate")
_CALIBRATES_WITH = {
    *("--calibrate", "--suite", "--product", "--baseline-version"),
    *("--time-budget", "--runs", "--install"),
}


class OnCannotTell(StrEnum):
    """The exit code of an undecided gate: 0, 1, or 3, which has no other meaning."""

    passes = "pass"
    fails = "fail"
    neutral = "neutral"


def register(app: typer.Typer) -> None:
    calls = (
        "gate --baseline consul.d/ --candidate new/consul.d/",
        "gate --git origin/main...HEAD --path consul.d --time-budget 10m",
        "gate --baseline-version 1.10.3 --candidate-version 1.22.2 --suite raft/killed-leader",
        "gate --calibrate",
    )
    app.command(epilog=examples(*calls))(gate)


Paths = list[Path] | None


def gate(
    ctx: typer.Context,
    *,
    baseline: Annotated[
        Paths, typer.Option(metavar="FILE|DIR", help="Today's configuration, as agents read it. Repeatable.")
    ] = None,
    candidate: Annotated[
        Paths, typer.Option(metavar="FILE|DIR", help="Configuration with the change. Repeatable.")
    ] = None,
    git: Annotated[
        str | None,
        typer.Option(metavar="BASE..HEAD", help="Both from a repository; BASE...HEAD: from their merge base on."),
    ] = None,
    path: Annotated[
        list[str] | None, typer.Option(help="File or directory in the repository, with --git. Repeatable.")
    ] = None,
    baseline_version: Annotated[str | None, typer.Option(help="Version of the product today.")] = None,
    candidate_version: Annotated[
        str | None, typer.Option(help="Version with the change (default: the baseline's version).")
    ] = None,
    product: Annotated[
        str | None, typer.Option(help="consul, nomad or vault (default: recognised from the configuration).")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            help="The agents that this configuration is for: all, server or client (default: decided by its keys)."
        ),
    ] = None,
    suite_: Annotated[
        list[str] | None, typer.Option("--suite", help=f"Experiments, or a tag (default: {TAG}). Repeatable.")
    ] = None,
    key_map_: Annotated[
        Path | None, typer.Option("--key-map", help="YAML that says which experiments matter for which keys.")
    ] = None,
    time_budget: Annotated[str, typer.Option(help="The time limit for the whole suite.")] = "10m",
    rounds: Annotated[
        int, typer.Option(min=2, max=MOST_ROUNDS_ASKED, help="The most rounds of each experiment.")
    ] = AT_MOST,
    margin: Annotated[
        list[str] | None,
        typer.Option(metavar="FIGURE=PERCENT", help="How much worse a figure may be: kv-writes.latency.p50=20%"),
    ] = None,
    fail_on_audit: Annotated[
        FailOn, typer.Option(help="Lowest severity at which a new audit finding is a regression.")
    ] = FailOn.error,
    on_cannot_tell: Annotated[
        OnCannotTell, typer.Option(help="Exit code if the gate cannot tell: pass is 0, fail is 1, neutral is 3.")
    ] = OnCannotTell.neutral,
    output: Annotated[
        Path, typer.Option(help="Folder for gate.json, junit.xml, gate.sarif, summary.md and report.html.")
    ] = OUTPUT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read, audit, ask the agent, choose experiments; run nothing.")
    ] = False,
    calibrate_: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure the smallest difference that this machine can show, and store it."),
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of gate.json.")] = False,
    as_json: Json = False,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Decide whether a configuration change would survive a bad day.

    Also decides this for a change of version.

    Runs experiments on both sides in turn until it is sure. A figure that is surely worse, or an expectation that the
    change breaks, is a regression. Keys that tie an agent to its machine are left out.

    Exit codes: 0 no change, no regression or an improvement, 1 regression, 2 bad usage or a configuration that an agent
    refuses, 3 cannot tell (see --on-cannot-tell), 4 a fault could not be reverted, 130 interrupted.
    """
    if schema:
        print_text(files("hashidrill.rollouts.gate").joinpath("gate.schema.json").read_text(encoding="utf-8"))
        return
    say = console()
    allow_installing(install)
    budget_s = _budget(time_budget)
    if calibrate_:
        _check_calibrates(options_given(ctx))
        of = (product or "consul", baseline_version)
        _calibrate(say, suite_ or [TAG], of, budget_s, runs_dir)
        return
    began_s = time.monotonic()
    clear(output)
    with scratch_folder() as folder:
        newer = candidate_version is not None
        sources = _sources(baseline, candidate, git, path, folder, versions_differ=newer)
        versions = _versions(baseline_version, candidate_version, files_given=any(sources))
        named = product_of(*sources, product)
        both = sides(sources[0], sources[1], product=named, versions=versions, role=role)
        members, mapped = suite(suite_ or [TAG], named), key_map(key_map_)
        margins = _margins(margin, {one.name for member in members for one in figures(member.experiment)})
        result = _before(named, both, fail_on_audit, git)
        found = picked(members, named, result.differences.keys, mapped, budget_s=budget_s, runs=runs_of)
        for line in change_lines(replace(result, picked=found)):
            live.say(say, line)
        _check_budget(result, time_budget, budget_s, found.members[0])
        with Progress(say) as progress:
            _ask_agents(named, both, progress.item)
    if result.equal or result.audit.failing:
        _end(result, output, say, on_cannot_tell, as_json=as_json)
    result = replace(result, picked=found)
    for line in plan_lines(result):
        live.say(say, line)
    plan = Plan(result.differences, versions, runs_dir, budget_s, rounds, margins)
    for member in (*found.members, *found.left):
        sides_of(member, plan)  # reports what an experiment cannot use before the first experiment runs
    if dry_run:
        live.say(say, "--dry-run: nothing was run")
        if as_json:
            print_json(as_document(result))
        return
    check_writable(output)
    ran: list[Ran] = []
    usual_s = sum(runs_of(member) * member.run_s for member in found.members)
    try:
        with Progress(say, min(usual_s, budget_s)) as progress:
            play_all(found, plan, Means(lambda line: live.say(say, line), Bus(_items(progress))), ran=ran)
    except InterruptedGate:
        result = replace(result, ran=tuple(ran), seconds=time.monotonic() - began_s, interrupted=True)
        _tell(result, output, say, as_json=as_json)
        kept = f"the recordings in {runs_dir}, and the report"
        live.say(say, cut_off(kept, "the same command"))
        raise typer.Exit(_INTERRUPTED) from None
    result = replace(result, ran=tuple(ran), seconds=time.monotonic() - began_s)
    _end(result, output, say, on_cannot_tell, as_json=as_json)


def _check_calibrates(given: list[str]) -> None:
    if others := [option for option in given if option not in _CALIBRATES_WITH]:
        raise UsageError(f"--calibrate runs each experiment of the suite against itself: leave out {others[0]}")


def _sources(
    baseline: Paths, candidate: Paths, git: str | None, path: list[str] | None, into: Path, *, versions_differ: bool
) -> tuple[list[Source], list[Source]]:
    """Both sides' files, named in one of three ways. Raises UsageError if no way is used, or two at once."""
    if git is not None:
        if baseline or candidate:
            raise UsageError("--git names both sides: leave out --baseline and --candidate")
        return from_git(git, path or [], into)
    if path:
        raise UsageError("--path is a path in a repository: use it with --git BASE..HEAD")
    if candidate and not baseline:
        raise UsageError("--candidate needs --baseline: today's configuration")
    if baseline and not candidate and not versions_differ:
        raise UsageError("--baseline needs --candidate: the configuration with the change, or --candidate-version")
    before = sources_of(baseline or [])
    return before, sources_of(candidate) if candidate else before


def _versions(baseline: str | None, candidate: str | None, *, files_given: bool) -> tuple[str | None, str | None]:
    if candidate is not None and baseline is None:
        raise UsageError("--candidate-version needs --baseline-version: today's version")
    if baseline is None and not files_given:
        raise UsageError(
            "nothing to compare: give --baseline and --candidate, or --git and --path, or --baseline-version and"
            " --candidate-version"
        )
    if baseline is not None and candidate is None and not files_given:
        raise UsageError("--baseline-version needs --candidate-version: the version with the change")
    return baseline, candidate or baseline


def _before(product: str, both: tuple[Side, Side], fail_on_audit: FailOn, git: str | None) -> Result:
    limit = None if fail_on_audit is FailOn.never else Severity[fail_on_audit.name.upper()]
    same = both[0].version == both[1].version
    revisions = git_names(git) if git else ("", "")
    names = [_name(side, at, same=same) for side, at in zip(both, revisions, strict=True)]
    return Result(
        (names[0], names[1]),
        (both[0].version or "", both[1].version or ""),
        differences_of({role: (config, both[1].configs[role]) for role, config in both[0].configs.items()}),
        audited(product, both[0].sources, both[1].sources, limit=limit),
    )


def _name(side: Side, revision: str, *, same: bool) -> str:
    """`same`: both sides have the same version, which the first line names anyway."""
    shown = [source.shown for source in side.sources]
    text = shown[0] if len(shown) == 1 else f"{len(shown)} files of {Path(shown[0]).parent}" if shown else ""
    return " ".join(part for part in ("" if same else side.version, revision or text) if part) or side.name


def _ask_agents(product: str, both: tuple[Side, Side], say: Callable[[str], None]) -> None:
    """Get the binaries, and have each read its side's configuration."""
    for side in both:
        version = side.version or registry.services()[product].Spec().version
        if side.sources or side.version:
            binary = binaries.ensure(product, version, progress=say)
            for config in side.configs.values():
                check_taken(side.name, config, version, binary.path)


def _budget(text: str) -> float:
    budget_s = duration_s("--time-budget", text)
    if not budget_s:
        raise UsageError(f"--time-budget {text}: too short to run anything; write a duration, like 10m")
    return budget_s


def _check_budget(result: Result, text: str, budget_s: float, first: Member) -> None:
    """Refuses a time budget that is too short for one round of one experiment, if anything has to run."""
    round_s = 2 * first.run_s
    if budget_s < round_s and not (result.equal or result.audit.failing):
        usual_s = runs_of(first) * first.run_s
        raise UsageError(
            f"--time-budget {text}: one round of {first.name}, which is one run of each side, takes about"
            f" {human_duration(round_s)}: use --time-budget {math.ceil(round_s)}s or more; an answer usually takes"
            f" about {human_duration(usual_s)}"
        )


def _margins(written: list[str] | None, known: Collection[str]) -> dict[str, float]:
    """`kv-writes.latency.p50=20%` is a ratio of 1.2. Raises UsageError for a figure that no experiment has."""
    margins = {}
    for text in written or []:
        name, _, share = (part.strip() for part in text.partition("="))
        try:
            margin = float(share.removesuffix("%")) / 100
        except ValueError:
            margin = math.nan
        if not 0 < margin < math.inf:
            raise UsageError(f"--margin {text}: write it like kv-writes.latency.p50=20%")
        if name not in known:
            raise UsageError(f"--margin {text}: no experiment of the suite has this figure: {near(name, known)}")
        margins[name] = 1 + margin
    return margins


def _items(progress: Progress) -> Subscriber:
    now = ""

    def show(event: Event) -> None:
        nonlocal now
        if isinstance(event, Note):
            now = event.text
        if isinstance(event, Note | Tick):
            progress.item(now)

    return show


def _tell(result: Result, output: Path, say: Console, *, as_json: bool) -> None:
    when_hung_up(finish)
    write_all(result, output)
    for line in verdict_lines(result):
        live.say(say, line)
    live.say(say, f"report: {output / 'report.html'}")
    if as_json:
        print_json(as_document(result))


def _end(result: Result, output: Path, say: Console, on_cannot_tell: OnCannotTell, *, as_json: bool) -> None:
    _tell(result, output, say, as_json=as_json)
    code = result.verdict.exit_code
    if result.verdict is GateVerdict.CANNOT_TELL:
        code = {OnCannotTell.passes: 0, OnCannotTell.fails: 1}.get(on_cannot_tell, code)
    raise typer.Exit(code)


def _calibrate(say: Console, names: list[str], of: tuple[str, str | None], budget_s: float, runs_dir: Path) -> None:
    """`of`: the product, and its version if the user named one."""
    product, version = product_of([], [], of[0]), of[1]
    members = suite(names, product)
    known = 0
    at = (product, version) if version else None
    usual_s = sum(2 * ROUNDS * member.run_s for member in members)
    with Progress(say, min(usual_s, budget_s)) as progress:
        events = Bus(_items(progress))
        for found in calibrate(members, runs_dir=runs_dir, budget_s=budget_s, version=at, events=events):
            known += found.calibration is not None
            for line in calibration_lines(found):
                live.say(say, line)
            if found.interrupted:
                again = "the same command; --suite names the experiments that are left"
                live.say(say, cut_off(counted(known, "calibration"), again))
                raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(0 if known else GateVerdict.CANNOT_TELL.exit_code)
