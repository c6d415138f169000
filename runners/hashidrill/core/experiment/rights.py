"""The rights that an experiment needs, and for each right the faults, loads, services and other parts that need it."""

from collections.abc import Iterable, Mapping

from hashidrill.core.experiment.model import Experiment, services_of
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import NeedsLoadRights, NeedsRights
from hashidrill.core.protocols.rights import Right
from hashidrill.core.protocols.service import HasAcls


def rights_of(experiment: Experiment, others: Mapping[str, Iterable[Right]] | None = None) -> dict[Right, list[str]]:
    """Each right with the names that need it, in order. `others` maps further names to their rights.

    A client's own tokens are not covered. Raises UnknownNameError and ExperimentError.
    """
    needed: dict[Right, list[str]] = {}

    def need(who: str, rights: Iterable[Right]) -> None:
        for right in rights:
            if who not in (names := needed.setdefault(right, [])):
                names.append(who)

    for step in experiment.faults:
        fault = registry.fault(step.fault)(step.parameters, None)
        need(step.fault, fault.rights() if isinstance(fault, NeedsRights) else ())
    for name, spec in experiment.load.items():
        kind = registry.load(spec.kind)
        need(f"{spec.kind} ({name})", kind.rights(name, spec.parameters) if isinstance(kind, NeedsLoadRights) else ())
    for service in services_of(experiment.datacenter):
        if isinstance(service, HasAcls):
            need(f"probes and selectors of {service.name}", service.rights())
    for who, rights in (others or {}).items():
        need(who, rights)
    return needed


def together(each: Iterable[Mapping[Right, Iterable[str]]]) -> dict[Right, list[str]]:
    """The rights that several experiments need together."""
    needed: dict[Right, list[str]] = {}
    for one in each:
        for right, who in one.items():
            known = needed.setdefault(right, [])
            known += [name for name in who if name not in known]
    return needed


def reasons(needed: Mapping[Right, Iterable[str]]) -> dict[Right, str]:
    """The comment over a rule: `for consul.kv.write (kv-writes), disk.latency`."""
    return {right: f"for {', '.join(who)}" for right, who in needed.items()}
