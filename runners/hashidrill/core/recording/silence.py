"""A service that went silent: the operations that it should have reported, and did not.

A service reports an operation when it ends, so one that hangs for ever leaves nothing, and nothing fails. What it
should have done is what it did in its steady state. Where it reports nothing for much longer than it ever did then, as
many operations as usual were due, and none was acknowledged. An operation covers the time from when it was due until
it ended: a service whose operations are slow is not silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hashidrill.core.protocols.outcome import Reason
from hashidrill.core.recording.columns import Operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHORTEST_S = 2.0
"""Less than this is no silence: a process that is not scheduled, or collects its garbage, may report nothing."""
_TIMES_USUAL = 3
_FEWEST = 5
"""With fewer operations in the steady state, nothing is known of how often it reports."""
_NS = 1_000_000_000
NOT_ITS_OWN = frozenset({Reason.SERVICE_ENDED, Reason.UNREPORTED})
"""Operations that stand for what a service did not report itself."""


def with_unreported(
    ops: Operations, phases: Mapping[str, tuple[int, int]], reports_every_s: float | None = None
) -> Operations:
    """The operations of a service, and those that it did not report from the start of the method until the loads end.

    `reports_every_s`: how long it may be silent; None: three times as long as it ever was in its steady state.
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
    """When a service was silent, from the start of the method until the loads end. None where that cannot be told."""
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
    """The time between two moments in which no operation was due or under way."""
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
    """With one operation each `period_ns` of a silence; each of them waits for its end."""
    due_ns = np.arange(start_ns + period_ns, stop_ns, period_ns).astype(np.int64)
    count = len(due_ns)
    error = f"the service reported nothing for {(stop_ns - start_ns) / _NS:.1f}s; it did {_NS / period_ns:.3g}/s before"
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
