"""What a file of `kind: Scenario` says.

    apiVersion: hashidrill/v1
    kind: Scenario
    metadata: {name: first, title: Saving a cart takes seconds, level: 1}
    pager: {from: checkout team, text: "Since a few minutes ago, saving a cart takes seconds."}
    datacenter: {consul: {servers: 3}}
    load: {kv-writes: {kind: consul.kv.write, rate: 50/s}}
    choose: {delay: [300ms, 500ms]}
    truths:
      slow-leader-disk: {title: ..., method: [...], diagnosis: {...}, ...}

Datacenter, load, steady state and steps are written as in an experiment, and checked as one once the seed has chosen
(hashidrill.gamedays.training.course).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from hashidrill.core.experiment.model import MOST_ENTRIES, Name
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Duration, Percent

KIND = "Scenario"
ANY = "any"
"""`allowed: any`: every agent may be restarted."""
HOST = "$host"
"""In a diagnosis, and in `allowed`: the hosts of the hidden fault."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=4000, strip_whitespace=True)]
Words = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=60)]], Field(min_length=1)]
Value = str | int | float | bool
_FULL_MARKS = 100


class Metadata(Strict):
    """What the trainee sees before the end: neither name nor title may tell what is broken."""

    name: Name = Field(description="What one types: `hashidrill train NAME`")
    title: Annotated[str, StringConstraints(min_length=1, max_length=120)] = Field(
        description="One line for lists: what users notice, not what is broken"
    )
    level: Literal[1, 2, 3] = Field(description="1: one cause in one place; 3: several, or one that hides")
    limit: Duration = Field(default=Duration("30m"), description="Time for the trainee, from the pager on")

    @model_validator(mode="after")
    def _some_time(self) -> Metadata:
        if not 0 < self.limit <= Duration("4h"):
            raise ValueError("limit must be over 0s and at most 4h")
        return self


class Pager(Strict):
    """The message that wakes the trainee, in the words of those who notice."""

    from_: Text = Field(alias="from", description="Who writes")
    text: Text = Field(description="What they notice; ${name} is what the seed chose")


class Diagnosis(Strict):
    """What must be said: which component, what is wrong with it, and where. `disk` and `slow` stand for all the words
    that people have for them (hashidrill.gamedays.training.vocabulary); case and a plural s do not matter, `disk*`
    takes any ending. A part that is left empty is not asked for.
    """

    component: list[str] = Field(
        default=[], max_length=MOST_ENTRIES, description="Any of these: rows of the vocabulary, or words"
    )
    trouble: Words = Field(description="What is wrong with it: rows of the vocabulary, or words")
    where: list[str] = Field(
        default=[],
        max_length=MOST_ENTRIES,
        description="Any of these; $host is the host of the hidden fault, by name or address",
    )
    also: list[Words] = Field(default=[], max_length=10, description="One of each list must be said as well")
    around: str = Field(default="", description="A time that says the trouble, within a factor of 2: a duration")
    beside: list[str] = Field(
        default=[], max_length=MOST_ENTRIES, description="Rows of the vocabulary that may be named in its place"
    )
    never: list[str] = Field(
        default=[],
        max_length=MOST_ENTRIES,
        description="Rows or words that contradict it, unless a `not` comes before or it is said to be a consequence",
    )
    exact: Text = Field(description="The whole truth, for the debrief; ${host} is the host of the hidden fault")


class Back(Strict):
    """When users of a load are back: measured after the trainee is done, while the fault is not reverted yet."""

    load: Name
    p50_below: Duration = Field(default=Duration("300ms"), description="p50 over each 5 s")
    errors_below: Percent = Field(default=Percent("1%"), description="Share of operations that are not acknowledged")


class Hint(Strict):
    """What can be bought."""

    price: Annotated[int, Field(ge=0, le=_FULL_MARKS)] = Field(description="Points that it costs, of 100")
    text: Text


class Look(Strict):
    """What an expert looks at."""

    look: Text = Field(description="The command, or the place")
    shows: Text = Field(description="What is seen there")
    after: Duration = Field(default=Duration("0s"), description="When it is seen there, after the fault began")


class Truth(Strict):
    """One of the things that can be behind the pager."""

    title: Text = Field(description="One line for the debrief")
    method: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_ENTRIES)] = Field(
        description="Steps as in an experiment; `at` counts from the end of `before`, and without `for` a fault lasts"
        " until the trainee is done"
    )
    page_after: Duration = Field(
        default=Duration("10s"), description="When the pager goes, after all of it is in force"
    )
    diagnosis: Diagnosis
    back: list[Back] = Field(default=[], max_length=MOST_ENTRIES, description="Default: every load, p50 below 300ms")
    repaired: list[dict[str, Any]] = Field(
        default=[], max_length=MOST_ENTRIES, description="Expectations that show the repair where users alone do not"
    )
    kept: list[dict[str, Any]] | None = Field(
        default=None, description="Expectations of the whole game; default: no acknowledged KV write is lost"
    )
    allowed: list[str] | Literal["any"] = Field(
        default=[HOST], description="Hosts whose agents the repair may restart; any: all of them"
    )
    hints: list[Hint] = Field(default=[], max_length=10)
    expert: list[Look] = Field(default=[], max_length=20)
    repair: Text = Field(description="What repairs it, for the debrief")
    runbook: str = Field(default="", max_length=200, description="The runbook that fits, a path below the library")
    debrief: Text = Field(description="Why it looked as it did, and what happened to whom")
    play: list[dict[str, Any]] = Field(default=[], max_length=MOST_ENTRIES, description="How a script solves it")


class Scenario(Strict):
    """A game for a trainee: a pager message, a datacenter, and what may be wrong with it."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Scenario"] = Field(description="Kind of document")
    metadata: Metadata
    pager: Pager
    hand_over: str = Field(default="", max_length=4000, description="What a colleague tells before the pager goes")
    datacenter: dict[str, Any] = Field(default={}, description="As in an experiment")
    load: dict[Name, dict[str, Any]] = Field(default={}, max_length=MOST_ENTRIES, description="As in an experiment")
    clients: dict[Name, dict[str, Any]] = Field(default={}, max_length=MOST_ENTRIES, description="As in an experiment")
    steady_state: dict[str, Any] | None = Field(
        default=None, description="As in an experiment; default: every load has errors < 1% for 8s"
    )
    before: list[dict[str, Any]] = Field(
        default=[], max_length=MOST_ENTRIES, description="Steps that are over before the hidden fault begins"
    )
    choose: dict[Name, Annotated[list[Value], Field(min_length=1)]] = Field(
        default={}, description="What the seed picks one of; ${name} in all that follows"
    )
    herrings: list[list[dict[str, Any]] | None] = Field(
        default=[], max_length=MOST_ENTRIES, description="Steps that mislead; the seed picks one, null is none"
    )
    truths: dict[Name, Truth] = Field(min_length=1, max_length=20, description="What the seed picks one of")
