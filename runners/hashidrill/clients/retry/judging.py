"""From what the battery measured to its verdicts; and the battery as a whole: `run_battery`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from hashidrill.clients.retry import timing
from hashidrill.clients.retry.battery import Battery, Say
from hashidrill.clients.retry.consul_clients import watch_resets
from hashidrill.clients.retry.judged import Judged, not_for_it, unknown
from hashidrill.clients.retry.measured import Measured, Settings
from hashidrill.clients.retry.presence import bounded, idempotent_only, present, timeout_present, transport_only
from hashidrill.core.tap import catalogue
from hashidrill.core.tap.attempts import DoubtError, Run
from hashidrill.core.tap.upstream import Upstream

_MOST_TIMES_MORE_CLIENTS, _MOST_TIMES_FOR_ALL = 4, 2
"""Random gaps take many clients to say that they do not grow. A machine that is too busy for jitter stays so."""
_NO_FAULT = "-"


async def run_battery(
    command: Sequence[str],
    upstream: Upstream,
    settings: Settings | None = None,
    *,
    slots: asyncio.Semaphore | None = None,
    may_seed: bool = False,
    say: Say | None = None,
) -> list[Judged]:
    """Measure and judge a command. Where a timing verdict hangs in the balance, more clients are asked.

    Raises UsageError for a command that cannot be started, CommandError for one that cannot be measured.
    """
    settings = settings or Settings()
    return await judgement(Battery(command, upstream, settings, slots=slots, may_seed=may_seed, say=say))


async def judgement(battery: Battery) -> list[Judged]:
    """The same, of a battery."""
    measured = await battery.measure()
    for more in range(_MOST_TIMES_MORE_CLIENTS):
        judged = judge(measured)
        asking = {one.name for one in judged if one.evidence.get("more_clients")}
        if not asking or (more >= _MOST_TIMES_FOR_ALL and "backoff" not in asking):
            return judged
        await battery.more_clients(battery.settings.jitter_clients)
    return judge(measured)


def judge(measured: Measured) -> list[Judged]:
    """Every verdict, in the order of the catalogue. Pure."""
    found: list[Judged] = []
    for name, about in catalogue.VERDICTS.items():
        faults = [fault for fault in about.battery_faults if measured.settings.wants(fault)]
        if name in _TIMING:
            found += _timed(measured, name)
        elif about.battery_faults:
            found += [_on_one_fault(measured, name, fault) for fault in faults]
        elif not measured.settings.faults:
            text = "one process for one operation cannot show this: judge it over an experiment"
            found.append(not_for_it(name, _NO_FAULT, text))
    return found


def _on_one_fault(measured: Measured, name: str, fault: str) -> Judged:
    if reason := measured.impossible.get(fault):
        return unknown(name, fault, reason)
    if measured.long_running and name != "watch_resets":
        return not_for_it(name, fault, "it runs on and on: only its watches can be judged by the battery")
    try:
        one = _JUDGES[name](measured, fault)
    except DoubtError as doubt:
        return unknown(name, fault, str(doubt))
    if also := measured.settings.baselines(name):
        text = f"{one.text} (run too, to compare with: {', '.join(also)})"
        return replace(one, text=text, evidence={**one.evidence, "also_run": also})
    return one


def _runs(run: Run | None) -> list[Run]:
    return [] if run is None else [run]


def _present(measured: Measured, fault: str) -> Judged:
    if fault == "refused" and measured.too_quick:
        return unknown("present", fault, measured.too_quick)
    return present(fault, _runs(measured.once.get(fault)))


def _transport_only(measured: Measured, fault: str) -> Judged:
    others = {name: _runs(measured.once.get(name)) for name in catalogue.VERDICTS["transport_only"].baseline}
    return transport_only(fault, _runs(measured.reused), others)


def _bounded(measured: Measured, fault: str) -> Judged:
    settings = measured.settings
    runs = list(measured.lasting.get(fault, ()))
    if fault == measured.timed_fault:  # one that was stopped early, or late beside many others, shows nothing
        runs += [run for run in measured.timed if run.ended]
    return bounded(fault, runs, most_retries=settings.most_retries, deadline_s=settings.deadline_s)


def _timeout_present(measured: Measured, fault: str) -> Judged:
    return timeout_present(fault, _runs(measured.once.get(fault)), deadline_s=measured.settings.deadline_s)


def _idempotent_only(measured: Measured, fault: str) -> Judged:
    return idempotent_only(fault, _runs(measured.once.get(fault)))


def _retry_after(measured: Measured, fault: str) -> Judged:
    runs = measured.told.get(fault) or _runs(measured.once.get(fault))
    return timing.retry_after_honoured(fault, runs, measured.told_less)


def _watch_resets(measured: Measured, fault: str) -> Judged:
    if not measured.blocking:
        return not_for_it("watch_resets", fault, "it made no blocking query")
    return watch_resets(fault, measured.backwards.attempts if measured.backwards is not None else ())


_JUDGES: dict[str, Callable[[Measured, str], Judged]] = {
    "present": _present,
    "transport_only": _transport_only,
    "bounded": _bounded,
    "timeout_present": _timeout_present,
    "idempotent_only": _idempotent_only,
    "retry_after_honoured": _retry_after,
    "watch_resets": _watch_resets,
}


def _timed(measured: Measured, name: str) -> list[Judged]:
    """On the fault that the client retries on: 503 where it does."""
    wanted = [fault for fault in catalogue.LASTING if measured.settings.wants(fault)]
    if not wanted:
        return []
    fault = measured.timed_fault or wanted[0]
    doubts = [run.doubt for runs in (*measured.lasting.values(), measured.timed) for run in runs if run.doubt]
    if doubts:
        return [unknown(name, fault, doubts[0])]
    if not measured.timed:
        return [not_for_it(name, fault, f"it retries neither after {' nor after '.join(wanted)}: there are no gaps")]
    return [_TIMING[name](measured, fault)]


def _own(measured: Measured, fault: str) -> timing.Own:
    started_s = measured.plain.cpu_s if measured.plain is not None else 0.0
    gaps = [gap for run in measured.lasting[fault] for gap in run.gaps_s()]
    return timing.Own(gaps, measured.work_s, started_s)


def _jitter(measured: Measured, fault: str) -> Judged:
    clients, own = measured.settings.jitter_clients, _own(measured, fault)
    return timing.jitter(fault, measured.timed, measured.reference, own=own, clients=clients)


_TIMING: dict[str, Callable[[Measured, str], Judged]] = {
    "backoff": lambda measured, fault: timing.backoff(fault, measured.timed, own=_own(measured, fault)),
    "exponential": lambda measured, fault: timing.exponential(fault, measured.timed, own=_own(measured, fault)),
    "jitter": _jitter,
}
