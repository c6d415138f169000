"""CPU limits by cgroup, v2 or v1, where this user may have them. Groups are named after the run, for later removal.

In v2 a group has CPU limits only where the root of all groups hands the controller down. Turning that on changes the
machine beyond our own groups, so the root is marked (an extended attribute, which ends with the boot as the setting
does), and the last run to end turns it off again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_OURS = "hashidrill-*"
_MARK = "trusted.hashidrill.cpu"
"""On the root: we turned the controller on there, and nobody else had."""
# a quota below one millisecond a period is refused by the kernel
_MIN_QUOTA_US = 1_000


@dataclass(frozen=True)
class Group:
    """One cgroup of ours."""

    path: Path
    version: int

    def limit(self, cores: float | None) -> None:
        """At most `cores` CPU seconds a second; None takes the limit away. Raises OSError."""
        quota = None if cores is None else max(_MIN_QUOTA_US, round(cores * _PERIOD_US))
        if self.version == 2:
            (self.path / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def procs_files(self) -> list[str]:
        """Write a pid into each of these to move it here."""
        return [str(self.path / "cgroup.procs")]


def _parents() -> list[tuple[Path, int]]:
    """Where a group could be made, best first."""
    found = []
    if (_ROOT / "cgroup.controllers").is_file() and "cpu" in (_ROOT / "cgroup.controllers").read_text().split():
        found.append((_ROOT, 2))
    found += [
        (path, 1)
        for path in (_ROOT / "cpu", _ROOT / "cpu,cpuacct")
        if (path / "cpu.cfs_quota_us").is_file() or (path / "cgroup.procs").is_file()
    ]
    return found


def make(name: str) -> Group | None:
    """The group `name` (`RUN/HOST`), made if need be; None where this user may not have one."""
    for parent, version in _parents():
        path = parent / name
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            if version == 2:
                _turn_on(parent)
                (path.parent / "cgroup.subtree_control").write_text("+cpu")
            group = Group(path, version)
            group.limit(None)
            return group
    return None


def find(name: str) -> Group | None:
    """The group `name` if it exists."""
    for parent, version in _parents():
        if (parent / name).is_dir():
            return Group(parent / name, version)
    return None


def give_back() -> bool:
    """Turns off what `make` turned on at the root; returns whether it did.

    Call it once the run's own groups are removed.

    Another run keeps it. So does anything else that uses it by then (a limit, a weight, groups): then the mark is
    removed.
    """
    with contextlib.suppress(OSError):
        os.getxattr(_ROOT, _MARK)  # raises where nothing was turned on by us
        groups = [group for group in _ROOT.iterdir() if group.is_dir()]
        if any(group.match(_OURS) for group in groups):
            return False
        used = any(_uses_cpu(group) for group in groups)
        if not used:
            (_ROOT / "cgroup.subtree_control").write_text("-cpu")
        os.removexattr(_ROOT, _MARK)
        return not used
    return False


def _turn_on(root: Path) -> None:
    """Raises OSError, before anything is changed where it could not be marked as ours."""
    control = root / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        os.setxattr(root, _MARK, b"1")
        control.write_text("+cpu")


def _uses_cpu(group: Path) -> bool:
    """Whether something was set there that ends when the controller is taken away."""
    below = _words(group / "cgroup.subtree_control")
    limit, weight, idle = (_words(group / name) for name in ("cpu.max", "cpu.weight", "cpu.idle"))
    return "cpu" in below or limit[:1] not in ([], ["max"]) or weight not in ([], ["100"]) or idle not in ([], ["0"])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
