"""The next step of a game day, computed only from the plan and the results so far.

So any person can resume an interrupted day at the place where it stopped.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hashidrill.core.judging.verdict import Verdict
from hashidrill.gamedays.gameday.answers import Measured, Value, compared, in_words
from hashidrill.gamedays.gameday.journal import DayJournal, Result
from hashidrill.gamedays.gameday.plan import GoCheck, Message, Person, Plan, PlannedRun, Question

Kind = Literal["check", "message", "predict", "go", "run", "note", "pause", "action", "end"]
Done = Mapping[str, Result]
MOST_ACTIONS = 100
LATE = "late"
"""A run whose turn came after the day's time limit: it does not begin, and the day ends."""


@dataclass(frozen=True)
class Step:
    """One step. `id` names it in the journal."""

    id: str
    kind: Kind
    run: str = ""
    number: int = 0
    """The index of a check or a message; the attempt of a run, from 1; the number of an action item, from 1."""
    person: str = ""
    question: str = ""


def steps(plan: Plan, done: Done) -> Iterator[Step]:
    """Yields the steps in order. The results of earlier steps must be in `done` before the next step is requested."""
    for number in range(len(plan.day.before)):
        yield Step(f"check:{number}", "check", number=number)
    if no_go(plan, done):
        yield from _messages(plan, "no-go")
        yield Step("end", "end")
        return
    yield from _messages(plan, "start")
    for run in plan.runs:
        if abort_reason(plan, done) or stopped_by_lead(plan, done, before=run):
            break
        yield from _of_run(plan, done, run)
        if _is_late(done, run):
            break
    else:
        yield from _close(plan, done)
        return
    if abort_reason(plan, done):
        yield from _messages(plan, "abort")
    yield from _close(plan, done)


def prediction_id(run: PlannedRun, person: str, question: str, *, late: bool = False) -> str:
    """The step of a prediction; a `late` prediction is stored separately, and does not count."""
    return f"{'late' if late else 'predict'}:{run.name}:{person}:{question}"


def _of_run(plan: Plan, done: Done, run: PlannedRun) -> Iterator[Step]:
    for person, about in plan.day.people.items():
        if about.predicts:
            for question in run.questions:
                yield Step(prediction_id(run, person, question), "predict", run.name, 0, person, question)
    yield from _messages(plan, f"before {run.name}")
    yield Step(f"go:{run.name}", "go", run.name)
    if done[f"go:{run.name}"]["do"] != "go":
        return
    attempt = 1
    while True:
        yield Step(f"run:{run.name}:{attempt}", "run", run.name, attempt)
        result = done[f"run:{run.name}:{attempt}"]
        if result["verdict"] != Verdict.INVALID or result["abort"] or attempt > plan.day.repeat_invalid:
            break
        attempt += 1
    yield from _messages(plan, f"after {run.name}")
    yield Step(f"note:{run.name}", "note", run.name)
    if run is not plan.runs[-1] and run.spec.pause and not result["abort"]:
        yield Step(f"pause:{run.name}", "pause", run.name)


def _close(plan: Plan, done: Done) -> Iterator[Step]:
    for number in range(1, MOST_ACTIONS + 1):
        yield Step(f"action:{number}", "action", number=number)
        if not done[f"action:{number}"]["what"]:
            break
    yield from _messages(plan, "end")
    yield Step("end", "end")


def _messages(plan: Plan, when: str) -> Iterator[Step]:
    for number, message in enumerate(plan.day.messages):
        if message.when == when:
            yield Step(f"message:{number}", "message", number=number)


def no_go(plan: Plan, done: Done) -> bool:
    """Whether a check failed. Every check must be in `done`."""
    return any(not done[f"check:{number}"]["ok"] for number in range(len(plan.day.before)))


def stopped_by_lead(plan: Plan, done: Done, *, before: PlannedRun | None = None) -> bool:
    """Whether the lead ended the day, before that run or at all."""
    for run in plan.runs:
        if run is before:
            return False
        if done.get(f"go:{run.name}", {}).get("do") == "stop":
            return True
    return False


def attempts(done: Done, run: PlannedRun) -> list[Result]:
    """The results of a run, in order; only the last one counts."""
    found, number = [], 1
    while (result := done.get(f"run:{run.name}:{number}")) is not None:
        found.append(result)
        number += 1
    return found


def abort_reason(plan: Plan, done: Done) -> str:
    """Why the day ends early; "" if it does not. The step that decided it stored the reason."""
    for run in plan.runs:
        if _is_late(done, run):
            return _gone_on(plan)
        for result in attempts(done, run):
            if result["abort"]:
                return str(result["abort"])
    return ""


def decide_abort(plan: Plan, done: Done, step: Step, result: Result, worked_s: float) -> str:
    """Why this result of a run ends the day; "" if it does not. `worked_s` is the day's working time so far."""
    abort = plan.day.abort
    if result["outcome"] == "revert":
        return f"{step.run}: a fault could not be reverted; clean up with `hashidrill heal` first"
    if result["passed"]:
        return f"{step.run}: {result['passed'][0]}"
    final = result["verdict"] != Verdict.INVALID or step.number > plan.day.repeat_invalid
    last = [each["verdict"] for run in plan.runs if run.name != step.run for each in attempts(done, run)[-1:]]
    last += [result["verdict"]] if final else []
    for limit, verdict, word in ((abort.failed, Verdict.FAIL, "FAIL"), (abort.invalid, Verdict.INVALID, "INVALID")):
        if limit is not None and last.count(verdict) >= limit:
            return f"{last.count(verdict)} of the runs ended as {word}; the day ends after {limit}"
    return _gone_on(plan) if too_long(plan, worked_s) else ""


def too_long(plan: Plan, worked_s: float) -> bool:
    """Whether no further step begins after `worked_s` seconds of work."""
    limit = plan.day.abort.longer_than
    return limit is not None and worked_s > limit


def _gone_on(plan: Plan) -> str:
    return f"the day has lasted longer than {plan.day.abort.longer_than}"


def _is_late(done: Done, run: PlannedRun) -> bool:
    return bool(done.get(f"go:{run.name}", {}).get("do") == LATE)


RUNS = "runs"
"""The folder of the recordings, in the day's folder."""
Looked = tuple[bool, str]
"""The result of a check, and the evidence."""
Look = Callable[[GoCheck], Looked]
Play = Callable[[PlannedRun, Path], Result]
"""Plays a run and records it below the folder. Raises KeyboardInterrupt with the recording if it is interrupted."""
Again = Callable[[PlannedRun, Path], Result | None]
"""Judges a finished run of an interrupted day; None for a run that must be repeated."""


class Lead(Protocol):
    """The person who leads the day."""

    def checked(self, check: GoCheck, found: Looked) -> None:
        """Shows the result of a check."""

    def confirms(self, check: GoCheck) -> Looked:
        """Asks for confirmation and a comment."""

    def is_told(self, message: Message) -> bool:
        """Asks whether the message was sent."""

    def predicts(self, run: PlannedRun, key: str, person: Person, name: str, question: Question) -> Value | None:
        """A person's prediction; None without one."""

    def goes(self, run: PlannedRun) -> str:
        """The lead's decision: go, skip or stop."""

    def goes_on(self, run: PlannedRun) -> bool:
        """Whether to begin a run now if its go was given before the day was interrupted."""

    def begins(self, run: PlannedRun, attempt: int) -> None:
        """The run begins now."""

    def notes(self, run: PlannedRun, result: Result) -> str:
        """Shows the result next to the `predictions`, and returns the scribe's notes."""

    def pauses(self, run: PlannedRun) -> None:
        """Waits for the planned pause; the lead may end it early."""

    def action(self, number: int) -> Result:
        """Asks for an action item; an empty `what` ends the list.

        `owner` is a key of people, free text, or empty for none; `due` is an ISO date.
        """


class Unattended:
    """A day without a lead: predictions stay empty, and steps that need a person are refused before the day begins."""

    def __init__(self, say: Callable[[str], None], wait: Callable[[float], None]) -> None:
        self._say, self._wait = say, wait

    def checked(self, check: GoCheck, found: Looked) -> None:
        self._say(f"{'go' if found[0] else 'NO-GO'}: {check.title}: {found[1]}")

    def confirms(self, check: GoCheck) -> Looked:
        return check.unattended, "not asked: the day is unattended"

    def is_told(self, message: Message) -> bool:
        self._say(f"message to {message.to}, not sent because the day is unattended: {message.say}")
        return False

    def predicts(self, run: PlannedRun, key: str, person: Person, name: str, question: Question) -> Value | None:
        del run, key, person, name, question
        return None

    def goes(self, run: PlannedRun) -> str:
        del run
        return "go"

    def goes_on(self, run: PlannedRun) -> bool:
        del run
        return True

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


def conduct(
    plan: Plan,
    journal: DayJournal,
    lead: Lead,
    play: Play,
    look: Look,
    *,
    again: Again = lambda *_: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Plays from the journal's position to the end of the day. Raises what `play` raises; the day can be resumed then.

    Raises KeyboardInterrupt if `stopped` is true after a step; that step stays done. If the first step is a run, the
    lead said go before an interruption, and must confirm it before anything breaks.
    """
    folder = journal.path.parent
    if interrupted := journal.dangling:
        journal.interrupt(interrupted, left_recording(journal, folder))
    first = True
    while (step := next((each for each in steps(plan, journal.done) if each.id not in journal.done), None)) is not None:
        known = None
        if first and step.kind == "run":
            run, left = plan.run(step.run), _left_by(journal, step)
            known = again(run, folder / left) if left else None
            if known is None and not lead.goes_on(run):
                raise KeyboardInterrupt
        first = False
        journal.begin(step.id)
        try:
            result = _do(plan, journal, lead, step, play=play, look=look, known=known)
        except KeyboardInterrupt as stop:
            if step.kind == "run":
                left = _relative(stop.args[0], folder) if stop.args else left_recording(journal, folder)
                journal.interrupt(step.id, left)
            raise
        if step.id not in journal.done:  # a page may already have written a person's answer
            journal.finish(step.id, result)
        if stopped():
            raise KeyboardInterrupt


def _do(  # noqa: PLR0911 - one return per kind
    plan: Plan, journal: DayJournal, lead: Lead, step: Step, *, play: Play, look: Look, known: Result | None
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
        folder, result = journal.path.parent, known
        if result is None:
            lead.begins(run, step.number)
            result = play(run, folder / RUNS)
        result["recording"] = _relative(result["recording"], folder)
        return {**result, "abort": decide_abort(plan, journal.done, step, result, journal.worked_s())}
    if step.kind == "note":
        last = attempts(journal.done, run)[-1]
        predicted = {name: predictions(plan, journal.done, run, name, last) for name in run.questions}
        return {"text": lead.notes(run, {**last, "predicted": predicted})}
    lead.pauses(run)
    return {}


def _left_by(journal: DayJournal, step: Step) -> str:
    """The recording that the last interruption of a step left; empty without one."""
    lefts = [str(each["recording"]) for each in journal.interrupted if each["step"] == step.id and each["recording"]]
    return lefts[-1] if lefts else ""


def predictions(plan: Plan, done: Done, run: PlannedRun, name: str, last: Result) -> list[dict[str, str]]:
    """People's predictions for a question, and the outcome in the run's last attempt."""
    question, said = plan.day.questions[name], last.get("measured", {}).get(name)
    # a run that proves nothing cannot contradict a prediction
    told = Measured.from_data(said) if said is not None and last["verdict"] != Verdict.INVALID else None
    found = []
    for key in plan.day.people:
        result, late = (done.get(prediction_id(run, key, name, late=late)) for late in (False, True))
        if result is not None:
            answer = (late or result)["answer"]
            came = compared(question, answer, told) if late is None or answer is None else "late"
            shown = in_words(question, answer)
            found.append({"person": key, "name": plan.day.shown(key), "answer": shown, "came": came})
    return found


def _go(plan: Plan, journal: DayJournal, lead: Lead, run: PlannedRun) -> str:
    """The lead's decision. LATE if the day has exceeded its time: predictions and talk take time too."""
    if too_long(plan, journal.worked_s()):
        return LATE
    said = lead.goes(run)
    return LATE if said == "go" and too_long(plan, journal.worked_s()) else said


def _relative(recording: object, folder: Path) -> str:
    """A recording's path for the journal: relative to the day's folder, so that the folder can be moved."""
    path = Path(str(recording))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def left_recording(journal: DayJournal, folder: Path) -> str:
    """The recording of a run that died before the journal named the recording. "" if there is none.

    For a comparison, returns the folder that holds its recordings.
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
