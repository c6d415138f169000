"""Runs hashidrill's programs on hosts over SSH. Host keys are always checked, and passwords are never requested."""

import contextlib
import getpass
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Literal

import anyio

from hashidrill.core.errors import AttachError, FaultError, UnreachedError
from hashidrill.core.util.extras import extra
from hashidrill.staging.carriers.settings import SshSettings
from hashidrill.staging.carriers.shell import STARTER, handed, program

with extra("ssh", "carriers.ssh"):
    import asyncssh

_CONNECTS_WITHIN_S, _ALIVE_EVERY_S, _ALIVE_MISSES = 10.0, 5.0, 3
_SAID_BYTES = 400
_PORT = 22


class SshSession:
    """One program on a host (hashidrill.staging.carriers.shell.Session)."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], where: str) -> None:
        self._process, self._where = process, where

    async def send(self, line: bytes) -> None:
        try:
            self._process.stdin.write(line)
            await self._process.stdin.drain()
        except (OSError, asyncssh.Error) as error:
            raise FaultError(f"{self._where}: the connection was lost: {error or type(error).__name__}") from None

    async def receive(self) -> bytes:
        try:
            return bytes(await self._process.stdout.readline())
        except (OSError, asyncssh.Error) as error:
            raise FaultError(f"the connection was lost: {error or type(error).__name__}") from None

    async def ended(self) -> str:
        await self._process.wait_closed()
        said = bytes(await self._process.stderr.read()).decode(errors="replace").strip()[-_SAID_BYTES:]
        return explained(self._process.exit_status, said)

    async def close(self) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            self._process.stdin.write_eof()
        await self._process.wait_closed()


def explained(status: int | None, said: str) -> str:
    """Why a program ended, in words, with a remedy."""
    if "sudo:" in said:
        why = said.splitlines()[-1]
        return f"sudo asks for a password or refuses ({why}): allow this user `sudo -n`, or log in as root"
    if status == 127 or "not found" in said:
        return f"python3 is missing there ({said}): install it, or name it in carriers.ssh.python"
    if status is None:
        return "the connection was lost"
    return f"it ended with exit code {status}" + (f": {said.splitlines()[-1]}" if said else "")


class SshShell:
    """One host (hashidrill.staging.carriers.shell.Shell)."""

    renewed_by: Literal["lines"] = "lines"
    changes, carrier = True, ""

    def __init__(
        self,
        connection: asyncssh.SSHClientConnection,
        where: str,
        *,
        python: str,
        root: bool,
        client: str = "",
        connect: Callable[[], Awaitable[asyncssh.SSHClientConnection]] | None = None,
    ) -> None:
        """`connect` makes another connection to the same host, or raises AttachError."""
        self._connection, self.where, self.client, self._connect = connection, where, client, connect
        self._one = anyio.Lock()
        self._command = shlex.join([*([] if root else ["sudo", "-n"]), python, "-c", STARTER])

    def cuts(self, addresses: Collection[str], port: int | None, *, whole: bool) -> str:  # noqa: ARG002 - the protocol's
        """See Shell."""
        if port is None and self.client in addresses:
            return (
                f"it would be cut off from this machine ({self.client}), which is on the other side"
                "; run hashidrill from a machine that is not one of these hosts"
            )
        return ""

    async def hold(self, told: Mapping[str, Any]) -> SshSession:
        """See Shell: a program goes over standard input."""
        return await self.start(program(told))

    async def again(self) -> None:
        """See Shell."""
        async with self._one:  # several programs may find the connection lost at once
            if self._connect is None or not self._connection.is_closed():
                return
            try:
                self._connection = await self._connect()
            except AttachError as error:
                raise FaultError(str(error)) from None

    async def start(self, program: str) -> SshSession:
        """Starts the program, over a new connection if this one is lost. Raises FaultError."""
        await self.again()
        try:
            process = await self._started()
        except (OSError, asyncssh.Error) as error:
            raise FaultError(f"{self.where}: no program could be started: {error or type(error).__name__}") from None
        session = SshSession(process, self.where)
        await session.send(handed(program))
        return session

    async def _started(self) -> asyncssh.SSHClientProcess[bytes]:
        """Retries once if the connection proves lost only now: nothing runs there yet."""
        try:
            return await self._connection.create_process(self._command, encoding=None)
        except (OSError, asyncssh.Error):
            if self._connect is None or not self._connection.is_closed():
                raise
        await self.again()
        return await self._connection.create_process(self._command, encoding=None)


@asynccontextmanager
async def shell(settings: SshSettings, attach_file: str, name: str, address: str) -> AsyncIterator[SshShell]:
    """A connection to that host. Raises AttachError with the problem and a remedy."""
    place, port = settings.place_of(name, address)
    user = settings.user or getpass.getuser()
    where = f"{name} (ssh {user}@{place}:{port})"
    options = _options(settings, attach_file, user)
    async with AsyncExitStack() as stack:
        connect = partial(_connected, stack, where, (place, port), settings.jump or "", options)
        connection = await connect()
        try:
            said = (await connection.run('id -u; echo "$SSH_CONNECTION"', check=False)).stdout
        except (OSError, asyncssh.Error) as error:
            raise UnreachedError(f"{where}: {refused(error, options)}") from None
        user_id, _, client = str(said or "").strip().partition("\n")
        yield SshShell(
            connection,
            where,
            python=settings.python,
            root=user_id == "0",
            client=client.partition(" ")[0],
            connect=connect,
        )


async def _connected(
    stack: AsyncExitStack, where: str, to: tuple[str, int], jump: str, options: dict[str, Any]
) -> asyncssh.SSHClientConnection:
    """A connection that ends with `stack`, through the jump hosts, which get the same options. Raises AttachError."""
    through: asyncssh.SSHClientConnection | None = None
    for hop in jump.split(",") if jump else ():
        user, _, place = hop.strip().rpartition("@")
        host, port = _parted(place)
        own = {**options, "username": user or options["username"]}
        through = await _one(stack, f"{where}: the jump host {hop.strip()}", (host, port), {**own, "tunnel": through})
    return await _one(stack, where, to, {**options, "tunnel": through})


async def _one(
    stack: AsyncExitStack, where: str, to: tuple[str, int], options: dict[str, Any]
) -> asyncssh.SSHClientConnection:
    try:
        connection = await asyncssh.connect(*to, **options)
    except (OSError, asyncssh.ConnectionLost) as error:
        raise UnreachedError(f"{where}: {refused(error, options)}") from None
    except (asyncssh.Error, ValueError) as error:
        raise AttachError(f"{where}: {refused(error, options)}") from None
    return await stack.enter_async_context(connection)


def _parted(place: str) -> tuple[str, int]:
    """(host, port) of HOST, HOST:PORT or [ADDRESS]:PORT."""
    host, _, port = place.rpartition(":")
    if host and port.isdigit() and (":" not in host or host.startswith("[")):
        return host.strip("[]"), int(port)
    return place.strip("[]"), _PORT


def _options(settings: SshSettings, attach_file: str, user: str) -> dict[str, Any]:
    known = settings.file(settings.known_hosts, attach_file)
    if not known.is_file():
        raise AttachError(
            f"{attach_file}: carriers.ssh.known_hosts: {known} is not there: write the hosts' keys into it, "
            "with ssh-keyscan for example, and compare their fingerprints"
        )
    keys: Sequence[Any] = ()
    if settings.key_file is not None:
        file = settings.file(settings.key_file, attach_file)
        try:
            keys = [asyncssh.read_private_key(str(file))]
        except (OSError, asyncssh.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise AttachError(f"{attach_file}: carriers.ssh.key_file: {file} cannot be used: {why}") from None
    return {
        "username": user,
        "known_hosts": str(known),
        "client_keys": keys,
        "config": None,
        "agent_path": (os.environ.get("SSH_AUTH_SOCK") or None) if settings.agent else None,
        "preferred_auth": "publickey",
        "connect_timeout": _CONNECTS_WITHIN_S,
        "login_timeout": _CONNECTS_WITHIN_S,
        "keepalive_interval": _ALIVE_EVERY_S,
        "keepalive_count_max": _ALIVE_MISSES,
    }


def refused(error: Exception, options: dict[str, Any]) -> str:
    """Why there is no connection, in words, with a remedy."""
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            f"its host key is not in {options['known_hosts']}, or differs from it: compare it with the host's "
            "own (/etc/ssh/*.pub) and write it into that file"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        keys = "the key of carriers.ssh.key_file" if options["client_keys"] else "no key of the SSH agent"
        return f"it does not let {options['username']} in: {keys} is {'not ' if options['client_keys'] else ''}accepted"
    if isinstance(error, asyncssh.Error):
        return f"SSH failed: {error.reason}"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECTS_WITHIN_S:g}s; is the address right? carriers.ssh.addresses can set it"
    return f"cannot be reached: {getattr(error, 'strerror', None) or error}"
