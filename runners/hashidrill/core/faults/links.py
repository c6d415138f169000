"""Slow, narrow and breaking links: a toxiproxy in front of one TCP port, between hosts.

The target host redirects connections from the other side to its own toxiproxy, which forwards them to the real port:
no configuration changes, and neither side notices. Each fault is one table of packet rules on each host that it
touches:

    prerouting  redirects and counts new connections from the sources to the port
    input       resets all other packets from the sources to the port: connections older than the fault

So the fault need not wait for old connections to end: the next packet from the sources resets each of them, even a
bare acknowledgement. The port's side notices when its next packet is answered with a reset.

The observer is a canary on a host on the other side. It measures its own TCP connection to the target's canary, over
the same link and through a second proxy with the same toxics. It also connects to the port itself: the rule's
counter must count that connection, and the proxy behind the rule must hold the toxics.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults import toxiproxy
from hashidrill.core.faults.base import BaseFault, across_troubles, patient, peers_of, table_of
from hashidrill.core.faults.network import Peers
from hashidrill.core.faults.trials import Sampling, Trial, median, trial_of
from hashidrill.core.protocols.abc import (
    Claim,
    Evidence,
    Exchange,
    Observer,
    Place,
    Requires,
    Target,
    Toxic,
    Trouble,
    Undo,
)
from hashidrill.core.protocols.capabilities import ECHO_PORT, EstateLinks, NetworkCanary, PacketFilter, Proxies
from hashidrill.core.protocols.claims import (
    CANARY_LINKS,
    CANARY_TIMES,
    EVERYWHERE,
    HOST,
    ON_CONNECTIONS,
    connections,
    needs,
    takes,
)
from hashidrill.core.protocols.packets import Block, PacketRule, Redirect
from hashidrill.core.util.wait import all_at_once

PROVABLE = frozenset({"latency", "timeout", "reset_peer"})
"""The types of toxics that a connection to a foreign agent can prove."""
BY_PROXY: frozenset[type[Any]] = frozenset({EstateLinks})
"""The capability that a host needs for a fault through the datacenter's own proxies."""
BY_PROXY_OBSERVER = Observer(
    "hashidrill's own connections through the same proxies to the agent behind them",
    "the proxies; toxiproxy's API confirms the toxics",
)


@dataclass(frozen=True)
class ByProxy:
    """One link fault, on a host that has EstateLinks."""

    kind: str
    port: int
    toxics: Sequence[Toxic]
    hosts: Any

    def _links(self, host: str) -> EstateLinks:
        links: EstateLinks = self.hosts.host(host).use(EstateLinks)
        return links

    def plan(self, target: Target, fault_id: str) -> Undo:
        """Raises SelectorError if no proxy leads to the port."""
        links = self._links(target.host)
        proxies = list(links.proxies_to(self.port))
        if not proxies:
            raise SelectorError(
                f"{self.kind} on {target.host}: no proxy of the toxiproxy leads to its port {self.port}; `hashidrill"
                " staging proxies --attach FILE` writes some"
            )
        if not links.provable(self.port):
            raise SelectorError(
                f"{self.kind} on {target.host}: hashidrill does not know what the agent on port {self.port} answers, so"
                " the fault could not be proven; name the port of an agent's API"
            )
        return {"proxies": proxies, "toxics": list(links.toxic_names(fault_id, len(self.toxics)))}

    async def apply(self, undo: Undo) -> None:
        links = self._links(undo["host"])
        await all_at_once(partial(links.add_toxics, proxy, undo["toxics"], self.toxics) for proxy in undo["proxies"])

    async def revert(self, undo: Undo) -> None:
        links = self._links(undo["host"])
        await all_at_once(partial(links.remove_toxics, proxy, undo["toxics"]) for proxy in undo["proxies"])

    async def prior(self, undo: Undo, sampling: Sampling) -> Mapping[str, Any]:
        """Raises FaultError if the links already behave in a way that would hide the toxics."""
        baseline: dict[str, Any] = {}
        for proxy, exchanges in (await self._through(undo, sampling)).items():
            if sampling.counts(sampling.near(exchanges)) is None:
                raise FaultError(f"the proxy {proxy}: {sampling.refused(exchanges)}")
            baseline[proxy] = {"struck": sampling.struck(exchanges), "typical_s": median(exchanges).seconds}
        return {"baseline": baseline, "exchanges": sampling.exchanges}

    async def verify(self, undo: Undo, sampling: Sampling, *, present: bool) -> Evidence:
        links = self._links(undo["host"])
        seen = await self._through(undo, sampling)
        held = {proxy: len(await links.held_toxics(proxy, undo["toxics"])) for proxy in undo["proxies"]}
        judge = _shown if present else _free
        wrong = [
            proxy
            for proxy in seen
            if not judge(sampling, _before(undo, proxy), seen[proxy]) or bool(held[proxy]) is not present
        ]
        told = (wrong or list(seen))[0]
        trial, of_them = sampling.trial, _typical(sampling, seen[told], present=present)
        figures: dict[str, float | str] = {"links": len(seen), "proxy": told}
        figures |= _figures(sampling, of_them, _before(undo, told))
        return Evidence(
            not wrong,
            f"{trial.asked} through {', '.join(undo['proxies'])}"
            if present
            else "no sign of it, and none of this fault's toxics",
            f"{trial.measured(of_them)} through {told}, toxics in {sum(map(bool, held.values()))} of {len(held)}",
            figures,
        )

    async def _through(self, undo: Undo, sampling: Sampling) -> dict[str, Sequence[Exchange]]:
        links = self._links(undo["host"])
        found: dict[str, Sequence[Exchange]] = {}

        async def look(proxy: str) -> None:
            found[proxy] = await links.exchange_through(proxy, sampling.request)

        await all_at_once(partial(look, proxy) for proxy in undo["proxies"])
        return {proxy: found[proxy] for proxy in undo["proxies"]}


def _before(undo: Undo, of: str) -> Mapping[str, Any]:
    """The baseline of a proxy or a link."""
    found: Mapping[str, Any] = undo.get("prior", {}).get("baseline", {}).get(of, {})
    return found


def _typical(sampling: Sampling, exchanges: Sequence[Exchange], *, present: bool) -> Exchange:
    hits = sampling.hits(exchanges)
    return median(hits if hits and present else exchanges)


def _figures(sampling: Sampling, typical: Exchange, before: Mapping[str, Any]) -> dict[str, float | str]:
    trial = sampling.trial
    found: dict[str, float | str] = {"exchanges": sampling.exchanges}
    if trial.unit and sampling.toxicity == 1:
        found |= {f"asked_{trial.unit}": trial.asked_figure, f"measured_{trial.unit}": trial.figure(typical)}
        found["own_s"] = before.get("typical_s", 0.0)
    return found


def _shown(sampling: Sampling, before: Mapping[str, Any], exchanges: Sequence[Exchange]) -> bool:
    """Whether enough exchanges were hit, and the median is as requested."""
    needed, hits = sampling.counts(before.get("struck", 0)), sampling.hits(exchanges)
    shown = needed is not None and needed.shows(len(hits))
    return shown and sampling.trial.fits(median(hits), 2 * before.get("typical_s", 0.0))


def _free(sampling: Sampling, before: Mapping[str, Any], exchanges: Sequence[Exchange]) -> bool:
    needed = sampling.counts(before.get("struck", 0))
    return needed is not None and needed.is_free(sampling.struck(exchanges))


FIRST_PORT, PORT_TRIPLES = 22_000, 3_000
BASELINE = "baseline"
"""Stands for a fault id in a look at an unchanged link."""
_CONNECT_S = 0.3
_COMMENT = "link"


class LinkParams(Strict):
    """The connections affected: those that other hosts open to the target's port (`in`), or those that the target opens
    to that port of other hosts (`out`).
    """

    port: int = Field(ge=1, le=65535)
    """TCP: 8300 is Consul's server RPC and Raft, 8500 its HTTP API."""
    from_: Peers = Field(default="all", alias="from")
    """`all`, `servers`, `clients`, `host:NAME` or `consul:servers`: the other side."""
    direction: Literal["in", "out", "both"] = "in"
    """Which connections: `in` to the target's port, `out` to that port of other hosts, or `both`."""

    @field_validator("port")
    @classmethod
    def _not_ours(cls, value: int) -> int:
        ours = range(FIRST_PORT, FIRST_PORT + 3 * PORT_TRIPLES)
        if value in (ECHO_PORT, toxiproxy.API_PORT) or value in ours:
            raise ValueError(f"hashidrill uses port {value} for its own proxies and measurements; name another")
        return value


@dataclass(frozen=True)
class Ports:
    """The ports of one fault on which its proxies and canaries listen, derived from the fault id."""

    proxy: int
    canary_proxy: int
    canary: int

    @classmethod
    def of(cls, fault_id: str) -> Ports:
        first = FIRST_PORT + 3 * (zlib.crc32(fault_id.encode()) % PORT_TRIPLES)
        return cls(first, first + 1, first + 2)


OBSERVER = Observer(
    "the canary's exchanges through a second proxy, and the packet counter of the port's own rule",
    "toxiproxy; its API confirms the toxics of the port's own proxy",
)


class LinkFault(BaseFault[Any]):
    """A toxic in front of one TCP port."""

    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({NetworkCanary, PacketFilter, Proxies})
    observed_within_s = 20.0

    def requires(self) -> Requires:
        """The alternative is the datacenter's own proxies: a toxic there affects all their users, and not every toxic
        can be proven.
        """
        asked = self.params
        everybody = bool(self.instead) and asked.direction == "in" and asked.from_ == "all"
        fits = everybody and self.toxics()[0].type in PROVABLE
        instead = self.instead if fits else frozenset[type[Any]]()
        return replace(super().requires(), tools=frozenset({"toxiproxy"}), instead=instead)

    def _by_proxy(self, host: str) -> ByProxy | None:
        """None if the host puts a toxiproxy in front of its own port."""
        if not self.requires().other_way(self.hosts.host(host)):
            return None
        vars(self)["observer"] = BY_PROXY_OBSERVER  # for this fault only: its kind has another observer
        return ByProxy(self.kind, self.params.port, self.toxics(), self.hosts)

    def uses(self, place: Place) -> Sequence[Claim]:
        """Only one rule can redirect a connection: the first one hides the others."""
        return (
            needs(HOST),
            takes(connections(self.params.port), where=place.connections(self.params.direction), meets=ON_CONNECTIONS),
            needs(CANARY_LINKS, where=EVERYWHERE),
            needs(CANARY_TIMES, where=place.hosts | place.across(self.params.from_)),
        )

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from across_troubles(place, self.params.from_)
        if self.params.direction == "both" and place.most > 1:
            text = "in both directions on several hosts would redirect a connection between two of them twice"
            yield ("with", "direction"), f"{self.kind} on {place.on} {text}; write direction: in or out"

    def toxics(self) -> Sequence[Toxic]:
        """All toxics have the same type, so that one trial proves them."""
        raise AssertionError

    def trial(self) -> Trial:
        return trial_of(self.toxics())

    def plan(self, target: Target, *, fault_id: str) -> Undo:
        undo = {**super().plan(target, fault_id=fault_id), "table": table_of(fault_id)}
        way = self._by_proxy(target.host)
        return undo if way is None else {**undo, **way.plan(target, fault_id)}

    def plan_more(self, target: Target) -> dict[str, Any]:
        """`sites`: each host that redirects, the addresses that it redirects, and the hosts that own them."""
        if self._by_proxy(target.host) is not None:
            return {}
        peers = peers_of(self.hosts, target, self.params.from_)
        loads = list(self.hosts.load_addresses()) if self.params.from_ in {"all", "clients"} else []
        sites = []
        if self.params.direction in ("in", "both"):
            addresses = [*(peer.address for peer in peers), *loads]
            if addresses:
                site = {"host": target.host, "address": target.address, "from": [peer.name for peer in peers]}
                sites.append({**site, "addresses": addresses})
        if self.params.direction in ("out", "both"):
            sites += [
                {"host": peer.name, "address": peer.address, "from": [target.host], "addresses": [target.address]}
                for peer in peers
            ]
        if not peers:
            raise SelectorError(
                f"{self.kind} on {target.host}: from {self.params.from_} names no other host; name one that connects"
            )
        return {"sites": sites}

    # injecting

    async def apply(self, undo: Undo) -> None:
        if (way := self._by_proxy(undo["host"])) is not None:
            await way.apply(undo)
            return
        await all_at_once(partial(self._interpose, undo, site) for site in undo["sites"])

    async def _interpose(self, undo: Undo, site: Undo) -> None:
        """Starts the proxies with their toxics before it adds the rules: no connection reaches an unready proxy."""
        host, ports, table = self.hosts.host(site["host"]), Ports.of(undo["fault_id"]), undo["table"]
        await host.use(Proxies).add_proxy(table, ports.proxy, self.params.port, self.toxics())
        await host.use(Proxies).add_proxy(f"{table}_canary", ports.canary_proxy, ports.canary, self.toxics())
        await host.use(PacketFilter).set_packet_rules(table, self._rules(site, ports))

    def _rules(self, site: Undo, ports: Ports) -> list[PacketRule]:
        sources, port = tuple(site["addresses"]), self.params.port
        return [
            Redirect(sources, port, ports.proxy, _COMMENT),
            Redirect(sources, ports.canary, ports.canary_proxy),
            Block("input", sources, port, refuse=True, resets_pass=True),
        ]

    async def revert(self, undo: Undo) -> None:
        if (way := self._by_proxy(undo["host"])) is not None:
            await way.revert(undo)
            return
        await all_at_once(partial(self._withdraw, undo, site) for site in undo["sites"])

    async def _withdraw(self, undo: Undo, site: Undo) -> None:
        """Removes the rules first, then the proxies, and the table last.

        While the table's chain exists, the resets of the connections that the proxies cut are still translated on
        their way back, so both sides notice them.
        """
        host, table = self.hosts.host(site["host"]), undo["table"]
        await host.use(PacketFilter).suspend_packet_rules(table)
        await host.use(Proxies).remove_proxy(table)
        await host.use(Proxies).remove_proxy(f"{table}_canary")
        await host.use(PacketFilter).clear_packet_rules(table)

    # observing

    @property
    def _sampling(self) -> Sampling:
        return Sampling(self.trial(), self.toxics()[0].toxicity)

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """The baseline: the canaries' exchanges on each link without a proxy.

        Raises FaultError if it could not prove the toxics.
        """
        undo, sampling = self.plan(target, fault_id=BASELINE), self._sampling
        if (way := self._by_proxy(target.host)) is not None:
            return await way.prior(undo, sampling)
        port = Ports.of(undo["fault_id"]).canary
        baseline: dict[str, Any] = {}

        async def look(site: Undo, name: str) -> None:
            there = self.hosts.host(site["host"])
            await there.use(NetworkCanary).canary_listen(port)
            exchanges = await self.hosts.host(name).use(NetworkCanary).exchange(there.address, port, sampling.request)
            if sampling.counts(sampling.near(exchanges)) is None:
                raise FaultError(f"{_link(site, name)}: {sampling.refused(exchanges)}")
            baseline[_link(site, name)] = {"struck": sampling.struck(exchanges), "typical_s": median(exchanges).seconds}

        await all_at_once(partial(look, site, name) for site, name in _pairs(undo))
        return {"baseline": baseline, "exchanges": sampling.exchanges}

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """Looks at all redirected links at once: the canaries' connection, and rule and proxy of the real port."""
        if (way := self._by_proxy(undo["host"])) is not None:
            return await way.verify(undo, self._sampling, present=present)
        pairs = _pairs(undo)
        if not pairs:
            raise FaultError(f"{self.kind} on {undo['host']}: there is no other host to prove it from")
        seen: list[_Seen] = []
        looks = _Looks(self.hosts, self._sampling, self.toxics(), Ports.of(undo["fault_id"]), self.params.port, undo)

        async def look(site: Undo, name: str) -> None:
            seen.append(await looks.at(site, name))

        await all_at_once(partial(look, site, name) for site, name in pairs)
        return looks.evidence(seen, present=present)


def _pairs(undo: Undo) -> list[tuple[Undo, str]]:
    return [(site, name) for site in undo["sites"] for name in site["from"]]


def _link(site: Undo, name: str) -> str:
    return f"{name} to {site['host']}"


@dataclass(frozen=True)
class _Seen:
    """What one link showed: the canaries' exchanges; whether the rule `counted` a connection to the real port; whether
    the proxy behind it `holds` the requested toxics.
    """

    link: str
    exchanges: Sequence[Exchange]
    counted: bool
    holds: bool


@dataclass(frozen=True)
class _Looks:
    """The observer of one fault."""

    hosts: Any
    sampling: Sampling
    toxics: Sequence[Toxic]
    ports: Ports
    port: int
    undo: Undo

    async def at(self, site: Undo, name: str) -> _Seen:
        there, here = self.hosts.host(site["host"]), self.hosts.host(name)
        await there.use(NetworkCanary).canary_listen(self.ports.canary)
        exchanges = await here.use(NetworkCanary).exchange(there.address, self.ports.canary, self.sampling.request)
        table = self.undo["table"]
        before = (await there.use(PacketFilter).packet_counts(table)).get(_COMMENT, 0)
        await here.use(NetworkCanary).connect(there.address, self.port, _CONNECT_S)
        counted = (await there.use(PacketFilter).packet_counts(table)).get(_COMMENT, 0) > before
        held = await there.use(Proxies).proxy_toxics(table)
        return _Seen(_link(site, name), exchanges, counted, held is not None and _same(held, self.toxics))

    def evidence(self, seen: Sequence[_Seen], *, present: bool) -> Evidence:
        sampling, trial = self.sampling, self.sampling.trial
        wrong = [one for one in seen if not (self._shown(one) if present else self._free(one))]
        told = (wrong or seen)[0]  # a link that contradicts the result, if any
        of_them = _typical(sampling, told.exchanges, present=present)
        share = sampling.struck(told.exchanges) / len(told.exchanges)
        figures: dict[str, float | str] = {"links": len(seen)}
        figures |= _figures(sampling, of_them, _before(self.undo, told.link))
        if sampling.toxicity < 1:
            figures |= {"asked_share": sampling.toxicity, "measured_share": share}
        said = trial.measured(of_them) if sampling.toxicity == 1 else f"{share:.1%} of the connections"
        return Evidence(
            not wrong,
            f"{trial.asked}, port {self.port} redirected"
            if present
            else f"no sign of it, port {self.port} not redirected",
            f"{said}, " + _guard(seen),
            figures,
        )

    def _shown(self, one: _Seen) -> bool:
        """Whether the exchanges show the effect, and the port itself is redirected to the same toxics."""
        shown = _shown(self.sampling, _before(self.undo, one.link), one.exchanges)
        return shown and one.counted and one.holds

    def _free(self, one: _Seen) -> bool:
        free = _free(self.sampling, _before(self.undo, one.link), one.exchanges)
        return free and not (one.counted or one.holds)


def _same(held: Sequence[Toxic], asked: Sequence[Toxic]) -> bool:
    """Compares toxics; toxiproxy adds missing attributes as zeros."""

    def plain(toxics: Sequence[Toxic]) -> list[Any]:
        rows = [(t.type, t.stream, t.toxicity, sorted((k, v) for k, v in t.attributes.items() if v)) for t in toxics]
        return sorted(rows)

    return plain(held) == plain(asked)


def _guard(seen: Sequence[_Seen]) -> str:
    counted, holds = sum(one.counted for one in seen), sum(one.holds for one in seen)
    return f"redirected on {counted} of {len(seen)} links, toxics in {holds}"
