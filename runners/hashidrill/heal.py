"""Finishes what a dead run left: reverts the faults that its journal says may still be in force.

Inside of a local sandbox the kernel has done it: the sandbox ended with its runner. What is left to do then is to say
so in the journal, and to remove a directory or cgroup that even the janitor did not live to remove. For hosts that
outlive the runner (`hosts` is given), each open fault is reverted from its journalled undo and proven gone.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.abc import Hosts
from hashidrill.datacenter.sandbox import NAME_PREFIX, work_parent
from hashidrill.errors import HashidrillError, RevertError, UsageError
from hashidrill.inject import fault_from_undo, revert
from hashidrill.journal import JOURNAL_NAME, Clock, Entry, Journal, read_journal

_STARTING_S = 60.0
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")


@dataclass(frozen=True)
class Healed:
    """What was done for one run. `stuck` names faults that are still in force."""

    run: Path
    reverted: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


def open_faults(entries: list[Entry]) -> list[dict[str, Any]]:
    """The undo of every fault that was intended and never proven gone, latest first."""
    undos: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.event == "fault.intent":
            undos[entry.data["fault_id"]] = {**entry.data["undo"], "fault_id": entry.data["fault_id"]}
        elif entry.event == "fault.gone":
            undos.pop(entry.data["fault_id"], None)
    return list(reversed(undos.values()))


def is_dead(entries: list[Entry]) -> bool:
    """Whether a run began, did not end, and its process is gone."""
    began = next((entry for entry in entries if entry.event == "run"), None)
    if began is None or any(entry.event == "end" for entry in entries):
        return False
    root = Path(str(began.data.get("root", "")))
    return not _alive(root)


async def heal_run(run: Path, hosts: Hosts | None = None) -> Healed | None:
    """Heal one run; None when there is nothing to do: it ended, or still goes on. Raises UsageError for no journal."""
    path = run / JOURNAL_NAME
    if not path.is_file():
        raise UsageError(f"{run}: no run there ({JOURNAL_NAME} is missing)")
    entries = read_journal(path)
    if not is_dead(entries):
        return None
    healed = Healed(run)
    # entries that are written now stay after those that are there: the run's clock is told from the last of them
    origin_ns = time.monotonic_ns() - (entries[-1].t_ns + 1)
    with Journal(path, Clock(origin_ns)) as journal:
        for undo in open_faults(entries):
            (healed.reverted if await _settle(undo, hosts, journal) else healed.stuck).append(undo["fault_id"])
        journal.write(
            "end", sync=True, outcome="revert" if healed.stuck else "crashed",
            error="the runner died; its run was healed afterwards",
        )  # fmt: skip
    return healed


async def _settle(undo: dict[str, Any], hosts: Hosts | None, journal: Journal) -> bool:
    fault_id = undo["fault_id"]
    if hosts is None:
        evidence = {
            "ok": True, "asked": "the sandbox is gone", "measured": "the kernel took it away with its runner",
            "figures": {},
        }  # fmt: skip
        journal.write("fault.reverted", sync=True, fault_id=fault_id)
        journal.write("fault.gone", sync=True, fault_id=fault_id, evidence=evidence)
        return True
    try:
        await revert(fault_from_undo(undo, hosts), undo, journal)
    except RevertError:
        return False
    except HashidrillError as error:
        journal.write("fault.stuck", sync=True, fault_id=fault_id, error=str(error))
        return False
    return True


def sweep() -> list[Path]:
    """Remove directories and cgroups of sandboxes that are gone, if anything left them. Returns what was removed."""
    removed = []
    for root in sorted(work_parent().glob(f"{NAME_PREFIX}*")):
        try:
            stat = root.stat()
        except FileNotFoundError:  # its run has just ended by itself
            continue
        young = time.time() - stat.st_mtime < _STARTING_S and not (root / "pid").exists()
        if stat.st_uid != os.geteuid() or young or _alive(root):
            continue
        shutil.rmtree(root, ignore_errors=True)
        removed.append(root)
    for place in _CGROUPS:
        for group in Path(place).glob(f"{NAME_PREFIX}*"):
            if not (work_parent() / group.name).exists():
                removed += _remove_cgroup(group)
    return removed


def _remove_cgroup(group: Path) -> list[Path]:
    try:
        for below in group.glob("*/"):
            below.rmdir()
        group.rmdir()
    except OSError:  # it is in use, or another user's
        return []
    return [group]


def _alive(root: Path) -> bool:
    """Whether the first process of that sandbox runs: its command line names the sandbox's directory."""
    try:
        pid = int((root / "pid").read_text())
        return str(root) in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return False
