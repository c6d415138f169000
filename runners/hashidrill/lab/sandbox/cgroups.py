"""CPU and memory limits by cgroup, v2 or v1, if this user may set them. Groups are named after the run.

With cgroups v2, a group has such limits only if the root group delegates the controller. Turning the controller on
there changes the machine beyond hashidrill's groups. So the root is marked with an extended attribute, which, like the
setting, a reboot removes; the last run to end turns the controller off again.
"""

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_OURS = "hashidrill-*"
_MARK = "trusted.hashidrill.{}"
"""Mark on the root: hashidrill turned that controller on there; it was off before."""
Controller: TypeAlias = Literal["cpu", "memory"]
CONTROLLERS: tuple[Controller, ...] = ("cpu", "memory")
# the kernel refuses a quota below one millisecond per period
_MIN_QUOTA_US = 1_000


@dataclass(frozen=True)
class Group:
    """One cgroup of a run."""

    path: Path
    version: int

    def limit(self, cores: float | None) -> None:
        """Allows at most `cores` CPU seconds per second; None removes the limit. Raises OSError."""
        quota = None if cores is None else max(_MIN_QUOTA_US, round(cores * _PERIOD_US))
        if self.version == 2:
            (self.path / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def memory_in_use(self) -> tuple[int, int]:
        """Bytes charged to the group, and how many of these its processes free when they end. Raises OSError."""
        current, own = ("memory.current", "anon") if self.version == 2 else ("memory.usage_in_bytes", "total_rss")
        words = (self.path / "memory.stat").read_text().split()
        return int((self.path / current).read_text()), int(words[words.index(own) + 1])

    def limit_memory(self, limit_bytes: int | None) -> bool:
        """Sets the limit; None removes it. Returns whether the kernel accepted it.

        v2 kills processes if it cannot reclaim enough; v1 refuses a limit below what it cannot reclaim. Raises
        OSError.
        """
        text = str(limit_bytes) if limit_bytes is not None else ("max" if self.version == 2 else "-1")
        files = ("memory.high", "memory.max") if self.version == 2 else ("memory.limit_in_bytes",)
        try:
            for file in files:
                (self.path / file).write_text(text)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def memory_refusals(self) -> int:
        """The kernel's count of how often the group's processes reached the limit. Raises OSError."""
        if self.version == 1:
            return int((self.path / "memory.failcnt").read_text())
        words = (self.path / "memory.events").read_text().split()
        events = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return events["high"] + events["max"]

    def procs_files(self) -> list[str]:
        """The files that move a process into this group when its pid is written to them."""
        return [str(self.path / "cgroup.procs")]


def _parents(controller: Controller) -> list[tuple[Path, int]]:
    """The places where a group could be created, best first."""
    found = []
    if (_ROOT / "cgroup.controllers").is_file() and controller in (_ROOT / "cgroup.controllers").read_text().split():
        found.append((_ROOT, 2))
    folders = ("cpu", "cpu,cpuacct") if controller == "cpu" else ("memory",)
    return found + [(_ROOT / folder, 1) for folder in folders if (_ROOT / folder / "cgroup.procs").is_file()]


def make(name: str, controller: Controller = "cpu") -> Group | None:
    """The group `name` (`RUN/HOST`), created if missing; None if this user may not create it."""
    for parent, version in _parents(controller):
        path = parent / name
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            if version == 2:
                _turn_on(parent, controller)
                (path.parent / "cgroup.subtree_control").write_text(f"+{controller}")
            group = Group(path, version)
            if controller == "cpu":
                group.limit(None)
            else:
                group.limit_memory(None)
            return group
    return None


def find(name: str, controller: Controller = "cpu") -> Group | None:
    """The group `name` if it exists."""
    for parent, version in _parents(controller):
        if (parent / name).is_dir():
            return Group(parent / name, version)
    return None


def give_back() -> bool:
    """Turns off the controllers that `make` turned on at the root; returns whether it turned any off.

    Call it once the run's own groups are removed. A controller stays on if another run needs it, or if anything else
    uses it (a limit, a weight, groups); in the latter case only the mark is removed.
    """
    given = [_given_back(controller) for controller in CONTROLLERS]
    return any(given)


def _given_back(controller: Controller) -> bool:
    mark = _MARK.format(controller)
    with contextlib.suppress(OSError):
        os.getxattr(_ROOT, mark)  # raises if hashidrill turned nothing on
        groups = [group for group in _ROOT.iterdir() if group.is_dir()]
        if any(group.match(_OURS) for group in groups):
            return False
        used = any(_uses(group, controller) for group in groups)
        if not used:
            (_ROOT / "cgroup.subtree_control").write_text(f"-{controller}")
        os.removexattr(_ROOT, mark)
        return not used
    return False


def _turn_on(root: Path, controller: Controller) -> None:
    """Raises OSError, before any change, if the root could not be marked."""
    control = root / "cgroup.subtree_control"
    if controller not in control.read_text().split():
        os.setxattr(root, _MARK.format(controller), b"1")
        control.write_text(f"+{controller}")


_UNSET = {
    "cpu": {"cpu.max": "max", "cpu.weight": "100", "cpu.idle": "0"},
    "memory": {"memory.max": "max", "memory.high": "max", "memory.low": "0", "memory.min": "0"},
}
"""The first word of each file if nothing is set."""


def _uses(group: Path, controller: Controller) -> bool:
    """Whether switching the controller off would lose a setting there."""
    set_ = [_words(group / name)[:1] not in ([], [unset]) for name, unset in _UNSET[controller].items()]
    return any(set_) or controller in _words(group / "cgroup.subtree_control")


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
