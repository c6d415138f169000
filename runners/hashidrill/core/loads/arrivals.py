"""A small HTTP server that receives the health checks of a load, and the times at which each check was due.

For every HTTP check, Consul opens a connection, sends one request and closes it. The server supports only that.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hashidrill.core.protocols.abc import EmitOperation, Operation

_MOST_HEADER_BYTES = 16_384
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Arrivals:
    """The due time and the arrivals of each check: one operation for each arrival, and one for each interval without an
    arrival.

    A check is due one interval after its last arrival: Consul waits that long after the end of a check, and does not
    make up for lost time. The operation's latency is therefore how much longer the interval was. The first arrival only
    sets the due time of the second one and is not an operation, because Consul spreads first checks over an interval.
    A check (also the first one) that is a whole interval late is recorded as failed, and is due again.
    """

    def __init__(self, load: str, interval_ns: int) -> None:
        self._load = load
        self._interval_ns = interval_ns
        self._due_ns: dict[str, int] = {}
        self._first: set[str] = set()
        """Checks that have not arrived yet."""

    def expect(self, check: str, now_ns: int) -> None:
        """Counts the arrivals of a check that was just registered."""
        if check not in self._due_ns:
            self._due_ns[check] = now_ns + self._interval_ns
            self._first.add(check)

    def forget(self, check: str) -> None:
        """Stops counting the arrivals of a check that was deregistered."""
        self._due_ns.pop(check, None)
        self._first.discard(check)

    def arrived(self, check: str, now_ns: int, emit: EmitOperation) -> bool:
        """Notes an arrival. Returns False for an unregistered check."""
        if (due_ns := self._due_ns.get(check)) is None:
            return False
        self._due_ns[check] = now_ns + self._interval_ns
        if check in self._first:
            self._first.remove(check)
        else:
            # The network can make a check arrive slightly early. The operation starts when the check is due: a late
            # check counts as latency, not as the generator's lag.
            due_ns = min(due_ns, now_ns)
            emit(Operation(self._load, due_ns, due_ns, now_ns, "ok", check, status=200))
        return True

    def look(self, now_ns: int, emit: EmitOperation) -> None:
        """Records the checks that did not arrive."""
        for check, due_ns in self._due_ns.items():
            if now_ns >= due_ns + self._interval_ns:
                error = "no check arrived within an interval after it was due"
                emit(Operation(self._load, due_ns, due_ns, now_ns, "fail", check, error=error))
                self._due_ns[check] = due_ns + self._interval_ns


@dataclass
class CheckServer:
    """Answers `GET /CHECK` with 200 if `on_check(CHECK)` is true, otherwise with 404."""

    on_check: Callable[[str], bool]
    port: int = 0
    _server: asyncio.Server | None = None

    async def start(self, address: str) -> None:
        """Listens on a free port of the address, and sets `port` to it. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self.on_check), address, 0, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


class _Connection(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, on_check: Callable[[str], bool]) -> None:
        self._on_check = on_check
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            path = self._head.split(b" ", 2)[1].decode(errors="replace") if self._head.count(b" ") > 1 else ""
            self._transport.write(_ANSWER if self._on_check(path.lstrip("/")) else _NOT_FOUND)
            self._transport.close()
        elif len(self._head) > _MOST_HEADER_BYTES:
            self._transport.abort()
