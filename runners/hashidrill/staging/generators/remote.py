"""One worker as its runner sees it: a reconnecting connection, its clock, and whether it lives.

CLOCK_MONOTONIC counts from another moment on each machine, and not at quite the same speed. The runner asks a worker
for its time repeatedly: the exchange with the shortest round trip is the most precise, because the answer was made
within it. The offset is known to half of that round trip (RFC 5905, section 8).
"""

import asyncio
import json
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.errors import DatacenterError
from hashidrill.core.util import safe_json
from hashidrill.staging.generators.link import Frame, Frames, Kind, Link, StreamError, json_frame
from hashidrill.staging.generators.secrecy import Identity

WITHIN_NS = 5_000_000
"""How far the clock of a worker may be from the run's, in the worst case."""
WINDOW = 16
"""The number of last exchanges from which the best is chosen."""
SLEW_NS = 100_000
"""The largest correction of a worker's clock at a time: less than any operation lasts."""


class ClockError(DatacenterError):
    """The clock of a worker is not known well enough, or jumped. The run is INVALID."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer: the runner's clock at both ends, the worker's between. Nanoseconds."""

    asked_ns: int
    heard_ns: int
    answered_ns: int
    back_ns: int

    @property
    def offset_ns(self) -> int:
        """The worker's clock minus the runner's, assuming that both directions took equally long."""
        return ((self.heard_ns - self.asked_ns) + (self.answered_ns - self.back_ns)) // 2

    @property
    def round_ns(self) -> int:
        """The time that the question and the answer took on the way."""
        return (self.back_ns - self.asked_ns) - (self.answered_ns - self.heard_ns)


@dataclass(frozen=True, slots=True)
class Offset:
    """The worker's clock minus the runner's: `ns`, give or take `uncertainty_ns`."""

    ns: int
    uncertainty_ns: int


class Exchanges:
    """The last exchanges with one worker, and the offset that they give."""

    def __init__(self, window: int = WINDOW) -> None:
        self._last: deque[Exchange] = deque(maxlen=window)

    def add(self, exchange: Exchange) -> None:
        """Raises ClockError for an impossible one: the worker held the question for longer than the exchange took."""
        if exchange.round_ns < 0 or exchange.answered_ns < exchange.heard_ns:
            raise ClockError(
                f"by its clock it held a question for {(exchange.answered_ns - exchange.heard_ns) / 1e6:.3f} ms,"
                f" of the {(exchange.back_ns - exchange.asked_ns) / 1e6:.3f} ms that passed here: its clock jumped"
            )
        self._last.append(exchange)

    def __len__(self) -> int:
        return len(self._last)

    def clear(self) -> None:
        self._last.clear()

    def offset(self) -> Offset:
        """The offset that the exchange with the shortest round trip gives. Raises ClockError without any."""
        if not self._last:
            raise ClockError("its clock was never read")
        best = min(self._last, key=lambda exchange: exchange.round_ns)
        return Offset(best.offset_ns, -(-best.round_ns // 2))


class Discipline:
    """Keeps the clock of one worker at the run's: `applied_ns` is the offset that the worker uses now."""

    def __init__(self, first: Offset, within_ns: int = WITHIN_NS) -> None:
        """Raises ClockError if the first measurement is too coarse."""
        self._within_ns = within_ns
        if first.uncertainty_ns > within_ns:
            raise ClockError(
                f"its clock is known to {first.uncertainty_ns / 1e6:.1f} ms at best (half of the shortest round trip),"
                f" but must be known to {within_ns / 1e6:g} ms: run from a machine that is nearer to it"
            )
        self.applied_ns = first.ns

    def check(self, offset: Offset) -> None:
        """Raises ClockError if the worker's clock is off by more than is allowed: it was stopped, or jumped."""
        error_ns = offset.ns - self.applied_ns
        if abs(error_ns) - offset.uncertainty_ns > self._within_ns:
            raise ClockError(
                f"its clock jumped: it is {error_ns / 1e6:+.1f} ms from where it was, known to"
                f" {offset.uncertainty_ns / 1e6:.3f} ms; at most {self._within_ns / 1e6:g} ms are allowed"
            )

    def step(self, offset: Offset) -> int:
        """The correction of the worker's clock now, in nanoseconds; 0 while no measurement requires one."""
        error_ns = offset.ns - self.applied_ns
        if abs(error_ns) <= offset.uncertainty_ns:
            return 0
        step_ns = max(-SLEW_NS, min(SLEW_NS, error_ns))
        self.applied_ns += step_ns
        return step_ns


LOST_AFTER_S = 10.0
"""How long a worker may be silent or unreachable: its lease is longer, so it still runs when it is reached again."""
READINGS = 16
"""Exchanges of time before a worker counts as known."""
_QUICK_S, _SLOW_S = 0.01, 0.25
_AGAIN_S = 0.2
_DIAL_WITHIN_S = 5.0
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class Introduction:
    """What a worker says about itself before a connection exists, and its name here."""

    name: str
    address: str
    port: int
    session: str
    certificate: str = field(repr=False)
    on: str = ""
    """The host, as its scheduler calls it."""

    def __str__(self) -> str:
        return f"worker {self.name}" + (f" on {self.on}" if self.on else "")


class LostError(DatacenterError):
    """A worker has ended, fell silent, or failed: its operations are missing. The run is INVALID."""

    def __init__(self, worker: Introduction, why: str) -> None:
        super().__init__(f"{worker}: {why}")
        self.worker = worker


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[Introduction], Awaitable[Streams]]
OnLine = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Takes the worker's name and its generator's output. The stream waits for it."""


class Remote:
    """`run` keeps the connection; `say` and `start` reach the worker now or once it is connected again."""

    def __init__(
        self,
        worker: Introduction,
        dial: Dial,
        on_line: OnLine,
        *,
        lost_after_s: float = LOST_AFTER_S,
        within_ns: int = WITHIN_NS,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.worker = worker
        self._dial = dial
        self._on_line = on_line
        self._lost_after_s = lost_after_s
        self._within_ns = within_ns
        self._now_ns = now_ns
        self._link = Link()
        self._writer: asyncio.StreamWriter | None = None
        self._heard_ns = now_ns()
        self._readings = 0
        self._exchanges = Exchanges()
        self._origin_ns = 0
        self.discipline: Discipline | None = None
        self.known = asyncio.Event()
        """Whether its clock is known."""
        self.ending = False
        self.drops = 0
        """How often the connection was lost."""

    @property
    def connected(self) -> bool:
        return self._writer is not None

    @property
    def offset(self) -> Offset:
        """The worker's clock minus the runner's, as last measured."""
        return self._exchanges.offset()

    def start(self, spec: dict[str, Any], files: dict[str, str]) -> None:
        """Starts its loads. The run's clock was 0 when this machine's was `origin_ns`; the worker gets the
        corresponding time of its own clock.
        """
        if self.discipline is None:
            raise RuntimeError("its clock is not known")
        self._origin_ns = spec["origin_ns"]
        given = {**spec, "origin_ns": self._origin_ns + self.discipline.applied_ns, "together": True}
        self._send({"start": given, "files": files})

    def say(self, line: str) -> None:
        """Sends a command to its generator."""
        self._send({"say": line})

    def end(self) -> None:
        """Ends its generator, and the worker."""
        self.ending = True
        self._send({"end": True})

    def _send(self, message: dict[str, Any]) -> None:
        frame = self._link.send(json.dumps(message).encode())
        if self._writer is not None:
            self._writer.write(frame)

    async def run(self) -> None:
        """Runs until the worker has reported its end after `end`. Raises LostError, StreamError, ClockError."""
        self._heard_ns = self._now_ns()
        while True:
            why = await self._one_connection()
            if not why:
                return
            self.drops += 1
            away_s = (self._now_ns() - self._heard_ns) / 1e9
            if away_s > self._lost_after_s:
                if self.ending:  # all that counts was reported before
                    return
                raise LostError(self.worker, f"nothing was heard from it for {away_s:.1f}s: {why}")
            await asyncio.sleep(_AGAIN_S)

    async def _one_connection(self) -> str:
        """Why the connection was lost; "" when the worker has ended as requested."""
        try:
            async with asyncio.timeout(_DIAL_WITHIN_S):
                reader, writer = await self._dial(self.worker)
        except TimeoutError:
            return "no connection in time"
        except OSError as error:  # TLS errors are OSErrors too
            return f"no connection: {error.strerror or error}"
        asking = asyncio.create_task(self._ask_time(writer))
        try:
            writer.write(json_frame(Kind.HELLO, session=self.worker.session, received=self._link.received))
            return await self._converse(reader, writer)
        except OSError as error:
            return f"the connection was lost: {error.strerror or error}"
        finally:
            asking.cancel()
            self._writer = None
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        frames = Frames()
        while True:
            try:
                # its silence counts, not the time that reading took
                async with asyncio.timeout(self._lost_after_s):
                    data = await reader.read(_READ_BYTES)
            except TimeoutError:
                raise LostError(self.worker, f"it was silent for {self._lost_after_s:g}s") from None
            if not data:
                return "it closed the connection"
            self._heard_ns = self._now_ns()
            for frame in frames.fed(data):
                if await self._hear(frame, writer):
                    return ""
            writer.write(self._link.acknowledgement())

    async def _hear(self, frame: Frame, writer: asyncio.StreamWriter) -> bool:
        """Takes one frame; returns whether the worker has ended."""
        match frame.kind:
            case Kind.PONG:
                self._time(frame.json())
                writer.write(self._link.acknowledgement(now=True))
            case Kind.HELLO:
                hello = frame.json()
                if hello.get("session") != self.worker.session:
                    raise StreamError(f"{self.worker}: another process answers at its address")
                for again in self._link.resumed(int(hello.get("received", 0))):
                    writer.write(again)
                self._writer = writer
            case Kind.ACKNOWLEDGE:
                self._link.acknowledged(frame.number)
            case Kind.MESSAGE:
                payload = self._take(frame)
                if payload is not None:
                    return await self._said(payload, writer)
            case Kind.PING:
                pass
        return False

    def _take(self, frame: Frame) -> bytes | None:
        try:
            return self._link.take(frame)
        except StreamError as error:
            raise StreamError(f"{self.worker}: {error}") from None

    async def _said(self, payload: bytes, writer: asyncio.StreamWriter) -> bool:
        line = safe_json.parse(payload)
        if not isinstance(line, dict):
            raise StreamError(f"{self.worker}: it sent something other than a generator's message")
        if "exited" in line:
            if self.ending:
                writer.write(self._link.acknowledgement(now=True))
                return True
            said = f"its generator exited with {line['exited']} {line.get('said', '')}".rstrip()
            raise LostError(self.worker, said)
        if "error" in line and "final_reads_failed" not in line:
            raise LostError(self.worker, str(line["error"]))
        await self._on_line(self.worker.name, line)
        return False

    async def _ask_time(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(json_frame(Kind.PING, asked=self._now_ns()))
            await asyncio.sleep(_QUICK_S if self._readings < READINGS else _SLOW_S)

    def _time(self, pong: dict[str, Any]) -> None:
        try:
            self._timed(pong)
        except ClockError as error:
            raise ClockError(f"{self.worker}: {error}") from None

    def _timed(self, pong: dict[str, Any]) -> None:
        exchange = Exchange(int(pong["asked"]), int(pong["heard"]), int(pong["answered"]), self._now_ns())
        self._exchanges.add(exchange)
        self._readings += 1
        if self.discipline is None:
            if self._readings >= READINGS:
                self.discipline = Discipline(self._exchanges.offset(), self._within_ns)
                self.known.set()
            return
        self.discipline.check(Offset(exchange.offset_ns, -(-exchange.round_ns // 2)))
        if self._origin_ns and self.discipline.step(self._exchanges.offset()):
            self.say(f"clock {self._origin_ns + self.discipline.applied_ns}")


_LIMIT_BYTES = 1 << 20


def dialed_by(identity: Identity) -> Dial:
    """Connects as that runner. Connecting raises OSError (ssl.SSLError is one)."""
    contexts: dict[str, ssl.SSLContext] = {}

    async def dial(worker: Introduction) -> Streams:
        if worker.name not in contexts:
            contexts[worker.name] = identity.runner_side(worker.certificate)
        return await asyncio.open_connection(
            worker.address, worker.port, ssl=contexts[worker.name], server_hostname="hashidrill", limit=_LIMIT_BYTES
        )

    return dial
