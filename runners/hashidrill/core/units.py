"""Quantities with units: durations, rates, sizes, percentages.

Each type is a number (seconds, per second, bytes, 0..1) that is read from and printed as text with a unit:
`Duration("500ms") == 0.5`, `Rate("50/s") == 50.0`, `Size("4kB") == 4000`, `Percent("0.1%") == 0.001`. A bare number
raises ValueError with an example of valid text.
"""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic_core import CoreSchema, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue


_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|µs|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def seconds(text: str) -> float | None:
    """The duration in seconds; None if the text is not a duration."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * _SECONDS[unit] for number, unit in parts), 9)


class Quantity(float):
    """A number that is written with a unit."""

    _units: ClassVar[dict[str, float]] = {}
    _pattern: ClassVar[str] = ""
    _noun: ClassVar[str] = ""
    _examples: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, value: str | float) -> Self:
        return super().__new__(cls, cls.parse(value) if isinstance(value, str) else value)

    @classmethod
    def parse(cls, text: str) -> float:
        """The number that `text` states, in the base unit. Raises ValueError with an example of valid text."""
        match = re.fullmatch(cls._pattern, text.strip())
        if match is None:
            raise ValueError(f"{shown(text)} {cls._trouble(text)}")
        return float(match["number"]) * cls._units[match["unit"]]

    @classmethod
    def how(cls) -> str:
        """The kind and its examples, for messages: `a duration, like 500ms or 10s`."""
        return f"{cls._noun}, like {' or '.join(cls._examples)}"

    @classmethod
    def _trouble(cls, text: str) -> str:
        number = text.strip()
        if number.startswith("-"):
            return f"is negative; write {cls.how()}"
        if re.fullmatch(_NUMBER, number):
            return f"has no unit: {cls._noun} is written like {' or '.join(cls._examples)}"
        return f"is not {cls._noun}; write it like {' or '.join(cls._examples)}"

    @classmethod
    def _from_yaml(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(  # noqa: TRY004 - pydantic turns ValueError, not TypeError, into a located error
                f"{shown(value)} is not {cls._noun}; write it like {' or '.join(cls._examples)}"
            )
        raise ValueError(f"{shown(value)} {cls._trouble(str(value))}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._from_yaml, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^{ungrouped(cls._pattern)}$", "examples": list(cls._examples)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


def shown(value: Any) -> str:
    """repr(), cut to one line, for messages that quote what a user wrote."""
    return _SHORT.repr(value)


def counted(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: `1 fault`, `2 faults`."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def text_schema(kind: Any, what: str) -> CoreSchema:
    """The schema of a type that `kind.parse` reads from text and str() prints; `what` describes such a text.

    Raises ValueError, even for a value that is not text, because pydantic locates only that error.
    """

    def from_yaml(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not {what}")  # noqa: TRY004 - see above
        return kind.parse(value)

    return core_schema.no_info_plain_validator_function(from_yaml, serialization=core_schema.to_string_ser_schema())


def ungrouped(pattern: str) -> str:
    """A pattern without the names of its groups, which JSON Schema does not know."""
    return re.sub(r"\?P<\w+>", "", pattern)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
# no more digits than a float has; [0-9] because \d also matches digits that JSON Schema's \d does not
_NUMBER = r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)"


def _trim(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


class Duration(Quantity):
    """A length of time, in seconds: `500ms`, `10s`, `2m`, `1h`."""

    _units: ClassVar = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    _pattern = _NUMBER + r"\s?(?P<unit>us|ms|s|m|h)"
    _noun = "a duration"
    _examples = ("500ms", "10s", "2m")

    def __str__(self) -> str:
        for unit, size in (("h", 3600.0), ("m", 60.0)):
            if self >= size and self % size == 0:
                return f"{_trim(self / size)}{unit}"
        if self >= 1 or not self:
            return f"{_trim(self)}s"
        return f"{_trim(self * 1e3)}ms" if self >= 1e-3 else f"{_trim(self * 1e6)}us"


def positive(duration: Duration) -> Duration:
    """Checks that a parameter is longer than 0s. Raises ValueError."""
    if duration <= 0:
        raise ValueError("this must be longer than 0s")
    return duration


class Rate(Quantity):
    """Events per second: `50/s`, `10/m`, `1/h`."""

    _units: ClassVar = {"s": 1.0, "m": 1 / 60, "h": 1 / 3600}
    _pattern = _NUMBER + r"\s?/\s?(?P<unit>s|m|h)"
    _noun = "a rate"
    _examples = ("50/s", "10/m")

    def __str__(self) -> str:
        for unit, size in (("s", 1.0), ("m", 60.0), ("h", 3600.0)):
            if round(self * size, 6) >= 1 or unit == "h":
                return f"{_trim(self * size)}/{unit}"
        raise AssertionError("unreachable")


class Size(Quantity):
    """A number of bytes: `512B`, `4kB` (1000), `64KiB` (1024), `20MB`, `1GiB`."""

    _units: ClassVar = {
        "B": 1,
        "kB": 1e3,
        "KB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    }
    _pattern = _NUMBER + r"\s?(?P<unit>B|kB|KB|MB|GB|KiB|MiB|GiB)"
    _noun = "a size"
    _examples = ("512B", "4kB", "64MiB")

    def __str__(self) -> str:
        for unit in ("GB", "GiB", "MB", "MiB", "kB", "KiB"):
            if self >= self._units[unit] and self % self._units[unit] == 0:
                return f"{_trim(self / self._units[unit])}{unit}"
        return f"{_trim(self)}B"


class Bandwidth(Quantity):
    """Bytes per second: `64kB/s`, `1MB/s`."""

    _units: ClassVar = {f"{unit}/s": size for unit, size in Size._units.items()}  # noqa: SLF001 - the same module
    _pattern = _NUMBER + r"\s?(?P<unit>(B|kB|KB|MB|GB|KiB|MiB|GiB)/s)"
    _noun = "a bandwidth"
    _examples = ("64kB/s", "1MB/s")

    def __str__(self) -> str:
        return f"{Size(float(self))}/s"


class Percent(Quantity):
    """A share between 0 and 1, written as a percentage: `0.1%`, `100%`."""

    _units: ClassVar = {"%": 0.01}
    _pattern = _NUMBER + r"\s?(?P<unit>%)"
    _noun = "a percentage"
    _examples = ("0.1%", "30%")

    @classmethod
    def parse(cls, text: str) -> float:
        share = super().parse(text)
        if share > 1:
            raise ValueError(f"{shown(text)} is over 100%")
        return share

    def __str__(self) -> str:
        return f"{_trim(self * 100)}%"


class Level(Quantity):
    """A multiple of a load's nominal value, written as a percentage that may exceed 100 %: `50%`, `300%`."""

    _units: ClassVar = {"%": 0.01}
    _pattern = _NUMBER + r"\s?(?P<unit>%)"
    _noun = "a level"
    _examples = ("50%", "300%")

    def __str__(self) -> str:
        return f"{_trim(self * 100)}%"
