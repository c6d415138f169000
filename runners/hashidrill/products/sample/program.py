"""The program on the hosts of the sample: `python -c SOURCE CONFIG`, with a JSON file as CONFIG.

    {"program": "store", "address": "10.73.0.11", "port": 8080, "takes_s": 0.02}
    {"program": "database", ..., "takes_s": 0.05, "at_once": 4, "of_one_tenant": 2}
    {"program": "memory", ..., "store": "http://10.73.0.11:8080"}
    {"program": "cache", ..., "store": "http://10.73.0.11:8080", "data": "/...", "bypass_after_s": 0.2, "off_for_s":
    5}
    {"program": "pool", ..., "store": "...", "at_least": 2, "most": 100, "grows_every_s": 1, "calls": 5,
     "leaks": 0}

A pipeline for logs, whose parts receive batches of lines by PUT, and answer 429 when they are full:

    {"program": "node", ..., "tier": "http://10.73.0.12:8080", "at_once": 20}
    {"program": "parser", ..., "searcher": "...", "archive": "..." or null, "takes_s": 0.08, "room": 20}
    {"program": "searcher", ..., "takes_s": 0.1, "room": 20}
    {"program": "archive", ..., "data": "/..."}

Health checks of targets that accept connections on a port of their own; PUT /checks sets the number of checks:

    {"program": "backend", ..., "listens": ["10.73.0.12", 8081]}
    {"program": "checker", ..., "targets": [["10.73.0.12", 8081]], "every_s": 30, "timeout_s": 2, "workers": 2,
     "reports": "all", "report_takes_s": 0.006, "most": 4000}

It needs only the standard library of any Python 3 that the host's user can run.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import ctypes
import http.client
import http.server
import json
import multiprocessing
import os
import pathlib
import queue
import re
import signal
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

HEALTH = "/health"
_BYTES = 4096
_STORE_WITHIN_S = 30.0
_DISK_THREADS = 64

COUNTS, KEYS = "/counts", "/keys"
"""Paths of a pipeline's part: the counts of the part and of the parts behind it; the content of the log of record."""
UP, DOWN, UNKNOWN = "up", "down", "unknown"
_RETRY_S, _TICK_S = 0.05, 0.1
_PR_SET_PDEATHSIG = 1
_LOG_LINE = re.compile(r'^(\S+) \S+ \S+ \[([^\]]+)\] "((?:\S+\s?)+)" (\d+) (\d+)$')
_BROKEN_LINE = '10.0.0.1 - - [28/Oct/2021:13:37:00 +0000] "GET /a HTTP 200 6'
"""It lacks its second quote, so the expression tries every way to split the words before it gives up."""

Answer = Callable[[str], bytes]


class Full(Exception):  # noqa: N818 - the state of a queue, which 429 says
    """A queue has no room: the answer is 429."""


class Store:
    """Has every key, and delays each answer."""

    def __init__(self, takes_s: float) -> None:
        self._takes_s = takes_s

    def __call__(self, path: str) -> bytes:
        time.sleep(self._takes_s)
        return path.encode().ljust(_BYTES, b".")


class Line:
    """Grants `places` at a time. A request that finds no free place waits; the first in line gets the next place."""

    def __init__(self, places: int) -> None:
        self._free, self._lock = places, threading.Lock()
        self._line: collections.deque[threading.Event] = collections.deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Event()
            self._line.append(mine)
        mine.wait()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._line:
                self._line.popleft().set()
            else:
                self._free += 1


class Database:
    """Serves `at_once` requests at a time, at most `of_one_tenant` of them for one tenant. The others wait in line.

    The tenant is the first part of the path. Without `of_one_tenant`, all tenants share one line.
    """

    def __init__(self, takes_s: float, at_once: int, of_one_tenant: int | None) -> None:
        self._serve = Store(takes_s)
        self._places = Line(at_once)
        self._of_one_tenant, self._shares = of_one_tenant, dict[str, Line]()

    def __call__(self, path: str) -> bytes:
        if self._of_one_tenant is None:
            share: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        else:
            share = self._shares.setdefault(path.split("/")[1], Line(self._of_one_tenant))
        with share, self._places:
            return self._serve(path)


def fetch(store: str, path: str, body: bytes | None = None) -> bytes:
    """Reads from the store, or puts `body` there, over a new connection. Raises Full, OSError, HTTPException."""
    place = urllib.parse.urlsplit(store)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_STORE_WITHIN_S)
    try:
        connection.request("GET" if body is None else "PUT", path, body)
        reply = connection.getresponse()
        answer = reply.read()
    finally:
        connection.close()
    if reply.status == http.HTTPStatus.TOO_MANY_REQUESTS:
        raise Full(f"{store} is full")
    if reply.status != http.HTTPStatus.OK:
        raise OSError(f"the store answered {reply.status}")
    return answer


class Cache:
    """Answers from its disk; a missing key comes from the store, and is on disk before it is answered (write-through).

    With `bypass_after_s`, it does not wait for a disk operation that takes longer: the store answers instead, and
    answers all requests for `off_for_s`.
    """

    def __init__(self, store: str, data: str, bypass_after_s: float | None, off_for_s: float) -> None:
        self._store, self._data = store, pathlib.Path(data)
        self._bypass_after_s, self._off_for_s = bypass_after_s, off_for_s
        self._off_until = 0.0
        self._disk = concurrent.futures.ThreadPoolExecutor(_DISK_THREADS)

    def __call__(self, path: str) -> bytes:
        file = self._data / urllib.parse.quote(path, safe="")
        body = self._on_disk(lambda: _read(file))
        if body is not None:
            return body
        new = fetch(self._store, path)
        self._on_disk(lambda: _write(file, new))
        return new

    def _on_disk(self, act: Callable[[], bytes | None]) -> bytes | None:
        """The bytes read; None also if the disk takes too long."""
        if self._bypass_after_s is None:
            return act()
        if time.monotonic() >= self._off_until:
            try:
                return self._disk.submit(act).result(self._bypass_after_s)
            except concurrent.futures.TimeoutError:
                self._off_until = time.monotonic() + self._off_for_s
        return None


class Memory:
    """A cache in memory, which is empty when it starts: each key that it lacks costs the store a request."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._held: dict[str, bytes] = {}

    def __call__(self, path: str) -> bytes:
        if path not in self._held:
            self._held[path] = fetch(self._store, path)
        return self._held[path]


def _read(file: pathlib.Path) -> bytes | None:
    try:
        opened = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(opened, _BYTES)
    finally:
        os.close(opened)


def _write(file: pathlib.Path, body: bytes) -> None:
    new = file.with_name(f"{file.name}.{threading.get_ident()}")
    opened = os.open(new, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(opened, body)
        os.fsync(opened)
    finally:
        os.close(opened)
    new.rename(file)


class Pool:
    """Each request waits for a worker, which calls the store `calls` times. The pool grows while work waits.

    `leaks` bytes stay in memory after each request.
    """

    def __init__(
        self, store: str, at_least: int, most: int, grows_every_s: float, calls: int, *, leaks: int = 0
    ) -> None:
        self._store, self._calls, self._leaks = store, calls, leaks
        self._leaked: list[bytes] = []
        self._work: queue.Queue[tuple[str, concurrent.futures.Future[bytes]]] = queue.Queue()
        for _ in range(at_least):
            self._hire()
        threading.Thread(target=self._grow, args=(most - at_least, grows_every_s), daemon=True).start()

    def __call__(self, path: str) -> bytes:
        done: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        self._work.put((path, done))
        return done.result()

    def _hire(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def _grow(self, more: int, every_s: float) -> None:
        while more > 0:
            time.sleep(every_s)
            if not self._work.empty():
                self._hire()
                more -= 1

    def _serve(self) -> None:
        while True:
            path, done = self._work.get()
            try:
                bodies = [fetch(self._store, f"{path}/{n}") for n in range(self._calls)]
            except Exception as error:  # noqa: BLE001 - the error belongs to the request, not to the worker
                done.set_exception(error)
            else:
                done.set_result(bodies[-1])
                self._leaked.append(b"." * self._leaks)


class Stage:
    """A part of the pipeline. Its counts include the counts of the parts behind it, `then`."""

    def __init__(self, *then: str) -> None:
        self._then = then
        self._lock = threading.Lock()
        self._counted: dict[str, int] = {}

    def __call__(self, path: str) -> bytes:
        """Raises OSError, HTTPException of the parts behind it."""
        if path == COUNTS:
            behind = (json.loads(fetch(each, COUNTS)) for each in self._then)
            return json.dumps(_summed([self._counts(), *behind])).encode()
        return fetch(self._then[0], path)

    def _counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counted)

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counted[what] = self._counted.get(what, 0) + by


def _summed(every: list[dict[str, int]]) -> dict[str, int]:
    return {what: sum(each.get(what, 0) for each in every) for what in {key for each in every for key in each}}


class Node(Stage):
    """Forwards each batch and waits for the answer. With `at_once` batches in flight, it refuses more."""

    def __init__(self, tier: str, at_once: int) -> None:
        super().__init__(tier)
        self._room = threading.BoundedSemaphore(at_once)

    def put(self, path: str, body: bytes) -> bytes:
        if not self._room.acquire(blocking=False):
            raise Full
        try:
            return fetch(self._then[0], path, body)
        finally:
            self._room.release()


def parse(takes_s: float) -> None:
    """Lets a regular expression backtrack until it has used `takes_s` of CPU time, which is equal on every machine."""
    ends_s = time.thread_time() + takes_s
    while time.thread_time() < ends_s:
        _LOG_LINE.match(_BROKEN_LINE)


class Parser(Stage):
    """Parses batches one after the other and hands them to search.

    Without `archive` it works like a log shipper on a node: it accepts each batch at once, drops batches when a buffer
    is full, and retries the batches that search refuses. With `archive`, a batch is stored there before the answer;
    search then gets as many batches as it has room for, and the others are shed.
    """

    def __init__(self, searcher: str, archive: str | None, takes_s: float, room: int) -> None:
        super().__init__(*filter(None, (archive, searcher)))
        self._searcher, self._archive, self._takes_s = searcher, archive, takes_s
        self._taken: queue.Queue[tuple[str, bytes]] = queue.Queue(room)
        self._parsed: queue.Queue[tuple[str, bytes]] = queue.Queue(room)
        self._lost = "dropped" if archive is None else "shed"
        for work in (self._parse, self._ship):
            threading.Thread(target=work, daemon=True).start()

    def put(self, path: str, body: bytes) -> bytes:
        if self._archive is not None:
            fetch(self._archive, path, body)
        self._offer(self._taken, path, body)
        return b"taken"

    def _offer(self, line: queue.Queue[tuple[str, bytes]], path: str, body: bytes) -> None:
        self._count("waiting")
        try:
            line.put_nowait((path, body))
        except queue.Full:
            self._count(self._lost)
            self._count("waiting", -1)

    def _parse(self) -> None:
        while True:
            path, body = self._taken.get()
            parse(self._takes_s)
            self._offer(self._parsed, path, body)
            self._count("waiting", -1)

    def _ship(self) -> None:
        while True:
            path, body = self._parsed.get()
            while not self._shipped(path, body) and self._archive is None:
                time.sleep(_RETRY_S)
            self._count("waiting", -1)

    def _shipped(self, path: str, body: bytes) -> bool:
        try:
            fetch(self._searcher, path, body)
        except (Full, OSError, http.client.HTTPException):
            self._count("rejected")
            if self._archive is not None:
                self._count(self._lost)
            return False
        return True


class Searcher(Stage):
    """Indexes batches and answers searches one after the other, each in `takes_s`. A full queue refuses both."""

    def __init__(self, takes_s: float, room: int) -> None:
        super().__init__()
        self._takes_s = takes_s
        self._index: dict[str, str] = {}
        self._work: queue.Queue[Callable[[], None]] = queue.Queue(room)
        threading.Thread(target=self._serve, daemon=True).start()

    def put(self, path: str, body: bytes) -> bytes:
        self._queue(lambda: self._index.__setitem__(path, _identity(body)))
        return b"queued"

    def __call__(self, path: str) -> bytes:
        if path == KEYS:
            return json.dumps(self._index).encode()
        if path == COUNTS:
            return super().__call__(path)
        found: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        self._queue(lambda: found.set_result(self._index.get(path, "no hits").encode()))
        return found.result()

    def _counts(self) -> dict[str, int]:
        return {"waiting": self._work.unfinished_tasks, "indexed": len(self._index)}

    def _queue(self, work: Callable[[], None]) -> None:
        try:
            self._work.put_nowait(work)
        except queue.Full:
            raise Full from None

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            time.sleep(self._takes_s)
            work()
            self._work.task_done()


def _identity(body: bytes) -> str:
    """The first line of a batch, which identifies its write."""
    return body.partition(b"\n")[0].decode()


class Archive(Stage):
    """Keeps each batch in a file, on disk before the answer. A slow disk makes it slow, but fills no queue."""

    def __init__(self, data: str) -> None:
        super().__init__()
        self._data = pathlib.Path(data)

    def put(self, path: str, body: bytes) -> bytes:
        _write(self._data / urllib.parse.quote(path, safe=""), body)
        return b"stored"

    def __call__(self, path: str) -> bytes:
        if path != KEYS:
            return super().__call__(path)
        kept = [file for file in self._data.iterdir() if "." not in file.name]
        return json.dumps({urllib.parse.unquote(file.name): _identity(_read(file) or b"") for file in kept}).encode()


class Backend(Stage):
    """Accepts connections on a port of its own, and closes them."""

    def __init__(self, listens: tuple[str, int]) -> None:
        super().__init__()
        listening = socket.create_server(tuple(listens), backlog=1024)
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            listening.accept()[0].close()


class Inline:
    """The end of a pipe for checks that run in the checker itself: each message is handled before the next check."""

    def __init__(self, handle: Callable[[Any], None]) -> None:
        self.send, self._wanted = handle, queue.SimpleQueue[int]()
        self.recv, self.wants = self._wanted.get, self._wanted.put

    def poll(self) -> bool:
        return not self._wanted.empty()


class Checks:
    """One event loop of a checker: connects to the targets of its checks, evenly spread over the interval.

    It sends each result to the checker or, with `changes`, what changed in the last tenth of a second. Each message is
    ({check: up, down or unknown}, when the checks ended, how late they began).
    """

    def __init__(
        self,
        pipe: Any,
        place: tuple[int, int],
        *,
        targets: list[tuple[str, int]],
        every_s: float,
        timeout_s: float,
        changes: bool,
    ) -> None:
        self._pipe, self._place = pipe, place
        self._targets, self._every_s, self._timeout_s = targets, every_s, timeout_s
        self._changes = changes
        self._new: dict[int, str] = {}
        self._known: dict[int, str] = {}
        self._late_s = self._sent_s = 0.0

    def work(self, checker: int) -> None:
        """Runs in a process of its own, until the checker ends."""
        # when the checker is killed, this process may wait for its pipe, whose other end its siblings hold too
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == checker:
            asyncio.run(self.run())

    async def run(self) -> None:
        began_s, begun = 0.0, 0
        checks = range(0)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            if self._pipe.poll():
                checks, began_s, begun = range(self._place[0], self._pipe.recv(), self._place[1]), time.monotonic(), 0
                self._known = {check: seen for check, seen in self._known.items() if check in checks}
            while checks and (due_s := began_s + begun * self._every_s / len(checks)) <= time.monotonic():
                task = asyncio.create_task(self._check(checks[begun % len(checks)], due_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                begun += 1
            if time.monotonic() - self._sent_s >= _TICK_S:
                self._send()
            await asyncio.sleep(_TICK_S / 10)

    async def _check(self, check: int, due_s: float) -> None:
        self._late_s = max(self._late_s, time.monotonic() - due_s)
        seen = UP
        with socket.socket() as one:
            one.setblocking(False)
            # closes by a reset, so that no port stays in use for a minute after each check
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            try:
                await asyncio.wait_for(
                    asyncio.get_running_loop().sock_connect(one, tuple(self._targets[check % len(self._targets)])),
                    self._timeout_s,
                )
            except (asyncio.TimeoutError, TimeoutError):  # noqa: UP041 - two classes before Python 3.11
                seen = UNKNOWN
            except OSError:
                seen = DOWN
        if not self._changes or self._known.get(check, UP) != seen:
            self._new[check] = self._known[check] = seen
        if not self._changes:
            self._send()

    def _send(self) -> None:
        new, self._new, late_s, self._late_s = self._new, {}, self._late_s, 0.0
        self._sent_s = time.monotonic()
        self._pipe.send((new, self._sent_s, late_s))  # waits until the checker reads it


class Checker(Stage):
    """Checks with `workers` processes. It handles their messages one by one, each with `report_takes_s` of CPU time.

    A message may hold one result, as in the second generation of line-lbaas-2021, or what changed, as in the third. A
    result that is older than `timeout_s` when it is processed is unknown. More than `most` checks are refused. Without
    workers, one event loop checks and handles the messages, as in the first generation: while it does one, the other
    waits.
    """

    def __init__(
        self,
        targets: list[tuple[str, int]],
        *,
        every_s: float,
        timeout_s: float,
        workers: int,
        reports: str,
        report_takes_s: float,
        most: int,
    ) -> None:
        super().__init__()
        self._report_takes_s, self._most, self._timeout_s = report_takes_s, most, timeout_s
        self._seen: dict[int, str] = {}
        self._checks, self._late_s = 0, 0.0

        def checks(pipe: Any, number: int) -> Checks:
            place, changes = (number, max(1, workers)), reports == "changes"
            return Checks(pipe, place, targets=targets, every_s=every_s, timeout_s=timeout_s, changes=changes)

        if not workers:
            inline = Inline(self._handle)
            self._wants: list[Callable[[int], Any]] = [inline.wants]
            threading.Thread(target=lambda: asyncio.run(checks(inline, 0).run()), daemon=True).start()
            return
        forking = multiprocessing.get_context("fork")
        pipes = [forking.Pipe() for _ in range(workers)]
        for number, (_, theirs) in enumerate(pipes):
            forking.Process(target=checks(theirs, number).work, args=(os.getpid(),)).start()
        self._wants = [ours.send for ours, _ in pipes]
        for pipe, _ in pipes:
            threading.Thread(target=self._take, args=(pipe,), daemon=True).start()

    def put(self, path: str, body: bytes) -> bytes:  # noqa: ARG002 - all parts have it
        wanted = int(body)
        if wanted > self._most:
            raise Full(f"at most {self._most} checks")
        if wanted != self._checks:
            self._checks = wanted
            for want in self._wants:
                want(wanted)
            with self._lock:
                self._seen = {check: seen for check, seen in self._seen.items() if check < wanted}
        return self(COUNTS)

    def _counts(self) -> dict[str, int]:
        with self._lock:
            seen, late_s, self._late_s = list(self._seen.values()), self._late_s, 0.0
        return {
            "checks": self._checks,
            "down": seen.count(DOWN),
            "unknown": seen.count(UNKNOWN),
            "late_ms": round(late_s * 1000),
        }

    def _take(self, pipe: Any) -> None:
        while True:
            self._handle(pipe.recv())

    def _handle(self, message: tuple[dict[int, str], float, float]) -> None:
        new, ended_s, late_s = message
        if new:
            waited_s = time.monotonic() - ended_s
            if waited_s > self._timeout_s:
                new = dict.fromkeys(new, UNKNOWN)
            parse(self._report_takes_s)
            late_s += waited_s
        with self._lock:
            self._seen.update(new)
            self._late_s = max(self._late_s, late_s)


class Handler(http.server.BaseHTTPRequestHandler):
    """One thread for each connection, so that only the program itself makes requests wait."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    program: Any

    def do_GET(self) -> None:
        self._answer(lambda: b"ok" if self.path == HEALTH else type(self).program(self.path))

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(lambda: type(self).program.put(self.path, body))

    def _answer(self, ask: Callable[[], bytes]) -> None:
        status = http.HTTPStatus.OK
        try:
            body = ask()
        except Full as error:
            status, body = http.HTTPStatus.TOO_MANY_REQUESTS, str(error).encode()
        except (OSError, http.client.HTTPException) as error:
            status, body = http.HTTPStatus.BAD_GATEWAY, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Writes nothing: a line for each request would be work for the disk under test."""


class Server(http.server.ThreadingHTTPServer):
    """Accepts many connections at once."""

    daemon_threads = True
    request_queue_size = 512


PROGRAMS: dict[str, Callable[..., Answer]] = {
    "store": Store,
    "database": Database,
    "cache": Cache,
    "memory": Memory,
    "pool": Pool,
    "node": Node,
    "parser": Parser,
    "searcher": Searcher,
    "archive": Archive,
    "backend": Backend,
    "checker": Checker,
}


def main(config: dict[str, Any]) -> None:
    """Serves until it is killed."""
    address = config.pop("address"), config.pop("port")
    Handler.program = PROGRAMS[config.pop("program")](**config)
    Server(address, Handler).serve_forever()


if __name__ == "__main__":
    main(json.loads(pathlib.Path(sys.argv[1]).read_text()))
