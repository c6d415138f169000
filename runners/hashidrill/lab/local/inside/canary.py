"""The observer on one host: makes ordinary system calls there and reports how long each took and how it ended.

It shares no code with the injectors of faults: it uses plain file and socket calls, and its own clock. Requests come
over a Unix socket (see rpc.py); times are seconds.

    {"op": "fsync"} {"op": "write", "size": N} {"op": "read", "size": N}     -> {"seconds", "errno"}
    {"op": "disk", "operation", "size", "count", "within"}                   -> {"timings": [[seconds, errno]]}
    {"op": "space"}                                                          -> {"free": bytes}
    {"op": "connect", "address", "port", "timeout"}                          -> {"seconds", "errno"}
    {"op": "echo", "address", "count", "timeout"}                            -> {"lost": share}
    {"op": "listen", "port"}                                                 -> {}
    {"op": "exchange", "address", "port", "upload", "download", "timeout", "connections", "until_closed",
     "at_once"}
                                                    -> {"exchanges": [{"seconds", "errno", "received"}]}
    {"op": "take", "size", "files"}                                          -> {"taken": bytes}
    {"op": "burn", "threads", "windows", "window"}                           -> {"cores": [CPU seconds a second]}
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hashidrill.lab.sandbox.rpc import Server

_BLOCK = bytes(1 << 16)
_LONGEST_S = 60.0
_LONGEST_GREETING = 64


def serve_exchanges(port: int) -> None:
    """Answers on that port of all addresses, from a thread, for ever. Raises OSError if that is impossible."""
    listener = socket.create_server(("", port), backlog=64)
    threading.Thread(target=_accept_exchanges, args=(listener,), name=f"exchanges {port}", daemon=True).start()


def _accept_exchanges(listener: socket.socket) -> None:
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
        if _receive_bytes(connection, upload - len(rest), None) == upload - len(rest):
            _send(connection, download)


def exchange_all(connections: int, at_once: int, **request: Any) -> list[dict[str, Any]]:
    """Makes `connections` exchanges, `at_once` at a time. Each result: {"seconds", "errno", "received"}."""
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
    """One exchange. Its seconds count from the first byte sent, without the time to open the connection."""
    began, number, received = time.monotonic(), 0, [0]
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.monotonic()
            connection.sendall(b"%d %d\n" % (upload, download))
            _send(connection, upload)
            deadline = began + timeout
            _receive_bytes(connection, download, deadline, received)
            if received[0] < download:
                number = errno.ENODATA
            elif until_closed:
                _receive_bytes(connection, 1, deadline)
    except TimeoutError:
        number = errno.ETIMEDOUT
    except OSError as error:
        number = error.errno or errno.EIO
    return {"seconds": time.monotonic() - began, "errno": number, "received": received[0]}


def _send(connection: socket.socket, size: int) -> None:
    while size > 0:
        connection.sendall(_BLOCK[: min(size, len(_BLOCK))])
        size -= len(_BLOCK)


def _receive_bytes(connection: socket.socket, size: int, deadline: float | None, count: list[int] | None = None) -> int:
    """How many bytes came before the end of the connection; `count[0]` has the number even after an error."""
    count = [0] if count is None else count
    while count[0] < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(min(size - count[0], len(_BLOCK)))
        if not part:
            break
        count[0] += len(part)
    return count[0]


ECHO_PORT = 7007
_FILE = ".canary"
_GREETINGS, _GREETING_S = 5, 0.02
_BURST, _BURST_GAP_S = 8, 0.001
_MAX_BYTES = 4 << 20
_DISK_THREADS = 256
SWITCH_S = 0.0005
"""Timed threads wait for each other at most this long (Python's default is 5 ms)."""
_HASHED = bytes(1 << 15)


_TAKE = """
import mmap, os, sys
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
for path in sys.argv[2:]:
    with open(path, "w") as file:
        file.write("0")
os.write(1, b"0\\n")
taken, size = mmap.mmap(-1, int(sys.argv[1])), int(sys.argv[1])
for page in range(0, size, mmap.PAGESIZE):
    taken[page] = 1
    if page % (1 << 20) == 0:
        os.write(1, b"%d\\n" % page)
os.write(1, b"%d\\n" % size)
"""
"""Allocates memory page by page in a cgroup, as the process there that the kernel would kill first."""
_TAKE_WITHIN_S = 10.0


class Canary:
    """`data` is the directory in which the disk is measured."""

    def __init__(self, data: str) -> None:
        self._path = os.path.join(data, _FILE)  # noqa: PTH118 - no pathlib here
        self._lock = threading.Lock()
        self._listening: set[int] = set()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return dict(getattr(self, f"do_{request.pop('op')}")(**request))

    def do_fsync(self) -> dict[str, Any]:
        """The time of the fsync alone, after a write, so that there is something to sync."""
        with self._open() as fd:
            with contextlib.suppress(OSError):
                os.pwrite(fd, b"%-16d" % time.monotonic_ns(), 0)  # few bytes: a bandwidth rule delays writes
            return _timed(lambda: os.fsync(fd))

    def do_write(self, size: int) -> dict[str, Any]:
        """Writes a new file, because overwriting old blocks would not notice a full disk. A short write is ENOSPC."""
        block = os.urandom(min(size, _MAX_BYTES))

        def write() -> None:
            for offset in range(0, size, _MAX_BYTES):
                part = block[: size - offset]
                if os.pwrite(fd, part, offset) < len(part):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with self._new() as fd:
            return _timed(write)

    def do_read(self, size: int) -> dict[str, Any]:
        with self._open() as fd:
            return _timed(lambda: os.pread(fd, min(size, _MAX_BYTES), 0))

    def do_space(self) -> dict[str, Any]:
        stat = os.statvfs(os.path.dirname(self._path))  # noqa: PTH120 - no pathlib here
        return {"free": stat.f_bavail * stat.f_frsize}

    def do_take(self, size: int, files: list[str]) -> dict[str, Any]:
        """The bytes that a new process in that cgroup could allocate; None if it allocated none."""
        command = [sys.executable, "-IS", "-c", _TAKE, str(size), *files]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            try:
                told = process.communicate(timeout=_TAKE_WITHIN_S)[0]
            except subprocess.TimeoutExpired:  # the kernel slows it down instead of killing it (memory.high)
                process.kill()
                told = process.communicate()[0]
        lines = told.split()
        return {"taken": int(lines[-1]) if lines else None}

    def do_connect(self, address: str, port: int, timeout: float) -> dict[str, Any]:
        def connect() -> None:
            with socket.create_connection((address, port), timeout=timeout):
                pass

        return _timed(connect)

    def do_echo(self, address: str, count: int, timeout: float) -> dict[str, Any]:
        """Share of `count` datagrams that did not come back within `timeout` seconds of the last one."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, selectors.DefaultSelector() as ready:
            sock.connect((address, ECHO_PORT))
            ready.register(sock, selectors.EVENT_READ)
            back: set[bytes] = set()
            for _ in range(_GREETINGS):  # the first packets of a pair of hosts may be lost to address resolution
                with contextlib.suppress(OSError):
                    sock.send(b"hello")
                if ready.select(_GREETING_S):
                    break
            for i in range(count):
                with contextlib.suppress(OSError):
                    sock.send(b"%d" % i)
                if i % _BURST == _BURST - 1:  # paced, so that no queue overflows, which would look like loss
                    ready.select(_BURST_GAP_S)
                _receive(sock, back)
            deadline = time.monotonic() + timeout
            while len(back) < count and (left := deadline - time.monotonic()) > 0:
                ready.select(left)
                _receive(sock, back)
        return {"lost": 1 - len(back) / count}

    def do_listen(self, port: int) -> dict[str, Any]:
        with self._lock:
            if port not in self._listening:
                serve_exchanges(port)
                self._listening.add(port)
        return {}

    def do_exchange(self, connections: int, at_once: int, **request: Any) -> dict[str, Any]:
        return {"exchanges": exchange_all(connections, at_once, **request)}

    def do_disk(self, operation: str, size: int, count: int, within: float) -> dict[str, Any]:
        """`count` operations of one kind, by up to 256 threads; none starts after `within` seconds."""
        calls: dict[str, Callable[[], dict[str, Any]]] = {
            "fsync": self.do_fsync,
            "write": lambda: self.do_write(size),
            "read": lambda: self.do_read(size),
        }
        call, left, deadline = calls[operation], iter(range(count)), time.monotonic() + within
        timings: list[tuple[float, int]] = []

        def work() -> None:
            while time.monotonic() < deadline and next(left, None) is not None:
                timing = call()
                timings.append((timing["seconds"], timing["errno"]))

        _in_threads(min(count, _DISK_THREADS), work)
        return {"timings": timings}

    def do_burn(self, threads: int, windows: int, window: float) -> dict[str, Any]:
        """The CPU time, in cores, that busy threads together get here in each window.

        The threads compute hashes, which releases Python's interpreter lock.
        """
        began = time.monotonic()
        each: list[list[float]] = []

        def work() -> None:
            used = [0.0] * windows
            each.append(used)
            before = time.thread_time()
            while (number := int((time.monotonic() - began) / window)) < windows:
                hashlib.sha256(_HASHED)
                now = time.thread_time()
                used[number] += now - before
                before = now

        _in_threads(threads, work)
        return {"cores": [sum(used) / window for used in zip(*each)]}  # noqa: B905 - of one length; Python 3.8

    @contextlib.contextmanager
    def _open(self) -> Any:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _new(self) -> Any:
        path = os.path.join(os.path.dirname(self._path), self._new_name())  # noqa: PTH118, PTH120 - no pathlib here
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)
            os.unlink(path)  # noqa: PTH108 - no pathlib here

    @staticmethod
    def _new_name() -> str:
        """An unused name that other users cannot predict."""
        return f"{_FILE}-{os.urandom(8).hex()}"


def _in_threads(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _timed(call: Any) -> dict[str, Any]:
    began = time.monotonic()
    number = 0
    try:
        call()
    except TimeoutError:
        number = errno.ETIMEDOUT
    except OSError as error:
        number = error.errno or errno.EIO
    return {"seconds": time.monotonic() - began, "errno": number}


def _receive(sock: socket.socket, into: set[bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = sock.recv(64, socket.MSG_DONTWAIT)
            if data != b"hello":
                into.add(data)


def _echo_datagrams(sock: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):
            data, sender = sock.recvfrom(64)
            sock.sendto(data, sender)


def _accept(listener: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):
            listener.accept()[0].close()


def listen() -> None:
    """Answers datagrams and connections on ECHO_PORT, from threads, for ever. Raises OSError if the port is taken."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", ECHO_PORT))
    listener = socket.create_server(("", ECHO_PORT), backlog=64)
    threading.Thread(target=_echo_datagrams, args=(datagrams,), daemon=True).start()
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()


def main(data: str, path: str) -> None:
    """Serves for ever."""
    sys.setswitchinterval(SWITCH_S)
    listen()
    Server(path, Canary(data).answer).serve_forever()
