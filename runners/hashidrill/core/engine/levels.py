"""Levels that follow measurements: a ramp rises while its conditions hold, a search until they hold.

The engine judges the conditions; the load generator sets the level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from hashidrill.core.errors import UnfitError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.units import Level
from hashidrill.core.util.wait import pause

if TYPE_CHECKING:
    from hashidrill.core.engine.load_generator import LoadGenerator
    from hashidrill.core.engine.monitor import Monitor
    from hashidrill.core.engine.run_state import MethodClock
    from hashidrill.core.experiment.load_levels import Profile, Ramp, Search
    from hashidrill.core.recording.journal import Clock, Journal


GENERATOR_FULL = Condition.parse("generator.cpu > 0.8")
"""One thread runs all loads. A run is INVALID from 0.9 of that core on (SATURATED_CORES), so levels stop rising just
below.
"""
_DIGITS = 9
"""Rounds sums of steps: ten steps of 10 % are exactly 100 %."""


@dataclass(frozen=True)
class Steered:
    """One load whose level follows measurements while the method runs."""

    load: str
    monitor: Monitor
    clock: Clock
    levels: LoadGenerator
    journal: Journal
    method: MethodClock

    async def by(self, profile: Profile) -> None:
        """Steers the load by the profile. Returns at once if the profile follows only the clock. Raises UnfitError."""
        if profile.search is not None:
            await self.method.until(profile.search.at)
            await self.seek(profile.search)
        elif profile.ramp is not None and profile.conditions:
            await self.method.until(profile.ramp.at)
            await climb(self.load, profile.ramp, self.monitor, self.clock, self.levels)

    async def seek(self, search: Search) -> None:
        """Raises the level until the conditions hold, keeps it until the search's time ends, and goes back to 100%.

        A level is found when the conditions hold for two `every` in a row: one slow moment is not enough. The
        journal lists each level tried and its measurements. Raises UnfitError if the highest level was not enough,
        or the generator reached its own limit.
        """
        ends_s = self.method.now_s + search.for_
        try:
            await self._find(search)
            await self.method.until(ends_s)
        finally:
            with anyio.CancelScope(shield=True):
                await self.levels.level(self.load, 1.0)

    async def _find(self, search: Search) -> None:
        wanted = " and ".join(map(str, search.until))
        tried: list[tuple[float, str]] = []
        for level in search.levels:
            await self.levels.level(self.load, level)
            held, measured = await self._holds(search)
            if held:
                held, measured = await self._holds(search)
            tried.append((level, measured))
            if held:
                lowest = "; that is the lowest level of its search, so less may be enough" if len(tried) == 1 else ""
                text = f"{self.load} is kept at {Level(level)}: {wanted} ({measured}){lowest}"
                self._note(level, tried, text, found=True)
                return
            generator = self.monitor.reading(GENERATOR_FULL, self.clock.now_ns(), search.every)
            if generator.surely(GENERATOR_FULL):
                said = f"the generator used {generator.figure:.2f} of its one core: it cannot offer more load"
                break
        else:
            said = f"that is the highest level of its search, and this machine can take more: raise `to` of {self.load}"
        text = f"{self.load} was raised to {Level(level)}, and {wanted} did not hold ({measured}); {said}"
        self._note(level, tried, text, found=False)
        raise UnfitError(text)

    def _note(self, level: float, tried: list[tuple[float, str]], text: str, *, found: bool) -> None:
        self.journal.write("search", sync=True, load=self.load, found=found, level=level, text=text, tried=tried)

    async def _holds(self, search: Search) -> tuple[bool, str]:
        await pause(search.every)
        now_ns = self.clock.now_ns()
        readings = {c: self.monitor.reading(c, now_ns, c.window_s or search.every) for c in search.until}
        measured = "; ".join(f"{c.source}.{c.what} {c.figure(reading.figure)}" for c, reading in readings.items())
        return all(reading.surely(c) for c, reading in readings.items()), f"measured {measured}"


async def climb(load: str, ramp: Ramp, monitor: Monitor, clock: Clock, levels: LoadGenerator) -> float:
    """Raises the level by one step after each `every` in which the conditions held. Returns the final level.

    When the conditions do not hold, it takes back the last step (unless `step_back` is false) and stops; with `resume`
    it continues, up or down as the conditions say. A condition is judged over its own `for`, otherwise over the whole
    of `every`. At level 0 the load sends nothing, so its own conditions are not judged there.
    """
    if not ramp.by or ramp.every is None or not ramp.while_:
        raise ValueError("this ramp is not steered by conditions")
    lowest = level = float(ramp.from_)
    if lowest != 1.0:
        await levels.level(load, level)
    highest = float("inf") if ramp.to is None else float(ramp.to)
    while True:
        await pause(ramp.every)
        now_ns = clock.now_ns()
        told = [condition for condition in ramp.while_ if level > 0 or condition.source != load]
        if not all(monitor.reading(c, now_ns, c.window_s or ramp.every).surely(c) for c in told):
            if ramp.step_back:
                level = max(lowest, round(level - ramp.by, _DIGITS))
                await levels.level(load, level)
            if not ramp.resume:
                return level
        elif round(level + ramp.by, _DIGITS) <= highest:
            level = round(level + ramp.by, _DIGITS)
            await levels.level(load, level)
        elif not ramp.resume:
            return level
