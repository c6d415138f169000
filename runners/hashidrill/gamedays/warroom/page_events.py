"""Events of a war room that are not events of a run: questions to people, predictions, the scribe's notes.

Like the events of a run, each says who may see it; `Audience.TRAINEE` stands for all people who only watch. Fields that
are `_FOR_THE_LEAD` reveal what an experiment breaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from hashidrill.core.protocols.events import Audience, Event
from hashidrill.gamedays.warroom.ballot import BallotQuestion

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
    """The measured answers to the predicted questions, from the recording: the key of the question, and the measured
    value.
    """

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
