"""Operations that are due at moments of their own, rather than at a rate: renewals of a lease, checks that arrive.

As on the open-loop schedule, a caller never waits for an earlier operation before the next one is due: it starts each
as a task of its own. Every operation that came due is emitted exactly once.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from hashidrill.core.loads.schedule import MAX_IN_FLIGHT, UNDER_WAY, LagMeter, Now, Reply, overloaded
from hashidrill.core.loads.waiting import Waiting
from hashidrill.core.protocols.abc import EmitOperation, Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hashidrill.core.protocols.abc import Detail

_NS = 1_000_000_000


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
        """Returns at that moment of the run's clock, or at once when it is over."""
        while (left_ns := due_ns - self.clock.now_ns()) > 0:  # noqa: ASYNC110 - for a time, not for an event
            # Event loops keep time in milliseconds and round: a shorter sleep would be a busy loop.
            await asyncio.sleep(math.ceil(left_ns / 1e6) / 1e3)

    async def operation(
        self, due_ns: int, key: str, value: str, perform: Callable[[], Awaitable[Reply]], detail: Detail | None = None
    ) -> Operation:
        """Wait until it is due, perform it, emit it; what was emitted. Cancelled under way, it is emitted as `unknown`.

        `perform` raises nothing but cancellation: what goes wrong with the datacenter is a Reply.
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
        settled = Operation(
            load=self._load,
            intended_ns=due_ns,
            start_ns=start_ns,
            end_ns=self.clock.now_ns(),
            outcome=reply.outcome,
            key=key,
            value=value if reply.value is None else reply.value,
            status=reply.status,
            error=reply.error,
            reason=reply.reason,
            detail=detail if reply.detail is None else reply.detail,
        )
        self._emit(settled)
        return settled

    def record(self, operation: Operation) -> None:
        """Emit what somebody else performed, like a check that arrived."""
        self._emit(operation)
