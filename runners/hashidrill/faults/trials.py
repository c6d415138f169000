"""How the effect of each toxic is seen: by what a plain TCP connection through it takes, or how it ends.

A Trial says what the canaries are to exchange, whether an exchange shows the toxic, and whether one is free of it.
"""

from __future__ import annotations

import errno
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hashidrill.abc import Exchange, ExchangeRequest, Toxic
from hashidrill.units import Bandwidth, Duration, Size

LONGEST = Duration("3s")
"""The most that can be asked where the proof has to wait for it."""
_TOLERANCE, _SLACK_S, _QUICK_S = 0.05, 0.01, 1.0
_PATIENCE_S = 1.0
_CONNECTIONS, _CHANCE_CONNECTIONS = 5, 60
_BANDWIDTH_TRIAL_S = 0.4
_LARGEST_TRIAL_BYTES = 8_000_000
_CLOSED = (errno.ENODATA, errno.ECONNRESET, errno.EPIPE)
_LIMITED_MARGIN_BYTES = 4096


@dataclass(frozen=True)
class Trial:
    """`shows` and `free` judge one exchange: the one of median length, or each where a toxic strikes by chance."""

    asked: str
    request: ExchangeRequest
    shows: Callable[[Exchange], bool]
    measured: Callable[[Exchange], str]
    free: Callable[[Exchange], bool]
    unit: str = ""
    figure: Callable[[Exchange], float] = field(default=lambda exchange: exchange.seconds)
    asked_figure: float = 0.0


def median(exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange of median length."""
    return sorted(exchanges, key=lambda exchange: exchange.seconds)[len(exchanges) // 2]


def connections(toxicity: float, trial: Trial) -> int:
    """More of them where chance has a part."""
    return trial.request.connections if toxicity == 1 else _CHANCE_CONNECTIONS


def trial_of(toxics: Sequence[Toxic]) -> Trial:
    """The trial for toxics of one type (on one stream or on both). Raises ValueError for a type that has none."""
    first = toxics[0]
    if first.type not in _TRIALS:
        raise ValueError(f"there is no toxic {first.type!r}; there are: {', '.join(TYPES)}")
    return _TRIALS[first.type](toxics)


def about(measured: float, asked: float, more: float = 0.0) -> bool:
    """Within 5 %, or 10 ms where that is more, and what chance may add or take."""
    return abs(measured - asked) <= max(_TOLERANCE * asked, _SLACK_S) + more


def _ms(toxic: Toxic, name: str) -> float:
    return toxic.attributes.get(name, 0) / 1000


def _seconds(exchange: Exchange) -> str:
    if exchange.errno:
        return f"{errno.errorcode.get(exchange.errno, exchange.errno)} after {Duration(round(exchange.seconds, 4))}"
    return f"{Duration(round(exchange.seconds, 4))}"


def _whole(bytes_: int, below_s: float) -> Callable[[Exchange], bool]:
    return lambda exchange: not exchange.errno and exchange.received == bytes_ and exchange.seconds < below_s


def _latency(toxics: Sequence[Toxic]) -> Trial:
    asked = sum(_ms(toxic, "latency") for toxic in toxics)
    jitter = sum(_ms(toxic, "jitter") for toxic in toxics)
    return Trial(
        f"a round trip of {Duration(asked)}" + (f" ± {Duration(jitter)}" if jitter else ""),
        ExchangeRequest(0, 1, asked + jitter + _PATIENCE_S, _CONNECTIONS),
        lambda exchange: not exchange.errno and about(exchange.seconds, asked, jitter),
        _seconds,
        _whole(1, max((asked - jitter) / 2, asked / 10)),
        "s",
        asked_figure=asked,
    )


def _bandwidth(toxics: Sequence[Toxic]) -> Trial:
    rate = toxics[0].attributes["rate"] * 1000
    size = min(int(rate * _BANDWIDTH_TRIAL_S), _LARGEST_TRIAL_BYTES)
    streams = {toxic.stream for toxic in toxics}
    up, down = size * ("upstream" in streams), max(1, size * ("downstream" in streams))

    def measured(exchange: Exchange) -> float:
        return (up + down) / exchange.seconds if not exchange.errno and exchange.seconds else 0.0

    return Trial(
        f"{Bandwidth(rate)}{' each way' if len(streams) > 1 else ''}",
        ExchangeRequest(up, down, (up + down) / rate + _PATIENCE_S, 1),
        lambda exchange: abs(measured(exchange) - rate) <= _TOLERANCE * rate,
        lambda exchange: str(Bandwidth(round(measured(exchange)))),
        lambda exchange: measured(exchange) > 1.5 * rate,
        "bytes_per_s",
        measured,
        rate,
    )


def _ends(asked: str, after_s: float | None, numbers: Sequence[int]) -> Trial:
    """The exchange ends after so long with one of these errors; None: it never ends."""

    def shows(exchange: Exchange) -> bool:
        if exchange.received:
            return False
        if after_s is None:
            return exchange.errno == errno.ETIMEDOUT
        return exchange.errno in numbers and about(exchange.seconds, after_s)

    return Trial(
        asked,
        ExchangeRequest(0, 1, _PATIENCE_S if after_s is None else after_s + _PATIENCE_S, _CONNECTIONS),
        shows, _seconds, _whole(1, _QUICK_S), "" if after_s is None else "s", asked_figure=after_s or 0.0,
    )  # fmt: skip


def _timeout(toxics: Sequence[Toxic]) -> Trial:
    after = _ms(toxics[0], "timeout")
    if not after or after > LONGEST:
        return _ends(f"no answer within {Duration(_PATIENCE_S)}", None, ())
    return _ends(f"no answer, and the end after {Duration(after)}", after, _CLOSED)


def _reset_peer(toxics: Sequence[Toxic]) -> Trial:
    after = _ms(toxics[0], "timeout")
    return _ends(f"a reset after {Duration(after)}", after, (errno.ECONNRESET,))


def _slow_close(toxics: Sequence[Toxic]) -> Trial:
    delay = _ms(toxics[0], "delay")
    return Trial(
        f"an answer, and the end of the connection after {Duration(delay)}",
        ExchangeRequest(0, 1, delay + _PATIENCE_S, _CONNECTIONS, until_closed=True),
        lambda exchange: exchange.received == 1 and not exchange.errno and about(exchange.seconds, delay),
        _seconds, _whole(1, delay / 2), "s", asked_figure=delay,
    )  # fmt: skip


def _slicer(toxics: Sequence[Toxic]) -> Trial:
    one = toxics[0].attributes
    delay, size, variation = one.get("delay", 0) / 1e6, one["average_size"], one.get("size_variation", 0)
    # it cuts in halves until these are small enough: so many of exactly that size are a power of two
    slices = next((count for count in (16, 8, 4, 2) if count * delay <= LONGEST / 2), 1)
    sent = slices * size
    up, down = (sent, 1) if toxics[0].stream == "upstream" else (0, sent)
    error = 0.3 if variation else 0.0
    asked = slices * delay
    return Trial(
        f"slices of {Size(size)}, {Duration(delay)} apart: {Size(sent)} in {Duration(asked)}",
        ExchangeRequest(up, down, 2 * asked + _PATIENCE_S, 1),
        lambda exchange: not exchange.errno and about(exchange.seconds, asked, (error + 0.1) * asked),
        _seconds, _whole(down, asked / 3), "",
    )  # fmt: skip


def _limit_data(toxics: Sequence[Toxic]) -> Trial:
    limit = toxics[0].attributes["bytes"]
    more = min(limit + _LIMITED_MARGIN_BYTES, _LARGEST_TRIAL_BYTES)
    up, down = (more, 1) if toxics[0].stream == "upstream" else (0, more)
    right = 0 if toxics[0].stream == "upstream" else limit
    return Trial(
        f"the end of the connection after {Size(limit)}",
        ExchangeRequest(up, down, 2 * _PATIENCE_S, _CONNECTIONS),
        lambda exchange: exchange.errno in _CLOSED and exchange.received == right,
        lambda exchange: f"{Size(exchange.received)} received, {_seconds(exchange)}",
        _whole(down, 2 * _PATIENCE_S),
    )


_TRIALS: dict[str, Callable[[Sequence[Toxic]], Trial]] = {
    "latency": _latency, "bandwidth": _bandwidth, "timeout": _timeout, "reset_peer": _reset_peer,
    "slow_close": _slow_close, "slicer": _slicer, "limit_data": _limit_data,
}  # fmt: skip
TYPES = tuple(_TRIALS)


def farthest(trial: Trial, exchanges: Sequence[Exchange]) -> Exchange:
    """The one that is farthest from what was asked; of some medians, the one that says most."""
    middle = statistics.median(trial.figure(exchange) for exchange in exchanges)
    goal = trial.asked_figure or middle
    return max(exchanges, key=lambda exchange: abs(trial.figure(exchange) - goal))
