"""Numbers and names as a person reads them: `3.0 s`, `16 ms`, `1.2 GB`; never a raw float, never a control character.

Values that were not measured (NaN, None) are printed as a dash.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence

NOTHING = "\N{EN DASH}"
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-:=+*#"
_TO_ASCII = str.maketrans(
    {
        "✓": "+",
        "✗": "x",
        "µ": "u",
        NOTHING: "-",
        "—": "-",
        "…": "...",
        "→": "->",
        "·": "|",
        "█": "#",
        "░": ".",
        **dict(zip(_BARS[:-1], _ASCII_BARS[:-1], strict=True)),
    }
)


def human_duration(seconds: float | None) -> str:  # noqa: PLR0911 - one return a unit
    """A length of time given in seconds: `850 µs`, `1.6 ms`, `16 ms`, `3.0 s`, `2 min 5 s`, `1 h 3 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 0:
        return f"-{human_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    # each limit is where the next smaller unit would round up to a thousand (or to sixty)
    if seconds < 999.5e-6:
        return f"{max(seconds * 1e6, 1):.0f} µs"
    if seconds < 9.95e-3:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def human_countdown(seconds: float | None) -> str:
    """Time that is left, given in seconds and shown in whole ones, so that it does not flicker: `12 s`, `2 min 5 s`."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    whole = max(math.ceil(seconds), 0)
    return f"{whole} s" if whole < 60 else human_duration(whole)


def human_bytes(size: float | None) -> str:
    """A size given in bytes, in powers of 1000: `512 B`, `4.1 kB`, `90 MB`."""
    if size is None or not math.isfinite(size):
        return NOTHING
    if size < 0:
        return f"-{human_bytes(-size)}"
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    value, index = float(size), 0
    while value >= (999.5 if index else 1000) and index < len(units) - 1:
        value, index = value / 1000, index + 1
    return f"{value:.1f} {units[index]}" if index and value < 9.95 else f"{value:.0f} {units[index]}"


def human_rate(per_second: float | None) -> str:
    """Events per second: `50/s`, `0.2/s`."""
    if per_second is None or not math.isfinite(per_second):
        return NOTHING
    return f"{per_second:.0f}/s" if per_second >= 9.95 or per_second == 0 else f"{per_second:.1f}/s"


def human_share(share: float | None) -> str:
    """A share between 0 and 1 as a percentage: `0 %`, `0.03 %`, `12 %`. Only none and all print as 0 and 100."""
    if share is None or not math.isfinite(share):
        return NOTHING
    percent = share * 100
    if percent in {0, 100}:
        return f"{percent:.0f} %"
    if 0 < percent < 0.01:
        return "< 0.01 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.2f} %" if percent < 0.95 else f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def human_number(value: float | None) -> str:
    """A number without a unit, to at most four digits: `3`, `0.5012`, `1 200 000`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.4g}"


# a figure's name ends in its unit (STYLE: names carry units where a type does not)
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_bytes_per_s", lambda value: f"{human_bytes(value)}/s"),
    ("_per_s", human_rate),
    ("_ns", lambda value: human_duration(value / 1e9)),
    ("_us", lambda value: human_duration(value / 1e6)),
    ("_ms", lambda value: human_duration(value / 1e3)),
    ("_s", human_duration),
    ("_bytes", human_bytes),
    ("_share", human_share),
    ("_share_max", human_share),
)
_NO_NUMBER = {"never", "-never", "not measured"}
"""How figures spell infinity and NaN."""


def human_figure(name: str, value: object) -> tuple[str, str]:
    """One figure's name and value as displayed; the name's suffix gives the unit: `p50_s` 3.0 is `p50` `3.0 s`."""
    if isinstance(value, bool) or value is None:
        return spaced(name), {True: "yes", False: "no"}.get(value, NOTHING)  # type: ignore[arg-type]
    if isinstance(value, (int, float)):
        for suffix, human in _UNITS:
            if name.endswith(suffix) and len(name) > len(suffix):
                return spaced(name.removesuffix(suffix)), human(value)
        return spaced(name), human_number(value)
    if isinstance(value, (list, tuple)):
        return spaced(name), listed([printable(str(item)) for item in value])
    if isinstance(value, str) and value in _NO_NUMBER:  # there is no number, so its unit is dropped
        name = next((name.removesuffix(suffix) for suffix, _ in _UNITS if name.endswith(suffix)), name)
    return spaced(name), printable(str(value))


def spaced(name: str) -> str:
    """A name of the code as words: `lost_keys` is `lost keys`."""
    return printable(name.replace("_", " ").strip())


def listed(items: Sequence[str], limit: int = 20) -> str:
    """`a, b, c`, cut after `limit` items with the number of those left out."""
    shown = ", ".join(items[:limit]) or "none"
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters (Unicode's Cc) other than tab and newline, and halves of surrogate pairs (Cs)."""


def printable(text: str, limit: int = 4000) -> str:
    """`text` without control characters (a log line can carry terminal escapes), cut after `limit` characters."""
    clean = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text[:limit])
    return clean if len(text) <= limit else f"{clean} … ({len(text) - limit} more characters)"


def one_line(text: str, limit: int = 400) -> str:
    """`text` with its white space folded, on one line."""
    return printable(" ".join(text.split()), limit)


def plain_line(line: str) -> str:
    """`line`, made one printable line if it is not; leading white space stays."""
    lead = len(line) - len(line.lstrip(" "))
    return " " * lead + one_line(line[lead:], 2000) if "\n" in line or not line.isprintable() else line


def is_laid_out(line: str) -> bool:
    """Whether the line is a table row, aligned by spaces."""
    return re.search(r"\S {2,}\S", line) is not None


def paragraphs(text: str) -> list[tuple[bool, str]]:
    return [(rows, "\n".join(lines)) for rows, lines in itertools.groupby(text.splitlines(), is_laid_out)]


def sparkline(values: Iterable[float | None], width: int, *, ascii_only: bool = False) -> str:
    """The values as `width` characters at most, oldest first, scaled from zero to the largest.

    If there are more values, each character shows the largest of a group, so that no spike is lost. What was not
    measured (NaN, None) is a blank; zero is the lowest bar; infinity is the highest bar, and does not affect the scale.
    """
    numbers = [math.nan if value is None or math.isnan(value) else max(float(value), 0.0) for value in values]
    if width <= 0 or not numbers:
        return ""
    cells = min(width, len(numbers))
    edges = [index * len(numbers) // cells for index in range(cells + 1)]
    groups = [numbers[start:end] for start, end in itertools.pairwise(edges)]
    peaks = [max((n for n in group if not math.isnan(n)), default=math.nan) for group in groups]
    top = max((peak for peak in peaks if math.isfinite(peak)), default=0.0)
    bars = _ASCII_BARS if ascii_only else _BARS
    return "".join(" " if math.isnan(peak) else bars[_level(peak, top, len(bars))] for peak in peaks)


def _level(value: float, top: float, levels: int) -> int:
    if math.isinf(value):
        return levels - 1
    return 0 if top <= 0 else min(int(value / top * levels), levels - 1)


def for_encoding(text: str, encoding: str) -> str:
    r"""`text` as a terminal of that encoding can show it: unchanged where it can, in plain ASCII where it cannot.

    Bytes that are not text, as in a file name that is not UTF-8, are shown as `\udcff`.
    """
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = text.encode("utf-8", "backslashreplace").decode()
        lacks = "utf" not in encoding.lower()
        return text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii") if lacks else text
    return text
