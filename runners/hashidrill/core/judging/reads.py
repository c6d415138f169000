"""A recording that notes which loads and signals a hypothesis reads, and which seconds of them.

INVALID has a scope. Seconds that were not measured validly affect only judgements that rely on them, so the judge
must know what a hypothesis read. The judge gives the hypothesis a `TracedRecording`, which notes each column that is
read. Only `between`, `within` and `known_between` narrow operations and samples to some seconds. Any other use counts
as a read of the whole run: a mask made by hand, the journal, the recording's path, or no read at all.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hashidrill.core.experiment.conditions import probe_namespaces
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging.measure import SECOND, looks_of_load, seconds, when
from hashidrill.core.protocols.service import SILENT_S
from hashidrill.core.recording.columns import Bools, Int64s
from hashidrill.core.recording.journal import Entry
from hashidrill.core.recording.reader import FaultWindow, MarkWindow, Operations, Recording, Series

Spans = tuple[tuple[int, int], ...]
ALL = None
"""ALL as spans means the whole run; ALL as a name means every load and signal."""
_OPERATION_COLUMNS = frozenset(field.name for field in fields(Operations))
_SERIES_COLUMNS = frozenset(field.name for field in fields(Series))


@dataclass(frozen=True, eq=False)
class Read:
    """One read by a hypothesis: a load or signal by name (ALL: any), on one host or all, in some spans of ns.

    An operation that was due in a span may have ended after it.
    """

    of: str | None
    host: str | None = None
    spans: Spans | None = ALL
    operations: Operations | None = None
    unknown: str = ""
    """What a failed look means, as the hypothesis declares; "" if it does not."""

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Whether any data of this read was measured in [start_ns, end_ns)."""
        if self.spans is ALL or any(begin < end_ns and end > start_ns for begin, end in self.spans):
            return True
        ops = self.operations
        return ops is not None and bool(((ops.intended_ns < end_ns) & (ops.end_ns >= start_ns)).any())


EVERYTHING = Read(ALL)


class TracedRecording(Recording):
    """A view of a recording for one hypothesis; `reads` lists what the hypothesis read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._reads: list[Read] = []

    @property
    def reads(self) -> list[Read]:
        """The noted reads; without any, the whole recording, because the basis of the judgement is then unknown."""
        return self._reads or [EVERYTHING]

    def _note(self, read: Read) -> None:
        self._reads.append(read)

    @property
    def path(self) -> Path:  # type: ignore[override]
        # with the path, a hypothesis can open every file
        self._note(EVERYTHING)
        return self._recording.path

    @property
    def journal(self) -> list[Entry]:
        self._note(EVERYTHING)
        return self._recording.journal

    def events(self, event: str) -> list[Entry]:
        self._note(EVERYTHING)
        return self._recording.events(event)

    # not measurements: the experiment, its phases, and the list of the recording's content

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
        """The final reads, which depend on everything that the load did."""
        self._note(Read(load))
        return self._recording.final_reads(load)

    def _query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        self._note(EVERYTHING)
        return self._recording._query(statement, *parameters)  # noqa: SLF001 - it is a Recording too


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
    """The parts of `inner` that lie in `outer`."""
    if outer is ALL:
        return tuple(inner)
    both = ((max(a, c), min(b, d)) for a, b in outer for c, d in inner)
    return tuple((start, end) for start, end in both if start < end)


FEWEST = 0.5
"""The smallest share of looks that must have succeeded."""
_REGULAR_NS = 2 * SECOND
_FEWEST_REGULAR = 10
"""A load looks regularly if it has at least this many looks, with a median gap of at most `_REGULAR_NS`."""


@dataclass(frozen=True)
class _Looks:
    """The looks at one signal, in order of time. `steady`: the looks are regular, so a gap means silence."""

    what: str
    t_ns: Int64s
    known: Bools
    silent_s: float = SILENT_S
    steady: bool = False

    def trouble(self, start_ns: int, end_ns: int, *, failures: bool) -> str:
        """Why the looks do not cover that time, or "". `failures`: whether failed looks count."""
        inside = (self.t_ns >= start_ns) & (self.t_ns < end_ns)
        known_ns, failed_ns = self.t_ns[inside & self.known], self.t_ns[inside & ~self.known]
        edges = np.array([start_ns, *known_ns, end_ns], np.int64)
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if last - first <= self.silent_s * SECOND:
                continue
            failed = int(((failed_ns > first) & (failed_ns < last)).sum())
            if failures and failed:
                unseen = f"none succeeded for {seconds((last - first) / SECOND)} ({when(first)})"
                return f"{failed} looks at {self.what} failed, {unseen}"
            if self.steady and not failed:
                return f"no look at {self.what} for {seconds((last - first) / SECOND)} ({when(first)})"
        return self._mostly_failed(inside) if failures else ""

    def _mostly_failed(self, inside: Bools) -> str:
        """Why the looks are too few: over half of them failed, in the whole span or in any period that is twice as long
        as the probe may be silent; or "".
        """
        t_ns, known = self.t_ns[inside], self.known[inside]
        first = np.arange(len(t_ns))
        after = np.maximum(np.searchsorted(t_ns, t_ns + int(2 * self.silent_s * SECOND)), first + 1)
        counted = np.concatenate(([0], np.cumsum(known)))
        looks, succeeded = after - first, counted[after] - counted[first]
        # the end of the run cuts the last windows short, so cut windows count only if there are no whole ones
        whole = (after < len(t_ns)) | (first == 0)
        few = np.flatnonzero(whole & (succeeded < FEWEST * looks))
        if not len(few):
            return ""
        at = int(few[0])
        failed = int(looks[at] - succeeded[at])
        return f"{failed} of {int(looks[at])} looks at {self.what} failed ({when(int(t_ns[at]))} and later)"


def unseen(recording: Recording, reads: Sequence[Read]) -> str:
    """Why the reads are not enough (failed or missing looks); "" if they are enough."""
    for read in reads:
        for looks in _looks(recording, read):
            if not len(looks.t_ns):
                continue
            whole = ((int(looks.t_ns[0]), int(looks.t_ns[-1]) + 1),)
            for start_ns, end_ns in read.spans or whole:
                if why := looks.trouble(start_ns, end_ns, failures=not read.unknown):
                    return why
    return ""


def blind(recording: Recording, signal: str, span: tuple[int, int]) -> str:
    """Why a guardrail on a probe's signal was blind in that time; "" if it was not.

    The rule is the same as in hashidrill.core.engine.monitor: a host on which the run applied a fault may be silent.
    """
    if signal not in recording.signals:
        return f"{signal} was never sampled"
    probes = recording.experiment.sampled(recording.signals)
    irregular = any(signal in probe.signals and not probe.regular for probe in probes)
    apart = {window.host for window in recording.faults}
    hosts = [None] if irregular else sorted({*recording.series(signal).host} - apart)
    return unseen(recording, [Read(signal, host, (span,)) for host in hosts])


def _looks(recording: Recording, read: Read) -> Iterator[_Looks]:
    """The looks behind a read. Of a load that watches, its own looks: its operations are only the changes it saw."""
    if read.of is None:
        return
    load = read.of if read.operations is not None else read.of.partition(".")[0]
    own = load in recording.experiment.probes
    if read.operations is not None or (load not in probe_namespaces() and not own):
        t_ns, known = looks_of_load(recording, load)
        steady = len(t_ns) >= _FEWEST_REGULAR and float(np.median(np.diff(t_ns))) <= _REGULAR_NS
        if read.operations is not None:
            yield _Looks(f"{load} by itself", t_ns, known, steady=steady)
        elif read.of != f"{load}.level" and read.of in recording.signals:
            series = recording.series(read.of, read.host)
            seen = ~np.isnan(series.value)
            # while the load saw something else, this signal was not needed
            others = np.setdiff1d(t_ns[known], series.t_ns)
            t_ns, known = _merged([series.t_ns, others], [seen, np.ones(len(others), np.bool_)])
            yield _Looks(read.of, t_ns, known, steady=steady)
        return
    yield from _of_probe(recording, read.of, read.host)


def _of_probe(recording: Recording, signal: str, host: str | None) -> Iterator[_Looks]:
    """A failed look counts for all signals of its probe. If no host is regular, any host's looks count."""
    if signal not in recording.signals:
        return
    probe = next((one for one in recording.experiment.sampled(recording.signals) if signal in one.signals), None)
    alike = [one for one in (probe.signals if probe else ()) if one in recording.signals and one != signal]
    series = recording.series(signal, host)
    own = recording.experiment.probes.get(signal.partition(".")[0])
    own_s = own.silent_s if own else 0.0
    if probe is None or probe.regular:
        for name in sorted({*series.host}):
            mine = _of_hosts(series, {name})
            what, known = f"{signal} of {name}" if name else signal, ~np.isnan(series.value[mine])
            yield _Looks(what, series.t_ns[mine], known, max(own_s, SILENT_S))
        return
    known = ~np.isnan(series.value)
    reporting = {name for name, ok in zip(series.host, known.tolist(), strict=True) if ok} or {*series.host}
    found = [(series.t_ns, known, _of_hosts(series, reporting))]
    for other in (recording.series(each) for each in alike):
        failed = np.isnan(other.value) & _of_hosts(other, {*reporting, ""})
        found.append((other.t_ns, np.zeros(len(other), np.bool_), failed))
    t_ns, known = _merged([t_ns[those] for t_ns, _, those in found], [mask[those] for _, mask, those in found])
    yield _Looks(signal, t_ns, known, probe.silent_s)


def _of_hosts(series: Series, hosts: Collection[str]) -> Bools:
    return np.array([each in hosts for each in series.host], np.bool_)


def _merged(times: Sequence[Int64s], known: Sequence[Bools]) -> tuple[Int64s, Bools]:
    t_ns, mask = np.concatenate(times), np.concatenate(known)
    order = np.argsort(t_ns, kind="stable")
    return t_ns[order].astype(np.int64), mask[order]
