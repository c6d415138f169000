"""One clock for all workers: how far each one's is from the runner's, how sure that is, and that it stays so.

CLOCK_MONOTONIC counts from another moment on each machine, and not at quite the same speed. The runner asks a worker
for its time, and again: the exchange with the shortest round trip says most, because the answer was somewhere within
it. The offset is known to half of that round trip, and no better (RFC 5905, section 8).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hashidrill.core.errors import DatacenterError

WITHIN_NS = 5_000_000
"""How far the clock of a worker may be from the run's, in the worst case."""
WINDOW = 16
"""The exchanges among which the best is looked for."""
SLEW_NS = 100_000
"""By how much the clock of a worker is moved at a time, at most: less than any operation lasts."""


class ClockError(DatacenterError):
    """The clock of a worker is not known well enough, or jumped. The run is INVALID."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer: the runner's clock at both ends, the worker's between. Nanoseconds."""

    asked_ns: int
    heard_ns: int
    answered_ns: int
    back_ns: int

    @property
    def offset_ns(self) -> int:
        """The worker's clock less the runner's, if both ways took as long."""
        return ((self.heard_ns - self.asked_ns) + (self.answered_ns - self.back_ns)) // 2

    @property
    def round_ns(self) -> int:
        """How long the question and the answer were under way."""
        return (self.back_ns - self.asked_ns) - (self.answered_ns - self.heard_ns)


@dataclass(frozen=True, slots=True)
class Offset:
    """The worker's clock less the runner's: it is within `uncertainty_ns` of `ns`."""

    ns: int
    uncertainty_ns: int


class Exchanges:
    """The last exchanges with one worker, and what they say together."""

    def __init__(self, window: int = WINDOW) -> None:
        self._last: deque[Exchange] = deque(maxlen=window)

    def add(self, exchange: Exchange) -> None:
        """Raises ClockError for one that cannot be: the worker held it for longer than it was away."""
        if exchange.round_ns < 0 or exchange.answered_ns < exchange.heard_ns:
            raise ClockError(
                f"its clock says that it held a question for {(exchange.answered_ns - exchange.heard_ns) / 1e6:.3f} ms,"
                f" of the {(exchange.back_ns - exchange.asked_ns) / 1e6:.3f} ms that passed here: its clock jumped"
            )
        self._last.append(exchange)

    def __len__(self) -> int:
        return len(self._last)

    def clear(self) -> None:
        self._last.clear()

    def offset(self) -> Offset:
        """By the exchange with the shortest round trip. Raises ClockError without any."""
        if not self._last:
            raise ClockError("its clock was never read")
        best = min(self._last, key=lambda exchange: exchange.round_ns)
        return Offset(best.offset_ns, -(-best.round_ns // 2))


class Discipline:
    """Keeps the clock of one worker at the run's: `applied_ns` is the offset that the worker goes by now."""

    def __init__(self, first: Offset, within_ns: int = WITHIN_NS) -> None:
        """Raises ClockError where the first measurement is too coarse."""
        self._within_ns = within_ns
        if first.uncertainty_ns > within_ns:
            raise ClockError(
                f"its clock is known to {first.uncertainty_ns / 1e6:.1f} ms at best (half of the shortest round trip),"
                f" and must be to {within_ns / 1e6:g} ms: run from a machine that is nearer to it"
            )
        self.applied_ns = first.ns

    def check(self, offset: Offset) -> None:
        """Raises ClockError where the worker's clock is further off than it may be: it was stopped, or jumped."""
        error_ns = offset.ns - self.applied_ns
        if abs(error_ns) - offset.uncertainty_ns > self._within_ns:
            raise ClockError(
                f"its clock jumped: it is {error_ns / 1e6:+.1f} ms from where it was, known to"
                f" {offset.uncertainty_ns / 1e6:.3f} ms; at most {self._within_ns / 1e6:g} ms are let pass"
            )

    def step(self, offset: Offset) -> int:
        """By how much the worker's clock moves now (nanoseconds); 0 for as long as nothing shows that it must."""
        error_ns = offset.ns - self.applied_ns
        if abs(error_ns) <= offset.uncertainty_ns:
            return 0
        step_ns = max(-SLEW_NS, min(SLEW_NS, error_ns))
        self.applied_ns += step_ns
        return step_ns

    def furthest_ns(self, offset: Offset) -> int:
        """How far the worker's clock may be from the run's, in the worst case."""
        return abs(offset.ns - self.applied_ns) + offset.uncertainty_ns
