"""Observes each toxic by the duration or the end of a plain TCP connection through it.

A Trial defines what the canaries exchange, whether the toxic hit an exchange, whether the effect is the requested
one, and whether an exchange is free of the effect. hashidrill.core.faults.significance says how many hits prove it.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hashidrill.core.faults.significance import Counts, counts, delays_over, most_before, trials_for
from hashidrill.core.protocols.abc import Exchange, ExchangeRequest, Toxic
from hashidrill.core.units import Bandwidth, Duration, Size

LONGEST = Duration("3s")
"""The longest time that a toxic may take, because the proof waits for it."""
_TOLERANCE, _SLACK_S, _QUICK_S = 0.05, 0.01, 1.0
_EARLY = 0.98
_PATIENCE_S = 1.0
DRIFT_S = 0.002
"""How much a link's times without a fault may change between two looks, over all exchanges, if the machine becomes
busy.
"""
_BANDWIDTH_TRIAL_S, _BANDWIDTH_AT_ONCE_S = 0.15, 0.4
_AT_ONCE_BYTES = 100_000
"""How much each of several simultaneous connections may carry: with more, they would wait for each other."""
_FEW, _MANY = 6, 32
_SHORT_S, _MOST_BY_FEW = 0.6, 36
_LARGEST_TRIAL_BYTES = 8_000_000
_READ_BYTES = 32_768
"""The size of toxiproxy's reads; it splits larger answers."""
_CLOSED = (errno.ENODATA, errno.ECONNRESET, errno.EPIPE)
_LIMITED_MARGIN_BYTES = 4096


@dataclass(frozen=True)
class Trial:
    """`hit` and `free` judge one exchange; `fits` judges the median of the exchanges that were hit."""

    asked: str
    request: ExchangeRequest
    hit: Callable[[Exchange], bool]
    measured: Callable[[Exchange], str]
    free: Callable[[Exchange], bool]
    fits: Callable[[Exchange, float], bool] = field(default=lambda exchange, own_s: True)  # noqa: ARG005 - nothing to add
    """Called with the exchange, and the typical seconds of an exchange without the toxic."""
    unit: str = ""
    figure: Callable[[Exchange], float] = field(default=lambda exchange: exchange.seconds)
    asked_figure: float = 0.0
    share: float = 1.0
    """The smallest share of hits among the exchanges that the toxic affects."""
    could: Callable[[float], str] = field(default=lambda own_s: "")  # noqa: ARG005 - where no number helps
    """The smallest provable value, if exchanges take this many seconds without the toxic."""
    hangs: bool = False

    @property
    def lasts_s(self) -> float:
        """The approximate duration of an affected exchange."""
        return self.request.timeout_s - (0.0 if self.hangs else _PATIENCE_S)

    def shows(self, exchange: Exchange, own_s: float = 0.0) -> bool:
        return self.hit(exchange) and self.fits(exchange, own_s)


@dataclass(frozen=True)
class Sampling:
    """How many exchanges a trial needs if a toxic affects that share of the connections."""

    trial: Trial
    toxicity: float

    @property
    def _least(self) -> float:
        return self.toxicity * self.trial.share

    @property
    def exchanges(self) -> int:
        return trials_for(self._least, self.toxicity)

    @property
    def request(self) -> ExchangeRequest:
        """The request with as few parallel trials as the time allows: fewer at once are faster and more precise."""
        asked = self.trial.request
        few = self.trial.lasts_s <= _SHORT_S and self.exchanges <= _MOST_BY_FEW
        return replace(asked, connections=self.exchanges, at_once=min(asked.at_once, _FEW if few else _MANY))

    def counts(self, before: int) -> Counts | None:
        return counts(self.exchanges, self._least, before, highest=self.toxicity)

    def struck(self, exchanges: Sequence[Exchange]) -> int:
        """How many exchanges show the toxic's effect."""
        return sum(not self.trial.free(exchange) for exchange in exchanges)

    def near(self, exchanges: Sequence[Exchange]) -> int:
        """How many exchanges of the baseline would show the effect if the link were slightly slower without it."""
        return self.struck([replace(exchange, seconds=exchange.seconds + DRIFT_S) for exchange in exchanges])

    def hits(self, exchanges: Sequence[Exchange]) -> list[Exchange]:
        return [exchange for exchange in exchanges if self.trial.hit(exchange)]

    def refused(self, exchanges: Sequence[Exchange]) -> str:
        """Why these exchanges without the toxic make the toxic unprovable, and which parameters would be provable."""
        own = sorted((exchange.seconds for exchange in exchanges), reverse=True)
        at_most = most_before(self.exchanges, self._least, highest=self.toxicity)
        could = self.trial.could(own[at_most] + DRIFT_S) if not any(exchange.errno for exchange in exchanges) else ""
        seen = f"{self.trial.asked} cannot be distinguished from this link ({self.near(exchanges)} of {len(own)} "
        return seen + f"exchanges already look like that or nearly so, or failed){could and '; use ' + could}"


def median(exchanges: Sequence[Exchange]) -> Exchange:
    return sorted(exchanges, key=lambda exchange: exchange.seconds)[len(exchanges) // 2]


def trial_of(toxics: Sequence[Toxic]) -> Trial:
    """The trial for toxics of one type (on one stream or on both). Raises ValueError for a type without a trial."""
    first = toxics[0]
    if first.type not in _TRIALS:
        raise ValueError(f"there is no toxic {first.type!r}; there are: {', '.join(TYPES)}")
    return _TRIALS[first.type](toxics)


def about(measured: float, asked: float, more: float = 0.0) -> bool:
    """Within 5 %, or 10 ms if that is more, plus or minus what chance may add."""
    return abs(measured - asked) <= max(_TOLERANCE * asked, _SLACK_S) + more


def _ms(toxic: Toxic, name: str) -> float:
    return toxic.attributes.get(name, 0) / 1000


def _seconds(exchange: Exchange) -> str:
    if exchange.errno:
        return f"{errno.errorcode.get(exchange.errno, exchange.errno)} after {Duration(round(exchange.seconds, 4))}"
    return f"{Duration(round(exchange.seconds, 4))}"


def _whole(bytes_: int, below_s: float) -> Callable[[Exchange], bool]:
    return lambda exchange: not exchange.errno and exchange.received == bytes_ and exchange.seconds < below_s


def _late(bytes_: int, from_s: float) -> Callable[[Exchange], bool]:
    return lambda exchange: not exchange.errno and exchange.received == bytes_ and exchange.seconds >= from_s


def _or_more(asked: float, cut_s: float) -> Callable[[float], str]:
    return lambda own_s: f"{Duration(-(-own_s / cut_s * asked * 1050 // 1) / 1000)} or more"


def _latency(toxics: Sequence[Toxic]) -> Trial:
    asked = sum(_ms(toxic, "latency") for toxic in toxics)
    jitter = sum(_ms(toxic, "jitter") for toxic in toxics)
    cut_s, share = delays_over(asked, jitter)
    return Trial(
        f"a round trip of {Duration(asked)}" + (f" ± {Duration(jitter)}" if jitter else ""),
        ExchangeRequest(0, 1, asked + jitter + _PATIENCE_S),
        _late(1, cut_s),
        _seconds,
        _whole(1, cut_s),
        lambda exchange, own_s: about(exchange.seconds, asked, jitter + own_s),
        "s",
        asked_figure=asked,
        share=share,
        could=_or_more(asked, cut_s),
    )


def _bandwidth(toxics: Sequence[Toxic]) -> Trial:
    """Small answers go over several connections at once, larger ones over one connection after the other."""
    rate = toxics[0].attributes["rate"] * 1000
    one_by_one = rate * _BANDWIDTH_AT_ONCE_S > _AT_ONCE_BYTES
    streams = {toxic.stream for toxic in toxics}
    size = int(rate * (_BANDWIDTH_TRIAL_S if one_by_one else _BANDWIDTH_AT_ONCE_S) / len(streams))
    up, down = size * ("upstream" in streams), max(1, size * ("downstream" in streams))
    passing = up + down + len(f"{up} {down}\n") * ("upstream" in streams)  # the canary's greeting
    asked_s = passing / rate

    def measured(exchange: Exchange) -> float:
        return passing / exchange.seconds if not exchange.errno and exchange.seconds else 0.0

    return Trial(
        f"{Bandwidth(rate)}{' each way' if len(streams) > 1 else ''}",
        ExchangeRequest(up, down, asked_s + _PATIENCE_S, at_once=1 if one_by_one else _MANY),
        _late(down, asked_s * (1 - _TOLERANCE)),
        lambda exchange: str(Bandwidth(round(measured(exchange)))),
        _whole(down, asked_s * (1 - _TOLERANCE)),
        lambda exchange, own_s: about(exchange.seconds, asked_s, own_s),
        "bytes_per_s",
        measured,
        rate,
        could=lambda own_s: f"{Bandwidth(max(1, passing / own_s * 0.9 // 1000) * 1000)} or less",
    )


def _ends(asked: str, after_s: float | None, numbers: Sequence[int]) -> Trial:
    """The exchange ends after this time with one of these errors; None: it never ends."""

    def hit(exchange: Exchange) -> bool:
        if exchange.received:
            return False
        if after_s is None:
            return exchange.errno == errno.ETIMEDOUT
        return exchange.errno in numbers and exchange.seconds >= after_s * _EARLY

    return Trial(
        asked,
        ExchangeRequest(0, 1, _PATIENCE_S if after_s is None else after_s + _PATIENCE_S),
        hit,
        _seconds,
        _whole(1, _QUICK_S),
        lambda exchange, own_s: after_s is None or about(exchange.seconds, after_s, own_s),
        "" if after_s is None else "s",
        asked_figure=after_s or 0.0,
        hangs=after_s is None,
    )


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
        ExchangeRequest(0, 1, delay + _PATIENCE_S, until_closed=True),
        _late(1, delay * _EARLY),
        _seconds,
        _whole(1, delay * _EARLY),
        lambda exchange, own_s: about(exchange.seconds, delay, own_s),
        "s",
        asked_figure=delay,
        could=_or_more(delay, delay * _EARLY),
    )


def _slicer(toxics: Sequence[Toxic]) -> Trial:
    """The slicer halves data until pieces are small enough and pauses after each; the last arrives before its pause."""
    one = toxics[0].attributes
    delay, size, variation = one.get("delay", 0) / 1e6, one["average_size"], one.get("size_variation", 0)
    slices = next((n for n in (16, 8, 4) if (n - 1) * delay <= LONGEST / 2 and n * size <= _READ_BYTES), 2)
    sent = slices * size
    asked = (slices - 1) * delay
    error = 0.4 if variation else 0.1
    return Trial(
        f"slices of {Size(size)}, {Duration(delay)} apart: {Size(sent)} in {Duration(asked)}",
        ExchangeRequest(0, sent, 2 * asked + _PATIENCE_S),
        _late(sent, asked * (1 - (error if variation else 1 - _EARLY))),
        _seconds,
        _whole(sent, asked * (1 - (error if variation else 1 - _EARLY))),
        lambda exchange, own_s: about(exchange.seconds, asked, error * asked + own_s),
        could=lambda own_s: f"pauses of {Duration(-(-own_s / (slices - 1) * 2000 // 1) / 1000)} or more",
    )


def _limit_data(toxics: Sequence[Toxic]) -> Trial:
    limit = toxics[0].attributes["bytes"]
    more = min(limit + _LIMITED_MARGIN_BYTES, _LARGEST_TRIAL_BYTES)
    up, down = (more, 1) if toxics[0].stream == "upstream" else (0, more)
    right = 0 if toxics[0].stream == "upstream" else limit
    return Trial(
        f"the end of the connection after {Size(limit)}",
        ExchangeRequest(up, down, 2 * _PATIENCE_S, at_once=1 if more > _AT_ONCE_BYTES else _FEW),
        lambda exchange: exchange.errno in _CLOSED and exchange.received == right,
        lambda exchange: f"{Size(exchange.received)} received, {_seconds(exchange)}",
        _whole(down, 2 * _PATIENCE_S),
    )


_TRIALS: dict[str, Callable[[Sequence[Toxic]], Trial]] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "timeout": _timeout,
    "reset_peer": _reset_peer,
    "slow_close": _slow_close,
    "slicer": _slicer,
    "limit_data": _limit_data,
}
TYPES = tuple(_TRIALS)
