"""Scripts that decide for each attempt whether, and how, the tap fails it.

First("503", 2)                  fails the first two attempts, then passes all
Always("hang")                   fails every attempt
WithProbability("503", 0.1, seed=7)
ForSeconds("refused", 2.0)       fails attempts for 2 s from the first attempt, or from `begin()`, on
InTurn(["503", "", "502"])       fails by position; "" passes, and all attempts after the end pass
Nothing()
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.registry import near
from hashidrill.core.tap.attempts import SECOND
from hashidrill.core.tap.catalogue import FAULTS

UNSEEN = frozenset({"refused", "dns"})
"""Faults that the tap's door or the name server injects; no connection is ever made."""


@dataclass(frozen=True)
class Moment:
    """The state of an attempt when its fault is decided."""

    now_ns: int
    reused: bool = False
    blocking: bool = False
    """Whether the request is a blocking query at an index."""


class Plan(Protocol):
    """Decides the fault of each request; the tap calls it once for each."""

    @property
    def faults(self) -> Sequence[str]:
        """All faults that the plan can inject."""

    def decide(self, moment: Moment) -> str:
        """The name of the fault for this attempt, or "". The tap then injects it, and `decide` counts it."""


def check_fault(name: str) -> str:
    """The name itself. Raises UsageError with similar names if it is not in the catalogue."""
    if name not in FAULTS:
        raise UsageError(f"the tap has no fault {name!r}: {near(name, FAULTS)}")
    return name


def fits(fault: str, moment: Moment) -> bool:
    """Whether a fault can be injected now: some need a new connection, some a reused one, some a whole request."""
    if fault in UNSEEN:
        return False
    if fault == "index-backwards":
        return moment.blocking
    if fault.endswith("-fresh"):
        return not moment.reused
    return moment.reused if fault.endswith("-reused") else True


@dataclass
class Nothing:
    """Passes all attempts through."""

    faults: Sequence[str] = ()

    def decide(self, moment: Moment) -> str:  # noqa: ARG002 - the protocol has it
        return ""


@dataclass
class First:
    """Fails the first `count` attempts that the fault can hit; then passes all."""

    fault: str
    count: float = 1
    given: int = 0

    def __post_init__(self) -> None:
        check_fault(self.fault)

    @property
    def faults(self) -> Sequence[str]:
        return (self.fault,)

    def decide(self, moment: Moment) -> str:
        if self.given >= self.count or not fits(self.fault, moment):
            return ""
        self.given += 1
        return self.fault


def Always(fault: str) -> First:  # noqa: N802 - named like the other plans
    """Fails every attempt with this fault."""
    return First(fault, float("inf"))


@dataclass
class WithProbability:
    """Fails each attempt with this fault with a probability from 0 to 1; the same seed makes the same choices."""

    fault: str
    probability: float
    seed: int = 0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_fault(self.fault)
        if self.fault in UNSEEN:
            raise UsageError(f"{self.fault} cannot be probabilistic; use First")
        if not 0 <= self.probability <= 1:
            raise UsageError(f"a probability is between 0 and 1, not {self.probability}")
        self._random = random.Random(self.seed)

    @property
    def faults(self) -> Sequence[str]:
        return (self.fault,)

    def decide(self, moment: Moment) -> str:
        if not fits(self.fault, moment):
            return ""
        return self.fault if self._random.random() < self.probability else ""


@dataclass
class ForSeconds:
    """Fails attempts for `seconds`, counted from the first attempt (or from `begin`); then passes all."""

    fault: str
    seconds: float
    began_ns: int | None = None

    def __post_init__(self) -> None:
        check_fault(self.fault)

    @property
    def faults(self) -> Sequence[str]:
        return (self.fault,)

    def begin(self, now_ns: int) -> None:
        """Counts the seconds from now on. The tap calls this when it opens, for faults that let it see no attempts."""
        self.began_ns = now_ns

    def decide(self, moment: Moment) -> str:
        if not fits(self.fault, moment):
            return ""
        if self.began_ns is None:
            self.began_ns = moment.now_ns
        return self.fault if moment.now_ns - self.began_ns < self.seconds * SECOND else ""


@dataclass
class InTurn:
    """The fault of each attempt by its position. An empty name passes the attempt, and later attempts all pass."""

    faults: Sequence[str]
    position: int = 0

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault and check_fault(fault) in UNSEEN:
                raise UsageError(
                    f"{fault} cannot alternate with other faults: no process listens on the port while it lasts"
                )

    def decide(self, moment: Moment) -> str:
        if self.position >= len(self.faults):
            return ""
        fault = self.faults[self.position]
        self.position += 1
        return fault if not fault or fits(fault, moment) else ""


@dataclass
class OnceReused:
    """Fails the first request on a reused connection. A client with a single request is led to a second one.

    `redirect`: the first request of a fresh connection is redirected (307) to the same place, so that a client which
    follows redirects reuses the connection. `redirected` says whether the tap has done that.
    """

    fault: str
    redirect: bool = False
    redirected: bool = False
    given: int = 0

    @property
    def faults(self) -> Sequence[str]:
        return (self.fault,)

    def decide(self, moment: Moment) -> str:
        if self.given or not fits(self.fault, moment):
            return ""
        self.given += 1
        return self.fault

    def takes_redirect(self, moment: Moment) -> bool:
        """Whether the tap answers this request with a redirect to itself."""
        if not self.redirect or self.redirected or moment.reused:
            return False
        self.redirected = True
        return True
