"""Faults that share an instrument: the one would spoil the proof of the other, or undo it.

The observers of a host are one process, its canary. A throttle slows it down together with all that it times, and two
faults that act on the same operations, or the same packets, cannot be told apart by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hashidrill.experiment.check_expectations import param
from hashidrill.services.consul.checks import hosts_of, same_time
from hashidrill.units import Size

if TYPE_CHECKING:
    from hashidrill.experiment.checks import Draft, Note, Step
    from hashidrill.experiment.model import Disk

_THROTTLE, _PAUSE = "cpu.throttle", "process.pause"
_STARTS_AGAIN = ("process.kill", "process.restart", "consul.agent.stop")
_TIMED_DISKS = ("disk.latency", "disk.bandwidth")
_NOT_TIMED = ("network.partition", "network.block")
_USED_BYTES = 1 << 20
"""What an agent takes of its disk at the very least."""
_ALL = frozenset({"fsync", "write", "read"})


def check_instruments(draft: Draft, note: Note) -> None:
    """Note every two steps that share an instrument while both are in force."""
    for index, step in enumerate(draft.steps):
        for number, earlier in enumerate(draft.steps[:index]):
            if step is None or earlier is None or not same_time(earlier, step):
                continue
            reason = _between(earlier, step, draft) or _between(step, earlier, draft)
            if reason:
                text = f"{step.kind} on {step.on} runs while method[{number}] ({earlier.kind} on {earlier.on}) does"
                note(("method", index), f"{text}: {reason}; let one end before the other begins, or name other hosts")
                break


def check_full(step: Step, disk: Disk) -> str:
    """What is wrong with a disk that is filled but for more than it has; empty when nothing is."""
    leave = param(step.params, "leave")
    if disk.size is None or leave is None or leave + _USED_BYTES <= disk.size:
        return ""
    most = Size(disk.size - _USED_BYTES)
    return f"a disk of {disk.size} with {leave} left free is not full; at most {most} could be left"


def _between(one: Step, two: Step, draft: Draft) -> str:
    """Why the two cannot be in force on one host, where that is; empty when they can."""
    meet = hosts_of(one, draft) & hosts_of(two, draft)
    if one.kind == _THROTTLE:
        return _throttled(two, meet=bool(meet)) or _timed(one, two, draft)
    if not meet:
        return ""
    if one.kind != two.kind and (both := _operations(one) & _operations(two)):
        return f"both act on every {' and '.join(sorted(both))} there, and how one ends hides the other"
    if {one.kind, two.kind} == {"network.loss", "network.partition"} and _same_side(one, two):
        return "where no packet passes, none can be seen to be lost"
    if one.kind == "network.block" and two.kind in ("process.kill", "consul.agent.stop"):
        return "nobody listens on the port of an agent that does not run, blocked or not"
    return ""


def _throttled(other: Step, *, meet: bool) -> str:
    if not meet:
        return ""
    if other.kind == _PAUSE:
        return (
            "where this machine allows no cgroups, a throttle stops and continues the host's processes, and would wake "
            "the paused agent"
        )
    if other.kind in _STARTS_AGAIN:
        return "an agent that starts with so little CPU may not answer before its observer gives up"
    return ""


def _timed(throttle: Step, other: Step, draft: Draft) -> str:
    """The canaries on both sides of a link take part in its proof."""
    timed = other.kind in _TIMED_DISKS
    there = hosts_of(other, draft)
    if other.kind.startswith(("network.", "toxiproxy.")) and other.kind not in _NOT_TIMED:
        timed, there = True, there | _other_side(other, draft)
    if timed and there & hosts_of(throttle, draft):
        return "the throttle also slows down the observer, which measures the other one"
    return ""


def _operations(step: Step) -> frozenset[str]:
    """The operations on the disk that it slows down or fails."""
    if step.kind == "disk.full":
        return frozenset({"write"})
    op = param(step.params, "op") if step.kind.startswith("disk.") else None
    return _ALL if op == "all" else frozenset({op}) if isinstance(op, str) else frozenset()


def _side(step: Step) -> str:
    return str(param(step.params, "from") or "all")


def _same_side(one: Step, two: Step) -> bool:
    """Whether some host may be on the other side of both."""
    sides = {_side(one), _side(two)}
    if "all" in sides or len(sides) == 1:
        return True
    kinds = {side if side in ("servers", "clients") else _role(side) for side in sides}
    return len(kinds) == 1 and not all(side.startswith("host:") for side in sides)


def _role(side: str) -> str:
    return "servers" if side.startswith("host:consul-") else "clients"


def _other_side(step: Step, draft: Draft) -> frozenset[str]:
    if draft.consul is None:
        return frozenset()
    side = _side(step)
    names = {
        "servers": [f"consul-{number}" for number in range(1, draft.consul.servers + 1)],
        "clients": [f"client-{number}" for number in range(1, draft.consul.clients + 1)],
    }
    if side.startswith("host:"):
        return frozenset({side.removeprefix("host:")})
    return frozenset(name for role, each in names.items() if side in ("all", role) for name in each)
