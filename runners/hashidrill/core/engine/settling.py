"""Reverts what a journal says may still be in force, in a later phase of its run or from another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hashidrill.core.engine.inject import GONE_WITHIN_S, fault_from_undo, revert
from hashidrill.core.errors import HashidrillError, RevertError
from hashidrill.core.protocols.abc import Hosts
from hashidrill.core.recording.journal import Entry, Journal


def open_faults(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The undo of every fault that was intended and never proven gone, latest first."""
    undos: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.event == "fault.intent":
            undos[entry.data["fault_id"]] = {**entry.data["undo"], "fault_id": entry.data["fault_id"]}
        elif entry.event in {"fault.gone", "fault.ended"}:
            undos.pop(entry.data["fault_id"], None)
    return list(reversed(undos.values()))


async def settle(undo: dict[str, Any], hosts: Hosts, journal: Journal) -> str:
    """Reverts it on its host and proves it gone: `reverted`, `others` as in Healed, or `stuck`."""
    return (await settled(undo, hosts, journal))[0]


async def settled(
    undo: dict[str, Any], hosts: Hosts, journal: Journal, *, gone_within_s: float = GONE_WITHIN_S
) -> tuple[str, str]:
    """As `settle`, and why it is stuck, or whose it is."""
    try:
        undo = journal.undos.restored(undo)
        how = await revert(fault_from_undo(undo, hosts), undo, journal, gone_within_s=gone_within_s)
    except RevertError as error:
        return "stuck", str(error)
    except HashidrillError as error:
        journal.write("fault.stuck", sync=True, fault_id=undo["fault_id"], error=str(error))
        return "stuck", str(error)
    if how == "ended":
        return "others", "nothing of this run is left there; another run has such a fault in force, which stays"
    return "reverted", ""
