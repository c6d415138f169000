"""What toxics do to a connection, without a connection: as toxiproxy 2.12 does it."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass

from hashidrill.core.protocols.abc import Exchange, ExchangeRequest, Toxic

_QUICK_S = 0.001
_GREETING_BYTES = 8


@dataclass
class FakeProxy:
    """A proxy of a FakeHost: from port `listen` to its `port`."""

    listen: int
    port: int
    toxics: list[Toxic]


def pass_through(
    toxics: Sequence[Toxic], request: ExchangeRequest, dice: random.Random, own_s: float = _QUICK_S
) -> Exchange:
    """The exchange that a canary would see, with each toxic in turn on its stream; `own_s` is what it takes without."""
    seconds, received = own_s, request.download_bytes
    for toxic in toxics:
        value = toxic.attributes
        size = request.upload_bytes + _GREETING_BYTES if toxic.stream == "upstream" else request.download_bytes
        if toxic.type == "latency":
            jitter = value.get("jitter", 0)
            seconds += (value["latency"] + dice.uniform(-jitter, jitter)) / 1000
        elif toxic.type == "bandwidth":
            seconds += size / (value["rate"] * 1000)
        elif toxic.type == "slicer":
            seconds += (_slices(size, value["average_size"]) - 1) * value.get("delay", 0) / 1e6  # it pauses after each
        elif toxic.type == "slow_close" and request.until_closed:
            seconds += value["delay"] / 1000
        elif toxic.type == "limit_data" and size > value["bytes"]:
            return Exchange(seconds, errno.ENODATA, 0 if toxic.stream == "upstream" else value["bytes"])
        elif toxic.type == "timeout":
            after = value["timeout"] / 1000 or request.timeout_s
            return _cut(request, after, errno.ENODATA)
        elif toxic.type == "reset_peer":
            return _cut(request, value["timeout"] / 1000, errno.ECONNRESET)
    return Exchange(seconds, 0, received) if seconds < request.timeout_s else _cut(request, request.timeout_s, 0)


def _slices(size: int, average: int) -> int:
    """It cuts in halves until these are small enough."""
    return 1 if size <= average else _slices(size // 2, average) + _slices(size - size // 2, average)


def _cut(request: ExchangeRequest, after_s: float, number: int) -> Exchange:
    if after_s >= request.timeout_s:
        return Exchange(request.timeout_s, errno.ETIMEDOUT)
    return Exchange(after_s, number)
