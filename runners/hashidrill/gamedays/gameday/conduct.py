"""Conducts a game day: does one step after the other, and writes each down before and after it.

Whoever leads is a `Lead`: a person at a terminal, or nobody at all (`Unattended`). What plays a run is a parameter.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from hashidrill.gamedays.gameday.answers import Value
from hashidrill.gamedays.gameday.journal import DayJournal, Result
from hashidrill.gamedays.gameday.model import GoCheck, Message, Person, Question
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.gamedays.gameday.steps import LATE, Step, decide_abort, next_step, too_long

RUNS = "runs"
"""The folder in a day's folder that has its recordings."""
Looked = tuple[bool, str]
"""Whether something is as it must be, and what was found."""
Look = Callable[[GoCheck], Looked]
Play = Callable[[PlannedRun, Path], Result]
"""Plays a run, with its recording below the folder. An interrupted one raises KeyboardInterrupt with the recording."""
Again = Callable[[PlannedRun, Path], Result | None]
"""Judges what a run left that had ended before the day was interrupted; None for a run that has to be made again."""


class Lead(Protocol):
    """Who decides and answers."""

    def checked(self, check: GoCheck, found: Looked) -> None:
        """Is shown what was found."""

    def confirms(self, check: GoCheck) -> Looked:
        """Says yes or no, and what there is to say about it."""

    def is_told(self, message: Message) -> bool:
        """Whether somebody says that the message was sent."""

    def predicts(self, run: PlannedRun, key: str, person: Person, name: str, question: Question) -> Value | None:
        """None for no prediction."""

    def goes(self, run: PlannedRun) -> str:
        """go, skip or stop."""

    def begins(self, run: PlannedRun, attempt: int) -> None:
        """The run begins now."""

    def notes(self, run: PlannedRun, result: Result) -> str:
        """Is shown what happened; what the scribe writes down about it."""

    def pauses(self, run: PlannedRun) -> None:
        """Waits as long as the plan says, or less."""

    def action(self, number: int) -> Result:
        """`what`, `owner` (a key of people) and `due` (ISO date) of an action item; an empty `what` for no more."""


class Unattended:
    """Nobody: predictions stay empty, and what needs a person was refused before."""

    def __init__(self, say: Callable[[str], None], wait: Callable[[float], None]) -> None:
        self._say, self._wait = say, wait

    def checked(self, check: GoCheck, found: Looked) -> None:
        self._say(f"{'go' if found[0] else 'NO-GO'}: {check.title}: {found[1]}")

    def confirms(self, check: GoCheck) -> Looked:
        return check.unattended, "nobody was asked: unattended"

    def is_told(self, message: Message) -> bool:
        self._say(f"message to {message.to}, which nobody sends: {message.say}")
        return False

    def predicts(self, run: PlannedRun, key: str, person: Person, name: str, question: Question) -> Value | None:
        del run, key, person, name, question
        return None

    def goes(self, run: PlannedRun) -> str:
        del run
        return "go"

    def begins(self, run: PlannedRun, attempt: int) -> None:
        again = f" again, because it was INVALID (attempt {attempt})" if attempt > 1 else ""
        self._say(f"{run.name}: runs{again}")

    def notes(self, run: PlannedRun, result: Result) -> str:
        self._say(f"{run.name}: {result['verdict']}")
        return ""

    def pauses(self, run: PlannedRun) -> None:
        self._wait(float(run.spec.pause))

    def action(self, number: int) -> Result:
        del number
        return {"what": "", "owner": "", "due": ""}


def _makes_all_again(_run: PlannedRun, _recording: Path) -> None:
    """Whatever an interrupted run left."""


def conduct(
    plan: Plan,
    journal: DayJournal,
    lead: Lead,
    play: Play,
    look: Look,
    *,
    again: Again = _makes_all_again,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """From wherever the journal is to the end of the day. Raises what `play` raises; the day can be resumed then.

    Raises KeyboardInterrupt where `stopped` says after a step that somebody wants to stop; the step is done.
    """
    folder = journal.path.parent
    if interrupted := journal.dangling:
        journal.interrupt(interrupted, left_recording(journal, folder))
    while (step := next_step(plan, journal.done)) is not None:
        journal.begin(step.id)
        try:
            result = _do(plan, journal, lead, step, play=play, look=look, again=again)
        except KeyboardInterrupt as stop:
            if step.kind == "run":
                left = _relative(stop.args[0], folder) if stop.args else left_recording(journal, folder)
                journal.interrupt(step.id, left)
            raise
        journal.finish(step.id, result)
        if stopped():
            raise KeyboardInterrupt


def _do(  # noqa: PLR0911 - one return a kind
    plan: Plan, journal: DayJournal, lead: Lead, step: Step, *, play: Play, look: Look, again: Again
) -> Result:
    day = plan.day
    if step.kind == "check":
        check = day.before[step.number]
        found = lead.confirms(check) if check.confirm is not None else look(check)
        lead.checked(check, found)
        return {"ok": found[0], "text": found[1]}
    if step.kind == "message":
        return {"told": lead.is_told(day.messages[step.number])}
    if step.kind == "action":
        return lead.action(step.number)
    if step.kind == "end":
        return {}
    run = plan.run(step.run)
    if step.kind == "predict":
        question = day.questions[step.question]
        answer = lead.predicts(run, step.person, day.people[step.person], step.question, question)
        return {"answer": answer}
    if step.kind == "go":
        return {"do": _go(plan, journal, lead, run)}
    if step.kind == "run":
        folder = journal.path.parent
        left = next((each["recording"] for each in reversed(journal.interrupted) if _left_by(step, each)), "")
        result = again(run, folder / left) if left else None
        if result is None:
            lead.begins(run, step.number)
            result = play(run, folder / RUNS)
        result["recording"] = _relative(result["recording"], folder)
        return {**result, "abort": decide_abort(plan, journal.done, step, result, journal.worked_s())}
    if step.kind == "note":
        last = journal.done[max((key for key in journal.done if key.startswith(f"run:{run.name}:")), key=_attempt)]
        return {"text": lead.notes(run, last)}
    lead.pauses(run)
    return {}


def _go(plan: Plan, journal: DayJournal, lead: Lead, run: PlannedRun) -> str:
    """What the lead says. Late, where the day has gone on for too long: predictions and talk take their time, too."""
    if too_long(plan, journal.worked_s()):
        return LATE
    said = lead.goes(run)
    return LATE if said == "go" and too_long(plan, journal.worked_s()) else said


def _left_by(step: Step, interrupted: Mapping[str, object]) -> bool:
    return interrupted["step"] == step.id and bool(interrupted["recording"])


def _attempt(step: str) -> int:
    return int(step.rpartition(":")[2])


def _relative(recording: object, folder: Path) -> str:
    """A recording as the journal names it: relative to the day's folder, so that the day can be moved."""
    path = Path(str(recording))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def left_recording(journal: DayJournal, folder: Path) -> str:
    """The recording that no line of the journal names: of a run whose runner died. Empty where it left none.

    Of a comparison, the folder that has its recordings.
    """
    known = {str(result.get("recording")) for result in journal.done.values()}
    known |= {str(entry["recording"]) for entry in journal.interrupted}
    there = sorted(path for path in (folder / RUNS).glob("*") if path.is_dir())
    named = {"/".join(Path(each).parts[:2]) for each in known}  # recordings of a comparison are deeper
    unknown = [path for path in there if _relative(path, folder) not in named]
    return _relative(unknown[-1], folder) if unknown else ""


def due_date(ended: str, within_days: int) -> str:
    """The date that many days after the end of the day, ISO 8601."""
    return (dt.datetime.fromisoformat(ended).date() + dt.timedelta(days=within_days)).isoformat()
