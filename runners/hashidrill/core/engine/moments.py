"""When a step of the method begins: at its time, after the faults that it waits for, and at its moment (`when:`).

What a product shows is sampled every `_EVERY_S` while a step waits, over separate connections: the run's own probes
look once or twice a second, which is too seldom to begin a fault during an election.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from hashidrill.core.errors import MomentError, WaitTimeoutError
from hashidrill.core.experiment.moments import ERRORS, GONE, PROVEN, Moment
from hashidrill.core.probes.base import run_probes
from hashidrill.core.protocols.service import BEHIND, LEADER_ELECTED, LEADS, shower
from hashidrill.core.util.wait import wait_until

if TYPE_CHECKING:
    from hashidrill.core.engine.run_state import Run
    from hashidrill.core.experiment.model import Mark, Step
    from hashidrill.core.protocols.abc import Sample

_EVERY_S = 0.05
_GAP_S = 0.01
NEVER_CAME = "the moment never came"
"""The first words of the reason for which a run ends if its moment does not come."""
_FRESH_S = 1.0
"""An older look at a server does not show how far the server is behind now."""


async def begins(running: Run, number: int, step: Step | Mark) -> None:
    """Returns when that step of the method may begin.

    While the step waits, the method's clock and the levels of the loads stand still. Raises MomentError.
    """
    await running.method.until(step.at)
    awaited = running.settling.open(number)
    names = [str(running.experiment.method[other].name) for other, _ in awaited]
    moments = [] if step.when is None else [step.when]
    if not names and not moments:
        return
    async with running.stands_still([*names, *(f"`{when}`" for when in moments)]):
        for _, settled in awaited:
            await settled.wait()
        for when in moments:
            await _come(running, number, when, within_s=step.waits_s)


async def _come(running: Run, number: int, when: Moment, *, within_s: float) -> None:
    """Waits, from now on, for the moment. Raises MomentError if it does not come in time."""
    began_ns = running.clock.now_ns()
    said: dict[str, Any] = {"step": number, "when": str(when)}
    async with _looking(running, when) as look:

        async def seen() -> tuple[str | None, str]:
            return look()

        try:
            evidence = await wait_until(f"`{when}`", seen, within_s=within_s, gap_s=_GAP_S)
        except WaitTimeoutError as error:
            running.journal.write("moment", sync=True, **said, came=False, evidence=str(error))
            raise MomentError(f"{NEVER_CAME}: method[{number}] {error}") from None
    waited_ns = running.clock.now_ns() - began_ns
    running.journal.write("moment", sync=True, **said, came=True, waited_ns=waited_ns, evidence=evidence)


Look = Callable[[], tuple[str | None, str]]
"""Returns (what showed the moment or None, what is seen instead)."""


@asynccontextmanager
async def _looking(running: Run, when: Moment) -> AsyncIterator[Look]:
    if when.kind in (PROVEN, GONE):
        yield _of_fault(running, when)
        return
    if when.kind == ERRORS:
        yield _of_load(running, when)
        return
    service = shower(running.datacenter.services, when.kind, when.product)
    signals = _Signals(when, service.moments[LEADER_ELECTED], service.moments[when.kind], running.clock.now_ns)
    probes = [probe for probe in service.moment_probes(running.datacenter) if signals.wanted(probe)]
    async with anyio.create_task_group() as group:
        group.start_soon(run_probes, probes, signals.see, _EVERY_S)
        yield signals.look
        group.cancel_scope.cancel()


def _of_fault(running: Run, when: Moment) -> Look:
    number = next(n for n, step in enumerate(running.experiment.method) if step.name == when.name)

    def look() -> tuple[str | None, str]:
        reached = running.settling.reached(number, when.kind)
        return (when.text if reached else None), f"{when.name} is not yet {when.kind}"

    return look


def _of_load(running: Run, when: Moment) -> Look:
    before = running.monitor.failures(when.name)

    def look() -> tuple[str | None, str]:
        new = running.monitor.failures(when.name) - before
        return (f"{new} operations of {when.name} failed" if new else None), f"no operation of {when.name} failed"

    return look


class _Signals:
    """Judges the samples of a product's moment since the step began to wait."""

    def __init__(self, when: Moment, term: str, signal: str, now_ns: Callable[[], int]) -> None:
        self._when = when
        self._term, self._signal = term, signal
        self._now_ns = now_ns
        self._last: dict[tuple[str, str], tuple[int, float, bool]] = {}
        """(time, value, leads) of the last successful look, by signal and host."""
        self._failed: dict[str, str] = {}
        self._came: str | None = None

    def wanted(self, probe: object) -> bool:
        needed = {self._signal, *([self._term] if self._when.kind == BEHIND else [])}
        return bool(needed & set(getattr(probe, "signals", ())))

    def see(self, sample: Sample) -> None:
        if sample.signal not in (self._term, self._signal) or not sample.host:
            return
        if not sample.ok or sample.value is None:
            self._failed[sample.host] = f"{sample.host}: {sample.text}"
            return
        self._failed.pop(sample.host, None)
        leads = sample.text == LEADS
        before = self._last.get((sample.signal, sample.host))
        self._last[sample.signal, sample.host] = (self._now_ns(), sample.value, leads)
        if self._came is None:
            self._came = self._change(sample, before, leads)

    def _change(self, sample: Sample, before: tuple[int, float, bool] | None, leads: bool) -> str | None:
        if self._when.kind == BEHIND:
            return self._behind(sample.host) if sample.signal == self._signal else None
        if sample.signal != self._signal or before is None or sample.value is None:
            return None
        _, value, led = before
        if self._when.kind == LEADER_ELECTED:
            # a leader that was silent, frozen or cut off comes back in its old term: no election
            new = leads and (not led or sample.value > value)
            return f"{sample.host} leads in term {sample.value:.0f}" if new else None
        return f"{sample.host}: {sample.text or self._when.kind}" if sample.value > value else None

    def _behind(self, host: str) -> str | None:
        """Uses the leader's last index, which is older than the host's: the host lacks at least that many entries."""
        lag = self._lag(host)
        return f"{host} is {lag:.0f} entries behind" if lag >= self._when.entries else None

    def _lag(self, host: str) -> float:
        """How many entries that server is behind the leader; -1 if either index is unknown."""
        since_ns = self._now_ns() - _FRESH_S * 1e9
        fresh = {key: each for key, each in self._last.items() if each[0] >= since_ns}
        leaders = [(value, of) for (signal, of), (_, value, leads) in fresh.items() if signal == self._term and leads]
        newest = fresh.get((self._signal, max(leaders)[1] if leaders else ""))
        own = fresh.get((self._signal, host))
        return -1.0 if newest is None or own is None else newest[1] - own[1]

    def look(self) -> tuple[str | None, str]:
        return self._came, self._evidence()

    def _evidence(self) -> str:
        shown = [
            f"{host} {value:.0f}{' leads' if led else ''}"
            for (name, host), (_, value, led) in self._last.items()
            if name == self._signal
        ]
        return "; ".join(
            [f"{self._signal}: {', '.join(sorted(shown))}" if shown else "no answer", *self._failed.values()]
        )
