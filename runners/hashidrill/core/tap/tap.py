"""The tap: an HTTP/1.1 proxy in front of an upstream. It fails attempts by plan, and records each attempt.

    async with Tap(HttpUpstream("http://127.0.0.1:8500"), First("503", 2)) as tap:
        ...  # point a client at tap.url
    tap.attempts

`refused` is real: the port is bound, and no process listens on it until the plan ends. The attempts are counted by
their SYNs (`Door.shut`). Every RST is real too: SO_LINGER 0, then close.
"""

from __future__ import annotations  # ssl is loaded on first use

import asyncio
import contextlib
import ctypes
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from hashidrill.core.errors import FaultError
from hashidrill.core.tap.attempts import HEADER, Attempt, replay_key
from hashidrill.core.tap.catalogue import FAULTS, RETRY_AFTER_S
from hashidrill.core.tap.connection import ClientGoneError, Connection
from hashidrill.core.tap.plans import ForSeconds, Moment, Nothing, OnceReused, Plan
from hashidrill.core.tap.upstream import Link, Scripted, Upstream, UpstreamError
from hashidrill.core.tap.wire import ProtocolError, Reply, Request
from hashidrill.core.util.redaction import by_shape, fingerprint

_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER = 26
_SO_TIMESTAMPNS = 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SNAP_BYTES = 64
_ANCILLARY_BYTES = 64
BACKLOG = 512


class Door:
    """One bound port of `host`. With `port` 0, it binds a free port."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host, self.port = host, port
        self.socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._watcher: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def bind(self) -> None:
        """Raises FaultError if it cannot bind the address."""
        # asyncio sets TCP_NODELAY only if the protocol is named; otherwise a reply waits for the previous one's ACK
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
        """The socket, which must be bound."""
        if self.socket is None:
            raise FaultError("the tap is not open: use it with `async with`")
        return self.socket

    async def open(self, listen: Callable[[], Awaitable[asyncio.Server]]) -> None:
        """Listens, unless it does already."""
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
        """Refuses `count` connections, or all for `seconds`; then opens.

        `refused` is called with the time of each refusal, in ns. Raises FaultError if this process may not see packets,
        because refused attempts must be counted.
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
                # stamps are by the wall clock, which may be set at any time: their age is known only now
                at_ns = time.monotonic_ns() - max(0, time.time_ns() - stamp_ns)
                if listening_ns and at_ns > listening_ns:
                    continue  # it was accepted
                seen += 1
                refused(at_ns)
            # SYNs for which the kernel had no room: some 270 may come while a busy machine delays this process
            dropped = _dropped(watcher)
            if not listening_ns:
                seen += dropped
                for _ in range(dropped):
                    refused(time.monotonic_ns())
            # all of them were refused; the kernel gives no timestamps for the first packets
            if seen >= count and not listening_ns:
                self.bound().listen(BACKLOG)  # at once: some clients retry within a millisecond
                listening_ns = time.monotonic_ns()
                self._opening = loop.create_task(self.open(listen))
                look()

        def over() -> None:
            self._opening = loop.create_task(self.open(listen))

        loop.add_reader(watcher, look)
        if seconds is not None:
            self._timer = loop.call_later(seconds, over)

    def accept_no_more(self) -> None:
        """Call it before `close`: asyncio does not close connections that it accepted but has not reported."""
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
    """When the kernel saw the next SYN, in ns of the wall clock; None if no SYN is left."""
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
    """The number of SYNs lost since the last call, because earlier ones were not read in time (packet(7))."""
    _packets, drops = struct.unpack("II", watcher.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return int(drops)


def _syn_watcher(port: int) -> socket.socket:
    """A packet socket on the loopback device that gets only SYNs to that TCP port.

    A socket for one protocol sees only incoming packets, so no packet is seen twice.
    """
    try:
        watcher = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    except PermissionError:
        raise FaultError(
            "connection refused cannot be observed here: counting SYNs needs CAP_NET_RAW; run it as root, or"
            " `setcap cap_net_raw+ep` a Python of your own"
        ) from None
    # struct sock_filter (classic BPF, `tcpdump -d`): load; jump if equal; ... the packet begins with its IP header
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


DRIP_GAP_S = 0.5
_DRIP_BYTES = 65536
_LEADERLESS = b"No cluster leader"
"""Consul's message with its 500."""
_ACCEPT_TURNS = 4
"""The most turns of its loop that asyncio needs between accepting a connection and calling the tap."""


def _nothing() -> None:
    """Does nothing, for a tap that reports no waiting requests."""


class Tap:
    """Listens on `host`, passes requests on to `upstream` (by default a script), and fails attempts by `plan`.

    `tls` makes it listen with TLS. `longest_wait_s` shortens the `wait` of blocking queries, so that they return
    sooner than the client asked. `on_attempt` is called with each attempt when it is over. `on_begin` is called with
    the start (nanoseconds of CLOCK_MONOTONIC) of each request that waits for an answer, except blocking queries, which
    wait on purpose; the function that it returns is called at the end. `operation` is noted with each attempt.
    `retry_after_s` is the value of Retry-After in the faults with it. `said_in` is the header, in small letters, with
    which a client names the operation of a request.
    """

    def __init__(
        self,
        upstream: Upstream | None = None,
        plan: Plan | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        longest_wait_s: float | None = None,
        retry_after_s: int = RETRY_AFTER_S,
        operation: str = "",
        said_in: bytes = HEADER.lower().encode(),
        on_attempt: Callable[[Attempt], None] | None = None,
        on_begin: Callable[[int], Callable[[], object]] | None = None,
    ) -> None:
        self.upstream = upstream or Scripted()
        self.plan: Plan = plan or Nothing()
        self.longest_wait_s = longest_wait_s
        self.retry_after_s = retry_after_s
        self.operation = operation
        self.said_in = said_in
        self.upstream_errors: list[str] = []
        self.first_attempt = asyncio.Event()
        self._on_attempt = on_attempt
        self._on_begin = on_begin or (lambda _start_ns: _nothing)
        self._tls = tls
        self._door = Door(host, port)
        self._ended: list[Attempt] = []
        # a weak reference: only asyncio knows when a TLS handshake has failed
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._count = 0

    @property
    def attempts(self) -> list[Attempt]:
        """The finished attempts, in order of their start; after the tap is closed, all attempts."""
        return sorted(self._ended, key=lambda attempt: attempt.start_ns)

    @property
    def port(self) -> int:
        return self._door.port

    @property
    def address(self) -> str:
        return f"{self._door.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}"

    async def __aenter__(self) -> Self:
        self._door.bind()
        try:
            await self.give(self.plan)
        except BaseException:  # __aexit__ is not called then
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def give(self, plan: Plan) -> None:
        """Switches to this plan. Raises FaultError if `refused` cannot be observed on this machine."""
        self.plan = plan
        if "refused" in plan.faults:
            if isinstance(plan, ForSeconds):
                plan.begin(time.monotonic_ns())
                await self._door.shut(self._refused, self._listen, seconds=plan.seconds)
            else:
                await self._door.shut(self._refused, self._listen, count=getattr(plan, "count", 1))
        else:
            await self._door.open(self._listen)

    async def close(self) -> None:
        """Closes the door and every connection, and records unfinished attempts. Idempotent."""
        self._door.accept_no_more()
        for _ in range(_ACCEPT_TURNS):
            for connection in self._open:
                connection.stop()
            await asyncio.sleep(0)
        self._door.close()
        await asyncio.gather(*(connection.stopped() for connection in self._open))
        self._open.clear()

    def unseen(self, fault: str, at_ns: int = 0) -> None:
        """Records an attempt without a connection: refused, or with a failed name lookup. `at_ns` 0 means now."""
        at_ns = at_ns or time.monotonic_ns()
        self.note(Attempt(at_ns, at_ns, 0, fault=fault, operation=self.operation))

    def note(self, attempt: Attempt) -> None:
        """Records an attempt that is over."""
        self._ended.append(attempt)
        self.first_attempt.set()
        if self._on_attempt is not None:
            self._on_attempt(attempt)

    def begun(self, start_ns: int, *, blocking: bool) -> Callable[[], object]:
        """Notes that an attempt waits for its answer; call the returned function at its end."""
        return _nothing if blocking else self._on_begin(start_ns)

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._met, sock=self._door.bound(), ssl=self._tls, backlog=BACKLOG)

    def _met(self) -> Connection:
        connection = Connection(self._serve)
        self._open.add(connection)
        return connection

    def _refused(self, at_ns: int) -> None:
        self.unseen("refused", at_ns)

    async def _serve(self, connection: Connection) -> None:
        self._count += 1
        number, link = self._count, self.upstream.link()
        try:
            reused = False
            with contextlib.suppress(ProtocolError, ClientGoneError):
                while (head := await connection.request()) is not None:
                    if not await _Exchange(self, connection, link, number, head, reused=reused).run():
                        return
                    reused = True
        finally:
            link.close()
            self._open.discard(connection)


class _Exchange:
    """Handles one request on one connection: fails it or passes it through, and then records it."""

    def __init__(
        self, tap: Tap, connection: Connection, link: Link, number: int, head: Request, *, reused: bool
    ) -> None:
        self.tap, self.connection, self.link, self.head = tap, connection, link, head
        path = by_shape(head.target) if "?" in head.target else head.target
        self.noted: dict[str, Any] = {
            "start_ns": connection.arrived_ns or time.monotonic_ns(),
            "connection": number,
            "reused": reused,
            "method": head.method,
            "path": path,
            "key": replay_key(head.target, head.headers),
            "operation": tap.operation,
        }
        if said := next((value for name, value in head.headers if name == tap.said_in), b""):
            self.noted["said"] = fingerprint(said.decode(errors="replace"))
        self.asked = Attempt(self.noted["start_ns"], 0, number, path=path).asked_index if "index=" in path else None
        self.blocking = bool(self.asked)
        self.tap.first_attempt.set()

    async def run(self) -> bool:
        """Handles the request. Returns whether the connection can have another one."""
        over = self.tap.begun(self.noted["start_ns"], blocking=self.blocking)
        moment = Moment(self.noted["start_ns"], reused=self.noted["reused"], blocking=self.blocking)
        plan = self.tap.plan
        try:
            if isinstance(plan, OnceReused) and plan.takes_redirect(moment):
                await self.connection.body()
                again = Reply(307, [(b"location", self.head.target.encode())], b"")
                return await self._answer(again)
            fault = plan.decide(moment)
            if not fault:
                return await self._pass()
            self.noted["fault"] = fault
            return await self._fail(fault)
        except ClientGoneError:
            self.noted["abandoned"] = True
            return False
        except asyncio.CancelledError:  # the tap closes, mostly because its client has ended
            self.noted["abandoned"] = "status" not in self.noted
            raise
        finally:
            # the end of the whole exchange, unless the end of the answer was noted before
            self.noted.setdefault("end_ns", time.monotonic_ns())
            self.tap.note(Attempt(**self.noted))
            over()

    async def _fail(self, fault: str) -> bool:
        about = FAULTS[fault]
        if fault.startswith("reset-before"):
            self.connection.reset()
            return False
        if about.reaches_upstream or fault == "index-backwards":
            return await self._fail_after(fault)
        await self._body()
        if about.status:
            return await self._answer(self._scripted(about.status, about.retry_after))
        if fault.startswith("reset-after"):
            self.connection.reset()
        elif fault == "hang":
            await self.connection.until_gone()
            self.noted["abandoned"] = True
        elif fault == "slow-body":
            await self._drip()
        return False

    async def _fail_after(self, fault: str) -> bool:
        reply = await self._ask()
        if fault == "index-backwards":
            lower = max(1, (self.asked or 2) // 2)
            headers = [(k, v) for k, v in reply.headers if k != b"x-consul-index"]
            self.noted["backwards"] = True
            return await self._answer(Reply(reply.status, [*headers, (b"x-consul-index", b"%d" % lower)], reply.body))
        if fault == "truncated-body":
            length = max(len(reply.body), 2)
            sent = reply.body[: length // 2]
            lines = [b"%s: %s\r\n" % pair for pair in reply.headers]
            head = b"HTTP/1.1 %d OK\r\n%scontent-length: %d\r\n\r\n" % (reply.status, b"".join(lines), length)
            self.connection.write(head + (sent if self.head.method != "HEAD" else b""))
            self.noted["sent"] = len(sent)
        self.connection.close()
        return False

    async def _drip(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % _DRIP_BYTES
        self.connection.write(head)
        for sent in range(1, _DRIP_BYTES):
            self.connection.write(b" ")
            self.noted["sent"] = sent
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.connection.until_gone(), DRIP_GAP_S)
                break
        self.noted["abandoned"] = True

    async def _pass(self) -> bool:
        return await self._answer(await self._ask())

    async def _ask(self) -> Reply:
        body = await self._body()
        request = self._shortened(Request(self.head.method, self.head.target, self.head.headers, body))
        if request.method == "CONNECT":
            return _plain(501, b"the tap speaks plain HTTP to its clients: it cannot be a proxy for https:// addresses")
        try:
            reply = await self.connection.unless_gone(self.link.ask, request)
        except UpstreamError as error:
            self.tap.upstream_errors.append(str(error))
            return _plain(502, str(error).encode())
        self.noted["upstream"] = True
        if "acquire=" in request.target:
            self.noted["granted"] = reply.body.strip() == b"true"
        return reply

    async def _body(self) -> bytes:
        body = await self.connection.body()
        self.noted |= {"received": len(body), "body": fingerprint(body.decode("latin-1")) if body else ""}
        return body

    async def _answer(self, reply: Reply) -> bool:
        index = reply.header(b"x-consul-index")
        if index.isdigit():
            self.noted["index"] = int(index)
        head = self.head.method == "HEAD"
        await self.connection.reply(reply, head=head)
        self.noted |= {"status": reply.status, "sent": 0 if head else len(reply.body), "end_ns": time.monotonic_ns()}
        return self.connection.next()

    def _scripted(self, status: int, retry_after: str) -> Reply:
        seconds = self.tap.retry_after_s
        body = _LEADERLESS if status == 500 else b"the tap answers %d, as its plan says" % status
        reply = _plain(status, body)
        if not retry_after:
            return reply
        value = str(seconds)
        if retry_after == "date":
            # a date has whole seconds: use the first one at least `seconds` from now
            now = datetime.now(UTC)
            until = (now + timedelta(seconds=seconds + 1)).replace(microsecond=0)
            value = format_datetime(until, usegmt=True)
            self.noted["retry_after_s"] = (until - now).total_seconds()
        else:
            self.noted["retry_after_s"] = float(seconds)
        return Reply(reply.status, [*reply.headers, (b"retry-after", value.encode())], reply.body)

    def _shortened(self, request: Request) -> Request:
        """Shortens a blocking query so that it returns in time."""
        limit = self.tap.longest_wait_s
        if limit is None or not self.blocking:
            return request
        split = urlsplit(request.target)
        rest = [(name, value) for name, value in parse_qsl(split.query, keep_blank_values=True) if name != "wait"]
        target = f"{split.path}?{urlencode([*rest, ('wait', f'{round(limit * 1000)}ms')])}"
        return Request(request.method, target, request.headers, request.body)


def _plain(status: int, body: bytes) -> Reply:
    return Reply(status, [(b"content-type", b"text/plain; charset=utf-8")], body)
