"""The lead at a terminal: numbered steps, what happens next, and how to stop. Nothing else has to be read."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import TypeVar

from hashidrill.core.protocols.registry import near
from hashidrill.core.units import shown
from hashidrill.gamedays.gameday.answers import Value, how_to_answer, in_words, read_answer
from hashidrill.gamedays.gameday.conduct import Looked
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.model import GoCheck, Message, Person, Question
from hashidrill.gamedays.gameday.plan import Plan, PlannedRun
from hashidrill.reports.text import counted

Say = Callable[..., None]
Ask = Callable[[str], str]
Answer = TypeVar("Answer")
_LONGEST = 4000
TROUBLE = "yellow"
"""The style of what is wrong with an answer."""
_GO = {"": "go", "s": "skip", "e": "stop"}


class Terminal:
    """`say(line, style)` shows a line, `ask(prompt)` reads one; it raises KeyboardInterrupt where nobody is there."""

    def __init__(
        self, plan: Plan, say: Say, ask: Ask, *, resume: str, today: Callable[[], dt.date], resumed: bool = False
    ) -> None:
        self._plan, self._say, self._ask, self._today = plan, say, ask, today
        self._resume = resume
        self._section = ""
        self._asked_of = ""
        self._resumed = resumed

    def welcome(self) -> None:
        """Before the first step: what this is, who takes part, and how to stop."""
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

    # what a Lead does

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

    def begins(self, run: PlannedRun, attempt: int) -> None:
        self._enter(run.name)
        if attempt > 1:
            self._say(f"  It was INVALID, which proves nothing: it runs again (attempt {attempt}).")
        self._say("  It runs now. Ctrl-C reverts its faults and stops the day; you can go on later.")

    def notes(self, run: PlannedRun, result: Result) -> str:
        self._enter(run.name)
        self._say("")
        for name in run.questions:
            measured = result["measured"].get(name)
            if measured is not None:
                self._say(f"  {self._plan.day.questions[name].ask} {measured['text']}")
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
        owner = self._until(f"     Who ({', '.join(self._plan.day.people)}): ", self._person)
        due = self._until("     By when (2026-12-31, or 14d for in 14 days): ", self._date)
        return {"what": what, "owner": owner, "due": due}

    # the parts

    def _enter(self, section: str) -> None:
        """A heading where a new step of the day begins."""
        if section == self._section:
            return
        self._section = section
        names = ["before", *(run.name for run in self._plan.runs), "close"]
        titles = {"before": "go or no-go", "close": "what follows from it"}
        title = titles.get(section) or f"{section}: {self._plan.run(section).resolved.experiment.metadata.title}"
        self._say("")
        self._say(f"Step {names.index(section) + 1} of {len(names)}: {title}", "bold")

    def _until(self, prompt: str, read: Callable[[str], Answer]) -> Answer:
        """Ask until the answer reads."""
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
        raise ValueError(f"{shown(wanted)} takes no part: {near(wanted, people)}")

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


def _yes_or_no(text: str) -> bool:
    answers = {"y": True, "yes": True, "n": False, "no": False}
    found = answers.get(text.strip().lower())
    if found is None:
        raise ValueError("answer y or n")
    return found


def _go(text: str) -> str:
    found = _GO.get(text.strip().lower())
    if found is None:
        raise ValueError("press Enter, or answer s or e")
    return found
