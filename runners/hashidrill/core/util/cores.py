"""The number of CPUs that this process may use, limited by its affinity and its cgroups' quotas (v1 and v2)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_CPU, _ACCOUNTS = "cpu", "cpuacct"


@dataclass(frozen=True)
class Quota:
    """The CPU quota of one cgroup, in CPUs."""

    cores: float
    usage: Path
    """The file with the CPU time that all of its processes have used."""

    def used_s(self) -> float | None:
        """CPU seconds of the group so far. None if the kernel does not count them."""
        try:
            text = self.usage.read_text()
            if self.usage.name == "cpu.stat":
                return int(dict(line.split() for line in text.splitlines())["usage_usec"]) / 1e6
            return int(text) / 1e9
        except (OSError, ValueError, LookupError):
            return None


def usable_cores(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> float:
    """The number of CPUs, a fraction if a container, a systemd slice or a parent group has such a quota.

    An unreadable quota does not count.
    """
    return min([float(len(os.sched_getaffinity(0))), *(each.cores for each in quotas(membership, groups))])


def quotas(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> list[Quota]:
    """The quotas of this process's group and of all groups around it.

    In a container, the mount shows the container's own group, while the path may be the one on the host.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    found: list[Quota] = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and _CPU not in controllers.split(","):
            continue
        read = _of_v1 if controllers else _of_v2
        mounts = (groups / controllers, groups / _CPU) if controllers else (groups, groups / "unified")
        inner = PurePosixPath(path.lstrip("/"))
        for mount in dict.fromkeys(mounts):
            for group in (inner, *inner.parents):
                try:
                    found += read(mount / group, groups / _ACCOUNTS / group)
                except (OSError, ValueError):
                    continue
    return found


def _of_v1(group: Path, accounts: Path) -> Iterator[Quota]:
    """The controller that counts CPU time is mounted together with the one that limits it, or separately."""
    quota = int((group / "cpu.cfs_quota_us").read_text())
    if quota > 0:
        usage = next((one for one in (group, accounts) if (one / "cpuacct.usage").is_file()), group)
        yield Quota(quota / int((group / "cpu.cfs_period_us").read_text()), usage / "cpuacct.usage")


def _of_v2(group: Path, _: Path) -> Iterator[Quota]:
    quota, period = (group / "cpu.max").read_text().split()
    if quota != "max":
        yield Quota(int(quota) / int(period), group / "cpu.stat")
