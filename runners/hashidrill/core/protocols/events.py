"""The typed events of a run, and the bus that hands them to subscribers.

The journal is not a subscriber: its lines must be on disk before the run acts on them, and a run whose journal
cannot be written ends. So the journal writes first, and the bus publishes the same entry. An event has the same
words as a line of the journal, and `decode` reads both: a finished run can be replayed from its journal.

All subscribers are read-only. A subscriber that raises gets no further events; it neither ends the run nor keeps a
fault in force.

Each event and field declares its audience. A trainee who diagnoses a run sees its phases, the figures of its loads
and its guardrails, but neither which fault is applied where, nor its proof: `seen_by` removes these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class Audience(StrEnum):
    """An operator sees everything; a trainee must find out what is broken."""

    OPERATOR = "operator"
    TRAINEE = "trainee"


_FOR_OPERATORS = {"audience": Audience.OPERATOR}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, `t_ns` after the run began. Only operators see it unless its class says otherwise."""

    audience: ClassVar[Audience] = Audience.OPERATOR
    names: ClassVar[tuple[str, ...]] = ()
    """The event's names in the journal and on the wire. If there are several, the field `event` holds the one used."""

    event: str
    t_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """The run began. A trainee does not see it: most experiments are named after their fault."""

    names: ClassVar[tuple[str, ...]] = ("run",)
    event: str = "run"
    id: str = ""
    experiment: str = ""


@dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """A phase began: start, ready, load, steady, method, recovery, quiesce, closed."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    names: ClassVar[tuple[str, ...]] = ("phase",)
    event: str = "phase"
    phase: str
    ends_ns: int | None = None


@dataclass(frozen=True)
class Where:
    """The target of a fault."""

    host: str = ""
    agent: str = ""


@dataclass(frozen=True)
class Seen:
    """An observer's question (present or gone) and its measurement."""

    asked: str = ""
    measured: str = ""


@dataclass(frozen=True, kw_only=True)
class Intent(Event):
    """A fault is about to be applied."""

    names: ClassVar[tuple[str, ...]] = ("fault.intent",)
    event: str = "fault.intent"
    fault_id: str
    kind: str
    target: Where = Where()
    params: Mapping[str, Any] = field(default_factory=dict)
    step: int = -1


@dataclass(frozen=True, kw_only=True)
class Proof(Event):
    """An observer checked whether a fault is in force, or gone."""

    names: ClassVar[tuple[str, ...]] = (
        "fault.proven",
        "fault.unproven",
        "fault.still",
        "fault.faded",
        "fault.gone",
        "fault.ended",
    )
    fault_id: str
    evidence: Seen = Seen()


@dataclass(frozen=True, kw_only=True)
class Change(Event):
    """A change of a fault: applied, failed, undone by another, moved with its role, reverted, or stuck."""

    names: ClassVar[tuple[str, ...]] = (
        "fault.applied",
        "fault.failed",
        "fault.undone",
        "fault.moved",
        "fault.reverted",
        "fault.stuck",
    )
    fault_id: str
    error: str = ""
    by: str = ""
    on: str = ""
    evidence: Seen = Seen()


@dataclass(frozen=True, kw_only=True)
class Marked(Event):
    """A mark of the method began or ended."""

    names: ClassVar[tuple[str, ...]] = ("mark.begin", "mark.end")
    mark: str
    step: int = -1
    ends_ns: int | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting(Event):
    """The next step waits for earlier ones and the method's clock stands still, or goes on after `stood_ns`."""

    names: ClassVar[tuple[str, ...]] = ("clock.stops", "clock.goes")
    at_s: float
    waits_for: tuple[str, ...] = ()
    stood_ns: int = 0
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Attended(Event):
    """A person acts while the faults last, for example to rehearse a runbook. `text` says what was done."""

    names: ClassVar[tuple[str, ...]] = ("attended.begins", "attended.did", "attended.ends")
    what: str = ""
    host: str = ""
    text: str = ""
    name: Any = None
    value: Any = None
    kind: Any = None
    line: Any = None
    command: Any = None
    code: Any = None
    output: Any = None
    errors: Any = None
    took_s: Any = None
    control: Any = None
    when: Any = None
    because: Any = None


@dataclass(frozen=True, kw_only=True)
class Guardrail(Event):
    """A guardrail tripped: all faults are reverted, and the method ends."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    names: ClassVar[tuple[str, ...]] = ("guardrail",)
    event: str = "guardrail"
    condition: str
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Steady(Event):
    """The steady state held, or did not."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    names: ClassVar[tuple[str, ...]] = ("steady",)
    event: str = "steady"
    held: bool
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Level(Event):
    """The search for the level of a load ended."""

    names: ClassVar[tuple[str, ...]] = ("search",)
    event: str = "search"
    load: str = ""
    level: float | None = None
    found: bool = False
    text: str


@dataclass(frozen=True, kw_only=True)
class Moment(Event):
    """The moment that a step waited for (`when:`) came, or did not."""

    names: ClassVar[tuple[str, ...]] = ("moment",)
    event: str = "moment"
    step: Any = None
    when: Any = None
    came: bool = False
    waited_ns: int = 0
    evidence: str = ""


@dataclass(frozen=True, kw_only=True)
class Profiled(Event):
    """A Go profile of a server was taken, or could not be. `why`: a broken promise, or the steady state."""

    names: ClassVar[tuple[str, ...]] = ("profile",)
    event: str = "profile"
    host: str
    agent: str = ""
    kind: str
    began_ns: int = 0
    why: str = ""
    file: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Any other message for an operator."""

    names: ClassVar[tuple[str, ...]] = ("note",)
    event: str = "note"
    text: str


@dataclass(frozen=True, kw_only=True)
class End(Event):
    """The run ended, and how. The error names faults and hosts."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    names: ClassVar[tuple[str, ...]] = ("end",)
    event: str = "end"
    outcome: str
    error: str = field(default="", metadata=_FOR_OPERATORS)


@dataclass(frozen=True)
class Expected:
    """One judged expectation. `finding`: held, broken, invalid, known or fixed (core.judging.verdict.Finding)."""

    title: str
    hypothesis: str
    finding: str
    text: str = ""
    figures: Mapping[str, float | str | list[str]] = field(default_factory=dict)
    known_issue: str | None = None


@dataclass(frozen=True, kw_only=True)
class Judged(Event):
    """The run was judged. Comes after `end`, with the same `t_ns`, and is not in the journal: see verdict.json.

    A trainee sees only the verdict: expectations, reasons and paths are named after the fault.
    """

    audience: ClassVar[Audience] = Audience.TRAINEE
    names: ClassVar[tuple[str, ...]] = ("judged",)
    event: str = "judged"
    verdict: str
    invalid: tuple[str, ...] = field(default=(), metadata=_FOR_OPERATORS)
    doubts: tuple[str, ...] = field(default=(), metadata=_FOR_OPERATORS)
    notes: tuple[str, ...] = field(default=(), metadata=_FOR_OPERATORS)
    expectations: tuple[Expected, ...] = field(default=(), metadata=_FOR_OPERATORS)
    recording: str = field(default="", metadata=_FOR_OPERATORS)
    report: str = field(default="", metadata=_FOR_OPERATORS)


@dataclass(frozen=True)
class InForce:
    """A fault that is in force now."""

    fault_id: str
    kind: str
    host: str
    ends_ns: int | None = None


@dataclass(frozen=True)
class Lasting:
    """A mark that lasts now."""

    mark: str
    ends_ns: int | None = None


@dataclass(frozen=True)
class Figures:
    """One load's last second. A latency is infinite if due operations are never served, None without operations."""

    rate: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    errors: float | None = None
    """Share of ended operations that were not acknowledged, 0 to 1."""
    waiting: int = 0
    """The number of operations that wait longer than usual; `waited_s` is the age of the oldest, in seconds."""
    waited_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tick(Event):
    """The current state; comes twice a second, and is not in the journal."""

    audience: ClassVar[Audience] = Audience.TRAINEE
    names: ClassVar[tuple[str, ...]] = ("tick",)
    event: str = "tick"
    phase: str = ""
    phase_ends_ns: int | None = None
    loads: Mapping[str, Figures] = field(default_factory=dict)
    leaders: tuple[tuple[str, str], ...] = field(default=(), metadata=_FOR_OPERATORS)
    """The leaders that services report, by the titles of their lanes: `("leader", "consul-1")`, "" for none; and the
    servers that client agents ask: `("client-1", "asks consul-2")`.
    """
    probes: tuple[tuple[str, float], ...] = field(default=(), metadata=_FOR_OPERATORS)
    """The last sample of each signal: the majority's view if there is one, otherwise the highest of all hosts."""
    faults: tuple[InForce, ...] = field(default=(), metadata=_FOR_OPERATORS)
    marks: tuple[Lasting, ...] = field(default=(), metadata=_FOR_OPERATORS)
    unmet: tuple[str, ...] = field(default=(), metadata=_FOR_OPERATORS)
    """The conditions that the steady state waits for, each with its measured value: `health.ok == 1 (measured 0)`."""


KINDS: tuple[type[Event], ...] = (
    Began,
    Phase,
    Intent,
    Proof,
    Change,
    Marked,
    Waiting,
    Attended,
    Guardrail,
    Steady,
    Level,
    Moment,
    Profiled,
    Note,
    End,
    Judged,
    Tick,
)
_BY_NAME = {name: kind for kind in KINDS for name in kind.names}


# over a wire, as JSON lines


def encode(event: Event) -> str:
    """One line of JSON, without its newline. JSON lacks infinity and NaN: they become text and null."""
    return json.dumps(_plain(asdict(event)), default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def decode(line: str | bytes | Mapping[str, Any]) -> Event | None:
    """The event of a line, or of a parsed line.

    None for a torn line, for an event of a newer hashidrill, and for invalid fields: the subscriber misses that event,
    and the run goes on. Unknown fields are left out.
    """
    try:
        data = line if isinstance(line, Mapping) else json.loads(line)
        event: Event = _adapter(data["event"]).validate_python(dict(data))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return event


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - code that only publishes events does not need it

    return TypeAdapter(_BY_NAME[name])


# who may see what


def seen_by(event: Event, audience: Audience) -> Event | None:
    """The event as that audience may see it; None if it may not."""
    if audience is Audience.OPERATOR:
        return event
    if event.audience is Audience.OPERATOR:
        return None
    kept_back: dict[str, Any] = {
        each.name: each.default for each in fields(event) if each.metadata.get("audience") is Audience.OPERATOR
    }
    return replace(event, **kept_back)


# the bus

Subscriber = Callable[[Event], None]


class Bus:
    """Hands each event to every subscriber, in the order in which they subscribed."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = [(each, Audience.OPERATOR) for each in subscribers]
        self.failures: list[str] = []
        """The subscribers that were left out, and why."""

    def subscribe(self, subscriber: Subscriber, audience: Audience = Audience.OPERATOR) -> None:
        """Subscribes from now on to the events of this audience."""
        self._subscribers.append((subscriber, audience))

    def publish(self, event: Event) -> None:
        """Returns once every subscriber has seen the event. One that raises is left out; the others still get it."""
        failed = []
        for subscriber, audience in list(self._subscribers):
            seen = seen_by(event, audience)
            if seen is None:
                continue
            try:
                subscriber(seen)
            except Exception as error:  # noqa: BLE001 - no error of a subscriber may end the run
                self._subscribers.remove((subscriber, audience))
                name = getattr(subscriber, "__qualname__", type(subscriber).__qualname__)
                failed.append(f"{name} gets no more events: it failed with {type(error).__name__}: {error}")
        self.failures += failed
        for text in failed:
            self.publish(Note(t_ns=event.t_ns, text=text))
