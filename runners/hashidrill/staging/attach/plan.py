"""The plan of a run against an attached datacenter: its actions in order, and the digest that an arming consents to.

Two experiments with the same digest do the same. The digest covers every step, load, client and probe with its
parameters, defaults included, from the steady state to the recovery, and the limits of the attach file. It does not
cover titles, expectations and reports, nor the programs that the experiment names (a client's command): the person
who arms trusts them as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hashidrill.core.experiment.model import Step, services_of
from hashidrill.core.experiment.selectors import aimed, parse_selector
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import SetsBack, selectors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hashidrill.core.experiment.model import Experiment, ProbeSpec
    from hashidrill.core.protocols.service import Service
    from hashidrill.staging.attach.discovery import Estate
    from hashidrill.staging.attach.target import AttachTarget
    from hashidrill.staging.interlocks.settings import InterlockSettings


@dataclass(frozen=True)
class Action:
    """One action on an attached datacenter."""

    verb: str
    """`offer` for a load; `apply` or `revert` for a fault."""
    what: str
    """The kind of the fault or load."""
    on: str
    """The selector as written: of a fault's target, or of the agents that a load calls."""
    hosts: tuple[str, ...]
    """In a plan, all hosts that the selector may match; after the action, the exact host."""
    service: str
    """The service of the agent; "" if the selector does not name one."""
    at_s: float
    """Seconds after the method began; 0 for loads, which begin earlier, in the steady state."""
    for_s: float
    """For how many seconds a fault stays in force, or a load continues after the method began."""
    name: str = ""
    """The name of the load or step."""
    many: bool = False
    """Whether all hosts are touched at the same time, rather than one of them."""
    step: int = -1
    """The number of the step in the method; -1 for a load."""
    fault_id: str = ""
    """The fault's id; "" in a plan."""


@dataclass(frozen=True)
class Plan:
    """The facts about one run that interlocks check, before the run and at its start."""

    target: AttachTarget
    estate: Estate
    experiment: Experiment
    actions: tuple[Action, ...]
    run_id: str = ""
    """The recording's name; "" before there is one."""


def plan_of(experiment: Experiment, target: AttachTarget, estate: Estate, *, run_id: str = "") -> Plan:
    """The plan of an experiment whose datacenter is that estate (hashidrill.core.experiment.attached)."""
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
        for on in selectors_of(kind, load.parameters).values():
            selector = parse_selector(on)
            hosts = tuple(sorted(selector.candidates(services)))
            yield Action("offer", load.kind, on, hosts, selector.service, 0.0, ends_s, name, selector.many)


_SHORT = len("sha256:") + 12


def content_of(experiment: Experiment, settings: InterlockSettings) -> dict[str, Any]:
    """The content of the digest, as plain data; equal for files that differ only in notation."""
    written = experiment.model_dump(mode="json", by_alias=True, include={"steady_state", "guardrails", "recovery"})
    return {
        "experiment": experiment.metadata.name,
        "method": [
            _plain(step) | ({"with": _plain(step.parameters)} if isinstance(step, Step) else {})
            for step in experiment.method
        ],
        "load": {
            name: {"kind": load.kind, "profile": load.profile and _plain(load.profile), "with": _plain(load.parameters)}
            for name, load in experiment.load.items()
        },
        "clients": {name: _plain(client) for name, client in experiment.clients.items()},
        **({"probes": {name: _probe(spec) for name, spec in experiment.probes.items()}} if experiment.probes else {}),
        **written,
        "breaks_quorum": experiment.breaks_quorum,
        "blast_radius": _plain(settings.blast_radius),
        "not_production": sorted(settings.production.not_production),
    }


def digest_of(experiment: Experiment, settings: InterlockSettings) -> str:
    """`sha256:` and 64 digits."""
    text = json.dumps(content_of(experiment, settings), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def sets_back(experiment: Experiment) -> bool:
    """Whether one of the run's faults resets the state that all agents share."""
    kinds = (registry.fault(step.fault) for step in experiment.faults)
    return any(isinstance(kind, SetsBack) and kind.sets_back for kind in kinds)


def lines_of(experiment: Experiment, settings: InterlockSettings) -> Iterator[str]:
    """The content of the consent, for a person: the digest, then the actions and their limits."""
    yield f"{experiment.metadata.name} {digest_of(experiment, settings)[:_SHORT]}"
    for step in experiment.faults:
        params = json.dumps(_plain(step.parameters), ensure_ascii=False)
        yield f"  {step.at} {step.fault} on {step.on} for {step.for_} {params if params != '{}' else ''}".rstrip()
    for name, load in experiment.load.items():
        yield f"  load {name}: {load.kind} {json.dumps(_plain(load.parameters), ensure_ascii=False)}"
    for name, client in experiment.clients.items():
        yield f"  client {name}: {' '.join(client.command)}"
    for name, probe in experiment.probes.items():
        yield f"  probe {name}: {probe.kind} {json.dumps(_plain(probe.parameters), ensure_ascii=False)}"
    limits = settings.blast_radius
    servers = "a third" if limits.servers is None else str(limits.servers)
    wide = "; it may break a quorum or reset all state" if experiment.breaks_quorum else ""
    yield f"  at most {servers} of a product's servers and {limits.clients} of its clients at one time{wide}"
    if settings.production.not_production:
        yield f"  counted as not production: {', '.join(settings.production.not_production)}"


def _probe(spec: ProbeSpec) -> dict[str, Any]:
    return {"kind": spec.kind, "every": str(spec.every), "timeout": str(spec.timeout), "with": _plain(spec.parameters)}


def _plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json", by_alias=True)
    return data
