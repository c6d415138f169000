"""What an operation says besides `ok`, `fail` or `unknown`: why, as a code, and what its sort of load adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why an operation was not ok."""

    OVERLOADED = "overloaded"
    """The generator itself could not send it: that says nothing about the datacenter."""
    CANCELLED = "cancelled"
    """Still in flight when the load was stopped."""
    NOT_SENT = "not-sent"
    """No connection: it certainly had no effect."""
    NO_ANSWER = "no-answer"
    """It may have left, and no whole answer came."""
    REFUSED = "refused"
    """Answered with 4xx, or with a plain no."""
    SERVER_ERROR = "server-error"
    """Answered with 5xx."""
    UNEXPECTED = "unexpected"
    """Answered, but not what such an operation is answered with."""
    SERVICE_ENDED = "service-ended"
    """A client that runs all the time ended by itself: no operation of its own."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What operations of one sort say beside the columns of all: a row of the table `detail_TABLE` of a recording."""

    table: str
    fields: Mapping[str, str | float | bool | None]
