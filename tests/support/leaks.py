"""What a run must not leave behind on the machine, and how to see it.

Other people may use hashidrill on this machine at the same time, so what is looked for is ours alone: every process
that is started below inherits HASHIDRILL_WORK, which names a directory that nobody else has.
"""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from pyroute2.nftables.main import NFTables

VARIABLE = "HASHIDRILL_WORK"
PREFIX = "hashidrill-"
_BRIDGE = "hashidrill0"
_GAP_S = 0.05


@dataclass
class Ground:
    """`work` is where our sandboxes are made. What was on the machine when this was made is not held against us."""

    work: Path
    _before: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._before = set(self._on_the_machine())

    def left(self, *, machine: bool = True) -> list[str]:
        """A line for each thing of ours that is there now. Empty: nothing is left.

        Without `machine`, what has no owner (mounts, bridges, cgroups) is left out: another process may need it."""
        found = [f"directory {path}" for path in sorted(self.work.glob("*"))]
        found += [f"process {pid}: {command}" for pid, command in processes_of(self.work)]
        return found + [line for line in self._on_the_machine() if machine and line not in self._before]

    def left_after(self, within_s: float, *, machine: bool = True) -> list[str]:
        """The same, once nothing is left, or after that many seconds: what is being cleared up is not a leak yet."""
        deadline = time.monotonic() + within_s
        while (found := self.left(machine=machine)) and time.monotonic() < deadline:
            time.sleep(_GAP_S)
        return found

    def _on_the_machine(self) -> list[str]:
        return [*_mounts(self.work), *_network(), *_cgroups()]


def processes_of(work: Path) -> list[tuple[int, str]]:
    """(pid, command line) of every process that inherited this work directory, or names it; but for our own."""
    marks = (f"{VARIABLE}={work}\0".encode(), f"{work}/".encode())
    own = _ancestry()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) in own:
            continue
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            # a zombie has neither, and is its parent's to reap
            if marks[0] in (folder / "environ").read_bytes() + b"\0" or marks[1] in command:
                found.append((int(folder.name), command.replace(b"\0", b" ").decode(errors="replace")[:200]))
    return found


def _ancestry() -> set[int]:
    """This process and those above it: they may have been given the variable from outside."""
    pid, found = os.getpid(), set()
    while pid > 0:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            break
    return found


def _mounts(work: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    ours = [line for line in lines if f" {work}/" in line or " - tmpfs hashidrill " in line or " - nsfs " in line]
    return [f"mount {line.split()[4]}" for line in ours]


def _network() -> list[str]:
    """Names of namespaces, our bridge, and our tables of packet rules, outside of any sandbox."""
    found = [f"network namespace {path}" for path in sorted(Path("/run/netns").glob("*"))]
    if Path("/sys/class/net", _BRIDGE).exists():
        found.append(f"bridge {_BRIDGE}")
    return found + [f"table of packet rules {name}" for name in _tables() if name.startswith("hashidrill")]


def _tables() -> list[str]:
    """Empty for an ordinary user, who can neither see nor make any out here."""
    if os.geteuid() != 0:
        return []
    with NFTables(nfgen_family=0) as kernel:
        return [table.get_attr("NFTA_TABLE_NAME") for table in kernel.get_tables()]


def _cgroups() -> list[str]:
    """Those of sandboxes that no process on this machine knows any more: the others are somebody's, and in use."""
    groups = [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if Path(folder).name.startswith(PREFIX)]
    if not groups:
        return []
    known = _command_lines()
    names = {group: Path(group).name.removeprefix(f"{PREFIX}node-") for group in groups}
    return [f"cgroup {group}" for group, name in sorted(names.items()) if name.encode() not in known]


def _command_lines() -> bytes:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines.append((folder / "cmdline").read_bytes())
    return b"\n".join(lines)
