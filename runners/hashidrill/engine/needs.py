"""What an experiment needs of its datacenter, by what its faults say. Imports no more than `validate` needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill import registry
from hashidrill.abc import Needs
from hashidrill.units import Size

if TYPE_CHECKING:
    from hashidrill.abc import Fault
    from hashidrill.experiment.model import DatacenterSpec, Experiment, Step

DEFAULT_DISK_SIZE = Size("256MB")
"""Four log segments of Consul's write-ahead log: what a server fills in a few minutes of an experiment's load."""


def make_fault(step: Step, hosts: Any) -> Fault:
    """Raises UnknownNameError, or pydantic's error for parameters that do not fit."""
    cls = registry.fault(step.fault)
    built: Fault = cls(cls.Params.model_validate(step.with_), hosts)
    return built


def needs(experiment: Experiment) -> Needs:
    """What all faults of the method together need of the datacenter from the start."""
    each = [make_fault(step, None).needs() for step in experiment.method]
    operations = frozenset[str]().union(*(need.disk_operations for need in each))
    return Needs(
        operations | {"fsync"},
        any(need.sized_disk for need in each),
        toxiproxy=any(need.toxiproxy for need in each),
        bbolt=any(need.bbolt for need in each),
        spare_servers=sum(need.spare_servers for need in each),
    )


def sized(spec: DatacenterSpec) -> DatacenterSpec:
    """With a size for each host's disk: a disk that can be full is a small file system of its own."""
    if spec.disk.size is not None:
        return spec
    return spec.model_copy(update={"disk": spec.disk.model_copy(update={"size": DEFAULT_DISK_SIZE})})
