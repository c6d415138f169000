"""A game day in a war room: whoever leads is asked on a page too, and everybody sees what was predicted and decided.

Those who only watch read no name of an experiment, because most are named after what they break.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hashidrill.gamedays.gameday.answers import Value, choices, how_to_answer, in_words
from hashidrill.gamedays.gameday.conduct import Lead, Looked
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.model import GoCheck, Message, Person, Question
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun

if TYPE_CHECKING:
    from hashidrill.core.protocols.events import Subscriber
    from hashidrill.gamedays.warroom.room import Room

_YES_OR_NO = (("Yes", "y"), ("No", "n"))
_GO = (("Go", ""), ("Skip it", "s"), ("End the day here", "e"))
_NOTE = 4000


@dataclass(frozen=True)
class Expected:
    """What the next line of the lead answers: as the lead reads it, and as everybody may."""

    text: str = ""
    """Empty: what the terminal asks."""
    for_all: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""


class OnPage:
    """A `Lead` that tells the room what another is asked, and what it says. `expected` is for who reads its line."""

    def __init__(self, plan: Plan, room: Room, lead: Lead) -> None:
        self._plan, self._room, self._lead = plan, room, lead
        self._numbers = {run.name: number for number, run in enumerate(plan.runs, 1)}
        self.expected = Expected()
        self.trouble = ""
        """Why the last answer was none."""

    def opens(self, done: Mapping[str, Result]) -> None:
        """The day as far as it is: its plan, and what was predicted before it was interrupted."""
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
        """A run ended: what was measured of what people had predicted."""
        measured = {key: str(each["text"]) for key, each in result["measured"].items()}
        self._room.happened(self.number(run), measured)
        self._room.ran(self.number(run), str(result["verdict"]))

    # what a Lead does

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
        self._expect(
            text,
            text,
            (*buttons, ("No prediction", "")) if buttons else (),
            f"{how_to_answer(question, run.alerts)}. Empty: no prediction.",
        )
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

    def begins(self, run: PlannedRun, attempt: int) -> None:
        self._lead.begins(run, attempt)

    def notes(self, run: PlannedRun, result: Result) -> str:
        """What was written on the page since the day's last note goes before what is said now."""
        asked = "".join(f"Discuss: {each}\n" for each in run.spec.discuss)
        self._expect(
            f"{asked}Notes of the scribe on {run.name}?",
            f"Notes on experiment {self.number(run)}",
            (),
            "What was written in the log of this page is part of the notes already.",
        )
        said = self._lead.notes(run, result)
        if said:
            self._room.note("scribe", said)
        return "; ".join([*self._room.take_notes(), *([said] if said else [])])[:_NOTE]

    def pauses(self, run: PlannedRun) -> None:
        self._expect(f"A planned pause: {run.spec.pause}.", "A planned pause", (("Go on", ""),))
        self._lead.pauses(run)

    def action(self, number: int) -> Result:
        self._expect("", "Action items are written down", (), "An empty answer to `What`: no more.")
        item = self._lead.action(number)
        if item["what"]:
            self._room.note("", f"to do: {item['what']} ({item['owner']}, due {item['due']})")
        return item

    # the parts

    def _expect(self, text: str, for_all: str, buttons: tuple[tuple[str, str], ...] = (), hint: str = "") -> None:
        self.expected, self.trouble = Expected(text, for_all, buttons, hint), ""

    def _predicted(self, run: PlannedRun, key: str, name: str, question: Question, answer: Value | None) -> None:
        if answer is not None:
            said = in_words(question, answer)
            self._room.predicted(self.number(run), name, self._plan.day.shown(key), question.ask, said)
