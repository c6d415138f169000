"""Why parts of an experiment are impossible in an attached datacenter."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hashidrill.core.errors import AttachError, ExperimentError
from hashidrill.core.experiment.attached import attached_to, check_no_variants, inline
from hashidrill.core.experiment.conditions import Condition, probe_signals
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.experiment.loader import load_document
from hashidrill.core.experiment.model import DatacenterSpec, Experiment, make_fault, services_of
from hashidrill.core.experiment.selectors import Selector, aimed, parse_selector
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import NotByAddress, OnTap, WorksOnAgents
from hashidrill.core.protocols.capabilities import Capable, described
from hashidrill.core.protocols.claims import is_across
from hashidrill.core.protocols.service import Service
from hashidrill.staging.attach.datacenter import AttachedHost
from hashidrill.staging.attach.discovery import Estate
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import AttachTarget, check_file
from hashidrill.staging.carriers.open_carriers import Offer, Offers
from hashidrill.staging.carriers.settings import carriers_of
from hashidrill.staging.generators.settings import workers_of

NOT_SEEN = {"disk": "disks", "process": "processes", "machine": "this machine's own work"}
"""The first words of signals that exist only in local datacenters, each with the signals' subject."""
NO_CARRIERS: Offers = MappingProxyType({})
"""The offers of a datacenter whose hosts are reached only by the addresses of their agents' APIs."""


def check_attach_file(path: Path) -> None:
    """Checks an Attach file, or an experiment that attaches, before anything is contacted.

    Raises ExperimentError, InterlockError, AttachError.
    """
    where, model, products = check_file(path)
    carried = carriers_of(model.carriers, where).nomad is not None
    if carried and "nomad" not in products:
        raise AttachError(f"{where}: carriers.nomad: Nomad is not attached; name it under `datacenter`")
    workers_of(model.engine, products, where)
    if inline(document := read_experiment(path)) is None:
        return
    check_no_variants(document, path)
    experiment = load_document(document.unmarked(), near_to=path)
    if reasons := [*_of_loads(experiment), *_of_clients(experiment), *_of_conditions(experiment)]:
        told = "".join(f"\n  {reason}" for reason in reasons)
        raise AttachError(f"{path}: cannot run in an existing datacenter:{told}")


def check_possible(
    document: Document, target: AttachTarget, estate: Estate, *, path: Path, offers: Offers = NO_CARRIERS
) -> None:
    """Raises AttachError with everything that is impossible there, ExperimentError as `validate` does."""
    reasons = lacking(document, target, estate, path=path, offers=offers)
    if reasons:
        told = "".join(f"\n  {reason}" for reason in reasons)
        how = "" if offers else ", which is reached by the addresses of its APIs alone"
        raise AttachError(
            f"{path}: cannot run on {target.name}{how}:{told}\n"
            f"`hashidrill doctor --attach {target.path}` lists what can run there, and explains these reasons"
        )


def lacking(
    document: Document, target: AttachTarget, estate: Estate, *, path: Path, offers: Offers = NO_CARRIERS
) -> list[str]:
    """Why it cannot run there, apart from the messages of `validate`."""
    experiment = load_document(document.unmarked(), near_to=path)
    hosts = _hosts(target, estate, offers)
    return [
        *_of_faults(experiment, hosts, standing(estate), offers),
        *_of_loads(experiment, estate),
        *_of_clients(experiment),
        *_of_conditions(experiment),
    ]


def _hosts(target: AttachTarget, estate: Estate, offers: Offers) -> dict[str, AttachedHost]:
    offered = {name: dict.fromkeys(offers.get(name, Offer()).capabilities) for name in estate.hosts}
    return {name: AttachedHost(one, target.logins, carried=offered[name]) for name, one in estate.hosts.items()}


def unselected(document: Document, target: AttachTarget, estate: Estate, *, path: Path) -> str:
    """The message of `validate` for the experiment over that datacenter; "" for none."""
    try:
        attached_to(document.unmarked(), estate.as_datacenter(), name=target.name, path=path)
    except ExperimentError as error:
        return str(error)
    return ""


def standing(estate: Estate) -> list[Service]:
    """The services of that datacenter."""
    return services_of(DatacenterSpec.model_validate(estate.as_datacenter()))


def _of_faults(
    experiment: Experiment, hosts: Mapping[str, Capable], services: Sequence[Service], offers: Offers
) -> Iterator[str]:
    for number, step in enumerate(experiment.method, start=1):
        if step in experiment.faults:
            reasons = _of_fault(step, hosts, services, offers)
            yield from (f"step {number}, {step.fault} on {step.on}: {why}" for why in reasons)


def _of_fault(step: Any, hosts: Mapping[str, Capable], services: Sequence[Service], offers: Offers) -> Iterator[str]:
    fault = make_fault(step, None)
    if isinstance(fault, OnTap) and fault.on_client:
        yield "an attached datacenter has no taps"
        return
    required = fault.requires()
    selector = parse_selector(aimed(step.fault, step.on))
    meant = [hosts[name] for name in sorted(selector.candidates(services))]
    wanted = sorted(required.capabilities, key=described)
    looked = [host for host in meant or hosts.values() if not required.other_way(host)]
    if not looked:
        return
    for host in looked:
        offer = offers.get(host.name, Offer())
        if lacks := tuple(one for one in wanted if not host.can(one)):
            besides = sorted(required.instead, key=described)
            why = "; ".join(dict.fromkeys(offer.lacks[one] for one in (*lacks, *besides) if one in offer.lacks))
            who = f"its host {host.name}" if why else "its host"
            yield f"{who} lacks {', '.join(one.__name__ for one in lacks)}{why and ': ' + why}"
            break
        if why := offer.refuses(fault, _agent(selector, host)):
            yield f"{host.name}: {why}"
            break
    yield from _of_other_side(step, fault, looked, hosts, offers)
    for capability in sorted(required.elsewhere, key=described):
        if not any(host.can(capability) for host in hosts.values()):
            yield f"no host has {capability.__name__}, which its proof needs"
    if required.tools:
        yield f"it needs {' and '.join(sorted(required.tools))} on its host"
    if required.spare_servers:
        yield "it needs a spare host, on which it may start a server"


def _of_other_side(
    step: Any, fault: Any, targets: Sequence[Capable], hosts: Mapping[str, Capable], offers: Offers
) -> Iterator[str]:
    """The missing capabilities of the first host on the other side that the fault's observer needs."""
    selector, who = parse_selector(aimed(step.fault, step.on)), getattr(fault.params, "from_", "all")
    for target in targets if fault.across else ():
        service = _agent(selector, target)
        for host in hosts.values():
            lacks = sorted((one for one in fault.across if not host.can(one)), key=described)
            if host is not target and lacks and is_across(who, host.name, host.roles, service):
                why = "; ".join(dict.fromkeys(offers.get(host.name, Offer()).lacks.get(one, "") for one in lacks))
                names = ", ".join(one.__name__ for one in lacks)
                yield f"its proof needs {names} on {host.name}, which is on the other side{why and ': ' + why}"
                return


def _agent(selector: Selector, host: Capable) -> str:
    """The agent that the selector means on that host: the host's first, if the selector names no agent."""
    return selector.agent or (next(iter(host.roles), "") if selector.service == "host" else selector.service)


def possible_kinds(target: AttachTarget, estate: Estate, offers: Offers = NO_CARRIERS) -> dict[str, str]:
    """Every kind of fault, with why it is impossible on every host there; "" if some host allows it."""
    hosts = [*_hosts(target, estate, offers).values()]
    return {kind: _of_kind(fault, hosts) for kind, fault in registry.faults().items()}


def _of_kind(fault: Any, hosts: Sequence[Capable]) -> str:
    if isinstance(fault, OnTap) and fault.on_client:
        return "an attached datacenter has no taps"
    instead: frozenset[type[Any]] = getattr(fault, "instead", frozenset())
    if instead and any(all(host.can(one) for one in instead) for host in hosts):
        return ""
    wanted: frozenset[type[Any]] = getattr(fault, "capabilities", frozenset())
    elsewhere: frozenset[type[Any]] = getattr(fault, "elsewhere", frozenset())
    seen = all(any(host.can(one) for host in hosts) for one in elsewhere)
    if seen and any(all(host.can(one) for one in wanted) for host in hosts):
        product = fault.kind.partition(".")[0]
        missing = product in attachables() and not any(product in host.roles for host in hosts)
        return f"there is no {product}" if missing else ""
    never = sorted(one.__name__ for one in wanted | elsewhere if not any(host.can(one) for host in hosts))
    return f"no host has {', '.join(never)}"


def absent(target: AttachTarget, estate: Estate, offers: Offers = NO_CARRIERS) -> list[str]:
    """Capabilities that faults need and no host there has: `DiskControl (slow or fail the operations ...)`."""
    hosts = _hosts(target, estate, offers).values()
    wanted = frozenset[type[Any]]().union(
        *(getattr(fault, which, ()) for fault in registry.faults().values() for which in ("capabilities", "elsewhere"))
    )
    return sorted(described(one) for one in wanted if not any(host.can(one) for host in hosts))


def _of_loads(experiment: Experiment, estate: Estate | None = None) -> Iterator[str]:
    for name, load in experiment.load.items():
        if why := of_load(registry.load(load.kind), estate):
            yield f"load {name} ({load.kind}): {why}"


def of_load(load: Any, estate: Estate | None) -> str:
    """Why such a load cannot run there, or in any attached datacenter; "" if it can, or if its product is missing."""
    if isinstance(load, NotByAddress):
        return load.not_by_address
    product = load.kind.partition(".")[0]
    if estate is None or not isinstance(load, WorksOnAgents) or product not in estate.services:
        return ""
    there = estate.having(product, load.works_on)
    return "" if there else f"there is no {load.works_on} of {product}, so its jobs would wait"


def _of_clients(experiment: Experiment) -> Iterator[str]:
    for name in experiment.clients:
        yield f"client {name}: an attached datacenter has no taps"


def _of_conditions(experiment: Experiment) -> Iterator[str]:
    places: list[tuple[str, Sequence[Condition]]] = [
        ("steady_state", experiment.steady_state.require),
        ("guardrails", experiment.guardrails),
        *((name, load.profile.conditions) for name, load in experiment.traffic.items() if load.profile is not None),
    ]
    for where, conditions in places:
        for one in conditions:
            if one.source in NOT_SEEN and one.source not in experiment.traffic:
                yield f"{where}: {one.text}: an attached datacenter has no figures of {NOT_SEEN[one.source]}"


def unseen_signals(hypothesis: Any) -> list[str]:
    """The signals without a probe there that a hypothesis names, itself or in functions of its file."""
    tree = ast.parse(hypothesis.path.read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    named: set[str] = set()
    reached, rest = set(), [hypothesis.name]
    while rest:
        name = rest.pop()
        if name in reached or name not in functions:
            continue
        reached.add(name)
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Name):
                rest.append(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
    return sorted(each for each in named if each in probe_signals() and each.partition(".")[0] in NOT_SEEN)
