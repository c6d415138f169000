"""Runs hashidrill's programs on hosts as Nomad jobs: one for each fault, and one for observers and reverts from notes.

The job of a fault says `ready` and waits for a signal, so a job that Nomad places too late, or twice, applies
nothing. The fault's arguments are handed over by exec before that signal, and are not in the job's specification.
SIGUSR1 to the job's allocation renews, SIGTERM reverts; its log is the output. Observers need answers, so
they run by Nomad's exec (a WebSocket to the client, through a server) in the allocation of the host's other job,
which a signal renews too.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import anyio
import httpx2
from anyio.abc import TaskGroup
from httpx2.websockets import (
    AsyncWebSocketSession,
    HTTPXWSException,
    WebSocketDisconnect,
    WebSocketInvalidTypeReceived,
    WebSocketUpgradeError,
)

from hashidrill.core.errors import AttachError, FaultError, HashidrillError
from hashidrill.core.protocols import registry
from hashidrill.core.util import safe_json
from hashidrill.staging.attach.discovery import Estate, FoundHost
from hashidrill.staging.attach.http import Login, Wire, extensions, why
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.lease import Patience
from hashidrill.staging.carriers.nomad_jobs import ENDED, TASK, Jobs, Node, job_name, job_of, restarting, unfit
from hashidrill.staging.carriers.settings import Carriers, NomadSettings, carrier_rights
from hashidrill.staging.carriers.shell import NOTES, STARTER, Session, Shell, handed, program

Connect = Callable[[str, str], AbstractAsyncContextManager[Shell]]
"""(host, address) -> a shell there. Raises AttachError."""
AWAITED_S = 90.0
"""How long heal waits for a host: a Nomad client returns some seconds after its agent, a machine takes longer."""


@dataclass(frozen=True)
class Reached:
    """`why_not`: by host, why Nomad cannot carry faults there; "" if it can."""

    why_not: Mapping[str, str]
    connect: Connect


Reaching = Callable[..., AbstractAsyncContextManager[Reached]]


@asynccontextmanager
async def by_nomad(
    target: AttachTarget,
    settings: NomadSettings,
    estate: Estate,
    *,
    run: str = "",
    tell: Callable[[str], None] = print,
    tasks: TaskGroup | None = None,
    awaited: Collection[str] = (),
    wired: Callable[..., Wire] = Wire,
    dialled: Callable[[Login], AbstractAsyncContextManager[Dial]] | None = None,
) -> AsyncIterator[Reached]:
    """Raises AttachError if Nomad is not attached, or does not answer. Waits for the hosts that are `awaited`."""
    if "nomad" not in target.logins:
        raise AttachError(f"{target.path}: carriers.nomad: Nomad is not attached; name it under `datacenter`")
    login = target.logins["nomad"]
    async with wired(login) as wire, (dialled or dialler)(login) as dial:
        jobs = Jobs(wire)
        try:
            lacks = await _lacks(wire, login.params.get("namespace", "default"))
            clients = (
                {} if lacks else await _waited_for(jobs, {estate.hosts[name].address: name for name in awaited}, tell)
            )
        except HashidrillError as error:
            raise AttachError(f"{target.path}: carriers.nomad: {error}") from None
        why_not, nodes = {}, {}
        for host in estate.hosts.values():
            why_not[host.name] = lacks or _why_not(host, clients)
            if (one := clients.get(host.address)) is not None:  # its fitness may change by the next look
                nodes[host.name] = Node(one["ID"], one["Name"], one["Datacenter"])
        wanted = Wanted(
            jobs,
            dial,
            settings.python,
            float(settings.lease),
            float(settings.placed_within),
            run,
            [host.address for host in estate.having("nomad", "server")],
            tell,
            tasks,
        )
        yield Reached(why_not, lambda name, _: shell(name, nodes[name], wanted))


async def _lacks(wire: Wire, namespace: str) -> str:
    """The rights that the token lacks; "" if none. Raises HashidrillError."""
    nomad = registry.services()["nomad"]
    rights = carrier_rights(Carriers(nomad=NomadSettings()), namespace)
    lacks = await nomad(nomad.Spec()).lacking(wire, rights)
    return f"the token of Nomad lacks {'; '.join(map(str, lacks))}" if lacks else ""


async def _waited_for(
    jobs: Jobs, names: Mapping[str, str], tell: Callable[[str], None]
) -> dict[str, Mapping[str, Any]]:
    """The clients, once those at these addresses have restarted, or after a while. Raises FaultError."""
    patience = Patience(AWAITED_S, tell)
    while True:
        clients = await _clients(jobs)
        late = [address for address, client in clients.items() if address in names and restarting(client)]
        if not late or not await patience.worth(f"{names[late[0]]}: {unfit(clients[late[0]])}"):
            return clients


async def _clients(jobs: Jobs) -> dict[str, Mapping[str, Any]]:
    """The nodes by address; of several with one address, the latest. Raises FaultError."""
    listed = await jobs.ask("GET", "/v1/nodes", needs="node:read")
    return {str(one["Address"]): one for one in sorted(listed, key=lambda one: int(one["CreateIndex"]))}


def _why_not(host: FoundHost, clients: Mapping[str, Mapping[str, Any]]) -> str:
    client = clients.get(host.address)
    if client is not None:
        return unfit(client)
    other = next((one["Address"] for one in clients.values() if one["Name"] == host.name), "")
    if other:
        return f"Nomad's client {host.name} has the address {other}, but the catalog says {host.address}"
    return f"no client of Nomad has its address {host.address}"


_CONNECTS_WITHIN_S = 10.0
_PIECE = 16384
_ALIVE_EVERY_S = 10.0
_CLOSED_WELL = 1000
"""RFC 6455, 7.4.1."""
_LARGEST_MESSAGE = 1 << 24
"""Bytes."""


class Stream(Protocol):
    """Messages to and from a program: {"stdin": {"data": ...}} and {"stdout": {...}, "exited": true, ...}."""

    async def send(self, message: dict[str, Any]) -> None:
        """Raises FaultError when the connection is gone."""

    async def receive(self) -> dict[str, Any] | None:
        """The next message, None after the last one. Raises FaultError when the connection is gone."""

    async def close(self) -> None:
        """Closes the stream, and ends the program."""


Dial = Callable[[str, Sequence[str]], Awaitable[Stream]]
"""(allocation, command) -> the stream of a program there."""


class SocketStream:
    """One WebSocket (Stream)."""

    def __init__(self, session: AsyncWebSocketSession) -> None:
        self._session = session
        self._lost = ""
        self.over = anyio.Event()
        """Set once the stream is no longer needed."""

    async def send(self, message: dict[str, Any]) -> None:
        try:
            await self._session.send_json(message)
        except Exception as error:  # noqa: BLE001 - httpx2 passes on errors of its parts
            raise FaultError(f"the connection was lost: {error or type(error).__name__}") from None

    async def receive(self) -> dict[str, Any] | None:
        if self._lost:  # the session reports it only once
            raise FaultError(self._lost)
        while True:
            try:
                text = await self._session.receive_text()
            except WebSocketInvalidTypeReceived:
                continue
            except WebSocketDisconnect as closed:
                if closed.code == _CLOSED_WELL:
                    return None
                self._lost = refused(closed.reason or str(closed.code))
                raise FaultError(self._lost) from None
            except (HTTPXWSException, anyio.ClosedResourceError, anyio.EndOfStream) as error:
                self._lost = f"the connection was lost: {error or type(error).__name__}"
                raise FaultError(self._lost) from None
            with contextlib.suppress(ValueError, TypeError):
                return dict(safe_json.parse(text))

    async def close(self) -> None:
        self.over.set()


@asynccontextmanager
async def dialler(login: Login) -> AsyncIterator[Dial]:
    """Opens streams with Nomad's login. The sessions end with the block at the latest."""
    client = httpx2.AsyncClient(
        verify=login.tls.context(),
        trust_env=False,
        headers=dict(login.headers),
        limits=httpx2.Limits(max_connections=None),
        timeout=_CONNECTS_WITHIN_S,
    )
    opened: list[SocketStream] = []

    async def dial(allocation: str, command: Sequence[str]) -> Stream:
        """Raises FaultError with the problem."""
        socket = client.websocket(
            f"{login.address}/v1/client/allocation/{allocation}/exec",
            params={**login.params, "task": TASK, "tty": "false", "command": json.dumps(list(command))},
            max_message_size_bytes=_LARGEST_MESSAGE,
            keepalive_ping_interval_seconds=_ALIVE_EVERY_S,
            keepalive_ping_timeout_seconds=_ALIVE_EVERY_S,
            extensions=extensions(login),
        )
        held = _Held(socket)
        tasks.start_soon(held.run)
        try:
            opened.append(await held.stream())
        except WebSocketUpgradeError as error:
            if error.response.status_code == 403:
                raise FaultError("the token of Nomad lacks alloc-exec or alloc-node-exec") from None
            raise FaultError(f"Nomad's exec is not available: HTTP {error.response.status_code}") from None
        except (httpx2.HTTPError, HTTPXWSException, OSError) as error:
            raise FaultError(f"Nomad's exec is not available: {why(error)[0]}") from None
        return opened[-1]

    try:
        async with client, anyio.create_task_group() as tasks:
            try:
                yield dial
            finally:
                for stream in opened:
                    await stream.close()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


class _Held:
    """Owns a WebSocket in a separate task; other tasks use and close it."""

    def __init__(self, socket: AbstractAsyncContextManager[AsyncWebSocketSession]) -> None:
        self._socket = socket
        self._scope = anyio.CancelScope(shield=True)  # a run that is cancelled reverts over it
        self._settled = anyio.Event()
        self._stream: SocketStream | None = None
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            with self._scope:
                async with self._socket as session:
                    self._stream = SocketStream(session)
                    self._settled.set()
                    await self._stream.over.wait()
        except Exception as error:  # noqa: BLE001 - `stream` raises it; a later one ends the stream, and `receive` raises it
            self._error = error
        finally:
            self._settled.set()

    async def stream(self) -> SocketStream:
        """The stream, once it is open. Raises the error that prevented this; a cancelled wait leaves nothing open."""
        try:
            await self._settled.wait()
        except BaseException:
            self._scope.cancel()
            raise
        if self._stream is None:
            raise self._error or FaultError("the connection was not opened")
        return self._stream


def refused(why: str) -> str:
    """The refusal in words, with a remedy."""
    if "Permission denied" in why:
        return (
            "Nomad allows no exec there: its token lacks alloc-exec or alloc-node-exec, or the client says"
            " `disable_remote_exec = true`"
        )
    return f"the connection was lost: {why or 'Nomad gave no reason'}"


class ExecSession:
    """A program that runs in one of hashidrill's allocations (hashidrill.staging.carriers.shell.Session)."""

    def __init__(self, stream: Stream, where: str) -> None:
        self._stream, self._where = stream, where
        self._rest, self._errors = b"", b""
        self._exit: int | None = None
        self._ended = anyio.Event()

    async def send(self, line: bytes) -> None:
        try:
            for start in range(0, len(line), _PIECE):
                data = base64.b64encode(line[start : start + _PIECE]).decode()
                await self._stream.send({"stdin": {"data": data}})
        except FaultError as error:
            raise FaultError(f"{self._where}: {error}") from None

    async def end_input(self) -> None:
        """Closes its input; before that, Nomad does not report the program's end. Raises FaultError."""
        await self._stream.send({"stdin": {"close": True}})

    async def receive(self) -> bytes:
        try:
            while b"\n" not in self._rest:
                message = await self._stream.receive()
                if message is None or message.get("exited"):
                    self._exit = ((message or {}).get("result") or {}).get("exit_code", 0) if message else None
                    self._ended.set()
                    return b""
                self._rest += _data(message, "stdout")
                self._errors += _data(message, "stderr")
        except FaultError:
            self._ended.set()
            raise
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    async def ended(self) -> str:
        said = self._errors.decode(errors="replace").strip()
        if self._exit is None:
            return "the connection was lost"
        return f"it ended with exit code {self._exit}" + (f": {said.splitlines()[-1]}" if said else "")

    async def close(self) -> None:
        with contextlib.suppress(FaultError):
            await self.end_input()
            with anyio.move_on_after(_CONNECTS_WITHIN_S):
                await self._ended.wait()
        await self._stream.close()


def _data(message: dict[str, Any], of: str) -> bytes:
    try:
        return base64.b64decode((message.get(of) or {}).get("data") or "")
    except (binascii.Error, ValueError, TypeError, AttributeError):
        return b""


Tell = Callable[[str], None]
_RENEWALS = 3
_SOON_S, _LATER_S = 0.3, 1.0
"""Seconds between two looks at a log: while a caller waits, and while a fault is in force."""
_STATUS_EVERY = 3
"""After this many looks at an unchanged log, Nomad is asked about the allocation."""
_ENDS_WITHIN_S = 20.0
_HANDED_WITHIN_S = 10.0
RPC_PORT = 4647


@dataclass(frozen=True)
class Wanted:
    """The settings for running programs on the clients of one datacenter."""

    jobs: Jobs
    dial: Dial
    python: str = "python3"
    lease_s: float = 15.0
    within_s: float = 30.0
    """How long Nomad may take to place a job."""
    run: str = ""
    servers: Collection[str] = field(default_factory=tuple)
    """The addresses of Nomad's servers: a host that is cut off from them gets no renewal."""
    tell: Tell = print
    tasks: TaskGroup | None = None
    """Runs the observers; None if nothing is started."""


class NomadShell:
    """One host (hashidrill.staging.carriers.shell.Shell)."""

    renewed_by: Literal["signal"] = "signal"
    changes, carrier, client = False, "nomad", ""

    def __init__(self, host: str, node: Node, wanted: Wanted) -> None:
        self.where = f"{host} (nomad client {node.name})"
        self._host, self._node, self._wanted = host, node, wanted
        self._holder = ""
        """The allocation of observers; "" before there is one."""
        self._names: list[str] = []
        self._one = anyio.Lock()
        self._over = anyio.Event()

    def cuts(self, addresses: Collection[str], port: int | None, *, whole: bool) -> str:
        """See Shell."""
        if whole and port in {None, RPC_PORT} and not set(self._wanted.servers).isdisjoint(addresses):
            return (
                "it would be cut off from Nomad's servers, whose signals renew this fault: the fault would end with its"
                " lease; carry it over SSH (carriers.ssh)"
            )
        return ""

    async def again(self) -> None:
        """Forgets the observers' allocation if it has ended, so that a new one is made. Raises FaultError."""
        if self._holder:
            status, _ = await self._named(self._wanted.jobs.status(self._holder))
            if status in ENDED:
                self._holder = ""

    async def start(self, program: str) -> Session:
        """Starts the program by exec in the observers' allocation, or in a new one. Raises FaultError."""
        await self.again()
        async with self._one:
            if not self._holder:
                self._holder = await self._held()
        try:
            stream = await self._wanted.dial(self._holder, [self._wanted.python, "-c", STARTER])
        except FaultError as error:
            raise FaultError(f"{self.where}: no program could be started: {error}") from None
        session = ExecSession(stream, self.where)
        await session.send(handed(program))
        return session

    async def hold(self, told: Mapping[str, Any]) -> Session:
        """Starts a separate job. If it raises FaultError, the job applies nothing, even if Nomad places it later."""
        began = anyio.current_time()
        name, allocation = await self._placed(program({**told, "args": {}, "handed": True}), told["args"])
        return JobSession(self._wanted, self.where, name, allocation, began_s=began)

    async def _held(self) -> str:
        name, allocation = await self._placed(program({"lease_s": self._wanted.lease_s}, NOTES, "keep"))
        session = JobSession(self._wanted, self.where, name, allocation, asks=False)
        if self._wanted.tasks is not None:
            self._wanted.tasks.start_soon(self._keep, session, allocation)
        return allocation

    async def _placed(self, text: str, args: Mapping[str, Any] | None = None) -> tuple[str, str]:
        """(name, allocation) of a running job with its arguments. Raises FaultError and removes the job."""
        wanted = self._wanted
        name = job_name(wanted.run, os.urandom(4).hex())
        job = job_of(name, self._node, text, python=wanted.python, run=wanted.run, host=self._host)
        self._names.append(name)
        try:
            await wanted.jobs.fits(self._node)
            await wanted.jobs.submit(job)
            allocation = await wanted.jobs.placed(name, self._node, within_s=wanted.within_s)
            if args is not None:
                await self._hand(allocation, args)
        except BaseException as error:
            with anyio.CancelScope(shield=True), contextlib.suppress(FaultError):
                await wanted.jobs.purge(name)
            if isinstance(error, FaultError):
                raise FaultError(f"{self.where}: {error}") from None
            raise
        return name, allocation

    async def _hand(self, allocation: str, args: Mapping[str, Any]) -> None:
        session = ExecSession(await self._wanted.dial(allocation, [self._wanted.python, "-c", STARTER]), self.where)
        said = b""
        try:
            await session.send(handed(program({"args": dict(args)}, NOTES, "hand_over")))
            await session.end_input()
            with anyio.move_on_after(_HANDED_WITHIN_S):
                said = await session.receive()
                with contextlib.suppress(FaultError):
                    await session.receive()  # `close` waits for the end, which is seen only by reading
        finally:
            await session.close()
        answer = safe_json.parse(said) if said else {"why": await session.ended()}
        if answer.get("event") != "handed":
            raise FaultError(f"the fault's arguments could not be handed to its job: {answer.get('why', answer)}")

    async def _named(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except FaultError as error:
            raise FaultError(f"{self.where}: {error}") from None

    async def _keep(self, session: JobSession, allocation: str) -> None:
        """Renews the holder until the shell closes, even in a cancelled run, whose reverts may need it."""
        with anyio.CancelScope(shield=True):
            while not self._over.is_set() and self._holder == allocation:
                if await self._listens(allocation):  # before it listens, a signal would end it
                    break
                await anyio.sleep(_SOON_S)
            while not self._over.is_set() and self._holder == allocation:
                with contextlib.suppress(FaultError):
                    await session.send(b'{"renew": 1}')
                with anyio.move_on_after(self._wanted.lease_s / _RENEWALS):
                    await self._over.wait()

    async def _listens(self, allocation: str) -> bool:
        with contextlib.suppress(FaultError):
            return b'"ready"' in await self._wanted.jobs.log(allocation, 0)
        return False

    async def close(self) -> None:
        """Removes each job of this shell; if that fails, each ends by itself, and heal removes it."""
        self._over.set()
        with anyio.CancelScope(shield=True):
            for name in self._names:
                with contextlib.suppress(FaultError):
                    await self._wanted.jobs.purge(name)


class JobSession:
    """A fault's program in an allocation of its own (hashidrill.staging.carriers.shell.Session)."""

    def __init__(
        self, wanted: Wanted, where: str, name: str, allocation: str, *, asks: bool = True, began_s: float = 0.0
    ) -> None:
        """`asks`: whether it waits for a first signal; `began_s`: when the job was written, in the loop's time."""
        self._wanted, self._where, self._name, self._allocation = wanted, where, name, allocation
        self._asks, self._began_s = asks, began_s
        self._applied = self._reverting = False
        self._rest, self._read = b"", 0
        self._heard_s = self._told_s = anyio.current_time()
        """When Nomad last answered about its log, and last accepted a signal."""
        self._over = anyio.Event()
        self._how = self._lost = ""

    async def send(self, line: bytes) -> None:
        """Sends the line's request as a signal; after a request to revert, each renewal repeats it."""
        said = safe_json.parse(line)
        if "revert" in said:
            self._reverting = True
        elif "renew" not in said:
            raise FaultError(f"{self._where}: a Nomad job can only be told to renew and to revert")
        await self._signal("SIGTERM" if self._reverting else "SIGUSR1")

    async def _signal(self, name: str) -> None:
        """Raises FaultError once no signal arrived for a whole lease: then its agent reverts by itself."""
        try:
            await self._wanted.jobs.signal(self._allocation, name)
            self._told_s = anyio.current_time()
        except FaultError as error:
            if anyio.current_time() - self._told_s > self._wanted.lease_s:
                self._lost = str(error)
                raise FaultError(f"{self._where}: {error}") from None

    async def receive(self) -> bytes:
        idle = 0
        while True:
            if b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                if not await self._own(line):
                    return line + b"\n"
                continue
            if self._lost:
                self._finish(self._lost)
                raise FaultError(f"the connection was lost: {self._lost}")
            new = await self._new()
            idle = 0 if new else idle + 1
            if new:
                continue
            if idle % _STATUS_EVERY == 0 and await self._ended_there():
                return b""
            await anyio.sleep(_LATER_S if self._applied and not self._reverting else _SOON_S)

    async def _own(self, line: bytes) -> bool:
        """Whether only this class needs the line, which says that the program waits for its signal."""
        if b'"ready"' in line and self._asks:
            await self._signal("SIGUSR1")
            return True
        if b'"applied"' in line:
            self._applied, self._asks = True, False
            took_s = anyio.current_time() - self._began_s
            self._wanted.tell(
                f"{self._where}: the job {self._name} has its fault in force {took_s:.1f}s after it was submitted"
            )
        self._asks = self._asks and b'"event"' not in line
        return False

    async def _new(self) -> bool:
        """Raises FaultError if Nomad did not answer for a whole lease."""
        try:
            found = await self._wanted.jobs.log(self._allocation, self._read)
            self._heard_s = anyio.current_time()
        except FaultError as error:
            if anyio.current_time() - self._heard_s > self._wanted.lease_s:
                self._finish(str(error))
                raise FaultError(f"the connection was lost: {error}") from None
            return False
        self._read += len(found)
        self._rest += found
        return bool(found)

    async def _ended_there(self) -> bool:
        """Whether the allocation has ended and its whole log was read. Signals a waiting program once more."""
        try:
            status, said = await self._wanted.jobs.status(self._allocation)
        except FaultError:
            return False
        if status not in ENDED:
            if self._asks and self._read:
                await self._signal("SIGUSR1")  # the first one was lost
            return False
        if await self._new():
            return False
        self._finish(f"its allocation is {status}: {said}")
        return True

    def _finish(self, how: str) -> None:
        self._how = how
        self._over.set()

    async def ended(self) -> str:
        await self._over.wait()
        return self._how

    async def close(self) -> None:
        """Reverts the fault if it may be in force, and removes the job."""
        if not self._over.is_set():
            self._reverting = True
            with contextlib.suppress(FaultError):
                await self._signal("SIGTERM")
            with anyio.move_on_after(_ENDS_WITHIN_S):
                await self._over.wait()
        with contextlib.suppress(FaultError):
            await self._wanted.jobs.purge(self._name)
        self._finish(self._how or "it was removed")


@asynccontextmanager
async def shell(host: str, node: Node, wanted: Wanted) -> AsyncIterator[NomadShell]:
    """Starts nothing before a request; removes its jobs at the end of the block."""
    one = NomadShell(host, node, wanted)
    try:
        yield one
    finally:
        await one.close()
