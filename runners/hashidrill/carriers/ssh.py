"""Programs of ours on hosts over SSH. Hosts' keys are always checked, and no password is ever asked for."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncssh

from hashidrill.carriers.bundle import STARTER, handed
from hashidrill.carriers.settings import SshSettings
from hashidrill.errors import AttachError, FaultError

_CONNECTS_WITHIN_S, _ALIVE_EVERY_S, _ALIVE_MISSES = 10.0, 5.0, 3
_SAID_BYTES = 400


class SshSession:
    """One program on a host (hashidrill.carriers.shell.Session)."""

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
    """Why a program of ours ended, in words of what to do."""
    if "sudo:" in said:
        why = said.splitlines()[-1]
        return f"sudo asks for a password or refuses ({why}): allow this user `sudo -n`, or log in as root"
    if status == 127 or "not found" in said:
        return f"python3 is missing there ({said}): install it, or name it in carriers.ssh.python"
    if status is None:
        return "the connection was lost"
    return f"it ended with exit code {status}" + (f": {said.splitlines()[-1]}" if said else "")


class SshShell:
    """One host (hashidrill.carriers.shell.Shell)."""

    def __init__(
        self, connection: asyncssh.SSHClientConnection, where: str, *, python: str, root: bool, client: str = ""
    ) -> None:
        self._connection, self.where, self.client = connection, where, client
        self._command = shlex.join([*([] if root else ["sudo", "-n"]), python, "-c", STARTER])

    async def start(self, program: str) -> SshSession:
        try:
            process = await self._connection.create_process(self._command, encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise FaultError(f"{self.where}: no program could be started: {error or type(error).__name__}") from None
        session = SshSession(process, self.where)
        await session.send(handed(program))
        return session


@asynccontextmanager
async def shell(settings: SshSettings, attach_file: str, name: str, address: str) -> AsyncIterator[SshShell]:
    """A connection to that host. Raises AttachError with what is wrong and what to do."""
    place, port = settings.place_of(name, address)
    user = settings.user or getpass.getuser()
    where = f"{name} (ssh {user}@{place}:{port})"
    options = _options(settings, attach_file, user)
    try:
        connection = await asyncssh.connect(place, port, **options)
    except (OSError, asyncssh.Error, ValueError) as error:
        raise AttachError(f"{where}: {refused(error, options)}") from None
    async with connection:
        said = (await connection.run('id -u; echo "$SSH_CONNECTION"', check=False)).stdout
        user_id, _, client = str(said or "").strip().partition("\n")
        yield SshShell(
            connection, where, python=settings.python, root=user_id == "0", client=client.partition(" ")[0]
        )  # fmt: skip


def _options(settings: SshSettings, attach_file: str, user: str) -> dict[str, Any]:
    """Raises AttachError for files that cannot be used."""
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
        "username": user, "known_hosts": str(known), "client_keys": keys, "config": None,
        "agent_path": (os.environ.get("SSH_AUTH_SOCK") or None) if settings.agent else None,
        "preferred_auth": "publickey", "tunnel": settings.jump, "connect_timeout": _CONNECTS_WITHIN_S,
        "login_timeout": _CONNECTS_WITHIN_S, "keepalive_interval": _ALIVE_EVERY_S,
        "keepalive_count_max": _ALIVE_MISSES,
    }  # fmt: skip


def refused(error: Exception, options: dict[str, Any]) -> str:
    """Why there is no connection, in words of what to do."""
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            f"its host key is not in {options['known_hosts']}, or is another one than that: compare it with the host's "
            "own (/etc/ssh/*.pub) and write it there"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        keys = "the key of carriers.ssh.key_file" if options["client_keys"] else "no key of the SSH agent"
        return f"it does not let {options['username']} in: {keys} is {'not ' if options['client_keys'] else ''}accepted"
    if isinstance(error, asyncssh.Error):
        return f"SSH failed: {error.reason}"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECTS_WITHIN_S:g}s; is the address right? carriers.ssh.addresses can say another"
    return f"cannot be reached: {getattr(error, 'strerror', None) or error}"
