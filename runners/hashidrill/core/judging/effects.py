"""Faults that were proven in force and that nothing in the datacenter showed: a verdict beside one says little.

A fault is proven on its host, by an observer that does not ask the agent. A full disk under an agent that writes into
space that it took before is a full disk, and the agent is well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.judging import measure
from hashidrill.core.judging.measure import SECOND, in_force, percentile, served_s
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import FaultWindow, Operations, Recording

_LEAST_OPERATIONS = 10
_MORE_ERRORS = 0.001
_SLOWER, _SLOWER_S = 1.5, 0.002
_TAIL_SLOWER, _TAIL_SLOWER_S = 2.0, 0.02
_LOGGED = re.compile(r"^\s*(\d{4}-\d\d-\d\dT\S+) \[(?:WARN|ERROR)\]\s+(.*)$")
_STAMPED = re.compile(r"^\s*\d{4}-\d\d-\d\dT\S+ \[[A-Z]+\] ", re.MULTILINE)


def without_effect(recording: Recording) -> Iterator[str]:
    """A sentence for each fault that held, and during which its agent, the loads and the leader were as before.

    Nothing is said of a fault whose agent left no log, or where a load cannot be compared with the time before it.
    """
    starts = [in_force(recording, window)[0] for window in recording.faults if window.proven]
    for window in recording.faults:
        if window.still_ns is None or window.kind == measure.NO_FAULT or "steady" not in recording.phases:
            continue
        start_ns, end_ns = in_force(recording, window)
        since_ns = recording.phases["steady"][0]
        try:
            shown = _states_changed(recording, start_ns, end_ns) or any(
                _suffered(recording.operations(load), since_ns, min(starts), start_ns, end_ns)
                for load in recording.loads
            )
            if not shown and not _warned(recording, window, start_ns, end_ns):
                yield (
                    f"{measure.named(recording, window)} was proven in force for"
                    f" {measure.seconds((end_ns - start_ns) / SECOND)}, and nothing else showed it: no load was slower"
                    f" or failed more often, no leader changed, and {window.agent} on {window.host}"
                    " stayed the same process and logged no new warning; what was expected may have held because the"
                    " fault did not reach what it was meant for"
                )
        except HypothesisInvalidError:  # something was not measured: then nobody can say that it showed nothing
            continue


def _suffered(ops: Operations, since_ns: int, first_ns: int, start_ns: int, end_ns: int) -> bool:
    """Whether a load did worse than before the first fault. Raises HypothesisInvalidError if that cannot be told."""
    before, during = ops.between(since_ns, first_ns), ops.between(start_ns, end_ns)
    if min(len(before), len(during)) < _LEAST_OPERATIONS:
        raise HypothesisInvalidError("too few operations to compare")
    was_s, is_s = served_s(before), served_s(during)
    return (
        float((~during.ok).mean()) > float((~before.ok).mean()) + _MORE_ERRORS
        or percentile(is_s, 50) > percentile(was_s, 50) * _SLOWER + _SLOWER_S
        or percentile(is_s, 99) > percentile(was_s, 99) * _TAIL_SLOWER + _TAIL_SLOWER_S
    )


def _states_changed(recording: Recording, start_ns: int, end_ns: int) -> bool:
    """Whether another host led, one was elected again, or a product said that it is not well."""
    lanes = [lane for service in registry.services().values() for lane in service.lanes]
    for lane in (lane for lane in lanes if lane.signal in recording.signals):
        if lane.names:
            if len(measure.reigns(recording, start_ns, end_ns, lane.signal)) > 1:
                return True
            continue
        series = recording.series(lane.signal).known_between(start_ns, end_ns)
        if not (series.ok & (series.value >= 1)).all():
            return True
    return False


def _warned(recording: Recording, window: FaultWindow, start_ns: int, end_ns: int) -> bool:
    """Whether its agent logged a warning of a new kind, or was another process. Raises HypothesisInvalidError."""
    path = recording.path / "logs" / Path(window.host).name / f"{Path(window.agent).name}.log"
    text = path.read_text(errors="replace") if path.is_file() else ""
    if not _STAMPED.search(text):
        raise HypothesisInvalidError(f"{path}: no log of the agent")
    if measure.not_the_same_process_ns(recording, window.host, start_ns, end_ns) is not None:
        return True
    began = recording.journal[0]
    known: set[str] = set()
    for stamp, said in (found.groups() for found in map(_LOGGED.match, text.splitlines()) if found):
        at_ns = (_wall_s(stamp) - began.wall) * SECOND + began.t_ns
        kind = " ".join(word for word in said.split() if not any(letter.isdigit() for letter in word))
        if start_ns <= at_ns <= end_ns and kind not in known:
            return True
        known.add(kind)
    return False


def _wall_s(stamp: str) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        raise HypothesisInvalidError(f"{stamp!r} is not a time") from None
