"""gameday: run, resume and report whole game days."""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.console import Console

from hashidrill.core.errors import HashidrillError, RevertError, UsageError
from hashidrill.core.experiment.library import SUFFIXES
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME, write_whole
from hashidrill.core.util.folders import DAYS, find_playbook
from hashidrill.faces.cli import gameday_words as words
from hashidrill.faces.cli.attached import BREAKS_QUORUM, AttachTo, attached
from hashidrill.faces.cli.common import Install, Json, Plain, RunsDir, console, examples, print_json
from hashidrill.faces.cli.gameday_words import Asker
from hashidrill.faces.cli.remembering import Memory, Notify, cut_short
from hashidrill.faces.cli.serving import PeopleAt, Port, Serve, war_room
from hashidrill.gamedays.gameday.conduct import Lead, Unattended, conduct, left_recording
from hashidrill.gamedays.gameday.journal import DAY_FILE, DayJournal, changed, find_day, plan_of_day, recordings_of
from hashidrill.gamedays.gameday.leads import TROUBLE, OnPage, Terminal
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun, read_plan
from hashidrill.gamedays.gameday.player import PlayOne, Standing, compare, judged_again, look_at, play, play_alone
from hashidrill.gamedays.gameday.report import outcome_of, write_reports
from hashidrill.gamedays.history.on_turn_red import announce
from hashidrill.lab.provision.packages import allow_installing
from hashidrill.lab.runs.heal import heal_run, sweep
from hashidrill.lab.runs.launch import RUNS_DIR, new_folder
from hashidrill.lab.runs.rounds import expected_s, total_s
from hashidrill.reports.html import REPORT_NAME
from hashidrill.reports.live import display as live
from hashidrill.reports.live.progress import Progress

if TYPE_CHECKING:
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.gamedays.warroom.room import Room

_INTERRUPTED = 130
_STOPPED = "interrupted"
"""The outcome of a run that was stopped by a person, locally or from outside."""
_DAY_HELP = "A day: its folder, the folder's name, or `last`."

BreaksQuorum = Annotated[
    bool, typer.Option("--breaks-quorum", help="With --attach: experiments with breaks_quorum may break a quorum.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Ask no questions, as on a schedule. Predictions stay empty; the report says so.")
]


def register(app: typer.Typer) -> None:
    day = "playbooks/first-game-day.yaml"
    app.command(epilog=examples(f"gameday run {day}", f"gameday run {day} --yes"))(run)
    app.command(epilog=examples("gameday resume", "gameday resume .hashidrill/days/DAY --yes"))(resume)
    app.command(epilog=examples("gameday report", "gameday report .hashidrill/days/DAY --json"))(report)


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `kind: GameDay`.")],
    *,
    yes: Yes = False,
    attach: AttachTo = None,
    breaks_quorum: BreaksQuorum = False,
    plain: Plain = False,
    as_json: Json = False,
    serve: Serve = False,
    port: Port = 0,
    people_at: PeopleAt = "",
    notify: Notify = None,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Begin a game day, and lead through it step by step.

    Keeps the day in `days/` next to the directory of recordings.

    Ctrl-C stops it at any moment; `hashidrill gameday resume` continues where it stopped. With --attach, the day's
    experiments run against that datacenter, and `check: machine` checks the interlocks.

    Exit codes are as for `run`, for the worst verdict of the day; a no-go is INVALID.
    """
    memory = Memory.of(notify)
    if breaks_quorum and attach is None:
        raise UsageError("--breaks-quorum is about an existing datacenter: name it with --attach FILE")
    there = None if attach is None else attached(attach, *_said(breaks_quorum))
    file = find_playbook(file, SUFFIXES)
    plan = read_plan(file, over=resolve if there is None else there.over)
    _check_asking(plan, yes=yes, as_json=as_json)
    say = console()
    with war_room(serve, port, say, people_at=people_at) as room:
        allow_installing(install)
        folder = new_folder(runs_dir.parent / DAYS, plan.day.metadata.name)
        write_whole(folder / DAY_FILE, plan.text)
        head = {
            "name": plan.day.metadata.name,
            "file": str(file),
            "folder": str(plan.folder),
            "sources": plan.sources,
            "sha256": plan.sha256,
        }
        if there is not None:
            head |= {"attach": str(Path(there.target.path).absolute()), "attached": there.target.name}
        with DayJournal.create(folder, head) as journal:
            code = _Day(plan, journal, say, memory, there, yes, plain).go_on(room, as_json=as_json)
    raise typer.Exit(code)


def _said(breaks_quorum: bool) -> list[str]:
    return [BREAKS_QUORUM] if breaks_quorum else []


def resume(
    day: Annotated[
        str | None, typer.Argument(metavar="DAY", help=f"{_DAY_HELP} Default: the last unfinished one.")
    ] = None,
    *,
    attach: AttachTo = None,
    breaks_quorum: BreaksQuorum = False,
    yes: Yes = False,
    plain: Plain = False,
    as_json: Json = False,
    serve: Serve = False,
    port: Port = 0,
    people_at: PeopleAt = "",
    notify: Notify = None,
    install: Install = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Go on with a day that was interrupted.

    Answered questions are not asked again. An interrupted run is run again; a finished one is only judged. A day that
    ran with --attach needs --attach again: the day's folder must not decide which datacenter is broken. Exit codes are
    as for `gameday run`.
    """
    memory = Memory.of(notify)
    folder = find_day(day, runs_dir.parent / DAYS, open_only=day is None)
    say = console()
    with war_room(serve, port, say, people_at=people_at) as room, DayJournal.resume(folder) as journal:
        there = _where(journal, attach, breaks_quorum=breaks_quorum)
        plan = plan_of_day(folder, journal, over=resolve if there is None else there.over)
        if other := changed(plan, journal):
            raise UsageError(
                f"{folder}: {', '.join(other)} changed since this day began: undo that, or begin a new day"
            )
        _check_asking(plan, yes=yes, as_json=as_json)
        allow_installing(install)
        _tidy(folder, journal, there, lambda text: words.tell(say, text))
        code = _Day(plan, journal, say, memory, there, yes, plain).go_on(room, as_json=as_json)
    raise typer.Exit(code)


def _where(journal: DayJournal, attach: Path | None, *, breaks_quorum: bool) -> Standing | None:
    """The datacenter that the operator names. The day's folder, perhaps a stranger's, only says which one it was."""
    name = journal.head.get("attached")
    if attach is None:
        if name is not None:
            raise UsageError(f"this day ran against {name}: name that datacenter's file again with --attach FILE")
        return None
    there = attached(attach, *_said(breaks_quorum))
    if there.target.name != name:
        where = f"against {name}" if name else "without an existing datacenter"
        raise UsageError(f"{attach} is {there.target.name}, and this day ran {where}")
    return there


def report(
    day: Annotated[str, typer.Argument(metavar="DAY", help=_DAY_HELP)] = "last",
    as_json: Json = False,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Write the report of a day again, from its journal.

    Writes HTML, Markdown, JSON, and the action items as a task list. Works for an unfinished day too, but not once an
    experiment of the day has changed. Exits with 0 if the report could be written.
    """
    folder = find_day(day, runs_dir.parent / DAYS)
    journal = DayJournal.read(folder)
    plan = plan_of_day(folder, journal)
    if other := changed(plan, journal):
        raise UsageError(
            f"{folder}: {', '.join(other)} changed since this day began, and a new report would describe "
            f"experiments that did not run: undo the change; the earlier report is still there ({folder / REPORT_NAME})"
        )
    found = outcome_of(plan, journal)
    page = write_reports(found, folder)
    if as_json:
        print_json(found)
    else:
        words.summary(console(), found, folder, page)


def _check_asking(plan: Plan, *, yes: bool, as_json: bool) -> None:
    if as_json and not yes:
        raise UsageError("--json prints to standard output, where a day asks its questions: use it with --yes")
    if yes and (missing := plan.needs_a_person()):
        listed = "; ".join(missing)
        raise UsageError(
            f"--yes asks no one, but a person must confirm: {listed}. Run the day without --yes, or write"
            " `unattended: true` next to each `confirm` that a scheduled day may go without"
        )


@dataclass
class _Day:
    """A day in progress: what its steps share. `page` shows the day in a war room."""

    plan: Plan
    journal: DayJournal
    say: Console
    memory: Memory
    there: Standing | None
    yes: bool
    plain: bool
    page: OnPage | None = None
    whole: Progress | None = None

    def go_on(self, room: Room | None, *, as_json: bool) -> int:
        """Runs the day to its end or to an interrupt. Returns the exit code."""
        plan, journal, folder = self.plan, self.journal, self.journal.path.parent
        again = f"hashidrill gameday resume {shlex.quote(str(folder))}{' --yes' if self.yes else ''}"
        if self.there is not None:
            again += f" --attach {shlex.quote(str(journal.head['attach']))}"
        lead = self._lead(again, room)
        runs_s = sum(total_s(each.resolved) for each in plan.runs)
        alone_s = runs_s if self.yes and not journal.sessions else None
        self.whole = Progress(self.say, alone_s)  # how long people take is unknown
        journal.session(unattended=self.yes)
        self.tell(f"the day's folder: {folder}")
        announce(plan.day.metadata.name, runs_s, tell=self.tell)
        try:
            conduct(
                plan,
                journal,
                lead,
                self._play,
                lambda check: look_at(plan, check, folder, self.tell, self.there),
                again=self._judge_again,
                stopped=lambda: self.memory.interrupted,
            )
        except KeyboardInterrupt as stop:
            found = outcome_of(plan, journal)
            write_reports(found, folder)
            for path in recordings_of(stop.args[0]) if stop.args else ():
                self.memory.keep(Recording(path), None, self.say)
            self.memory.keep_day(folder, self.say)
            self.tell("")
            if stop.args and (of_run := recordings_of(stop.args[0])):
                self.tell(cut_short(of_run[-1], "when the day is resumed"))
            self.tell(f"The day is interrupted; everything so far is kept in {folder}. Go on with:")
            self.tell(f"  {again}")
            stuck = bool(stop.args) and any(Recording(path).outcome == "revert" for path in recordings_of(stop.args[0]))
            return RevertError.exit_code if stuck or found["exit_code"] == RevertError.exit_code else _INTERRUPTED
        except HashidrillError:
            self.tell("")
            self.tell(f"The day stops here; once this is fixed, go on with: {again}")
            raise
        found = outcome_of(plan, journal)
        written = write_reports(found, folder)
        self.memory.keep_day(folder, self.say)
        if as_json:
            print_json(found)
        else:
            words.summary(self.say, found, folder, written)
        return int(found["exit_code"])

    def tell(self, text: str, style: str = "") -> None:
        words.tell(self.say, text, style)

    def _lead(self, again: str, room: Room | None) -> Lead:
        """Decides who leads the day: a person at the terminal, a person at the terminal and on the war room's page, or
        no one (`--yes`).
        """
        asker = Asker(room) if room is not None and not self.yes else None

        def tell(text: str, style: str = "") -> None:
            self.tell(text, style)
            if self.page is not None and style == TROUBLE:
                self.page.trouble = text.strip()

        def ask(prompt: str) -> str:
            if asker is None or self.page is None:
                return words.ask(prompt, self.say)
            *before, last = live.folded(prompt.rstrip(), self.say)
            for part in before:
                live.say(self.say, part)
            return asker.ask(last, self.page.expected, self.page.trouble)

        lead: Lead = Unattended(tell, time.sleep)
        if not self.yes:
            resumed = bool(self.journal.sessions)
            lead = terminal = Terminal(self.plan, tell, ask, resume=again, today=dt.date.today, resumed=resumed)
            terminal.welcome()
        if room is not None:
            lead = self.page = OnPage(self.plan, room, lead, keep=None if self.yes else self.journal.finish)
            self.page.opens(self.journal.done)
        if asker is not None and room is not None and self.page is not None:
            self.page.heard = asker.tell
            for key, name in room.people.items():
                live.say(self.say, f"page for {name:<13} {room.invite(key)}")
            self.tell(
                "Send each person their own address: they predict there, and no one can answer for another person."
            )
        return lead

    def _play(self, planned: PlannedRun, folder: Path) -> dict[str, Any]:
        folder.mkdir(mode=0o700, exist_ok=True)
        if planned.spec.compare:
            variant = self._variant(planned)
            say = lambda text: live.say(self.say, text, "bold")  # noqa: E731 - one line, used once
            result = compare(self.plan, planned, folder, one=variant, say=say)
            self._shown(planned, result)
        else:
            with self._view(planned) as (view, also):
                where = {} if self.there is None else {"runner": self.there.run}
                result, recording, verdict = play(self.plan, planned, folder, view=view.event, also=also, **where)
            self._shown(planned, result)
            self.memory.keep(recording, verdict, self.say)
            # stopped from outside: nothing more may begin there
            if self.there is not None and recording.outcome == _STOPPED:
                raise KeyboardInterrupt(recording.path)
        if not self.yes:
            _forget_typed()
        return result

    @contextlib.contextmanager
    def _view(self, planned: PlannedRun, variant: str = "") -> Iterator[tuple[live.LiveView, list[Any]]]:
        """The live view of a run, and the other subscribers to its events."""
        title = f"{planned.title}{variant}"
        also = [] if self.page is None else [self.page.shows(planned, title)]
        of_it = expected_s(planned.resolved.experiment)
        with live.LiveView(self.say, title, plain=self.plain, expected_s=of_it, whole=self.whole) as view:
            yield view, also

    def _shown(self, planned: PlannedRun, result: dict[str, Any]) -> None:
        if self.page is not None:
            self.page.ran(planned, result)

    def _variant(self, planned: PlannedRun) -> PlayOne:
        """Returns a function that plays one variant of a comparison, with its own live view."""

        def one(resolved: ResolvedExperiment, folder: Path) -> tuple[Recording, RunVerdict]:
            with self._view(planned, f" ({resolved.variant})") as (view, also):
                recording, verdict, _ = play_alone(resolved, folder, view=view.event, also=also)
            self.memory.keep(recording, verdict, self.say)
            if self.memory.interrupted:
                raise KeyboardInterrupt(recording.path)
            return recording, verdict

        return one

    def _judge_again(self, planned: PlannedRun, recording: Path) -> dict[str, Any] | None:
        found = judged_again(self.plan, planned, recording) if (recording / JOURNAL_NAME).is_file() else None
        if found is None:
            return None
        result, kept, verdict = found
        said = f"it had ended before the day was interrupted, and is judged now: {verdict.verdict}"
        self.tell(f"{planned.name}: {said}")
        self._shown(planned, result)
        self.memory.keep(kept, verdict, self.say)
        return result


def _forget_typed() -> None:
    """Discards keys typed during a run: an early Enter would start the next experiment."""
    with contextlib.suppress(OSError, ValueError, termios.error):  # a closed terminal: the next question says so
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _tidy(folder: Path, journal: DayJournal, there: Standing | None, tell: Callable[[str], None]) -> None:
    """Heals each interrupted run, closes the run whose runner died, and removes its sandbox.

    Raises RevertError if a fault of one of these runs may still be in force, because then no run may begin.
    """
    dirty = bool(journal.dangling)
    lefts = [str(entry["recording"]) for entry in journal.interrupted]
    lefts += [left_recording(journal, folder)] if journal.dangling else []
    heal = (
        "hashidrill heal" if there is None else f"hashidrill heal --attach {shlex.quote(str(journal.head['attach']))}"
    )
    for path in (path for left in lefts if left for path in recordings_of(folder / left)):
        found = [anyio.run(heal_run, path)] if there is None else anyio.run(there.heal, [path], tell)
        for healed in filter(None, found):
            if healed.stuck or (healed.refused and not (healed.died and there is None)):
                raise RevertError(
                    f"{path}: a fault may still be in force: {', '.join(healed.stuck) or healed.refused};"
                    f" `{heal} {path}` must find nothing left, then `hashidrill gameday resume {folder}` goes on"
                )
            dirty = True
    if dirty and there is None:
        sweep()
