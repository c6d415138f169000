"""Reads a foreign file key by key, so that no key is dropped silently; and the steps that the file becomes."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from hashidrill.core.errors import UsageError
from hashidrill.core.units import Duration, shown

_GO = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = 366 * 24 * 3600.0
_MOST_PERCENT = 100.0


class UnsupportedError(UsageError):
    """Something in a foreign file that an experiment cannot express; the message names its place."""


class Document:
    """One mapping. Each key is read by its type, reported as lost, or refused; `unread` lists all others.

    If a value has the wrong type, all getters raise UnsupportedError with the key's place. A missing key, null and ""
    are the same, as in Kubernetes.
    """

    def __init__(self, value: Any, at: str, of: tuple[list[Document], list[str]]) -> None:
        """`at`: its place in the file. `of`: all documents of the file, and the messages about lost parts."""
        if not isinstance(value, Mapping):
            raise UnsupportedError(f"{at or 'it'}: expected keys and values, got {shown(value)}")
        self.at, self._value, self._of = at, value, of
        self._seen: set[Any] = set()
        self._parts: dict[str, Any] = {}
        of[0].append(self)

    def place(self, key: Any) -> str:
        return f"{self.at}.{key}" if self.at else str(key)

    def has(self, key: str) -> bool:
        """Whether the key has a value; this does not count as reading it."""
        value = self._value.get(key)
        return value is not None and not (isinstance(value, (str, list, Mapping)) and not value)

    def line(self, place: str) -> int:
        """The line of a place in the file, from 1; 0 if the place is not in this mapping, or its line is unknown."""
        marks = getattr(self._value, "lc", None)
        if marks is None:
            return 0
        lines = {self.place(key): mark[0] for key, mark in (marks.data or {}).items()}
        return int(lines.get(place, marks.line if place == self.at else -1)) + 1

    def settle(self) -> None:
        """Marks everything in this mapping as read, because a message already covers it."""
        for one in self._of[0]:
            if one is self or one.at.startswith(f"{self.at}."):
                one._seen.update(one._value)  # noqa: SLF001 - of its own class

    def written(self) -> list[str]:
        """All keys with a value."""
        return [str(key) for key in self._value if self.has(key)]

    def value(self, key: str) -> Any:
        """The unchanged value; None if there is none."""
        self._seen.add(key)
        value = self._value.get(key)
        return None if value == "" else value

    def wrong(self, key: str, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.place(key)}: {why}")

    def _type(self, key: str, expected: str) -> UnsupportedError:
        return self.wrong(key, f"expected {expected}, got {shown(self._value.get(key))}")

    def text(self, key: str, default: str = "", *, needed: bool = False) -> str:
        value = self.value(key)
        if value is None and needed:
            raise self.wrong(key, "it is missing")
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self._type(key, "text")
        return str(value).strip()

    def choice(self, key: str, known: Iterable[str], default: str = "") -> str:
        value = self.text(key, default)
        if value not in known:
            raise self.wrong(key, f"{shown(value)} cannot be translated; hashidrill reads {', '.join(known)}")
        return value

    def number(self, key: str, default: float = 0.0, *, most: float = 1e12) -> float:
        """A number from 0 to `most`, written as a number or as text."""
        text = self.text(key)
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise UnsupportedError(
                f"{self.place(key)}: {shown(self._value.get(key))} is not a number from 0 to {most:g}"
            )
        return value

    def percent(self, key: str, default: float = 0.0) -> float:
        return self.number(key, default, most=_MOST_PERCENT)

    def whole(self, key: str, default: int = 0) -> int:
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise self._type(key, "a whole number")
        return value

    def seconds(self, key: str, *, needed: bool = False) -> float:
        """A duration as Go writes it; 0 if there is none."""
        text = self.text(key, needed=needed)
        return go_seconds(text, self.place(key)) if text else 0.0

    def texts(self, key: str) -> list[str]:
        value = self.value(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._type(key, "a list of texts")
        return value

    def part(self, key: str) -> Document:
        """The mapping at that key; an empty mapping if there is none."""
        value = self._value.get(key)
        self._seen.add(key)
        if key not in self._parts:
            self._parts[key] = Document({} if value is None else value, self.place(key), self._of)
        return self._parts[key]  # type: ignore[no-any-return]

    def parts(self, key: str, *, by: str = "") -> list[Document]:
        """The mappings in the list at that key; messages call each by its value of the key `by`, or by its number."""
        if key not in self._parts:
            self._seen.add(key)
            value = [] if self._value.get(key) is None else self._value[key]
            if not isinstance(value, list):
                raise self._type(key, "a list")
            found = [Document(one, f"{self.place(key)}[{number}]", self._of) for number, one in enumerate(value)]
            for one in found:
                if by and (name := one.text(by)):
                    one.at = self.place(f"{key}.{name}")
            self._parts[key] = found
        return self._parts[key]  # type: ignore[no-any-return]

    def lose(self, why: str, *keys: Any) -> None:
        """Reports those of these keys that have a value as lost."""
        self._seen.update(keys)
        if given := [key for key in keys if self.has(key)]:
            value = self._value[given[0]]
            brief = f" ({str(value)[:60]})" if len(given) == 1 and isinstance(value, (str, int, float)) else ""
            self._of[1].append(f"{self.place(', '.join(map(str, given)))}{brief}: {why}")

    def lose_rest(self, why: str, *, but: str = "") -> None:
        """Reports all unread keys as lost, except `but`, which is read later."""
        self.lose(why, *(key for key in self._value if key not in self._seen and key != but))

    def lose_all(self, why: str) -> None:
        self._seen.update(self._value)
        self._of[1].append(f"{self.at}: {why}")

    def refuse(self, why: str, *keys: str) -> None:
        """Raises UnsupportedError for the first of those keys that has a value."""
        self._seen.update(keys)
        for key in keys:
            if self.has(key):
                raise UnsupportedError(f"{self.place(key)}: {shown(self._value[key])}: {why}")

    def unread(self) -> list[str]:
        """The places of the keys that nothing has read."""
        return [self.place(key) for key in self._value if key not in self._seen]

    def known(self) -> list[str]:
        return sorted(map(str, self._seen))


def check_read(documents: Iterable[Document]) -> None:
    """Raises UnsupportedError that names every key that nothing has read."""
    for one in documents:
        if unread := one.unread():
            raise UnsupportedError(
                f"{', '.join(unread)}: hashidrill does not read this here; it reads {', '.join(one.known())}"
            )


def go_seconds(value: Any, at: str) -> float:
    """A duration as Go writes it, like 1m30s. Raises UnsupportedError."""
    text = str(value).strip()
    parts = _GO.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UnsupportedError(f"{at}: {shown(value)} is not a duration like 30s or 1m30s")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not seconds <= _LONGEST_S:
        raise UnsupportedError(f"{at}: {shown(value)} is longer than a year")
    return seconds


class Parameters:
    """The parameters of an exported step; `unread` lists those that the experiment sets and that nothing has read."""

    def __init__(self, model: BaseModel) -> None:
        self._model, self._seen = model, set[str]()

    def __getattr__(self, name: str) -> Any:
        self._seen.add(name)
        return getattr(self._model, name)

    def unread(self) -> list[str]:
        fields = type(self._model).model_fields
        left = [name for name in fields if name in self._model.model_fields_set - self._seen]
        return [f"with.{fields[name].alias or name}: {getattr(self._model, name)}: not written" for name in left]


FILL_IN = "fill-in"
"""The kind of everything without an equivalent. No such kind exists, so `validate` and `run` refuse it."""
ONCE_S = 3.0
"""The length, in seconds, of a step that happens once and has no length in a foreign file."""
MOST_STEPS = 20
ONE_INTERFACE, RATE_ALONE = "a local host has one network interface", "network.bandwidth has only a rate"
Faults = list[tuple[str, dict[str, Any]]]
Link = dict[str, Any]
"""Parameters of a fault on the connections of one port."""


@dataclass
class Step:
    """One step of the future method. Times are in seconds."""

    fault: str
    on: str
    with_: dict[str, Any] = field(default_factory=dict)
    at_s: float = 0.0
    for_s: float = ONCE_S
    name: str = ""
    why: str = ""
    """What a person must fill in, and why; "" for nothing."""

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"name": self.name} if self.name else {}
        data |= {"fault": self.fault, "on": self.on}
        if self.with_:
            data["with"] = self.with_
        if self.at_s:
            data["at"] = seconds(self.at_s)
        return {**data, "for": seconds(self.for_s)}


@dataclass
class Reading:
    """One file while it is read. `on` is the requested selector; "" if the labels decide."""

    on: str = ""
    side: str = ""
    """The requested other side of network faults; "" if the labels decide."""
    steps: list[Step] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    defaults: dict[str, Document] = field(default_factory=dict)
    """The definitions of the file's ChaosExperiments, by their names."""
    title: str = ""
    why: str = ""
    tags: list[str] = field(default_factory=lambda: ["imported"])
    probes: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    """For each name: the parameters, and what a person must fill in there."""
    require: list[str] = field(default_factory=list)
    expect: list[dict[str, Any]] = field(default_factory=list)
    recovery_s: float = 20.0
    own: str = ""
    """The hashidrill experiment that the file runs, if any; it is then the result."""

    @property
    def all(self) -> tuple[list[Document], list[str]]:
        return self.documents, self.lost

    def lose(self, text: str) -> None:
        self.lost.append(text)

    def add(self, at_s: float, for_s: float, on: str, *faults: tuple[str, dict[str, Any]]) -> None:
        """Adds a step for each fault. Raises UnsupportedError for too many steps."""
        for fault, parameters in faults:
            self.steps.append(Step(fault, on, parameters, at_s, for_s))
        if len(self.steps) > MOST_STEPS:
            raise UnsupportedError(f"it has more than {MOST_STEPS} steps; import its parts one by one")


def seconds(value: float) -> str:
    """Seconds in the notation of experiments and of Go."""
    return str(Duration(round(value, 3)))


def loss_of(percent: float, way: str, side: str, reading: Reading, at: str) -> Faults:
    """Packet loss `out`, `in` or `both` ways. network.loss loses both ways, so that as many round trips are lost."""
    if percent == 100:
        return [("network.partition", {"from": side, "direction": way})]
    each = percent if way == "both" else 100 * (1 - math.sqrt(1 - percent / 100))
    if way != "both":
        reading.lose(f"{at}: it loses {percent:g} % one way; here {each:.3g} % each way, so as many round trips fail")
    return [("network.loss", {"percent": f"{each:.3g}%", "from": side})]


def delay_of(link: Link, delay_s: float, jitter_s: float, reading: Reading, at: str) -> Faults:
    """A delay of round trips, in seconds."""
    ends = "it opens to" if link.get("direction") == "out" else "others open to its"
    reading.lose(
        f"{at}: it delays all packets that are sent; here only requests on connections that {ends} port {link['port']}"
    )
    jitter = {"jitter": seconds(jitter_s)} if jitter_s else {}
    return [("network.latency", {**link, "delay": seconds(delay_s), **jitter})]


def name_of(written: str) -> str:
    """The text as a valid name of an experiment, a step or a probe."""
    name = "-".join(part for part in re.split(r"[^a-z0-9]+", written.lower()) if part)[:50].strip("-")
    return name if name[:1].isalpha() else f"imported-{name}".strip("-")


def as_yaml(data: Any) -> str:
    yaml, out = YAML(), io.StringIO()
    yaml.default_flow_style, yaml.width = False, 120
    yaml.representer.ignore_aliases = lambda _: True
    yaml.dump(data, out)
    return out.getvalue()
