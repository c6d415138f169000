"""What an experiment's faults require of the datacenter, and whether its disks fit into memory."""

from collections.abc import Iterator
from pathlib import Path

import psutil

from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.model import DatacenterSpec, Experiment, make_fault, services_of
from hashidrill.core.protocols.abc import Requires
from hashidrill.core.units import Size

DEFAULT_DISK_SIZE = Size("256MB")
"""Four segments of Consul's write-ahead log: about what a server writes in some minutes of an experiment's load."""


def required_by(experiment: Experiment) -> Requires:
    """What all faults of the method together require of the datacenter from the start."""
    probed = Requires(disk_operations=frozenset({"fsync"}))
    return Requires.of_all([probed, *(make_fault(step, None).requires() for step in experiment.faults)])


def sized(spec: DatacenterSpec) -> DatacenterSpec:
    """The specification with a size for each host's disk: one that can fill up is a small file system of its own."""
    if spec.disk.size is not None:
        return spec
    return spec.model_copy(update={"disk": spec.disk.model_copy(update={"size": DEFAULT_DISK_SIZE})})


SHARE = 0.75
"""Share of the available memory that disks may use; the agents, the loads and everything else need the rest."""
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
_MB = 1_000_000


def check_memory(document: Document, experiment: Experiment, available: int | None = None) -> None:
    """Raises ExperimentError, with the place, if full disks would take more than three quarters of the memory.

    `available` is that memory in bytes; by default, what this machine has now.
    """
    if trouble := lacking_memory(experiment, available):
        written = experiment.datacenter.disk.size is not None
        document.problem(("datacenter", "disk", "size") if written else ("datacenter",), trouble)
        document.raise_problems()


def lacking_memory(experiment: Experiment, available: int | None = None) -> str:
    """Why full disks would take more than three quarters of the memory, and what would fit; "" if they fit.

    When a file system in memory fills the machine's memory, the kernel kills processes of its own choice.
    """
    required = required_by(experiment)
    spec = sized(experiment.datacenter) if required.sized_disk else experiment.datacenter
    if spec.disk.size is None or spec.stands:
        return ""
    services = services_of(spec, spares=required.spare_servers)
    hosts = len({place.host for service in services for place in service.places()})
    available = available_bytes() if available is None else available
    if hosts * spec.disk.size <= available * SHARE:
        return ""
    most = Size(max(int(available * SHARE / hosts) // _MB, 0) * _MB)
    return (
        f"{hosts} hosts with a disk of {spec.disk.size} each need {Size(hosts * spec.disk.size)} of memory, but only "
        f"{_rounded(available)} are available here: use at most {most} each, or fewer hosts"
    )


def available_bytes(own: Path = OWN_CGROUP, cgroups: Path = CGROUPS) -> int:
    """Bytes that can be used without swapping: MemAvailable, or less if a cgroup (a container's) has a limit."""
    return min([psutil.virtual_memory().available, *_left_in_cgroups(own, cgroups)])


def _left_in_cgroups(own: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = cgroups / "memory" if controllers else cgroups
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        group = top / path.lstrip("/")
        for place in (group, *group.parents):
            if place.is_relative_to(top) and (left := _left(place, *names)) is not None:
                yield left


def _left(group: Path, limit: str, used: str) -> int | None:
    try:
        return max(int((group / limit).read_text()) - int((group / used).read_text()), 0)
    except (OSError, ValueError):  # "max" is not a number, and the top group has no such files
        return None


def _rounded(size_bytes: int) -> Size:
    return Size(size_bytes // _MB * _MB)
