"""What the tests of the audit's claims share: waiting, Consul agents on the loopback, and a server that is scripted."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import httpx2
import pytest

from hashidrill.core.util.wait import wait_until

START_WITHIN_S = 20
"""For a test whose binary may have to be built first: Vault takes a quarter of an hour on two idle cores."""


def wait(what, check, within_s=START_WITHIN_S, gap_s=0.05):
    """`check` returns what was waited for, or None."""

    async def look():
        value = check()
        return value, repr(value)

    return anyio.run(lambda: wait_until(what, look, within_s=within_s, gap_s=gap_s))


class Naps:
    """Naps while a block goes on, and knows how late each end of one came: how long the machine held everybody up."""

    def __init__(self, nap_s=0.02):
        self._nap_s, self._late, self._ended = nap_s, [], threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self):
        began = time.monotonic()
        while not self._ended.wait(self._nap_s):
            now = time.monotonic()
            self._late.append((began, now, now - began - self._nap_s))
            began = now

    def late_s(self, since, until):
        """Of all naps that were taken in that time, by time.monotonic."""
        return sum(late for began, ended, late in self._late if ended > since and began < until)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Agent:
    """A Consul agent on the loopback. `config` is added to what keeps it small and apart from others."""

    def __init__(self, binary, folder, name, *, ports=(), **config):
        self.name = name
        self.http, self.serf, rpc = free_ports(3)
        self.url = f"http://127.0.0.1:{self.http}"
        self.log = folder / f"{name}.log"
        off = dict.fromkeys(("serf_wan", "dns", "grpc", "grpc_tls"), -1)
        document = {
            "node_name": name,
            "data_dir": str(folder / name),
            "bind_addr": "127.0.0.1",
            "disable_update_check": True,
            "performance": {"raft_multiplier": 1},
            "ports": {"http": self.http, "serf_lan": self.serf, "server": rpc, **off, **dict(ports)},
            **config,
        }
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document))
        with self.log.open("w") as log:
            self.process = subprocess.Popen([binary.path, "agent", "-config-file", file], stdout=log, stderr=log)

    def said(self, pattern):
        return re.findall(pattern, self.log.read_text())

    def get(self, path):
        try:
            return httpx2.get(f"{self.url}/v1/{path}", timeout=2)
        except httpx2.HTTPError:
            return None

    def members(self, of="agent/members"):
        """Names of those it sees alive; None while it does not answer."""
        answer = self.get(of)
        return None if answer is None else {each["Name"] for each in answer.json() if each["Status"] == 1}

    def leader(self):
        answer = self.get("status/leader")
        return None if answer is None else answer.json() or None

    def stop(self):
        self.process.kill()
        self.process.wait(10)


@dataclass
class Request:
    method: str
    path: str
    headers: dict
    body: bytes = b""
    at: float = field(default_factory=time.monotonic)


@dataclass
class Answer:
    """`then` is what happens to the connection: `keep`, `close` (unannounced, after the answer), `drop` (closed without
    one) or `hang`.
    """

    status: int = 200
    body: bytes = b"{}"
    headers: dict = field(default_factory=dict)
    then: str = "keep"


class Scripted:
    """An HTTP server on the loopback whose `script(number, request)` says what the request of that number, from 1 on,
    is answered. `seen` are all requests, as they came; `closed` counts the connections that it has ended.
    """

    def __init__(self, script):
        self.seen, self.script, self.closed = [], script, 0
        self.released = threading.Event()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"scripted": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._end, self._server.shutdown_request = self._server.shutdown_request, self._shutdown_request
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def _shutdown_request(self, request):
        self._end(request)
        with self._lock:
            self.closed += 1

    def answer(self, request):
        with self._lock:
            self.seen.append(request)
            return self.script(len(self.seen), request)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body go out together, or the body waits for an acknowledgement of the head
    scripted: Scripted

    def _do(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.scripted.answer(Request(self.command, self.path, dict(self.headers), body))
        if answer.then == "hang":
            self.scripted.released.wait()
        if answer.then in {"hang", "drop"}:
            self.close_connection = True
            return
        content = b"" if self.command == "HEAD" else answer.body
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = answer.then == "close"

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_LIST = _do  # noqa: N815 - the standard library's

    def log_message(self, *_):
        pass


def failing(times, answer, then=None):
    """A script: `answer` for the first so many requests, and `then` after them."""
    after = then or Answer()
    return lambda number, _request: answer if number <= times else after


class Running:
    """A program with its output in a file; `said` finds in it what matches."""

    def __init__(self, folder, name, *command, **environment):
        self.log = folder / f"{name}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("VAULT_", "CONSUL_", "NOMAD_"))}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, env=kept | environment, cwd=folder
            )

    def said(self, pattern):
        return re.findall(pattern, self.log.read_text())

    def ended(self, within_s=START_WITHIN_S):
        """Its exit code."""
        return self.process.wait(within_s)

    @property
    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """As a supervisor does; what does not heed that is killed."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


@pytest.fixture
def run(tmp_path):
    """`run(name, *command, **environment)` starts a program that ends with the test."""
    running = []

    def start(name, *command, **environment):
        running.append(Running(tmp_path, name, *command, **environment))
        return running[-1]

    yield start
    for each in reversed(running):
        each.stop()
