"""The Go profiles of a recording: which were taken, what each contains, and the difference between two.

Reads the part of pprof's profile.proto (github.com/google/pprof/blob/main/proto/profile.proto) that Go writes: a
library for it would need generated code and a protocol compiler. A recording may be a stranger's: a file that is torn,
or that unpacks to more than the limits, raises ValueError.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hashidrill.core.errors import HypothesisInvalidError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hashidrill.core.recording.reader import Recording

KINDS = ("cpu", "goroutine", "mutex", "block")
HEALTHY = "steady state"
"""The `why` of profiles that are taken before the faults."""
MOST_BYTES = 4_000_000
"""For one file. Two runs of raft/bloated-leader had CPU profiles of 1 to 8 kB, goroutines of 11 to 16 kB (2026-11)."""
_MOST_UNPACKED, _MOST_FRAMES = 24_000_000, 2_000_000
_SECONDS = "nanoseconds"
_SKEW_S, _SKEW_SHARE = 5.0, 0.25
"""By how much the time between two profiles may differ between the server's clock and the run's clock."""


class Taken(NamedTuple):
    """One profile of a recording. `why`: HEALTHY, or the promise that was broken."""

    file: str
    host: str
    agent: str
    kind: str
    began_ns: int
    ended_ns: int
    why: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.agent} on {self.host} at {self.began_ns / 1e9:.1f}s"


@dataclass(frozen=True)
class Profile:
    """Stacks of function names, the root first, each with its amounts in the units of `types`.

    `time_ns` is the start by the server's clock; `duration_ns` is the length, 0 for a state at one moment.
    """

    types: Sequence[tuple[str, str]]
    stacks: Mapping[tuple[str, ...], Sequence[int]]
    time_ns: int
    duration_ns: int

    @property
    def samples(self) -> int:
        """How often a stack was seen; for goroutines, their number."""
        return sum(values[0] for values in self.stacks.values())

    @property
    def unit(self) -> str:
        """The unit of `weights`: `cores` (of a CPU), `s/s` (seconds waited in each second), or what is counted."""
        if self.types[-1][1] != _SECONDS:
            return f"{self.types[-1][0]}s"
        return "cores" if self.types[-1][0] == "cpu" else "s/s"

    @property
    def one(self) -> float:
        """The average weight of a sample; 0 if there are no samples."""
        return self.total / self.samples if self.samples else 0.0

    @property
    def total(self) -> float:
        return sum(self.weights.values())

    @cached_property
    def weights(self) -> dict[tuple[str, ...], float]:
        """The amount of each stack. Times are divided by the profile's length, so that profiles can be compared."""
        per = self.duration_ns if self.types and self.types[-1][1] == _SECONDS else 1
        return {stack: values[-1] / per for stack, values in self.stacks.items()} if per else {}

    def of(self, functions: AbstractSet[str]) -> float:
        """The amount of all stacks that contain one of these functions at any place."""
        return sum(weight for stack, weight in self.weights.items() if any(name in functions for name in stack))

    @property
    def functions(self) -> set[str]:
        return {name for stack in self.stacks for name in stack}


class Change(NamedTuple):
    """One function in two profiles: its own amount, and its amount with all that it called. A stack counts once."""

    function: str
    sick_self: float
    healthy_self: float
    sick: float
    healthy: float

    @property
    def grew(self) -> float:
        return self.sick - self.healthy

    @property
    def grew_self(self) -> float:
        return self.sick_self - self.healthy_self


def difference(sick: Profile, healthy: Profile) -> list[Change]:
    """Every function of either profile; the function that grew most, with all that it called, comes first."""
    amounts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for side, profile in enumerate((sick, healthy)):
        for stack, weight in profile.weights.items():
            if stack:
                amounts[stack[-1]][side] += weight
            for name in set(stack):
                amounts[name][2 + side] += weight
    return sorted((Change(name, *each) for name, each in amounts.items()), key=lambda each: -each.grew)


def grown(sick: Profile, healthy: Profile, most: int) -> list[Change]:
    """The functions that grew most: half by their own amount, half by their amount with all that they called."""
    changes = [each for each in difference(sick, healthy) if each.grew > 0]
    by_self = sorted(changes, key=lambda each: -each.grew_self)[: most // 2]
    rest = [each for each in changes if each not in by_self]
    return sorted([*by_self, *rest[: most - len(by_self)]], key=lambda each: -each.grew)


def short_name(function: str) -> str:
    """The function's name without the path of its package: `stream.(*Subscription).Next`."""
    return re.sub(r"[\w.~-]+/", "", function)


def amount(value: float, unit: str, *, sign: bool = False) -> str:
    """An amount as text: `0.667 cores`, `6,000 goroutines`."""
    return f"{value:{'+' if sign else ''}{',.0f' if abs(value) >= 100 else '.3g'}} {unit}"


# the profiles of a recording


def taken(recording: Recording) -> list[Taken]:
    """The profiles that the run kept, in order of time."""
    return [
        Taken(said("file"), said("host"), said("agent"), said("kind"), entry.data["began_ns"], entry.t_ns, said("why"))
        for entry in recording.events("profile")
        for said in [partial(_said, entry.data)]
        if said("file")
    ]


def _said(data: Mapping[str, Any], key: str) -> str:
    return str(data.get(key, ""))


def missed(recording: Recording) -> list[str]:
    """Why profiles are missing, once for each host and reason."""
    found = [entry.data for entry in recording.events("profile") if entry.data.get("error")]
    return list(dict.fromkeys(f"{one['host']}: no {one['kind']} profile: {one['error']}" for one in found))


def healthy_of(recording: Recording, sick: Taken) -> Taken | None:
    """The last profile of that agent and kind from the steady state, before any fault; None if there is none."""
    first_ns = min((fault.intent_ns for fault in recording.faults), default=sick.began_ns)
    start_ns = min((entry.t_ns for entry in recording.events("phase") if entry.data["phase"] == "steady"), default=0)
    return next(
        (
            one
            for one in reversed(taken(recording))
            if one.why == HEALTHY
            and (one.host, one.agent, one.kind) == (sick.host, sick.agent, sick.kind)
            and start_ns <= one.began_ns
            and one.ended_ns <= min(first_ns, sick.began_ns)
        ),
        None,
    )


def profile_of(recording: Recording, one: Taken) -> Profile:
    """The content of that file. Raises HypothesisInvalidError if it is unusable: torn, empty, or without a length."""
    path = recording.path / one.file
    if path.is_symlink() or not path.resolve().is_relative_to(recording.path.resolve()):
        raise HypothesisInvalidError(f"{one} ({one.file}) leads out of the recording, so it is not read")
    try:
        with path.open("rb") as file:
            found = read_profile(file.read(MOST_BYTES + 1))
    except (OSError, ValueError) as error:
        raise HypothesisInvalidError(f"{one} ({one.file}) is not readable: {error}") from None
    if not found.samples:
        raise HypothesisInvalidError(f"{one} ({one.file}) is empty: it has no samples")
    if found.unit in {"cores", "s/s"} and not found.duration_ns:
        raise HypothesisInvalidError(f"{one} ({one.file}) does not say how long it took")
    return found


def compared(recording: Recording, sick: Taken) -> tuple[Profile, Profile]:
    """That profile, and the healthy profile of the same agent and kind. Raises HypothesisInvalidError.

    Both carry times by the same server's clock. It does not matter how wrong that clock is; but if the time between the
    two differs from the run's, one of the files is from another moment.
    """
    healthy = healthy_of(recording, sick)
    if healthy is None:
        raise HypothesisInvalidError(f"{sick}: the steady state has no such profile of this host to compare it with")
    profiles = profile_of(recording, sick), profile_of(recording, healthy)
    between_s = (sick.began_ns - healthy.began_ns) / 1e9
    said_s = (profiles[0].time_ns - profiles[1].time_ns) / 1e9
    if abs(said_s - between_s) > _SKEW_S + _SKEW_SHARE * between_s:
        raise HypothesisInvalidError(
            f"{sick} ({sick.file}) says that it began {said_s:.1f}s after the one from the steady state; by the run's"
            f" clock, that time was {between_s:.1f}s: the file is from another moment, or the host's clock was set"
        )
    return profiles


# profile.proto


def read_profile(packed: bytes) -> Profile:
    """The profile in a file of pprof, with or without gzip. Raises ValueError for anything else."""
    if len(packed) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
    try:
        return _parsed(_unpacked(packed))
    except (IndexError, KeyError, UnicodeDecodeError):
        raise ValueError("it is torn, or not a Go profile") from None


def _unpacked(packed: bytes) -> bytes:
    if not packed.startswith(b"\x1f\x8b"):
        return packed
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(packed, _MOST_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"its gzip is damaged: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {_MOST_UNPACKED:,} bytes")
    if not unpacker.eof:
        raise ValueError("its gzip is truncated")
    return data


def _parsed(data: bytes) -> Profile:
    fields: dict[int, list[bytes]] = defaultdict(list)
    times = {9: 0, 10: 0}
    for number, value in _fields(data):
        if isinstance(value, int):
            times[number] = value
        else:
            fields[number].append(value)
    texts = [value.decode() for value in fields[6]]
    types = [(texts[kind], texts[unit]) for kind, unit in (_numbers(value, 1, 2) for value in fields[1])]
    if not types:
        raise ValueError("it does not say what it measures")
    functions = {key: texts[name] for key, name in (_numbers(value, 1, 2) for value in fields[5])}
    # the functions of each location; of inlined functions, the innermost comes first
    called = {
        _numbers(value, 1)[0]: [
            functions[_numbers(line, 1)[0]] for key, line in _fields(value) if key == 4 and isinstance(line, bytes)
        ]
        for value in fields[4]
    }
    return Profile(types, _stacks(fields[2], called, len(types)), times[9], times[10])


def _stacks(samples: list[bytes], called: Mapping[int, list[str]], types: int) -> dict[tuple[str, ...], list[int]]:
    stacks: dict[tuple[str, ...], list[int]] = {}
    frames = 0
    for sample in samples:
        names = [name for location in _ints(sample, 1) for name in called.get(location, [])]
        frames += len(names)
        if frames > _MOST_FRAMES:
            raise ValueError(f"its stacks have more than {_MOST_FRAMES:,} functions")
        values, stack = _ints(sample, 2), tuple(reversed(names))
        if len(values) != types:
            raise ValueError("one of its samples does not have one value for each type")
        stacks[stack] = [a + b for a, b in zip(values, stacks.get(stack, [0] * types), strict=True)]
    return stacks


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the value of each field of a message. Raises IndexError if it ends too early."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if tag & 7 == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[tag & 7]
        if at + length > len(data):
            raise IndexError
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError


def _numbers(message: bytes, *numbers: int) -> list[int]:
    """The integers in these fields of the message; 0 for a missing field."""
    found = dict(_fields(message))
    return [value if isinstance(value, int) else 0 for value in (found.get(number, 0) for number in numbers)]


def _ints(data: bytes, number: int) -> list[int]:
    """The integers of a repeated field, packed or not."""
    found: list[int] = []
    for key, value in _fields(data):
        if key != number:
            continue
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            found.append(one - (1 << 64) if one >> 63 else one)
    return found
