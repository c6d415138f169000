"""Several workers as one load generator: `python -m hashidrill.staging.generators.conductor`, in place of in_generator.

It speaks with the engine as hashidrill.core.loads.in_generator does; the specification also has a `fleet`: how many
workers, their scheduler, and their lease. All of them start at one agreed instant of the run's clock, and their
operations come out in the order in which they ended.

Any problem with one worker ends the run: {"error": ...} and exit code 1. The run never goes on with fewer workers.

Divides an experiment's loads among workers, and checks that together they offered what was requested.

A load that divides is offered by all: worker i of N performs operations i, i + N, i + 2N... of the one schedule,
each at the moment, with the key and the value that it would have from a single generator. So rates are divided
exactly, whatever the profile does, and no two workers share an operation. A load that does not divide (it holds
things, or reacts to events) is offered whole by one worker.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import uvloop

from hashidrill.core.errors import DatacenterError, HashidrillError
from hashidrill.core.experiment.load_levels import Course, Pace, Profile, Share
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import cost_of, divides
from hashidrill.core.util.processes import ahead
from hashidrill.staging.generators.remote import LOST_AFTER_S, Dial, Introduction, LostError, Remote, dialed_by
from hashidrill.staging.generators.secrecy import Identity, packed
from hashidrill.staging.generators.spawners import LocalSpawner, NomadSpawner, Spawner, SpawnError

SLACK_S = 0.25
"""By how many seconds' operations a worker may be behind (or, after a lowered level, ahead) when it stops."""


class DivisionError(DatacenterError):
    """Workers cannot offer these loads, or did not offer them as requested. The run is INVALID."""


@dataclass(frozen=True)
class Stopped:
    """A worker's final report on its generator: when it stopped, and how many operations each load emitted."""

    at_ns: int
    emitted: Mapping[str, int]


@dataclass
class _Shared:
    course: Course
    rate_per_s: float
    highest: float = 1.0

    def due(self, t_ns: int, start_ns: int) -> int:
        """The number of operations that all generators together should have started by then."""

        def is_due(n: int) -> bool:
            # a new pace each time: a pace only goes forward
            due_ns = Pace(self.course, self.rate_per_s, start_ns).due_ns(n)
            return due_ns is not None and due_ns <= t_ns

        if not is_due(0):
            return 0
        most = 1
        while is_due(most):
            most *= 2
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if is_due(middle) else (least, middle)
        return least + 1


@dataclass(frozen=True)
class Sum:
    """The totals of one divided load: operations requested until the workers stopped, and operations offered."""

    load: str
    asked: int
    offered: int
    by_worker: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = " + ".join(str(number) for number in self.by_worker.values())
        return f"{self.offered} operations offered ({parts}), {self.asked} asked for"


class Division:
    """Divides the loads of one specification (plain data from the engine) among workers."""

    def __init__(self, loads: Sequence[Mapping[str, Any]], workers: Sequence[str]) -> None:
        """Raises DivisionError for a load that cannot be offered on another machine."""
        self._workers = list(workers)
        self._start_ns = 0
        self._shared: dict[str, _Shared] = {}
        self._of: dict[str, list[dict[str, Any]]] = {worker: [] for worker in workers}
        self.first: dict[str, str] = {}
        """The worker that prepares a load, reads back and cleans up."""
        for load in loads:
            self._divide(load)

    def _divide(self, load: Mapping[str, Any]) -> None:
        name = load["name"]
        if load["kind"] == registry.CLIENT:
            raise DivisionError(
                f"client {name}: a client's command runs with its tap, on the machine of the runner; workers offer"
                " only loads"
            )
        kind = registry.load(load["kind"])
        if divides(kind):
            params = kind.Params.model_validate(load["params"])
            profile = load["profile"] and Profile.model_validate(load["profile"])
            course = Course(profile.pieces() if profile else ())
            self._shared[name] = _Shared(course, cost_of(kind, params).rate_per_s)
            self.first[name] = self._workers[0]
            for index, worker in enumerate(self._workers):
                self._of[worker].append({**load, "share": [index, len(self._workers)]})
            return
        # the worker with the fewest loads; if several have as few, the first
        worker = min(self._workers, key=lambda one: len(self._of[one]))
        self.first[name] = worker
        self._of[worker].append({**load, "share": [0, 1]})

    def of(self, worker: str) -> list[dict[str, Any]]:
        """The specification of the loads for that worker."""
        return self._of[worker]

    @property
    def shared(self) -> Sequence[str]:
        return list(self._shared)

    # the engine's commands, as the workers receive them

    def start(self, t_ns: int) -> None:
        self._start_ns = t_ns

    def begin(self, t_ns: int) -> None:
        for shared in self._shared.values():
            shared.course.begin(t_ns)

    def hold(self, t_ns: int) -> None:
        for shared in self._shared.values():
            shared.course.hold(t_ns)

    def go(self, t_ns: int) -> None:
        for shared in self._shared.values():
            shared.course.go(t_ns)

    def level(self, load: str, level: float, t_ns: int) -> None:
        if load in self._shared:
            self._shared[load].highest = max(self._shared[load].highest, level)
            self._shared[load].course.set(t_ns, level)

    def settled(self, stopped: Mapping[str, Stopped], received: Mapping[str, Mapping[str, int]]) -> list[Sum]:
        """The sums of all divided loads; `received`: operations that came in, by worker and load.

        Raises DivisionError for missing or repeated operations, or another rate.
        """
        for worker in self._workers:
            self._all_came(worker, stopped[worker].emitted, received.get(worker, {}))
        return [self._sum(name, shared, stopped) for name, shared in self._shared.items()]

    def _all_came(self, worker: str, emitted: Mapping[str, int], received: Mapping[str, int]) -> None:
        for load in sorted({*emitted, *received}):
            said, came = emitted.get(load, 0), received.get(load, 0)
            if said != came:
                raise DivisionError(
                    f"worker {worker}: {came} operations of {load} arrived, but its generator reports {said}"
                )

    def _sum(self, name: str, shared: _Shared, stopped: Mapping[str, Stopped]) -> Sum:
        offered = {worker: stopped[worker].emitted.get(name, 0) for worker in self._workers}
        asked = 0
        highest = max([shared.highest, *(piece.level for piece in shared.course.pieces)])
        slack = 1 + SLACK_S * shared.rate_per_s * highest / len(self._workers)
        for index, worker in enumerate(self._workers):
            due = shared.due(stopped[worker].at_ns, self._start_ns)
            expected = Share(index, len(self._workers)).count(due)
            asked += expected
            if abs(offered[worker] - expected) > slack:
                raise DivisionError(
                    f"worker {worker} offered {offered[worker]} operations of {name} until it stopped, but its share"
                    f" of {shared.rate_per_s:g}/s was {expected}: the load was not offered as requested"
                )
        return Sum(name, asked, sum(offered.values()), offered)

    def reached(self, load: str, stopped: Mapping[str, Stopped]) -> int:
        """For a divided load, the number after the last operation that any worker offered."""
        counts = [stopped[worker].emitted.get(load, 0) for worker in self._workers]
        return max((index + (count - 1) * len(counts) + 1 for index, count in enumerate(counts) if count), default=0)


Line = Sequence[Any]
"""An operation as hashidrill.core.loads.schedule packs it."""
_END = 3
_ended = itemgetter(_END)
MOST_WAITING = 500_000
"""Operations that may wait for the slowest worker, over all workers."""


class Merge:
    """The waiting operations of each worker, and the time of its last report. Times are of the run's clock."""

    def __init__(self, workers: Sequence[str]) -> None:
        self._waiting: dict[str, list[Line]] = {worker: [] for worker in workers}
        self._upto_ns = dict.fromkeys(workers, 0)
        self.waiting = 0

    def add(self, worker: str, operations: Sequence[Line]) -> None:
        self._waiting[worker].extend(operations)
        self.waiting += len(operations)

    def upto(self, worker: str, t_ns: int) -> None:
        """Notes that the worker has reported every operation that ended by then."""
        self._upto_ns[worker] = max(self._upto_ns[worker], t_ns)

    def ahead(self, worker: str, most: int = MOST_WAITING) -> bool:
        """Whether to pause reading from that worker: too many operations wait for a slower worker."""
        slowest_ns = min(self._upto_ns.values())
        return self.waiting >= most and self._upto_ns[worker] > slowest_ns

    def taken(self) -> list[Line]:
        """All operations that can be passed on now, in order."""
        return self._taken(min(self._upto_ns.values()))

    def rest(self) -> list[Line]:
        """All remaining operations, in order, once the loads have stopped."""
        return self._taken(None)

    def _taken(self, before_ns: int | None) -> list[Line]:
        found: list[Line] = []
        for worker, lines in self._waiting.items():
            if before_ns is None:
                found += lines
                self._waiting[worker] = []
            elif lines:
                found += [line for line in lines if line[_END] <= before_ns]
                self._waiting[worker] = [line for line in lines if line[_END] > before_ns]
        found.sort(key=_ended)
        self.waiting -= len(found)
        return found


OWN = "generator"
"""A generator's samples of itself: `generator.cpu`, `generator.lag`."""

Sampled = list[Any]
"""Time, signal, value and text, as the engine expects them."""


class Gauges:
    """Reports the worst of the workers' samples of themselves, once each has reported, so a silent one is noticed.

    `first`: the worker that reports for each load; the others' samples of it are the same.
    """

    def __init__(self, workers: Sequence[str], first: Mapping[str, str]) -> None:
        self._workers = list(workers)
        self._first = first
        self._said: dict[str, dict[str, tuple[int, float]]] = {}

    def take(self, worker: str, t_ns: int, signal: str, value: float | None, text: str) -> Iterator[Sampled]:
        """The samples to pass on."""
        owner = signal.rpartition(".")[0]
        if owner == OWN and value is not None:
            said = self._said.setdefault(signal, {})
            before = said.get(worker, (t_ns, value))
            said[worker] = (t_ns, max(value, before[1]))
            if len(said) == len(self._workers):
                del self._said[signal]
                yield [max(at for at, _ in said.values()), signal, max(number for _, number in said.values()), text]
        elif self._first.get(owner, worker) == worker:
            yield [t_ns, signal, value, text]


LEAD_S = 0.5
"""Seconds between the moment when all are prepared and their start."""
EMIT_EVERY_S = 0.05
SAMPLE_EVERY_S = 1.0
LINE_OPERATIONS = 500
_STOP_WITHIN_S = 3.0
_END_WITHIN_S = 12.0
_MARKS = ("prepared", "ready", "stopped", "reads_done", "cleaned")

Say = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends one message to the engine; waits while the engine does not read."""


class Conductor:
    """The workers of one run. `say` reports for all of them together."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        workers: Sequence[Introduction],
        dial: Dial,
        say: Say,
        *,
        lost_after_s: float = LOST_AFTER_S,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises DivisionError for loads that workers cannot offer, DatacenterError for an unreadable TLS file."""
        names = [worker.name for worker in workers]
        self._spec = spec
        self._say = say
        self._clock_ns, self._origin_ns = now_ns, int(spec["origin_ns"])
        self._files = packed(spec.get("entrances", {}))
        self.division = Division(spec["loads"], names)
        self._merge = Merge(names)
        self._gauges = Gauges(names, self.division.first)
        self.remotes = {
            worker.name: Remote(worker, dial, self._hear, lost_after_s=lost_after_s, now_ns=now_ns)
            for worker in workers
        }
        self._received: dict[str, Counter[str]] = {name: Counter() for name in names}
        self._stopped: dict[str, Stopped] = {}
        self._lost_after_s = lost_after_s
        self._silent = Counter[str]()
        self._held: set[str] = set()
        self._marks: dict[str, set[str]] = {mark: set() for mark in _MARKS}
        self._changed = asyncio.Condition()
        self.starts_ns = 0
        """When all workers began, on the run's clock."""

    def _now_ns(self) -> int:
        return self._clock_ns() - self._origin_ns

    async def conduct(self, commands: asyncio.StreamReader) -> None:
        """Runs until the commands end. Raises LostError, StreamError, ClockError, DivisionError: the run is INVALID."""
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(remote.run()) for remote in self.remotes.values()]
            beside = [tasks.create_task(self._emit()), tasks.create_task(self._sample())]
            todo: asyncio.Queue[str] = asyncio.Queue()
            driving = tasks.create_task(self._drive(todo))
            while command := (await commands.readline()).strip():
                todo.put_nowait(command.decode())
            # the engine requests the end, or has ended: pending waits no longer matter
            driving.cancel()
            await asyncio.wait([driving])
            await self._end(streams)
            for task in beside:
                task.cancel()

    async def _drive(self, todo: asyncio.Queue[str]) -> None:
        await self._start()
        while True:
            await self._obey(await todo.get())

    async def _start(self) -> None:
        for remote in self.remotes.values():
            await remote.known.wait()
        for name, remote in self.remotes.items():
            remote.start({**self._given, "loads": self.division.of(name)}, self._files)
        await self._all("prepared")
        self.starts_ns = self._now_ns() + int(LEAD_S * 1e9)
        self.division.start(self.starts_ns)
        self._tell(f"start {self.starts_ns}")
        await self._all("ready")
        await self._say({"ready": True})

    @property
    def _given(self) -> dict[str, Any]:
        return {key: value for key, value in self._spec.items() if key not in {"fleet", "loads"}}

    def _tell(self, line: str) -> None:
        for remote in self.remotes.values():
            remote.say(line)

    async def _all(self, mark: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._marks[mark]) == len(self.remotes))

    async def _obey(self, command: str) -> None:
        match command.split():
            case ["stop"]:
                self._tell(command)
                await self._all("stopped")
                await self._settle()
            case ["final_reads"]:
                await self._final_reads()
            case ["begin", t_ns]:
                self.division.begin(int(t_ns))
                self._tell(command)
            case ["hold", t_ns]:
                self.division.hold(int(t_ns))
                self._tell(command)
            case ["go", t_ns]:
                self.division.go(int(t_ns))
                self._tell(command)
            case ["level", load, level, t_ns]:
                self.division.level(load, float(level), int(t_ns))
                for name, remote in self.remotes.items():
                    if any(one["name"] == load for one in self.division.of(name)):
                        remote.say(command)
            case _:
                raise ValueError(f"unknown command {command!r}")

    async def _settle(self) -> None:
        await self._give(self._merge.rest())
        for total in self.division.settled(self._stopped, self._received):
            await self._signal(f"workers.{total.load}.offered", float(total.offered), str(total))
        await self._say({"stopped": True})

    async def _final_reads(self) -> None:
        """Lets all workers read before any cleans up, because a clean-up removes what others still have to read."""
        for load in self.division.shared:
            reached = self.division.reached(load, self._stopped)
            self.remotes[self.division.first[load]].say(f"reached {load} {reached}")
        self._tell("reads")
        await self._all("reads_done")
        self._tell("clean_up")
        await self._all("cleaned")
        await self._say({"final_reads_done": True})

    async def _end(self, streams: Sequence[asyncio.Task[None]]) -> None:
        if self._marks["ready"] and not self._marks["stopped"]:
            self._tell("stop")  # operations in flight are still reported
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_WITHIN_S):
                    await self._all("stopped")
            await self._give(self._merge.rest())
        for remote in self.remotes.values():
            remote.end()
        _, left = await asyncio.wait(streams, timeout=_END_WITHIN_S)
        for stream in left:  # its lease ends it
            stream.cancel()

    async def _hear(self, worker: str, line: dict[str, Any]) -> None:
        if "operations" in line:
            self._received[worker].update(operation[0] for operation in line["operations"])
            self._merge.add(worker, line["operations"])
        elif "upto" in line:
            self._merge.upto(worker, line["upto"])
            async with self._changed:
                self._changed.notify_all()
                # back-pressure: this stream pauses while it is ahead and too much waits for another one
                self._held.add(worker)
                await self._changed.wait_for(lambda: not self._merge.ahead(worker))
                self._held.discard(worker)
            self._silent[worker] = 0
        elif "sample" in line:
            t_ns, signal, value, text = line["sample"]
            for sample in self._gauges.take(worker, t_ns, signal, value, text):
                await self._say({"sample": sample})
        elif "waiting" in line or "final_reads" in line or "final_reads_failed" in line:
            await self._say(line)
        if "stopped" in line:
            self._stopped[worker] = Stopped(line["at_ns"], line["emitted"])
        for mark in _MARKS:
            if mark in line:
                async with self._changed:
                    self._marks[mark].add(worker)
                    self._changed.notify_all()

    async def _emit(self) -> None:
        while True:
            await asyncio.sleep(EMIT_EVERY_S)
            await self._give(self._merge.taken())
            async with self._changed:
                self._changed.notify_all()
            if len(self._marks["ready"]) == len(self.remotes) and not self._marks["stopped"]:
                self._look_for_silence()

    def _look_for_silence(self) -> None:
        """Detects a worker whose generator hangs. Time in which something blocks this process does not count."""
        for name, remote in self.remotes.items():
            self._silent[name] += remote.connected and name not in self._held
            if self._silent[name] * EMIT_EVERY_S > self._lost_after_s:
                raise LostError(remote.worker, f"its generator has reported nothing for {self._lost_after_s:g}s")

    async def _give(self, operations: Sequence[Any]) -> None:
        for at in range(0, len(operations), LINE_OPERATIONS):
            await self._say({"operations": operations[at : at + LINE_OPERATIONS]})

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            for name, remote in self.remotes.items():
                if remote.discipline is None:
                    continue
                offset = remote.offset
                error_ns = offset.ns - remote.discipline.applied_ns
                text = f"its clock is {offset.ns / 1e9:+.6f} s from the runner's; connections lost: {remote.drops}"
                await self._signal(f"workers.{name}.offset", error_ns / 1e9, text)
                await self._signal(f"workers.{name}.uncertainty", offset.uncertainty_ns / 1e9)

    async def _signal(self, signal: str, value: float, text: str = "") -> None:
        await self._say({"sample": [self._now_ns(), signal, value, text]})


def spawner_of(fleet: Mapping[str, Any], run_id: str) -> Spawner:
    """The spawner of the specification. Raises SpawnError for an unknown one, AttachError for unusable TLS files."""
    match fleet["spawner"]:
        case "local":
            return LocalSpawner(lease_s=fleet["lease_s"])
        case "nomad":
            return NomadSpawner.of(fleet, run_id)
        case other:
            raise SpawnError(f"hashidrill cannot start workers by {other!r}")


async def conducted(commands: asyncio.StreamReader, say: Say) -> int:
    """Conducts one run to its end; returns the exit code. By then the workers have ended, or will end soon."""
    spec = json.loads(await commands.readline())
    fleet, identity = spec["fleet"], Identity.made("hashidrill runner")
    try:
        spawner = spawner_of(fleet, spec["run_id"])
        try:
            workers = await spawner.spawn(identity.certificate, fleet["workers"])
            lost_after_s = float(fleet.get("lost_after_s", LOST_AFTER_S))
            conductor = Conductor(spec, workers, dialed_by(identity), say, lost_after_s=lost_after_s)
            await conductor.conduct(commands)
        except Exception as error:  # the spawner may know more about the cause
            raise await _explained(error, spawner) from error
        finally:
            await spawner.take_away()
    except HashidrillError as error:
        with contextlib.suppress(OSError):  # the reader may be gone
            await say({"error": str(error)})
        return 1
    return 0


async def _explained(error: BaseException, spawner: Spawner) -> HashidrillError:
    """The first cause in a group, with the spawner's knowledge of a lost worker."""
    while isinstance(error, BaseExceptionGroup):
        error = next((one for one in error.exceptions if isinstance(one, HashidrillError)), error.exceptions[0])
    if isinstance(error, LostError) and (more := await spawner.why_gone(error.worker)):
        return DatacenterError(f"{error}; {more}")
    return error if isinstance(error, HashidrillError) else DatacenterError(f"{type(error).__name__}: {error}")


class _Out(asyncio.Protocol):
    """Standard output, with back-pressure: `room` is set while the engine reads."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.room, self.lost = asyncio.Event(), asyncio.Event()
        self.room.set()
        self._on_lost = on_lost

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it was lost
        self.lost.set()
        self.room.set()
        self._on_lost()


async def serve() -> int:
    """Obeys standard input until it ends, SIGTERM comes, or standard output is closed; returns the exit code."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=1 << 25)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin.buffer)
    transport, out = await loop.connect_write_pipe(lambda: _Out(commands.feed_eof), sys.stdout.buffer)
    loop.add_signal_handler(signal.SIGTERM, commands.feed_eof)

    async def say(message: Mapping[str, Any]) -> None:
        await out.room.wait()
        if not out.lost.is_set():
            transport.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    try:
        return await conducted(commands, say)
    finally:
        transport.close()
        await out.lost.wait()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the engine, which then stops the loads in order
    ahead()
    return uvloop.run(serve())


if __name__ == "__main__":
    sys.exit(main())
