"""What canaries exchange over TCP: a number of bytes there, a number of bytes back, then the close.

The side that opened the connection says what it is going to send and what it wants: one line, `UPLOAD DOWNLOAD`.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from typing import Any

_BLOCK = bytes(1 << 16)
_LONGEST_S = 60.0
_LONGEST_GREETING = 64


def serve_exchanges(port: int) -> None:
    """Answer on that port of all addresses, from a thread, for ever. Raises OSError when it cannot be had."""
    listener = socket.create_server(("", port), backlog=64)
    threading.Thread(target=_accept, args=(listener,), name=f"exchanges {port}", daemon=True).start()


def _accept(listener: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):
            connection = listener.accept()[0]
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError), connection:
        connection.settimeout(_LONGEST_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = b""
        while b"\n" not in greeting:
            part = connection.recv(1 << 16)
            if not part or len(greeting.partition(b"\n")[0]) > _LONGEST_GREETING:
                return
            greeting += part
        line, _, rest = greeting.partition(b"\n")
        upload, download = map(int, line.split())
        if _receive(connection, upload - len(rest), None) == upload - len(rest):
            _send(connection, download)


def exchange_all(connections: int, at_once: int, **request: Any) -> list[dict[str, Any]]:
    """Over `connections` connections, `at_once` at a time. Each: {"seconds", "errno", "received"}."""
    results: list[dict[str, Any]] = [{} for _ in range(connections)]
    left = iter(range(connections))

    def run() -> None:
        for number in left:
            results[number] = _exchange(**request)

    threads = [threading.Thread(target=run) for _ in range(min(at_once, connections))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _exchange(
    address: str, port: int, upload: int, download: int, timeout: float, *, until_closed: bool
) -> dict[str, Any]:
    """Seconds count from the first byte sent: a connection that is slow to open is another matter."""
    began, number, received = time.monotonic(), 0, [0]
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.monotonic()
            connection.sendall(b"%d %d\n" % (upload, download))
            _send(connection, upload)
            deadline = began + timeout
            _receive(connection, download, deadline, received)
            if received[0] < download:
                number = errno.ENODATA
            elif until_closed:
                _receive(connection, 1, deadline)
    except TimeoutError:
        number = errno.ETIMEDOUT
    except OSError as error:
        number = error.errno or errno.EIO
    return {"seconds": time.monotonic() - began, "errno": number, "received": received[0]}


def _send(connection: socket.socket, size: int) -> None:
    while size > 0:
        connection.sendall(_BLOCK[: min(size, len(_BLOCK))])
        size -= len(_BLOCK)


def _receive(connection: socket.socket, size: int, deadline: float | None, count: list[int] | None = None) -> int:
    """How many bytes came before the end of the connection; `count[0]` says so too, should it end with an error."""
    count = [0] if count is None else count
    while count[0] < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(size - count[0], len(_BLOCK)))
        if not part:
            break
        count[0] += len(part)
    return count[0]
