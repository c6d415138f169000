"""The content of a file of `kind: GameDay`.

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

`hashidrill.gamedays.gameday.plan` makes the checks that need the experiments themselves.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from hashidrill.core.experiment.conditions import Condition, unit_trouble
from hashidrill.core.experiment.model import MOST_ENTRIES, Name
from hashidrill.core.experiment.schema import DIALECT, Untitled
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration, Percent, Quantity, Size

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
