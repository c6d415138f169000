"""The open-loop schedule: operation n is due at `start + n / rate`, whatever happened to the earlier ones.

Under a load profile the rate changes: operation n is then due when n operations should have been offered (course.Pace).

A closed loop (send, wait, send) sends nothing while the server stalls, and so measures one slow operation where users
would have had hundreds: coordinated omission. Here no operation is skipped or waits for an earlier one. If the
generator itself wakes late, all overdue operations start at once, and each keeps the time at which it was due.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from hashidrill.core.experiment.load_levels import Course, Pace
from hashidrill.core.protocols.abc import Detail, EmitOperation, Operation, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hashidrill.core.loads.answer import Answer, Request


def packed(op: Operation) -> tuple[Any, ...]:
    return op if op.detail is None else (*op.plain, (op.detail.table, op.detail.fields))


def unpacked(line: list[Any]) -> Operation:
    if (detail := line[-1]) is not None:
        line = [*line[:-1], Detail(*detail)]
    return Operation._make(line)


Row = TypeVar("Row")


def detail_as(cls: type[Row], detail: Detail | None, table: str, kind: str) -> Row:
    """The row as an object of `cls`. Raises ValueError for a detail of another load."""
    if detail is None or detail.table != table:
        what = "without a detail" if detail is None else f"of the sort {detail.table!r}"
        raise ValueError(f"an operation {what} is not an operation of a {kind} load")
    try:
        return cls(**detail.fields)
    except TypeError as error:
        raise ValueError(f"{dict(detail.fields)!r} is not an operation of a {kind} load: {error}") from None


_NS = 1_000_000_000
REPORT_AFTER_S = 0.25


class Waiting:
    """The operations of one load that were started and have not ended, on the generator's side.

    `take` only reports operations that have waited for `report_after_s`: most operations end sooner and cost no
    message.
    """

    def __init__(self, report_after_s: float = REPORT_AFTER_S) -> None:
        self._report_after_ns = int(report_after_s * _NS)
        self._quiet: dict[int, int] = {}
        self._reported: dict[int, int] = {}
        self._ended: list[int] = []
        self._next = 0

    def begin(self, due_ns: int) -> int:
        """Starts an operation that was due at `due_ns`. Returns its token for `end`."""
        self._next += 1
        self._quiet[self._next] = due_ns
        return self._next

    def end(self, token: int) -> None:
        """Notes that the operation ended, well or not; idempotent."""
        if self._quiet.pop(token, None) is None and (due_ns := self._reported.pop(token, None)) is not None:
            self._ended.append(due_ns)

    @contextmanager
    def operation(self, due_ns: int) -> Iterator[None]:
        """`begin` and `end` around a block."""
        token = self.begin(due_ns)
        try:
            yield
        finally:
            self.end(token)

    def take(self, now_ns: int) -> tuple[list[int], list[int]]:
        """The due times of the operations that have waited for long, new since the last call; and of those reported
        earlier that have ended.
        """
        before_ns = now_ns - self._report_after_ns
        overdue = {token: due_ns for token, due_ns in self._quiet.items() if due_ns <= before_ns}
        for token in overdue:
            del self._quiet[token]
        self._reported |= overdue
        ended, self._ended = self._ended, []
        return list(overdue.values()), ended


K = TypeVar("K")
MAX_IN_FLIGHT = 10_000
OVERLOADED = "generator overloaded"
"""Reason.OVERLOADED in words: the generator itself could not send the operation. Such a run is INVALID."""
CANCELLED = "still in flight when the load was stopped"

CPU_EVERY_S = 0.25
_OWED_FOR_NS = _NS
_LOOK_EVERY_S = 0.05
"""How long a change of the level may go unnoticed; operations that became due in that time start at once."""


class Now(Protocol):
    """The part of `hashidrill.core.recording.journal.Clock` that the schedule needs; tests use a virtual clock."""

    def now_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """How one operation ended. `value` replaces the planned value: a read learns its value from the reply."""

    outcome: str
    status: int = 0
    error: str = ""
    value: str | None = None
    reason: str = ""
    detail: Detail | None = None
    """Replaces the planned detail."""

    def operation(
        self, load: str, times_ns: tuple[int, int, int], key: str, value: str, planned: Detail | None = None
    ) -> Operation:
        """The operation that ended like this; `times_ns`: when it was due, when it began, and when it ended."""
        return Operation(
            load,
            *times_ns,
            self.outcome,
            key,
            value if self.value is None else self.value,
            self.status,
            self.error,
            self.reason,
            planned if self.detail is None else self.detail,
        )


UNDER_WAY = Reply("unknown", error=CANCELLED, reason=Reason.CANCELLED)


def overloaded(max_in_flight: int) -> Reply:
    return Reply("fail", error=f"{OVERLOADED}: {max_in_flight} operations in flight", reason=Reason.OVERLOADED)


class Spells(Generic[K]):
    """Operations that last from the moment something was seen to be wrong until it was seen to be right."""

    def __init__(self, load: str, waiting: Waiting, emit: EmitOperation) -> None:
        self._load, self._waiting, self._emit = load, waiting, emit
        self._open: dict[K, tuple[int, int]] = {}

    def __contains__(self, what: K) -> bool:
        return what in self._open

    def __iter__(self) -> Iterator[K]:
        """The operations that have not ended now; they may end while the caller uses the list."""
        return iter(list(self._open))

    def begin(self, what: K, since_ns: int) -> None:
        self._open[what] = (since_ns, self._waiting.begin(since_ns))

    def end(self, what: K, reply: Reply, at_ns: int, *, key: str, value: str = "") -> None:
        since_ns, token = self._open.pop(what)
        self._waiting.end(token)
        self._emit(reply.operation(self._load, (since_ns, since_ns, at_ns), key, value))


@dataclass(slots=True)
class _Pending:
    """An operation that was started and is not yet settled."""

    intended_ns: int
    start_ns: int
    key: str
    value: str
    token: int = 0


class CpuMeter:
    """The number of cores that this process has used recently."""

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time
    ) -> None:
        self._clock_s, self._cpu_s = clock_s, cpu_s
        self._looked_s, self._used_s = clock_s(), cpu_s()
        self._cores = 0.0

    def cores(self) -> float:
        """The cores used over the last `CPU_EVERY_S` seconds or more."""
        passed_s = self._clock_s() - self._looked_s
        if passed_s >= CPU_EVERY_S:
            used_s = self._cpu_s()
            self._cores = (used_s - self._used_s) / passed_s
            self._looked_s, self._used_s = self._looked_s + passed_s, used_s
        return self._cores


class LagMeter:
    """The worst schedule lag (intended to real start) since the last `take_s`."""

    def __init__(self) -> None:
        self._worst_ns = 0

    def note(self, lag_ns: int) -> None:
        self._worst_ns = max(self._worst_ns, lag_ns)

    def take_s(self) -> float:
        """The worst lag in seconds since the last call."""
        worst_ns, self._worst_ns = self._worst_ns, 0
        return worst_ns / _NS


class OpenLoop:
    """Runs one load's operations on schedule and settles each of them exactly once.

    `plan(n)` names the key and value of operation n; `perform(n, key, value)` sends it. A failure of the
    datacenter is a Reply; if `perform` raises, that is a bug in the load and ends the run. `course` is the level of the
    load over time (`LoadContext.course`): a load that does not pass it on has no profile. It also holds the share of
    operations that this generator offers; `n` counts the operations of all generators. `detail(n)` is called once for
    each operation, after its end, and the result is recorded unless the reply has a detail.

    `at_once` makes the loop a closed one if the datacenter is slower than the rate: at most `at_once` operations are in
    flight; the next one starts when another ends, and is due at that moment. `n` then counts the started operations.
    The judge measures how many were in flight (hashidrill.core.judging.doubts). Without `at_once`, operations due
    beyond MAX_IN_FLIGHT are refused and recorded as refused.
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
        at_once: int | None = None,
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
        self._at_once = at_once
        self._owed = deque[int](maxlen=at_once)
        self._turn = 0
        self._detail = detail
        self._pending: dict[int, _Pending] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, emit: EmitOperation) -> None:
        """Runs until cancelled; operations that are then in flight are emitted as `unknown` before this returns."""
        self._emit = emit
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        agreed_ns = self._course.start_ns
        self._pace = Pace(self._course, self._rate_per_s, self._clock.now_ns() if agreed_ns is None else agreed_ns)
        self._due = self._turn = self._course.share.index
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    self._start_due()
                    await self._failure
                finally:
                    if self._timer is not None:
                        self._timer.cancel()
        finally:
            for n in list(self._pending):
                self._settle(n, UNDER_WAY)

    def _start_due(self) -> None:
        """Starts all operations that are due, and is called again when the next one is due. It is a callback, because
        to wake a task takes one more turn of the event loop.
        """
        try:
            now_ns = self._clock.now_ns()
            while (due_ns := self._pace.due_ns(self._due)) is not None and due_ns <= now_ns:
                if self._at_once is not None and len(self._pending) >= self._at_once:
                    self._owed.append(due_ns)
                else:
                    self._start_one(due_ns)
                self._due += self._course.share.of
        except Exception as error:  # noqa: BLE001 - a bug in the load ends the run
            self._fail(error)
            return
        wait_s = _LOOK_EVERY_S if due_ns is None else min(_LOOK_EVERY_S, (due_ns - now_ns) / _NS)
        # Event loops keep time in milliseconds and round: a shorter wait would be a busy loop.
        self._timer = self._failure.get_loop().call_later(math.ceil(wait_s * 1e3) / 1e3, self._start_due)

    def _start_one(self, due_ns: int) -> None:
        n, self._turn = self._turn, self._turn + self._course.share.of
        key, value = self._plan(n)
        full = len(self._pending) >= self._max_in_flight
        start_ns = self._clock.now_ns()
        self._pending[n] = _Pending(due_ns, start_ns, key, value, self._waiting.begin(due_ns))
        if full:
            self._settle(n, overloaded(self._max_in_flight))
            return
        self._lag.note(start_ns - due_ns)
        self._begin(n, key, value)

    def _begin(self, n: int, key: str, value: str) -> None:
        """Performs operation n, and calls `_ended` after it."""
        self._tasks.create_task(self._perform_one(n, key, value))

    async def _perform_one(self, n: int, key: str, value: str) -> None:
        pending = self._pending[n]
        pending.start_ns = self._clock.now_ns()
        self._lag.note(pending.start_ns - pending.intended_ns)
        self._ended(n, await self._perform(n, key, value))

    def _ended(self, n: int, reply: Reply) -> None:
        self._settle(n, reply)
        while self._owed:
            now_ns = self._clock.now_ns()
            if self._owed.popleft() > now_ns - _OWED_FOR_NS:  # not an older one: the level may be lower by now
                self._start_one(now_ns)
                return

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _settle(self, n: int, reply: Reply) -> None:
        of = self._pending.pop(n)
        self._waiting.end(of.token)
        planned = None if self._detail is None else self._detail(n)
        times_ns = of.intended_ns, of.start_ns, self._clock.now_ns()
        self._emit(reply.operation(self._load, times_ns, of.key, of.value, planned))


class RequestLoop(OpenLoop):
    """An open loop whose operations are one request each, without a task. A task would cost CPU, and a turn of the
    event loop between the due time and the request, and between the answer and its record.

    `request(n, key, value)` returns method, URL and body of operation n; `reply` converts its answer. Neither may
    raise, like `perform` (OpenLoop). `ask` sends a request and calls back once (HttpClient.ask).
    """

    def __init__(
        self,
        load: str,
        rate_per_s: float,
        plan: Callable[[int], tuple[str, str]],
        request: Callable[[int, str, str], Request],
        clock: Now,
        *,
        reply: Callable[[Answer], Reply],
        ask: Callable[[Request, Callable[[Answer], None]], object],
        **options: Any,
    ) -> None:
        super().__init__(load, rate_per_s, plan, cast("Any", request), clock, **options)
        self._reply, self._ask = reply, ask

    def _begin(self, n: int, key: str, value: str) -> None:
        def answered(answer: Answer) -> None:
            try:
                if n in self._pending:  # not if the load was stopped meanwhile
                    self._ended(n, self._reply(answer))
            except Exception as error:  # noqa: BLE001 - a bug in the load ends the run
                self._fail(error)

        self._ask(cast("Any", self._perform)(n, key, value), answered)


class Agenda:
    """One load's operations, and the tasks that perform them."""

    def __init__(
        self,
        load: str,
        clock: Now,
        emit: EmitOperation,
        *,
        lag: LagMeter | None = None,
        waiting: Waiting | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._load = load
        self.clock = clock
        self._emit = emit
        self._lag = lag or LagMeter()
        self._waiting = waiting or Waiting()
        self._max_in_flight = max_in_flight
        self._in_flight = 0

    async def until(self, due_ns: int) -> None:
        """Returns at that time of the run's clock, or at once if that time has passed."""
        while (left_ns := due_ns - self.clock.now_ns()) > 0:  # noqa: ASYNC110 - waits for a time, not for an event
            # Event loops keep time in milliseconds and round: a shorter sleep would be a busy loop.
            await asyncio.sleep(math.ceil(left_ns / 1e6) / 1e3)

    async def operation(
        self, due_ns: int, key: str, value: str, perform: Callable[[], Awaitable[Reply]], detail: Detail | None = None
    ) -> Operation:
        """Waits until the operation is due, performs it, emits it, and returns what was emitted. An operation that is
        cancelled in flight is emitted as `unknown`.

        `perform` raises only cancellation: a failure of the datacenter is a Reply.
        """
        await self.until(due_ns)
        start_ns = self.clock.now_ns()
        self._lag.note(start_ns - due_ns)
        if self._in_flight >= self._max_in_flight:
            return self._settle(due_ns, start_ns, key, value, overloaded(self._max_in_flight), detail=detail)
        self._in_flight += 1
        try:
            with self._waiting.operation(due_ns):
                reply = await perform()
        except asyncio.CancelledError:
            self._settle(due_ns, start_ns, key, value, UNDER_WAY, detail=detail)
            raise
        finally:
            self._in_flight -= 1
        return self._settle(due_ns, start_ns, key, value, reply, detail=detail)

    def _settle(
        self, due_ns: int, start_ns: int, key: str, value: str, reply: Reply, *, detail: Detail | None
    ) -> Operation:
        settled = reply.operation(self._load, (due_ns, start_ns, self.clock.now_ns()), key, value, detail)
        self._emit(settled)
        return settled

    def record(self, operation: Operation) -> None:
        """Emits an operation that another party performed, like a check that arrived."""
        self._emit(operation)


def stamp(run_id: str, n: int) -> str:
    """The identity of write n of a run, recorded as the operation's value."""
    return f"{run_id}.{n}"


class Turns:
    """The key of each write: either a key that is written once, or one of the keys that are written in turn.

    A write that a later one overwrote cannot be looked up at the end, so its loss cannot be detected. So a share `once`
    (0 to 1) of the writes, evenly spread, goes to keys that are written only once. When there are `most` such keys, the
    share shrinks to `most` / n at write n: 1,000 times as many writes leave 8 times as many keys (1 + ln 1,000), and
    every second up to the end has some writes to look up.
    """

    def __init__(self, once: float, keys: int, most: int) -> None:
        self._once, self._keys, self._most = once, keys, most
        self._owed = 0.0
        self.once = 0
        """How many keys have been written once."""
        self.in_turn = 0
        """How many writes went to the keys that are written in rotation."""

    def skip_to(self, n: int) -> None:
        """Counts the writes before `n` as done, for loads that several generators share."""
        while self.once + self.in_turn < n:
            self.next()

    def next(self) -> tuple[bool, int]:
        """Whether the next write has a key that is written once, and the key's number among the keys of its sort."""
        self._owed += min(self._once, self._most / (self.once + self.in_turn + 1))
        # a sum of shares may fall just short of the whole: ten times 0.1 is under 1
        if self._owed >= 1 - 1e-9:
            self._owed -= 1
            self.once += 1
            return True, self.once - 1
        self.in_turn += 1
        return False, (self.in_turn - 1) % self._keys
