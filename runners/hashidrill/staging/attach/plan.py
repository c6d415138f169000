"""What a run against an attached datacenter would touch, in order: for `--plan`, for interlocks, and for the audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hashidrill.core.experiment.model import services_of
from hashidrill.core.experiment.selectors import aimed, parse_selector
from hashidrill.core.protocols import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hashidrill.core.experiment.model import Experiment
    from hashidrill.core.protocols.service import Service
    from hashidrill.staging.attach.estate import Estate
    from hashidrill.staging.attach.target import AttachTarget


@dataclass(frozen=True)
class Action:
    """One thing that is done to an attached datacenter, or would be."""

    verb: str
    """`offer` of a load, `apply` and `revert` of a fault."""
    what: str
    """The kind of the fault or load."""
    on: str
    """The selector as written: of a fault's target, or of the agents that a load asks."""
    hosts: tuple[str, ...]
    """In a plan, all that the selector may match; when it is done, the very one."""
    service: str
    """Whose agent; "" where the selector does not say."""
    at_s: float
    """After the method began; loads begin before that, in the steady state: then 0."""
    for_s: float
    """How long a fault stays in force, a load goes on after the method began."""
    name: str = ""
    """Of the load, or of the step."""
    many: bool = False
    """All hosts are touched at the same time, and not one of them."""
    step: int = -1
    """The number of the step in the method; -1 for a load."""
    fault_id: str = ""
    """"" in a plan."""


@dataclass(frozen=True)
class Plan:
    """One run as interlocks judge it, before it and at its start."""

    target: AttachTarget
    estate: Estate
    experiment: Experiment
    actions: tuple[Action, ...]
    run_id: str = ""
    """The recording's name; "" before there is one."""


def plan_of(experiment: Experiment, target: AttachTarget, estate: Estate, *, run_id: str = "") -> Plan:
    """Of an experiment whose datacenter is that estate (hashidrill.core.experiment.attached)."""
    services = services_of(experiment.datacenter)
    actions = [*_loads(experiment, services), *sorted(_faults(experiment, services), key=lambda one: one.at_s)]
    return Plan(target, estate, experiment, tuple(actions), run_id)


def _faults(experiment: Experiment, services: Sequence[Service]) -> Iterator[Action]:
    for number, step in enumerate(experiment.method):
        if step not in experiment.faults:
            continue
        selector = parse_selector(aimed(step.fault, step.on))
        hosts = tuple(sorted(selector.candidates(services)))
        service = selector.agent or ("" if selector.service == "host" else selector.service)
        yield Action(
            "apply",
            step.fault,
            step.on,
            hosts,
            service,
            float(step.at),
            float(step.for_),
            step.name or "",
            selector.many,
            number,
        )


def _loads(experiment: Experiment, services: Sequence[Service]) -> Iterator[Action]:
    ends_s = max(float(step.at + step.for_) for step in experiment.method) + float(experiment.recovery.for_)
    for name, load in experiment.load.items():
        kind = registry.load(load.kind)
        via = kind.via(load.parameters)
        for on in [each for each in (via, *kind.also(load.parameters).values()) if each is not None]:
            selector = parse_selector(on)
            hosts = tuple(sorted(selector.candidates(services)))
            yield Action("offer", load.kind, on, hosts, selector.service, 0.0, ends_s, name, selector.many)
