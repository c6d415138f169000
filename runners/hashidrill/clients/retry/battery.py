"""The battery: one command, run behind a tap for each fault, and judged (`run_battery`).

1. Runs the command once without a fault: it must succeed, and make a request. A KV key that it reads and that does not
   exist is created first.
2. Runs it once with each fault that comes once, and once with each that lasts, several at a time, because waiting is
  cheap. A client that heeds Retry-After gets a short wait many times, then a wait that is longer than all of these.
3. Timing: runs many independent clients with a lasting fault, together with reference clients that sleep the same fixed
  gaps. If the result varies, runs the fault a few more times.

Runs everything that a verdict needs, whichever faults are selected.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hashidrill.clients.retry import reference_client, timing
from hashidrill.clients.retry.surroundings import NAME, NameServer, server_side
from hashidrill.clients.retry.timed_taps import TimedTaps
from hashidrill.clients.retry.verdicts import (
    Judged,
    bounded,
    failed,
    idempotent_only,
    key_of,
    not_for_it,
    present,
    timeout_present,
    transport_only,
    unknown,
    watch_resets,
)
from hashidrill.core.errors import FaultError
from hashidrill.core.tap import catalogue
from hashidrill.core.tap.attempts import Attempt, DoubtError, Run, header_in
from hashidrill.core.tap.command import CommandError, Ended, pointed_at, run
from hashidrill.core.tap.plans import Always, First, Nothing, OnceReused, Plan
from hashidrill.core.tap.tap import Tap
from hashidrill.core.tap.upstream import Upstream, UpstreamError
from hashidrill.core.tap.wire import Request
from hashidrill.core.util.processes import SOONER


@dataclass(frozen=True)
class Settings:
    """The caller's settings. `faults`: the faults to test; empty for all."""

    deadline_s: float = catalogue.DEADLINE_S
    most_retries: int = catalogue.MOST_RETRIES
    jitter_clients: int = catalogue.JITTER_CLIENTS
    faults: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    certificate: Path | None = None
    """Key and certificate (PEM) of taps that listen with TLS; the environment must make the command trust it."""

    def wants(self, fault: str) -> bool:
        return not self.faults or fault in self.faults

    def baselines(self, verdict: str) -> list[str]:
        """The faults that were not selected, but with which this verdict compares the selected faults."""
        about = catalogue.VERDICTS[verdict]
        selected = any(self.wants(fault) for fault in about.battery_faults)
        return [fault for fault in about.baseline if selected and not self.wants(fault)]


@dataclass
class Measured:
    """The results of one command's runs by fault, why a fault could not be injected, and the timing runs."""

    command: list[str]
    settings: Settings
    plain: Run | None = None
    long_running: bool = False
    once: dict[str, Run] = field(default_factory=dict)
    lasting: dict[str, list[Run]] = field(default_factory=dict)
    told: dict[str, list[Run]] = field(default_factory=dict)
    """For a client that heeds Retry-After: the runs with a long requested wait, by fault."""
    told_less: list[Run] = field(default_factory=list)
    """The runs with a short requested wait."""
    reused: Run | None = None
    backwards: Run | None = None
    too_quick: str = ""
    """Why it is unknown whether the client succeeds after one refusal; "" if it is known."""
    impossible: dict[str, str] = field(default_factory=dict)
    timed_fault: str = ""
    timed: list[Run] = field(default_factory=list)
    reference: list[Run] = field(default_factory=list)
    reference_gaps_s: list[float] = field(default_factory=list)
    """The gaps of the reference client, the same in all its runs."""

    @property
    def blocking(self) -> bool:
        return self.plain is not None and any(attempt.asked_index for attempt in self.plain.attempts)

    @property
    def work_s(self) -> float:
        """Processor time that one more attempt takes, in seconds."""
        plain = [self.plain] if self.plain is not None else []
        return timing.work_s([*plain, *self.once.values(), *(run for runs in self.lasting.values() for run in runs)])


_STARTING_AT_ONCE = 2
"""The most commands at a time that have not made a request yet, because starting them keeps the cores busy."""
_LONGEST_WAIT_S = 0.5
_TIME_FOR_THE_REST_S = 2
"""The part of the deadline that start and request need in addition to the longest requested wait."""
_GAPS_WANTED = 6
_REFERENCE_GAPS_AT_MOST = 6
_TRIES = 12
_MORE_ALONE = 4
_CROWDED = 0.5
"""If a client that runs alone has gaps shorter than this share of the gaps of many clients, the many may delay each
other.
"""
Say = Callable[[str], None]


class Battery:
    """Runs a command behind taps. `slots` limits how many commands start at a time; several batteries may share it."""

    def __init__(
        self,
        command: Sequence[str],
        upstream: Upstream,
        settings: Settings | None = None,
        *,
        slots: asyncio.Semaphore | None = None,
        may_seed: bool = False,
        say: Say | None = None,
    ) -> None:
        self.command = list(command)
        self.settings = settings or Settings()
        self._upstream = upstream
        self._slots = slots or asyncio.Semaphore(_STARTING_AT_ONCE)
        self._may_seed = may_seed
        self._say = say or (lambda _text: None)
        self._measured = Measured(self.command, self.settings)
        self._said_in = header_in(self.settings.environment)
        certificate = self.settings.certificate
        self._tls = None if certificate is None else server_side(certificate)

    async def measure(self) -> Measured:
        """Makes all runs. Raises CommandError or UsageError if the command cannot be measured; UpstreamError."""
        await self._plain()
        measured = self._measured
        if not measured.long_running:
            await _all([*(self._once(fault) for fault in self._faults_once()), self._reused(), self._retry_after()])
            with contextlib.suppress(DoubtError):  # the verdicts raise it again
                await self._timing()
        if measured.blocking and self.settings.wants("index-backwards"):
            measured.backwards = await self._one(First("index-backwards"))
        return measured

    # 1

    async def _plain(self) -> None:
        self._say("without any fault")
        ended, tap = await self._ended(Nothing())
        if self._may_seed and await self._seed(tap):
            ended, tap = await self._ended(Nothing())
        name = self.command[0]
        if tap.upstream_errors:
            raise UpstreamError(tap.upstream_errors[0])
        if not tap.attempts:
            raise CommandError(
                f"{name}: {ended.note}, but it made no request to the tap. Put {{url}} where the address goes, or let"
                " it read CONSUL_HTTP_ADDR, NOMAD_ADDR, VAULT_ADDR or http_proxy." + _quoted(ended)
            )
        self._measured.plain = self._run_of(ended, tap.attempts)
        if ended.stopped:
            if not self._measured.blocking:
                raise CommandError(
                    f"{name}: without any fault it was {ended.note}: the battery needs a command that does one"
                    " operation and ends; --timeout says how long an operation may take." + _quoted(ended)
                )
            self._measured.long_running = True
        elif not ended.ok:
            said = sorted({attempt.status for attempt in tap.attempts})
            raise CommandError(
                f"{name}: it fails even without a fault ({ended.note}; the answers were"
                f" {', '.join(map(str, said))}): its retries cannot be judged." + _quoted(ended)
            )

    async def _seed(self, tap: Tap) -> bool:
        missing = [a for a in tap.attempts if a.status == 404 and a.path.startswith("/v1/kv/") and a.method == "GET"]
        link = self._upstream.link()
        try:
            for attempt in missing:
                await link.ask(Request("PUT", urlsplit(attempt.path).path, [(b"host", b"tap")], b"hashidrill"))
        finally:
            link.close()
        return bool(missing)

    # 2

    def _faults_once(self) -> list[str]:
        needed = {fault for verdict in catalogue.VERDICTS for fault in self.settings.baselines(verdict)}
        return [fault for fault in (*catalogue.TRANSIENT, "slow-body") if self.settings.wants(fault) or fault in needed]

    async def _once(self, fault: str) -> None:
        self._say(f"{fault}, once")
        try:
            if fault == "dns":
                self._measured.once[fault] = await self._unresolved()
            elif fault == "refused":
                self._measured.once[fault] = await self._refused()
            else:
                self._measured.once[fault] = await self._one(First(fault))
        except FaultError as error:
            self._measured.impossible[fault] = str(error)
            return
        if fault in catalogue.LASTING and self.settings.wants(fault):
            self._measured.lasting[fault] = []
            if not self._measured.once[fault].doubt and self._measured.once[fault].retries:
                await self._lasting(fault)
            else:  # without a retry after one fault, a lasting fault shows nothing new
                self._measured.lasting[fault] = [self._measured.once[fault]]

    async def _lasting(self, fault: str, attempts: int = catalogue.UNBOUNDED_ATTEMPTS) -> None:
        self._say(f"{fault}, all the time")
        self._measured.lasting[fault].append(await self._one(Always(fault), attempts=attempts))

    async def _reused(self) -> None:
        """Resets a reused connection. If the command does not reuse connections, a redirect makes it reuse one."""
        if not self.settings.wants("reset-after-reused"):
            return
        plain = self._measured.plain
        naturally = plain is not None and any(attempt.reused for attempt in plain.attempts)
        self._measured.reused = await self._one(OnceReused("reset-after-reused", redirect=not naturally))

    async def _refused(self) -> Run:
        """Refuses one connection. A client that retries within microseconds may be refused again before the port is
        open; then the run is repeated.

        Raises FaultError if refusals cannot be counted.
        """
        for left in reversed(range(_TRIES)):
            run = await self._one(First("refused"))
            if run.ok or len(run.faulted) <= 1 or not left:
                break
        if not run.ok and (times := len(run.faulted)) > 1:
            self._measured.too_quick = f"it came back so quickly that it was refused {times} times instead of once"
        return run

    async def _unresolved(self) -> Run:
        tap = self._tap(Nothing())
        async with tap, NameServer(1, lambda: tap.unseen("dns")) as names:
            url = tap.url.replace("127.0.0.1", NAME)
            command, environment = pointed_at(self.command, url, self.settings.environment)
            wrapped, deadline_s = names.wrapped(command), self.settings.deadline_s
            ended = await self._started(tap.first_attempt, wrapped, environment, deadline_s, None)
        return self._run_of(ended, tap.attempts)

    async def _retry_after(self) -> None:
        """Gives each fault with Retry-After once. If the client waits as long as requested, finds out whether it would
        wait that long anyway.

        For that, the client gets a short wait in the same form of header, because a client that cannot parse a date may
        sleep its own default instead.
        """
        measured = self._measured
        faults = [fault for fault in catalogue.RETRY_AFTER if self.settings.wants(fault)]
        await _all([self._once(fault) for fault in faults])
        heeded = [
            fault for fault in faults if fault in measured.once and timing.heeds_retry_after(measured.once[fault])
        ]
        if not heeded:
            return

        async def ask(fault: str, seconds: int, runs: list[Run]) -> None:
            self._say(f"{fault}, {seconds} s")
            runs.append(await self._one(First(fault), retry_after_s=seconds))

        each = max(catalogue.FEWEST_TOLD_WAITS, -(-catalogue.FEWEST_OTHER_WAITS // len(heeded)))
        short = catalogue.SHORT_RETRY_AFTER_S
        await _all([ask(fault, short, measured.told_less) for fault in heeded for _ in range(each)])
        # a client whose wait does not fit the deadline cannot pass, but one that comes back too soon still fails
        longest = max(catalogue.RETRY_AFTER_S, int(self.settings.deadline_s) - _TIME_FOR_THE_REST_S)
        seconds = min(timing.telling_retry_after_s(measured.told_less), longest)
        for fault in heeded:
            measured.told[fault] = [measured.once[fault]] if seconds == catalogue.RETRY_AFTER_S else []
        await _all(
            [
                ask(fault, seconds, measured.told[fault])
                for fault in heeded
                for _ in range(catalogue.FEWEST_TOLD_WAITS - len(measured.told[fault]))
            ]
        )

    # 3

    async def _timing(self) -> None:
        measured = self._measured
        lasting = [fault for fault in catalogue.LASTING if fault in measured.lasting]
        retried = [fault for fault in lasting if any(run.gaps_s() and run.retries for run in measured.lasting[fault])]
        if not retried:
            return
        fault = measured.timed_fault = retried[0]
        await self.more_clients(self.settings.jitter_clients)
        alone = timing.alone_s([gap for run in measured.lasting[fault] for gap in run.gaps_s()])
        if alone < _CROWDED * max(timing.typical_gaps_s(measured.timed), default=0.0):
            for _ in range(_MORE_ALONE):  # one after the other: alone
                await self._lasting(fault, attempts=_GAPS_WANTED + 1)
        if len({run.retries for run in measured.timed if run.ended}) > 1:  # the number of retries is random too
            await _all([self._lasting(other) for other in retried if other != fault for _ in range(_MORE_ALONE)])

    async def more_clients(self, count: int) -> None:
        """Runs `count` more clients with the lasting fault, and as many reference clients, all at the same time."""
        measured = self._measured
        fault = measured.timed_fault
        self._say(f"{fault}: {count} clients at the same time")
        measured.reference_gaps_s = measured.reference_gaps_s or timing.typical_gaps_s(measured.lasting[fault])
        gaps = measured.reference_gaps_s[:_REFERENCE_GAPS_AT_MOST]

        tls = "tls:" if self.settings.certificate else ""
        timed: list[Run] = []
        reference: list[Run] = []
        faults = [f"{tls}{fault}"] * count + ["503"] * count
        async with TimedTaps(faults, self.settings.certificate, said_in=self._said_in) as taps:

            async def mine(number: int) -> None:
                timed.append(await self._timed(taps, number))

            async def theirs(number: int) -> None:
                reference.append(await self._reference(taps, count + number, gaps))

            await _all([each(number) for number in range(count) for each in (mine, theirs)])
        measured.timed += timed
        measured.reference += reference

    async def _timed(self, taps: TimedTaps, number: int) -> Run:
        command, environment = pointed_at(self.command, taps.urls[number], self.settings.environment)
        seen = taps.attempts[number]

        def enough() -> str:
            return f"after {len(seen)} attempts" if len(seen) > _GAPS_WANTED else ""

        deadline_s = self.settings.deadline_s
        ended = await self._started(taps.first[number], command, environment, deadline_s, enough, timed=True)
        # each process salts its fingerprints, so fingerprints of bodies from another process cannot be compared
        plain = self._measured.plain.attempts if self._measured.plain is not None else ()
        return replace(self._run_of(ended, seen), plain=tuple(replace(each, body="") for each in plain))

    async def _reference(self, taps: TimedTaps, number: int, gaps_s: Sequence[float]) -> Run:
        command = [sys.executable, "-S", "-E", str(Path(reference_client.__file__)), taps.urls[number]]
        command += [f"{number:.6f}" for number in (self._measured.work_s, *gaps_s)]
        within_s = sum(gaps_s) + self.settings.deadline_s
        ended = await self._started(taps.first[number], command, {}, within_s, None, timed=True)
        return Run(tuple(taps.attempts[number]), ended.ok, not ended.stopped, ended.start_ns, ended.end_ns)

    # one run

    async def _one(self, plan: Plan, *, attempts: int = 0, retry_after_s: int = catalogue.RETRY_AFTER_S) -> Run:
        ended, tap = await self._ended(plan, attempts=attempts, retry_after_s=retry_after_s)
        return self._run_of(ended, tap.attempts)

    async def _ended(
        self, plan: Plan, *, attempts: int = 0, retry_after_s: int = catalogue.RETRY_AFTER_S
    ) -> tuple[Ended, Tap]:
        tap = self._tap(plan, retry_after_s)

        def enough() -> str:
            return f"after {len(tap.attempts)} attempts" if len(tap.attempts) >= attempts else ""

        async with tap:
            command, environment = pointed_at(self.command, tap.url, self.settings.environment)
            deadline_s, stop_when = self.settings.deadline_s, enough if attempts else None
            return await self._started(tap.first_attempt, command, environment, deadline_s, stop_when), tap

    def _tap(self, plan: Plan, retry_after_s: int = catalogue.RETRY_AFTER_S) -> Tap:
        return Tap(
            self._upstream,
            plan,
            tls=self._tls,
            longest_wait_s=_LONGEST_WAIT_S,
            retry_after_s=retry_after_s,
            said_in=self._said_in,
        )

    async def _started(
        self,
        first_attempt: asyncio.Event,
        command: list[str],
        environment: dict[str, str],
        within_s: float,
        stop_when: Callable[[], str] | None,
        *,
        timed: bool = False,
    ) -> Ended:
        """Runs the operation. Frees its slot at the first attempt, because from then on the operation mostly waits."""
        pids: list[int] = []
        async with self._slots:
            ended = asyncio.create_task(
                run(command, environment, within_s=within_s, stop_when=stop_when, started=pids.append)
            )
            first = asyncio.create_task(first_attempt.wait())
            try:
                await asyncio.wait({ended, first}, return_when=asyncio.FIRST_COMPLETED)
                if timed and not ended.done():
                    _hurry(pids)
            except asyncio.CancelledError:
                await _cancelled(ended)
                raise
            finally:
                first.cancel()
        try:
            return await ended
        except asyncio.CancelledError:
            await _cancelled(ended)
            raise

    def _run_of(self, ended: Ended, attempts: Sequence[Attempt]) -> Run:
        plain = self._measured.plain
        return Run(
            tuple(attempts),
            ended.ok,
            not ended.stopped,
            ended.start_ns,
            ended.end_ns,
            plain.attempts if plain is not None else (),
            ended.cpu_s,
            ended.note,
            ended.crash,
        )


def _hurry(pids: Sequence[int]) -> None:
    """Gives a process group whose waits are measured priority over others that only start, if we may (as root)."""
    with contextlib.suppress(OSError):
        for pid in pids:
            os.setpriority(os.PRIO_PGRP, pid, SOONER)


async def _cancelled(task: asyncio.Task[Ended]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all at once; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in coroutines:
                group.create_task(each)
    except ExceptionGroup as several:
        # all errors are about the same command, so the first one explains all
        raise several.exceptions[0] from None


def _quoted(ended: Ended) -> str:
    lines = ended.output.splitlines()[-3:]
    return f"\nIt said: {' | '.join(lines)}" if lines else ""


_MOST_TIMES_MORE_CLIENTS, _MOST_TIMES_FOR_ALL = 4, 2
"""It takes many clients to show that random gaps do not grow. A machine that is too busy for jitter stays too busy."""
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
    """Measures and judges a command. If a timing verdict is close, runs more clients.

    Raises UsageError if the command cannot be started, CommandError if it cannot be measured.
    """
    settings = settings or Settings()
    return await judgement(Battery(command, upstream, settings, slots=slots, may_seed=may_seed, say=say))


async def judgement(battery: Battery) -> list[Judged]:
    """Like `run_battery`, for an existing battery."""
    measured = await battery.measure()
    for more in range(_MOST_TIMES_MORE_CLIENTS):
        judged = judge(measured)
        asking = {one.name for one in judged if one.evidence.get("more_clients")}
        if not asking or (more >= _MOST_TIMES_FOR_ALL and "backoff" not in asking):
            return judged
        await battery.more_clients(battery.settings.jitter_clients)
    return judge(measured)


def judge(measured: Measured) -> list[Judged]:
    """All verdicts, in the order of the catalogue. A pure function."""
    found: list[Judged] = []
    for name, about in catalogue.VERDICTS.items():
        faults = [fault for fault in about.battery_faults if measured.settings.wants(fault)]
        if name in _TIMING:
            found += _timed(measured, name)
        elif about.battery_faults:
            found += [_on_one_fault(measured, name, fault) for fault in faults]
        elif not measured.settings.faults:
            text = "one process for one operation cannot show this: judge it in an experiment"
            found.append(not_for_it(name, _NO_FAULT, text))
    return found


def _on_one_fault(measured: Measured, name: str, fault: str) -> Judged:
    if reason := measured.impossible.get(fault):
        return unknown(name, fault, reason)
    if measured.long_running and name != "watch_resets":
        return not_for_it(name, fault, "it does not end by itself: the battery can only judge its watches")
    try:
        one = _JUDGES[name](measured, fault)
    except DoubtError as doubt:
        return unknown(name, fault, str(doubt))
    if also := measured.settings.baselines(name):
        text = f"{one.text} (also run, for comparison: {', '.join(also)})"
        return replace(one, text=text, evidence={**one.evidence, "also_run": also})
    return one


def _runs(run: Run | None) -> list[Run]:
    return [] if run is None else [run]


def _present(measured: Measured, fault: str) -> Judged:
    if fault == "refused" and measured.too_quick:
        return unknown("present", fault, measured.too_quick)
    judged = present(fault, _runs(measured.once.get(fault)))
    usual = measured.plain.attempts if measured.plain is not None else ()
    write = next((attempt for attempt in usual if attempt.needs_a_key), None)
    return judged if write is None else replace(judged, fix=catalogue.FIX_OF_WRITES.format(key=key_of(write)))


def _transport_only(measured: Measured, fault: str) -> Judged:
    others = {name: _runs(measured.once.get(name)) for name in catalogue.VERDICTS["transport_only"].baseline}
    return transport_only(fault, _runs(measured.reused), others)


def _bounded(measured: Measured, fault: str) -> Judged:
    settings = measured.settings
    runs = list(measured.lasting.get(fault, ()))
    if fault == measured.timed_fault:  # clients that were stopped early show nothing
        runs += [run for run in measured.timed if run.ended]
    return bounded(fault, runs, most_retries=settings.most_retries, deadline_s=settings.deadline_s)


def _retry_after(measured: Measured, fault: str) -> Judged:
    runs = measured.told.get(fault) or _runs(measured.once.get(fault))
    if crash := next((run.crash for run in runs if run.crash and run.faulted), ""):
        return failed("retry_after_honoured", fault, f"the answer made it crash: {crash}", crash=crash)
    return timing.retry_after_honoured(fault, runs, measured.told_less)


def _watch_resets(measured: Measured, fault: str) -> Judged:
    if not measured.blocking:
        return not_for_it("watch_resets", fault, "it made no blocking query")
    return watch_resets(fault, measured.backwards.attempts if measured.backwards is not None else ())


_JUDGES: dict[str, Callable[[Measured, str], Judged]] = {
    "present": _present,
    "transport_only": _transport_only,
    "bounded": _bounded,
    "timeout_present": lambda measured, fault: timeout_present(
        fault, _runs(measured.once.get(fault)), deadline_s=measured.settings.deadline_s
    ),
    "idempotent_only": lambda measured, fault: idempotent_only(fault, _runs(measured.once.get(fault))),
    "retry_after_honoured": _retry_after,
    "watch_resets": _watch_resets,
}


def _timed(measured: Measured, name: str) -> list[Judged]:
    """Judged with a lasting fault after which the client retries, 503 if possible."""
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


_TIMING: dict[str, Callable[[Measured, str], Judged]] = {
    "backoff": lambda measured, fault: timing.backoff(fault, measured.timed, own=_own(measured, fault)),
    "exponential": lambda measured, fault: timing.exponential(fault, measured.timed, own=_own(measured, fault)),
    "jitter": lambda measured, fault: timing.jitter(
        fault, measured.timed, measured.reference, own=_own(measured, fault), clients=measured.settings.jitter_clients
    ),
}
