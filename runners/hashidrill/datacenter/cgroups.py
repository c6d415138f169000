"""CPU limits by cgroup, v2 or v1, where this user may have them. Groups are named after the run, for later removal."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
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
    found += [(path, 1) for path in (_ROOT / "cpu", _ROOT / "cpu,cpuacct") if (path / "cpu.cfs_quota_us").is_file()
              or (path / "cgroup.procs").is_file()]  # fmt: skip
    return found


def make(name: str) -> Group | None:
    """The group `name` (`RUN/HOST`), made if need be; None where this user may not have one."""
    for parent, version in _parents():
        path = parent / name
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            if version == 2:
                for above in (parent, path.parent):
                    (above / "cgroup.subtree_control").write_text("+cpu")
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
