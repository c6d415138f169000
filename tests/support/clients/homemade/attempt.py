"""One attempt at the operation, and a plain way to repeat it: what the home-made clients have in common."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass

KEY = "/v1/kv/hashidrill/retry"


@dataclass(frozen=True)
class Answer:
    """`status` is 0 when there was no whole reply in time. `retry_after` is that header as it came."""

    status: int
    retry_after: str = ""
    headers: http.client.HTTPMessage | None = None
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return self.status == 200


def read(base: str, query: str = "", *, timeout_s: float | None = 1.0) -> Answer:
    """GET of the key."""
    return send(urllib.request.Request(base + KEY + query), timeout_s=timeout_s)


def write(base: str, query: str = "", *, timeout_s: float | None = 1.0) -> Answer:
    """PUT of the key."""
    return send(urllib.request.Request(base + KEY + query, data=b"from a client", method="PUT"), timeout_s=timeout_s)


def send(request: urllib.request.Request, *, timeout_s: float | None = 1.0) -> Answer:
    """The request, once, on a connection of its own (urllib keeps none). The timeout is for all of it, body too."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return Answer(reply.status, "", reply.headers, _body(reply, deadline))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers.get("Retry-After", ""))
    except (OSError, http.client.HTTPException):
        return Answer(0)


def _body(reply: http.client.HTTPResponse, deadline: float | None) -> bytes:
    # the timeout of a socket is for one read: a body that drips would never meet it
    body = b""
    while piece := reply.read1(65536):
        body += piece
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError("the body did not come in time")
    if reply.length:
        raise http.client.IncompleteRead(body, reply.length)
    return body


def repeat(attempt: Callable[[], bool], gaps_s: Iterable[float]) -> bool:
    """Attempts until one is good, with these gaps in between; False when the gaps are used up."""
    for gap_s in gaps_s:
        if attempt():
            return True
        time.sleep(gap_s)
    return attempt()
