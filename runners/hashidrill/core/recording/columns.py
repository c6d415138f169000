"""Operations of a load and samples of a signal, as columns; and the operations that a service did not report.

A service reports an operation when it ends, so a service that hangs for ever reports nothing, and nothing fails. If it
reports nothing for much longer than its longest silence in the steady state, the usual number of operations counts as
due and not acknowledged. An operation covers the time from when it was due until it ended: a service with slow
operations is not silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hashidrill.core.protocols.abc import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hashidrill.core.protocols.abc import Detail

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]
else:
    # only for annotations: to read a hypothesis's parameters must not import numpy
    Int64s = Floats = Bools = "numpy.ndarray"


IMPLAUSIBLE = 2.0**53
"""No real figure of a probe is this large: a sample of this size, or of infinity, counts as a failed look."""


@dataclass(frozen=True)
class Operations:
    """The operations of one load, as columns in order of their intended start."""

    intended_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    outcome: npt.NDArray[np.str_]
    status: Int64s
    keys: list[str] = field(repr=False)
    values: list[str] = field(repr=False)
    errors: list[str] = field(repr=False)
    """The errors in words, for people; `reasons` has them as codes (hashidrill.core.protocols.abc.Reason)."""
    reasons: list[str] = field(default_factory=list, repr=False)
    details: list[Detail | None] = field(default_factory=list, repr=False)
    """Additional columns of this load's operations."""

    def __len__(self) -> int:
        return len(self.intended_ns)

    @cached_property
    def latency_s(self) -> Floats:
        """Seconds from the intended start to the end, without coordinated omission."""
        return (self.end_ns - self.intended_ns).astype(np.float64) / 1e9

    @cached_property
    def lag_s(self) -> Floats:
        """Seconds from the intended to the real start: how far the generator itself was behind."""
        return (self.start_ns - self.intended_ns).astype(np.float64) / 1e9

    @cached_property
    def ok(self) -> Bools:
        return np.asarray(self.outcome == "ok", dtype=np.bool_)

    def between(self, start_ns: int, end_ns: int) -> Operations:
        """The operations whose intended start is in [start_ns, end_ns)."""
        return self.within([(start_ns, end_ns)])

    def within(self, spans: Iterable[tuple[int, int]]) -> Operations:
        """The operations whose intended start is in any of the spans [start_ns, end_ns), each operation once."""
        inside = np.zeros(len(self), np.bool_)
        for start_ns, end_ns in spans:
            inside |= (self.intended_ns >= start_ns) & (self.intended_ns < end_ns)
        return self.picked(inside)

    def with_outcomes(self, outcome: npt.NDArray[np.str_]) -> Operations:
        """The operations with these outcomes."""
        texts = (self.keys, self.values, self.errors, self.reasons, self.details)
        return Operations(self.intended_ns, self.start_ns, self.end_ns, outcome, self.status, *texts)

    def picked(self, mask: Bools) -> Operations:
        at = np.flatnonzero(mask)
        texts = (self.keys, self.values, self.errors, self.reasons, self.details)
        picked: list[list[Any]] = [[column[i] for i in at] if column else [] for column in texts]
        return Operations(
            self.intended_ns[at], self.start_ns[at], self.end_ns[at], self.outcome[at], self.status[at], *picked
        )

    def merged(self, other: Operations) -> Operations:
        """The operations of both, in order of their intended start."""
        order = np.argsort(np.concatenate([self.intended_ns, other.intended_ns]), kind="stable")

        def texts(one: list[Any], more: list[Any]) -> list[Any]:
            both = [*one, *more]
            return [both[at] for at in order] if len(both) == len(order) else []

        return Operations(
            np.concatenate([self.intended_ns, other.intended_ns])[order],
            np.concatenate([self.start_ns, other.start_ns])[order],
            np.concatenate([self.end_ns, other.end_ns])[order],
            np.concatenate([self.outcome, other.outcome])[order],
            np.concatenate([self.status, other.status])[order],
            texts(self.keys, other.keys),
            texts(self.values, other.values),
            texts(self.errors, other.errors),
            texts(self.reasons, other.reasons),
            texts(self.details, other.details),
        )

    def error_share(self) -> float:
        """Share of operations that were not ok, 0 to 1; NaN if there are no operations."""
        return float(1 - self.ok.mean()) if len(self) else float("nan")

    def percentile_s(self, percent: float) -> float:
        """Latency percentile of all operations; failed ones count with the time they took. NaN without operations."""
        return float(np.percentile(self.latency_s, percent)) if len(self) else float("nan")


@dataclass(frozen=True)
class Series:
    """One signal over time. `value` is NaN if the sample failed; `text` then holds the reason."""

    t_ns: Int64s
    value: Floats
    text: list[str]
    host: list[str]
    ok: Bools

    def __len__(self) -> int:
        return len(self.t_ns)

    def between(self, start_ns: int, end_ns: int) -> Series:
        return self._picked(np.flatnonzero((self.t_ns >= start_ns) & (self.t_ns < end_ns)))

    def known_between(self, start_ns: int, end_ns: int) -> Series:
        """The samples in [start_ns, end_ns), and the last one up to `start_ns`: what was known then."""
        first = max(int(np.searchsorted(self.t_ns, start_ns, side="right")) - 1, 0)
        return self._picked(np.arange(first, max(first, int(np.searchsorted(self.t_ns, end_ns)))))

    def _picked(self, picked: Int64s) -> Series:
        return Series(
            self.t_ns[picked],
            self.value[picked],
            [self.text[i] for i in picked],
            [self.host[i] for i in picked],
            self.ok[picked],
        )


SHORTEST_S = 2.0
"""A shorter time is not silence: a process that waits for a CPU or collects garbage may report nothing."""
_TIMES_USUAL = 3
_FEWEST = 5
"""With fewer operations than this in the steady state, the usual interval is unknown."""
_NS = 1_000_000_000
NOT_ITS_OWN = frozenset({Reason.SERVICE_ENDED, Reason.UNREPORTED})
"""The reasons of operations that the service did not report itself."""


def with_unreported(
    ops: Operations, phases: Mapping[str, tuple[int, int]], reports_every_s: float | None = None
) -> Operations:
    """A service's operations, and those that it did not report between the start of the method and the loads' end.

    `reports_every_s`: how long the service may be silent; None means three times its longest silence in the steady
    state.
    """
    if "steady" not in phases or "method" not in phases:
        return ops
    span = phases["steady"][0], phases["method"][0]
    count = len(_own(ops).between(*span))
    for silence in silences(ops, phases, reports_every_s):
        ops = _added(ops, *silence, period_ns=(span[1] - span[0]) / count)
    return ops


def silences(
    ops: Operations, phases: Mapping[str, tuple[int, int]], longest_s: float | None = None
) -> list[tuple[int, int]]:
    """When a service client was silent, from the method's start until the loads end; empty if not decidable."""
    own = _own(ops)
    steady_ns, method_ns = phases["steady"][0], phases["method"][0]
    end_ns = phases.get("recovery", phases["method"])[1]
    well = own.between(steady_ns, method_ns)
    if len(well) < _FEWEST:
        return []
    usual_ns = max((stop - start for start, stop in _gaps(well, int(well.intended_ns[0]), method_ns)), default=0)
    longest_ns = max(SHORTEST_S * _NS, _TIMES_USUAL * usual_ns) if longest_s is None else longest_s * _NS
    return [span for span in _gaps(own, method_ns, end_ns) if span[1] - span[0] > longest_ns]


def _own(ops: Operations) -> Operations:
    return ops.picked(np.array([reason not in NOT_ITS_OWN for reason in ops.reasons], np.bool_))


def _gaps(ops: Operations, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    until_ns = start_ns
    for due_ns, ended_ns in zip(ops.intended_ns.tolist(), ops.end_ns.tolist(), strict=True):
        if due_ns >= end_ns:
            break
        if due_ns > until_ns:
            yield until_ns, due_ns
        until_ns = max(until_ns, ended_ns)
    if until_ns < end_ns:
        yield until_ns, end_ns


def _added(ops: Operations, start_ns: int, stop_ns: int, *, period_ns: float) -> Operations:
    due_ns = np.arange(start_ns + period_ns, stop_ns, period_ns).astype(np.int64)
    count = len(due_ns)
    error = f"the service reported nothing for {(stop_ns - start_ns) / _NS:.1f}s, after {_NS / period_ns:.3g}/s before"
    added = Operations(
        due_ns,
        due_ns,
        np.full(count, stop_ns, np.int64),
        np.full(count, "unknown"),
        np.zeros(count, np.int64),
        [""] * count,
        [""] * count,
        [error] * count,
        [Reason.UNREPORTED.value] * count,
        [None] * count,
    )
    return ops.merged(added)
