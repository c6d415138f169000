"""The link of each host of a game: a separate network namespace between the host and the bridge.

A toxiproxy on the host would give that host away: only there, `ss -tn` would show its connections. So it runs on
the wire. Every host of every game has a wire: packets are routed through its network namespace, which no shell of a
trainee enters. There, a proxy takes a slow link's connections; each end sees the other end's address:

    consul-2  --  wire of consul-1: 10.74.0.12 (a proxy for clients at .12)  --  consul-1 sees 10.73.0.12

    10.73.1.N   the wire of 10.73.0.N: toxiproxy's API; only the sandbox's own namespace has a route to it
    10.74.0.P   where its proxies listen for clients at 10.73.0.P
    10.75.0.P   where these proxies connect to: the host, which sees 10.73.0.P
"""

import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from hashidrill.core.errors import DatacenterError, FaultError
from hashidrill.core.faults import toxiproxy
from hashidrill.core.faults.links import BASELINE, FIRST_PORT, PORT_TRIPLES, Ports
from hashidrill.core.protocols.abc import AgentProcess, Barrier, Exchange, ExchangeRequest, Toxic
from hashidrill.core.protocols.packets import Chain, PacketRule, Redirect, Statement, Word
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.redaction import without_secrets
from hashidrill.lab.local.datacenter import BRIDGE
from hashidrill.lab.local.hosts import LocalHost, ask
from hashidrill.lab.sandbox import cgroups
from hashidrill.products.consul.faults.rpc import CANARY_PORT

TABLE = "wire"
_LINK_SCOPE, _LOCAL_TABLE, _HOST_SCOPE = 253, 255, 254
_RTM_SETNEIGHTBL, _REQUEST_ACK, _NESTED = 67, 5, 0x8000
_NAME, _PARAMS, _INDEX, _PROXY_DELAY = 1, 6, 1, 13
"""Attributes of linux/neighbour.h."""


def of_wire(address: str) -> str:
    """The address of the wire of the host with that address."""
    return address.replace("10.73.0.", "10.73.1.")


def _listening(address: str) -> str:
    return address.replace("10.73.0.", "10.74.0.")


def _leading(address: str) -> str:
    return address.replace("10.73.0.", "10.75.0.")


def base_rules(address: str, others: Sequence[str]) -> list[Statement]:
    """Connections of a proxy arrive at the host from the address that the proxy represents."""
    leaving = Chain("postrouting", "nat", "postrouting", 100)
    return [
        (Chain("output", "nat", "output", -100), [("to", "10.75.0.0/24"), ("dnat", address)]),
        *((leaving, [("first to", _leading(other)), ("snat", other)]) for other in others),
    ]


def on_the_wire(chain: Chain, words: Sequence[Word], others: Sequence[str]) -> list[Statement]:
    """A host's nftables statement, rewritten for the router that forwards packets to the host."""
    chain = forwarded(chain)
    match words:
        case [("saddr", addresses), *conditions, ("redirect", port)]:
            pass
        case [("saddr", addresses), *conditions, ("redirect", port), ("comment", _) as comment]:
            conditions = [*conditions, comment]
        case _:
            return [(chain, words)]
    return [
        (chain, [("saddr", (other,)), *conditions, ("dnat", _listening(other), port)])
        for other in others
        if other in addresses
    ]


def forwarded(chain: Chain) -> Chain:
    return replace(chain, hook="forward") if chain.hook == "input" else chain


class Wire(LocalHost):
    """The wire in front of that host. `others`: the hosts that may use it."""

    def __init__(
        self, host: LocalHost, others: Sequence[str], *, namespace: str, root: Path, program: Path | None
    ) -> None:
        super().__init__(host.name, of_wire(host.address), {}, root, 0, toxiproxy=program)
        self._host, self._others, self._namespace = host.address, others, namespace
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def namespace(self) -> str:
        return self._namespace

    async def _put(self, table: str, chains: Sequence[Chain], statements: Sequence[Statement]) -> None:
        there = [each for chain, words in statements for each in on_the_wire(chain, words, self._others)]
        await super()._put(table, [forwarded(chain) for chain in chains], there)

    async def _suspend(self, table: str, redirecting: Chain, blocking: Chain) -> None:
        await super()._suspend(table, redirecting, forwarded(blocking))

    async def _connect_proxies(self) -> None:
        """Adds the base rules at the first call; later calls do nothing. Raises FaultError."""
        if TABLE in await super().packet_tables():
            return
        statements = base_rules(self._host, self._others)
        await super()._put(TABLE, list(dict.fromkeys(chain for chain, _ in statements)), statements)

    async def packet_tables(self) -> Sequence[str]:
        return [name for name in await super().packet_tables() if name != TABLE]

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        await self._start_toxiproxy()
        await self._connect_proxies()
        try:
            for other in self._others:
                ends = f"{_listening(other)}:{listen}", f"{_leading(other)}:{port}"
                await toxiproxy.create(self.address, f"{name}@{other}", *ends, toxics)
        except httpx2.HTTPError as error:
            raise FaultError(f"{self.name}: toxiproxy refused the proxy {name}: {toxiproxy.said(error)}") from None

    async def remove_proxy(self, name: str) -> None:
        for other in self._others:
            await super().remove_proxy(f"{name}@{other}")

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        """The toxics of each proxy of that link; None if the proxies differ."""
        held = [await super(Wire, self).proxy_toxics(f"{name}@{other}") for other in self._others]
        return held[0] if all(each == held[0] for each in held) else None

    async def spawn_agent(
        self, agent: str, argv: Sequence[str], environment: Mapping[str, str], *, as_root: bool = True
    ) -> None:
        """Starts the wire's toxiproxy, unless it runs."""
        assert (agent, as_root) == (toxiproxy.AGENT, True)
        if await self.agent_process(agent) is None:
            self._process = self._start(argv, environment)

    def _start(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.logs / f"{toxiproxy.AGENT}.log").open("ab") as log:
            given = {**without_secrets(os.environ), **environment}
            return sc.in_network(
                self.namespace,
                lambda: subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=given),
            )

    async def agent_process(self, agent: str) -> AgentProcess | None:
        process = self._process if agent == toxiproxy.AGENT else None
        if process is None or process.poll() is not None or (state := sc.process_state(process.pid)) is None:
            return None
        return AgentProcess(process.pid, state[1], state[0])


def lay(hosts: Mapping[str, int], addresses: Mapping[str, str]) -> dict[str, str]:
    """Creates the wires; returns the path of each host's wire namespace, which lives as long as this process. `hosts`
    maps a host's name to the pid of its hostd.

    `network.build` must have connected the hosts to the bridge; no host may send yet. Raises DatacenterError.
    """

    def work() -> dict[str, str]:
        laid = _lay([(name, addresses[name]) for name in hosts])
        for pid in hosts.values():
            _forget_ended_connections(pid)
        return laid

    try:
        return sc.in_own_thread(work)
    except Exception as error:
        raise DatacenterError(f"the wires of the game's hosts could not be created: {error}") from error


def _lay(hosts: Sequence[tuple[str, str]]) -> dict[str, str]:
    from pyroute2 import IPRoute  # noqa: PLC0415 - see network.build

    laid = {}
    with IPRoute() as outside:
        bridge = outside.link_lookup(ifname=BRIDGE)[0]
        for number, (name, address) in enumerate(hosts):
            sc.unshare(sc.CLONE_NEWNET)
            fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            outside.link("add", ifname=f"wire{number}", kind="veth", peer={"ifname": "up", "net_ns_fd": fd})
            outside.link("set", index=outside.link_lookup(ifname=f"wire{number}")[0], master=bridge, state="up")
            outside.link("set", index=outside.link_lookup(ifname=f"veth{number}")[0], net_ns_fd=fd, ifname="down")
            with IPRoute() as inside:
                _configure(inside, address)
            laid[name] = f"/proc/{os.getpid()}/fd/{fd}"
        outside.route("add", dst="10.73.1.0/24", oif=bridge, scope=_LINK_SCOPE)
    return laid


def _configure(inside: Any, address: str) -> None:
    for what in ("forwarding", "proxy_arp"):
        Path(f"/proc/sys/net/ipv4/conf/all/{what}").write_text("1")
    up, down = (inside.link_lookup(ifname=name)[0] for name in ("up", "down"))
    own = of_wire(address)
    for index in (1, up, down):
        inside.link("set", index=index, state="up")
    for index in (up, down):
        _answer_at_once(index)
    inside.addr("add", index=up, address=own, prefixlen=32)
    for to, end in (("10.73.0.0/24", up), (f"{address}/32", down), ("10.75.0.0/24", down)):
        inside.route("add", dst=to, oif=end, scope=_LINK_SCOPE, prefsrc=own)
    inside.route("add", dst="10.74.0.0/24", oif=1, type="local", table=_LOCAL_TABLE, scope=_HOST_SCOPE)


def _forget_ended_connections(pid: int) -> None:
    """Makes that host forget ended connections at once: otherwise `ss -tan` shows for a minute which address tested the
    links, and so which host has the slow one.
    """
    sc.in_network(f"/proc/{pid}/ns/net", lambda: Path("/proc/sys/net/ipv4/tcp_max_tw_buckets").write_text("0"))


def _answer_at_once(index: int) -> None:
    """Removes the interface's ARP delay, which costs callers up to 0.8 s. Older user namespaces lack its file."""

    def attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)

    delay = attribute(_INDEX, struct.pack("=I", index)) + attribute(_PROXY_DELAY, struct.pack("=Q", 0))
    body = struct.pack("=Bxxx", socket.AF_INET) + attribute(_NAME, b"arp_cache\0") + attribute(_PARAMS | _NESTED, delay)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.bind((0, 0))
        netlink.send(struct.pack("=IHHII", 16 + len(body), _RTM_SETNEIGHTBL, _REQUEST_ACK, 1, 0) + body)
        refused: int = -struct.unpack("=i", netlink.recv(4096)[16:20])[0]
    if refused:
        raise OSError(refused, os.strerror(refused))


MOST_LINKS = 2
"""The number of slow links of one host that stay hidden. More links work too, but become visible."""
_BASE = FIRST_PORT
_CANARIES = range(FIRST_PORT + 2, FIRST_PORT + 3 * PORT_TRIPLES, 3)
_NO_LINK = Ports.of(BASELINE)
LISTENED = (CANARY_PORT, _BASE, *(_BASE + 1 + link for link in range(MOST_LINKS)))


@dataclass
class Slots:
    """Maps a fault's canary port to one of the ports that all games use, on the host with that address."""

    _links: dict[str, dict[int, int]] = field(default_factory=dict)

    def of(self, address: str, port: int) -> int:
        """The port to use; a port that is not a canary's stays unchanged."""
        if port not in _CANARIES:
            return port
        if port == _NO_LINK.canary:
            return _BASE
        links = self._links.setdefault(address, {})
        return _BASE + 1 + links.setdefault(port, len(links))


class GameHost(LocalHost):
    """A host that looks like all other hosts of the game."""

    def __init__(self, name: str, address: str, roles: Any, root: Path, pid: int, **more: Any) -> None:
        super().__init__(name, address, roles, root, pid, **more)
        self.slots = Slots()
        """GameDatacenter sets one object for all of its hosts."""
        self.wire: Wire | None = None

    async def look_alike(self) -> None:
        """Opens the ports on which every host of every game listens."""
        for port in LISTENED:
            await super().canary_listen(port)

    async def join_cgroup(self) -> None:
        """Moves the host's processes into a separate cgroup, if allowed, because a shell can see its cgroup."""
        if (group := cgroups.make(f"{self._root.name}/{self.name}")) is not None:
            await ask(self._hostd, {"op": "join", "files": group.procs_files()})

    # on its wire

    def _the_wire(self) -> Wire:
        assert self.wire is not None, "the game's datacenter creates the wire before any fault starts"
        return self.wire

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        await self._the_wire().add_proxy(name, listen, self.slots.of(self.address, port), toxics)

    async def remove_proxy(self, name: str) -> None:
        await self._the_wire().remove_proxy(name)

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        return await self._the_wire().proxy_toxics(name)

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        """Applies the rules that slow a link to the wire, and all other rules to the host."""
        if any(isinstance(rule, Redirect) for rule in rules):
            await self._the_wire().set_packet_rules(table, [self._here(rule) for rule in rules])
        else:
            await super().set_packet_rules(table, rules)

    async def suspend_packet_rules(self, table: str) -> None:
        if table in await self._the_wire().packet_tables():
            await self._the_wire().suspend_packet_rules(table)
        else:
            await super().suspend_packet_rules(table)

    async def clear_packet_rules(self, table: str) -> None:
        await self._the_wire().clear_packet_rules(table)
        await super().clear_packet_rules(table)

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        return {**await super().packet_counts(table), **await self._the_wire().packet_counts(table)}

    async def packet_tables(self) -> Sequence[str]:
        return [*await super().packet_tables(), *await self._the_wire().packet_tables()]

    async def packet_barriers(self) -> Sequence[Barrier]:
        return [*await super().packet_barriers(), *await self._the_wire().packet_barriers()]

    def _here(self, rule: PacketRule) -> PacketRule:
        return replace(rule, port=self.slots.of(self.address, rule.port)) if isinstance(rule, Redirect) else rule

    # observing

    async def canary_listen(self, port: int) -> None:
        await super().canary_listen(self.slots.of(self.address, port))

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]:
        return await super().exchange(address, self.slots.of(address, port), request)
