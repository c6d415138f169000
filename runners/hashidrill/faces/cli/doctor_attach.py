"""`hashidrill doctor --attach FILE`: what can run against an attached datacenter, and why the rest cannot.

It only reads, so a read-only token is enough.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from hashidrill.core import hypothesis
from hashidrill.core.errors import AttachError, HashidrillError
from hashidrill.core.experiment.library import experiments, read_experiment
from hashidrill.core.hypothesis.files import unrun
from hashidrill.core.protocols import registry
from hashidrill.faces.cli.common import print_json, print_line
from hashidrill.kubernetes.attach_capabilities import located, look, reached
from hashidrill.staging.attach.datacenter import attach, described
from hashidrill.staging.attach.discovery import Estate, troubles, unanswered
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.carriers.open_carriers import Offers
from hashidrill.staging.runs.attach_limits import (
    NO_CARRIERS,
    absent,
    lacking,
    of_load,
    possible_kinds,
    unseen_signals,
    unselected,
)

_MOST_SHOWN = 3


@dataclass(frozen=True)
class Looked:
    """The results. For each name, why it cannot be used in that datacenter; "" if it can."""

    target: AttachTarget
    estate: Estate
    silent: Mapping[str, str]
    """Why an agent did not answer, by `HOST/SERVICE`."""
    experiments: Mapping[str, Sequence[str]]
    faults: Mapping[str, str]
    loads: Mapping[str, str]
    hypotheses: Mapping[str, str]
    offers: Offers = field(default_factory=dict)
    """What carriers can do on its hosts."""


def report(path: Path, *, json: bool) -> int:
    """Prints the report; returns the exit code. Raises AttachError and ExperimentError if there is no datacenter."""
    target, estate, silent, offers = anyio.run(_look, read_target(path))
    looked = examined(target, estate, silent, offers)
    if json:
        print_json(as_data(looked))
    else:
        for line in lines(looked):
            print_line(line)
    return AttachError.exit_code if troubles(target, estate) else 0


async def _look(target: AttachTarget) -> tuple[AttachTarget, Estate, dict[str, str], Offers]:
    target = await located(target)
    async with AsyncExitStack() as stack:
        estate, wires = await attach(await stack.enter_async_context(reached(target)), stack)
        return target, estate, await unanswered(estate, wires), await look(target, estate)


def examined(target: AttachTarget, estate: Estate, silent: Mapping[str, str], offers: Offers = NO_CARRIERS) -> Looked:
    """The experiments and kinds that can run in that datacenter."""
    loads = {kind: _of_load(load, estate) for kind, load in registry.loads().items()}
    unseen = {name: unseen_signals(one) for name, one in hypothesis.all_hypotheses().items()}
    return Looked(
        target,
        estate,
        silent,
        experiments={name: _of_experiment(path, target, estate, offers) for name, path in experiments().items()},
        faults=possible_kinds(target, estate, offers),
        loads=loads,
        hypotheses={
            name: f"{', '.join(signals)} cannot be sampled there" if signals else "" for name, signals in unseen.items()
        },
        offers=offers,
    )


def _of_load(load: Any, estate: Estate) -> str:
    product = load.kind.partition(".")[0]
    missing = product in registry.services() and product not in estate.services
    return of_load(load, estate) or (f"there is no {product}" if missing else "")


def _of_experiment(path: Path, target: AttachTarget, estate: Estate, offers: Offers) -> list[str]:
    try:
        document = read_experiment(path)
        with hypothesis.looking_up(unrun(path)):
            reasons = lacking(document, target, estate, path=path, offers=offers)
            said = unselected(document, target, estate, path=path)
    except HashidrillError as error:
        return [str(error)]
    first = next((line for line in said.splitlines() if line.strip()), "")
    return [*reasons, *([first] if first and not reasons else [])]


def lines(looked: Looked) -> list[str]:
    estate, can = looked.estate, [name for name, why in looked.experiments.items() if not why]
    told = [f"{estate.name}: {len(estate.hosts)} hosts"]
    for service, login in looked.target.logins.items():
        version = " ".join(filter(None, (service, estate.versions.get(service, ""))))
        told.append(f"  {version} at {login.address}, {_agents(estate, service)}")
        told.append(f"    token from {login.token_from}" if login.token else "    no token")
    told += [f"  no run may begin: {text}" for text in troubles(looked.target, estate)]
    told += [f"  note: {note}" for note in estate.notes]
    told += [f"  does not answer: {agent}: {why}" for agent, why in looked.silent.items()]
    told += [
        f"  {'reached' if looked.target.kubernetes else f'carried by {offer.by}'}: {name}: {offer.said}"
        for name, offer in looked.offers.items()
    ]
    told.append(f"\n{len(can)} of {len(looked.experiments)} experiments can run there.")
    told += [f"  {name}" for name in can]
    told.append("\nThe others cannot:")
    for name, why in looked.experiments.items():
        if why:
            more = f" (and {len(why) - _MOST_SHOWN} more)" if len(why) > _MOST_SHOWN else ""
            told.append(f"  {name}: {'; '.join(why[:_MOST_SHOWN])}{more}")
    for what, kinds in (("faults", looked.faults), ("loads", looked.loads), ("hypotheses", looked.hypotheses)):
        had = sorted(kind for kind, why in kinds.items() if not why)
        told.append(f"\n{len(had)} of {len(kinds)} {what} can be used there: {', '.join(had) or 'none'}")
        told += [f"  {kind}: {why}" for kind, why in sorted(kinds.items()) if why]
    why = "" if looked.offers else ", because hashidrill only knows the addresses of their APIs"
    told.append(f"\nCapabilities that its hosts lack{why}:")
    told += [f"  {capability}" for capability in absent(looked.target, looked.estate, looked.offers)]
    told.append("\nLogs, and figures of disks, processes and connections, are not recorded there.")
    return [line for text in told for line in text.split("\n")]


def _agents(estate: Estate, service: str) -> str:
    roles = [host.roles[service] for host in estate.having(service)]
    counted = [f"{roles.count(role)} {role}{'' if roles.count(role) == 1 else 's'}" for role in dict.fromkeys(roles)]
    return ", ".join(counted)


def as_data(looked: Looked) -> dict[str, Any]:
    return {
        "attached": described(looked.target, looked.estate),
        "hosts": [
            {"name": host.name, "address": host.address, "agents": dict(host.roles)}
            for host in looked.estate.hosts.values()
        ],
        "troubles": troubles(looked.target, looked.estate),
        "silent": dict(looked.silent),
        "carried": [
            {
                "host": name,
                "by": offer.by,
                "said": offer.said,
                "capabilities": sorted(one.__name__ for one in offer.capabilities),
                "lacks": {one.__name__: why for one, why in offer.lacks.items()},
            }
            for name, offer in looked.offers.items()
        ],
        "experiments": [{"name": name, "runs": not why, "why": list(why)} for name, why in looked.experiments.items()],
        **{
            what: [{"kind": kind, "possible": not why, "why": why} for kind, why in sorted(kinds.items())]
            for what, kinds in (("faults", looked.faults), ("loads", looked.loads), ("hypotheses", looked.hypotheses))
        },
    }
