"""The lines of a `decide` block: `commit_ms > 300 and leader is there -> slow-disk: the leader's disk`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hashidrill.core.experiment.model import NAME_PATTERN as DIAGNOSIS_PATTERN

Value = float | str
Seen = Mapping[str, Value | None]
"""What was observed so far, by name; None: it was looked for, and is missing."""
OTHERWISE = "otherwise"
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(
    r"(?P<name>[a-z][a-z0-9_]*)\s*(?:(?P<is>is (?:missing|there))|(?P<op><=|>=|==|!=|<|>|contains\b)\s*(?P<value>.+))"
)
_LINE = re.compile(r"(?P<when>.+?)\s+->\s+(?P<diagnosis>\S+?)(?::\s*(?P<text>.*))?")
_AND = re.compile(r"\s+and\s+(?=[a-z])")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Condition:
    """One comparison. `other` is the name of another observation that it compares with."""

    text: str
    name: str
    op: str
    value: Value = ""
    other: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.other) if self.other else (self.name,)

    @property
    def positive(self) -> bool:
        """Whether it can only hold where something was observed."""
        return self.op != "is missing"

    def holds(self, seen: Seen) -> bool:
        """False for what is missing, unless that is what it asks."""
        left = seen.get(self.name)
        if self.op.startswith("is "):
            return (left is None) == (self.op == "is missing")
        right = seen.get(self.other) if self.other else self.value
        if left is None or right is None:
            return False
        if self.op in _ORDER:
            a, b = as_number(left), as_number(right)
            return a is not None and b is not None and _ORDER[self.op](a, b)
        if self.op == "contains":
            return str(right) in str(left)
        return _same(left, right) == (self.op == "==")


@dataclass(frozen=True)
class Line:
    """One line of a decision: all of `conditions`, or none for `otherwise`."""

    line: int
    conditions: tuple[Condition, ...]
    diagnosis: str
    text: str

    def holds(self, seen: Seen) -> bool:
        return all(condition.holds(seen) for condition in self.conditions)

    def because(self, seen: Seen) -> dict[str, Value | None]:
        """What it rests on."""
        return {name: seen.get(name) for condition in self.conditions for name in condition.names}


def parse_line(text: str, number: int) -> Line:
    """Raises ValueError that says what is wrong."""
    found = _LINE.fullmatch(text.strip())
    if found is None:
        raise ValueError("write CONDITION -> DIAGNOSIS: TEXT, like `commit_ms > 300 -> slow-disk: the leader's disk`")
    diagnosis, when = found["diagnosis"], found["when"].strip()
    if not re.fullmatch(DIAGNOSIS_PATTERN, diagnosis):
        raise ValueError(f"the diagnosis {diagnosis!r} is no name: lower case, digits and hyphens, like slow-disk")
    conditions = () if when == OTHERWISE else tuple(_condition(each) for each in _AND.split(when))
    return Line(number, conditions, diagnosis, (found["text"] or "").strip())


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text.strip()!r} is no condition: NAME < <= > >= == != contains VALUE, NAME is missing, NAME is there"
        )
    if found["is"]:
        return Condition(text.strip(), found["name"], found["is"])
    written = found["value"].strip()
    quoted = _QUOTED.fullmatch(written)
    if quoted is not None:
        return Condition(text.strip(), found["name"], found["op"], quoted[1] if quoted[1] is not None else quoted[2])
    if (number := as_number(written)) is not None:
        return Condition(text.strip(), found["name"], found["op"], number)
    if written in {"true", "false"}:  # as jq prints them
        return Condition(text.strip(), found["name"], found["op"], written)
    if _NAME.fullmatch(written):
        return Condition(text.strip(), found["name"], found["op"], other=written)
    raise ValueError(f"{written!r} is neither a number, nor a text in quotes, nor the name of an observation")


def as_number(value: Value) -> float | None:
    """None for what is none: neither text, nor NaN, nor infinity."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number - number == 0 else None


def _same(left: Value, right: Value) -> bool:
    a, b = as_number(left), as_number(right)
    return a == b if a is not None and b is not None else str(left) == str(right)
