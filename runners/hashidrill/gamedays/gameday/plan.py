"""Reads a file of `kind: GameDay` and every experiment that it names. One message lists everything to fix.

apiVersion: hashidrill/v1
kind: GameDay
metadata: {name: first-game-day, title: Three ways to lose a leader}
goals: [Everybody has seen an election from the users' side]
people:
ada: {role: lead, name: Ada Lovelace}
grace: {role: on-call, name: Grace Hopper}
before:
- {check: machine}
- {confirm: Nobody deploys for the next hour}
questions:
leader: {measure: leader, ask: Who leads afterwards?}
stop: {measure: stop, load: kv-writes, ask: How long do writes stop?}
experiments:
- {experiment: raft/killed-leader, title: A server goes away, title_after: The leader is killed, pause: 2m}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from hashidrill.core.errors import HashidrillError, UnknownNameError, UsageError
from hashidrill.core.experiment.conditions import LOAD_STATISTICS, Condition, probe_signals, unit_trouble
from hashidrill.core.experiment.documents import Document, Loc
from hashidrill.core.experiment.library import find_experiment, read_document
from hashidrill.core.experiment.loader import resolve, variant_of
from hashidrill.core.experiment.model import MOST_ENTRIES, Name, services_of
from hashidrill.core.experiment.pydantic_messages import is_kind, validated_kind
from hashidrill.core.experiment.resolved import ResolvedExperiment, sha256
from hashidrill.core.experiment.schema import DIALECT, Untitled
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.core.protocols.service import Drawn, lanes
from hashidrill.core.units import Duration, Percent, Quantity, Size, shown

KIND = "GameDay"
Text = Annotated[str, StringConstraints(min_length=1, max_length=500, strip_whitespace=True)]
Title = Annotated[str, StringConstraints(max_length=200, strip_whitespace=True)]
Role = Literal["lead", "on-call", "scribe", "observer"]
Measure = Literal["leader", "stop", "latency", "errors", "alerts", "verdict"]
OF_A_LOAD: tuple[Measure, ...] = ("stop", "latency", "errors")
"""Measures that need a load, which the question names."""
UNITS: dict[str, type[Quantity]] = {"stop": Duration, "latency": Duration, "errors": Percent}
MACHINE: dict[str, type[Quantity] | None] = {"memory_available": Size, "disk_free": Size, "cpus": None, "load": None}
"""The figures of a condition before the day, as `machine.NAME`, and their units. `load`: over a minute, per CPU."""


class Metadata(Strict):
    """The day's title."""

    name: Name = Field(description="Name of the day and of its folder")
    title: Text = Field(description="One line for reports")
    why: str = Field(default="", max_length=4000, description="What this day is for")


class Person(Strict):
    """A participant. The key identifies the person; two people with the same name have different keys."""

    role: Role = Field(description="Their role: the lead decides, the scribe takes notes")
    name: Annotated[str, StringConstraints(max_length=120, strip_whitespace=True)] = Field(
        default="", description="Their name in reports; default: the key"
    )
    predicts: bool = Field(default=True, description="Whether this person predicts before each run")


class GoCheck(Strict):
    """A condition that must be met before the day begins. If it is not, the day is a no-go."""

    check: Literal["machine", "doctor"] | None = Field(
        default=None,
        description="machine: every experiment fits, its binaries are here; doctor: this machine can run experiments",
    )
    condition: Condition | None = Field(
        default=None, description="A condition on this machine, like machine.memory_available > 2GB"
    )
    confirm: Text | None = Field(default=None, description="The statement that the lead confirms")
    unattended: bool = Field(
        default=False, description="For `confirm`: with --yes, the day begins without this confirmation"
    )

    @model_validator(mode="after")
    def _is_one(self) -> GoCheck:
        said = [name for name in ("check", "condition", "confirm") if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError(
                f"says {' and '.join(said) or 'nothing'}: write one of `check: machine`, `check: doctor`,"
                " `condition: ...` and `confirm: ...`"
            )
        if self.unattended and self.confirm is None:
            raise ValueError("`unattended` is only for `confirm`: no other check asks a person")
        if self.condition is not None:
            _check_machine_condition(self.condition)
        return self

    @property
    def title(self) -> str:
        """The check in words."""
        return str(
            self.confirm
            or self.condition
            or {"machine": "every experiment fits this machine", "doctor": "this machine can run experiments"}[
                self.check or "machine"
            ]
        )


def _check_machine_condition(condition: Condition) -> None:
    names = ", ".join(f"machine.{name}" for name in MACHINE)
    if condition.source != "machine" or condition.what not in MACHINE:
        raise ValueError(
            f"{condition}: {condition.source}.{condition.what} cannot be checked before a day; use one of {names}"
        )
    if condition.window_s is not None:
        raise ValueError(f"{condition}: this condition is checked once; leave out `for`")
    if trouble := unit_trouble(condition, MACHINE[condition.what]):
        raise ValueError(trouble)


class Question(Strict):
    """A question that people answer before a run. Their answers are compared with the answer from the recording."""

    measure: Measure = Field(
        description="leader: who leads afterwards; stop: the longest time without an acknowledged operation; latency:"
        " p50 under fault; errors: share of failed operations under fault; alerts: which of `alerts` fire; verdict"
    )
    ask: Text = Field(description="The question, as people read it")
    load: Name | None = Field(default=None, description="The load, for stop, latency and errors")
    signal: str = Field(default="raft.leader", max_length=60, description="For leader: the signal that holds it")

    @model_validator(mode="after")
    def _has_its_load(self) -> Question:
        if self.measure in OF_A_LOAD and self.load is None:
            raise ValueError(f"{self.measure} is measured for one load: add `load: kv-writes`")
        if self.measure not in OF_A_LOAD and self.load is not None:
            raise ValueError(f"{self.measure} is not measured for one load: leave out `load`")
        return self


class RunSpec(Strict):
    """One experiment of the day."""

    experiment: Text = Field(description="Its name in the library, or its path relative to this file")
    variant: Name | None = Field(default=None, description="The variant to run, if the experiment has variants")
    compare: bool = Field(
        default=False, description="Run every variant, and judge how the variants compare (the experiment's `compare`)"
    )
    name: Name | None = Field(default=None, description="Its name in this day; default: the experiment's own name")
    title: Title = Field(
        default="", description="The title that people see before it has run, without its fault; default: experiment 1"
    )
    title_after: Title = Field(
        default="", description="The title that people see once it has run; default: the experiment's own title"
    )
    watch: str = Field(
        default="", max_length=2000, description="What to watch, shown before the run: do not reveal the outcome"
    )
    discuss: list[Text] = Field(default=[], max_length=MOST_ENTRIES, description="Questions to talk about afterwards")
    predict: list[Name] | None = Field(
        default=None, max_length=MOST_ENTRIES, description="The questions to ask; default: every question that fits"
    )
    pause: Duration = Field(default=Duration("0s"), description="How long to wait before the next experiment")


class Message(Strict):
    """A message: its receivers, text and time."""

    when: Annotated[str, StringConstraints(pattern=r"^(start|end|abort|no-go|(before|after) [a-z0-9-]+)$")] = Field(
        description="start, end, abort, no-go, before NAME or after NAME",
        examples=["start", "before killed-leader"],
    )
    to: Text = Field(description="The receiver: a channel, a team, a person")
    say: Text = Field(description="The text")


class Limit(Strict):
    """A limit that no run may exceed."""

    measure: Literal["stop", "latency", "errors"] = Field(description="As in `questions`")
    load: Name = Field(description="The load that is measured")
    above: str = Field(max_length=40, description="The limit with its unit", examples=["30s", "10%"])

    @model_validator(mode="after")
    def _reads(self) -> Limit:
        UNITS[self.measure](self.above)  # raises ValueError with a valid example
        return self

    @property
    def value(self) -> float:
        """The limit in seconds, or as a share."""
        return float(UNITS[self.measure](self.above))


class Abort(Strict):
    """The conditions under which the whole day ends early. A fault that could not be reverted ends it in any case."""

    failed: int | None = Field(default=None, ge=1, le=MOST_ENTRIES, description="After this many runs that FAIL")
    invalid: int | None = Field(default=None, ge=1, le=MOST_ENTRIES, description="After this many INVALID experiments")
    longer_than: Duration | None = Field(default=None, description="After this much working time, nothing more begins")
    measured: list[Limit] = Field(default=[], max_length=MOST_ENTRIES, description="Limits that no run may exceed")


class OnFailure(Strict):
    """The person who investigates a failed experiment, and the deadline."""

    owner: Name = Field(description="The owner: a key of `people`")
    within_days: int = Field(default=14, ge=1, le=365, description="The deadline, in days after the game day")


class GameDay(Strict):
    """A game day: its people, its experiments in order, its questions and messages."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["GameDay"] = Field(description="Kind of document")
    metadata: Metadata
    goals: list[Text] = Field(default=[], max_length=MOST_ENTRIES, description="What everybody should know afterwards")
    people: dict[Name, Person] = Field(min_length=1, max_length=MOST_ENTRIES, description="Who takes part, by key")
    before: list[GoCheck] = Field(default=[], max_length=MOST_ENTRIES, description="Conditions for the day to begin")
    alerts: dict[Name, Condition] = Field(
        default={},
        max_length=MOST_ENTRIES,
        description="Your alerts, as conditions over the last seconds, written like `guardrails`",
    )
    questions: dict[Name, Question] = Field(
        default={}, max_length=MOST_ENTRIES, description="What people predict before each run, by name"
    )
    experiments: list[RunSpec] = Field(min_length=1, max_length=MOST_ENTRIES, description="What runs, in order")
    repeat_invalid: int = Field(default=1, ge=0, le=5, description="How many times an INVALID run is repeated")
    messages: list[Message] = Field(default=[], max_length=MOST_ENTRIES, description="Who is told what, and when")
    abort: Abort = Field(default=Abort(), description="When the whole day ends early")
    on_failure: OnFailure | None = Field(default=None, description="Who gets an action item for each FAIL")

    @property
    def lead(self) -> str:
        """The key of the lead."""
        return next(key for key, person in self.people.items() if person.role == "lead")

    def shown(self, key: str) -> str:
        """A person's name in reports; the key distinguishes people of the same name."""
        person = self.people.get(key)
        if person is None or not person.name:
            return key
        same = sum(other.name.casefold() == person.name.casefold() for other in self.people.values())
        return f"{person.name} ({key})" if same > 1 else person.name


def gameday_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12). The loader also finds missing experiments and unknown people."""
    schema = GameDay.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions = schema.pop("$defs")
    definitions["GoCheck"]["oneOf"] = [{"required": [name]} for name in ("check", "condition", "confirm")]
    head = {"$schema": DIALECT, "title": "hashidrill game day", "description": schema.pop("description")}
    return head | {key: value for key, value in schema.items() if key != "title"} | {"$defs": definitions}


def schema_text() -> str:
    """The schema as text."""
    return json.dumps(gameday_schema(), indent=2) + "\n"


_OF_ALL = "only the verdict of a comparison can be predicted: a question about a load has another answer in each run"
Resolve = Callable[[Path], "ResolvedExperiment"]
"""Resolves an experiment's file, for a local datacenter or for an attached one."""


@dataclass(frozen=True)
class PlannedRun:
    """One experiment of the day, resolved, with the questions that people answer before it."""

    name: str
    spec: RunSpec
    resolved: ResolvedExperiment
    questions: tuple[str, ...]
    alerts: tuple[str, ...]
    """The alerts whose load or signal this run has."""
    number: int = 1
    """Its position in the day, from 1."""

    @property
    def title(self) -> str:
        """The name that people see before the experiment has run."""
        return self.spec.title or f"experiment {self.number}"

    @property
    def title_after(self) -> str:
        """The experiment's real title, for people who have seen the run."""
        return self.spec.title_after or self.resolved.experiment.metadata.title

    @property
    def source(self) -> Mapping[str, object]:
        """The experiment's source, which identifies its version."""
        found = self.resolved.provenance
        return {"sha256": found.sha256, "extends": dict(found.extends), "variant": self.resolved.variant}


@dataclass(frozen=True)
class Plan:
    """A game day whose file has been checked: it can begin."""

    day: GameDay
    text: str
    folder: Path
    """The folder that relative paths start from."""
    runs: tuple[PlannedRun, ...]

    @property
    def sources(self) -> dict[str, Mapping[str, object]]:
        return {run.name: run.source for run in self.runs}

    @property
    def sha256(self) -> str:
        return sha256(self.text.encode())

    def run(self, name: str) -> PlannedRun:
        return next(run for run in self.runs if run.name == name)

    def needs_a_person(self) -> list[str]:
        """The confirmations that need a person; with any of them, the day cannot begin with --yes."""
        return [str(each.confirm) for each in self.day.before if each.confirm is not None and not each.unattended]


def is_game_day(document: Document) -> bool:
    """Whether the document's `kind` is GameDay."""
    return is_kind(document, KIND)


def read_plan(path: Path, *, folder: Path | None = None, over: Resolve = resolve) -> Plan:
    """Reads the day from a file. Its paths are relative to `folder` (default: the file's folder).

    `over` resolves its experiments. Raises ExperimentError, whose message gives the place of each problem.
    """
    return plan_of(read_document(path), folder=path.parent if folder is None else folder, over=over)


def plan_of(document: Document, *, folder: Path, over: Resolve = resolve) -> Plan:
    """Like `read_plan`, for a document that is already read."""
    day = validated_kind(document, GameDay, KIND, "a game day")
    _check_people(document, day)
    runs = [_run(document, index, spec, day, folder, over) for index, spec in enumerate(day.experiments)]
    _check_named(document, day, runs)
    _check_questions(document, day, runs)
    document.raise_problems()
    return Plan(day, document.text, folder.absolute(), tuple(run for run in runs if run is not None))


def _check_people(document: Document, day: GameDay) -> None:
    leads = [key for key, person in day.people.items() if person.role == "lead"]
    if not leads:
        document.problem(("people",), "no person is the lead: give one person `role: lead`", key=True)
    for key in leads[1:]:
        document.problem(
            ("people", key, "role"), f"{leads[0]} is already the lead: a game day has one person who decides"
        )
    owner = day.on_failure.owner if day.on_failure else None
    if owner is not None and owner not in day.people:
        document.problem(("on_failure", "owner"), f"`people` has no key {owner}: {near(owner, day.people)}")


def _run(  # noqa: PLR0917 - all arguments describe one entry
    document: Document, index: int, spec: RunSpec, day: GameDay, folder: Path, over: Resolve
) -> PlannedRun | None:
    """One experiment of the day; None if it has problems, which are noted in the document."""
    loc = ("experiments", index)
    try:
        resolved = over(_found(spec.experiment, folder).absolute())
        if spec.variant is not None:
            resolved = variant_of(resolved, spec.variant)
    except HashidrillError as error:
        key = "variant" if spec.variant is not None and "variant" in str(error) else "experiment"
        document.problem((*loc, key), _first_line(error, spec))
        return None
    if spec.compare and spec.variant is not None:
        document.problem((*loc, "compare"), "all of its variants are compared: leave out `variant`")
        return None
    if spec.compare and not (resolved.experiment.variants and resolved.experiment.compare):
        document.problem((*loc, "compare"), f"{resolved.name} lacks `variants` or `compare`: leave this out")
        return None
    if resolved.experiment.variants and not spec.compare:
        names = ", ".join(resolved.experiment.variants)
        document.problem(
            (*loc, "experiment"),
            f"{resolved.name} has variants ({names}): name one with `variant`, or write `compare: true`",
        )
        return None
    traffic, own = resolved.experiment.traffic, resolved.experiment.declared_signals
    drawn = [one for one in services_of(resolved.experiment.datacenter) if isinstance(one, Drawn)]
    signals = {lane.signal for each in drawn for lane in each.lanes}
    fitting = [
        name
        for name, each in day.questions.items()
        if (each.measure == "verdict" if spec.compare else _fits(each, traffic, signals))
    ]
    for at, name in enumerate(spec.predict or ()):
        if name not in day.questions:
            document.problem((*loc, "predict", at), f"there is no question {name}: {near(name, day.questions)}")
        elif name not in fitting:
            why = _OF_ALL if spec.compare else _why_not(day.questions[name], resolved.name, traffic)
            document.problem((*loc, "predict", at), why)
    asked = fitting if spec.predict is None else [name for name in spec.predict if name in fitting]
    alerts = tuple(
        name
        for name, alert in ({} if spec.compare else day.alerts).items()
        if alert.source in traffic or _signal(alert) in {*probe_signals(alert.source), *own}
    )
    name = spec.name or "-".join(filter(None, [resolved.name, spec.variant]))
    return PlannedRun(name, spec, resolved, tuple(asked), alerts, index + 1)


def _signal(alert: Condition) -> str:
    return f"{alert.source}.{alert.what}"


def _fits(question: Question, traffic: Mapping[str, object], signals: set[str]) -> bool:
    """Whether a recording of the experiment can contain the answer."""
    if question.measure == "leader":
        return question.signal in signals
    return question.load is None or question.load in traffic


def _why_not(question: Question, name: str, traffic: Mapping[str, object]) -> str:
    if question.load is None:
        return f"{name} does not sample {question.signal}"
    return f"{name} has no load {question.load}: {near(question.load, traffic)}"


def _found(name: str, folder: Path) -> Path:
    try:
        near_by = folder / name
        if near_by.is_file():
            return near_by
    except (OSError, ValueError):  # a name that no file can have
        raise UsageError(f"there is no experiment {shown(name)}") from None
    return find_experiment(name)


def _first_line(error: HashidrillError, spec: RunSpec) -> str:
    """The first line of another file's message, to be quoted in this file's message; `validate` shows the rest."""
    lines = str(error).splitlines() or [""]
    whole = isinstance(error, UnknownNameError) or not lines[1:]
    return lines[0] if whole else f"{lines[0]} (`hashidrill validate {spec.experiment}` shows all)"


def _check_named(document: Document, day: GameDay, runs: list[PlannedRun | None]) -> None:
    seen: dict[str, int] = {}
    for index, run in enumerate(runs):
        if run is None:
            continue
        if run.name in seen:
            document.problem(
                ("experiments", index),
                f"experiments[{seen[run.name]}] is called {run.name} too: give one of them another `name`",
            )
        seen.setdefault(run.name, index)
    if None in runs:
        return  # a name that only the broken part defines cannot be checked
    loads = {load for run in runs if run is not None for load in run.resolved.experiment.traffic}
    named: list[tuple[Loc, str]] = [
        (("abort", "measured", n, "load"), limit.load) for n, limit in enumerate(day.abort.measured)
    ]
    named += [(("alerts", name), alert.source) for name, alert in day.alerts.items() if alert.what in LOAD_STATISTICS]
    for loc, load in named:
        if load not in loads:
            document.problem(loc, f"no experiment of the day has a load {load}: {near(load, loads)}")
    for index, message in enumerate(day.messages):
        moment, _, name = message.when.partition(" ")
        if name and name not in seen:
            text = f"no experiment of the day is called {name}: {near(name, seen)}"
            document.problem(("messages", index, "when"), f"{moment} {name}: {text}")


_TELL_NOTHING = frozenset(
    {"agent", "all", "any", "client", "consul", "each", "host", "nomad", "one", "server", "vault"}
)
"""Words that are in most faults' kinds and targets, and so reveal nothing."""


def giveaways(run: PlannedRun) -> dict[str, str]:
    """The words that would reveal before the run what it breaks (its faults and targets), by the key of the entry that
    contains them: `title` or `watch`.
    """
    steps = run.resolved.experiment.faults
    words = {word.rstrip("s") for step in steps for word in _words(f"{step.fault} {step.on.rpartition(':')[2]}")}
    telling = tuple(word for word in words - _TELL_NOTHING if len(word) > 2)
    found = {
        key: ", ".join(dict.fromkeys(word for word in _words(text) if telling and word.startswith(telling)))
        for key, text in (("title", run.spec.title), ("watch", run.spec.watch))
    }
    return {key: words for key, words in found.items() if words}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def note_giveaways(document: Document, plan: Plan) -> None:
    """Notes each giveaway as a problem of the document, for a warning: the day can still be played."""
    for run in plan.runs:
        for key, words in giveaways(run).items():
            text = f"this reveals before the run what breaks ({words}): write it in `title_after`"
            document.problem(("experiments", run.number - 1, key), text)


def _check_questions(document: Document, day: GameDay, runs: list[PlannedRun | None]) -> None:
    own = {signal for run in runs if run is not None for signal in run.resolved.experiment.declared_signals}
    leaders = [lane.signal for lane in lanes() if lane.names]
    for name, question in day.questions.items():
        if question.measure == "alerts" and not day.alerts:
            text = "asks which alert fires, but the day has no `alerts`: add them as conditions"
            document.problem(("questions", name, "measure"), text)
        if question.measure == "leader" and question.signal not in leaders:
            text = f"{shown(question.signal)} names no leader: {near(question.signal, leaders)}"
            document.problem(("questions", name, "signal"), text)
    for name, alert in day.alerts.items():
        of_a_load = alert.what in LOAD_STATISTICS
        if not of_a_load and None not in runs and _signal(alert) not in {*probe_signals(alert.source), *own}:
            known = near(_signal(alert), [*probe_signals(), *own, *LOAD_STATISTICS])
            document.problem(("alerts", name), f"{_signal(alert)} is not a signal: {known}")
