"""The load generator's process: offers the loads in its own event loop, so that nothing the engine does delays them.

The engine starts it as `python -m hashidrill.core.loads.in_generator`, and both exchange JSON lines
(engine.load_generator).

    stdin   the specification, on one line; then `begin T_NS` (the method began: profiles count from there), `level LOAD
            LEVEL T_NS` (of a ramp that the engine steers), `hold T_NS` and `go T_NS` (in between, the method's clock
            stands still), `stop` and `final_reads`. The end of stdin means: stop and exit.
    stdout  {"ready": true}, {"operations": [[...], ...]}, {"waiting": {LOAD: [[DUE_NS, ...], [DUE_NS, ...]]}} (newly
            in flight for long, and ended), {"sample": [...]}, {"stopped": true, "at_ns": T_NS, "emitted":
            {LOAD: OPERATIONS}}, {"final_reads": LOAD, "values": {...}}, {"final_reads_failed": LOAD, "error": "..."},
            {"final_reads_done": true}, {"error": "..."}

If several generators share the loads (`together` in the specification; hashidrill.staging.generators), each offers its
share of each load, and also obeys `start T_NS` (operation 0 of all loads is due then), `clock ORIGIN_NS` (this
machine's clock when the run's clock was 0), `reached LOAD N`, `reads` and `clean_up`. It writes {"prepared": true} and
waits for `start`; {"upto": T_NS} means that it has reported every operation that ended by then; at the end it writes
{"reads_done": true} and {"cleaned": true}.

SIGTERM stops the loads, reports what was in flight, and ends the process.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import inspect
import json
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import uvloop

from hashidrill.core.errors import NOT_A_REPLY, DatacenterError, HashidrillError
from hashidrill.core.experiment.load_levels import Course, Piece, Profile, Share
from hashidrill.core.experiment.model import ATTEMPTS
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import opened
from hashidrill.core.loads.schedule import CpuMeter, LagMeter, Waiting, packed
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import CleansUp, HearsTotal, Load, Operation, Prepares, ReadsBack
from hashidrill.core.recording.journal import Clock
from hashidrill.core.util.processes import ahead
from hashidrill.core.util.wait import first_cause

T = TypeVar("T")
BATCH_S = 0.05
SAMPLE_S = 1.0
LINE_OPERATIONS = 500
_JSON = json.JSONEncoder(separators=(",", ":"))
_PR_SET_PDEATHSIG = 1
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1 << 20


class Outbox:
    """Collects operations and writes them in batches. Never blocks: a slow reader must not delay the schedule."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._operations: list[Operation] = []
        self.emitted: Counter[str] = Counter()

    def operation(self, op: Operation) -> None:
        self._operations.append(op)

    def flush(self) -> None:
        batch, self._operations = self._operations, []
        self.emitted.update(op.load for op in batch)
        for part in _parts(map(packed, batch)):
            self.message(operations=part)

    def message(self, **fields: Any) -> None:
        self._transport.write(_JSON.encode(fields).encode() + b"\n")


class Generator:
    """The loads of one specification, and the engine's commands to them."""

    def __init__(self, spec: dict[str, Any], outbox: Outbox) -> None:
        self._outbox = outbox
        self._lag = LagMeter()
        self._cpu = CpuMeter()
        self._clock = Clock(spec["origin_ns"])
        self._entrances = opened(spec.get("entrances", {}))
        self._courses = {load["name"]: _course(load) for load in spec["loads"]}
        self._waiting = {name: Waiting() for load in spec["loads"] for name in _measured(load)}
        self._loads = {load["name"]: self._load(spec["run_id"], load) for load in spec["loads"]}
        # tasks that only one of several generators does for a shared load
        self._ours = {name: load for name, load in self._loads.items() if self._courses[name].share.first}
        self._together = bool(spec.get("together"))
        self._agreed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running: asyncio.Task[None] | None = None
        self.stopped_ns = 0
        """When the loads were stopped, on the run's clock."""
        self._clean = False

    def _load(self, run_id: str, load: dict[str, Any]) -> Load:
        kind = _clients() if load["kind"] == registry.CLIENT else registry.load(load["kind"])
        context = LoadContext(
            endpoints=load["endpoints"],
            clock=self._clock,
            local_address=load["local_address"],
            run_id=run_id,
            lag=self._lag,
            cpu=self._cpu,
            waiting=self._waiting[load["name"]],
            attempts_waiting=self._waiting[_measured(load)[-1]],
            course=self._courses[load["name"]],
            control=load["control"],
            namespace=load["namespace"],
            access=load["access"],
            others=load["others"],
            entrances=self._entrances,
            emit_sample=lambda what, value, text: self._sample(f"{load['name']}.{what}", value, text),
        )
        built: Load = kind(load["name"], kind.Params.model_validate(load["params"]), context)
        return built

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        """Begins in the background; `on_failure` gets the error if the loads end by themselves."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (failure := task.exception()) is not None:
                on_failure(failure)

        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(ended)

    def begin(self, t_ns: int) -> None:
        """The method began at `t_ns` of the run's clock."""
        for course in self._courses.values():
            course.begin(t_ns)

    def level(self, load: str, level: float, t_ns: int) -> None:
        """The level of one load from `t_ns` on."""
        self._courses[load].set(t_ns, level)

    def hold(self, t_ns: int) -> None:
        """Freezes all levels from `t_ns` on, except those that the engine steers."""
        for course in self._courses.values():
            course.hold(t_ns)

    def go(self, t_ns: int) -> None:
        """Ends a `hold`: all later changes of the profiles are delayed by the length of the hold."""
        for course in self._courses.values():
            course.go(t_ns)

    def agree(self, t_ns: int) -> None:
        """All generators start at `t_ns` of the run's clock."""
        if not self._agreed.done():
            self._agreed.set_result(t_ns)

    def set_clock(self, origin_ns: int) -> None:
        """The run's clock was 0 when the clock of this machine was `origin_ns`."""
        self._clock.origin_ns = origin_ns

    def reached(self, load: str, n: int) -> None:
        """All generators together offered n operations of that load."""
        if isinstance(one := self._ours.get(load), HearsTotal):
            one.reached(n)

    async def _start_together(self) -> None:
        self._outbox.message(prepared=True)
        start_ns = await self._agreed
        for course in self._courses.values():
            course.start_ns = start_ns
        while (left_ns := start_ns - self._clock.now_ns()) > 0:  # noqa: ASYNC110 - waits for a time, not for an event
            await asyncio.sleep(left_ns / 1e9)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for load in self._ours.values():
                if isinstance(load, Prepares):
                    tasks.create_task(load.prepare())
        # these objects live to the end: the garbage collector can skip them during a run
        gc.freeze()
        if self._together:
            await self._start_together()
        self._outbox.message(ready=True)
        async with asyncio.TaskGroup() as tasks:
            for name, load in self._loads.items():
                tasks.create_task(self._offer(name, load))
            tasks.create_task(self._report())

    async def _offer(self, name: str, load: Load) -> None:
        """Raises DatacenterError that names the load and its line if the load's code raised an error."""
        try:
            await load.run(self._outbox.operation)
        except Exception as error:
            cause = first_cause(error)
            if isinstance(cause, HashidrillError):
                raise
            frames = traceback.extract_tb(cause.__traceback__)
            own = [frame for frame in frames if frame.filename == inspect.getfile(type(load))] or frames
            raise DatacenterError(
                f"load {name}: {type(cause).__name__} at {own[-1].filename}:{own[-1].lineno}"
                f"{f': {cause}' if str(cause) else ''}; {NOT_A_REPLY}"
            ) from error

    async def _report(self) -> None:
        """Flushes operations every `BATCH_S`, and samples the generator itself every `SAMPLE_S`."""
        sampled_ns, cpu_s = time.monotonic_ns(), time.process_time()
        due_ns = sampled_ns
        pieces: dict[str, Piece] = {}
        while True:
            due_ns += int(BATCH_S * 1e9)
            await asyncio.sleep(max(0.001, (due_ns - time.monotonic_ns()) / 1e9))
            now_ns = time.monotonic_ns()
            # a load with one operation a minute cannot show its lag: this loop's lag is used instead
            self._lag.note(now_ns - due_ns)
            due_ns = max(due_ns, now_ns - int(BATCH_S * 1e9))
            self._flush()
            self._sample_levels(pieces)
            if now_ns - sampled_ns >= SAMPLE_S * 1e9:
                cores = (time.process_time() - cpu_s) / ((now_ns - sampled_ns) / 1e9)
                self._sample("generator.cpu", cores)
                self._sample("generator.lag", self._lag.take_s())
                sampled_ns, cpu_s = now_ns, time.process_time()
                pieces.clear()

    def _flush(self) -> None:
        """Reports the operations that ended and that wait: one that ends leaves the waiting ones in the same batch."""
        self._outbox.flush()
        taken = {load: waiting.take(self._clock.now_ns()) for load, waiting in self._waiting.items()}
        if said := {load: lists for load, lists in taken.items() if any(lists)}:
            self._outbox.message(waiting=said)
        if self._together:
            self._outbox.message(upto=self._clock.now_ns())

    def _sample_levels(self, known: dict[str, Piece]) -> None:
        """Samples the level of each load whose profile is at another piece than in `known`."""
        now_ns = self._clock.now_ns()
        for load, course in self._courses.items():
            piece = course.piece(now_ns)
            if known.get(load) != piece:
                known[load] = piece
                self._sample(f"{load}.level", piece.at(now_ns))

    def _sample(self, signal_name: str, value: float | None, text: str = "") -> None:
        self._outbox.message(sample=[self._clock.now_ns(), signal_name, value, text])

    async def stop(self) -> None:
        """Idempotent. Every operation has been written when this returns."""
        running, self._running = self._running, None
        if running is not None:
            self.stopped_ns = self._clock.now_ns()
            running.cancel()
            await asyncio.wait([running])
        self._flush()

    async def reads(self) -> None:
        """Reports each load's final reads, or the reason why they failed. Then the loads' data may be removed."""
        for name, load in self._ours.items():
            try:
                values = await load.final_reads() if isinstance(load, ReadsBack) else {}
            except HashidrillError as error:
                self._outbox.message(final_reads_failed=name, error=str(error))
                continue
            for part in _parts(values.items()):
                self._outbox.message(final_reads=name, values=dict(part))

    async def clean_up(self) -> None:
        """Removes the loads' data. Idempotent. Call it after the final reads, whose result it would change."""
        if self._clean:
            return
        self._clean = True
        async with asyncio.TaskGroup() as tasks:
            for load in self._ours.values():
                if isinstance(load, CleansUp):
                    tasks.create_task(load.clean_up())


def _clients() -> Any:
    from hashidrill.core.loads.clients import ClientLoad  # noqa: PLC0415 - few runs have clients and need taps

    return ClientLoad


def _measured(load: dict[str, Any]) -> list[str]:
    """The names under which a load's operations are recorded: its own and, for a client, that of its attempts."""
    return [load["name"], load["name"] + ATTEMPTS] if load["kind"] == registry.CLIENT else [load["name"]]


def _course(load: dict[str, Any]) -> Course:
    profile, share = load["profile"], Share(*load.get("share", ()))
    return Course(() if profile is None else Profile.model_validate(profile).pieces(), share)


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, LINE_OPERATIONS)):
        yield part


class _Flow(asyncio.BaseProtocol):
    """Notices when all output has been sent, or when the reader is gone."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.closed = asyncio.Event()
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it was lost
        self.closed.set()
        self._on_lost()


async def serve() -> int:
    """Obeys stdin until it ends, SIGTERM comes, or stdout is closed; returns the exit code."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin.buffer)
    transport, flow = await loop.connect_write_pipe(lambda: _Flow(commands.feed_eof), sys.stdout.buffer)
    loop.add_signal_handler(signal.SIGTERM, commands.feed_eof)
    outbox = Outbox(transport)
    try:
        await _obey(commands, outbox)
    except Exception as error:  # noqa: BLE001 - the engine gets any error that ended the loads
        outbox.message(error=_reason(error))
        return 1
    else:
        return 0
    finally:
        transport.close()
        await flow.closed.wait()


async def _obey(commands: asyncio.StreamReader, outbox: Outbox) -> None:
    generator = Generator(json.loads(await commands.readline()), outbox)
    # on failure, the reader raises the error that ended the loads in the loop below
    generator.start(on_failure=lambda failure: commands.set_exception(_as_exception(failure)))
    try:
        while command := (await commands.readline()).strip():
            match command.decode().split():
                case [word] if word in _ASKED:
                    await _ASKED[word](generator, outbox)
                case [word, t_ns] if word in _TIMES:
                    _TIMES[word](generator, int(t_ns))
                case ["level", load, level, t_ns]:
                    generator.level(load, float(level), int(t_ns))
                case ["reached", load, n]:
                    generator.reached(load, int(n))
                case _:
                    raise ValueError(f"unknown command {command!r}")
    finally:
        await generator.stop()
        await generator.clean_up()


async def _stop(generator: Generator, outbox: Outbox) -> None:
    await generator.stop()
    outbox.message(stopped=True, at_ns=generator.stopped_ns, emitted=dict(outbox.emitted))


async def _final_reads(generator: Generator, outbox: Outbox) -> None:
    await generator.reads()
    await generator.clean_up()
    outbox.message(final_reads_done=True)


async def _reads(generator: Generator, outbox: Outbox) -> None:
    await generator.reads()
    outbox.message(reads_done=True)


async def _clean_up(generator: Generator, outbox: Outbox) -> None:
    await generator.clean_up()
    outbox.message(cleaned=True)


_ASKED = {"stop": _stop, "final_reads": _final_reads, "reads": _reads, "clean_up": _clean_up}
_TIMES = {
    "begin": Generator.begin,
    "hold": Generator.hold,
    "go": Generator.go,
    "start": Generator.agree,
    "clock": Generator.set_clock,
}


def _as_exception(failure: BaseException) -> Exception:
    return failure if isinstance(failure, Exception) else RuntimeError(repr(failure))


def _reason(error: BaseException) -> str:
    cause = first_cause(error)
    return str(cause) if isinstance(cause, HashidrillError) else f"{type(cause).__name__}: {cause}"


def _settle_in() -> None:
    """Ends with the parent; leaves Ctrl-C to the parent; allows many open files; enlarges the pipe for slow readers."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(OSError):  # an unprivileged user may exceed its quota of pipe memory
        fcntl.fcntl(sys.stdout.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)


def main() -> int:
    """Runs the generator. Returns the exit code: 0, or 1 if the loads ended by themselves."""
    _settle_in()
    ahead()
    return uvloop.run(serve())


if __name__ == "__main__":
    sys.exit(main())
