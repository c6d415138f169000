"""What all agents of a run cost: CPU, memory, bytes written. An agent that is gone costs nothing, and is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hashidrill.core.compare.measured import Measured, Run
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging.measure import SECOND

if TYPE_CHECKING:
    from hashidrill.core.recording.columns import Floats

WIDTH_S = 2.0
"""An interval: two samples of each agent."""


class _Taken(NamedTuple):
    """A signal over all agents in each interval: the sum of their means, and how many of them were sampled in it."""

    total: Floats
    absent: float
    who: str


def cpu(run: Run) -> Measured:
    """CPU seconds of all agents over the method and the recovery, and in each interval of it."""
    taken = _taken(run, "process.cpu")
    seconds = taken.total * WIDTH_S
    return Measured(float(np.nansum(seconds)), seconds, absent=taken.absent, who=taken.who)


def written(run: Run) -> Measured:
    """Bytes that all agents wrote to storage; on a file system that has none (tmpfs), bytes passed to write calls."""
    taken = _taken(run, "process.write_rate")
    if not np.nansum(taken.total):
        taken = _taken(run, "process.wchar_rate")
    return Measured(float(np.nansum(taken.total)) * WIDTH_S, absent=taken.absent, who=taken.who)


def memory(run: Run) -> Measured:
    """The most that each agent held, of all agents together."""
    series = run.recording.series("process.rss").between(*run.loaded)
    hosts = np.array(series.host)
    peaks = [series.value[hosts == host] for host in sorted(set(series.host))]
    known = [float(np.nanmax(values)) for values in peaks if not np.isnan(values).all()]
    if not known:
        raise HypothesisInvalidError("no agent's memory was measured")
    taken = _taken(run, "process.rss", though_doubtful=True)
    return Measured(sum(known), absent=taken.absent, who=taken.who)


def _taken(run: Run, signal: str, *, though_doubtful: bool = False) -> _Taken:
    """The sum over all agents of a signal's mean in each interval.

    An agent that was not sampled in an interval (it was down) had none of it, and is absent. All agents that were
    sampled at any time of the run should be there.
    """
    start_ns, end_ns = run.loaded
    every = run.recording.series(signal)
    series = every.between(start_ns, end_ns)
    if not len(series):
        raise HypothesisInvalidError(f"{signal} was not sampled in the method or after it")
    if not though_doubtful:
        run.enough(signal, float(run.doubtful(signal, series.t_ns).mean()))
    width_ns = int(WIDTH_S * SECOND)
    at = ((series.t_ns - start_ns) // width_ns).astype(np.int64)
    hosts = np.array(series.host)
    total = np.zeros(max(1, (end_ns - start_ns) // width_ns))
    absent: dict[str, float] = {}
    for host in sorted(set(every.host)):
        mine = (hosts == host) & ~np.isnan(series.value) & (at < len(total))
        sums = np.bincount(at[mine], series.value[mine], len(total))
        counts = np.bincount(at[mine], minlength=len(total))
        absent[host] = float((counts == 0).mean())
        total += sums / np.maximum(counts, 1)
    return _Taken(total, float(np.mean(list(absent.values()))), max(absent, key=lambda host: absent[host]))
