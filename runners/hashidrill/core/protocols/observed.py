"""What faults put on a link and observers see of it: the plain values in the protocols of
hashidrill.core.protocols.abc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.core.util.foreign import parse


@dataclass(frozen=True)
class Timing:
    """One canary operation: its length in seconds, and the errno it ended with (0: success)."""

    seconds: float
    errno: int = 0


@dataclass(frozen=True)
class Barrier:
    """A packet rule that keeps packets of some addresses out or in. `port`: of TCP, on this host; None for all."""

    table: str
    chain: str
    addresses: frozenset[str]
    port: int | None = None


@dataclass(frozen=True)
class PodSeen:
    """One pod as its kubelet reports it. `containers`: how often each was restarted."""

    name: str
    uid: str
    ready: bool
    owner: str
    """The kind of what keeps it there, like StatefulSet; "" for nobody."""
    containers: Mapping[str, int]


@dataclass(frozen=True)
class Toxic:
    """One toxic of toxiproxy, in its own words: `attributes` are whole numbers, times in ms unless its docs differ."""

    type: str
    attributes: Mapping[str, int]
    stream: str = "upstream"
    toxicity: float = 1.0


@dataclass(frozen=True)
class Exchange:
    """One TCP connection of a canary: seconds from its first byte to its end, errno (0: all came), bytes received.

    ENODATA says that the other side closed the connection before all had come.
    """

    seconds: float
    errno: int = 0
    received: int = 0


@dataclass(frozen=True)
class ExchangeRequest:
    """What a canary sends and wants back over each of some connections, `at_once` of them at a time.

    `until_closed` waits for the other side, which closes when it has sent all, to do so.
    """

    upload_bytes: int = 0
    download_bytes: int = 1
    timeout_s: float = 1.0
    connections: int = 1
    until_closed: bool = False
    at_once: int = 32


@dataclass(frozen=True)
class ApiAnswer:
    """What an agent's HTTP API answered, whatever the status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""

    def json(self) -> Any:
        """Raises FaultError for a body that is not JSON."""
        try:
            return parse(self.body)
        except ValueError:
            raise FaultError(f"HTTP {self.status}, not JSON: {self.body[:200]!r}") from None
