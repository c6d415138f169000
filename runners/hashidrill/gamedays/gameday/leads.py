"""The lead of a game day: a person at a terminal, who can also use a page of the war room."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.units import counted, shown
from hashidrill.gamedays.gameday.answers import Value, choices, how_to_answer, in_words, read_answer
from hashidrill.gamedays.gameday.conduct import Lead, Looked, attempts, prediction_id
from hashidrill.gamedays.gameday.journal import Result
from hashidrill.gamedays.gameday.plan import GoCheck, Message, Person, Plan, PlannedRun, Question
from hashidrill.gamedays.warroom.ballot import Ballot, BallotQuestion, Given, RefusedError
from hashidrill.reports.text import one_line

if TYPE_CHECKING:
    from hashidrill.core.protocols.events import Subscriber
    from hashidrill.gamedays.warroom.room import Room


Say = Callable[..., None]
Ask = Callable[[str], str]
Answer = TypeVar("Answer")
_LONGEST, _LONGEST_NAME = 4000, 120
TROUBLE = "yellow"
"""The style of messages about an invalid answer."""


class Terminal:
    """`say(line, style)` shows a line. `ask(prompt)` reads a line, and raises KeyboardInterrupt at the end of input."""

    def __init__(
        self, plan: Plan, say: Say, ask: Ask, *, resume: str, today: Callable[[], dt.date], resumed: bool = False
    ) -> None:
        self._plan, self._say, self._ask, self._today = plan, say, ask, today
        self._resume = resume
        self._section = ""
        self._asked_of = self._collected = ""
        self._resumed = resumed

    def welcome(self) -> None:
        """Shown before the first step: the day, its people, and how to stop."""
        day = self._plan.day
        self._say("")
        self._say(day.metadata.title, "bold")
        if self._resumed:
            self._say(
                "The day continues where it stopped. No answered question is asked again. Ctrl-C stops the day again:"
            )
            self._say("everything is stored, and the same command resumes the day.")
            return
        if day.metadata.why:
            self._say(day.metadata.why)
        for goal in day.goals:
            self._say(f"  goal: {goal}")
        for key, person in day.people.items():
            self._say(f"  {person.role}: {day.shown(key)}")
        self._say(f"  {counted(len(self._plan.runs), 'experiment')}")
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

    def collects(self, run: PlannedRun, waiting: Callable[[], Sequence[str]]) -> str:
        """Asks while people answer on pages: "" shows the answers; a person's key enters that person's answers."""
        self._enter(run.name)
        if self._collected != run.name:
            self._collected = run.name
            self._say("")
            self._say(
                "  Everybody predicts on a page of their own. All answers stay hidden until all are shown together.",
                "bold",
            )

        def read(text: str) -> str:
            wanted = text.strip().casefold()
            names = {name.casefold(): key for key in waiting() for name in (self._plan.day.shown(key), key)}
            if wanted and wanted not in names:
                raise ValueError(f"press Enter, or type the name of a person without answers: {', '.join(waiting())}")
            return names.get(wanted, "")

        return self._until(
            "  Enter shows the answers and continues (type a name to enter that person's answers): ", read
        )

    def reveals(self, run: PlannedRun, answers: Sequence[tuple[str, str, str]]) -> None:
        """Shows who predicted what: the question, the person's name, the answer."""
        self._enter(run.name)
        self._say("")
        self._say("  The answers:" if answers else "  Nobody predicted anything.")
        for ask, given in itertools.groupby(answers, key=lambda each: each[0]):
            self._say(f"    {ask} {'; '.join(f'{name}: {answer}' for _, name, answer in given)}")

    def goes(self, run: PlannedRun) -> str:
        self._enter(run.name)
        self._say("")
        if run.spec.watch:
            self._say(f"  Watch: {run.spec.watch}")
        self._say("  Next: the experiment runs without your help, from the start of its datacenter to its verdict.")
        return self._until("  Enter starts it, s skips it, e ends the day here: ", _go)

    def goes_on(self, run: PlannedRun) -> bool:
        self._enter(run.name)
        self._say("")
        self._say("  The go for this experiment was given before the day was interrupted.")
        return self._until("  Enter starts it now, e leaves the day as it is: ", _go_on)

    def begins(self, run: PlannedRun, attempt: int) -> None:
        self._enter(run.name)
        if attempt > 1:
            self._say(f"  The run was INVALID, which proves nothing: the experiment runs again (attempt {attempt}).")
        self._say("  It runs now. Ctrl-C reverts its faults and stops the day; you can go on later.")

    def notes(self, run: PlannedRun, result: Result) -> str:
        self._enter(run.name)
        self._say("")
        self._say(f"  {result['verdict']}  {run.name}: {run.title_after}", _STYLES.get(result["verdict"], "bold"))
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
        self._ask(f"  Planned pause: {run.spec.pause}. Enter continues: ")

    def action(self, number: int) -> Result:
        self._enter("close")
        if number == 1:
            self._say("  Action items: what has to be done, by whom, by when? Enter alone ends the list.")
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
        titles = {"before": "go or no-go", "close": "action items"}
        title = titles.get(section) or self._plan.run(section).title
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
            raise ValueError(f"{shown(wanted)} is not a date: write it like 2026-12-31, or 14d") from None
        if due < self._today():
            raise ValueError(f"{due} is in the past: today is {self._today()}")
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
    """The question that the lead's next line answers: the text for the lead, and the text for everyone else."""

    text: str = ""
    """"": use the terminal's prompt."""
    for_all: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""
    is_over: Callable[[], bool] = lambda: False
    """Whether an answer is no longer needed; an empty line then counts as the answer."""


class OnPage:
    """A `Lead` that shows another lead's questions and answers in the room. `expected` is the question that the next
    line answers.

    `keep` writes the result of a step to the journal. With `keep`, people predict on their own pages, and the lead's
    terminal shows who has answered.
    """

    def __init__(
        self, plan: Plan, room: Room, lead: Lead, *, keep: Callable[[str, Result], None] | None = None
    ) -> None:
        self._plan, self._room, self._lead, self._keep = plan, room, lead, keep
        self._done: Mapping[str, Result] = {}
        self.heard: Callable[[str], None] = lambda _: None
        """Called, in any thread, with a line about a person who answered or left."""
        self._numbers = {run.name: number for number, run in enumerate(plan.runs, 1)}
        self.expected = Expected()
        self.trouble = ""
        """Why the last answer was invalid."""

    def opens(self, done: Mapping[str, Result]) -> None:
        """Shows the day so far: its plan, and predictions from before an interruption."""
        day = self._plan.day
        people = [f"{day.shown(key)} ({person.role})" for key, person in day.people.items()]
        self._room.plans(day.metadata.title, [run.title for run in self._plan.runs], goals=day.goals, people=people)
        self._room.people = {key: day.shown(key) for key, person in day.people.items() if person.predicts}
        self._room.left = self._has_left
        self._done = done
        for run in self._plan.runs:
            if run.questions and all(
                prediction_id(run, key, name) in done for key in self._room.people for name in run.questions
            ):
                self._shows(run, {key: self._kept(run, key) for key in self._room.people})
            for result in attempts(done, run):
                self.ran(run, result)

    def _kept(self, run: PlannedRun, key: str) -> Given:
        return {name: self._done[prediction_id(run, key, name)]["answer"] for name in run.questions}

    def number(self, run: PlannedRun) -> int:
        """The run's number in the day, from 1."""
        return self._numbers[run.name]

    def shows(self, run: PlannedRun, title: str) -> Subscriber:
        """A run begins; returns the view that shows its events."""
        self._room.begins(title, self.number(run))
        return self._room.tell

    def ran(self, run: PlannedRun, result: Result) -> None:
        """Shows the measured answers of a finished run, and closes its predictions."""
        self._closes()
        measured = {key: str(each["text"]) for key, each in result["measured"].items()}
        self._room.happened(self.number(run), measured)
        self._room.ran(self.number(run), str(result["verdict"]), run.title_after)

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
        if self._keep is not None:
            return self._collected(run).get(key, {}).get(name)
        named = choices(question, run.alerts) if question.measure in {"leader", "verdict"} else ()
        buttons = tuple((each, each) for each in named)
        text = f"{self._plan.day.shown(key)} predicts: {question.ask}"
        hint = f"{how_to_answer(question, run.alerts)}. Empty: no prediction."
        self._expect(text, text, (*buttons, ("No prediction", "")) if buttons else (), hint)
        answer = self._lead.predicts(run, key, person, name, question)
        self._predicted(run, key, name, answer)
        return answer

    def _collected(self, run: PlannedRun) -> Mapping[str, Given]:
        """Collects predictions: opens the ballot of the run, waits, and shows all answers at once."""
        ballot = self._room.ballot
        if ballot is not None and ballot.run == self.number(run):
            return ballot.on_time
        ballot = self._room.ballot = self._ballot(run)
        self._room.shows_ballot()
        assert isinstance(self._lead, Terminal)
        while ballot.waiting:
            text = f"{run.title}\nPeople predict on pages of their own."
            hint = "All answers stay hidden until all are shown together. An answer given later does not count."
            show = (("Show the answers", ""),)
            self.expected = Expected(text, "Everybody predicts", show, hint, is_over=lambda: not ballot.waiting)
            self.trouble = ""
            if not (key := self._lead.collects(run, lambda: ballot.waiting)):
                break
            self._types(run, ballot, key)
        given = ballot.reveal()
        self._room.shows_ballot()
        self._shows(run, given)
        self._lead.reveals(run, [*self._answers(run, given)])
        return given

    def _ballot(self, run: PlannedRun) -> Ballot:
        questions = {name: self._plan.day.questions[name] for name in run.questions}
        keep = self._keep
        assert keep is not None

        def kept(person: str, answers: Given, late: bool) -> None:
            for name, answer in answers.items():
                keep(prediction_id(run, person, name, late=late), {"answer": answer})

        def changed(person: str) -> None:
            self._has_answered(run, person)

        return Ballot(
            self.number(run),
            [
                BallotQuestion(
                    name,
                    each.ask,
                    how_to_answer(each, run.alerts),
                    choices(each, run.alerts),
                    several=each.measure == "alerts",
                )
                for name, each in questions.items()
            ],
            self._room.people,
            read=lambda name, text: read_answer(questions[name], text, run.alerts),
            words=lambda name, value: in_words(questions[name], value),
            keep=kept,
            changed=changed,
            given={
                key: self._kept(run, key)
                for key in self._room.people
                if all(prediction_id(run, key, name) in self._done for name in run.questions)
            },
        )

    def _types(self, run: PlannedRun, ballot: Ballot, key: str) -> None:
        """The lead types the answers of a person without a page."""
        person = self._plan.day.people[key]
        answers = {}
        for name in run.questions:
            question = self._plan.day.questions[name]
            self._expect(f"{self._plan.day.shown(key)} predicts: {question.ask}", "Everybody predicts")
            answers[name] = in_words(question, self._lead.predicts(run, key, person, name, question))
        try:
            ballot.give(key, ballot.run, answers)
        except RefusedError as error:
            self.heard(f"    {error}")

    def _has_answered(self, run: PlannedRun, key: str) -> None:
        ballot = self._room.ballot
        if ballot is None:
            return
        self._room.shows_ballot()
        name, waiting = ballot.people[key], [ballot.people[each] for each in ballot.waiting]
        if key in ballot.late:
            self._shows(run, {key: ballot.given[key]}, late=True)
            text = f"{name} has answered late: it does not count"
        else:
            left = f"not yet: {', '.join(waiting)}" if waiting else "that is everybody"
            text = f"{name} has answered ({left})"
        self._room.note("", text)
        self.heard(f"  {text}")

    def _has_left(self, key: str) -> None:
        ballot = self._room.ballot
        if ballot is not None and ballot.state == "open" and key in ballot.waiting:
            text = f"{ballot.people[key]} closed the page without answering; the page's address still works"
            self._room.note("", text)
            self.heard(f"  {text}")

    def _closes(self) -> None:
        if (ballot := self._room.ballot) is not None:
            ballot.close()
            self._room.shows_ballot()

    def _answers(self, run: PlannedRun, given: Mapping[str, Given]) -> Iterator[tuple[str, str, str]]:
        for name in run.questions:
            question = self._plan.day.questions[name]
            for key, answers in given.items():
                if answers.get(name) is not None:
                    yield question.ask, self._plan.day.shown(key), in_words(question, answers[name])

    def _shows(self, run: PlannedRun, given: Mapping[str, Given], *, late: bool = False) -> None:
        for key, answers in given.items():
            for name, answer in answers.items():
                self._predicted(run, key, name, answer, late=late)

    def goes(self, run: PlannedRun) -> str:
        watch = f"Watch: {run.spec.watch}\n" if run.spec.watch else ""
        which = f"{self.number(run)} of {len(self._plan.runs)}"
        self._expect(f"{watch}Go or no-go: {run.title} ({which})?", f"Go or no-go for experiment {which}", _GO)
        said = self._lead.goes(run)
        if said != "go":
            self._closes()
        self._room.note("", f"{run.title}: {said}")
        return said

    def goes_on(self, run: PlannedRun) -> bool:
        which = f"experiment {self.number(run)} of {len(self._plan.runs)}"
        text = f"The day was interrupted. Begin {run.title} now?"
        self._expect(text, f"Go on with {which}", (("Begin", ""), ("Leave the day as it is", "e")))
        return self._lead.goes_on(run)

    def begins(self, run: PlannedRun, attempt: int) -> None:
        self._lead.begins(run, attempt)

    def notes(self, run: PlannedRun, result: Result) -> str:
        """The notes written on the page since the last call, followed by the lead's own."""
        asked = "".join(f"Discuss: {each}\n" for each in run.spec.discuss)
        hint = "The log of this page is already part of the notes."
        for_all = f"Notes on experiment {self.number(run)}"
        self._expect(f"{asked}Notes of the scribe on {run.title_after}?", for_all, hint=hint)
        said = self._lead.notes(run, result)
        if said:
            self._room.note("scribe", said)
        return "; ".join([*self._room.take_notes(), *([said] if said else [])])[:_LONGEST]

    def pauses(self, run: PlannedRun) -> None:
        self._expect(f"A planned pause: {run.spec.pause}.", "A planned pause", (("Go on", ""),))
        self._lead.pauses(run)

    def action(self, number: int) -> Result:
        self._expect("", "Action items are written down", (), "An empty answer to `What` ends the list.")
        item = self._lead.action(number)
        if item["what"]:
            self._room.note("", f"to do: {item['what']} ({item['owner']}, due {item['due']})")
        return item

    def _expect(self, text: str, for_all: str, buttons: tuple[tuple[str, str], ...] = (), hint: str = "") -> None:
        self.expected, self.trouble = Expected(text, for_all, buttons, hint), ""

    def _predicted(self, run: PlannedRun, key: str, name: str, answer: Value | None, *, late: bool = False) -> None:
        question = self._plan.day.questions[name]
        if answer is not None:
            said = in_words(question, answer) + (" (late)" if late else "")
            self._room.predicted(self.number(run), name, self._plan.day.shown(key), question.ask, said)
