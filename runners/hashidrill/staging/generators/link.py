"""A stream of messages that outlives its connections: without loss, without duplicates, in order, in bounded memory.

Each end numbers what it sends and keeps it until the other end has acknowledged it. After a lost connection, both
report the last message that they received, and resend everything after it. A duplicate is dropped; a missing message
is an error, never a shorter stream. This module does no I/O.
"""

import json
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hashidrill.core.errors import DatacenterError
from hashidrill.core.util import safe_json

KEPT_BYTES = 64 << 20
"""The most unacknowledged bytes that one end keeps. An open loop cannot be slowed down, so more is an error."""
MOST_BYTES = 32 << 20
"""The most bytes of one message."""
ACKNOWLEDGE_BYTES = 256 << 10
"""After this many bytes, or with the next ping, a receiver acknowledges."""
_HEAD = struct.Struct(">BQI")


class StreamError(DatacenterError):
    """A stream has a gap, is from another process, or is too fast for its receiver. The run is INVALID."""


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    """Once at the start of each connection, from both ends: JSON, with the last number that was received."""
    MESSAGE = 2
    """Messages are numbered from 1."""
    ACKNOWLEDGE = 3
    """Its number is the number of the last received message."""
    PING = 4
    """JSON; answered at once with PONG."""
    PONG = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """The unit of a connection: 13 bytes of kind, number and length, and a payload."""

    kind: Kind
    number: int = 0
    payload: bytes = b""

    def encoded(self) -> bytes:
        return _HEAD.pack(self.kind, self.number, len(self.payload)) + self.payload

    def json(self) -> dict[str, Any]:
        """Raises StreamError if the payload is not a JSON object."""
        try:
            found = safe_json.parse(self.payload)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StreamError(f"a {self.kind.name.lower()} that is not a JSON object: {self.payload[:100]!r}")
        return found


def json_frame(kind: Kind, **fields: Any) -> bytes:
    return Frame(kind, 0, json.dumps(fields, separators=(",", ":")).encode()).encoded()


class Frames:
    """Accepts bytes as they arrive, and returns whole frames."""

    def __init__(self) -> None:
        self._torn = bytearray()

    def fed(self, data: bytes) -> Iterator[Frame]:
        """Raises StreamError for data that no hashidrill process sends."""
        self._torn += data
        at = 0
        try:
            while len(self._torn) - at >= _HEAD.size:
                kind, number, length = _HEAD.unpack_from(self._torn, at)
                if kind not in Kind.__members__.values() or length > MOST_BYTES:
                    raise StreamError(f"the data is not a hashidrill stream: kind {kind}, {length} bytes")
                end = at + _HEAD.size + length
                if len(self._torn) < end:
                    break
                frame = Frame(Kind(kind), number, bytes(self._torn[at + _HEAD.size : end]))
                at = end
                yield frame
        finally:
            del self._torn[:at]


class Link:
    """One end: its unacknowledged messages, and the number of the last message that it received."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = kept_bytes
        self._kept: deque[tuple[int, bytes]] = deque()
        self._sent = 0
        self._acknowledged = 0
        self._unsaid_bytes = 0
        self.kept_bytes = 0
        self.received = 0
        """The number of the last message that was accepted."""

    def send(self, payload: bytes) -> bytes:
        """The frame for the message, stored until it is acknowledged; the caller writes it if there is a connection.

        Raises StreamError if the other end lags too far.
        """
        if self.kept_bytes + len(payload) > self._most_bytes:
            raise StreamError(
                f"the peer has not acknowledged {self.kept_bytes / 1e6:.1f} MB of {self._sent - self._acknowledged}"
                f" messages, but at most {self._most_bytes / 1e6:.0f} MB are kept: offer less, or use fewer workers"
            )
        self._sent += 1
        self._kept.append((self._sent, payload))
        self.kept_bytes += len(payload)
        return Frame(Kind.MESSAGE, self._sent, payload).encoded()

    def acknowledged(self, number: int) -> None:
        """The other end has everything up to that number. Raises StreamError if that number was never sent."""
        if number > self._sent:
            raise StreamError(f"message {number} is acknowledged, but only {self._sent} were sent: another process?")
        self._acknowledged = max(self._acknowledged, number)
        while self._kept and self._kept[0][0] <= number:
            self.kept_bytes -= len(self._kept.popleft()[1])

    def resumed(self, received: int) -> Iterator[bytes]:
        """The frames to send again on a new connection whose other end has received that many.

        Raises StreamError if the other end acknowledged more before.
        """
        if received < self._acknowledged:
            raise StreamError(
                f"the other end has {received} messages after it acknowledged {self._acknowledged}: another process?"
            )
        self.acknowledged(received)
        return iter([Frame(Kind.MESSAGE, number, payload).encoded() for number, payload in self._kept])

    def take(self, frame: Frame) -> bytes | None:
        """The payload of a message; None for a duplicate. Raises StreamError for a gap."""
        if frame.number <= self.received:
            return None
        if frame.number != self.received + 1:
            raise StreamError(f"a gap in the stream: after message {self.received} came message {frame.number}")
        self.received = frame.number
        self._unsaid_bytes += len(frame.payload)
        return frame.payload

    def acknowledgement(self, *, now: bool = False) -> bytes:
        """The acknowledgement to write; empty while too few bytes wait for it."""
        if not self._unsaid_bytes or (self._unsaid_bytes < ACKNOWLEDGE_BYTES and not now):
            return b""
        self._unsaid_bytes = 0
        return Frame(Kind.ACKNOWLEDGE, self.received).encoded()

    @property
    def outstanding(self) -> int:
        """How many messages the other end may lack."""
        return len(self._kept)
