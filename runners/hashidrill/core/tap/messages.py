"""What goes through the tap: whole requests and whole replies."""

from __future__ import annotations

from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, as the tap reads them."""


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request, its target in origin form."""

    method: str
    target: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; the headers are end to end ones only."""

    status: int
    headers: Headers
    body: bytes
    reason: bytes = b""

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")


def origin_form(target: bytes) -> str:
    """The path and query of a request's target, which a client that uses a proxy gives as a whole URL."""
    text = target.decode("ascii", errors="replace")
    if "://" in text[:9]:
        rest = text.partition("://")[2]
        return "/" + rest.partition("/")[2]
    return text
