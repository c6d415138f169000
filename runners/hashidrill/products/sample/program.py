"""The program on the hosts of the sample: `python -c SOURCE CONFIG`, with a JSON file as CONFIG.

    {"program": "store", "address": "10.73.0.11", "port": 8080, "takes_s": 0.02}
    {"program": "database", ..., "takes_s": 0.05, "at_once": 4, "of_one_tenant": 2}
    {"program": "memory", ..., "store": "http://10.73.0.11:8080"}
    {"program": "cache", ..., "store": "http://10.73.0.11:8080", "data": "/...", "bypass_after_s": 0.2, "off_for_s":
    5}
    {"program": "pool", ..., "store": "...", "at_least": 2, "most": 100, "grows_every_s": 1, "calls": 5}

It needs only the standard library of any Python 3 that the host's user can run.
"""

from __future__ import annotations

import collections
import concurrent.futures
import http.client
import http.server
import json
import os
import pathlib
import queue
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

Answer = Callable[[str], bytes]


class Store:
    """Has every key, and delays each answer."""

    def __init__(self, takes_s: float) -> None:
        self._takes_s = takes_s

    def __call__(self, path: str) -> bytes:
        time.sleep(self._takes_s)
        return path.encode().ljust(_BYTES, b".")


class Database:
    """Serves `at_once` requests, and `of_one_tenant` of them for one tenant, at a time. The others wait in line.

    The tenant is the first part of the path.
    """

    def __init__(self, takes_s: float, at_once: int, of_one_tenant: int) -> None:
        self._serve = Store(takes_s)
        self._places = threading.Semaphore(at_once)
        self._shares: collections.defaultdict[str, threading.Semaphore] = collections.defaultdict(
            lambda: threading.Semaphore(of_one_tenant)
        )

    def __call__(self, path: str) -> bytes:
        with self._shares[path.split("/")[1]], self._places:
            return self._serve(path)


def fetch(store: str, path: str) -> bytes:
    """Reads from the store, over a new connection. Raises OSError, HTTPException."""
    place = urllib.parse.urlsplit(store)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_STORE_WITHIN_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    if reply.status != http.HTTPStatus.OK:
        raise OSError(f"the store answered {reply.status}")
    return body


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
        """The bytes read; None as well if it takes too long."""
        if self._bypass_after_s is None:
            return act()
        if time.monotonic() >= self._off_until:
            try:
                return self._disk.submit(act).result(self._bypass_after_s)
            except concurrent.futures.TimeoutError:
                self._off_until = time.monotonic() + self._off_for_s
        return None


class Memory:
    """A cache in memory, which is empty when it starts: whatever is not in it costs the store a request."""

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
    """Each request waits for a worker, which calls the store `calls` times. The pool grows while work waits."""

    def __init__(self, store: str, at_least: int, most: int, grows_every_s: float, calls: int) -> None:
        self._store, self._calls = store, calls
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
            except Exception as error:  # noqa: BLE001 - it is the request's, not the worker's
                done.set_exception(error)
            else:
                done.set_result(bodies[-1])


class Handler(http.server.BaseHTTPRequestHandler):
    """One thread for each connection, so that only the program itself makes requests wait."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    program: Answer

    def do_GET(self) -> None:
        status, body = http.HTTPStatus.OK, b"ok"
        if self.path != HEALTH:
            try:
                body = type(self).program(self.path)
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
}


def main(config: dict[str, Any]) -> None:
    """Serves until it is killed."""
    address = config.pop("address"), config.pop("port")
    Handler.program = staticmethod(PROGRAMS[config.pop("program")](**config))
    Server(address, Handler).serve_forever()


if __name__ == "__main__":
    main(json.loads(pathlib.Path(sys.argv[1]).read_text()))
