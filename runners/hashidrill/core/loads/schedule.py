"""The open-loop schedule: operation n is due at `start + n / rate`, whatever happened to the earlier ones.

Under a load profile the rate changes: then operation n is due when n operations should have been offered (course.Pace).

A closed loop (send, wait, send) stops asking while the server stalls, and so measures one slow operation where users
would have had hundreds: coordinated omission. Here nothing is skipped and nothing waits for an earlier operation. When
the generator itself wakes late, all overdue operations start at once, each with the moment at which it was due.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hashidrill.core.experiment.load_levels import Course, Pace
from hashidrill.core.loads.waiting import Waiting
from hashidrill.core.protocols.abc import Detail, EmitOperation, Operation, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_IN_FLIGHT = 10_000
OVERLOADED = "generator overloaded"
"""In words, what Reason.OVERLOADED means: the generator itself could not send it. Such a run is INVALID."""
CANCELLED = "still in flight when the load was stopped"

CPU_EVERY_S = 0.25
_NS = 1_000_000_000
_LOOK_EVERY_S = 0.05
"""How long a change of the level may go unseen: what became due since then starts at once."""


class Now(Protocol):
    """What the schedule needs of `hashidrill.core.recording.journal.Clock`; a virtual one in tests."""

    def now_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """How one operation ended. `value` replaces the planned one: a read learns its value from the reply."""

    outcome: str
    status: int = 0
    error: str = ""
    value: str | None = None
    reason: str = ""
    detail: Detail | None = None
    """Replaces the planned one, as `value` does."""


UNDER_WAY = Reply("unknown", error=CANCELLED, reason=Reason.CANCELLED)


def overloaded(max_in_flight: int) -> Reply:
    return Reply("fail", error=f"{OVERLOADED}: {max_in_flight} operations in flight", reason=Reason.OVERLOADED)


@dataclass(slots=True)
class _Pending:
    """An operation that was started and is not settled."""

    intended_ns: int
    start_ns: int
    key: str
    value: str
    token: int = 0


class CpuMeter:
    """The cores that this process has used of late."""

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        self._clock_s, self._cpu_s = clock_s, cpu_s
        self._looked_s, self._used_s = clock_s(), cpu_s()
        self._cores = 0.0

    def cores(self) -> float:
        """Over the last `CPU_EVERY_S` or more."""
        passed_s = self._clock_s() - self._looked_s
        if passed_s >= CPU_EVERY_S:
            used_s = self._cpu_s()
            self._cores = (used_s - self._used_s) / passed_s
            self._looked_s, self._used_s = self._looked_s + passed_s, used_s
        return self._cores


class LagMeter:
    """The worst schedule lag (intended to real start) since it was last taken."""

    def __init__(self) -> None:
        self._worst_ns = 0

    def note(self, lag_ns: int) -> None:
        self._worst_ns = max(self._worst_ns, lag_ns)

    def take_s(self) -> float:
        """Seconds; starts afresh."""
        worst_ns, self._worst_ns = self._worst_ns, 0
        return worst_ns / _NS


class OpenLoop:
    """Runs one load's operations on schedule and settles each of them exactly once.

    `plan(n)` names the key and value of operation n; `perform(n, key, value)` sends it. `perform` raises nothing: what
    goes wrong with the datacenter is a Reply, so an exception is a bug of ours and ends the run. `course` is the level
    of the load over time (`LoadContext.course`): a load that does not hand it on has no profile. It also has the share
    of the operations that this generator offers: `n` counts those of all generators. `detail(n)` is asked once for each
    operation, when it has ended: that is recorded of it, unless its reply has a detail.
    """

    def __init__(
        self,
        load: str,
        rate_per_s: float,
        plan: Callable[[int], tuple[str, str]],
        perform: Callable[[int, str, str], Awaitable[Reply]],
        clock: Now,
        *,
        lag: LagMeter | None = None,
        waiting: Waiting | None = None,
        course: Course | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        detail: Callable[[int], Detail] | None = None,
    ) -> None:
        self._load = load
        self._rate_per_s = rate_per_s
        self._plan = plan
        self._perform = perform
        self._clock = clock
        self._lag = lag or LagMeter()
        self._waiting = waiting or Waiting()
        self._course = course or Course()
        self._max_in_flight = max_in_flight
        self._detail = detail
        self._pending: dict[int, _Pending] = {}

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled; operations that are then in flight are emitted as `unknown` before this returns."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._start_all(tasks, emit)
        finally:
            for n in list(self._pending):
                self._settle(n, UNDER_WAY, emit)

    async def _start_all(self, tasks: asyncio.TaskGroup, emit: EmitOperation) -> None:
        agreed_ns, share = self._course.start_ns, self._course.share
        pace = Pace(self._course, self._rate_per_s, self._clock.now_ns() if agreed_ns is None else agreed_ns)
        n = share.index
        while True:
            now_ns = self._clock.now_ns()
            due_ns = pace.due_ns(n)
            while due_ns is not None and due_ns <= now_ns:
                self._start_one(n, due_ns, tasks, emit)
                n += share.of
                due_ns = pace.due_ns(n)
            wait_s = _LOOK_EVERY_S if due_ns is None else min(_LOOK_EVERY_S, (due_ns - now_ns) / _NS)
            # Event loops keep time in milliseconds and round: a shorter sleep would be a busy loop.
            await asyncio.sleep(math.ceil(wait_s * 1e3) / 1e3)

    def _start_one(self, n: int, due_ns: int, tasks: asyncio.TaskGroup, emit: EmitOperation) -> None:
        key, value = self._plan(n)
        full = len(self._pending) >= self._max_in_flight
        self._pending[n] = _Pending(due_ns, self._clock.now_ns(), key, value, self._waiting.begin(due_ns))
        if full:
            self._settle(n, overloaded(self._max_in_flight), emit)
        else:
            tasks.create_task(self._perform_one(n, emit))

    async def _perform_one(self, n: int, emit: EmitOperation) -> None:
        pending = self._pending[n]
        pending.start_ns = self._clock.now_ns()
        self._lag.note(pending.start_ns - pending.intended_ns)
        self._settle(n, await self._perform(n, pending.key, pending.value), emit)

    def _settle(self, n: int, reply: Reply, emit: EmitOperation) -> None:
        pending = self._pending.pop(n)
        self._waiting.end(pending.token)
        planned = None if self._detail is None else self._detail(n)
        emit(
            Operation(
                load=self._load,
                intended_ns=pending.intended_ns,
                start_ns=pending.start_ns,
                end_ns=self._clock.now_ns(),
                outcome=reply.outcome,
                key=pending.key,
                value=pending.value if reply.value is None else reply.value,
                status=reply.status,
                error=reply.error,
                reason=reply.reason,
                detail=planned if reply.detail is None else reply.detail,
            )
        )
