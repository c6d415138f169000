"""The tap's port: open, or shut so that the kernel refuses connections, which are then counted by their SYNs.

A port that is bound and not listened on answers SYN with RST: what a client sees is a real ECONNREFUSED. No socket of
ours ever hears of it, hence the packet socket (packet(7), needs CAP_NET_RAW) with a filter for SYNs to this port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
from collections.abc import Awaitable, Callable

from hashidrill.errors import FaultError

_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER = 26
_SNAP_BYTES = 64


class Door:
    """One bound port of `host`. `port` 0 takes a free one."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host, self.port = host, port
        self.socket = socket.socket()
        self._server: asyncio.Server | None = None
        self._watcher: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Raises FaultError for an address that cannot be had."""
        # the port stays ours while the socket is closed and made again
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((self.host, self.port))
        except OSError as error:
            raise FaultError(f"the tap cannot listen on {self.host}:{self.port}: {error.strerror}") from None
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]

    async def open(self, listen: Callable[[], Awaitable[asyncio.Server]]) -> None:
        """Listen, if it does not yet."""
        self._unwatch()
        if self._server is None:
            self._server = await listen()

    async def shut(
        self,
        refused: Callable[[], None],
        listen: Callable[[], Awaitable[asyncio.Server]],
        *,
        count: float = float("inf"),
        seconds: float | None = None,
    ) -> None:
        """Refuse connections, `count` of them or for so many seconds; then open. `refused` is called at each.

        Raises FaultError without the right to see packets: an attempt that nobody counts proves nothing.
        """
        self._unwatch()
        if self._server is not None:
            self._server.close()
            self._server = None
            self.socket = socket.socket()
            self.bind()
        self._watcher = _syn_watcher(self.port)
        loop = asyncio.get_running_loop()
        seen = 0

        def look() -> None:
            nonlocal seen
            while self._watcher is not None:
                try:
                    self._watcher.recv(_SNAP_BYTES)
                except BlockingIOError:
                    return
                seen += 1
                refused()
                if seen >= count:
                    self._opening = loop.create_task(self.open(listen))
                    return

        loop.add_reader(self._watcher, look)
        if seconds is not None:
            self._timer = loop.call_later(seconds, lambda: setattr(self, "_opening", loop.create_task(self.open(listen))))

    def close(self) -> None:
        """Idempotent."""
        if self._opening is not None:
            self._opening.cancel()
        self._unwatch()
        if self._server is not None:
            self._server.close()
            self._server = None
        self.socket.close()

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watcher is not None:
            asyncio.get_running_loop().remove_reader(self._watcher)
            self._watcher.close()
            self._watcher = None


def can_count_refusals() -> bool:
    """Whether this process may see packets."""
    with contextlib.suppress(FaultError):
        _syn_watcher(1).close()
        return True
    return False


def _syn_watcher(port: int) -> socket.socket:
    """A packet socket on the loopback device that gets SYNs to that TCP port and nothing else.

    One that asks for a protocol sees what comes in only, so that no packet is seen twice.
    """
    try:
        watcher = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    except PermissionError:
        raise FaultError(
            "connection refused cannot be observed here: counting SYNs needs CAP_NET_RAW; run it as root, or"
            " `setcap cap_net_raw+ep` a Python of your own"
        ) from None
    # struct sock_filter (bpf(2) of old, `tcpdump -d`): load; jump if equal; ... the packet begins with its IP header
    ldb, ldh_at, ldxb, ldb_at, jeq, jset, ret = 0x30, 0x48, 0xB1, 0x50, 0x15, 0x45, 0x06
    program = [
        (ldb, 0, 0, 9), (jeq, 0, 7, socket.IPPROTO_TCP),
        (ldxb, 0, 0, 0),
        (ldh_at, 0, 0, 2), (jeq, 0, 4, port),
        (ldb_at, 0, 0, 13), (jset, 2, 0, 0x10), (jset, 0, 1, 0x02),  # not ACK, but SYN
        (ret, 0, 0, _SNAP_BYTES), (ret, 0, 0, 0),
    ]  # fmt: skip
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    watcher.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(buffer))
    )
    watcher.setblocking(False)
    watcher.bind(("lo", _ETH_P_IP))
    return watcher
