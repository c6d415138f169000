"""What the tap saw and what the caller got: one `Attempt` for each request, one `Run` for each operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

from hashidrill.retry.catalogue import FAULTS
from hashidrill.util.redaction import fingerprint

SECOND = 1_000_000_000
_IDEMPOTENCY_KEY = b"idempotency-key"
_KEY_HEADERS = (b"if-match", b"if-none-match", b"if-unmodified-since")
_KEY_PARAMETERS = ("cas", "acquire", "release")
_PLACE_PARAMETERS = {"index", "wait", "hash"}
WRITES_NEEDING_A_KEY = frozenset({"POST", "PATCH", "PUT"})


@dataclass(frozen=True)
class Attempt:
    """One request (or connection, or lookup, where it got no further) as the tap saw it.

    Times are ns of the tap's clock: `start_ns` is the arrival of its first byte (of the connection for `refused`),
    `end_ns` the moment that its reply, or its failure, was handed to the kernel.
    """

    start_ns: int
    end_ns: int
    connection: int
    """Counted from 1; 0 where there never was one (`refused`, `dns`)."""
    reused: bool = False
    """An earlier request of this connection was answered."""
    method: str = ""
    path: str = ""
    """With its query, but without tokens: `?token=[redacted]`."""
    key: str = ""
    """What makes a replay harmless: `cas=7`, a fingerprint of its Idempotency-Key, ...; empty for nothing."""
    fault: str = ""
    """Name of the fault that it was given; empty: it was passed through."""
    status: int = 0
    """What the client was answered; 0: nothing, or not to its end."""
    received: int = 0
    """Bytes of the request's body."""
    sent: int = 0
    """Bytes of the reply's body."""
    upstream: bool = False
    """The upstream got it."""
    abandoned: bool = False
    """The client closed the connection, or was ended, before it had its reply."""
    retry_after_s: float | None = None
    """What Retry-After told the client, in seconds from `end_ns`."""
    index: int = 0
    """X-Consul-Index of the reply, as the client got it; 0: none."""
    backwards: bool = False
    """The tap made that index smaller than the one before."""
    granted: bool | None = None
    """What Consul answered to `?acquire=`."""
    operation: str = ""
    """Which operation it belongs to, where the tap was told."""

    @property
    def asked_index(self) -> int | None:
        """The index of a blocking query; None when the request has none."""
        return _number(self.parameters.get("index"))

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The query, the last one of each name."""
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    @property
    def what(self) -> tuple[str, str]:
        """Method and path, the same for every attempt of one operation: without the place in a blocking query."""
        split = urlsplit(self.path)
        rest = sorted((k, v) for k, v in parse_qsl(split.query, keep_blank_values=True) if k not in _PLACE_PARAMETERS)
        return self.method, f"{split.path}?{rest}"

    @property
    def needs_a_key(self) -> bool:
        """A write that, sent twice, may be applied twice."""
        return self.method in WRITES_NEEDING_A_KEY and not self.key


@dataclass(frozen=True)
class Run:
    """One operation: its attempts in order, and what its caller got.

    `ended`: the caller came back by itself, before the deadline. `usual` says how often each request occurs in this
    operation without any fault; what is not in it occurs once.
    """

    attempts: tuple[Attempt, ...]
    ok: bool
    ended: bool
    start_ns: int
    end_ns: int
    usual: dict[tuple[str, str], int] = field(default_factory=dict)
    cpu_s: float = 0.0
    """Processor time that the caller took, in seconds, where that is known."""
    note: str = ""
    """How the caller ended, for a person: `exit status 1`, `stopped after 90 attempts`."""

    @cached_property
    def faulted(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.fault)

    def at(self) -> tuple[Attempt, ...]:
        """The attempts of the request that was failed first, from that one on; empty when none was failed."""
        if not self.faulted:
            return ()
        first = self.faulted[0]
        later = self.attempts[self.attempts.index(first) :]
        if not first.method:  # it never came to a request: whatever comes next is the next attempt
            known = next((attempt.what for attempt in later if attempt.method), None)
            return tuple(a for a in later if not a.method or a.what == known)
        return tuple(a for a in later if not a.method or a.what == first.what)

    @property
    def retries(self) -> int:
        """Attempts of the failed request after its first one, less those that this operation makes anyway."""
        attempts = self.at()
        what = next((attempt.what for attempt in attempts if attempt.method), None)
        usual = self.usual.get(what, 1) if what else 1
        return max(0, len(attempts) - usual)

    def gaps_s(self) -> list[float]:
        """Seconds from the end of each failed attempt to the start of the next one."""
        attempts = self.at()
        return [
            max(0.0, (later.start_ns - earlier.end_ns) / SECOND)
            for earlier, later in pairwise(attempts)
            if earlier.fault
        ]


def replay_key(path: str, headers: list[tuple[bytes, bytes]]) -> str:
    """What makes it harmless to send this request twice: an idempotency key, a precondition, Consul's cas or lock."""
    for name, value in headers:
        if name == _IDEMPOTENCY_KEY:  # whoever has it could replay the request
            return f"{name.decode()}: {fingerprint(value.decode(errors='replace'))}"
        if name in _KEY_HEADERS:
            return f"{name.decode()}: {value.decode(errors='replace')}"
    if "?" not in path:
        return ""
    for parameter, text in parse_qsl(urlsplit(path).query, keep_blank_values=True):
        if parameter in _KEY_PARAMETERS:
            return f"{parameter}={text}"
    return ""


def is_ambiguous(fault: str) -> bool:
    """Whether a client cannot know, after this fault, if its request was carried out."""
    return fault in FAULTS and FAULTS[fault].ambiguous


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
