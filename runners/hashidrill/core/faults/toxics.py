"""The link faults: each defines the toxics in front of the port; LinkFault does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SIDES, Cases
from hashidrill.core.faults.links import BY_PROXY, OBSERVER, LinkFault, LinkParams
from hashidrill.core.faults.trials import LONGEST, TYPES, trial_of
from hashidrill.core.protocols.abc import Observer, Toxic
from hashidrill.core.units import Bandwidth, Duration, Percent, Size

_MOST_BYTES_PER_S = 50_000_000
_LONGEST_TIMEOUT = Duration("1h")
_LARGEST_SLICE = 16_384
LINKS = {"port": 8300, "from": SIDES, "direction": ["in", "out", "both"]}
"""For `Cases.space`."""


def _whole_ms(value: Duration) -> Duration:
    if abs(value * 1000 - round(value * 1000)) > 1e-6:
        raise ValueError(f"toxiproxy accepts only whole milliseconds, not {value}")
    return value


def _provable(value: Duration) -> Duration:
    if value > LONGEST:
        raise ValueError(f"must be at most {LONGEST}, because the proof waits that long; not {value}")
    return _whole_ms(value)


def _positive(value: Duration) -> Duration:
    if value <= 0:
        raise ValueError("must be longer than 0s; 0s does nothing")
    return _provable(value)


def _whole_kb(value: Bandwidth) -> Bandwidth:
    if not 1000 <= value <= _MOST_BYTES_PER_S or value % 1000:
        raise ValueError(f"toxiproxy needs whole kB/s, from 1kB/s to {Bandwidth(_MOST_BYTES_PER_S)}, not {value}")
    return value


def _ms(value: Duration) -> int:
    return round(value * 1000)


Delay = Annotated[Duration, AfterValidator(_positive)]
Provable = Annotated[Duration, AfterValidator(_provable)]


class LatencyParams(LinkParams):
    """How much longer each round trip takes."""

    delay: Delay
    """Added to each round trip, up to 3s, in whole milliseconds."""
    jitter: Provable = Duration("0s")
    """Evenly distributed around `delay`, from a seeded generator."""

    @model_validator(mode="after")
    def _sensible(self) -> LatencyParams:
        if self.jitter > self.delay:
            raise ValueError(f"jitter ({self.jitter}) must not be longer than delay ({self.delay})")
        if self.delay + self.jitter > LONGEST:
            raise ValueError(f"delay and jitter together may be at most {LONGEST}")
        return self


class NetworkLatency(LinkFault):
    """Adds `delay` to requests on connections to the port.

    Limits: TCP only. Connections older than the fault are not slowed but reset at their next packet; connections open
    when the fault ends are closed. The port sees connections from its own host. The delay applies to data, not to
    opening a connection. Refused together with a partition or loss, during which it cannot be proven. A toxiproxy that
    does not answer during the revert is killed with all connections through it.
    """

    kind: ClassVar[str] = "network.latency"
    instead: ClassVar[frozenset[type[Any]]] = BY_PROXY
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = LatencyParams
    cases: ClassVar[Cases] = Cases(
        each=(
            {"port": 8300, "delay": "200ms", "from": "servers"},
            {"port": 8300, "delay": "100ms", "from": "servers", "direction": "out"},
            {"port": 8500, "delay": "300ms", "jitter": "100ms"},
            {"port": 8500, "delay": "50ms", "from": "clients", "direction": "both"},
        ),
        space=({**LINKS, "delay": "1ms..3000ms", "jitter": "0ms..3000ms"},),
        overlaps=({"port": 8300, "delay": "200ms", "from": "servers"}, {"port": 8500, "delay": "300ms"}),
    )

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("latency", {"latency": _ms(self.params.delay), "jitter": _ms(self.params.jitter)})]


class LinkBandwidthParams(LinkParams):
    """How much of each connection passes, each way."""

    rate: Annotated[Bandwidth, AfterValidator(_whole_kb)]
    """Like `64kB/s`: whole kB/s, from 1kB/s to 50MB/s."""


class NetworkBandwidth(LinkFault):
    """Limits each connection to the port to `rate`, in each direction."""

    kind: ClassVar[str] = "network.bandwidth"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = LinkBandwidthParams
    cases: ClassVar[Cases] = Cases(
        each=(
            {"port": 8500, "rate": "64kB/s", "from": "clients"},
            {"port": 8300, "rate": "1MB/s", "from": "servers", "direction": "both"},
        ),
        space=({**LINKS, "rate": "1kB/s..50000kB/s"},),
        overlaps=({"port": 8500, "rate": "64kB/s", "from": "clients"},),
    )

    def toxics(self) -> Sequence[Toxic]:
        rate = round(self.params.rate / 1000)
        return [Toxic("bandwidth", {"rate": rate}, stream) for stream in ("upstream", "downstream")]


class TimeoutParams(LinkParams):
    """The time after which an idle connection is closed; 0s: never."""

    timeout: Annotated[Duration, AfterValidator(_whole_ms), Field(le=_LONGEST_TIMEOUT)] = Duration("0s")
    """When a connection ends, counted from its first data; 0s is never."""


class NetworkTimeout(LinkFault):
    """Accepts connections to the port and delivers nothing: half-open, until `timeout` closes them."""

    kind: ClassVar[str] = "network.timeout"
    instead: ClassVar[frozenset[type[Any]]] = BY_PROXY
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = TimeoutParams
    cases: ClassVar[Cases] = Cases(
        each=({"port": 8500, "from": "clients"}, {"port": 8500, "from": "clients", "timeout": "400ms"}),
        space=({**LINKS, "timeout": "0ms..3600000ms"},),
        overlaps=({"port": 8500, "from": "clients"},),
    )

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("timeout", {"timeout": _ms(self.params.timeout)})]


class ResetParams(LinkParams):
    """How long after its first use a connection is reset."""

    after: Provable = Duration("0s")
    """From the first data to the reset, up to 3s."""


class NetworkReset(LinkFault):
    """Accepts connections to the port, then resets them `after` their first use."""

    kind: ClassVar[str] = "network.reset"
    instead: ClassVar[frozenset[type[Any]]] = BY_PROXY
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = ResetParams
    cases: ClassVar[Cases] = Cases(
        each=({"port": 8500, "from": "clients"}, {"port": 8500, "from": "clients", "after": "300ms"}),
        space=({**LINKS, "after": "0ms..3000ms"},),
        overlaps=({"port": 8500, "from": "clients"},),
    )

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("reset_peer", {"timeout": _ms(self.params.after)})]


class SlowCloseParams(LinkParams):
    """The delay until the other side sees the end of the connection."""

    delay: Delay
    """How much later the other side sees the close; up to 3s."""


class NetworkSlowClose(LinkFault):
    """Delays the close: when the port's side closes a connection, the other side sees it `delay` later."""

    kind: ClassVar[str] = "network.slow_close"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = SlowCloseParams
    cases: ClassVar[Cases] = Cases(
        each=({"port": 8500, "from": "clients", "delay": "300ms"},), space=({**LINKS, "delay": "1ms..3000ms"},)
    )

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("slow_close", {"delay": _ms(self.params.delay)}, "downstream")]


class SlicerParams(LinkParams):
    """The size of the pieces into which answers are cut, and the pause after each."""

    size: Annotated[Size, Field(ge=1, le=_LARGEST_SLICE)] = Size("64B")
    """Approximate size of the largest piece: toxiproxy halves the data until the pieces fit; up to 16384B."""
    delay: Delay = Duration("10ms")
    """Pause after each piece."""


class NetworkSlicer(LinkFault):
    """Sends the port's answers in small pieces with a pause after each, like a tiny TCP window."""

    kind: ClassVar[str] = "network.slicer"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = SlicerParams
    cases: ClassVar[Cases] = Cases(
        each=({"port": 8500, "from": "clients"},), space=({**LINKS, "size": "1B..16384B", "delay": "1ms..3000ms"},)
    )

    def toxics(self) -> Sequence[Toxic]:
        attributes = {"average_size": round(self.params.size), "delay": round(self.params.delay * 1e6)}
        return [Toxic("slicer", {**attributes, "size_variation": 0}, "downstream")]


class LimitDataParams(LinkParams):
    """How many bytes of answers a connection carries before it ends."""

    bytes: Annotated[Size, Field(ge=1, le=4_000_000)]
    """The bytes of answers after which a connection is closed; up to 4MB."""


class NetworkLimitData(LinkFault):
    """Closes each connection to the port after `bytes` bytes of answers."""

    kind: ClassVar[str] = "network.limit_data"
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = LimitDataParams
    cases: ClassVar[Cases] = Cases(
        each=({"port": 8500, "from": "clients", "bytes": "2kB"},), space=({**LINKS, "bytes": "1B..4000000B"},)
    )

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("limit_data", {"bytes": round(self.params.bytes)}, "downstream")]


_ATTRIBUTES: dict[str, dict[str, tuple[int, int]]] = {
    "latency": {"latency": (1, round(LONGEST * 1000)), "jitter": (0, round(LONGEST * 1000))},
    "bandwidth": {"rate": (1, _MOST_BYTES_PER_S // 1000)},
    "timeout": {"timeout": (0, round(_LONGEST_TIMEOUT * 1000))},
    "reset_peer": {"timeout": (0, round(LONGEST * 1000))},
    "slow_close": {"delay": (1, round(LONGEST * 1000))},
    "slicer": {
        "average_size": (1, _LARGEST_SLICE),
        "delay": (1, round(LONGEST * 1e6)),
        "size_variation": (0, _LARGEST_SLICE),
    },
    "limit_data": {"bytes": (1, 4_000_000)},
}
"""The provable range of each attribute of a toxic; the first attribute of a type is required."""
_DOWNSTREAM = {
    "slow_close": "the end of a connection is seen only by the side that did not end it",
    "slicer": "only the pieces of an answer can be counted",
}
_LEAST_TOXICITY, _LONGEST_BY_CHANCE = Percent("10%"), Duration("1s")


class ToxicParams(LinkParams):
    """A toxic in toxiproxy's own words: times in ms (a slicer's in us), rates in kB/s, sizes in bytes."""

    type: Literal["latency", "bandwidth", "timeout", "reset_peer", "slow_close", "slicer", "limit_data"]
    """The kind of toxic: `latency`, `bandwidth`, `timeout`, `reset_peer`, `slow_close`, `slicer`, `limit_data`."""
    attributes: dict[str, int]
    """The toxic's attributes, in toxiproxy's words and units: ms (a slicer's `delay`: us), kB/s, bytes."""
    stream: Literal["upstream", "downstream"] = "downstream"
    """`upstream` is what the connecting side sends."""
    toxicity: Percent = Percent("100%")
    """Share of the connections."""

    @model_validator(mode="after")
    def _provable(self) -> ToxicParams:
        bounds = _ATTRIBUTES[self.type]
        if (needed := next(iter(bounds))) not in self.attributes:
            raise ValueError(f"the toxic {self.type} needs the attribute {needed!r}")
        for name, value in self.attributes.items():
            if name not in bounds:
                raise ValueError(f"the toxic {self.type} has no attribute {name!r}; it has: {', '.join(bounds)}")
            low, high = bounds[name]
            if not low <= value <= high:
                raise ValueError(f"{name} of the toxic {self.type} is from {low} to {high}, not {value}")
        self._check_together()
        return self

    def _check_together(self) -> None:
        given = self.attributes
        if self.type == "latency":
            jitter = given.get("jitter", 0)
            if jitter > given["latency"] or jitter + given["latency"] > LONGEST * 1000:
                raise ValueError(f"jitter must not be more than latency, and both together at most {LONGEST}")
        if self.type == "slicer" and not given.get("delay"):
            raise ValueError("the toxic slicer needs the attribute 'delay': without a pause, the pieces cannot be seen")
        if self.type == "slicer" and given.get("size_variation", 0) >= given["average_size"]:
            raise ValueError("size_variation must be less than average_size")
        if self.stream == "upstream" and self.type in _DOWNSTREAM:
            raise ValueError(f"the toxic {self.type} works only on the stream downstream: {_DOWNSTREAM[self.type]}")
        if self.toxicity < _LEAST_TOXICITY:
            raise ValueError(f"toxicity must be at least {_LEAST_TOXICITY}: less takes too many connections to prove")
        longest_s = trial_of([Toxic(self.type, given, self.stream)]).request.timeout_s - 1.0
        if self.toxicity < 1 and longest_s > _LONGEST_BY_CHANCE:
            raise ValueError(
                f"with a toxicity under 100%, the effect may take at most {_LONGEST_BY_CHANCE}, not "
                f"{Duration(longest_s)}: the observer must meet it several times in a row"
            )


class ToxiproxyToxic(LinkFault):
    """Adds any toxiproxy toxic, with its own name and attributes, to `toxicity` of the connections."""

    kind: ClassVar[str] = "toxiproxy.toxic"
    instead: ClassVar[frozenset[type[Any]]] = BY_PROXY
    observer: ClassVar[Observer] = OBSERVER
    Params: ClassVar[type[Strict]] = ToxicParams
    cases: ClassVar[Cases] = Cases(
        each=(
            {"port": 8500, "from": "clients", "type": "latency", "attributes": {"latency": 200}, "toxicity": "50%"},
            {"port": 8500, "from": "clients", "type": "limit_data", "attributes": {"bytes": 500}, "stream": "upstream"},
        ),
        space=[
            {
                **LINKS,
                "type": type_,
                "attributes": attributes,
                "stream": ["upstream", "downstream"],
                "toxicity": "10%..100%",
            }
            for type_, attributes in (
                ("latency", {"latency": "1..3000", "jitter": "0..1500"}),
                ("bandwidth", {"rate": "1..50000"}),
                ("timeout", {"timeout": "0..3600000"}),
                ("reset_peer", {"timeout": "0..3000"}),
                ("slow_close", {"delay": "1..3000"}),
                ("slicer", {"average_size": "1..16384", "delay": "1..3000000"}),
                ("limit_data", {"bytes": "1..4000000"}),
            )
        ],
        overlaps=({"port": 8500, "from": "clients", "type": "latency", "attributes": {"latency": 200}},),
    )

    def toxics(self) -> Sequence[Toxic]:
        one = self.params
        return [Toxic(one.type, dict(one.attributes), one.stream, float(one.toxicity))]


assert set(_ATTRIBUTES) == set(TYPES)
