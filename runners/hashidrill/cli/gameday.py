"""gameday: run, resume and report whole game days."""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
import sys
import termios
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console

from hashidrill.cli.common import Install, Json, RunsDir, console, examples, print_json
from hashidrill.cli.remembering import Memory, Notify
from hashidrill.engine.heal import heal_run, sweep
from hashidrill.engine.launch import RUNS_DIR, new_folder
from hashidrill.errors import HashidrillError, RevertError, UsageError
from hashidrill.gameday.before import look_at
from hashidrill.gameday.conduct import Lead, Unattended, conduct, left_recording
from hashidrill.gameday.journal import DAY_JOURNAL, DayJournal
from hashidrill.gameday.outcome import outcome_of
from hashidrill.gameday.pages import surprise_line, tally, write_reports
from hashidrill.gameday.plan import Plan, PlannedRun, read_plan
from hashidrill.gameday.playing import play
from hashidrill.gameday.terminal import Terminal
from hashidrill.live import display as live
from hashidrill.provision.packages import ensure_system_packages
from hashidrill.recording.reader import Recording
from hashidrill.reports.html import REPORT_NAME
from hashidrill.reports.sections import SYMBOLS
from hashidrill.reports.text import for_encoding
from hashidrill.util.files import JOURNAL_NAME, write_whole
from hashidrill.verdict import Verdict

DAYS, DAY_FILE = "days", "day.yaml"
_INTERRUPTED = 130
_DAY_HELP = "A day: its folder, the folder's name, or `last`."

Yes = Annotated[
    bool, typer.Option("--yes", help="Ask nobody: for scheduled days. Predictions stay empty, and the report says so.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines, as without a terminal.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    day = "playbooks/first-game-day.yaml"
    epilog = examples(f"gameday run {day}", "gameday resume", "gameday report last")
    group = typer.Typer(callback=gameday, no_args_is_help=True, rich_markup_mode="rich", epilog=epilog)
    group.command(epilog=examples(f"gameday run {day}", f"gameday run {day} --yes"))(run)
    group.command(epilog=examples("gameday resume", "gameday resume .hashidrill/days/DAY --yes"))(resume)
    group.command(epilog=examples("gameday report", "gameday report .hashidrill/days/DAY --json"))(report)
    app.add_typer(group, name="gameday")


def gameday() -> None:
    """Run a whole game day: checks before it, predictions, experiments in order, a report with what surprised whom.

    A day is a file of `kind: GameDay`; playbooks/first-game-day.yaml is one to start from.
    """


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `kind: GameDay`.")],
    *,
    yes: Yes = False,
    plain: Plain = False,
    as_json: Json = False,
    notify: Notify = None,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Begin a game day, and lead through it step by step. Keeps it in `days/` next to the directory of recordings.

    Ctrl-C stops it at any moment; `hashidrill gameday resume` goes on where it was.

    Exit codes: the worst verdict of the day (0 PASS, 1 FAIL, 3 INVALID, which includes a no-go), 2 bad usage or bad
    YAML, 4 a fault could not be reverted, 130 interrupted.
    """
    memory = Memory.of(notify)
    plan = read_plan(file)
    _check_asking(plan, yes=yes, as_json=as_json)
    say = console(stderr=as_json)
    ensure_system_packages(lambda text: live.say(say, text), install=install)
    folder = new_folder(runs_dir.parent / DAYS, plan.day.metadata.name)
    write_whole(folder / DAY_FILE, plan.text)
    head = {"name": plan.day.metadata.name, "file": str(file), "folder": str(plan.folder), "sources": plan.sources}
    with DayJournal.create(folder, head) as journal:
        code = _go_on(plan, journal, say, memory, yes=yes, plain=plain or as_json, as_json=as_json)
    raise typer.Exit(code)


def resume(
    day: Annotated[
        str | None, typer.Argument(metavar="[DAY]", help=f"{_DAY_HELP} Default: the last one not over.")
    ] = None,
    *,
    yes: Yes = False,
    plain: Plain = False,
    as_json: Json = False,
    notify: Notify = None,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Go on with a day that was interrupted: nothing that was answered is asked again, nothing that ran runs again.

    A run that was interrupted is run again; the report names the interrupted one. Exit codes as of `gameday run`.
    """
    memory = Memory.of(notify)
    folder = _find(day, runs_dir.parent / DAYS, open_only=day is None)
    say = console(stderr=as_json)
    with DayJournal.resume(folder) as journal:
        plan = _plan_of(folder, journal)
        if changed := _changed(plan, journal):
            raise UsageError(
                f"{folder}: {', '.join(changed)} changed since this day began: undo that, or begin a new day"
            )
        _check_asking(plan, yes=yes, as_json=as_json)
        ensure_system_packages(lambda text: live.say(say, text), install=install)
        _tidy(folder, journal)
        code = _go_on(plan, journal, say, memory, yes=yes, plain=plain or as_json, as_json=as_json)
    raise typer.Exit(code)


def report(
    day: Annotated[str, typer.Argument(metavar="[DAY]", help=_DAY_HELP)] = "last",
    as_json: Json = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Write the report of a day again, from its journal: HTML, Markdown, JSON, and the action items as a task list.

    Works for a day that is not over, too; not once an experiment of the day has changed. Exits with 0 if it could be
    written.
    """
    folder = _find(day, runs_dir.parent / DAYS)
    journal = DayJournal.read(folder)
    plan = _plan_of(folder, journal)
    if changed := _changed(plan, journal):
        raise UsageError(
            f"{folder}: {', '.join(changed)} changed since this day began, and a report would tell of what did not run:"
            f" undo that; the report that was written then stays ({folder / REPORT_NAME})"
        )
    found = outcome_of(plan, journal)
    page = write_reports(found, folder)
    if as_json:
        print_json(found)
    else:
        _summary(console(), found, folder, page)


def _check_asking(plan: Plan, *, yes: bool, as_json: bool) -> None:
    """Raises UsageError before anything starts."""
    if as_json and not yes:
        raise UsageError("--json prints to standard output, where a day asks its questions: use it with --yes")
    if yes and (missing := plan.needs_a_person()):
        listed = "; ".join(missing)
        raise UsageError(
            f"--yes asks nobody, but somebody must confirm: {listed}. Run the day without --yes, or write"
            " `unattended: true` next to each `confirm` that a scheduled day may go without"
        )


def _go_on(
    plan: Plan, journal: DayJournal, say: Console, memory: Memory, *, yes: bool, plain: bool, as_json: bool
) -> int:  # fmt: skip
    """To the end of the day, or to where it is interrupted; the exit code."""
    folder = journal.path.parent
    again = f"hashidrill gameday resume {shlex.quote(str(folder))}{' --yes' if yes else ''}"

    def tell(text: str, style: str = "") -> None:
        _tell(say, text, style)

    lead: Lead
    if yes:
        lead = Unattended(tell, time.sleep)
    else:
        ask = lambda prompt: _ask(prompt, say)  # noqa: E731 - one line, used once
        lead = terminal = Terminal(plan, tell, ask, resume=again, today=dt.date.today, resumed=bool(journal.sessions))
        terminal.welcome()
    journal.session(unattended=yes)
    tell(f"the day's folder: {folder}")
    try:
        conduct(
            plan,
            journal,
            lead,
            _player(plan, say, memory, plain=plain, asks=not yes),
            lambda check: look_at(plan, check, folder, tell),
            stopped=lambda: memory.interrupted,
        )
    except KeyboardInterrupt as stop:
        found = outcome_of(plan, journal)
        write_reports(found, folder)
        tell("")
        tell("The day is interrupted; everything so far is kept. Go on with:")
        tell(f"  {again}")
        stuck = bool(stop.args) and Recording(stop.args[0]).outcome == "revert"
        return RevertError.exit_code if stuck or found["exit_code"] == RevertError.exit_code else _INTERRUPTED
    except HashidrillError:
        tell("")
        tell(f"The day stops here; once this is fixed, go on with: {again}")
        raise
    found = outcome_of(plan, journal)
    page = write_reports(found, folder)
    memory.keep_day(folder, say)
    if as_json:
        print_json(found)
    else:
        _summary(say, found, folder, page)
    return int(found["exit_code"])


def _player(
    plan: Plan, say: Console, memory: Memory, *, plain: bool, asks: bool
) -> Callable[[PlannedRun, Path], dict[str, Any]]:  # fmt: skip
    def go(planned: PlannedRun, folder: Path) -> dict[str, Any]:
        title = f"{planned.name}: {planned.resolved.experiment.metadata.title}"
        folder.mkdir(mode=0o700, exist_ok=True)
        with live.LiveView(say, title, plain=plain or not say.is_terminal) as view:
            result, recording, verdict = play(plan, planned, folder, view=view.event)
        memory.keep(recording, verdict, say)
        if asks:
            _forget_typed()
        return result

    return go


def _forget_typed() -> None:
    """Keys that somebody typed while a run went on answer no question: Enter alone would start the next experiment."""
    with contextlib.suppress(OSError, ValueError, termios.error):  # a closed terminal: the next question says so
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _tidy(folder: Path, journal: DayJournal) -> None:
    """Heals each run that was interrupted, closes the one whose runner died, and removes what is left of its sandbox.

    Raises RevertError where a fault of one of them may still be in force: nothing begins on top of it.
    """
    dirty = bool(journal.dangling)
    lefts = [str(entry["recording"]) for entry in journal.interrupted]
    lefts += [left_recording(journal, folder)] if journal.dangling else []
    for path in (folder / left for left in lefts if left):
        healed = anyio.run(heal_run, path) if (path / JOURNAL_NAME).is_file() else None
        if healed is not None and (healed.stuck or (healed.refused and not healed.died)):
            raise RevertError(
                f"{path}: a fault may still be in force: {', '.join(healed.stuck) or healed.refused};"
                f" `hashidrill heal {path}` must find nothing left, then `hashidrill gameday resume {folder}` goes on"
            )
        dirty |= healed is not None
    if dirty:
        sweep()


def _plan_of(folder: Path, journal: DayJournal) -> Plan:
    """What the day was begun with. Raises ExperimentError for what does not read any more."""
    return read_plan(folder / DAY_FILE, folder=Path(str(journal.head["folder"])))


def _changed(plan: Plan, journal: DayJournal) -> list[str]:
    """Names of experiments that are not what they were when the day began."""
    return [name for name, source in plan.sources.items() if journal.head["sources"].get(name) != source]


def _find(name: str | None, days: Path, *, open_only: bool = False) -> Path:
    """A day's folder. Raises UsageError."""
    there = sorted(path.parent for path in days.glob(f"*/{DAY_JOURNAL}"))
    if name is None or name == "last":
        for path in reversed(there):
            if not open_only or "end" not in DayJournal.read(path).done:
                return path.absolute()
        what = "no day that is not over" if open_only else "no days yet"
        raise UsageError(f"{days}: {what}; begin one with `hashidrill gameday run FILE`")
    for path in (Path(name), days / name):
        if (path / DAY_JOURNAL).is_file():
            return path.absolute()
    raise UsageError(f"there is no day {name!r}; those in {days}: {', '.join(path.name for path in there) or 'none'}")


def _tell(say: Console, line: str, style: str = "") -> None:
    for part in _folded(line, say):
        live.say(say, part, style)


def _folded(line: str, say: Console) -> list[str]:
    """A line as a person reads it on a terminal: folded between words, below its own indentation."""
    if not say.is_terminal or len(line) <= say.width or " " not in line.strip():
        return [line]
    lead = " " * (len(line) - len(line.lstrip(" ")))
    return textwrap.wrap(
        line, max(say.width, 30), subsequent_indent=lead, break_long_words=False, break_on_hyphens=False
    )


def _ask(prompt: str, say: Console) -> str:
    """Raises KeyboardInterrupt where nobody can answer any more: a closed terminal, the end of a pipe."""
    *before, last = _folded(prompt.rstrip(), say)
    for part in before:
        live.say(say, part)
    while True:
        try:
            return input(for_encoding(f"{last} ", sys.stdout.encoding))
        except EOFError:
            raise KeyboardInterrupt from None
        except UnicodeDecodeError:
            sys.stdout.write("    that is not text in this terminal's encoding; type it again\n")


def _summary(say: Console, found: dict[str, Any], folder: Path, page: Path) -> None:
    verdict = Verdict(found["verdict"])
    live.say(say, "")
    live.say(say, f"{SYMBOLS[verdict]} {verdict.value}  {found['title']}", "bold")
    _tell(say, f"  {found['because']} {tally(found)}")
    for each in found["runs"]:
        live.say(say, f"  {each['verdict'] or each['state']:<8} {each['name']}")
    for surprise in found["surprises"]:
        _tell(say, f"  surprise: {surprise_line(surprise)}")
    for action in found["actions"]:
        _tell(say, f"  to do: {action['what']} ({action['name']}, due {action['due']})")
    live.say(say, f"  report     {page}")
    live.say(say, f"  for chats  {folder / 'report.md'}")
    if found["actions"]:
        live.say(say, f"  to do      {folder / 'actions.md'}")
