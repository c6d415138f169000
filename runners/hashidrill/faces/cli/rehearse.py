"""rehearse: does a runbook help where it should, and do no harm where it must not act?"""

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from hashidrill.core import hypothesis
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.folders import find_playbook
from hashidrill.faces.cli.common import Install, Json, Plain, console, examples, print_json
from hashidrill.faces.cli.remembering import Memory, Notify, cut_short
from hashidrill.gamedays.runbooks.judge import NOT_REVERTED, Drill, as_verdict, judge_drill
from hashidrill.gamedays.runbooks.parser import MARKDOWN, read_runbook
from hashidrill.gamedays.runbooks.rehearsal import (
    REHEARSALS_DIR,
    Course,
    badge_of,
    check_tools,
    courses_of,
    earlier_drills,
    left_of,
    player,
    write_badge,
)
from hashidrill.gamedays.runbooks.rehearsal import rehearse as rehearse_all
from hashidrill.gamedays.runbooks.report import SUMMARY_NAME, write_reports
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.launch import new_folder
from hashidrill.reports.live import display as live
from hashidrill.reports.live.progress import Progress
from hashidrill.reports.write import report_of

_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    calls = (
        "rehearse playbooks/runbook-slow-leader.md",
        "rehearse playbooks/runbook-slow-leader.md --experiment raft/slow-leader-disk --look-alike none",
        "rehearse my-runbook.md --json",
    )
    app.command(epilog=examples(*calls))(rehearse)


def rehearse(
    runbook: Annotated[Path, typer.Argument(metavar="RUNBOOK.md", help="A runbook: playbooks/reference-runbooks.md.")],
    *,
    experiment: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Where it must help (default: all that it names; or `none`). Repeatable."),
    ] = None,
    look_alike: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Where it must not act (default: all that it names; or `none`). Repeatable."),
    ] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FOLDER",
            help="An earlier rehearsal of the same blocks: its runs count and are not repeated. Repeatable.",
        ),
    ] = None,
    times: Annotated[int, typer.Option(min=1, max=20, help="How often each experiment is run.")] = 1,
    badge: Annotated[bool, typer.Option("--badge", help="After a PASS, note versions and date in RUNBOOK.")] = False,
    plain: Plain = False,
    as_json: Json = False,
    install: Install = False,
    notify: Notify = None,
    runs_dir: Annotated[Path, typer.Option("--runs", help="Directory of rehearsals.")] = REHEARSALS_DIR,
) -> None:
    """Break a datacenter and judge whether a runbook helps.

    A runbook that does harm fails.

    Starts the experiment, holds its fault, runs each of the runbook's commands on its host, and decides by the output.
    Does the same where the runbook must not act. Judges the recordings: diagnosis, users back, nothing lost, no healthy
    server restarted, no quorum lost.

    Exit codes are as for `run`.
    """
    memory = Memory.of(notify)
    runbook = find_playbook(runbook, [MARKDOWN])
    found = read_runbook(runbook)
    with hypothesis.near(runbook):
        before = earlier_drills(found, earlier or [])
    courses = left_of(
        courses_of(found, experiment or [], look_alike or []), before, [*(experiment or []), *(look_alike or [])]
    )
    check_tools(found)
    say = console()
    allow_installing(install)
    folder, whole = new_folder(runs_dir, found.front.runbook), Progress(say)

    def play(course: Course) -> Path:
        title = f"{found.title}: {course.name}"
        with live.LiveView(say, title, plain=plain, whole=whole) as view:
            return player(found, folder, Bus(view.event))(course)

    def judge(path: Path) -> Drill:
        """Judges a run, and gives it a report and a place in the history, like any other run."""
        drill, recording = judge_drill(path), Recording(path)
        verdict, _ = report_of(recording, as_verdict(drill))
        memory.keep(recording, verdict, say)
        if memory.interrupted:
            raise KeyboardInterrupt(path)
        return drill

    try:
        with hypothesis.near(runbook):
            result = rehearse_all(found, courses, folder, play=play, times=times, judge=judge, earlier=before)
    except KeyboardInterrupt as stop:
        reverted = not stop.args or Recording(stop.args[0]).outcome != "revert"
        if stop.args:
            memory.keep(Recording(stop.args[0]), None, say)
        again = f"hashidrill rehearse {runbook} --with {folder}"
        nothing = f"interrupted: no run was in progress; kept: {folder}; go on with: {again}"
        live.say(say, cut_short(stop.args[0], again, kept=folder) if stop.args else nothing)
        raise typer.Exit(_INTERRUPTED if reverted else NOT_REVERTED) from None
    page = write_reports(result)
    if as_json:
        print_json(result.data())
    else:
        for line in result.lines():
            live.say(say, line)
        live.say(say, f"{result.verdict}: {runbook}")
        live.say(say, f"  report     {page}")
        live.say(say, f"  for chats  {page.with_name(SUMMARY_NAME)}")
    if badge and result.exit_code == 0:
        write_badge(runbook, badge_of(result, dt.datetime.now(dt.UTC).date()))
    raise typer.Exit(result.exit_code)
