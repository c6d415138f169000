"""The method's clock. The clock stands still while the next step waits for an earlier one.

The time to reconfigure a datacenter, or to add a server, depends on the machine. Steps with `after` keep their order on
a slow machine: the waiting step and all later ones begin later, and faults in force last longer by the same time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from hashidrill.core.experiment.model import Step
from hashidrill.core.experiment.moments import GONE, PROVEN

if TYPE_CHECKING:
    from hashidrill.core.experiment.model import Mark
    from hashidrill.core.recording.journal import Clock

_NS = 1_000_000_000


class MethodClock:
    """Seconds since the method began, without the time that the clock stood still."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.began_ns = clock.now_ns()
        self._stood_ns = 0
        self._since_ns: int | None = None
        self._waiters = 0
        self._changed = anyio.Event()

    @property
    def now_s(self) -> float:
        return self._now_ns / _NS

    @property
    def _now_ns(self) -> int:
        now = self._clock.now_ns() if self._since_ns is None else self._since_ns
        return now - self.began_ns - self._stood_ns

    def ns(self, at_s: float) -> int:
        """The time on the run's clock when the method reaches `at_s`, unless the method's clock stands still before."""
        return self.began_ns + self._stood_ns + round(at_s * _NS)

    async def until(self, at_s: float) -> None:
        """Returns once the method reaches `at_s`."""
        while (
            left_ns := round(at_s * _NS) - self._now_ns
        ) > 0:  # whole nanoseconds: a tiny fraction would not wait at all
            changed = self._changed
            with anyio.move_on_after(None if self._since_ns is not None else left_ns / _NS):
                await changed.wait()

    async def lasts(self, for_s: float, *, planned_end_s: float = math.inf, until: anyio.Event | None = None) -> None:
        """Returns `for_s` later in the method's time, or when the event is set.

        A fault past its planned end (`planned_end_s`) also ends while the clock stands still, because the waiting step
        may wait for that end.
        """
        async with anyio.create_task_group() as group:
            if until is not None:
                group.start_soon(_then, until.wait, group.cancel_scope.cancel)
            left_ns = round(for_s * _NS)
            while left_ns > 0:
                changed, began_ns = self._changed, self._clock.now_ns()
                counts = self._since_ns is None or self.now_s >= planned_end_s
                with anyio.move_on_after(left_ns / _NS if counts else None):
                    await changed.wait()
                left_ns -= self._clock.now_ns() - began_ns if counts else 0
            group.cancel_scope.cancel()

    @asynccontextmanager
    async def stands_still(
        self, stops: Callable[[], Awaitable[None]], goes: Callable[[int], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Stops the clock inside the block; several tasks may be in such a block at once.

        Calls `stops()` after the clock stopped, and `goes(for_ns)` when the clock goes on, with the time for which it
        stood still.
        """
        self._waiters += 1
        if self._waiters == 1:
            self._since_ns = self._clock.now_ns()
            self._change()
        try:
            if self._waiters == 1:
                await stops()
            yield
        finally:
            self._waiters -= 1
            if self._waiters == 0 and self._since_ns is not None:
                stood = self._clock.now_ns() - self._since_ns
                self._stood_ns += stood
                self._since_ns = None
                self._change()
                with anyio.CancelScope(shield=True):
                    await goes(stood)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Settling:
    """Progress of the steps that other steps wait for."""

    def __init__(self, method: Sequence[Step | Mark]) -> None:
        numbers = {step.name: number for number, step in enumerate(method) if isinstance(step, Step) and step.name}
        self._awaited = [
            [(numbers[name], _settled_by(step, method[numbers[name]])) for name in step.after if name in numbers]
            for step in method
        ]
        self._settled = {each: anyio.Event() for awaited in self._awaited for each in awaited}
        self._left = dict.fromkeys(self._settled, 1)

    def expect(self, number: int, proofs: int) -> None:
        """Sets how many proofs a step needs to count as proven: one for each host."""
        self._left[number, PROVEN] = proofs

    def settle(self, number: int, what: str) -> None:
        """Records that the step is `PROVEN` on one more host, or `GONE`."""
        self._left[number, what] = self._left.get((number, what), 1) - 1
        if self._left[number, what] <= 0 and (number, what) in self._settled:
            self._settled[number, what].set()

    def reached(self, number: int, what: str) -> bool:
        """Whether the step is `PROVEN` on all its hosts, or `GONE`."""
        return self._left.get((number, what), 1) <= 0

    def open(self, number: int) -> list[tuple[int, anyio.Event]]:
        """The steps that this step still waits for: their numbers, and the events that must be set."""
        awaited = ((each, self._settled[each]) for each in self._awaited[number])
        return [(other, event) for (other, _), event in awaited if not event.is_set()]


def _settled_by(step: Step | Mark, earlier: Step | Mark) -> str:
    return GONE if earlier.at + earlier.for_ <= step.at else PROVEN


async def _then(first: Callable[[], Awaitable[object]], second: Callable[[], None]) -> None:
    await first()
    second()
