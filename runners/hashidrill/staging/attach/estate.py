"""What is in an attached datacenter: its hosts, the agents on them, who leads. Found by reading alone.

A host is what several products mean by one machine: agents at the same address. It has the name that the first of the
products gives it (Consul's, where Consul knows it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import AttachError, FaultError, HashidrillError
from hashidrill.core.protocols import registry
from hashidrill.core.util.wait import all_at_once
from hashidrill.staging.attach.links import TOXIPROXY, Link, links_of
from hashidrill.staging.attach.product import Found, attachables
from hashidrill.staging.attach.wire import UnansweredError

if TYPE_CHECKING:
    from hashidrill.staging.attach.target import AttachTarget
    from hashidrill.staging.attach.wire import Wire

_TELLS_WITHIN_S = 5.0


@dataclass(frozen=True)
class FoundHost:
    """One host; `roles` and `urls` are those of its agents, by service."""

    name: str
    address: str
    roles: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    """Of all products: interlocks look for what is called production in it."""
    links: Mapping[str, Link] = field(default_factory=dict)
    """The proxies of the estate's toxiproxy that lead to it, by name."""


@dataclass(frozen=True)
class Estate:
    """An attached datacenter as it was found."""

    name: str
    hosts: Mapping[str, FoundHost]
    versions: Mapping[str, str] = field(default_factory=dict)
    leaders: Mapping[str, str] = field(default_factory=dict)
    """By service, the host that leads; "" for nobody."""
    voters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    datacenters: Mapping[str, str] = field(default_factory=dict)
    """By service, the product's own name of its datacenter."""
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By service, what stands for it under `datacenter:`."""
    notes: Sequence[str] = ()

    @property
    def services(self) -> list[str]:
        return list(self.specs)

    def having(self, service: str, role: str = "") -> list[FoundHost]:
        """The hosts with an agent of that service, in that role or in any."""
        return [h for h in self.hosts.values() if service in h.roles and role in ("", h.roles[service])]

    def as_datacenter(self) -> dict[str, Any]:
        """What takes the place of an experiment's `datacenter:` (hashidrill.core.experiment.attached)."""
        hosts = {name: {"address": one.address, "agents": dict(one.roles)} for name, one in self.hosts.items()}
        return {"attached": {"name": self.name, "hosts": hosts}, **{name: dict(s) for name, s in self.specs.items()}}

    def to_data(self) -> dict[str, Any]:
        """Plain data: it holds no secret."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Estate:
        hosts = {
            name: FoundHost(**{**one, "links": {proxy: Link(**link) for proxy, link in one["links"].items()}})
            for name, one in data["hosts"].items()
        }
        return cls(**{**data, "hosts": hosts})


async def discover(target: AttachTarget, wires: Mapping[str, Wire]) -> Estate:
    """Asks each product what it knows. Raises AttachError with every reason why that cannot be had."""
    found: dict[str, Found] = {}
    reasons: dict[str, str] = {}

    async def ask(name: str) -> None:
        try:
            found[name] = await attachables([name])[name].discover(wires[name])
        except HashidrillError as error:
            reasons[name] = str(error)

    await all_at_once(partial(ask, name) for name in target.logins)
    links: Mapping[str, Link] = {}
    if TOXIPROXY in wires:
        try:
            links = await links_of(wires[TOXIPROXY])
        except FaultError as error:
            reasons[TOXIPROXY] = str(error)
    if reasons:
        told = "\n".join(f"  {name}: {reasons[name]}" for name in (*target.logins, TOXIPROXY) if name in reasons)
        raise AttachError(f"{target.path}: {target.name} cannot be attached:\n{told}")
    estate = merged(target, {name: found[name] for name in target.logins})
    return with_links(estate, links) if TOXIPROXY in wires else estate


def with_links(estate: Estate, links: Mapping[str, Link]) -> Estate:
    """Each host with the proxies that lead to it; a note says which these are, and which lead elsewhere."""
    hosts, known = {}, set[str]()
    for name, host in estate.hosts.items():
        to = {proxy: link for proxy, link in links.items() if link.leads_to(name, host.address)}
        hosts[name] = replace(host, links=to)
        known |= set(to)
    rest = [name for name in links if name not in known]
    lead = "leads" if len(known) < 2 else "lead"
    note = f"{TOXIPROXY}: {', '.join(sorted(known)) or 'no proxy'} {lead} to its hosts"
    note += f"; elsewhere: {', '.join(rest)}" if rest else ""
    return replace(estate, hosts=hosts, notes=(*estate.notes, note))


async def unanswered(estate: Estate, wires: Mapping[str, Wire]) -> dict[str, str]:
    """By `HOST/SERVICE`, the agents whose own API does not answer, and why."""
    found: dict[str, str] = {}

    async def ask(host: str, service: str, url: str) -> None:
        try:
            health = attachables([service])[service].health
            await wires[service].request("GET", health, url=url, timeout_s=_TELLS_WITHIN_S)
        except UnansweredError as error:
            found[f"{host}/{service}"] = str(error)

    agents = [(host.name, service, url) for host in estate.hosts.values() for service, url in host.urls.items()]
    await all_at_once(partial(ask, *agent) for agent in agents)
    return {name: found[name] for name in sorted(found)}


def merged(target: AttachTarget, found: Mapping[str, Found]) -> Estate:
    """One estate of what each product found. Raises AttachError for two hosts that cannot be told apart."""
    hosts: dict[str, FoundHost] = {}
    names: dict[str, dict[str, str]] = {}
    for service, one in sorted(found.items(), key=lambda item: list(registry.services()).index(item[0])):
        names[service] = {}
        for node in one.nodes:
            host = next((each for each in hosts.values() if each.address == node.address), None)
            if host is not None and service in host.roles:
                raise AttachError(
                    f"{target.path}: {service}: {node.name} and {host.name} both have the address {node.address};"
                    " agents that share one cannot be told apart"
                )
            if host is None and node.name in hosts:
                other = hosts[node.name]
                raise AttachError(
                    f"{target.path}: {node.name} is {other.address} to {', '.join(other.roles)} and {node.address} to"
                    f" {service}; hosts are told apart by their addresses, so this name would mean two of them"
                )
            host = host or FoundHost(node.name, node.address)
            names[service][node.name] = host.name
            login = target.logins[service]
            url = login.agents.get(node.name) or node.url or login.url_of(node.name, node.address)
            hosts[host.name] = FoundHost(
                host.name,
                host.address,
                {**host.roles, service: node.role},
                {**host.urls, service: url},
                {**host.meta, **{f"{service}.{key}": value for key, value in node.meta.items()}},
            )
    _check_named(target, names)
    return Estate(
        target.name,
        hosts,
        versions={service: one.version for service, one in found.items()},
        leaders={service: names[service].get(one.leader, "") for service, one in found.items()},
        voters={s: tuple(names[s][v] for v in one.voters if v in names[s]) for s, one in found.items()},
        datacenters={service: one.datacenter for service, one in found.items()},
        specs={service: dict(attachables([service])[service].spec(one)) for service, one in found.items()},
        notes=tuple(f"{service}: {note}" for service, one in found.items() for note in one.notes),
    )


def _check_named(target: AttachTarget, names: Mapping[str, Mapping[str, str]]) -> None:
    """Raises AttachError where `agents` names a host that the product does not know: a mistake would go unseen.

    Not while a fault is taken back: it may be what took that host out of the membership.
    """
    for service, login in target.logins.items():
        unknown = sorted(set(login.agents) - set(names[service]))
        if unknown and not target.undoing:
            known = ", ".join(sorted(names[service]))
            raise AttachError(
                f"{target.path}: datacenter.{service}.agents: there is no {unknown[0]!r}; {service} knows {known}"
            )
