"""Queries, views and streams that stay open. As many as are wanted, opened one after the other at a steady rate.

A load of them has a `count` and an `establish` rate; its profile moves the count. Openings are open loop as requests
are: each has a moment at which it was due, and a slow one delays no other. They are what costs the generator its core:
where that comes near its end, fewer are due, which the signal `establish` says.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from hashidrill.core.loads.schedule import CPU_EVERY_S
from hashidrill.core.units import Percent, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hashidrill.core.loads.context import LoadContext

MAX_COUNT = 100_000
_LOOK_EVERY_S = 0.05
_SAMPLE_EVERY_S = 1.0
_NS = 1_000_000_000
BUSY_CORES, CALM_CORES = 0.7, 0.5
"""Of the generator's one core: over 0.9 for three seconds, it is the generator that is measured."""
_SLOWER, _FASTER = 0.7, 1.1
"""What becomes of the pace at each look at the CPU."""
_SLOWEST = 0.02


def _sane_rate(rate: Rate) -> Rate:
    if not 0 < rate <= 5000:
        raise ValueError(f"things are opened at over 0/s and at most 5000/s, not {rate}")
    return rate


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Establish = Annotated[
    Rate, AfterValidator(_sane_rate), Field(description="How quickly they are opened, and opened again when lost")
]
SIGNALS = {"open": None, "streaming": Percent, "establish": Rate}


class Held:
    """Keeps `count` times the load's level of them; `hold(slot, due_ns)` opens one and holds it until it is lost.

    Slots are numbered from 0; one that was lost is opened again, those with the highest numbers are closed first (by
    cancellation). `hold` raises nothing but cancellation, and says `opened` and `closed` as it goes.
    """

    def __init__(
        self,
        context: LoadContext,
        count: int,
        establish_per_s: float,
        hold: Callable[[int, int], Coroutine[Any, Any, None]],
        *,
        each: int = 1,
        shrinks: bool = True,
    ) -> None:
        self._context = context
        self._count, self._each = count, each
        self._establish_per_s = establish_per_s
        self._pace = 1.0
        self._paced_ns = 0
        self._hold = hold
        self._shrinks = shrinks
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lost: deque[int] = deque()
        self._next = 0
        self._backends: dict[int, str] = {}

    def opened(self, slot: int, backend: str = "") -> None:
        """It is open. `backend` is what answers it: `streaming` or `blocking-query`."""
        self._backends[slot] = backend

    def closed(self, slot: int) -> None:
        self._backends.pop(slot, None)

    @property
    def open(self) -> int:
        return len(self._backends)

    def wanted(self) -> int:
        level = self._context.course.at(self._context.clock.now_ns())
        return max(0, round(self._count * level)) * self._each

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            await self._keep(tasks)

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        clock = self._context.clock
        due_ns = float(clock.now_ns())
        while True:
            now_ns = clock.now_ns()
            wanted = self.wanted()
            self._shrink(wanted)
            self._look_at_cpu(now_ns)
            gap_ns = _NS / (self._establish_per_s * self._pace)
            if self._pace < 1:  # what could not be done in time is not done all at once
                due_ns = max(due_ns, now_ns - _LOOK_EVERY_S * _NS)
            while len(self._tasks) < wanted and due_ns <= now_ns:
                self._open(tasks, round(due_ns))
                due_ns += gap_ns
            missing = len(self._tasks) < wanted
            if not missing:  # what was not wanted is not owed
                due_ns = max(due_ns, float(now_ns))
            wait_s = min(_LOOK_EVERY_S, (due_ns - now_ns) / _NS) if missing else _LOOK_EVERY_S
            await asyncio.sleep(math.ceil(wait_s * 1e3) / 1e3)

    def _look_at_cpu(self, now_ns: int) -> None:
        """Slower where the generator is busy, by steps; back to what was asked for where it is not."""
        if now_ns - self._paced_ns < CPU_EVERY_S * _NS:
            return
        self._paced_ns = now_ns
        cores = self._context.cpu.cores()
        if cores > BUSY_CORES:
            self._pace = max(_SLOWEST, self._pace * _SLOWER)
        elif cores < CALM_CORES:
            self._pace = min(1.0, self._pace * _FASTER)

    def _open(self, tasks: asyncio.TaskGroup, due_ns: int) -> None:
        if self._lost:
            slot = self._lost.popleft()
        else:
            slot, self._next = self._next, self._next + 1
        self._context.lag.note(self._context.clock.now_ns() - due_ns)
        task = tasks.create_task(self._hold(slot, due_ns))
        self._tasks[slot] = task
        task.add_done_callback(lambda _: self._ended(slot))

    def _ended(self, slot: int) -> None:
        self._tasks.pop(slot, None)
        self.closed(slot)
        self._lost.append(slot)

    def _shrink(self, wanted: int) -> None:
        """What cannot be closed stays; what is not open yet is given up, or it would be opened after its time."""
        surplus = len(self._tasks) - wanted
        if surplus <= 0:
            return
        closable = self._tasks if self._shrinks else self._tasks.keys() - self._backends.keys()
        for slot in sorted(closable, reverse=True)[:surplus]:
            self._tasks.pop(slot).cancel()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_EVERY_S)
            self._context.sample("open", float(self.open))
            self._context.sample("establish", self._establish_per_s * self._pace)
            if any(self._backends.values()):
                streaming = sum(backend == "streaming" for backend in self._backends.values())
                self._context.sample("streaming", streaming / self.open)
