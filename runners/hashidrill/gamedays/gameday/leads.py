"""The lead of a game day: a person at a terminal, and on a page of the war room too."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.units import shown
from hashidrill.gamedays.gameday.answers import Value, choices, how_to_answer, in_words, read_answer
from hashidrill.gamedays.gameday.conduct import Lead, Looked
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.model import GoCheck, Message, Person, Question
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.reports.text import counted, one_line

if TYPE_CHECKING:
    from hashidrill.core.protocols.events import Subscriber
    from hashidrill.gamedays.warroom.room import Room


Say = Callable[..., None]
Ask = Callable[[str], str]
Answer = TypeVar("Answer")
_LONGEST, _LONGEST_NAME = 4000, 120
TROUBLE = "yellow"
"""The style of errors in an answer."""


class Terminal:
    """`say(line, style)` shows a line, `ask(prompt)` reads one; it raises KeyboardInterrupt at the end of input."""

    def __init__(
        self, plan: Plan, say: Say, ask: Ask, *, resume: str, today: Callable[[], dt.date], resumed: bool = False
    ) -> None:
        self._plan, self._say, self._ask, self._today = plan, say, ask, today
        self._resume = resume
        self._section = ""
        self._asked_of = ""
        self._resumed = resumed

    def welcome(self) -> None:
        """Shown before the first step: the day, its people, and how to stop."""
        day = self._plan.day
        self._say("")
        self._say(day.metadata.title, "bold")
        if self._resumed:
            self._say(
                "The day goes on where it stopped. Nothing that was answered is asked again. Ctrl-C stops it again:"
            )
            self._say("everything is kept, and you go on with the same command.")
            return
        if day.metadata.why:
            self._say(day.metadata.why)
        for goal in day.goals:
            self._say(f"  goal: {goal}")
        for key, person in day.people.items():
            self._say(f"  {person.role}: {day.shown(key)}")
        runs = ", ".join(run.name for run in self._plan.runs)
        self._say(f"  {counted(len(self._plan.runs), 'experiment')}, in this order: {runs}")
        self._say("")
        self._say("The lead types; everybody else watches. Ctrl-C stops at any moment: faults are reverted first, and")
        self._say("nothing that you answered is lost. To go on later:")
        self._say(f"  {self._resume}")

    def checked(self, check: GoCheck, found: Looked) -> None:
        self._enter("before")
        self._say(f"  {'go' if found[0] else 'NO-GO'}: {check.title}: {found[1]}", "green" if found[0] else "bold red")

    def confirms(self, check: GoCheck) -> Looked:
        self._enter("before")
        yes = self._until(f"  {check.title}? (y/n) ", _yes_or_no)
        return yes, f"{self._plan.day.shown(self._plan.day.lead)} says {'yes' if yes else 'no'}"

    def is_told(self, message: Message) -> bool:
        self._say("")
        self._say(f"  Tell {message.to}:", "bold")
        self._say(f"    {message.say}")
        return self._until("  Sent? (y/n) ", _yes_or_no)

    def predicts(self, run: PlannedRun, key: str, person: Person, name: str, question: Question) -> Value | None:
        del name
        self._enter(run.name)
        if self._asked_of != f"{run.name} {key}":
            self._asked_of = f"{run.name} {key}"
            self._say("")
            self._say(f"  {self._plan.day.shown(key)} ({person.role}) predicts. Enter alone: no prediction.", "bold")
        self._say(f"  {question.ask}")

        def read(text: str) -> Value | None:
            return read_answer(question, text, run.alerts) if text.strip() else None

        answer = self._until(f"    {how_to_answer(question, run.alerts)}: ", read)
        if answer is not None:
            self._say(f"    noted: {in_words(question, answer)}")
        return answer

    def goes(self, run: PlannedRun) -> str:
        self._enter(run.name)
        self._say("")
        if run.spec.watch:
            self._say(f"  Watch: {run.spec.watch}")
        self._say("  Next: the experiment runs by itself, from the start of its datacenter to its verdict.")
        return self._until("  Enter starts it, s skips it, e ends the day here: ", _go)

    def goes_on(self, run: PlannedRun) -> bool:
        self._enter(run.name)
        self._say("")
        self._say("  The go for this experiment was given before the day was interrupted.")
        return self._until("  Enter starts it now, e leaves the day as it is: ", _go_on)

    def begins(self, run: PlannedRun, attempt: int) -> None:
        self._enter(run.name)
        if attempt > 1:
            self._say(f"  It was INVALID, which proves nothing: it runs again (attempt {attempt}).")
        self._say("  It runs now. Ctrl-C reverts its faults and stops the day; you can go on later.")

    def notes(self, run: PlannedRun, result: Result) -> str:
        self._enter(run.name)
        self._say("")
        self._say(f"  {result['verdict']}  {run.name}", _STYLES.get(result["verdict"], "bold"))
        for each in result["expectations"]:
            if Finding(each["finding"]).verdict is not Verdict.PASS:
                self._say(f"    {each['finding']}: {each['title']}: {one_line(each['text'])}")
        for name in run.questions:
            measured = result["measured"].get(name)
            if measured is not None:
                self._say(f"  {self._plan.day.questions[name].ask} {measured['text']}")
                for each in result.get("predicted", {}).get(name, ()):
                    if each["answer"]:
                        style = TROUBLE if each["came"] == "surprise" else ""
                        self._say(f"    {each['name']} predicted {each['answer']}: {each['came']}", style)
        for each in run.spec.discuss:
            self._say(f"  Discuss: {each}")
        return self._ask("  Notes of the scribe, on one line (Enter alone: none): ").strip()[:_LONGEST]

    def pauses(self, run: PlannedRun) -> None:
        self._ask(f"  Pause, planned: {run.spec.pause}. Enter goes on: ")

    def action(self, number: int) -> Result:
        self._enter("close")
        if number == 1:
            self._say("  Action items: what has to be done, by whom, until when? Enter alone: no more.")
        what = self._ask(f"  {number}. What: ").strip()[:500]
        if not what:
            return {"what": "", "owner": "", "due": ""}
        who = ", ".join(self._plan.day.people)
        owner = self._until(f"     Who ({who}, or anybody else; Enter alone: no owner yet): ", self._person)
        due = self._until("     By when (2026-12-31, or 14d for in 14 days): ", self._date)
        return {"what": what, "owner": owner, "due": due}

    def _enter(self, section: str) -> None:
        if section == self._section:
            return
        self._section = section
        names = ["before", *(run.name for run in self._plan.runs), "close"]
        titles = {"before": "go or no-go", "close": "what follows from it"}
        title = titles.get(section) or f"{section}: {self._plan.run(section).resolved.experiment.metadata.title}"
        self._say("")
        self._say(f"Step {names.index(section) + 1} of {len(names)}: {title}", "bold")

    def _until(self, prompt: str, read: Callable[[str], Answer]) -> Answer:
        while True:
            try:
                return read(self._ask(prompt))
            except ValueError as error:
                self._say(f"    {error}", TROUBLE)

    def _person(self, text: str) -> str:
        people = self._plan.day.people
        wanted = text.strip()
        if wanted in people:
            return wanted
        named = [key for key, person in people.items() if wanted and person.name.casefold() == wanted.casefold()]
        if len(named) == 1:
            return named[0]
        if named:
            raise ValueError(f"{counted(len(named), 'person')} of that name: answer {' or '.join(named)}")
        return wanted[:_LONGEST_NAME]

    def _date(self, text: str) -> str:
        wanted = text.strip()
        try:
            if days := re.fullmatch(r"([0-9]{1,3})\s?d", wanted):
                return (self._today() + dt.timedelta(days=int(days[1]))).isoformat()
            due = dt.date.fromisoformat(wanted)
        except ValueError:
            raise ValueError(f"{shown(wanted)} is no date: write it like 2026-12-31, or 14d") from None
        if due < self._today():
            raise ValueError(f"{due} is over: today is {self._today()}")
        return due.isoformat()


def _one_of(answers: Mapping[str, Answer], otherwise: str) -> Callable[[str], Answer]:
    def read(text: str) -> Answer:
        if (typed := text.strip().lower()) not in answers:
            raise ValueError(otherwise)
        return answers[typed]

    return read


_yes_or_no = _one_of({"y": True, "yes": True, "n": False, "no": False}, "answer y or n")
_go = _one_of({"": "go", "s": "skip", "e": "stop"}, "press Enter, or answer s or e")
_go_on = _one_of({"": True, "e": False}, "press Enter, or answer e")
_STYLES = {"PASS": "bold green", "FAIL": "bold red", "INVALID": "bold yellow"}
_YES_OR_NO = (("Yes", "y"), ("No", "n"))
_GO = (("Go", ""), ("Skip it", "s"), ("End the day here", "e"))


@dataclass(frozen=True)
class Expected:
    """The question that the lead's next line answers: in the lead's words, and in those for everybody."""

    text: str = ""
    """"": use the terminal's prompt."""
    for_all: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""


class OnPage:
    """A `Lead` that shows another lead's questions and answers in the room. `expected` has the open question for the
    reader of the line.
    """

    def __init__(self, plan: Plan, room: Room, lead: Lead) -> None:
        self._plan, self._room, self._lead = plan, room, lead
        self._numbers = {run.name: number for number, run in enumerate(plan.runs, 1)}
        self.expected = Expected()
        self.trouble = ""
        """Why the last answer was none."""

    def opens(self, done: Mapping[str, Result]) -> None:
        """Shows the day so far: its plan, and predictions from before an interruption."""
        day = self._plan.day
        people = [f"{day.shown(key)} ({person.role})" for key, person in day.people.items()]
        self._room.plans(day.metadata.title, [run.name for run in self._plan.runs], goals=day.goals, people=people)
        for step, result in done.items():
            kind, *rest = step.split(":")
            if kind == "predict" and len(rest) == 3 and rest[0] in self._numbers:
                self._predicted(self._plan.run(rest[0]), rest[1], rest[2], day.questions[rest[2]], result["answer"])
            if kind == "run" and rest[0] in self._numbers:
                self.ran(self._plan.run(rest[0]), result)

    def number(self, run: PlannedRun) -> int:
        """From 1."""
        return self._numbers[run.name]

    def shows(self, run: PlannedRun, title: str) -> Subscriber:
        """A run begins: what shows its events."""
        self._room.begins(title, self.number(run))
        return self._room.tell

    def ran(self, run: PlannedRun, result: Result) -> None:
        """Shows the measured answers of a finished run."""
        measured = {key: str(each["text"]) for key, each in result["measured"].items()}
        self._room.happened(self.number(run), measured)
        self._room.ran(self.number(run), str(result["verdict"]))

    def checked(self, check: GoCheck, found: Looked) -> None:
        self._room.note("", f"{'go' if found[0] else 'NO-GO'}: {check.title}: {found[1]}")
        self._lead.checked(check, found)

    def confirms(self, check: GoCheck) -> Looked:
        self._expect(f"{check.title}?", "Go or no-go for the day", _YES_OR_NO)
        return self._lead.confirms(check)

    def is_told(self, message: Message) -> bool:
        self._expect(f"Tell {message.to}: {message.say}\nSent?", "A message is sent", _YES_OR_NO)
        told = self._lead.is_told(message)
        self._room.note("", f"message to {message.to}{'' if told else ' (not sent)'}: {message.say}")
        return told

    def predicts(self, run: PlannedRun, key: str, person: Person, name: str, question: Question) -> Value | None:
        named = choices(question, run.alerts) if question.measure in {"leader", "verdict"} else ()
        buttons = tuple((each, each) for each in named)
        text = f"{self._plan.day.shown(key)} predicts: {question.ask}"
        hint = f"{how_to_answer(question, run.alerts)}. Empty: no prediction."
        self._expect(text, text, (*buttons, ("No prediction", "")) if buttons else (), hint)
        answer = self._lead.predicts(run, key, person, name, question)
        self._predicted(run, key, name, question, answer)
        return answer

    def goes(self, run: PlannedRun) -> str:
        watch = f"Watch: {run.spec.watch}\n" if run.spec.watch else ""
        which = f"{self.number(run)} of {len(self._plan.runs)}"
        self._expect(f"{watch}Go or no-go: {run.name} ({which})?", f"Go or no-go for experiment {which}", _GO)
        said = self._lead.goes(run)
        self._room.note("", f"{run.name}: {said}")
        return said

    def goes_on(self, run: PlannedRun) -> bool:
        which = f"experiment {self.number(run)} of {len(self._plan.runs)}"
        text = f"The day was interrupted. Begin {run.name} now?"
        self._expect(text, f"Go on with {which}", (("Begin", ""), ("Leave the day as it is", "e")))
        return self._lead.goes_on(run)

    def begins(self, run: PlannedRun, attempt: int) -> None:
        self._lead.begins(run, attempt)

    def notes(self, run: PlannedRun, result: Result) -> str:
        """The notes from the page since the last ones, followed by the lead's own."""
        asked = "".join(f"Discuss: {each}\n" for each in run.spec.discuss)
        hint = "What was written in the log of this page is part of the notes already."
        for_all = f"Notes on experiment {self.number(run)}"
        self._expect(f"{asked}Notes of the scribe on {run.name}?", for_all, hint=hint)
        said = self._lead.notes(run, result)
        if said:
            self._room.note("scribe", said)
        return "; ".join([*self._room.take_notes(), *([said] if said else [])])[:_LONGEST]

    def pauses(self, run: PlannedRun) -> None:
        self._expect(f"A planned pause: {run.spec.pause}.", "A planned pause", (("Go on", ""),))
        self._lead.pauses(run)

    def action(self, number: int) -> Result:
        self._expect("", "Action items are written down", (), "An empty answer to `What`: no more.")
        item = self._lead.action(number)
        if item["what"]:
            self._room.note("", f"to do: {item['what']} ({item['owner']}, due {item['due']})")
        return item

    def _expect(self, text: str, for_all: str, buttons: tuple[tuple[str, str], ...] = (), hint: str = "") -> None:
        self.expected, self.trouble = Expected(text, for_all, buttons, hint), ""

    def _predicted(self, run: PlannedRun, key: str, name: str, question: Question, answer: Value | None) -> None:
        if answer is not None:
            said = in_words(question, answer)
            self._room.predicted(self.number(run), name, self._plan.day.shown(key), question.ask, said)
