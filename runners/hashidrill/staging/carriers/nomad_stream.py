"""Programs in an allocation of ours, by Nomad's exec: a WebSocket of JSON messages to its client, through a server."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import Sequence
from typing import Any, Protocol, Self

import aiohttp
import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.util import foreign
from hashidrill.staging.attach.login import Login
from hashidrill.staging.carriers.nomad_jobs import TASK

_CONNECTS_WITHIN_S = 10.0
_PIECE = 16384
_ALIVE_EVERY_S = 10.0


class Stream(Protocol):
    """Messages to and from a program: {"stdin": {"data": ...}} and {"stdout": {...}, "exited": true, ...}."""

    async def send(self, message: dict[str, Any]) -> None:
        """Raises FaultError when the connection is gone."""

    async def receive(self) -> dict[str, Any] | None:
        """The next message, None after the last one. Raises FaultError when the connection is gone."""

    async def close(self) -> None:
        """Ends the program too."""


class Dialler:
    """Opens streams with a login of Nomad's. An async context manager around one HTTP session."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, allocation: str, command: Sequence[str]) -> Stream:
        """Raises FaultError with what is wrong."""
        self._session = self._session or aiohttp.ClientSession(trust_env=False, headers=dict(self._login.headers))
        params = {**self._login.params, "task": TASK, "tty": "false", "command": json.dumps(list(command))}
        secure = self._login.address.startswith("https:")
        try:
            socket = await self._session.ws_connect(
                f"{self._login.address}/v1/client/allocation/{allocation}/exec",
                params=params,
                ssl=self._login.tls.context() if secure else True,
                max_msg_size=0,
                heartbeat=_ALIVE_EVERY_S,
                server_hostname=self._login.tls.server_name or None,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CONNECTS_WITHIN_S),
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            status = getattr(error, "status", None)
            if status == 403:
                raise FaultError("the token of Nomad lacks alloc-exec or alloc-node-exec") from None
            raise FaultError(f"Nomad's exec cannot be had: {error or type(error).__name__}") from None
        return SocketStream(socket)


class SocketStream:
    """One WebSocket (Stream)."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, message: dict[str, Any]) -> None:
        try:
            await self._socket.send_json(message)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise FaultError(f"the connection was lost: {error or type(error).__name__}") from None

    async def receive(self) -> dict[str, Any] | None:
        while True:
            try:
                message = await self._socket.receive()
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                raise FaultError(f"the connection was lost: {error or type(error).__name__}") from None
            if message.type is aiohttp.WSMsgType.TEXT:
                with contextlib.suppress(ValueError, TypeError):
                    return dict(foreign.parse(message.data))
            elif message.type is aiohttp.WSMsgType.CLOSE and message.data != aiohttp.WSCloseCode.OK:
                raise FaultError(refused(str(message.extra or message.data or "")))
            elif message.type is aiohttp.WSMsgType.ERROR:
                raise FaultError(refused(str(message.data)))
            elif message.type not in {aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG}:
                return None

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError, RuntimeError):
            await self._socket.close()


def refused(why: str) -> str:
    """In words of what to do."""
    if "Permission denied" in why:
        return (
            "Nomad allows no exec there: its token lacks alloc-exec or alloc-node-exec, or the client says"
            " `disable_remote_exec = true`"
        )
    return f"the connection was lost: {why or 'Nomad says no more'}"


class ExecSession:
    """A program that runs in an allocation of ours (hashidrill.staging.carriers.shell.Session)."""

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
        """Nothing more is sent: until then Nomad does not tell that the program has ended. Raises FaultError."""
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
