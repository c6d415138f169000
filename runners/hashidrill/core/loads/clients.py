"""Real clients as loads: any command that reaches the datacenter's agents through a tap.

A command with a rate runs again and again. Each run is one operation and has its own tap, which shows the operation
that each attempt belongs to. A service runs all the time behind one tap, and may report its operations
(service_clients). Attempts become operations of the load `CLIENT.attempts` (attempts).

One list of faults applies to all taps of a client. The list changes over a Unix socket, one JSON object a line:

    {"op": "fail", "id": "0-tap.fail-careful", "fault": "503", "share": 0.3, "seed": 7}
    {"op": "pass", "id": "0-tap.fail-careful"}
    {"op": "observe"}       -> {"url": "http://10.73.0.2:41000"}: a tap like the command's, that records nothing
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import pwd
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hashidrill.core.errors import DatacenterError, HashidrillError, UsageError
from hashidrill.core.experiment.model import ClientSpec
from hashidrill.core.loads import service_clients
from hashidrill.core.loads.attempts import to_operation
from hashidrill.core.loads.base import BaseLoad
from hashidrill.core.loads.schedule import OpenLoop, Reply
from hashidrill.core.protocols.abc import Operation, Reason
from hashidrill.core.protocols.registry import CLIENT
from hashidrill.core.tap.attempts import header_in
from hashidrill.core.tap.command import CommandError, Ended, pointed_at, run, unrunnable
from hashidrill.core.tap.plans import Moment, WithProbability
from hashidrill.core.tap.tap import Tap
from hashidrill.core.tap.upstream import HttpUpstream, Link, Scripted, Upstream
from hashidrill.core.util.commands import tool
from hashidrill.core.util.enter import entering
from hashidrill.core.util.processes import is_machine_root
from hashidrill.core.util.safe_json import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from hashidrill.core.experiment.documents import Document
    from hashidrill.core.loads.context import LoadContext
    from hashidrill.core.protocols.abc import EmitOperation
    from hashidrill.core.tap.attempts import Attempt


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
    """The plan of all taps of a client: the failures in force, by id. An attempt gets the first fault that applies to
    it.
    """

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
                ended = await service_clients.serve(command, environment, self._reported)
            error = f"{service_clients.ENDED}: {_said(ended)}"
            now_ns = self.context.clock.now_ns()
            self._emit(
                Operation(
                    self.name, began_ns, began_ns, now_ns, "fail", self.name, error=error, reason=Reason.SERVICE_ENDED
                )
            )
            await asyncio.sleep(AGAIN_AFTER_S)

    def _reported(self, line: bytes) -> None:
        operation = service_clients.reported(self.name, line, origin_ns=self._origin_ns(), now_ns=time.monotonic_ns())
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
