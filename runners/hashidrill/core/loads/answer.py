"""The answer to a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hashidrill.core.protocols.abc import Reason


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. Without a reply, `status` is 0, and `sent` says whether the request may have left."""

    status: int
    body: bytes = b""
    error: str = ""
    sent: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""
    reason: str = ""
    """The generator's own reason for the missing answer: overloaded, cancelled."""

    @property
    def why(self) -> str:
        """The code of an operation that asked for another answer than this."""
        if self.reason:
            return self.reason
        if not self.sent or not self.status:
            return Reason.NO_ANSWER if self.sent else Reason.NOT_SENT
        if self.status < 400:
            return Reason.UNEXPECTED
        return Reason.REFUSED if self.status < 500 else Reason.SERVER_ERROR


class LostError(Exception):
    """The connection broke after the request may have been sent."""


def shown_body(body: bytes) -> str:
    """The start of it, for an error text."""
    return body[:200].decode(errors="replace") or "(empty body)"


def read_error(answer: Answer) -> str:
    """Why a read failed: there was no answer, or not the status 200."""
    return answer.error if answer.status == 0 else f"HTTP {answer.status}: {shown_body(answer.body.strip())}"
