"""An HTTP server on the loopback that answers what a script says."""

import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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
