"""Begins a step of the method when it is due, and carries it out: on each target, in turn on each host, and following a
role that moves.

A step begins at its time, after the faults that it waits for, and at its moment (`when:`). What a product shows is
sampled every `_EVERY_S` while a step waits, over separate connections: the run's own probes look once or twice a
second, which is too seldom to begin a fault during an election.

A person may act while the faults last (`attended`): to rehearse a runbook, or in training. The method's clock stands
still during that time, so faults in force stay in force and no later step begins. When the person returns, the method
ends. During that time, people do the manual work, like unsealing a server; the datacenter does it before and after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio

from hashidrill.core.engine.inject import injected
from hashidrill.core.engine.run_state import Acting, Attendant, Run
from hashidrill.core.errors import FaultError, MomentError, SelectorError, WaitTimeoutError
from hashidrill.core.experiment.model import Mark, Step, make_fault
from hashidrill.core.experiment.moments import ERRORS, GONE, PROVEN, Moment
from hashidrill.core.experiment.selectors import aimed
from hashidrill.core.probes.base import run_probes
from hashidrill.core.protocols.abc import Fault, OnTap, Place, Sample, Target, claims_of
from hashidrill.core.protocols.capabilities import described
from hashidrill.core.protocols.claims import AGENT, claims_thing
from hashidrill.core.protocols.events import InForce, Lasting
from hashidrill.core.protocols.service import BEHIND, LEADER_ELECTED, LEADS, shower
from hashidrill.core.util.wait import pause, wait_until

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


_LOOK_EVERY_S = 0.25
_FOLLOW_EVERY_S = 0.5
_TARGETS_WITHIN_S = 10.0


async def carry_out(running: Run, number: int, step: Step | Mark) -> None:
    """Carries out one step at its time: a fault on each of its targets, all at once, or a mark."""
    await begins(running, number, step)
    if isinstance(step, Mark):
        await _mark(running, number, step)
        return
    targets = await _targets(running, aimed(step.fault, step.on))
    running.settling.expect(number, proofs=1 if step.follow else len(targets))
    if step.follow:
        await _follow(running, number, step, targets)
    else:
        async with anyio.create_task_group() as group:
            for target in targets:
                group.start_soon(_hold, running, number, step, target, f"{number}-{step.fault}-{target.host}")
    running.settling.settle(number, GONE)


async def _mark(running: Run, number: int, mark: Mark) -> None:
    """Writes the mark at its time; it has no proof and no revert."""
    ends_s = mark.at + mark.for_
    ends_ns = running.method.ns(ends_s)
    running.journal.write("mark.begin", sync=True, mark=mark.name, step=number, ends_ns=ends_ns)
    running.marks[number] = Lasting(mark.name, ends_ns)
    try:
        await running.method.until(ends_s)
    finally:
        del running.marks[number]
        running.journal.write("mark.end", sync=True, mark=mark.name, step=number)


async def _hold(
    running: Run,
    number: int,
    step: Step,
    target: Target,
    fault_id: str,
    *,
    for_s: float | None = None,
    place: _Place | None = None,
) -> None:
    """Keeps one fault on one target, in force for `for` from the moment it is applied.

    Faults that must not share an agent take turns. If one had to wait, or its agent came back late, the next one on
    that agent starts later too: otherwise it would hit an agent that is still coming back.
    """
    if not claims_thing(AGENT, claims_of(make_fault(step, None), Place(target.host, frozenset({target.host})))):
        await _inject(running, number, step, target, fault_id, for_s=for_s, place=place)
        return
    turn = running.turns[f"{target.host}/{target.agent}"]
    late = turn.locked()
    async with turn:
        if late:  # the agent may be another process by now
            [target] = await _targets(running, f"host:{target.host}{f'/{target.agent}' if target.agent else ''}")
        await _inject(running, number, step, target, fault_id, for_s=for_s, place=place)


async def _inject(
    running: Run, number: int, step: Step, target: Target, fault_id: str, *, for_s: float | None, place: _Place | None
) -> None:
    fault = make_fault(step, running.datacenter)
    _check_able(running, fault, target)
    length = step.for_ if for_s is None else for_s
    until = None
    acting = Acting(fault.kind, target, fault_id, number, length)
    async with (
        running.admits(acting),
        injected(fault, target, fault_id=fault_id, step=number, journal=running.journal) as in_force,
    ):
        if place is not None:
            place.proven, until = True, place.moved
        running.proven.append((fault_id, step.fault))
        running.settling.settle(number, PROVEN)
        before = len(running.proven)

        def undone_by(kinds: frozenset[str]) -> str:
            return next((kind for _, kind in running.proven[before:] if kind in kinds), "")

        ends_ns = running.method.ns(running.method.now_s + in_force.left_s(length))
        running.in_force[fault_id] = InForce(fault_id, step.fault, target.host, ends_ns)
        running.held[fault_id] = in_force
        try:
            lasts = partial(running.method.lasts, planned_end_s=step.at + step.for_, until=until)
            await in_force.hold(length, lasts=lasts, undone_by=undone_by)
        finally:
            del running.in_force[fault_id], running.held[fault_id]


def _check_able(running: Run, fault: Fault, target: Target) -> None:
    """Raises FaultError if the host lacks a requirement of the fault, before anything is planned or applied."""
    if isinstance(fault, OnTap) and fault.on_client:
        return
    host = running.datacenter.host(target.host)
    lacking = sorted(described(each) for each in fault.requires().lacking(host))
    if lacking:
        raise FaultError(f"{fault.kind} on {host.name}: nothing was applied: {host.name} lacks {', '.join(lacking)}")


async def _follow(running: Run, number: int, step: Step, targets: Sequence[Target]) -> None:
    """Keeps the fault where the selector points, for `for` in total: the fault moves when the role does."""
    ends_s = running.method.now_s + step.for_
    held: dict[str, _Place] = {}
    moves = 0

    async def hold(target: Target, place: _Place, fault_id: str) -> None:
        async with running.turns[f"{number} {target.host}"]:  # a role that comes back waits until the host is free
            left_s = ends_s - running.method.now_s
            if place.moved.is_set() or left_s <= 0:
                return
            with place.proving:
                try:
                    await _hold(running, number, step, target, fault_id, for_s=left_s, place=place)
                except FaultError:
                    if await _still_there(running, step, target):
                        raise
                    place.leave()
                    held.pop(target.host, None)
            if place.moved.is_set():
                running.journal.write("fault.moved", sync=True, fault_id=fault_id, on=step.on)

    async with anyio.create_task_group() as group:
        while running.method.now_s < ends_s:
            wanted = {target.host: target for target in targets}
            for host in held.keys() - wanted.keys():
                held.pop(host).leave()
            for host in wanted.keys() - held.keys():
                held[host] = _Place()
                group.start_soon(hold, wanted[host], held[host], f"{number}-{step.fault}-{host}-move{moves}")
                moves += 1
            await pause(_FOLLOW_EVERY_S)
            with suppress(SelectorError):  # no host has the role right now: the fault stays where it is
                targets = await running.datacenter.select(step.on)


class _Place:
    """One target of a fault that follows a role. If the role moves, an unproven fault is dropped, a proven one ends."""

    def __init__(self) -> None:
        self.moved = anyio.Event()
        self.proving = anyio.CancelScope()
        self.proven = False

    def leave(self) -> None:
        self.moved.set()
        if not self.proven:
            self.proving.cancel()


async def _still_there(running: Run, step: Step, target: Target) -> bool:
    """Whether the selector still points at that host; false while no host has the role."""
    try:
        return target.host in {one.host for one in await running.datacenter.select(step.on)}
    except SelectorError:
        return False


async def _targets(running: Run, selector: str) -> Sequence[Target]:
    """Resolves the selector now, waiting for an election to end. Raises SelectorError."""

    async def some() -> tuple[Sequence[Target] | None, str]:
        try:
            return await running.datacenter.select(selector), ""
        except SelectorError as error:
            return None, str(error)

    try:
        return await wait_until(f"{selector} to match a host", some, within_s=_TARGETS_WITHIN_S, gap_s=_LOOK_EVERY_S)
    except WaitTimeoutError as error:
        raise SelectorError(str(error)) from None


_SETTLED_WITHIN_S = 600.0
"""An upper bound: a step that cannot be applied ends the run long before."""
_SETTLED_EVERY_S = 0.1


async def attended(running: Run, attendant: Attendant, method: anyio.CancelScope) -> None:
    """Waits for the attendant's moment, lets the person act, and ends the method."""
    await running.method.until(attendant.at_s)
    async with running.stands_still(["the person who attends"]):
        await _settled(running, attendant.at_s)
        running.journal.write("attended.begins", sync=True, at_s=attendant.at_s, in_force=sorted(running.in_force))
        running.keeping.cancel()
        try:
            await attendant.attend(running)
        finally:
            running.left.set()
        running.journal.write("attended.ends", sync=True)
        method.cancel()  # before the clock continues, so that no step begins or ends in between


async def kept(running: Run) -> None:
    """Runs the datacenter's `keep`, except while a person attends. Ends on cancellation, or when `keep` returns."""
    with running.keeping:
        await running.datacenter.keep(running.tell)
    if running.keeping.cancel_called:
        await running.left.wait()
        await running.datacenter.keep(running.tell)


async def _settled(running: Run, at_s: float) -> None:
    """Waits until all faults due to end by `at_s` are gone, and all due to last are proven. Raises WaitTimeoutError."""
    steps = [(n, step) for n, step in enumerate(running.experiment.method) if isinstance(step, Step)]

    async def look() -> tuple[bool | None, str]:
        begun = [(n, step, GONE if step.at + step.for_ <= at_s else PROVEN) for n, step in steps if step.at <= at_s]
        open_ = [f"{step.fault} is not yet {what}" for n, step, what in begun if not running.settling.reached(n, what)]
        return (None, "; ".join(open_)) if open_ else (True, "")

    await wait_until("the faults of the method", look, within_s=_SETTLED_WITHIN_S, gap_s=_SETTLED_EVERY_S)
