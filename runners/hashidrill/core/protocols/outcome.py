"""What an operation records besides `ok`, `fail` or `unknown`: the reason, as a code, and the details of its load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why an operation was not ok."""

    OVERLOADED = "overloaded"
    """The generator itself could not send it, which says nothing about the datacenter."""
    CANCELLED = "cancelled"
    """Still in flight when the load was stopped."""
    NOT_SENT = "not-sent"
    """No connection: it certainly had no effect."""
    NO_ANSWER = "no-answer"
    """It may have been sent, but no complete answer came."""
    REFUSED = "refused"
    """Answered with 4xx, or with a plain no."""
    SERVER_ERROR = "server-error"
    """Answered with 5xx."""
    UNEXPECTED = "unexpected"
    """Answered with something that does not answer this kind of operation."""
    SERVICE_ENDED = "service-ended"
    """A long-running client exited by itself; this is no operation of its own."""
    UNREPORTED = "unreported"
    """A long-running client went silent; in its steady state it would have reported this operation by then."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What the operations of one kind of load record in addition: a row of the table `detail_TABLE` of a recording."""

    table: str
    fields: Mapping[str, str | float | bool | None]
