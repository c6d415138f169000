"""Ramps that go on only while conditions hold: the engine judges, the load generator obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hashidrill.wait import pause

if TYPE_CHECKING:
    from hashidrill.journal import Clock
    from hashidrill.loads.profile import Ramp
    from hashidrill.monitor import Monitor


class Levels(Protocol):
    """What can be told about the levels of the loads: a LoadProcess."""

    async def begin(self, t_ns: int) -> None: ...

    async def level(self, load: str, level: float) -> None: ...


class _NoLevels:
    """Nobody listens: loads without profiles."""

    async def begin(self, t_ns: int) -> None:
        pass

    async def level(self, load: str, level: float) -> None:
        pass


NO_LEVELS: Levels = _NoLevels()


async def climb(load: str, ramp: Ramp, monitor: Monitor, clock: Clock, levels: Levels) -> float:
    """One step up after each `every` over which the conditions held; the level that is kept in the end.

    The first time that they do not hold, the last step is taken back (without `step_back` it stays), and that is the
    end of it. A condition is judged over its own `for`, or else over the whole of `every`.
    """
    if not ramp.by or ramp.every is None or not ramp.while_:
        raise ValueError("this ramp is not steered by conditions")
    level = 1.0
    highest = float("inf") if ramp.to is None else float(ramp.to)
    while True:
        await pause(ramp.every)
        now_ns = clock.now_ns()
        if not all(c.holds(monitor.value(c, now_ns, c.window_s or ramp.every)) for c in ramp.while_):
            if ramp.step_back:
                level = max(1.0, level - ramp.by)
                await levels.level(load, level)
            return level
        if level + ramp.by > highest:
            return level
        level += ramp.by
        await levels.level(load, level)
