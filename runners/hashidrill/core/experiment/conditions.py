"""Conditions over signals, for steady states and guardrails: `kv-writes.latency.p50 < 300ms for 20s`.

A condition is a signal, an optional statistic, a comparison and a limit with its unit. The same code evaluates it
live over the last seconds and offline over a recording. A failed look is unknown, neither good nor bad; each use
says what unknown means there (`Condition.holds`, `Reading`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import HasSignals, Load
from hashidrill.core.units import (
    Bandwidth,
    Duration,
    Level,
    Percent,
    Quantity,
    Rate,
    Size,
    shown,
    text_schema,
    ungrouped,
)

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_NEED_ALL_HOSTS = frozenset({"<", "<=", "=="})
LOAD_STATISTICS = ("latency.p50", "latency.p90", "latency.p99", "latency.max", "latency.mean", "errors", "rate")
LOAD_SIGNALS: dict[str, type[Quantity] | None] = {"level": Level}
"""Signals that every load samples besides its operations, with units. A load's class may add more in `signals`."""

_OF_HOSTS: dict[str, type[Quantity] | None] = {
    "process.cpu": None,  # cores
    "process.rss": Size,
    "process.write_rate": Bandwidth,
    "process.wchar_rate": Bandwidth,
    "disk.fsync": Duration,
    "machine.others": None,
    "machine.idle": None,  # CPUs
    "generator.cpu": None,
    "generator.lag": Duration,
}
"""Signals of the generator and of the probes of any host, with units (None: a plain number)."""
_PATTERN = re.compile(
    r"(?P<signal>[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+)\s*(?P<op><=|>=|==|!=|<|>)\s*(?P<limit>-?[0-9.]{1,30}\s?[A-Za-z%/]*)"
    r"(\s+for\s+(?P<window>\S+))?"
)
_EXAMPLE = "kv-writes.latency.p50 < 300ms for 20s"


def probe_namespaces() -> list[str]:
    """The first words of the probes' signals: `raft`, `process`. Imports no product."""
    return [*registry.entries(registry.SIGNALS), *dict.fromkeys(signal.partition(".")[0] for signal in _OF_HOSTS)]


def probe_signals(namespace: str = "") -> dict[str, type[Quantity] | None]:
    """The probes' signals with this first word (or all) that a condition can compare, with units.

    Imports the product that measures them.
    """
    of_products = registry.entries(registry.SIGNALS)
    found = dict(_OF_HOSTS)
    for name in (namespace,) if namespace in of_products else () if namespace else of_products:
        found |= registry.plugin(registry.SIGNALS, name).signals
    return {name: unit for name, unit in found.items() if not namespace or name.startswith(f"{namespace}.")}


@dataclass(frozen=True)
class Condition:
    """`signal op limit [for window]`. `limit` is in the base unit (seconds, share, bytes, per second).

    `source` names what the signal belongs to: a load (`kv-writes`) or a probe's namespace (`raft`, `consul`, ...);
    `what` is the rest: `latency.p50`, `errors`, `commit_time`.
    """

    text: str
    source: str
    what: str
    op: str
    limit: float
    window_s: float | None

    DEFAULT_WINDOW_S: ClassVar[float] = 5.0

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Reads a condition. Raises ValueError that shows how to write one."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{shown(text)} is not a condition; write it like {_EXAMPLE!r}")
        source, _, what = match["signal"].partition(".")
        window = None if match["window"] is None else Duration.parse(match["window"])
        if window == 0:
            raise ValueError(f"{shown(text)}: the time after `for` must be longer than 0s")
        return cls(text.strip(), source, what, match["op"], _limit(text, match["signal"], match["limit"]), window)

    def holds(self, value: float, *, unknown: bool) -> bool:
        """Whether the value satisfies the condition; `unknown` for NaN, a figure that was not measured."""
        return unknown if math.isnan(value) else _COMPARISONS[self.op](value, self.limit)

    def __str__(self) -> str:
        return self.text

    def figure(self, value: float) -> str:
        """A value of the condition's signal for a person, in the unit of the limit: `4.53ms`, `0.2%`."""
        match = _PATTERN.fullmatch(self.text)
        unit = _unit_of(match["signal"], match["limit"]) if match else None
        if math.isinf(value):
            return "never"
        short = float(f"{value:.4g}")
        return f"{short:g}" if unit is None or math.isnan(value) else str(unit(short))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return text_schema(cls, f"a condition; write it like {_EXAMPLE!r}")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "type": "string",
            "pattern": f"^{ungrouped(_PATTERN.pattern)}$",
            "examples": [_EXAMPLE, "kv-writes.errors < 0.1%"],
        }


@dataclass(frozen=True)
class Looks:
    """The looks at one host or at the whole datacenter: the successful ones' figures, the number of failed ones."""

    figures: Sequence[float]
    failed: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> Looks:
        """Counts NaN as a failed look."""
        known = [value for value in values if not math.isnan(value)]
        return cls(known, len(values) - len(known))

    @property
    def mean(self) -> float:
        return sum(self.figures) / len(self.figures) if self.figures else math.nan


class Reading:
    """A condition's signal over a time, parts of which may be unknown.

    So a reading has no order and no truth value. Use `surely` where unknown must not pass (a steady state, a ramp),
    and `maybe` where unknown must not be overlooked (a guardrail).
    """

    def __init__(
        self, looks: Sequence[Looks], *, blind: str = "", shown: Callable[[float], str] = "{:.6g}".format
    ) -> None:
        """`looks` has the looks at each host. `blind` is why a host has been unknown for too long, or ""."""
        self.blind = blind
        self._shown = shown
        self._looks = looks

    def __bool__(self) -> bool:
        raise TypeError("a reading may be unknown: call its `surely` or `maybe`")

    @property
    def figure(self) -> float:
        """For a person: the mean of the highest host's successful looks; NaN if none succeeded."""
        return max((looks.mean for looks in self._looks if looks.figures), default=math.nan)

    @property
    def failed(self) -> int:
        """How many looks failed."""
        return sum(looks.failed for looks in self._looks)

    def __str__(self) -> str:
        if self.blind:
            return f"unknown: {self.blind}"
        return f"measured {self._shown(self.figure)}" + (f"; {self.failed} looks failed" if self.failed else "")

    def surely(self, condition: Condition) -> bool:
        """Whether the condition holds, whatever the failed looks would have shown.

        `<`, `<=` and `==` need all looks at all hosts. For other comparisons one host over the limit is enough.
        """
        whole = [looks for looks in self._looks if looks.figures and not looks.failed]
        if condition.op in _NEED_ALL_HOSTS and len(whole) < len(self._looks):
            return False
        return condition.holds(Reading(whole).figure, unknown=False)

    def maybe(self, condition: Condition) -> bool:
        """Whether the condition holds by the successful looks, or may hold during failed ones."""
        return bool(self.blind) or condition.holds(self.figure, unknown=False)


def _unit_of(signal: str, limit: str) -> type[Quantity] | None:
    """The unit of the signal; if no product declares it, the unit of the condition's limit."""
    if (unit := _unit(signal)) is not None:
        return unit
    for unit in () if signal in probe_signals(signal.partition(".")[0]) else (Duration, Level, Bandwidth, Size, Rate):
        try:
            unit.parse(limit)
        except ValueError:
            continue
        return unit
    return None


def _limit(text: str, signal: str, limit: str) -> float:
    if (unit := _unit_of(signal, limit)) is not None:
        return unit.parse(limit)
    try:
        return float(limit)
    except ValueError:
        raise ValueError(f"{shown(text)}: compare {signal} with a plain number, not {limit!r}") from None


def load_signals(kind: type[Load]) -> Mapping[str, type[Quantity] | None]:
    """The signals of that class of load, besides LOAD_STATISTICS, that a condition can compare; unit None: a number."""
    return LOAD_SIGNALS | (dict(kind.signals) if isinstance(kind, HasSignals) else {})


def unit_trouble(condition: Condition, unit: type[Quantity] | None) -> str:
    """Why the condition's limit does not fit a signal of that unit, or "". A load's class declares its units."""
    match = _PATTERN.fullmatch(condition.text)
    limit = match["limit"] if match else ""
    try:
        _ = float(limit) if unit is None else unit.parse(limit)
    except ValueError as error:
        plain = f"compare {condition.source}.{condition.what} with a plain number, not {limit!r}"
        return f"{shown(condition.text)}: {plain if unit is None else error}"
    return ""


def _unit(signal: str) -> type[Quantity] | None:
    namespace, _, what = signal.partition(".")
    if signal in (of_probes := probe_signals(namespace)):
        return of_probes[signal]
    if what.startswith("latency"):
        return Duration
    units: dict[str, type[Quantity]] = {"errors": Percent, "rate": Rate, "level": Level}
    return units.get(what)
