"""What an experiment requires of its datacenter, by what its faults say. Imports no more than `validate` needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import Requires
from hashidrill.core.units import Size

if TYPE_CHECKING:
    from hashidrill.core.experiment.model import DatacenterSpec, Experiment, Step
    from hashidrill.core.protocols.abc import Fault

DEFAULT_DISK_SIZE = Size("256MB")
"""Four segments of Consul's write-ahead log: about what a server writes in a few minutes of an experiment's load."""


def make_fault(step: Step, hosts: Any) -> Fault:
    """Raises UnknownNameError, and ExperimentError for parameters that do not fit."""
    built: Fault = registry.fault(step.fault)(step.parameters, hosts)
    return built


def required_by(experiment: Experiment) -> Requires:
    """What all faults of the method together require of the datacenter from the start."""
    probed = Requires(disk_operations=frozenset({"fsync"}))
    return Requires.of_all([probed, *(make_fault(step, None).requires() for step in experiment.faults)])


def sized(spec: DatacenterSpec) -> DatacenterSpec:
    """With a size for each host's disk: a disk that can fill up must be a small file system of its own."""
    if spec.disk.size is not None:
        return spec
    return spec.model_copy(update={"disk": spec.disk.model_copy(update={"size": DEFAULT_DISK_SIZE})})
