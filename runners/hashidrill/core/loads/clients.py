"""Real clients as loads: any command that reaches the datacenter's agents through a tap.

A command with a rate runs again and again. Each run is one operation and has its own tap, which shows the operation
that each attempt belongs to. Attempts become operations of the load `CLIENT.attempts`: key `METHOD path`, a detail. If
an attempt's operation is known, `Attempt.operation` is the `key` of that operation of the load `CLIENT`.

A service runs all the time behind one tap, and may report its operations. A report is one line on standard output, a
JSON object; other lines are the service's own business.

    {"intended_ns": 100, "start_ns": 120, "end_ns": 950, "ok": true, "key": "orders/7"}

Times are nanoseconds of CLOCK_MONOTONIC (Python: time.monotonic_ns()); `ok` is true, false, or null for an unknown
outcome; `intended_ns` (when the operation was due) and `key` may be left out.

One list of faults applies to all taps of a client. The list changes over a Unix socket, one JSON object a line:

    {"op": "fail", "id": "0-tap.fail-careful", "fault": "503", "share": 0.3, "seed": 7}
    {"op": "pass", "id": "0-tap.fail-careful"}
    {"op": "observe"}       -> {"url": "http://10.73.0.2:41000"}: a tap like the command's, that records nothing
"""

import asyncio
import contextlib
import itertools
import json
import os
import pwd
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hashidrill.core.errors import DatacenterError, HashidrillError, HypothesisInvalidError, UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.model import ATTEMPTS, ClientSpec
from hashidrill.core.loads.base import BaseLoad, LoadContext
from hashidrill.core.loads.schedule import OpenLoop, Reply, detail_as
from hashidrill.core.protocols.abc import Detail, EmitOperation, Operation, Reason
from hashidrill.core.protocols.registry import CLIENT
from hashidrill.core.recording.reader import Operations
from hashidrill.core.tap.attempts import Attempt, header_in
from hashidrill.core.tap.command import CommandError, Ended, pointed_at, run, unrunnable
from hashidrill.core.tap.plans import Moment, WithProbability
from hashidrill.core.tap.tap import Tap
from hashidrill.core.tap.upstream import HttpUpstream, Link, Scripted, Upstream
from hashidrill.core.util.commands import tool
from hashidrill.core.util.enter import entering
from hashidrill.core.util.processes import is_machine_root
from hashidrill.core.util.safe_json import parse

SUFFIX = ATTEMPTS
TABLE = "attempt"
_COLUMNS = {"start_ns", "end_ns", "status"}
_TRUTHS = {field.name for field in fields(Attempt) if str(field.type).startswith("bool")}
"""The boolean fields of an attempt; a database keeps them as 0 and 1."""


def to_operation(client: str, attempt: Attempt, *, origin_ns: int = 0) -> Operation:
    """The operation that records an attempt. `origin_ns`: the tap's clock when the recording's clock is zero."""
    if attempt.fault or not attempt.status:
        outcome = "unknown" if attempt.upstream else "fail"
    else:
        outcome = "ok" if attempt.status < 400 else "fail"
    return Operation(
        load=client + SUFFIX,
        intended_ns=attempt.start_ns - origin_ns,
        start_ns=attempt.start_ns - origin_ns,
        end_ns=attempt.end_ns - origin_ns,
        outcome=outcome,
        key=f"{attempt.method} {attempt.path}",
        status=attempt.status,
        error=attempt.fault,
        reason="" if outcome == "ok" else _reason(attempt),
        detail=Detail(
            TABLE, {each.name: getattr(attempt, each.name) for each in fields(Attempt) if each.name not in _COLUMNS}
        ),
    )


def _reason(attempt: Attempt) -> str:
    if attempt.status >= 400:
        return Reason.REFUSED if attempt.status < 500 else Reason.SERVER_ERROR
    return Reason.NO_ANSWER


def from_operations(operations: Operations) -> list[Attempt]:
    """The attempts behind the operations of a load `CLIENT.attempts`, in order.

    Raises HypothesisInvalidError for operations that are not attempts.
    """
    times = zip(operations.start_ns.tolist(), operations.end_ns.tolist(), operations.status.tolist(), strict=True)
    found = []
    for index, ((start_ns, end_ns, status), detail) in enumerate(zip(times, operations.details, strict=True)):
        try:
            noted = detail_as(dict, detail, TABLE, "client")
            noted |= {name: None if noted[name] is None else bool(noted[name]) for name in _TRUTHS & noted.keys()}
            found.append(Attempt(start_ns=start_ns, end_ns=end_ns, status=status, **noted))
        except (TypeError, ValueError):
            raise HypothesisInvalidError(
                f"operation {index + 1} of this load is not an attempt at a tap: its key is {operations.keys[index]!r};"
                f" name the client, without {SUFFIX}"
            ) from None
    return found


ENDED = "the service ended by itself"
"""The start of the error text of an operation that records the service's end."""
STOP_WITHIN_S = 1.0
_LONGEST_LINE_BYTES = 65536
_READ_BYTES = 65536
_CLOCKS_APART_NS = 1_000_000_000
_OUTCOMES = {True: "ok", False: "fail", None: "unknown"}


async def serve(command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[bytes], None]) -> Ended:
    """Runs the command until it ends. If cancelled, sends SIGTERM and waits 1 s for reports of unfinished operations.

    Leaves no process of the command's process group. Raises UsageError if the command cannot be started, and what
    `on_line` raises.
    """
    start_ns = time.monotonic_ns()
    process = await _start(command, environment)
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the process has no pipes")
    said = _Tail()
    lines = asyncio.create_task(_lines(process.stdout, on_line))
    errors = asyncio.create_task(_lines(process.stderr, said.take))
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({lines, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not lines.done() or lines.exception() is None:  # the process may close its output and continue
            await ended
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await asyncio.wait({lines}, timeout=STOP_WITHIN_S)
        raise
    finally:
        await _end(process)
        # the last output is still in the pipe, which a grandchild may hold open for ever
        await asyncio.wait({lines, errors}, timeout=STOP_WITHIN_S)
        for task in (lines, errors, ended):
            task.cancel()
        left = await asyncio.gather(lines, errors, ended, return_exceptions=True)
    if isinstance(left[0], Exception):
        raise left[0]
    return Ended(process.returncode, "", start_ns, time.monotonic_ns(), said.text)


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{command[0]} cannot be run: {reason}") from None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the rest of the process group that was created with the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), STOP_WITHIN_S)


class _Tail:
    """The last line that was written."""

    def __init__(self) -> None:
        self.text = ""

    def take(self, line: bytes) -> None:
        self.text = line.decode(errors="replace").strip() or self.text


async def _lines(stream: asyncio.StreamReader, on_line: Callable[[bytes], None]) -> None:
    rest = b""
    while data := await stream.read(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line)
        if len(rest) > _LONGEST_LINE_BYTES:  # not a report; without a bound it would fill the memory
            rest = b""


def reported(client: str, line: bytes, *, origin_ns: int, now_ns: int) -> Operation | None:
    """The operation that a line reports; None if the line is not a report.

    `origin_ns` and `now_ns`: the zero of the run's clock, and now, on CLOCK_MONOTONIC. Raises UsageError for an invalid
    report, because its operation would be missing from the recording.
    """
    said = _object(line)
    if said is None or not {"start_ns", "end_ns", "ok"} <= said.keys():
        return None
    start_ns, end_ns = said["start_ns"], said["end_ns"]
    intended_ns = said.get("intended_ns", start_ns)
    times = (intended_ns, start_ns, end_ns)
    if not all(type(t) is int for t in times) or not isinstance(said["ok"], (bool, type(None))):
        raise _wrong(client, line, "the times are whole numbers, and ok is true, false or null")
    texts = said.get("key", ""), said.get("error", "")
    if not all(isinstance(text, (str, int, float)) for text in texts):
        raise _wrong(client, line, "key and error are text")
    if not 0 <= intended_ns <= start_ns <= end_ns:
        raise _wrong(client, line, "intended_ns, start_ns and end_ns must be in this order")
    if end_ns > now_ns + _CLOCKS_APART_NS or intended_ns < origin_ns:
        raise _wrong(client, line, f"times are nanoseconds of CLOCK_MONOTONIC, which shows {now_ns} now")
    return Operation(
        client,
        intended_ns - origin_ns,
        start_ns - origin_ns,
        end_ns - origin_ns,
        _OUTCOMES[said["ok"]],
        key=str(texts[0]),
        error=str(texts[1]),
    )


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.lstrip().startswith(b"{"):
        return None
    with contextlib.suppress(ValueError):
        said = parse(line)
        return said if isinstance(said, dict) else None
    return None


def _wrong(client: str, line: bytes, right: str) -> UsageError:
    shown = line.decode(errors="replace")[:200]
    return UsageError(f"client {client}: its report of an operation is wrong: {right}; the report was {shown}")


def as_invoker(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment that run it as the user who called sudo; unchanged without sudo or setpriv."""
    uid, gid = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    setpriv = tool("setpriv")
    if not (is_machine_root() and uid.isdecimal() and gid.isdecimal() and int(uid) and setpriv):
        return list(command), dict(environment)
    rights = ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    try:
        account = pwd.getpwuid(int(uid))
    except KeyError:
        groups, own = "--clear-groups", {}
    else:
        groups = "--init-groups"
        own = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    start = [setpriv, f"--reuid={uid}", f"--regid={gid}", groups, *rights, "--"]
    return [*start, *command], {**environment, **own}


THIS_PYTHON = "{python}"
AGAIN_AFTER_S = 1.0
_SAID_CHARACTERS = 300


class Faults:
    """The plan of all of a client's taps: the failures in force, by id. The first that applies fails an attempt."""

    def __init__(self) -> None:
        self._plans: dict[str, WithProbability] = {}
        self.faults: Sequence[str] = ()

    def decide(self, moment: Moment) -> str:
        return next((fault for plan in self._plans.values() if (fault := plan.decide(moment))), "")

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Obeys `fail` or `pass`. Raises UsageError for a fault that a tap cannot inject at random, and KeyError."""
        if request["op"] == "fail":
            self._plans[request["id"]] = WithProbability(request["fault"], request["share"], request["seed"])
        elif request["op"] == "pass":
            self._plans.pop(request["id"], None)
        else:
            raise UsageError(f"the tap does not know the request {request['op']!r}")
        self.faults = [plan.fault for plan in self._plans.values()]
        return {}


def check_commands(document: Document, clients: Mapping[str, ClientSpec]) -> None:
    """Raises ExperimentError that locates each command that cannot be run on this machine."""
    for name, client in clients.items():
        program = client.command[0]
        if program != THIS_PYTHON and (reason := unrunnable(program)):
            document.problem(("clients", name, "command", 0), f"{program}: {reason}")
    document.raise_problems()


class _Agents:
    """Agents in rotation, one for each connection to the tap."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._turn = itertools.cycle(upstreams)

    def link(self) -> Link:
        return next(self._turn).link()


class ClientLoad(BaseLoad):
    """A command that runs at a rate, or a service, behind taps. Its parameters are a `ClientSpec`."""

    kind: ClassVar[str] = CLIENT
    Params: ClassVar[type[ClientSpec]] = ClientSpec
    params: ClientSpec

    def __init__(self, name: str, params: ClientSpec, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self.faults = Faults()
        self._open = contextlib.AsyncExitStack()
        self._emit: EmitOperation = lambda _operation: None
        local = context.local_address
        agents = [HttpUpstream(url, local_address=local) for url in context.endpoints]
        self._upstream: Upstream = _Agents(agents) if agents else Scripted()
        self._command = [sys.executable if word == THIS_PYTHON else word for word in params.command]
        self._environment: Mapping[str, str] = os.environ

    @classmethod
    def via(cls, params: ClientSpec) -> str | None:
        return params.agents

    async def prepare(self) -> None:
        """Opens the tap for faults. Raises UsageError for an unusable command, DatacenterError if it cannot listen."""
        if reason := unrunnable(self._command[0]):
            raise UsageError(f"client {self.name}: {self._command[0]}: {reason}")
        self._command, self._environment = as_invoker(self._command, {**os.environ, **self.context.access})
        observed = await self._open.enter_async_context(self._tap())
        if self.context.control is not None:
            await self._listen(self.context.control, observed.url)

    async def run(self, emit: EmitOperation) -> None:
        self._emit = emit
        try:
            await (self._serve() if self.params.service else self._runs(emit))
        finally:
            await self._open.aclose()

    def _tap(self, operation: str = "", on_attempt: Callable[[Attempt], None] | None = None) -> Tap:
        host = self.context.local_address or "127.0.0.1"
        begun = self._begun if on_attempt is not None else None  # probe requests of a fault are not the client's
        said_in = header_in(self._environment)
        return Tap(
            self._upstream,
            self.faults,
            host=host,
            operation=operation,
            said_in=said_in,
            on_attempt=on_attempt,
            on_begin=begun,
        )

    def _begun(self, start_ns: int) -> Callable[[], None]:
        waiting = self.context.attempts_waiting
        return partial(waiting.end, waiting.begin(start_ns - self._origin_ns()))

    def _note(self, attempt: Attempt) -> None:
        self._emit(to_operation(self.name, attempt, origin_ns=self._origin_ns()))

    def _origin_ns(self) -> int:
        """The zero of the run's clock, on CLOCK_MONOTONIC."""
        return time.monotonic_ns() - self.context.clock.now_ns()

    # a command with a rate

    async def _runs(self, emit: EmitOperation) -> None:
        loop = OpenLoop(
            self.name,
            float(self.params.rate or 0),
            lambda n: (f"{self.name}/{n}", ""),
            self._perform,
            self.context.clock,
            lag=self.context.lag,
            waiting=self.context.waiting,
            course=self.context.course,
            max_in_flight=self.params.at_once,
        )
        await loop.run(emit)

    async def _perform(self, _n: int, key: str, _value: str) -> Reply:
        async with self._tap(key, self._note) as tap:
            command, environment = pointed_at(self._command, tap.url, self._environment)
            try:
                ended = await run(command, environment, within_s=self.params.timeout, namespace=self.context.namespace)
            except CommandError as flooding:
                return Reply("unknown", error=str(flooding))
        if ended.ok:
            return Reply("ok")
        outcome = "unknown" if ended.status is None else "fail"
        return Reply(outcome, status=max(0, ended.status or 0), error=_said(ended))

    # a service

    async def _serve(self) -> None:
        while True:
            began_ns = self.context.clock.now_ns()
            async with self._tap(on_attempt=self._note) as tap:
                command, environment = pointed_at(self._command, tap.url, self._environment)
                if self.context.namespace is not None:
                    command = [*entering(network=self.context.namespace), *command]
                ended = await serve(command, environment, self._reported)
            error = f"{ENDED}: {_said(ended)}"
            now_ns = self.context.clock.now_ns()
            self._emit(
                Operation(
                    self.name, began_ns, began_ns, now_ns, "fail", self.name, error=error, reason=Reason.SERVICE_ENDED
                )
            )
            await asyncio.sleep(AGAIN_AFTER_S)

    def _reported(self, line: bytes) -> None:
        operation = reported(self.name, line, origin_ns=self._origin_ns(), now_ns=time.monotonic_ns())
        if operation is not None:
            self._emit(operation)

    # what faults ask for

    async def _listen(self, control: str, url: str) -> None:
        async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError), contextlib.closing(writer):
                while line := await reader.readline():
                    writer.write(json.dumps(self._answer(line, url)).encode() + b"\n")

        try:
            server = await asyncio.start_unix_server(obey, control)
        except (OSError, ValueError) as error:
            raise DatacenterError(f"client {self.name}: its tap cannot listen at {control}: {error}") from None
        self._open.callback(Path(control).unlink, missing_ok=True)
        self._open.callback(server.close)

    def _answer(self, line: bytes, url: str) -> dict[str, Any]:
        try:
            request = parse(line)
            return {"url": url} if request["op"] == "observe" else self.faults.answer(request)
        except (HashidrillError, ValueError, KeyError, TypeError) as error:
            return {"error": str(error) or type(error).__name__}


def _said(ended: Ended) -> str:
    """How the command ended, and the last line of its output."""
    lines = ended.output.splitlines()
    return f"{ended.note}: {lines[-1]}"[:_SAID_CHARACTERS] if lines else ended.note
