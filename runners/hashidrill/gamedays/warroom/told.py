"""What happens in a war room beside the events of a run: who is asked what, who predicted what, what the scribe writes.

Like the events of a run, each says who may see it; `Audience.TRAINEE` stands for everybody who only watches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from hashidrill.core.protocols.events import Audience, Event

_FOR_THE_LEAD = {"audience": Audience.OPERATOR}
Tone = Literal["", "good", "bad", "odd"]


@dataclass(frozen=True, kw_only=True)
class Planned(Event):
    """A game day begins, or goes on. Names of experiments tell what they break."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.planned"
    title: str = field(default="", metadata=_FOR_THE_LEAD)
    runs: int = 0
    titles: tuple[str, ...] = field(default=(), metadata=_FOR_THE_LEAD)
    goals: tuple[str, ...] = field(default=(), metadata=_FOR_THE_LEAD)
    people: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Begins(Event):
    """A run begins: the figures of the one before it go."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.begins"
    title: str = field(default="", metadata=_FOR_THE_LEAD)
    number: int = 1


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
class Asked(Event):
    """Somebody is asked something; the page of the lead can answer. `choices`: labels, and what each stands for."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.asked"
    id: int
    for_all: str = ""
    """The question, as everybody may read it."""
    text: str = field(default="", metadata=_FOR_THE_LEAD)
    choices: tuple[tuple[str, str], ...] = field(default=(), metadata=_FOR_THE_LEAD)
    hint: str = field(default="", metadata=_FOR_THE_LEAD)
    trouble: str = field(default="", metadata=_FOR_THE_LEAD)


@dataclass(frozen=True, kw_only=True)
class Answered(Event):
    """The question is not open any more."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.answered"
    id: int


@dataclass(frozen=True, kw_only=True)
class Predicted(Event):
    """Somebody predicted something of a run."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.predicted"
    run: int
    key: str
    who: str
    ask: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Happened(Event):
    """What the recording says about what was predicted: key of the question, and what was measured."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.happened"
    run: int
    measured: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Ran(Event):
    """A run of the plan is over, with its verdict."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.ran"
    run: int
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Stopping(Event):
    """Somebody pressed the stop button."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.stopping"


@dataclass(frozen=True, kw_only=True)
class Over(Event):
    """Nothing comes after this: the server ends."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    event: str = "room.over"
    text: str = ""
