"""Workers and their conductor in one event loop, in virtual time: streams in memory, clocks and lies as one likes."""

import asyncio
import contextlib
import json
from collections import Counter, deque
from dataclasses import dataclass, field

from hashidrill.core.experiment.load_levels import Course, Pace
from hashidrill.staging.generators.conductor import Conductor
from hashidrill.staging.generators.link import Link
from hashidrill.staging.generators.remote import Introduction
from hashidrill.staging.generators.worker import Worker

NS = 1_000_000_000
ORIGIN_NS = 1000 * NS
"""What the runner's own clock shows when the run begins; the virtual loop begins at 1000 s."""
FLUSH_S = 0.05


def virtual_ns():
    return round(asyncio.get_running_loop().time() * 1e9)


class Wire:
    """A writer whose bytes arrive at a reader after some time, in order; `cut` loses what is under way."""

    def __init__(self, reader, delay_s):
        self._reader, self._delay_s, self._under_way, self.over = reader, delay_s, deque(), False

    def write(self, data):
        if data and not self.over:
            self._under_way.append(data)
            asyncio.get_running_loop().call_later(self._delay_s, self._arrive)

    def _arrive(self):
        if self._under_way and not self.over:
            data = self._under_way.popleft()
            if data is None:
                self.cut()
            else:
                self._reader.feed_data(data)

    def close(self):
        if not self.over:
            self._under_way.append(None)
            asyncio.get_running_loop().call_later(self._delay_s, self._arrive)

    def cut(self):
        if not self.over:
            self.over = True
            self._reader.feed_eof()


@dataclass
class Lies:
    """What is wrong with one worker."""

    rate: float = 1.0
    """It offers this share of what it should."""
    drops: int | None = None
    """The operation that its generator emits and nobody gets."""
    twice: int | None = None
    """The operation that it sends again, as a new message."""
    dies_s: float | None = None
    """Seconds after the start, without a word."""
    jumps_s: tuple = ()
    """(seconds after the loop's begin, by how many seconds its clock jumps)"""
    drift: float = 0.0
    """Its clock is faster by this share."""
    busy_from_s: float | None = None
    """From then on it says nothing more, but its connection stays."""


class FakeGenerator:
    """Obeys as in_generator does; each of its operations takes 5 ms."""

    def __init__(self, world, on_line, on_end):
        self.world, self._on_line, self._on_end = world, on_line, on_end
        self.lies = world.lies
        self.emitted, self.batch, self.tasks, self.heard = Counter(), [], [], []
        self.origin_ns, self.due = 0, {}

    def now_ns(self):
        return self.world.now_ns() - self.origin_ns

    def tell(self, **message):
        if not self.world.dead:
            self._on_line(json.dumps(message).encode())

    def say(self, line):
        text = line.decode().strip()
        if text.startswith("{"):
            self.spec = json.loads(text)
            self.origin_ns = self.spec["origin_ns"]
            self.tell(prepared=True)
            return
        self.heard.append(text)
        match text.split():
            case ["start", t_ns]:
                self.tasks.append(asyncio.create_task(self._offer(int(t_ns))))
            case ["clock", origin_ns]:
                self.origin_ns = int(origin_ns)
            case ["stop"]:
                asyncio.create_task(self._stop())  # noqa: RUF006 - it ends at once
            case ["reads"]:
                for load in self.spec["loads"]:
                    if load["share"][0] == 0:
                        self.tell(final_reads=load["name"], values={"k": self.world.name})
                self.tell(reads_done=True)
            case ["clean_up"]:
                self.tell(cleaned=True)

    async def _offer(self, start_ns):
        await asyncio.sleep(max(0.001, (start_ns - self.now_ns()) / 1e9))
        self.tell(ready=True)
        self.began_s = asyncio.get_running_loop().time()
        for load in self.spec["loads"]:
            index, of = load["share"]
            rate = float(str(load["params"]["rate"]).removesuffix("/s")) * self.lies.rate
            self.due[load["name"]] = [Pace(Course(), rate, start_ns), index, of]
        while True:
            await asyncio.sleep(FLUSH_S)
            if self.lies.dies_s is not None and asyncio.get_running_loop().time() - self.began_s >= self.lies.dies_s:
                self.world.die()
                return
            silent = self.lies.busy_from_s
            if silent is not None and asyncio.get_running_loop().time() - self.began_s >= silent:
                continue
            self._due_until(self.due, self.now_ns())
            self._flush()

    def _due_until(self, due, now_ns):
        for name, state in due.items():
            pace, n, of = state
            while (due_ns := pace.due_ns(n)) <= now_ns - 5_000_000:
                self._operation(name, n, due_ns)
                n += of
            state[1] = n

    def _operation(self, name, n, due_ns):
        line = [name, due_ns, due_ns, due_ns + 5_000_000, "ok", f"key-{n}", f"run.{n}", 200, "", "", None]
        self.emitted[name] += 1
        if n != self.lies.drops:
            self.batch.append(line)
        if n == self.lies.twice:
            self.tell(operations=[line])

    def _flush(self):
        if self.batch:
            batch, self.batch = self.batch, []
            self.tell(operations=batch)
        self.tell(upto=self.now_ns())

    async def _stop(self):
        for task in self.tasks:
            task.cancel()
        at_ns = self.now_ns()
        self._due_until(self.due, at_ns + 5_000_000)  # those in flight, as unknown
        self._flush()
        self.tell(stopped=True, at_ns=at_ns, emitted=dict(self.emitted))

    async def end(self):
        for task in self.tasks:
            task.cancel()
        return 0


class World:
    """One worker's machine."""

    def __init__(self, name, lies, *, ahead_s, delay_s, lease_s, kept_bytes):
        self.name, self.lies, self._ahead_s, self.delay_s = name, lies, ahead_s, delay_s
        self.dead, self.wires, self.dials, self.tasks = False, [], 0, set()
        self._began_s = asyncio.get_running_loop().time()
        self.child = None
        self.worker = Worker(
            self._start, session=f"session-{name}", lease_s=lease_s, now_ns=self.now_ns, link=Link(kept_bytes)
        )
        self.watching = asyncio.create_task(self.worker.watch())

    def now_ns(self):
        now_s = asyncio.get_running_loop().time()
        passed_s = now_s - self._began_s
        jump_s = sum(by for at, by in self.lies.jumps_s if passed_s >= at)
        return round((now_s + self._ahead_s + jump_s + passed_s * self.lies.drift) * 1e9)

    async def _start(self, on_line, on_end):
        self.child = FakeGenerator(self, on_line, on_end)
        return self.child

    def introduction(self):
        return Introduction(self.name, "127.0.0.1", 1, f"session-{self.name}", "", f"host-{self.name}")

    def dial(self):
        if self.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        self.dials += 1
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        to_worker, to_runner = Wire(there, self.delay_s), Wire(here, self.delay_s)
        self.wires = [to_worker, to_runner]
        task = asyncio.create_task(self.worker.serve(there, to_runner))
        self.tasks.add(task)
        return here, to_worker

    def cut(self):
        """The connection drops, with all that is under way."""
        for wire in self.wires:
            wire.cut()

    def die(self):
        self.dead = True
        self.cut()


@dataclass
class Played:
    """What the engine heard, and how it ended."""

    said: list = field(default_factory=list)
    error: Exception | None = None

    @property
    def operations(self):
        return [line for message in self.said for line in message.get("operations", ())]

    def samples(self, signal):
        return [message["sample"] for message in self.said if message.get("sample", [0, ""])[1] == signal]

    def has(self, mark):
        return any(mark in message for message in self.said)


class Fleet:
    """A conductor over workers; `play` does what the engine does in a run."""

    def __init__(self, lies, *, rate="40/s", ahead_s=(), delay_s=0.0005, lease_s=15.0, kept_bytes=1 << 20, loads=None):
        self.played = Played()
        self.worlds = {}
        for number, each in enumerate(lies):
            ahead = ahead_s[number] if ahead_s else 100.0 * (number + 1)
            self.worlds[f"w{number + 1}"] = World(
                f"w{number + 1}", each, ahead_s=ahead, delay_s=delay_s, lease_s=lease_s, kept_bytes=kept_bytes
            )
        write = {"name": "kv", "kind": "consul.kv.write", "params": {"rate": rate}, "profile": None}
        self.spec = {"origin_ns": ORIGIN_NS, "run_id": "run", "entrances": {}, "loads": loads or [write]}
        self.slow_engine_s = 0.0

        async def dial(worker):
            return self.worlds[worker.name].dial()

        self.conductor = Conductor(
            self.spec, [world.introduction() for world in self.worlds.values()], dial, self._say, now_ns=virtual_ns
        )

    async def _say(self, message):
        if self.slow_engine_s:
            await asyncio.sleep(self.slow_engine_s)
        self.played.said.append(message)

    async def until(self, mark, within_s=60.0):
        for _ in range(int(within_s / 0.01)):
            if self.played.has(mark) or self.conducting.done():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not {mark} within {within_s} s")

    async def play(self, seconds, meanwhile=None):
        """Start, offer for so long, stop, read, end. `meanwhile(fleet)` runs once all have started."""
        commands = asyncio.StreamReader()
        self.conducting = asyncio.create_task(self.conductor.conduct(commands))
        try:
            await self.until("ready")
            if meanwhile is not None and not self.conducting.done():
                await meanwhile(self)
            left_s = self.conductor.starts_ns / 1e9 + seconds - (virtual_ns() - ORIGIN_NS) / 1e9
            await asyncio.wait([self.conducting], timeout=max(0.001, left_s))
            commands.feed_data(b"stop\n")
            await self.until("stopped")
            commands.feed_data(b"final_reads\n")
            await self.until("final_reads_done")
        finally:
            commands.feed_eof()
            try:
                await self.conducting
            except BaseExceptionGroup as group:
                self.played.error = group.exceptions[0]
            for world in self.worlds.values():
                if world.dead:
                    world.watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await world.watching
                world.cut()
        return self.played
