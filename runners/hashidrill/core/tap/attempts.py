"""The tap's record of requests and the caller's results: one `Attempt` for each request, one `Run` for each operation.

HTTP does not say which attempts of an operation repeat the failed request. Three sources decide:

1. The client: a header (`HASHIDRILL_OPERATION_HEADER` names it) that is the same in all attempts.
2. The same method, path, query, body and idempotency key. Parameters that differ in each request by design (a nonce,
a cache-buster), the place in a blocking query and preconditions are ignored.
3. The requests that the operation sends without any fault: as many similar requests do not count as repeats, and
parts that differ between runs do not identify a request.

Cases that these sources leave open are doubts, and get no verdict.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from urllib.parse import parse_qsl, urlsplit

from hashidrill.core.errors import HypothesisInvalidError, UsageError
from hashidrill.core.tap.catalogue import FAULTS
from hashidrill.core.util.redaction import fingerprint

SECOND = 1_000_000_000
_IDEMPOTENCY_KEY = b"idempotency-key"
_KEY_HEADERS = (b"if-match", b"if-none-match", b"if-unmodified-since")
WRITES_NEEDING_A_KEY = frozenset({"POST", "PATCH", "PUT"})
HEADER = "X-Hashidrill-Operation"
HEADER_VARIABLE = "HASHIDRILL_OPERATION_HEADER"
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
PRECONDITIONS = ("cas", "acquire", "release")
_PLACE = {"index", "wait", "hash"}
_NONCES = {
    "",
    "cb",
    "bust",
    "buster",
    "cachebust",
    "cachebuster",
    "nocache",
    "nonce",
    "rnd",
    "rand",
    "random",
    "ts",
    "t",
    "timestamp",
    "requestid",
    "reqid",
    "xrequestid",
    "attempt",
    "retry",
    "retries",
    "try",
}
"""Parameters that clients set differently in each request, in small letters, without `-` and `_` (`_` itself is "")."""
_BARE_NONCE = re.compile(r"[0-9.]{8,}|[0-9a-f-]{16,}")
"""A parameter without a value that is a nonce, like `?1732589123`."""


class DoubtError(HypothesisInvalidError):
    """Raised if a repeated request cannot be distinguished from a new one, so there is no verdict."""


@dataclass(frozen=True)
class Attempt:
    """One request as the tap saw it; only a connection or a DNS lookup if the client got no further.

    Times are ns of the tap's clock: `start_ns` is the arrival of its first byte (for `refused`, of the connection),
    `end_ns` the moment at which its reply, or its failure, was handed to the kernel.
    """

    start_ns: int
    end_ns: int
    connection: int
    """Counted from 1; 0 if there was no connection (`refused`, `dns`)."""
    reused: bool = False
    """Whether an earlier request on this connection was answered."""
    method: str = ""
    path: str = ""
    """The path with its query, without tokens: `?token=[redacted]`."""
    key: str = ""
    """The part that makes a replay harmless: `cas=7`, a fingerprint of its Idempotency-Key, ...; "" if it has none."""
    fault: str = ""
    """Name of the fault that the tap injected; empty: the request was passed through."""
    status: int = 0
    """The status sent to the client; 0 for no reply or an incomplete one."""
    received: int = 0
    """Bytes of the request's body."""
    sent: int = 0
    """Bytes of the reply's body."""
    upstream: bool = False
    """Whether the upstream got the request."""
    abandoned: bool = False
    """Whether the client closed the connection, or was ended, before it had the reply."""
    retry_after_s: float | None = None
    """The wait in Retry-After, in seconds from `end_ns`."""
    index: int = 0
    """X-Consul-Index of the reply, as the client got it; 0 if there is none."""
    backwards: bool = False
    """Whether the tap made that index smaller than the previous one."""
    granted: bool | None = None
    """Consul's answer to `?acquire=`."""
    operation: str = ""
    """The operation that the attempt belongs to, if the tap knows it."""
    body: str = ""
    """A fingerprint of the request's body; "" if there is none, or it was not read."""
    said: str = ""
    """A fingerprint of the client's own operation id, from a header (HEADER)."""

    @property
    def asked_index(self) -> int | None:
        """The index of a blocking query; None when the request has none."""
        return _number(self.parameters.get("index"))

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The query's parameters; the last value of each name counts."""
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    @property
    def bare_path(self) -> str:
        """The path without its query."""
        return urlsplit(self.path).path

    @cached_property
    def what(self) -> tuple[str, str]:
        """Method and path, without parts that differ between attempts of one operation."""
        return self.method, f"{self.bare_path}?{parameters(self.path)}"

    @property
    def idempotency_key(self) -> bool:
        """Whether a key, rather than a precondition, makes a replay harmless."""
        return self.key.startswith(_IDEMPOTENCY_KEY.decode())

    @property
    def needs_a_key(self) -> bool:
        """Whether this is a write that may be applied twice if it is sent twice."""
        return self.method in WRITES_NEEDING_A_KEY and not self.key


@dataclass(frozen=True)
class Again:
    """The attempts of the failed request and of all requests that are surely the same, in order."""

    attempts: tuple[Attempt, ...] = ()
    usual: int = 1
    """The number of such requests that the operation sends without a fault."""
    doubt: str = ""
    """Why there may be more such attempts; "" if there are no more."""


@dataclass(frozen=True)
class Run:
    """One operation: its attempts in order, and its caller's result.

    `ended`: whether the caller returned by itself, before the deadline. `plain`: the requests that this operation sends
    without any fault; empty if unknown.
    """

    attempts: tuple[Attempt, ...]
    ok: bool
    ended: bool
    start_ns: int
    end_ns: int
    plain: tuple[Attempt, ...] = field(default=(), repr=False)
    cpu_s: float = 0.0
    """Processor time of the caller in seconds, if known."""
    note: str = ""
    """How the caller ended, as text: `exit status 1`, `stopped after 90 attempts`."""
    crash: str = ""
    """The last line of the caller's traceback, if an error in its code ended it."""

    @cached_property
    def faulted(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.fault)

    @cached_property
    def again(self) -> Again:
        """The first request that the tap failed, and each repetition of it."""
        return sent_again(self.attempts, self.plain)

    def at(self) -> tuple[Attempt, ...]:
        """The attempts of the request that the tap failed first, from that failure on; empty if it failed none."""
        return self.again.attempts

    @property
    def doubt(self) -> str:
        """Why it is unknown whether the failed request was repeated; "" if known."""
        return self.again.doubt

    @property
    def retries(self) -> int:
        """The retries of the failed request: its later attempts, minus those that the client sends even without a
        fault. Raises DoubtError.
        """
        if self.doubt:
            raise DoubtError(self.doubt)
        return max(0, len(self.at()) - self.again.usual)

    @property
    def changed_key(self) -> tuple[str, str] | None:
        """The first attempt's idempotency key or precondition, and a later attempt's if it differs; otherwise None."""
        keys = [attempt.key for attempt in self.at() if attempt.method]
        return next(((keys[0], key) for key in keys if key != keys[0]), None)

    @property
    def unkeyed(self) -> bool:
        """Whether the failed request is a write that could be applied twice if the client sent it again unchanged."""
        request = next((attempt for attempt in self.at() if attempt.method), None)
        if request is None or request.method not in WRITES_NEEDING_A_KEY:
            return False
        return request.needs_a_key or self.changed_key is not None

    def gaps_s(self) -> list[float]:
        """Seconds from the end of each failed attempt to the start of the next one. Raises DoubtError."""
        if self.doubt:
            raise DoubtError(self.doubt)
        attempts = self.at()
        return [
            max(0.0, (later.start_ns - earlier.end_ns) / SECOND)
            for earlier, later in pairwise(attempts)
            if earlier.fault
        ]


def replay_key(path: str, headers: list[tuple[bytes, bytes]]) -> str:
    """The part that makes a repetition harmless: an idempotency key, a precondition, Consul's cas or lock."""
    for name, value in headers:
        if name == _IDEMPOTENCY_KEY:  # a reader of the key itself could replay the request
            return f"{name.decode()}: {fingerprint(value.decode(errors='replace'))}"
        if name in _KEY_HEADERS:
            return f"{name.decode()}: {value.decode(errors='replace')}"
    if "?" not in path:
        return ""
    for parameter, text in parse_qsl(urlsplit(path).query, keep_blank_values=True):
        if parameter in PRECONDITIONS:
            return f"{parameter}={text}"
    return ""


def header_in(environment: Mapping[str, str]) -> bytes:
    """The header, in small letters, with which a client names the operation of a request. Raises UsageError."""
    name = environment.get(HEADER_VARIABLE) or HEADER
    if not _TOKEN.fullmatch(name):
        raise UsageError(f"{HEADER_VARIABLE}={name!r} is not the name of a header; write it like {HEADER}")
    return name.lower().encode()


def parameters(path: str) -> list[tuple[str, str]]:
    """The query without parts that differ between attempts of one operation, sorted."""
    pairs = parse_qsl(urlsplit(path).query, keep_blank_values=True)
    return sorted((name, value) for name, value in pairs if not _differs_anyway(name, value))


def _differs_anyway(name: str, value: str) -> bool:
    plain = name.lower().replace("-", "").replace("_", "")
    bare = not value and _BARE_NONCE.fullmatch(plain) is not None
    return name in _PLACE or name in PRECONDITIONS or plain in _NONCES or bare


def sent_again(attempts: Sequence[Attempt], plain: Sequence[Attempt]) -> Again:
    """The first failed request in `attempts`, and its later attempts; `plain`: the requests without a fault."""
    first = next((index for index, each in enumerate(attempts) if each.fault), len(attempts))
    before, later = attempts[:first], attempts[first:]
    failed = _request(before, later, plain)
    if failed is None:
        return Again(tuple(each for each in later if not each.method))
    same = [each for each in later if not each.method or _said_same(failed, each)]
    usual = _usual(before, plain, lambda each: _same(failed, each))
    known = {each.bare_path for each in plain}
    alike = [each for each in later if each.method and each not in same and _alike(failed, each, plain, known)]
    expected = _usual(before, plain, lambda each: _alike(failed, each, plain, set()))
    told = not plain and all(failed.said and each.said for each in alike)
    if not alike or len(same) > usual or told or (plain and len(same) + len(alike) <= expected):
        return Again(tuple(same), usual)
    stays = any(each.what == failed.what and each.body == failed.body for each in plain)
    if not plain or stays or (failed.said and any(each.said for each in alike)):
        return Again(tuple(same), usual, _doubt(failed, alike[0]))
    return Again(tuple(each for each in later if each in same or each in alike), expected)


def _request(before: Sequence[Attempt], later: Sequence[Attempt], plain: Sequence[Attempt]) -> Attempt | None:
    """The failed request. If the failed attempt has no request, the next one, unless the client skipped it."""
    requests = [each for each in later if each.method]
    if not requests or later[0].method:
        return requests[0] if requests else None
    position = sum(1 for each in before if each.method)
    if position >= len(plain):
        return requests[0]
    again = next((each for each in requests if _same(plain[position], each)), None)
    went_on = any(_same(each, requests[0]) for each in plain[position + 1 :])
    return again or (None if went_on else requests[0])


def _usual(before: Sequence[Attempt], plain: Sequence[Attempt], fits: Callable[[Attempt], bool]) -> int:
    """The number of fitting attempts that follow `before` if there is no fault; at least one."""
    return max(1, sum(map(fits, plain)) - sum(map(fits, before)))


def _said_same(one: Attempt, other: Attempt) -> bool:
    """Compares attempts of one run: by the client's own id if both have it, otherwise by the requests."""
    return one.said == other.said if one.said and other.said else _same(one, other)


def _same(one: Attempt, other: Attempt) -> bool:
    """Whether the two attempts certainly carry the same request."""
    if one.method != other.method or one.bare_path != other.bare_path:
        return False
    if one.idempotency_key and one.key == other.key:
        return True
    if one.what == other.what:
        return one.body == other.body or not (one.body and other.body)
    return bool(one.body) and one.body == other.body


def _alike(one: Attempt, other: Attempt, plain: Sequence[Attempt], known: set[str]) -> bool:
    """Whether the two attempts may carry the same request: the query or body differs, or one part of the path.

    `plain` was sent without any fault; a path in `known` belongs to another request.
    """
    if one.method != other.method or one.bare_path == other.bare_path:
        return one.method == other.method
    parts, others = one.bare_path.split("/"), other.bare_path.split("/")
    if len(parts) != len(others) or sum(a != b for a, b in zip(parts, others, strict=True)) > 1:
        return False
    if not plain:
        return bool(one.body) and one.body == other.body
    return other.bare_path not in known and all(each.bare_path != one.bare_path for each in plain)


def _doubt(failed: Attempt, other: Attempt) -> str:
    differs = "path" if failed.bare_path != other.bare_path else "query" if failed.what != other.what else "body"
    return (
        f"{failed.method} {failed.bare_path} failed, and another {failed.method} with a different {differs} followed:"
        f" it is unknown whether that is the same operation. Send the header {HEADER} with the same value in all"
        f" attempts of an operation, or name another header in {HEADER_VARIABLE}"
    )


def is_ambiguous(fault: str) -> bool:
    """Whether this fault leaves the client unsure if the server carried out its request."""
    return fault in FAULTS and FAULTS[fault].ambiguous


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
