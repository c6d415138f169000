"""What a method can get wrong about Consul's state: a snapshot that nobody saved, a server that is down already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hashidrill.errors import UnknownNameError
from hashidrill.experiment.selectors import parse_selector
from hashidrill.registry import near
from hashidrill.units import Duration, shown

if TYPE_CHECKING:
    from hashidrill.experiment.checks import Draft, Note, Step

_SAVE, _RESTORE = "consul.snapshot.save", "consul.snapshot.restore"
_BLOAT, _COMPACT = "consul.raft.bloat", "consul.raft.compact"
_DOWN = ("process.", "consul.agent.stop", "consul.server.replace")
"""Beginnings of kinds that hold an agent down, or that its restart would undo."""
_RESTARTED_WITHIN_S = 10.0
"""Some 6 s here, from the stop until the server is in step again."""
_MANY = frozenset({"consul:followers", "consul:servers", "consul:clients", "consul:all"})


def check_state(draft: Draft, note: Note) -> None:
    """Note every problem with the faults of Consul's state."""
    _check_snapshots(draft, note)
    for index, step in enumerate(draft.steps):
        if step is None or step.kind not in (_BLOAT, _COMPACT):
            continue
        for number, other in enumerate(draft.steps):
            if other is not None and other.kind.startswith(_DOWN) and _restarted_under(step, other, draft):
                text = (
                    f"{step.kind} restarts {step.on} while method[{number}] ({other.kind} on {other.on}) may be there"
                )
                note(("method", index, "fault"), f"{text}; let it begin and end outside of that")
                break


def _restarted_under(step: Step, down: Step, draft: Draft) -> bool:
    """Whether the one begins or ends (that is when it restarts the server) while the other is in force there."""
    if step.at is None or step.for_ is None or down.at is None or down.for_ is None or draft.consul is None:
        return False
    try:
        hosts = [
            parse_selector(text).candidates(draft.consul.servers, draft.consul.clients)
            for text in (step.on, down.on)
            if text
        ]
    except UnknownNameError:  # which has been said
        return False
    moments = (step.at, step.at + step.for_) if step.kind == _BLOAT else (step.at,)
    there = any(moment < down.at + down.for_ and down.at < moment + _RESTARTED_WITHIN_S for moment in moments)
    return there and len(hosts) == 2 and bool(hosts[0] & hosts[1])


def _check_snapshots(draft: Draft, note: Note) -> None:
    """Note every restore without its save, and every snapshot that would be made twice."""
    saves: dict[str, Step] = {}
    for index, step in enumerate(draft.steps):
        if step is None or step.kind not in (_SAVE, _RESTORE):
            continue
        if step.on in _MANY:
            text = f"{step.kind} is about the state that all servers share; name one host, like consul:leader"
            note(("method", index, "on"), text)
        name = getattr(step.params, "name", None)
        if step.kind == _SAVE and isinstance(name, str):
            if name in saves:
                note(("method", index, "with", "name"), f"a snapshot {shown(name)} is saved already; give it another")
            saves.setdefault(name, step)
    for index, step in enumerate(draft.steps):
        if step is not None and step.kind == _RESTORE and (trouble := _without_save(step, saves, draft)):
            note(("method", index, "with", "snapshot"), trouble)


def _without_save(restore: Step, saves: dict[str, Step], draft: Draft) -> str:
    """What is wrong with the snapshot that is named; empty when nothing is, or when it cannot be said."""
    name = getattr(restore.params, "snapshot", None)
    if not isinstance(name, str):
        return ""
    save = saves.get(name)
    if save is None:
        unread = any(step is None or (step.kind == _SAVE and step.params is None) for step in draft.steps)
        return "" if unread else f"no step saves a snapshot {shown(name)}: {near(name, saves)}"
    if save.at is None or save.for_ is None or restore.at is None or save.at + save.for_ <= restore.at:
        return ""
    until = Duration(save.at + save.for_)
    return f"the snapshot {shown(name)} is saved until {until}, after this begins; let that end first"
