"""The log of one game: the trainee's statements with their times, purchases and actions, and the end of the game.

The class has no clock and no network: the caller passes the time, in ns of the run. Trainees read its answers, so these
must not reveal more than the trainee found out.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Audience, Change, Event, Figures, Intent, Proof, Steady, Tick, seen_by
from hashidrill.core.units import Duration
from hashidrill.gamedays.training.course import Course
from hashidrill.gamedays.training.words import Said, judged

S = 1_000_000_000
STARTS, QUIET, PAGED, WATCHED, OVER = "starts", "quiet", "paged", "watched", "over"
WORDS = ("ready", "detected", "diagnosis", "done", "hint", "give-up", "users", "pager")
OVERRULED = "overruled"
"""The trainer's decision about the last diagnosis."""
CANCELLED = "cancelled"
_TOO_EARLY = "nothing has been reported to you yet; the pager will go when users notice something"
_TOO_LATE = "the game is over"
_READY = "noted; from now on something may break, and the pager goes when users notice it"
_NOTED = (
    "noted; the score card will say whether it is right. Say another one if you learn more: the last one counts, "
    "and each"
    " one that contradicts the truth costs points"
)


@dataclass(frozen=True)
class Entry:
    """One line of the timeline: typed or said by the trainee."""

    t_ns: int
    what: str
    """typed, ready, detected, diagnosis, overruled, hint, done, give-up, cancelled, agent, pager or limit."""
    text: str = ""
    host: str = ""
    price: int = 0
    right: bool | None = None
    """The trainer's decision; None for every other entry."""


@dataclass
class Desk:
    """The state of one game. It is not thread-safe: its owner holds a lock."""

    course: Course
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Hosts of the datacenter and their addresses, once they are known."""
    state: str = STARTS
    timeline: list[Entry] = field(default_factory=list)
    fault_ns: int | None = None
    """The time from which every part of the hidden fault was in force."""
    page_ns: int | None = None
    done_ns: int | None = None
    gave_up: bool = False
    cancelled: bool = False
    """The trainer ended the game, which counts for nothing."""
    busy: Callable[[], str] = lambda: ""
    """Warns if this machine is too busy for the game to count; "" otherwise."""
    hosts: dict[str, None] = field(default_factory=dict)
    """The hosts of the hidden fault."""
    figures: Mapping[str, Figures] = field(default_factory=dict)
    failed: str = ""
    _steps: dict[str, int] = field(default_factory=dict)
    _proven: set[int] = field(default_factory=set)
    _bought: int = 0

    # events of the engine

    def event(self, event: Event, now_ns: int) -> float | None:
        """Processes an event of the run. Returns the seconds until the pager is due, once they are known."""
        if isinstance(event, Steady) and event.held and self.state == STARTS:
            self.state = QUIET
        elif isinstance(event, Intent) and event.step in self.course.hidden:
            self._steps[event.fault_id] = event.step
            self.hosts[event.target.host] = None
        elif isinstance(event, Change) and event.event == "fault.moved":
            self._steps.pop(event.fault_id, None)
        elif isinstance(event, Proof) and event.event == "fault.proven" and event.fault_id in self._steps:
            self._proven.add(self._steps[event.fault_id])
            if self.fault_ns is None and self._proven >= {*self.course.hidden}:
                self.fault_ns = now_ns
                return float(self.course.truth.page_after)
        seen = seen_by(event, Audience.TRAINEE)
        if isinstance(seen, Tick):
            self.figures = seen.loads
        return None

    def page(self, now_ns: int) -> None:
        """The pager goes."""
        if self.state == QUIET:
            self.state, self.page_ns = PAGED, now_ns
            self._note(now_ns, "pager", self.course.pager.text)

    def limit(self, now_ns: int) -> bool:
        """The trainee's time is over. Returns True if that ends the game."""
        if self.state != PAGED:
            return False
        self._note(now_ns, "limit")
        self._ends(now_ns)
        return True

    # the trainee's statements

    def say(self, what: str, words: str, now_ns: int) -> tuple[str, bool]:
        """The answer, and whether the game ends now."""
        looks = {"users": self.users, "pager": self._pager}
        if what in looks:
            return looks[what](), False
        if self.state in {WATCHED, OVER}:
            return _TOO_LATE, False
        always = {"ready": self._ready, "give-up": self._give_up}
        if what not in always and self.state != PAGED:
            return _TOO_EARLY, False
        answers = {"detected": self._detected, "diagnosis": self._diagnosis, "hint": self._hint, "done": self._done}
        answers |= always
        if what not in answers:
            return f"say one of {', '.join(WORDS)}", False
        return answers[what](words.strip(), now_ns)

    def _ready(self, _words: str, now_ns: int) -> tuple[str, bool]:
        if self.state == STARTS:
            return "the datacenter still starts; look around first", False
        if self.state == PAGED or any(entry.what == "ready" for entry in self.timeline):
            return "you were ready already", False
        self._note(now_ns, "ready")
        return "\n".join(filter(None, (_READY, self.busy()))), False

    def _give_up(self, _words: str, now_ns: int) -> tuple[str, bool]:
        self.gave_up = True
        self._note(now_ns, "give-up")
        self._ends(now_ns)
        return "you gave up; the score card names the fault", True

    def _pager(self) -> str:
        pager = self.course.pager
        return "the pager has not gone off" if self.page_ns is None else f"from {pager.from_}: {pager.text.strip()}"

    def _detected(self, words: str, now_ns: int) -> tuple[str, bool]:
        self._note(now_ns, "detected", words)
        return f"noted, {self.since_page(now_ns)} after the pager", False

    def _diagnosis(self, words: str, now_ns: int) -> tuple[str, bool]:
        if not words:
            return "say what is wrong, and where: hashidrill say diagnosis WORDS", False
        self._note(now_ns, "diagnosis", words)
        if missing := self.judged(words).missing:
            return f"noted, at no cost; it does not say {', nor '.join(missing)}: say all of it once you know", False
        return _NOTED, False

    def _hint(self, _words: str, now_ns: int) -> tuple[str, bool]:
        hints = self.course.truth.hints
        if self._bought >= len(hints):
            return "there are no more hints", False
        hint = hints[self._bought]
        self._bought += 1
        self._note(now_ns, "hint", hint.text, price=hint.price)
        left = len(hints) - self._bought
        return f"{hint.text} ({hint.price} points; {left} more)", False

    def _done(self, words: str, now_ns: int) -> tuple[str, bool]:
        self._note(now_ns, "done", words)
        self._ends(now_ns)
        return "noted; the users are watched for a while, then the score card comes", True

    def _ends(self, now_ns: int) -> None:
        self.state, self.done_ns = WATCHED, now_ns

    def cancel(self, now_ns: int) -> str:
        """The trainer ends the game without a score; possible until the score card is written. Raises UsageError."""
        if self.state == OVER:
            raise UsageError("the game is over, and its score card is written")
        self.cancelled = True
        self._note(now_ns, CANCELLED)
        if self.state != WATCHED:
            self._ends(now_ns)
        return "noted: the game ends, its faults are removed, and it counts for nothing"

    def overrule(self, now_ns: int, why: str, *, right: bool) -> str:
        """The trainer decides about the last diagnosis, until the score card is written. Raises UsageError."""
        said = [entry for entry in self.timeline if entry.what == "diagnosis"]
        if not said:
            raise UsageError("no diagnosis has been said yet: there is nothing to overrule")
        if not why.strip():
            raise UsageError("say why: the score card and the recording show it")
        if self.state == OVER:
            raise UsageError("the game is over, and its score card is written")
        self.timeline.append(Entry(now_ns, OVERRULED, why.strip(), right=right))
        counts = "right" if right else "wrong"
        return f"noted: {said[-1].text!r} counts as {counts}; the score card and the recording say so"

    def decided(self, diagnosis: Entry) -> Entry | None:
        """The trainer's last decision about that diagnosis."""
        after = [each for each in self.timeline if each.what in {"diagnosis", OVERRULED} and each is not diagnosis]
        since = sorted((each for each in after if each.t_ns >= diagnosis.t_ns), key=lambda each: each.t_ns)
        until = next((at for at, each in enumerate(since) if each.what == "diagnosis"), len(since))
        return since[until - 1] if until else None

    # the trainee's actions

    def typed(self, now_ns: int, host: str, text: str) -> None:
        """A command line of a shell."""
        self._note(now_ns, "typed", text, host=host)

    def acted(self, now_ns: int, host: str, words: str) -> None:
        """An agent was started, stopped, restarted or sent a signal: `restart consul`."""
        self._note(now_ns, "agent", words, host=host)

    def _note(self, now_ns: int, what: str, text: str = "", *, host: str = "", price: int = 0) -> None:
        self.timeline.append(Entry(now_ns, what, text, host, price))

    # for readers

    def since_page(self, now_ns: int) -> str:
        """`4m10s`, as a duration."""
        return "" if self.page_ns is None else str(Duration(round((now_ns - self.page_ns) / S)))

    def users(self) -> str:
        """What users see now, one line for each load."""
        if not self.figures:
            return "no figures yet"
        lines = [f"{'':<16}{'rate':>9}{'p50':>10}{'p99':>10}{'errors':>9}"]
        for name, each in self.figures.items():
            rate = "-" if each.rate is None else f"{each.rate:.0f}/s"
            errors = "-" if each.errors is None else f"{each.errors * 100:.1f}%"
            lines.append(f"{name:<16}{rate:>9}{_time(each.p50_s):>10}{_time(each.p99_s):>10}{errors:>9}")
        return "\n".join(lines)

    def shown(self, now_ns: int) -> dict[str, Any]:
        """The state of the game, for a terminal."""
        since = None if self.page_ns is None else ((self.done_ns or now_ns) - self.page_ns) / S
        pager = None if self.page_ns is None else self.course.pager.model_dump(by_alias=True)
        return {
            "state": self.state,
            "pager": pager,
            "hosts": dict(self.addresses),
            "left_s": None if since is None else self.course.limit_s - since,
            "since_page_s": since,
            "diagnosed": any(entry.what == "diagnosis" for entry in self.timeline),
            "gave_up": self.gave_up,
            "cancelled": self.cancelled,
            "busy": self.busy(),
        }

    def kept(self) -> dict[str, Any]:
        """The whole timeline, for the score card and for JSON."""
        return {
            "fault_ns": self.fault_ns,
            "page_ns": self.page_ns,
            "done_ns": self.done_ns,
            "gave_up": self.gave_up,
            "cancelled": self.cancelled,
            "hosts": {host: self.addresses.get(host, "") for host in self.hosts},
            "timeline": [asdict(entry) for entry in sorted(self.timeline, key=lambda each: each.t_ns)],
        }

    def judged(self, words: str) -> Said:
        """The judgement of a diagnosis in these words."""
        sick = {host: self.addresses.get(host) or host for host in self.hosts}
        return judged(words, self.course.truth.diagnosis, sick=sick, known=self.addresses)


def _time(value_s: float | None) -> str:
    if value_s is None:
        return "-"
    return "never" if value_s == float("inf") else str(Duration(round(value_s, 3)))
