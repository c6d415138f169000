"""Cleans up after a dead run: reverts the faults that, by its journal, may still be in force, and reports the result.

A run in a local sandbox ends together with its hosts. Heal then looks for processes of that sandbox and, if none is
left, journals `fault.ended`, because no observer saw the fault go. If hosts outlive the runner (`hosts` is given),
heal reverts each open fault from its journalled undo and proves it gone.

Heal does not touch a run whose journal is locked, because that run is still in progress, nor a run of another machine,
container or user, whose processes are not visible here. It acts on recordings of this machine
(hashidrill.core.recording.signed_runs), and on other recordings only on request.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from hashidrill.core.engine.inject import open_faults, settled
from hashidrill.core.errors import JournalHeldError, NotOursError, UsageError
from hashidrill.core.protocols.abc import Evidence, Hosts
from hashidrill.core.recording.journal import Clock, Entry, Journal, read_journal
from hashidrill.core.recording.signed_runs import OurRun, our_run
from hashidrill.core.util.files import HEAL_NAME, JOURNAL_NAME, held_by_us
from hashidrill.core.util.run_origin import elsewhere, here, restarted, uptime_s
from hashidrill.core.util.wait import pause
from hashidrill.lab.sandbox import cgroups
from hashidrill.lab.sandbox.sandbox import NAME_PREFIX, work_parent

_STARTING_S = 60.0
_BEGINS_WITHIN_S = 30.0
"""The time between the check of the machine and the first line of the journal."""
_GONE_WITHIN_S = 60.0
"""How long a fault may take to be proven gone: hosts that have just restarted take a while to answer observers."""
_KILLED_WITHIN_S = 10.0
"""How long the kernel may take to end a sandbox after its runner was killed."""
_LOOK_EVERY_S = 0.1
_TOLD = {"reverted": "gone", "others": "ended", "stuck": "stuck"}
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")


@dataclass(frozen=True)
class Healed:
    """The result of heal for one run; the first four lists hold names of faults.

    `reverted`: reverted and proven gone. `ended`: gone with their hosts. `others`: nothing of this run is left, but
    another run has such a fault in force there. `stuck`: may still be in force. `refused` says why heal did nothing
    at all. `cleaned`: the loads' data that heal removed from an attached datacenter; `left`: data still there.
    """

    run: Path
    reverted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    died: bool = True
    refused: str = ""
    cleaned: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


Told = Callable[[str, Mapping[str, Any]], None]
"""Receives each action of heal as it happens: `heal`, `revert`, `gone`, `ended` or `stuck`, and the fault's undo,
which may hold `why`.
"""


def _untold(_verb: str, _undo: Mapping[str, Any]) -> None:
    """Reports nothing: the recording of a run in a sandbox already holds everything."""


def entries_of(run: Path) -> list[Entry]:
    """The entries of the run's journal and heal's later entries; empty without a journal."""
    paths = (run / JOURNAL_NAME, run / HEAL_NAME)
    return [entry for path in paths if path.is_file() for entry in read_journal(path)]


def began_in(entries: Iterable[Entry]) -> Mapping[str, Any]:
    """The journal's entry about the run's beginning."""
    return next((entry.data for entry in entries if entry.event == "run"), {})


def in_doubt(entries: Sequence[Entry]) -> bool:
    """Whether the run died, or one of its faults may be in force."""
    ended = any(entry.event == "end" for entry in entries)
    return bool(began_in(entries)) and (not ended or bool(open_faults(entries)))


def whose(run: Path) -> OurRun | str:
    """The run, if this machine recorded it; otherwise why heal does not act on its journal. Raises UsageError."""
    try:
        return our_run(run)
    except NotOursError as error:
        return f"this machine does not know it as its own: {error}"


async def heal_local(run: Path, *, named: bool) -> Healed | None:
    """Heals a run in a sandbox; None if nothing needs healing.

    Heals a recording of another machine only if it was `named`, without touching any host.
    """
    if not (run / JOURNAL_NAME).is_file():
        raise UsageError(f"{run}: is not a recording ({JOURNAL_NAME} is missing); `hashidrill list runs` shows them")
    if not in_doubt(entries_of(run)):
        return None  # true of most runs; these unverified entries decide nothing on any host
    known = whose(run)
    if isinstance(known, str):
        return await heal_run(run) if named else Healed(run, refused=f"{known}; name it, if you trust it")
    return await heal_run(run, ours=known)


async def heal_run(
    run: Path, hosts: Hosts | None = None, *, attached: str = "", told: Told = _untold, ours: OurRun | None = None
) -> Healed | None:
    """Heals one run; None if nothing needs healing.

    `hosts` are the hosts of the datacenter named `attached`. With `ours`, only entries that this machine wrote count.
    Raises UsageError if the journal is missing or read-only.
    """
    path = run / JOURNAL_NAME
    if not path.is_file():
        raise UsageError(f"{run}: is not a recording ({JOURNAL_NAME} is missing); `hashidrill list runs` shows them")
    key = None if ours is None else ours.key
    with contextlib.ExitStack() as stack:
        try:
            clock = Clock()
            # locks the journal, so that nothing is appended while heal reads
            journal = stack.enter_context(Journal(path, clock, key=key))
        except JournalHeldError:
            return Healed(run, refused="its runner still holds the journal: the run is in progress")
        except OSError as error:
            raise UsageError(f"{path}: not writable: {error.strerror}; run `hashidrill heal` as its owner") from None
        entries, later_entries, lost = _said(run, ours)
        began = next((entry for entry in entries if entry.event == "run"), None)
        died = not any(entry.event == "end" for entry in entries)
        later = run / HEAL_NAME
        undos = open_faults([*entries, *later_entries])
        if began is None or not (died or undos or lost):
            return None
        if reason := _out_of_reach(began, attached) if attached else _out_of_sight(began):
            return Healed(run, died=died, refused=reason)
        # new entries must be later than the existing ones, so continue the run's clock from the last of them
        clock.origin_ns = time.monotonic_ns() - (entries[-1].t_ns + 1)
        written = journal if died else stack.enter_context(Journal(later, clock, key=key))
        healed = Healed(run, died=died, left=[lost] if lost else [])
        told("heal", {})
        for undo in undos:
            if hosts is None:
                done = await _look(undo, began, written, before_s=_uptime_s(began, entries[-1]))
            else:
                told("revert", undo)
                done, why = await settled(undo, hosts, written, gone_within_s=_GONE_WITHIN_S)
                told(_TOLD[done], {**undo, "why": why})
            getattr(healed, done).append(undo["fault_id"])
        if died:
            journal.write(
                "end",
                sync=True,
                outcome="revert" if healed.stuck else "crashed",
                error="the runner died; `hashidrill heal` closed its run",
            )
    return healed


def _said(run: Path, ours: OurRun | None) -> tuple[Sequence[Entry], Sequence[Entry], str]:
    """The run's entries, heal's later entries, and what is lost. Call this only while the journal is locked."""
    if ours is None:
        later = run / HEAL_NAME
        return read_journal(run / JOURNAL_NAME), read_journal(later) if later.is_file() else [], ""
    found = our_run(run)
    lost = f"{run / JOURNAL_NAME}: {found.lost}: faults that it no longer names may be in force" if found.lost else ""
    return found.journal, found.later, lost


def _out_of_reach(began: Entry, attached: str) -> str:
    where = (began.data.get("attached") or {}).get("name", "")
    if where == attached:
        return ""
    return f"it ran against {where}, not against {attached}" if where else f"it did not run against {attached}"


def _out_of_sight(began: Entry) -> str:
    """Why heal cannot look for that run's sandbox, or that the sandbox still runs; "" if the sandbox has ended."""
    if "attached" in began.data:
        name = began.data["attached"].get("name", "")
        return f"it ran against the attached datacenter {name}: `hashidrill heal --attach FILE` reverts what it left"
    root = Path(str(began.data.get("root", "")))
    if reason := elsewhere(began.data.get("origin") or {}):
        return reason
    return f"its sandbox {root} still runs: the run is in progress" if _alive(root) else ""


def _uptime_s(began: Entry, entry: Entry) -> float:
    """The latest uptime at which that entry can have been written; the wall clock may have been set since."""
    then = (began.data.get("origin") or {}).get("uptime_s")
    if isinstance(then, (int, float)):
        return then + (entry.t_ns - began.t_ns) / 1e9 + _BEGINS_WITHIN_S
    return entry.wall - time.time() + uptime_s()


async def _look(undo: dict[str, Any], began: Entry, journal: Journal, *, before_s: float) -> str:
    """`ended` if no process of the fault's host is left, otherwise `stuck`."""
    evidence = nothing_left(began, before_s=before_s)
    with anyio.move_on_after(_KILLED_WITHIN_S):
        while not evidence.ok:
            await pause(_LOOK_EVERY_S)
            evidence = nothing_left(began, before_s=before_s)
    event, done = ("fault.ended", "ended") if evidence.ok else ("fault.stuck", "stuck")
    journal.write(event, sync=True, fault_id=undo["fault_id"], evidence=asdict(evidence))
    return done


def nothing_left(began: Entry, *, before_s: float) -> Evidence:
    """Evidence that no process of that run's sandbox is left; only its processes keep its hosts alive.

    A process counts if it is in the sandbox's PID namespace and started before `before_s` (of the machine's uptime),
    because the kernel reuses namespace numbers.
    """
    origin, root = began.data.get("origin") or {}, str(began.data.get("root", ""))
    asked = f"no process of the sandbox {root} is left"
    if restarted(origin):
        boots = f"{origin['boot']}, {here()['boot']}"
        return Evidence(ok=True, asked=asked, measured=f"this machine has rebooted since: {boots}")
    found = sorted(_processes(str(began.data.get("sandbox", "")), before_s))
    seen = ", ".join(f"{name} (pid {pid})" for pid, name in found)
    return Evidence(not found, asked, seen or "none", {"processes": len(found)})


def _processes(namespace: str, before_s: float) -> Iterator[tuple[int, str]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended, or belongs to another user
            inside = os.readlink(f"/proc/{process.pid}/ns/pid") == namespace  # noqa: PTH115 - a namespace is no path
            if inside and _started_s(process.pid) <= before_s:
                yield process.pid, process.name()


def _started_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def sweep(cgroup_trees: Sequence[str | Path] = CGROUPS) -> list[Path]:
    """Removes leftover directories and cgroups of ended sandboxes. Returns what it removed."""
    removed = []
    for root in sorted(work_parent().glob(f"{NAME_PREFIX}*")):
        try:
            stat = root.stat()
        except FileNotFoundError:  # its run has just ended
            continue
        young = time.time() - stat.st_mtime < _STARTING_S and not (root / "pid").exists()
        if stat.st_uid != os.geteuid() or young or _alive(root) or _held(root):
            continue
        shutil.rmtree(root, ignore_errors=True)
        removed.append(root)
    for place in cgroup_trees:
        for group in Path(place).glob(f"{NAME_PREFIX}*"):
            if not (work_parent() / group.name).exists():
                removed += _remove_cgroup(group)
    cgroups.give_back()
    return removed


def _remove_cgroup(group: Path) -> list[Path]:
    try:
        for below in group.glob("*/"):
            below.rmdir()
        group.rmdir()
    except OSError:  # it is in use, or another user's
        return []
    return [group]


def _held(root: Path) -> bool:
    """Whether a runner holds the run's lock; it may be in another container, whose processes are not visible here."""
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True
    try:
        return not held_by_us(fd)
    finally:
        os.close(fd)


def _alive(root: Path) -> bool:
    """Whether the first process of that sandbox runs: its command line names the sandbox's directory."""
    try:
        pid = int((root / "pid").read_text())
        return str(root) in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return False
