"""Finds and reads scenarios: by path, in the user's playbooks/training, or shipped; the user's files win."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from hashidrill.core.errors import ExperimentError, UnknownNameError
from hashidrill.core.experiment.documents import Document, Loc, Problem
from hashidrill.core.experiment.library import SUFFIXES, read_document
from hashidrill.core.experiment.model import MOST_ENTRIES, Name
from hashidrill.core.experiment.pydantic_messages import validated_kind
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration, Percent
from hashidrill.core.util.folders import PLAYBOOKS, located, named

FOLDER = f"{PLAYBOOKS}/training"


def list_scenarios() -> list[Path]:
    """Every scenario, the user's own and the shipped ones, sorted by name."""
    return list(named(FOLDER, SUFFIXES).values())


def find_scenario(name_or_path: str) -> Path:
    """The file of a scenario, by its name or its path. Raises UnknownNameError with near names."""
    asked = Path(name_or_path)
    if (path := located(asked, FOLDER, SUFFIXES)) is not None and path.suffix in SUFFIXES:
        return path
    known = named(FOLDER, SUFFIXES)
    what = f"{asked}: there is no such file" if asked.suffix in SUFFIXES else f"there is no scenario {name_or_path!r}"
    raise UnknownNameError(f"{what}: {near(asked.stem, known)}; `hashidrill train --list` shows all")


KIND = "Scenario"
ANY = "any"
"""`allowed: any`: every agent may be restarted."""
HOST = "$host"
"""Stands for the hosts of the hidden fault, in a diagnosis and in `allowed`."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=4000, strip_whitespace=True)]
Words = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=60)]], Field(min_length=1)]
Value = str | int | float | bool
_FULL_MARKS = 100


class Metadata(Strict):
    """The labels that the trainee sees before the end: neither name nor title may reveal what is broken."""

    name: Name = Field(description="Name on the command line: `hashidrill train NAME`")
    title: Annotated[str, StringConstraints(min_length=1, max_length=120)] = Field(
        description="One line for lists: the users' symptoms, not the fault"
    )
    level: Literal[1, 2, 3] = Field(description="1: one cause in one place; 3: several causes, or a masked one")
    limit: Duration = Field(default=Duration("30m"), description="The trainee's time, from the pager message on")
    quiet: Duration = Field(
        default=Duration("2m"), description="Time to look around before anything breaks; `say ready` ends it"
    )

    @model_validator(mode="after")
    def _some_time(self) -> Metadata:
        if not 0 < self.limit <= Duration("4h"):
            raise ValueError("limit must be over 0s and at most 4h")
        if self.quiet > Duration("30m"):
            raise ValueError("quiet must be at most 30m")
        return self


class Pager(Strict):
    """The message that wakes the trainee, in the words of the people who notice the trouble."""

    from_: Text = Field(alias="from", description="The sender")
    text: Text = Field(description="The users' symptoms; ${name} stands for the value that the seed chose")


class Diagnosis(Strict):
    """The expected statement: the component, its trouble, and the place. `disk` and `slow` stand for all their synonyms
    (hashidrill.gamedays.training.words); case and a plural s do not matter, `disk*` matches any ending. An empty part
    is not required.
    """

    component: list[str] = Field(
        default=[], max_length=MOST_ENTRIES, description="One of these must be named: rows of the vocabulary, or words"
    )
    trouble: Words = Field(description="What is wrong with it: rows of the vocabulary, or words")
    where: list[str] = Field(
        default=[],
        max_length=MOST_ENTRIES,
        description="One of these must be named; $host is the host of the hidden fault, by name or address",
    )
    also: list[Words] = Field(
        default=[], max_length=10, description="The diagnosis must also name one word of each list"
    )
    around: str = Field(default="", description="A duration that expresses the trouble, within a factor of 2")
    beside: list[str] = Field(
        default=[], max_length=MOST_ENTRIES, description="Rows of the vocabulary that may be named instead"
    )
    never: list[str] = Field(
        default=[],
        max_length=MOST_ENTRIES,
        description="Rows or words that contradict the diagnosis, unless they are negated or named as a consequence",
    )
    exact: Text = Field(description="The whole truth, for the debrief; ${host} is the host of the hidden fault")


class Back(Strict):
    """When a load's users count as back: measured after the trainee is done, before the fault is reverted."""

    load: Name
    p50_below: Duration = Field(default=Duration("300ms"), description="p50 over each 5 s")
    errors_below: Percent = Field(default=Percent("1%"), description="Share of operations that are not acknowledged")


class Hint(Strict):
    """A hint that costs points."""

    price: Annotated[int, Field(ge=0, le=_FULL_MARKS)] = Field(description="Points that it costs, of 100")
    text: Text


class Look(Strict):
    """What an expert looks at."""

    look: Text = Field(description="The command, or the place")
    shows: Text = Field(description="What is seen there")
    after: Duration = Field(
        default=Duration("0s"), description="When the symptom appears there, counted from the start of the fault"
    )


class Truth(Strict):
    """One possible cause behind the pager."""

    title: Text = Field(description="One line for the debrief")
    method: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_ENTRIES)] = Field(
        description="Steps as in an experiment; `at` counts from the end of `before`, and without `for` a fault lasts"
        " until the trainee is done"
    )
    page_after: Duration = Field(
        default=Duration("10s"),
        description="When the pager goes off, counted from the moment at which the whole fault is in force",
    )
    diagnosis: Diagnosis
    back: list[Back] = Field(default=[], max_length=MOST_ENTRIES, description="Default: every load, p50 below 300ms")
    repaired: list[dict[str, Any]] = Field(
        default=[],
        max_length=MOST_ENTRIES,
        description="Expectations that show the repair if the users' state does not show it",
    )
    kept: list[dict[str, Any]] | None = Field(
        default=None, description="Expectations for the whole game; default: no acknowledged KV write is lost"
    )
    allowed: list[str] | Literal["any"] = Field(
        default=[HOST], description="Hosts whose agents the repair may restart; any: all of them"
    )
    hints: list[Hint] = Field(default=[], max_length=10)
    expert: list[Look] = Field(default=[], max_length=20)
    repair: Text = Field(description="What repairs it, for the debrief")
    runbook: str = Field(default="", max_length=200, description="The matching runbook, a path below the library")
    debrief: Text = Field(description="The reasons for the symptoms, and the incidents that had them")
    play: list[dict[str, Any]] = Field(default=[], max_length=MOST_ENTRIES, description="How a script solves it")


class Scenario(Strict):
    """A game for a trainee: a pager message, a datacenter, and its possible troubles."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Scenario"] = Field(description="Kind of document")
    metadata: Metadata
    pager: Pager
    hand_over: str = Field(default="", max_length=4000, description="What a colleague says before the pager goes off")
    datacenter: dict[str, Any] = Field(default={}, description="As in an experiment")
    load: dict[Name, dict[str, Any]] = Field(default={}, max_length=MOST_ENTRIES, description="As in an experiment")
    clients: dict[Name, dict[str, Any]] = Field(default={}, max_length=MOST_ENTRIES, description="As in an experiment")
    steady_state: dict[str, Any] | None = Field(
        default=None,
        description="The steady state, written as in an experiment; default: every load has errors < 1% for 8s",
    )
    before: list[dict[str, Any]] = Field(
        default=[], max_length=MOST_ENTRIES, description="Steps that are over before the hidden fault begins"
    )
    choose: dict[Name, Annotated[list[Value], Field(min_length=1)]] = Field(
        default={}, description="Values, of which the seed picks one; ${name} stands for it"
    )
    herrings: list[list[dict[str, Any]] | None] = Field(
        default=[], max_length=MOST_ENTRIES, description="Lists of misleading steps; the seed picks one; null: none"
    )
    truths: dict[Name, Truth] = Field(min_length=1, max_length=20, description="The causes; the seed picks one")


_CHOSEN = re.compile(r"\$\{([^}]*)\}")
_LATER = "host"
"""The debrief replaces ${host} once the host is known; in a step, ${host} has no meaning."""


@dataclass(frozen=True)
class Written:
    """A scenario, and the plain data of its file, into which the seed's choices are inserted."""

    scenario: Scenario
    data: dict[str, Any]
    path: Path
    document: Document


def read_scenario(path: Path) -> Written:
    """Reads a scenario. Raises ExperimentError, whose message gives the place of each problem."""
    return scenario_of(read_document(path), path)


def scenario_of(document: Document, path: Path) -> Written:
    """Like `read_scenario`, for a document that is already read."""
    scenario = validated_kind(document, Scenario, KIND, "a scenario")
    if path.stem != scenario.metadata.name:
        document.problem(("metadata", "name"), f"must be the name of the file, {path.stem}")
    _check_chosen(document, scenario)
    _check_steps(document, scenario)
    _check_traffic(document, scenario)
    document.raise_problems()
    return Written(scenario, document.data, path, document)


def _check_chosen(document: Document, scenario: Scenario) -> None:
    for loc, text in _texts(document.data, ()):
        for name in _CHOSEN.findall(text):
            if name in scenario.choose or (name == _LATER and not _is_played(loc)):
                continue
            known = f": {near(name, scenario.choose)}" if scenario.choose else ""
            document.problem(loc, f"${{{name}}} is not in `choose`{known}")


def _is_played(loc: Loc) -> bool:
    """Whether the field belongs to the played experiment; other fields are text for people."""
    return loc[0] in {"datacenter", "load", "clients", "steady_state", "before", "herrings"} or (
        len(loc) > 2 and loc[0] == "truths" and loc[2] in {"method", "repaired", "kept"}
    )


def _texts(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, str):
        yield loc, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in children:
        yield from _texts(each, (*loc, key))


def _check_steps(document: Document, scenario: Scenario) -> None:
    for number, step in enumerate(scenario.before):
        if "for" not in step:
            document.problem(
                ("before", number), "for is missing: a step of the set-up must end before the hidden fault begins"
            )
    for name, truth in scenario.truths.items():
        if not any("fault" in step for step in truth.method):
            document.problem(("truths", name, "method"), "has no fault: nothing is hidden, and no pager goes off")
    times = [((*loc, key), step.get(key, "0s")) for loc, step in _steps(scenario) for key in ("at", "for")]
    for name, truth in scenario.truths.items():
        times.append((("truths", name, "diagnosis", "around"), truth.diagnosis.around or "0s"))
    for place, time in times:
        for value in _values(time, scenario):
            try:
                Duration(value if isinstance(value, str) else "")
            except ValueError:
                document.problem(place, f"{value!r} is not a duration; write it with its unit, like 10s")


def _values(value: Any, scenario: Scenario) -> list[Any]:
    """All values that the seed may choose; none if there is text around the ${name}."""
    names = _CHOSEN.findall(value) if isinstance(value, str) else []
    if not names:
        return [value]
    return list(scenario.choose.get(names[0], [])) if value == f"${{{names[0]}}}" else []


def _steps(scenario: Scenario) -> Iterator[tuple[Loc, dict[str, Any]]]:
    yield from ((("before", number), step) for number, step in enumerate(scenario.before))
    for name, truth in scenario.truths.items():
        yield from ((("truths", name, "method", number), step) for number, step in enumerate(truth.method))
    for at, herring in enumerate(scenario.herrings):
        yield from ((("herrings", at, number), step) for number, step in enumerate(herring or []))


def _check_traffic(document: Document, scenario: Scenario) -> None:
    traffic = [*scenario.load, *scenario.clients]
    for name, truth in scenario.truths.items():
        for number, back in enumerate(truth.back):
            if back.load not in traffic:
                place = ("truths", name, "back", number, "load")
                document.problem(place, f"there is no load or client {back.load!r}: {near(back.load, traffic)}")


_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_UNKNOWN_KEY = re.compile(r"unknown key '([^']+)'")
_SAME = {"datacenter", "load", "clients", "steady_state"}
_PER_BACK = 2
"""The number of expectations for each entry of `back`."""


@dataclass(frozen=True)
class Places:
    """Maps places of a game's experiment to places of its scenario, for one truth, choice and red herring (or None).

    The method has the steps of `before`, of the truth and of the red herring, in that order.
    """

    written: Written
    truth: str
    values: Mapping[str, Any]
    herring: int | None
    before: int
    method: int
    misleading: int

    def error(self, problems: Iterable[Problem], otherwise: ExperimentError) -> ExperimentError:
        """All problems of the experiment at their places in the scenario; those without a place stay unchanged."""
        document = self.written.document.unmarked()
        for problem in problems:
            loc = self.of(loc_of(problem.at))
            named = _UNKNOWN_KEY.match(problem.text)
            key = named is not None and named[1] in self._at(loc, {})
            document.problem((*loc, named[1]) if named and key else loc, problem.text + self._chosen(loc), key=key)
        if not document.problems:
            return ExperimentError(f"{self.written.path}: the truth {self.truth} is not an experiment: {otherwise}")
        return ExperimentError(document.message())

    def of(self, loc: Loc) -> Loc:
        """The place in the scenario for a place in the experiment."""
        if not loc or loc[0] in _SAME:
            return loc
        if len(loc) > 1 and isinstance(loc[1], int) and loc[0] in {"method", "expect"}:
            return (self._of_step if loc[0] == "method" else self._of_expectation)(loc[1], loc[2:])
        return ("truths", self.truth)

    def _of_step(self, number: int, rest: Loc) -> Loc:
        truth = ("truths", self.truth)
        if number < self.before:
            return ("before", number, *rest)
        number -= self.before
        if number < self.method:
            return (*truth, "method", number, *rest)
        number -= self.method
        known = number < self.misleading and self.herring is not None
        return ("herrings", self.herring or 0, number, *rest) if known else truth

    def _of_expectation(self, number: int, rest: Loc) -> Loc:
        truth = ("truths", self.truth)
        told = self.written.scenario.truths[self.truth]
        scenario = self.written.scenario
        back = _PER_BACK * (len(told.back) or len(scenario.load) + len(scenario.clients))
        if number < back:
            return (*truth, "back", number // _PER_BACK) if told.back else truth
        number -= back
        if number < len(told.repaired):
            return (*truth, "repaired", number, *rest)
        return (*truth, "kept", number - len(told.repaired), *rest) if told.kept is not None else truth

    def _at(self, loc: Loc, otherwise: Any) -> Any:
        value: Any = self.written.data
        for part in loc:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return otherwise
        return value if isinstance(value, (dict, str)) else otherwise

    def _chosen(self, loc: Loc) -> str:
        """` (delay is soon)`, if the seed chose that value."""
        names = _CHOSEN.findall(str(self._at(loc, "")) if isinstance(self._at(loc, ""), str) else "")
        said = ", ".join(f"{name} is {self.values[name]}" for name in names if name in self.values)
        return f" ({said})" if said else ""


def loc_of(text: str) -> Loc:
    """Reads a place like `method[0].with.delay`, as written by hashidrill.core.experiment.documents.path_text."""
    return tuple(int(number) if number else name for number, name in _PART.findall(text))
