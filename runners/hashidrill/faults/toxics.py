"""The link faults by name: each says which toxics it puts in front of the port, and leaves the rest to LinkFault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from hashidrill.abc import Toxic
from hashidrill.faults.links import LinkFault, LinkParams
from hashidrill.faults.trials import LONGEST, TYPES
from hashidrill.model import Strict
from hashidrill.units import Bandwidth, Duration, Percent, Size

_MOST_BYTES_PER_S = 50_000_000
_LONGEST_TIMEOUT = Duration("1h")


def _whole_ms(value: Duration) -> Duration:
    if abs(value * 1000 - round(value * 1000)) > 1e-6:
        raise ValueError(f"toxiproxy counts in whole milliseconds, and {value} is none")
    return value


def _provable(value: Duration) -> Duration:
    if value > LONGEST:
        raise ValueError(f"at most {LONGEST}, so that the proof does not take longer than the fault, not {value}")
    return _whole_ms(value)


def _positive(value: Duration) -> Duration:
    if value <= 0:
        raise ValueError("longer than 0s, or it does nothing")
    return _provable(value)


def _whole_kb(value: Bandwidth) -> Bandwidth:
    if not 1000 <= value <= _MOST_BYTES_PER_S or value % 1000:
        raise ValueError(f"toxiproxy counts in whole kB/s: from 1kB/s to {Bandwidth(_MOST_BYTES_PER_S)}, not {value}")
    return value


def _ms(value: Duration) -> int:
    return round(value * 1000)


Delay = Annotated[Duration, AfterValidator(_positive)]
Provable = Annotated[Duration, AfterValidator(_provable)]


class LatencyParams(LinkParams):
    """What each round trip takes longer."""

    delay: Delay
    jitter: Provable = Duration("0s")

    @model_validator(mode="after")
    def _sensible(self) -> LatencyParams:
        if self.jitter > self.delay:
            raise ValueError(f"jitter ({self.jitter}) is more than delay ({self.delay}): some would have to be early")
        if self.delay + self.jitter > LONGEST:
            raise ValueError(f"delay and jitter together are at most {LONGEST}")
        return self


class NetworkLatency(LinkFault):
    """Connections to the port answer later: what they send waits for so long, on the way there."""

    kind: ClassVar[str] = "network.latency"
    Params: ClassVar[type[Strict]] = LatencyParams

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("latency", {"latency": _ms(self.params.delay), "jitter": _ms(self.params.jitter)})]


class LinkBandwidthParams(LinkParams):
    """How much of each connection passes, each way."""

    rate: Annotated[Bandwidth, AfterValidator(_whole_kb)]


class NetworkBandwidth(LinkFault):
    """Each connection to the port carries so much and no more, each way."""

    kind: ClassVar[str] = "network.bandwidth"
    Params: ClassVar[type[Strict]] = LinkBandwidthParams

    def toxics(self) -> Sequence[Toxic]:
        rate = round(self.params.rate / 1000)
        return [Toxic("bandwidth", {"rate": rate}, stream) for stream in ("upstream", "downstream")]


class TimeoutParams(LinkParams):
    """When a connection ends on which nothing arrives; 0s: never."""

    timeout: Annotated[Duration, AfterValidator(_whole_ms), Field(le=_LONGEST_TIMEOUT)] = Duration("0s")


class NetworkTimeout(LinkFault):
    """Connections to the port open, and then nothing that is sent arrives: half-open, until they end or not at all."""

    kind: ClassVar[str] = "network.timeout"
    Params: ClassVar[type[Strict]] = TimeoutParams

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("timeout", {"timeout": _ms(self.params.timeout)})]


class ResetParams(LinkParams):
    """How long after it is first used a connection is reset."""

    after: Provable = Duration("0s")


class NetworkReset(LinkFault):
    """Connections to the port open, and are reset as soon as they are used, or so long after."""

    kind: ClassVar[str] = "network.reset"
    Params: ClassVar[type[Strict]] = ResetParams

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("reset_peer", {"timeout": _ms(self.params.after)})]


class SlowCloseParams(LinkParams):
    """How much later the other side learns of the end."""

    delay: Delay


class NetworkSlowClose(LinkFault):
    """When the port's side closes a connection, the other side learns of it so much later."""

    kind: ClassVar[str] = "network.slow_close"
    Params: ClassVar[type[Strict]] = SlowCloseParams

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("slow_close", {"delay": _ms(self.params.delay)}, "downstream")]


class SlicerParams(LinkParams):
    """Into what pieces the answers are cut, and how far apart these come."""

    size: Annotated[Size, Field(ge=1, le=65536)] = Size("64B")
    delay: Delay = Duration("10ms")


class NetworkSlicer(LinkFault):
    """Answers of the port come in small pieces, with a pause after each: a tiny window."""

    kind: ClassVar[str] = "network.slicer"
    Params: ClassVar[type[Strict]] = SlicerParams

    def toxics(self) -> Sequence[Toxic]:
        attributes = {"average_size": round(self.params.size), "delay": round(self.params.delay * 1e6)}
        return [Toxic("slicer", {**attributes, "size_variation": 0}, "downstream")]


class LimitDataParams(LinkParams):
    """How much a connection answers before it ends."""

    bytes: Annotated[Size, Field(ge=1, le=4_000_000)]


class NetworkLimitData(LinkFault):
    """Each connection to the port is closed once it has answered so many bytes."""

    kind: ClassVar[str] = "network.limit_data"
    Params: ClassVar[type[Strict]] = LimitDataParams

    def toxics(self) -> Sequence[Toxic]:
        return [Toxic("limit_data", {"bytes": round(self.params.bytes)}, "downstream")]


_NEEDED = {
    "latency": "latency", "bandwidth": "rate", "timeout": "timeout", "reset_peer": "timeout", "slow_close": "delay",
    "slicer": "average_size", "limit_data": "bytes",
}  # fmt: skip


class ToxicParams(LinkParams):
    """A toxic in toxiproxy's own words: times in ms (a slicer's in us), rates in kB/s, sizes in bytes."""

    type: Literal["latency", "bandwidth", "timeout", "reset_peer", "slow_close", "slicer", "limit_data"]
    attributes: dict[str, Annotated[int, Field(ge=0, le=100_000_000)]]
    stream: Literal["upstream", "downstream"] = "downstream"
    toxicity: Annotated[Percent, Field(gt=0)] = Percent("100%")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> ToxicParams:
        name = _NEEDED[self.type]
        if name not in self.attributes:
            raise ValueError(f"the toxic {self.type} needs the attribute {name!r}")
        return self


class ToxiproxyToxic(LinkFault):
    """Any toxic of toxiproxy, by its own name and with its own attributes, on that share of the connections."""

    kind: ClassVar[str] = "toxiproxy.toxic"
    Params: ClassVar[type[Strict]] = ToxicParams

    def toxics(self) -> Sequence[Toxic]:
        one = self.params
        return [Toxic(one.type, dict(one.attributes), one.stream, float(one.toxicity))]


KINDS = (
    NetworkLatency, NetworkBandwidth, NetworkTimeout, NetworkReset, NetworkSlowClose, NetworkSlicer, NetworkLimitData,
    ToxiproxyToxic,
)  # fmt: skip
assert set(_NEEDED) == set(TYPES)
