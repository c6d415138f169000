"""Whether each key ends with a value that could be its last write, checked as a register, as Jepsen does."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.recording.reader import Bools, Operations


def seen_at_the_end(ops: Operations, finals: Mapping[str, str | None]) -> Bools:
    """Which acknowledged writes the final reads show: at most one per key, its last."""
    shown: dict[str, int] = {}
    for index in np.flatnonzero(ops.ok).tolist():
        if finals.get(ops.keys[index]) == ops.values[index]:
            shown[ops.keys[index]] = index
    mask = np.zeros(len(ops), np.bool_)
    mask[list(shown.values())] = True
    return mask


@dataclass(frozen=True)
class Registers:
    """What the check found. `lost` maps a key to (index of the acknowledged write that is gone, its final value)."""

    lost: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    phantoms: dict[str, tuple[str, str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def check_registers(ops: Operations, finals: Mapping[str, str | None]) -> Registers:
    """Compares the final value of every key with the history of its writes. Linear in the number of operations."""
    latest_start: dict[str, int] = {}
    """Index of the acknowledged write of a key that started last."""
    writers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    starts, ok = ops.start_ns.tolist(), ops.ok.tolist()
    for index, (key, value) in enumerate(zip(ops.keys, ops.values, strict=True)):
        writers[key, value].append(index)
        if ok[index] and (key not in latest_start or starts[index] > starts[latest_start[key]]):
            latest_start[key] = index
    found = Registers(unread=sorted(key for key in latest_start if key not in finals))
    for key, final in finals.items():
        last = latest_start.get(key)
        if final is None:
            if last is not None:
                found.lost[key] = (last, None)
        elif (phantom := _phantom(ops, writers.get((key, final), []))) is not None:
            found.phantoms[key] = (final, phantom)
        elif last is not None and not any(_possible(ops, index, starts[last]) for index in writers[key, final]):
            found.lost[key] = (last, final)
    return found


def _phantom(ops: Operations, writes: list[int]) -> str | None:
    if not writes:
        return "which nobody wrote"
    if all(ops.outcome[index] == "fail" for index in writes):
        return f"whose write was refused ({ops.errors[writes[0]] or f'status {ops.status[writes[0]]}'})"
    return None


def _possible(ops: Operations, index: int, latest_start_ns: int) -> bool:
    """Can this write be the last one, when an acknowledged write of the key started at `latest_start_ns`?"""
    outcome = ops.outcome[index]
    return bool(outcome == "unknown" or (outcome == "ok" and latest_start_ns <= ops.end_ns[index]))
