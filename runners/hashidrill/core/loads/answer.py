"""The answer to a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from hashidrill.core.protocols.abc import Reason

Request = tuple[str, str, bytes | None]
"""Method, URL and body."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Headers(Mapping[str, str]):
    """Headers by lower-case name, decoded at the first access: most answers are judged without headers."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        self._raw = raw

    @cached_property
    def _read(self) -> dict[str, str]:
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._raw}

    def __getitem__(self, name: str) -> str:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


class Answer(NamedTuple):
    """An answer. Without a reply, `status` is 0, and `sent` says whether the request may have been sent."""

    status: int
    body: bytes = b""
    error: str = ""
    sent: bool = True
    headers: Mapping[str, str] = NO_HEADERS
    """By lower-case name."""
    reason: str = ""
    """The generator's own reason for the missing answer: overloaded, cancelled."""

    @property
    def why(self) -> str:
        """The code of an operation that expected a different answer from this one."""
        if self.reason:
            return self.reason
        if not self.sent or not self.status:
            return Reason.NO_ANSWER if self.sent else Reason.NOT_SENT
        if self.status < 400:
            return Reason.UNEXPECTED
        return Reason.REFUSED if self.status < 500 else Reason.SERVER_ERROR


def shown_body(body: bytes) -> str:
    """The start of the body, for an error text."""
    return body[:200].decode(errors="replace") or "(empty body)"


def read_error(answer: Answer) -> str:
    """Why a read failed: there was no answer, or the status was not 200."""
    return answer.error if answer.status == 0 else f"HTTP {answer.status}: {shown_body(answer.body.strip())}"
