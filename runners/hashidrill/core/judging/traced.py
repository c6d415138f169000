"""A recording that notes which loads and signals a hypothesis reads, and which seconds of them.

INVALID has a scope. Seconds that were not measured validly spoil what is judged from them, and nothing else, so the
judge must know what a hypothesis looked at. It hands the hypothesis a `TracedRecording`, which notes each column that
is read. Only `between`, `within` and `known_between` narrow operations and samples to some seconds. Anything else
counts as the whole run: a mask made by hand, the journal, the recording's path, or reading nothing at all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hashidrill.core.recording.marks import MarkWindow
from hashidrill.core.recording.reader import FaultWindow, Operations, Recording, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.recording.journal import Entry

Spans = tuple[tuple[int, int], ...]
ALL = None
"""Instead of spans or of a name: the whole run, or every load and signal."""
_OPERATION_COLUMNS = frozenset(field.name for field in fields(Operations))
_SERIES_COLUMNS = frozenset(field.name for field in fields(Series))


@dataclass(frozen=True, eq=False)
class Read:
    """What was read: a load or signal by name (ALL: anything), of one host or all, in some spans of ns.

    An operation that was due in a span may have ended after it.
    """

    of: str | None
    host: str | None = None
    spans: Spans | None = ALL
    operations: Operations | None = None
    unknown: str = ""
    """What the hypothesis says that a failed look means; nothing where it does not say."""

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Was any of it measured in [start_ns, end_ns)?"""
        if self.spans is ALL or any(begin < end_ns and end > start_ns for begin, end in self.spans):
            return True
        ops = self.operations
        return ops is not None and bool(((ops.intended_ns < end_ns) & (ops.end_ns >= start_ns)).any())


EVERYTHING = Read(ALL)


class TracedRecording(Recording):
    """A view of a recording for one hypothesis; `reads` is what it looked at."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._reads: list[Read] = []

    @property
    def reads(self) -> list[Read]:
        """Everything, if nothing was noted: then nobody knows what it was judged from."""
        return self._reads or [EVERYTHING]

    def _note(self, read: Read) -> None:
        self._reads.append(read)

    @property
    def path(self) -> Path:  # type: ignore[override]
        # whoever has it can open every file
        self._note(EVERYTHING)
        return self._recording.path

    @property
    def journal(self) -> list[Entry]:
        self._note(EVERYTHING)
        return self._recording.journal

    def events(self, event: str) -> list[Entry]:
        self._note(EVERYTHING)
        return self._recording.events(event)

    # not measurements: what the experiment asked for, when its phases were, and what the recording holds

    @property
    def run(self) -> dict[str, Any]:
        return self._recording.run

    @property
    def experiment(self) -> Experiment:
        return self._recording.experiment

    @property
    def standstills(self) -> list[tuple[float, int]]:
        return self._recording.standstills

    @property
    def phases(self) -> dict[str, tuple[int, int]]:
        return self._recording.phases

    @property
    def outcome(self) -> str:
        return self._recording.outcome

    @property
    def faults(self) -> list[FaultWindow]:
        return self._recording.faults

    @property
    def marks(self) -> list[MarkWindow]:
        return self._recording.marks

    @property
    def loads(self) -> list[str]:
        return self._recording.loads

    @property
    def signals(self) -> list[str]:
        return self._recording.signals

    @property
    def aside(self) -> Recording:
        return self._recording.aside

    def artifact(self, name: str) -> Path:
        return self._recording.artifact(name)

    # measurements; not cached as in Recording, because each use is noted

    def operations(self, load: str, *, unknown: str = "") -> Operations:
        return _TracedOperations(self._recording.operations(load), (load, unknown), ALL, self._note)

    def series(self, signal: str, host: str | None = None, *, unknown: str = "") -> Series:
        return _TracedSeries(self._recording.series(signal, host), (signal, host, unknown), ALL, self._note)

    def final_reads(self, load: str) -> dict[str, str | None]:
        """Depends on everything that the load did."""
        self._note(Read(load))
        return self._recording.final_reads(load)

    def _query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        self._note(EVERYTHING)
        return self._recording._query(statement, *parameters)  # noqa: SLF001 - it is one of these


class _TracedOperations(Operations):
    def __init__(
        self, plain: Operations, of: tuple[str, str], spans: Spans | None, note: Callable[[Read], None]
    ) -> None:
        super().__init__(*(getattr(plain, field.name) for field in fields(Operations)))
        for name, value in {"_plain": plain, "_of": of, "_spans": spans, "_tell": note, "_told": False}.items():
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name in _OPERATION_COLUMNS and not get("_told"):
            object.__setattr__(self, "_told", True)
            load, unknown = get("_of")
            get("_tell")(Read(load, None, get("_spans"), get("_plain"), unknown))
        return get(name)

    def within(self, spans: Iterable[tuple[int, int]]) -> Operations:
        get = super().__getattribute__
        spans = tuple(spans)
        narrowed = _narrowed(get("_spans"), spans)
        return _TracedOperations(get("_plain").within(spans), get("_of"), narrowed, get("_tell"))


class _TracedSeries(Series):
    def __init__(
        self, plain: Series, of: tuple[str, str | None, str], spans: Spans | None, note: Callable[[Read], None]
    ) -> None:
        super().__init__(*(getattr(plain, field.name) for field in fields(Series)))
        for name, value in {"_plain": plain, "_of": of, "_spans": spans, "_tell": note, "_told": False}.items():
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name in _SERIES_COLUMNS and not get("_told"):
            object.__setattr__(self, "_told", True)
            signal, host, unknown = get("_of")
            get("_tell")(Read(signal, host, get("_spans"), unknown=unknown))
        return get(name)

    def between(self, start_ns: int, end_ns: int) -> Series:
        get = super().__getattribute__
        return self._traced(get("_plain").between(start_ns, end_ns), start_ns, end_ns)

    def known_between(self, start_ns: int, end_ns: int) -> Series:
        get = super().__getattribute__
        known: Series = get("_plain").known_between(start_ns, end_ns)
        since_ns = min(start_ns, int(known.t_ns[0])) if len(known) else start_ns
        return self._traced(known, since_ns, end_ns)

    def _traced(self, plain: Series, start_ns: int, end_ns: int) -> Series:
        get = super().__getattribute__
        return _TracedSeries(plain, get("_of"), _narrowed(get("_spans"), ((start_ns, end_ns),)), get("_tell"))


def _narrowed(outer: Spans | None, inner: Sequence[tuple[int, int]]) -> Spans:
    """What of `inner` lies in `outer`."""
    if outer is ALL:
        return tuple(inner)
    both = ((max(a, c), min(b, d)) for a, b in outer for c, d in inner)
    return tuple((start, end) for start, end in both if start < end)
