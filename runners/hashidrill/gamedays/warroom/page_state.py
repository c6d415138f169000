"""One audience's view of a war room, as one document: events change it, and browsers hold a copy.

It receives only events that its audience may see (`hashidrill.core.protocols.events.seen_by`), so it contains no
secret. The document's size is bounded: long lists are cut, and the document says how many entries are missing.

Events of a war room that are not events of a run: questions to people, predictions, the scribe's notes.

Like the events of a run, each says who may see it; `Audience.TRAINEE` stands for all people who only watch. Fields that
are `_FOR_THE_LEAD` reveal what an experiment breaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from hashidrill.core.protocols.events import (
    Audience,
    Began,
    Change,
    End,
    Event,
    Guardrail,
    Intent,
    Judged,
    Marked,
    Phase,
    Proof,
    Steady,
    Tick,
)
from hashidrill.gamedays.warroom.ballot import BallotQuestion
from hashidrill.gamedays.warroom.document import Document
from hashidrill.gamedays.warroom.figures import RunFigures
from hashidrill.reports.live.sentences import ALARMS, Sentences
from hashidrill.reports.text import one_line, printable

_FOR_THE_LEAD = {"audience": Audience.OPERATOR}
Tone = Literal["", "good", "bad", "odd"]


@dataclass(frozen=True, kw_only=True)
class Said(Event):
    """A line of the log, for the lead alone."""

    event: str = "room.said"
    who: str = ""
    text: str
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class SaidToAll(Said):
    """A line of the log that everybody sees."""

    audience: ClassVar[Audience] = Audience.TRAINEE


@dataclass(frozen=True, kw_only=True)
class _ForAll(Event):
    audience: ClassVar[Audience] = Audience.TRAINEE


@dataclass(frozen=True, kw_only=True)
class Planned(_ForAll):
    """A game day begins, or goes on."""

    event: str = "room.planned"
    title: str = field(default="", metadata=_FOR_THE_LEAD)
    runs: int = 0
    titles: tuple[str, ...] = ()
    """The titles of its runs before they have run."""
    goals: tuple[str, ...] = field(default=(), metadata=_FOR_THE_LEAD)
    people: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Begins(_ForAll):
    """A run begins; the previous run's figures are removed."""

    event: str = "room.begins"
    title: str = field(default="", metadata=_FOR_THE_LEAD)
    number: int = 1


@dataclass(frozen=True, kw_only=True)
class Asked(_ForAll):
    """A question for the lead, whose page can answer it. `choices`: labels, and the answer that each stands for."""

    event: str = "room.asked"
    id: int
    for_all: str = ""
    """The question in the words that everyone may read."""
    text: str = field(default="", metadata=_FOR_THE_LEAD)
    choices: tuple[tuple[str, str], ...] = field(default=(), metadata=_FOR_THE_LEAD)
    hint: str = field(default="", metadata=_FOR_THE_LEAD)
    trouble: str = field(default="", metadata=_FOR_THE_LEAD)


@dataclass(frozen=True, kw_only=True)
class Answered(_ForAll):
    """The question is no longer open."""

    event: str = "room.answered"
    id: int


@dataclass(frozen=True, kw_only=True)
class Ballots(_ForAll):
    """The questions on people's own pages, and who has answered, but never an answer."""

    event: str = "room.ballots"
    run: int
    state: str
    questions: tuple[BallotQuestion, ...] = ()
    answered: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Predicted(_ForAll):
    """A person's prediction for a run, once all predictions are shown."""

    event: str = "room.predicted"
    run: int
    key: str
    who: str
    ask: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Happened(_ForAll):
    """The answers to the predicted questions, from the recording: each question's key, and the measured value."""

    event: str = "room.happened"
    run: int
    measured: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Ran(_ForAll):
    """A run of the plan is over, with its verdict and the title that reveals what it was."""

    event: str = "room.ran"
    run: int
    verdict: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Stopping(_ForAll):
    """The stop button was pressed."""

    event: str = "room.stopping"


@dataclass(frozen=True, kw_only=True)
class Over(_ForAll):
    """The last event: the server ends."""

    event: str = "room.over"
    text: str = ""


MOST_LINES, LINES_CUT = 400, 100
MOST_FAULTS, MOST_RUNS, MOST_EXPECTATIONS, MOST_SPANS, MOST_PREDICTIONS = 200, 200, 60, 200, 400
_STATES = {
    "fault.applied": "applied",
    "fault.proven": "in force",
    "fault.still": "in force",
    "fault.faded": "faded",
    "fault.unproven": "not proven",
    "fault.failed": "failed",
    "fault.reverted": "reverted",
    "fault.gone": "gone",
    "fault.ended": "gone",
    "fault.undone": "gone",
    "fault.moved": "gone",
    "fault.stuck": "stuck",
}
_TONES: dict[str, Tone] = {"fault.proven": "odd", "fault.gone": "good", "room.stopping": "bad"}


class Picture:
    """One audience's view. It takes events in order, from one thread at a time (hashidrill.gamedays.warroom.room)."""

    def __init__(self, audience: Audience) -> None:
        lead = audience is Audience.OPERATOR
        empty: dict[str, Any] = {"title": "", "people": [], "goals": [], "runs": [], "run": None, "log": [], "lines": 0}
        empty |= {"question": None, "ballot": None, "predictions": [], "going": False, "stopping": False, "over": None}
        self.document = Document({"lead": lead, **empty})
        self._set = self.document.set
        self._tree = self.document.tree
        self._sentences = Sentences()
        self._figures = RunFigures(self.document)
        self._faults: dict[str, int] = {}

    def take(self, event: Event, wall: str) -> None:
        """Applies one event; `wall` is when it came, ISO 8601."""
        match event:
            case Tick():
                self._figures.tick(event)
            case Begins():
                self._begins(event)
            case Planned():
                self._planned(event)
            case Asked() | Answered() | Ballots():
                self._asks(event)
            case Predicted() | Happened():
                self._predictions(event)
            case Ran() if 0 < event.run <= len(self._tree["runs"]):
                self._ran(event)
            case Stopping():
                self._set("stopping", True)
            case Over():
                self._set("over", {"text": event.text, "wall": wall})
                self._set("going", False)
            case _ if not isinstance(event, Said) and self._tree["run"] is not None:
                self._of_run(event)
        self._log(event, wall)
        self.document.send()

    def _ran(self, event: Ran) -> None:
        title, run = one_line(event.title), self._tree["run"]
        for key, value in (("state", "is over"), ("verdict", one_line(event.verdict, 20)), ("title", title)):
            self._set("runs", event.run - 1, key, value)
        if run is not None and run["number"] == event.run:
            self._set("run", "title", title)

    def _asks(self, event: Asked | Answered | Ballots) -> None:
        if isinstance(event, Ballots):
            self._ballot(event)
        elif isinstance(event, Asked):
            choices = [{"label": label, "answer": answer} for label, answer in event.choices]
            text = printable(event.text or event.for_all, 1200)
            said = {"hint": one_line(event.hint), "trouble": one_line(event.trouble), "choices": choices}
            self._set("question", {"id": event.id, "text": text, **said})
        elif self._tree["question"] is not None and self._tree["question"]["id"] == event.id:
            self._set("question", None)

    def _ballot(self, event: Ballots) -> None:
        questions = [
            {"key": each.key, "ask": one_line(each.ask), "how": one_line(each.how)}
            | {"choices": [one_line(choice, 120) for choice in each.choices], "several": each.several}
            for each in event.questions
        ]
        people = {key: [one_line(name, 120) for name in getattr(event, key)] for key in ("answered", "waiting")}
        said = {"run": event.run, "state": event.state, "questions": questions, **people}
        self._set("ballot", None if event.state == "closed" else said)

    def _begins(self, event: Begins) -> None:
        number = min(event.number, MOST_RUNS)
        self._sentences = Sentences()
        self._faults = {}
        runs = self._tree["runs"]
        runs.extend({"title": "", "state": "", "verdict": ""} for _ in range(number - len(runs)))
        runs[number - 1] = {"title": one_line(event.title), "state": "runs", "verdict": ""}
        self._tree["run"] = {
            "number": number,
            "title": one_line(event.title),
            "recording": "",
            "more_faults": 0,
            "ended": "",
            "verdict": None,
            **{key: [] for key in ("phases", "faults", "marks", "moments")},
            **self._figures.fresh(),
        }
        self._tree.update(going=True, stopping=False)
        self.document.renew()

    def _planned(self, event: Planned) -> None:
        self._set("title", one_line(event.title))
        self._set("goals", [one_line(goal) for goal in event.goals[:20]])
        self._set("people", [one_line(person, 120) for person in event.people[:50]])
        names = [*event.titles, *[""] * event.runs][: min(event.runs, MOST_RUNS)]
        self._set("runs", [{"title": one_line(name, 120), "state": "", "verdict": ""} for name in names])

    def _of_run(self, event: Event) -> None:
        t_s = round(event.t_ns / 1e9, 2)
        match event:
            case Began():
                self._set("run", "recording", one_line(event.id, 200))
            case Phase() | End():
                self._phase(event, t_s)
            case Intent() | Proof() | Change():
                self._fault(event, t_s)
            case Marked():
                self._mark(event, t_s)
            case Guardrail():
                self._moment("guardrail", f"guardrail: {event.condition}", t_s)
            case Steady() if not event.held:
                self._moment("guardrail", "the steady state did not hold", t_s)
            case Judged():
                self._judged(event)
            case _:
                pass

    def _phase(self, event: Phase | End, t_s: float) -> None:
        phases = self._tree["run"]["phases"]
        if phases:
            self._set("run", "phases", len(phases) - 1, "end", t_s)
        if isinstance(event, End):
            self._set("run", "ended", one_line(event.outcome, 60) or "ended")
            self._set("going", False)
            self._figures.end(t_s)
            self._state("is judged")
        elif len(phases) < MOST_SPANS:
            self._set("run", "phases", len(phases), {"name": one_line(event.phase, 60), "start": t_s, "end": None})

    def _state(self, state: str, verdict: str = "") -> None:
        at = self._tree["run"]["number"] - 1
        self._set("runs", at, "state", state)
        self._set("runs", at, "verdict", verdict)

    def _fault(self, event: Intent | Proof | Change, t_s: float) -> None:
        faults = self._tree["run"]["faults"]
        if isinstance(event, Intent):
            if len(faults) >= MOST_FAULTS:
                self._set("run", "more_faults", self._tree["run"]["more_faults"] + 1)
                return
            self._faults[event.fault_id] = len(faults)
            params = ", ".join(f"{name}={value}" for name, value in event.params.items())
            fault = {
                "label": one_line(f"{event.kind} on {event.target.host or '?'}", 120),
                "params": one_line(params),
                "state": "applying",
                "at": t_s,
                "proven": None,
                "end": None,
                "evidence": "",
            }
            self._set("run", "faults", len(faults), fault)
            return
        at = self._faults.get(event.fault_id)
        state = _STATES.get(event.event)
        if at is None or state is None:
            return
        self._set("run", "faults", at, "state", state)
        if event.evidence.measured:
            self._set("run", "faults", at, "evidence", one_line(event.evidence.measured))
        if state == "in force" and faults[at]["proven"] is None:
            self._set("run", "faults", at, "proven", t_s)
        if state in {"reverted", "gone", "failed"} and faults[at]["end"] is None:
            self._set("run", "faults", at, "end", t_s)

    def _mark(self, event: Marked, t_s: float) -> None:
        marks = self._tree["run"]["marks"]
        if event.event == "mark.begin":
            if len(marks) < MOST_SPANS:
                self._set("run", "marks", len(marks), {"label": one_line(event.mark, 60), "start": t_s, "end": None})
            return
        for at, mark in enumerate(marks):
            if mark["end"] is None and mark["label"] == one_line(event.mark, 60):
                self._set("run", "marks", at, "end", t_s)

    def _moment(self, kind: str, label: str, t_s: float) -> None:
        moments = self._tree["run"]["moments"]
        if len(moments) < MOST_SPANS:
            self._set("run", "moments", len(moments), {"kind": kind, "label": one_line(label, 160), "t": t_s})

    def _judged(self, event: Judged) -> None:
        expectations = [
            {
                "title": one_line(each.title, 200),
                "finding": each.finding,
                "text": printable(each.text, 1200),
                "issue": one_line(each.known_issue or "", 200),
            }
            for each in event.expectations[:MOST_EXPECTATIONS]
        ]
        reasons = [one_line(each) for each in (*event.invalid, *event.doubts, *event.notes)][:20]
        verdict = {
            "verdict": event.verdict,
            "reasons": reasons,
            "expectations": expectations,
            "report": one_line(event.report, 1000),
        }
        self._set("run", "verdict", verdict)
        self._state("is over", event.verdict)

    def _predictions(self, event: Predicted | Happened) -> None:
        said = self._tree["predictions"]
        if isinstance(event, Predicted):
            if len(said) < MOST_PREDICTIONS:
                line = {
                    "run": event.run,
                    "key": event.key,
                    "who": one_line(event.who, 120),
                    "ask": one_line(event.ask),
                    "answer": one_line(event.answer, 200),
                    "measured": "",
                }
                self._set("predictions", len(said), line)
            return
        for at, line in enumerate(said):
            if line["run"] == event.run and line["key"] in event.measured:
                self._set("predictions", at, "measured", one_line(event.measured[line["key"]], 200))

    def _log(self, event: Event, wall: str) -> None:
        text, who, tone = self._line(event)
        if not text:
            return
        lines = self._tree["log"]
        entry = {
            "n": self._tree["lines"] + 1,
            "wall": wall,
            "who": one_line(who, 80),
            "text": text,
            "tone": tone,
            "t": round(event.t_ns / 1e9, 1) if event.t_ns else None,
        }
        self._set("lines", entry["n"])
        if len(lines) >= MOST_LINES:
            del lines[:LINES_CUT]
            lines.append(entry)
            self.document.renew()
            return
        self._set("log", len(lines), entry)

    def _line(self, event: Event) -> tuple[str, str, str]:
        tone: str = _TONES.get(event.event, "bad" if event.event in ALARMS else "")
        match event:
            case Said():
                return printable(event.text, 2000), event.who, event.tone
            case Begins():
                text = f"begins: {one_line(event.title)}" if event.title else "a run begins"
            case Judged():
                tone = {"PASS": "good", "FAIL": "bad"}.get(event.verdict, "odd")
                text = f"verdict: {one_line(event.verdict, 20)}"
            case Stopping():
                text = "the stop button was pressed: faults are reverted, then the run ends as interrupted"
            case _:
                text = self._sentences.of(event)
                tone = "bad" if isinstance(event, Steady) and not event.held else tone
        return text, "", tone
