"""Discovers an attached datacenter's hosts, agents and leaders, by reading only.

A host is one machine for several products: agents at the same address. The host's name comes from the first product
(Consul, if Consul knows the host).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio

from hashidrill.core.errors import AttachError, FaultError, HashidrillError
from hashidrill.core.protocols import registry
from hashidrill.core.util.wait import all_at_once, pause
from hashidrill.staging.attach.http import LeaderlessError, UnansweredError, Wire
from hashidrill.staging.attach.links import TOXIPROXY, Link, links_of
from hashidrill.staging.attach.product import Found, attachables
from hashidrill.staging.attach.target import PODS_PLACE, AttachTarget, shown

_TELLS_WITHIN_S = 5.0
_ELECTS_WITHIN_S = 30.0
"""How long `heal` waits for a leader: it often starts right after a runner died, whose fault is still in force."""


@dataclass(frozen=True)
class FoundHost:
    """One host; `roles` and `urls` are by the service of its agents."""

    name: str
    address: str
    roles: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    """Meta data from all products: interlocks search it for production."""
    links: Mapping[str, Link] = field(default_factory=dict)
    """The proxies of the estate's toxiproxy that lead to this host, by name."""


@dataclass(frozen=True)
class Estate:
    """A discovered datacenter."""

    name: str
    hosts: Mapping[str, FoundHost]
    versions: Mapping[str, str] = field(default_factory=dict)
    leaders: Mapping[str, str] = field(default_factory=dict)
    """The leading host of each service; "" without a leader."""
    voters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    datacenters: Mapping[str, str] = field(default_factory=dict)
    """The name that each product gives its datacenter."""
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Each service's part of `datacenter:`."""
    notes: Sequence[str] = ()

    @property
    def services(self) -> list[str]:
        return list(self.specs)

    def having(self, service: str, role: str = "") -> list[FoundHost]:
        """The hosts with an agent of that service, in that role or in any."""
        return [h for h in self.hosts.values() if service in h.roles and role in ("", h.roles[service])]

    def as_datacenter(self) -> dict[str, Any]:
        """The value that replaces an experiment's `datacenter:` (hashidrill.core.experiment.attached)."""
        hosts = {name: {"address": one.address, "agents": dict(one.roles)} for name, one in self.hosts.items()}
        return {"attached": {"name": self.name, "hosts": hosts}, **{name: dict(s) for name, s in self.specs.items()}}

    def to_data(self) -> dict[str, Any]:
        """Plain data, without secrets."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Estate:
        hosts = {
            name: FoundHost(**{**one, "links": {proxy: Link(**link) for proxy, link in one["links"].items()}})
            for name, one in data["hosts"].items()
        }
        return cls(**{**data, "hosts": hosts})


async def discover(target: AttachTarget, wires: Mapping[str, Wire]) -> Estate:
    """Asks each product for its hosts. Raises AttachError with every reason for a failure."""
    found: dict[str, Found] = {}
    reasons: dict[str, str] = {}

    async def ask(name: str) -> None:
        gives_up_s = anyio.current_time() + (_ELECTS_WITHIN_S if target.undoing else 0.0)
        while name not in found | reasons:
            try:
                found[name] = await attachables([name])[name].discover(wires[name])
            except HashidrillError as error:
                if not isinstance(error, LeaderlessError) or anyio.current_time() >= gives_up_s:
                    reasons[name] = str(error)
                else:
                    await pause(1.0)

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
    """Adds to each host the proxies that lead to it; a note lists these proxies and all others."""
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
    """The agents whose own API does not answer, by `HOST/SERVICE`, each with the reason."""
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
    """One estate from all products' discoveries. Raises AttachError if two hosts cannot be distinguished."""
    hosts: dict[str, FoundHost] = {}
    names: dict[str, dict[str, str]] = {}
    for service, one in sorted(found.items(), key=lambda item: list(registry.services()).index(item[0])):
        names[service] = {}
        for node in one.nodes:
            host = next((each for each in hosts.values() if each.address == node.address), None)
            if host is not None and service in host.roles:
                raise AttachError(
                    f"{target.path}: {service}: {node.name} and {host.name} both have the address {node.address};"
                    " agents that share an address cannot be told apart"
                )
            if host is None and node.name in hosts:
                other = hosts[node.name]
                raise AttachError(
                    f"{target.path}: {node.name} is {other.address} in {', '.join(other.roles)} and {node.address} in"
                    f" {service}; an address identifies a host, so this name would mean two hosts"
                )
            host = host or FoundHost(node.name, node.address)
            names[service][node.name] = host.name
            login = target.logins[service]
            said = login.said_url_of(node.name, node.address)
            url = said or node.url or login.url_of(node.name, node.address)
            hosts[host.name] = FoundHost(
                host.name,
                host.address,
                {**host.roles, service: node.role},
                {**host.urls, service: url},
                {**host.meta, **{f"{service}.{key}": value for key, value in node.meta.items()}},
            )
    _check_named(target, names)
    forwarded = {s: one for s, one in target.kubernetes.get("unrouted", {}).items() if target.logins[s].forwards}
    return Estate(
        target.name,
        hosts,
        versions={service: one.version for service, one in found.items()},
        leaders={service: names[service].get(one.leader, "") for service, one in found.items()},
        voters={s: tuple(names[s][v] for v in one.voters if v in names[s]) for s, one in found.items()},
        datacenters={service: one.datacenter for service, one in found.items()},
        specs={service: dict(attachables([service])[service].spec(one)) for service, one in found.items()},
        notes=(
            *(f"{service}: {note}" for service, one in found.items() for note in one.notes),
            *(f"{service}: forwarded through the API server: {one['why']}" for service, one in forwarded.items()),
        ),
    )


def _check_named(target: AttachTarget, names: Mapping[str, Mapping[str, str]]) -> None:
    """Raises AttachError if `agents` names an unknown host, because a mistake would otherwise go unnoticed.

    While faults are being reverted it allows unknown hosts: the fault may have removed the host from the membership.
    """
    for service, login in target.logins.items():
        unknown = sorted(set(login.agents) - set(names[service]))
        if unknown and not target.undoing:
            known = ", ".join(sorted(names[service]))
            raise AttachError(
                f"{target.path}: datacenter.{service}.agents: there is no {unknown[0]!r}; {service} knows {known}"
            )


def place_of(target: AttachTarget) -> str:
    """Where the pods are, like `namespace consul of context staging`."""
    context, namespace = target.kubernetes.get("context"), target.kubernetes.get("namespace")
    return f"namespace {namespace} of {f'context {context}' if context else 'our own cluster'}"


def troubles(target: AttachTarget, estate: Estate) -> list[str]:
    """Why no run may begin with these pods: some are not ready, or two clusters are mixed."""
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = target.kubernetes.get("found", {})
    told = []
    for product, roles in found.items():
        told += [
            f"{PODS_PLACE}.{product}: {text}" for text in (*_unready(target, roles), *_mixed(target, estate, product))
        ]
    return told


def _unready(target: AttachTarget, roles: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    pods = {name: pod for of_role in roles.values() for name, pod in of_role.items()}
    if bad := [f"{name} ({pod['phase']})" for name, pod in sorted(pods.items()) if not pod["ready"]]:
        are = "is" if len(bad) == 1 else "are"
        yield (
            f"{len(bad)} of its {len(pods)} pods {are} not ready: {', '.join(bad)}; a drill must begin with healthy "
            f"agents: wait, or find out why in {place_of(target)}"
        )


def _mixed(target: AttachTarget, estate: Estate, product: str) -> Iterator[str]:
    """Compares a product's list of servers with its pods. Clients may be machines that join servers in pods."""
    pods = target.kubernetes["found"][product].get("server", {})
    labels = shown(target.kubernetes["pods"][product]["server"])
    servers, where = estate.having(product, "server"), place_of(target)
    url = target.logins[product].address
    lost = [host for host in servers if not _pod_of(host, pods)]
    back = [host for host in lost if host.name in pods] if len(lost) < len(servers) else []
    if back:
        which = ", ".join(f"{one.name} at {one.address}, but its pod is at {pods[one.name]['address']}" for one in back)
        yield f"at {url} it still lists {which}: a pod came back; agents learn its address within minutes: wait"
    if others := [f"{host.name} ({host.address})" for host in lost if host not in back]:
        yield (
            f"at {url} it has the servers {', '.join(others)}, which are not pods with {labels} in {where}: two"
            " clusters are mixed; set `address`, `context` and `namespace` to the same cluster"
        )
    known = {_pod_of(host, pods) for host in servers} | {host.name for host in back}
    if strangers := sorted({*pods} - known):
        yield (
            f"at {url} it does not know {', '.join(strangers)}, which have {labels} in {where}: either they left or"
            " failed, and have not joined again: wait some minutes; or two clusters are mixed: write labels under"
            " `servers` that only one cluster has, like that of its release"
        )


def _pod_of(host: FoundHost, pods: Mapping[str, Any]) -> str:
    """The host's pod, found by its address, or by the first part of a name (`vault-0.vault-internal`); "" for none."""
    at = [name for name, pod in pods.items() if pod["address"] == host.address]
    try:
        ipaddress.ip_address(host.address)
    except ValueError:
        at = at or [name for name in pods if name == host.address.partition(".")[0]]
    return at[0] if at else ""


class PodNow(NamedTuple):
    """The pod that replaced a known one; its name is different if a DaemonSet made it."""

    name: str
    address: str


LookAtPods = Callable[[], Awaitable[Mapping[str, PodNow]]]
"""Returns, by the name of each known pod, the pod that has its place now. Raises AttachError."""
_EVERY_S = 1.0
_MISSED_AFTER_S = 30.0
"""A StatefulSet makes a pod of the same name within seconds; a DaemonSet gives it another name."""


def pods_of(target: AttachTarget, estate: Estate) -> dict[str, str]:
    """For each host, the pod that had the host's address at discovery."""
    named = {
        str(pod["address"]): name
        for roles in target.kubernetes.get("found", {}).values()
        for pods in roles.values()
        for name, pod in pods.items()
        if pod["address"]
    }
    return {host.name: named[host.address] for host in estate.hosts.values() if host.address in named}


async def followed(
    look: LookAtPods,
    pods: Mapping[str, str],
    addresses: Mapping[str, str],
    move: Callable[[str, str], bool],
    tell: Callable[[str], None],
    *,
    every_s: float = _EVERY_S,
) -> None:
    """Follows pods that come back at another address, until cancelled. `pods`, `addresses`: by host, read each time.

    `move(host, address)` returns whether requests now go there, not through a forward that follows the pod's name.
    """
    missed: dict[str, float] = {}
    told: set[str] = set()
    while True:
        try:
            there = await look()
        except AttachError as error:
            for text in _once(told, f"pods that come back with another address are not followed: {error}"):
                tell(text)
        else:
            for host, pod in pods.items():
                if pod not in there:
                    if anyio.current_time() - missed.setdefault(host, anyio.current_time()) > _MISSED_AFTER_S:
                        for text in _once(told, f"{host}: the pod {pod} is gone; requests go to its old address"):
                            tell(text)
                    continue
                missed.pop(host, None)
                now = there[pod]
                if now.address != (before := addresses[host]):
                    asked_there = move(host, now.address)
                    then = "and requests go there from now on; loads that have its old address are not moved"
                    then = then if asked_there else "and the forwards to it, including those of loads, lead there"
                    another = "" if now.name == pod else f" as {now.name}"
                    tell(f"{host}: pod {pod} came back{another} at {now.address} (before: {before}), {then}")
        await anyio.sleep(every_s)


def _once(told: set[str], text: str) -> Iterator[str]:
    if text not in told:
        told.add(text)
        yield text


def populate(estate: Estate, *, listen: str, first_port: int) -> list[dict[str, Any]]:
    """Proxies to each agent's API and to the other ports that agents connect to, in the order of the hosts."""
    return [
        {"name": name, "listen": f"{listen}:{first_port + number}", "upstream": upstream, "enabled": True}
        for number, (name, upstream) in enumerate(_links(estate))
    ]


def _links(estate: Estate) -> Iterator[tuple[str, str]]:
    for host in estate.hosts.values():
        for service, product in attachables(host.roles).items():
            api = urlsplit(host.urls[service])
            ports = [(api.hostname or host.address, api.port or 80)]
            ports += [(host.address, port) for port in product.ports(host.roles[service])]
            for address, port in ports:
                name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"{host.name}-{service}-{port}")
                yield name, f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
