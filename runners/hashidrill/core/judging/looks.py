"""Whether the looks behind a verdict were made and succeeded: what was not seen did not hold.

A look that failed is unknown. A hypothesis that drops failed samples goes by the rest of them, so the judge compares
what a hypothesis read with the looks there were. It asks for this much, of each signal and host that was read: no
longer time without a look that succeeded than the probe may be silent, and half of the looks at any time. A hypothesis
that has an answer of its own for failed looks says so (`Recording.series(..., unknown="the process is gone")`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.experiment.conditions import PROBE_NAMESPACES
from hashidrill.core.judging.doubts import probed
from hashidrill.core.judging.measure import SECOND, looks_of_load, seconds, when
from hashidrill.core.judging.traced import Read
from hashidrill.core.protocols.service import SILENT_S

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from hashidrill.core.recording.columns import Bools, Int64s, Series
    from hashidrill.core.recording.reader import Recording

FEWEST = 0.5
"""The share of looks that must have succeeded."""
_REGULAR_NS = 2 * SECOND
_FEWEST_REGULAR = 10
"""A load looks all the time if it has this many looks, half of them no further apart than that."""


@dataclass(frozen=True)
class _Looks:
    """The looks at one thing, in order of time. `steady`: they are made all the time, so that a gap is silence."""

    what: str
    t_ns: Int64s
    known: Bools
    silent_s: float = SILENT_S
    steady: bool = False

    def trouble(self, recording: Recording, start_ns: int, end_ns: int, *, failures: bool) -> str:
        """Why they do not cover that time; nothing where they do. `failures`: failed looks count."""
        inside = (self.t_ns >= start_ns) & (self.t_ns < end_ns)
        known_ns, failed_ns = self.t_ns[inside & self.known], self.t_ns[inside & ~self.known]
        edges = np.array([start_ns, *known_ns, end_ns], np.int64)
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if last - first <= self.silent_s * SECOND:
                continue
            failed = int(((failed_ns > first) & (failed_ns < last)).sum())
            if failures and failed:
                unseen = f"none succeeded for {seconds((last - first) / SECOND)} ({when(recording, first)})"
                return f"{failed} looks at {self.what} failed, {unseen}"
            if self.steady and not failed:
                return f"no look at {self.what} for {seconds((last - first) / SECOND)} ({when(recording, first)})"
        return self._mostly_failed(recording, inside) if failures else ""

    def _mostly_failed(self, recording: Recording, inside: Bools) -> str:
        """Where over half of the looks failed: of all, or of those of some time (twice as long as silence may last)."""
        t_ns, known = self.t_ns[inside], self.known[inside]
        first = np.arange(len(t_ns))
        after = np.maximum(np.searchsorted(t_ns, t_ns + int(2 * self.silent_s * SECOND)), first + 1)
        counted = np.concatenate(([0], np.cumsum(known)))
        looks, succeeded = after - first, counted[after] - counted[first]
        # the last windows are cut off by the end: they say too little, unless they are all there is
        whole = (after < len(t_ns)) | (first == 0)
        few = np.flatnonzero(whole & (succeeded < FEWEST * looks))
        if not len(few):
            return ""
        at = int(few[0])
        failed = int(looks[at] - succeeded[at])
        return f"{failed} of {int(looks[at])} looks at {self.what} failed ({when(recording, int(t_ns[at]))} and later)"


def unseen(recording: Recording, reads: Sequence[Read]) -> str:
    """Why what was read says too little, because looks failed or were not made; nothing where it says enough."""
    for read in reads:
        for looks in _looks(recording, read):
            if not len(looks.t_ns):
                continue
            whole = ((int(looks.t_ns[0]), int(looks.t_ns[-1]) + 1),)
            for start_ns, end_ns in read.spans or whole:
                if why := looks.trouble(recording, start_ns, end_ns, failures=not read.unknown):
                    return why
    return ""


def blind(recording: Recording, signal: str, span: tuple[int, int]) -> str:
    """Why a guardrail on a probe's signal could not see over that time; nothing where it could.

    As when it watches (hashidrill.core.engine.monitor): a host that a fault of the run was on may be silent.
    """
    if signal not in recording.signals:
        return f"{signal} was never sampled"
    irregular = any(signal in probe.signals and not probe.regular for probe in probed())
    apart = {window.host for window in recording.faults}
    hosts = [None] if irregular else sorted({*recording.series(signal).host} - apart)
    return unseen(recording, [Read(signal, host, (span,)) for host in hosts])


def _looks(recording: Recording, read: Read) -> Iterator[_Looks]:
    """The looks that what was read goes by. A load that watches goes by its own: its operations are what it saw."""
    if read.of is None:
        return
    load = read.of if read.operations is not None else read.of.partition(".")[0]
    if read.operations is not None or load not in PROBE_NAMESPACES:
        t_ns, known = looks_of_load(recording, load)
        steady = len(t_ns) >= _FEWEST_REGULAR and float(np.median(np.diff(t_ns))) <= _REGULAR_NS
        if read.operations is not None:
            yield _Looks(f"{load} by itself", t_ns, known, steady=steady)
        elif read.of != f"{load}.level" and read.of in recording.signals:
            series = recording.series(read.of, read.host)
            own = ~np.isnan(series.value)
            # where the load saw something else, this signal had nothing to say
            others = np.setdiff1d(t_ns[known], series.t_ns)
            t_ns, known = _merged([series.t_ns, others], [own, np.ones(len(others), np.bool_)])
            yield _Looks(read.of, t_ns, known, steady=steady)
        return
    yield from _of_probe(recording, read.of, read.host)


def _of_probe(recording: Recording, signal: str, host: str | None) -> Iterator[_Looks]:
    """A look that failed fails for all signals of its probe. Where no host is regular, any of them will do."""
    if signal not in recording.signals:
        return
    probe = next((one for one in probed() if signal in one.signals), None)
    alike = [one for one in (probe.signals if probe else ()) if one in recording.signals and one != signal]
    series = recording.series(signal, host)
    if probe is None or probe.regular:
        for name in sorted({*series.host}):
            mine = _of_hosts(series, {name})
            yield _Looks(f"{signal} of {name}" if name else signal, series.t_ns[mine], ~np.isnan(series.value[mine]))
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
