"""A datacenter in memory, for tests of faults: its hosts react to faults, and its canaries see the effects.

The fake is not a mock: it does not record calls to compare them. A rule that is set makes the canary slow, a stopped
process does not answer, a dropped packet is lost. So a fault's own observer sees when the fault does the wrong thing.
"""

from __future__ import annotations

import copy
import errno
import math
import random
import signal as signals
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import numpy as np
import numpy.typing as npt

from hashidrill.core.errors import FaultError, SelectorError
from hashidrill.core.loads.clients import Faults
from hashidrill.core.protocols.abc import (
    AgentProcess,
    ApiAnswer,
    Barrier,
    Exchange,
    ExchangeRequest,
    Host,
    Target,
    Timing,
    Toxic,
)
from hashidrill.core.protocols.capabilities import CAPABILITIES, Capable, Connection
from hashidrill.core.protocols.packets import Block, Cut, PacketRule, Redirect
from hashidrill.core.tap.plans import Moment
from hashidrill.products.consul.faults.rpc import RAFT
from hashidrill.testing.consul import FakeConsul

Times: TypeAlias = npt.NDArray[np.float64]


@dataclass
class Noise:
    """Times are seconds. `spread` is the deviation of their logarithm: with 0.5, one in 40 is 2.7 times the typical."""

    disk_s: float = 0.001
    disk_bytes_per_s: float = 2e9
    link_s: float = 0.001
    spread: float = 0.0
    lost: float = 0.0
    """The share of datagrams that are lost."""
    cpus: int = 2
    busy: float = 0.0
    """Other processes use up to this share of each CPU, varying from moment to moment."""

    def disk(self, dice: np.random.Generator, size_bytes: int, times: int) -> Times:
        return self._varied(dice, self.disk_s, times) + size_bytes / self.disk_bytes_per_s

    def link(self, dice: np.random.Generator, times: int) -> Times:
        return self._varied(dice, self.link_s, times)

    def cores(self, dice: random.Random, threads: int) -> float:
        return sum(1.0 - dice.uniform(0.0, self.busy) for _ in range(min(threads, self.cpus)))

    @property
    def slowest_s(self) -> float:
        """The duration of about one in 100,000 operations of a disk or link."""
        return float(max(self.disk_s, self.link_s) * math.exp(4.5 * self.spread))

    def _varied(self, dice: np.random.Generator, typical: float, times: int) -> Times:
        return typical * dice.lognormal(0.0, self.spread, times)


@dataclass
class FakeRules:
    tables: dict[str, list[PacketRule]] = field(default_factory=dict)
    _counted: Counter[tuple[str, str]] = field(default_factory=Counter)

    def set(self, table: str, rules: Sequence[PacketRule]) -> None:
        self.tables[table] = list(rules)
        for rule in self.redirects(table):
            del self._counted[table, rule.comment]

    def redirect(self, source: str, port: int, connections: int = 1) -> int:
        """The port at which connections from that address to `port` arrive: the first rule that fits decides."""
        for table in self.tables:
            for rule in self.redirects(table):
                if rule.port == port and source in rule.addresses:
                    self._counted[table, rule.comment] += connections
                    return rule.to
        return port

    def packets(self, table: str) -> Mapping[str, int]:
        """The value of each counter, by the rule's comment."""
        return {rule.comment: self._counted[table, rule.comment] for rule in self.redirects(table) if rule.comment}

    def redirects(self, table: str) -> list[Redirect]:
        return [rule for rule in self.tables.get(table, []) if isinstance(rule, Redirect)]

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The `Block` rules of all tables, each with its table's name."""
        return ((name, rule) for name, rules in self.tables.items() for rule in rules if isinstance(rule, Block))

    def resets(self, address: str, port: int, first_byte: int) -> bool:
        """Whether a connection there that begins with that byte is reset."""
        cuts = [rule for rules in self.tables.values() for rule in rules if isinstance(rule, Cut)]
        return any(address in cut.addresses and port in cut.ports and first_byte in cut.first_bytes for cut in cuts)


_QUICK_S = 0.001
_GREETING_BYTES = 8


@dataclass
class FakeProxy:
    """A proxy of a FakeHost: from the host's port `listen` to its port `port`."""

    listen: int
    port: int
    toxics: list[Toxic]


def pass_through(
    toxics: Sequence[Toxic], request: ExchangeRequest, dice: random.Random, own_s: float = _QUICK_S
) -> Exchange:
    """The exchange that a canary would see, with each toxic in turn on its stream. Without toxics, it takes `own_s`."""
    seconds, received = own_s, request.download_bytes
    for toxic in toxics:
        value = toxic.attributes
        size = request.upload_bytes + _GREETING_BYTES if toxic.stream == "upstream" else request.download_bytes
        if toxic.type == "latency":
            jitter = value.get("jitter", 0)
            seconds += (value["latency"] + dice.uniform(-jitter, jitter)) / 1000
        elif toxic.type == "bandwidth":
            seconds += size / (value["rate"] * 1000)
        elif toxic.type == "slicer":
            seconds += (_slices(size, value["average_size"]) - 1) * value.get("delay", 0) / 1e6  # it pauses after each
        elif toxic.type == "slow_close" and request.until_closed:
            seconds += value["delay"] / 1000
        elif toxic.type == "limit_data" and size > value["bytes"]:
            return Exchange(seconds, errno.ENODATA, 0 if toxic.stream == "upstream" else value["bytes"])
        elif toxic.type == "timeout":
            after = value["timeout"] / 1000 or request.timeout_s
            return _cut(request, after, errno.ENODATA)
        elif toxic.type == "reset_peer":
            return _cut(request, value["timeout"] / 1000, errno.ECONNRESET)
    return Exchange(seconds, 0, received) if seconds < request.timeout_s else _cut(request, request.timeout_s, 0)


def _slices(size: int, average: int) -> int:
    """Halves the range until the parts are small enough."""
    return 1 if size <= average else _slices(size // 2, average) + _slices(size - size // 2, average)


def _cut(request: ExchangeRequest, after_s: float, number: int) -> Exchange:
    if after_s >= request.timeout_s:
        return Exchange(request.timeout_s, errno.ETIMEDOUT)
    return Exchange(after_s, number)


_DISK_BYTES = 256_000_000
_AGENT_BYTES, _FILE_BYTES, _MACHINE_BYTES = 60_000_000, 20_000_000, 4_000_000_000


class FakeHost(Capable):
    """One host of a FakeDatacenter (hashidrill.core.protocols.abc.Host), with an agent of Consul in that role."""

    def __init__(self, name: str, address: str, role: str, world: FakeDatacenter) -> None:
        super().__init__()
        self.parts |= dict.fromkeys(CAPABILITIES, self)
        self.roles["consul"] = role
        self.name, self.address, self.world = name, address, world
        self.disk_rules: dict[str, dict[str, Any]] = {}
        self.ballast: dict[str, int] = {}
        self.rules = FakeRules()
        self.proxies: dict[str, FakeProxy] = {}
        self.listening: set[int] = set()
        self.limits: dict[str, float] = {}
        self.memory_limits: dict[str, int] = {}
        self.takers: dict[str, int] = {}
        self.refusals = 0
        self.egress: list[Toxic] = []
        """The toxics on everything that the host sends."""
        self.process: AgentProcess | None = None
        self.config: dict[str, Any] = {}
        self.written = 0
        self.held: list[Connection] = []

    @property
    def tables(self) -> dict[str, list[PacketRule]]:
        return self.rules.tables

    # injectors

    async def set_disk_rule(self, rule_id: str, rule: Mapping[str, Any]) -> None:
        self.disk_rules[rule_id] = dict(rule)

    async def clear_disk_rule(self, rule_id: str) -> None:
        self.disk_rules.pop(rule_id, None)

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        self.ballast[name] = max(0, await self.free_bytes() - leave_bytes)

    async def unfill_disk(self, name: str) -> None:
        self.ballast.pop(name, None)

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        self.rules.set(table, rules)

    async def suspend_packet_rules(self, table: str) -> None:
        self.rules.set(table, [])

    async def clear_packet_rules(self, table: str) -> None:
        self.rules.tables.pop(table, None)

    async def packet_tables(self) -> Sequence[str]:
        return list(self.rules.tables)

    async def packet_barriers(self) -> Sequence[Barrier]:
        return [Barrier(table, rule.chain, frozenset(rule.addresses), rule.port) for table, rule in self.rules.blocks()]

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        return self.rules.packets(table)

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        if any(proxy.listen == listen for proxy in self.proxies.values()):
            raise FaultError(f"{self.name}: toxiproxy: port {listen} is taken")
        self.proxies[name] = FakeProxy(listen, port, list(toxics))

    async def remove_proxy(self, name: str) -> None:
        self.proxies.pop(name, None)

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        return self.proxies[name].toxics if name in self.proxies else None

    async def signal(self, reference: str, signal: int) -> bool:
        if self.process is None or self.process.reference != reference:
            return False
        if signal == signals.SIGSTOP:
            self.process = replace(self.process, state="T")
        elif signal == signals.SIGCONT:
            self.process = replace(self.process, state="S")
        else:
            self.process = None
        return True

    async def start_agent(self, agent: str) -> None:  # noqa: ARG002 - there is one agent a host
        if self.process is None:
            self.process = self.world.new_process()
            self.world.consul.started(self)

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:  # noqa: ARG002 - no time passes here
        self.process = None
        self.world.consul.stopped(self)

    async def agent_config(self, agent: str) -> dict[str, Any]:  # noqa: ARG002 - there is one agent a host
        return copy.deepcopy(self.config)

    async def set_agent_config(self, agent: str, config: Mapping[str, Any]) -> None:  # noqa: ARG002 - as above
        self.config = copy.deepcopy(dict(config))

    async def api(
        self,
        method: str,
        path: str,
        *,
        agent: str,  # noqa: ARG002 - there is one agent a host
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - it needs no token
        body: bytes | None = None,
        timeout_s: float = 5.0,  # noqa: ARG002 - no time passes here
    ) -> ApiAnswer:
        if self.process is None or self.process.state == "T":
            raise FaultError(f"{self.name}: {method} {path}: no answer")
        return self.world.consul.answer(self, method, path, dict(params or {}), body or b"")

    @property
    def data(self) -> Path:
        folder = self.world.root / self.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def votes_cut(self, address: str, port: int = 8300) -> bool:
        """Whether a Raft connection to that address would be reset."""
        return self.rules.resets(address, port, RAFT)

    async def limit_cpu(self, name: str, cores: float) -> None:
        self.limits[name] = cores

    async def unlimit_cpu(self, name: str) -> None:
        self.limits.pop(name, None)

    async def memory_in_use(self) -> tuple[int, int]:
        own = (_AGENT_BYTES if self.process else 0) + sum(self.takers.values())
        return own + _FILE_BYTES, own

    async def limit_memory(self, name: str, limit_bytes: int) -> None:
        self.memory_limits[name] = limit_bytes
        await self._make_room()

    async def take_memory(self, name: str, size_bytes: int) -> None:
        self.takers[name] = size_bytes
        await self._make_room()

    async def free_memory(self, name: str) -> None:
        self.memory_limits.pop(name, None)
        self.takers.pop(name, None)

    async def _make_room(self) -> None:
        """Ends the largest process, as the kernel does."""
        if (await self.memory_in_use())[0] > min(self.memory_limits.values(), default=_MACHINE_BYTES):
            self.refusals += 1
            self.process = None
            self.world.consul.stopped(self)

    # observers

    async def canary_take(self, size_bytes: int) -> int:
        limit = min(self.memory_limits.values(), default=_MACHINE_BYTES)
        self.refusals += size_bytes > limit
        return min(size_bytes, max(0, limit - (await self.memory_in_use())[1]))  # the page cache makes room

    async def own_bytes(self, name: str) -> int:
        return self.takers.get(name, 0) or (_AGENT_BYTES if self.process and name in self.roles else 0)

    async def memory_refusals(self) -> int:
        return self.refusals

    async def agent_process(self, agent: str) -> AgentProcess | None:  # noqa: ARG002 - there is one agent a host
        return self.process

    async def written_bytes(self, agent: str) -> int:
        if self.process is None:
            raise FaultError(f"{self.name}: {agent} does not run")
        return self.written

    async def connections(self, port: int) -> Sequence[Connection]:  # noqa: ARG002 - all are to Consul's servers
        return self.held

    async def canary_fsync(self) -> Timing:
        return self._operate("fsync", 0)[0]

    async def canary_write(self, size_bytes: int) -> Timing:
        if size_bytes > await self.free_bytes():
            return Timing(_QUICK_S, errno.ENOSPC)
        return self._operate("write", size_bytes)[0]

    async def canary_read(self, size_bytes: int) -> Timing:
        return self._operate("read", size_bytes)[0]

    async def canary_disk(self, operation: str, size_bytes: int, trials: int, within_s: float) -> Sequence[Timing]:
        """The operations run at once; they queue only for a limited bandwidth."""
        fits = min(trials, int(within_s * 256 / self.world.noise.disk_s))
        return self._operate(operation, size_bytes, fits)

    def _operate(self, operation: str, size_bytes: int, times: int = 1) -> Sequence[Timing]:
        """All operations as one array: a proof may need a hundred thousand operations."""
        dice = self.world.dice()
        seconds = self.world.noise.disk(dice, size_bytes, times)
        failed = np.zeros(times, dtype=int)
        for rule in self.disk_rules.values():
            if operation not in rule["operations"]:
                continue
            hit = (dice.random(times) < rule.get("share", 1.0)) & (failed == 0)
            if rule.get("errno"):
                failed[hit] = rule["errno"]
                continue
            jitter = rule.get("jitter_s", 0.0)
            seconds[hit] += rule.get("delay_s", 0.0) + dice.uniform(-jitter, jitter, times)[hit]
            if rule.get("bytes_per_s"):
                seconds[hit] += np.arange(1, hit.sum() + 1) * (size_bytes / rule["bytes_per_s"])
        return list(map(Timing, seconds.tolist(), failed.tolist()))

    @property
    def cpus(self) -> int:
        return self.world.noise.cpus

    async def canary_burn(self, threads: int, windows: int, window_s: float) -> Sequence[float]:  # noqa: ARG002 - no time passes here
        can = [self.world.noise.cores(self.world.random, threads) for _ in range(windows)]
        return [min([one, *self.limits.values()]) for one in can]

    async def cpu_seconds(self, agent: str) -> float:  # noqa: ARG002 - there is one agent a host, and it is idle
        return 0.0

    async def free_bytes(self) -> int:
        return _DISK_BYTES - sum(self.ballast.values())

    async def connect(self, address: str, port: int, timeout_s: float) -> Timing:
        port = self.world.arrives_at(self, address, port)
        for _ in range(2):  # a request and an answer
            for rule in self.world.rules_between(self, address, port):
                if self.world.random.random() < rule.share:
                    return Timing(_QUICK_S, errno.ECONNREFUSED) if rule.refuse else Timing(timeout_s, errno.ETIMEDOUT)
        return Timing(_QUICK_S)

    async def canary_listen(self, port: int) -> None:
        self.listening.add(port)

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]:
        count, dice = request.connections, self.world.random
        if self.rules.resets(address, port, ord(str(request.upload_bytes)[0])):  # the greeting begins with that number
            return [Exchange(_QUICK_S, errno.ECONNRESET)] * count
        port = self.world.arrives_at(self, address, port, count)
        there = next(host for host in self.world.hosts.values() if host.address == address)
        proxy = next((proxy for proxy in there.proxies.values() if proxy.listen == port), None)
        if (proxy.port if proxy else port) not in there.listening:
            return [Exchange(_QUICK_S, errno.ECONNREFUSED)] * count
        links = self.world.noise.link(self.world.dice(), count).tolist()
        toxics = [*self.egress, *([] if proxy is None else proxy.toxics)]
        return [
            pass_through([t for t in toxics if dice.random() < t.toxicity], request, dice, own_s) for own_s in links
        ]

    async def echo_loss(self, address: str, datagrams: int, timeout_s: float) -> float:  # noqa: ARG002 - no time passes here
        rules = self.world.rules_between(self, address, None)
        arrives = math.prod([1 - self.world.noise.lost, *(1 - rule.share for rule in rules)])
        return float(self.world.dice().binomial(datagrams, 1 - arrives) / datagrams)

    async def agent_answers(self, agent: str, timeout_s: float) -> bool:  # noqa: ARG002 - no time passes here
        return self.process is not None and self.process.state != "T"


class FakeTap:
    """A client's tap in memory. It has a real tap's plan; each look asks the plan as an attempt would."""

    def __init__(self) -> None:
        self.faults = Faults()

    async def fail(self, fault_id: str, fault: str, share: float, seed: int) -> None:
        self.faults.answer({"op": "fail", "id": fault_id, "fault": fault, "share": share, "seed": seed})

    async def let_pass(self, fault_id: str) -> None:
        self.faults.answer({"op": "pass", "id": fault_id})

    async def look(self, fault: str, tries: int) -> Sequence[str]:
        asked = Moment(0, reused=fault.endswith("-reused"), blocking=fault == "index-backwards")
        return [self.faults.decide(asked) or "200" for _ in range(tries)]


class FakeDatacenter:
    """Three servers and a client agent, with a leader, and one random generator for all random events."""

    def __init__(
        self, servers: int = 3, clients: int = 1, seed: int = 7, *, spares: int = 0, root: Path | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.noise = Noise()
        self._root = root
        self._turns: dict[str, anyio.Lock] = {}
        self.services: list[Any] = []
        self.tools: dict[str, Path] = {}
        self._processes = 0
        names = [(f"consul-{n}", f"10.73.0.{10 + n}", "server") for n in range(1, servers + 1)]
        names += [(f"consul-{n}", f"10.73.0.{10 + n}", "spare") for n in range(servers + 1, servers + spares + 1)]
        names += [(f"client-{n}", f"10.73.0.{30 + n}", "client") for n in range(1, clients + 1)]
        self.hosts = {name: FakeHost(name, address, role, self) for name, address, role in names}
        self.taps: dict[str, FakeTap] = {}
        self.consul = FakeConsul(self.hosts)
        for host in self.hosts.values():
            if host.role != "spare":
                host.process = self.new_process()

    def dice(self) -> np.random.Generator:
        """A generator for many random events at once, seeded by the generator of all other random numbers."""
        return np.random.default_rng(self.random.getrandbits(64))

    def new_process(self) -> AgentProcess:
        self._processes += 1
        return AgentProcess(1000 + self._processes, 100 * self._processes, "S")

    def host(self, name: str) -> Host:
        try:
            return self.hosts[name]
        except KeyError:
            raise SelectorError(f"there is no host {name!r}; there are: {', '.join(self.hosts)}") from None

    def all_hosts(self) -> Sequence[Host]:
        return list(self.hosts.values())

    @property
    def root(self) -> Path:
        if self._root is None:
            raise RuntimeError("give the FakeDatacenter a `root`: this fault works on files")
        return self._root

    @property
    def artifacts(self) -> Path:
        folder = self.root / "artifacts"
        folder.mkdir(exist_ok=True)
        return folder

    def turn(self, what: str) -> anyio.Lock:
        return self._turns.setdefault(what, anyio.Lock())

    def tool(self, name: str) -> Path:
        try:
            return self.tools[name]
        except KeyError:
            raise FaultError(f"the datacenter was started without {name}") from None

    def tap(self, client: str) -> FakeTap:
        return self.taps.setdefault(client, FakeTap())

    def load_addresses(self) -> Sequence[str]:
        return ["10.73.0.2"]

    def target(self, name: str) -> Target:
        """That host, with its agent's process."""
        host = self.hosts[name]
        return Target(name, host.address, "consul", host.process.reference if host.process else "")

    def arrives_at(self, host: FakeHost, address: str, port: int, connections: int = 1) -> int:
        """The port at which connections of `host` to that address arrive: the first rule that fits redirects them."""
        there = next((other for other in self.hosts.values() if other.address == address), None)
        return port if there is None else there.rules.redirect(host.address, port, connections)

    def rules_between(self, host: FakeHost, address: str, port: int | None) -> list[Block]:
        """The rules that a round trip from `host` to `address` passes: the rules of both hosts, in both directions."""
        other = next((peer for peer in self.hosts.values() if peer.address == address), None)
        met = [rule for _, rule in host.rules.blocks() if address in rule.addresses and not rule.port]
        if other is not None:
            met += [
                rule for _, rule in other.rules.blocks() if host.address in rule.addresses and rule.port in (None, port)
            ]
        return met
