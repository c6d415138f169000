"""The tap's port: open, or shut so that the kernel refuses connections, which are then counted by their SYNs.

A port that is bound and not listened on answers SYN with RST: what a client sees is a real ECONNREFUSED. No socket of
ours ever hears of it, so this uses a packet socket (packet(7), needs CAP_NET_RAW) with a filter for SYNs to this port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import time
from collections.abc import Awaitable, Callable

from hashidrill.core.errors import FaultError

_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER = 26
_SO_TIMESTAMPNS = 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SNAP_BYTES = 64
_ANCILLARY_BYTES = 64
BACKLOG = 512


class Door:
    """One bound port of `host`. `port` 0 takes a free one."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host, self.port = host, port
        self.socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._watcher: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Raises FaultError for an address that cannot be had."""
        # asyncio sets TCP_NODELAY only where the protocol is named; else a reply waits for the ACK of the one before
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # connections of an earlier socket on this port may still be closing
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((self.host, self.port))
        except OSError as error:
            made.close()
            raise FaultError(f"the tap cannot listen on {self.host}:{self.port}: {error.strerror}") from None
        made.setblocking(False)
        self.socket, self.port = made, made.getsockname()[1]

    def bound(self) -> socket.socket:
        """The socket, which has to be bound."""
        if self.socket is None:
            raise FaultError("the tap is not open: use it with `async with`")
        return self.socket

    async def open(self, listen: Callable[[], Awaitable[asyncio.Server]]) -> None:
        """Listen, if it does not yet."""
        self._unwatch()
        if self._server is None:
            self._server = await listen()

    async def shut(
        self,
        refused: Callable[[int], None],
        listen: Callable[[], Awaitable[asyncio.Server]],
        *,
        count: float = float("inf"),
        seconds: float | None = None,
    ) -> None:
        """Refuse connections, `count` of them or for `seconds`; then open.

        `refused` is called with the time of each, in ns.

        Raises FaultError without the right to see packets: an attempt that nobody counts proves nothing.
        """
        self._unwatch()
        if self._server is not None:
            self._server.close()
            self._server = None
            self.bind()
        self._watcher = _syn_watcher(self.port)
        watcher, loop = self._watcher, asyncio.get_running_loop()
        seen, listening_ns = 0, 0

        def look() -> None:
            nonlocal seen, listening_ns
            while (stamp_ns := _next_syn_ns(watcher)) is not None:
                # stamps are of the wall clock, which may be set at any time: how old they are is known only now
                at_ns = time.monotonic_ns() - max(0, time.time_ns() - stamp_ns)
                if listening_ns and at_ns > listening_ns:
                    continue  # it was let in
                seen += 1
                refused(at_ns)
            # those for which the kernel had no room: some 270 come in the time for which a busy machine holds us up
            dropped = _dropped(watcher)
            if not listening_ns:
                seen += dropped
                for _ in range(dropped):
                    refused(time.monotonic_ns())
            # what was there was refused, all of it: the kernel's stamps are not to be had for the first packets
            if seen >= count and not listening_ns:
                self.bound().listen(BACKLOG)  # at once, since some clients come back within a millisecond
                listening_ns = time.monotonic_ns()
                self._opening = loop.create_task(self.open(listen))
                look()

        def over() -> None:
            self._opening = loop.create_task(self.open(listen))

        loop.add_reader(watcher, look)
        if seconds is not None:
            self._timer = loop.call_later(seconds, over)

    def accept_no_more(self) -> None:
        """Before `close`: asyncio forgets to close what it has accepted, but not told us of, when its server closes."""
        if self.socket is not None and self.socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.socket)

    def close(self) -> None:
        """Idempotent."""
        if self._opening is not None:
            self._opening.cancel()
        self._unwatch()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self.socket is not None:
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


def _next_syn_ns(watcher: socket.socket) -> int | None:
    """When the kernel saw the next SYN, in ns of the wall clock; None when there is no more."""
    try:
        _, ancillary, _, _ = watcher.recvmsg(_SNAP_BYTES, _ANCILLARY_BYTES)
    except BlockingIOError:
        return None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, rest_ns = struct.unpack("qq", data[:16])
            return int(seconds) * 1_000_000_000 + int(rest_ns)
    return time.time_ns()


def _dropped(watcher: socket.socket) -> int:
    """How many SYNs it has lost since the last time: nobody had taken those before them yet (packet(7))."""
    _packets, drops = struct.unpack("II", watcher.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return int(drops)


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
        (ldb, 0, 0, 9),
        (jeq, 0, 7, socket.IPPROTO_TCP),
        (ldxb, 0, 0, 0),
        (ldh_at, 0, 0, 2),
        (jeq, 0, 4, port),
        (ldb_at, 0, 0, 13),
        (jset, 2, 0, 0x10),
        (jset, 0, 1, 0x02),  # not ACK, but SYN
        (ret, 0, 0, _SNAP_BYTES),
        (ret, 0, 0, 0),
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    watcher.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(buffer)))
    watcher.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    watcher.setblocking(False)
    watcher.bind(("lo", _ETH_P_IP))
    return watcher
