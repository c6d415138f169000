"""One attempt at the operation: what the home-made clients repeat, each in its own way."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass

KEY = "/v1/kv/hashidrill/retry"


@dataclass(frozen=True)
class Answer:
    """`status` is 0 when there was no whole reply. `retry_after` is the header as it came, or an empty string."""

    status: int
    retry_after: str = ""
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return self.status == 200


def read(base: str, *, timeout_s: float | None = 1.0) -> Answer:
    """GET of the key on a fresh connection."""
    return send(urllib.request.Request(base + KEY), timeout_s=timeout_s)


def send(request: urllib.request.Request, *, timeout_s: float | None = 1.0) -> Answer:
    """The request, once, on a fresh connection: urllib keeps none."""
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return Answer(reply.status, "", reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers.get("Retry-After", ""))
    except (OSError, http.client.HTTPException):
        return Answer(0)
