"""The local datacenter: real Consul agents on hosts that are network namespaces of one sandbox.

Everything here runs inside the sandbox (see hashidrill.engine.launch for how one is entered), and ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx

from hashidrill import registry
from hashidrill.abc import Host, Probe, Target
from hashidrill.datacenter.local import network
from hashidrill.datacenter.local.hosts import LocalHost
from hashidrill.datacenter.local.taps import LocalTap
from hashidrill.datacenter.local.unprivileged import AgentUser, agent_user
from hashidrill.errors import DatacenterError, FaultError, SelectorError
from hashidrill.experiment.model import DatacenterSpec, Experiment
from hashidrill.experiment.selectors import CLIENT_PREFIX
from hashidrill.loads.process import LoadSpecification
from hashidrill.probes.disk import DiskProbe
from hashidrill.probes.machine import MachineProbe
from hashidrill.probes.process import ProcessProbe
from hashidrill.sandbox.sandbox import boot_command
from hashidrill.services.consul import agents
from hashidrill.services.consul.probes import consul_probes
from hashidrill.util.files import private_folder
from hashidrill.util.foreign import parse
from hashidrill.util.redaction import Redactor, without_secrets
from hashidrill.util.tasks import all_at_once
from hashidrill.util.wait import wait_until, wait_while_it_moves

_STARTED_WITHIN_S = 20.0
_HTTP_TIMEOUT_S = 2.0
_READY_PATIENCE = 3
"""Times `ready_within` is the end of all patience, whatever still moves."""
_LOG_TAIL_LINES = 5


@dataclass
class LocalDatacenter:
    """`root` is the sandbox's own directory; `disk_operations` are those that faults may slow or fail later.

    `binaries` holds `consul`, and the tools that faults need. `spare_servers` hosts are there without an agent.
    """

    spec: DatacenterSpec
    root: Path
    binaries: Mapping[str, Path]
    disk_operations: frozenset[str] = frozenset({"fsync"})
    spare_servers: int = 0
    artifacts: Path = Path("artifacts")
    redactor: Redactor = field(default_factory=Redactor)
    check_machine: Callable[[], None] = lambda: None
    """Raises UnfitError where this machine cannot carry what is to come; asked before anything is started."""
    hosts: dict[str, LocalHost] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    agent_user: AgentUser | None = field(init=False)
    """Whom agents run as; None: the user of the sandbox."""
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _turns: dict[str, anyio.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agent_user = agent_user(self.root)

    async def start(self) -> None:
        """Network, disks, hosts, agents. Raises DatacenterError."""
        await anyio.to_thread.run_sync(self.check_machine)
        async with anyio.create_task_group() as beside:
            beside.start_soon(anyio.to_thread.run_sync, network.preload)
            pids = await self._start_hosts()
        await anyio.to_thread.run_sync(network.build, pids)
        for name, (role, address) in self._placed().items():
            host = LocalHost(
                name,
                address,
                role,
                self.root,
                pids[name],
                toxiproxy=self.binaries.get("toxiproxy-server"),
                agent_user=self.agent_user,
            )
            self.hosts[name] = host
        await all_at_once(partial(host.configure_network, network.PREFIX) for host in self.hosts.values())
        self._remember()
        await all_at_once(partial(self._configure, host) for host in self.hosts.values() if host.role == "spare")
        await all_at_once(partial(self.start_consul, host) for host in self.hosts.values() if host.role != "spare")

    async def _start_hosts(self) -> dict[str, int]:
        """diskd, then a hostd and a canary for each host; the pid of each host's hostd."""
        (self.root / "s").mkdir(mode=0o700, exist_ok=True)
        placed = self._placed()
        diskd = {"parent": os.getpid(), "socket": str(self.root / "s/diskd"), "registrations": str(self.root / "s/reg")}
        self._spawn("diskd", diskd)
        await self._wait_for_sockets(["reg", "diskd"])
        pids = {name: self._spawn_host(name) for name in placed}
        await self._wait_for_sockets([f"{name}.{kind}" for name in placed for kind in ("host", "canary")])
        return pids

    def _placed(self) -> dict[str, tuple[str, str]]:
        """Name -> (role, address) of every host."""
        consul = self.spec.consul
        servers = {f"consul-{n}": ("server", network.server_address(n)) for n in range(1, consul.servers + 1)}
        clients = {f"client-{n}": ("client", network.client_address(n)) for n in range(1, consul.clients + 1)}
        first = consul.servers + 1
        spares = {f"consul-{n}": ("spare", network.server_address(n)) for n in range(first, first + self.spare_servers)}
        return servers | spares | clients

    def _spawn_host(self, name: str) -> int:
        base = self.root / "hosts" / name
        (base / "logs").mkdir(parents=True, exist_ok=True)
        (base / "data").mkdir(exist_ok=True)
        if self.agent_user is not None:
            self.agent_user.reaches(self.root, base)
        size = self.spec.disk.size
        spec = {
            "parent": os.getpid(), "name": name, "data": str(base / "data"),
            "size_bytes": None if size is None else int(size), "operations": sorted(self.disk_operations),
            "diskd": str(self.root / "s/reg"), "socket": str(self.root / f"s/{name}.host"),
            "canary_socket": str(self.root / f"s/{name}.canary"), "agent_user": _numbers(self.agent_user),
        }  # fmt: skip
        return self._spawn("hostd", spec)

    def _spawn(self, module: str, spec: Mapping[str, Any]) -> int:
        log = (self.root / f"{module}.log").open("ab")
        with log:
            child = subprocess.Popen(
                boot_command(f"hashidrill.datacenter.local.inside.{module}", spec),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=without_secrets(os.environ),
            )  # fmt: skip
        self._children.append(child)
        return child.pid

    async def _wait_for_sockets(self, names: Iterable[str]) -> None:
        missing = [self.root / "s" / name for name in names]

        async def all_there() -> tuple[bool | None, str]:
            gone = [child for child in self._children if child.poll() is not None]
            if gone:
                logs = " ".join(_tail(self.root / f"{name}.log") for name in ("diskd", "hostd"))
                raise DatacenterError(f"a host of the sandbox did not start: {logs}")
            absent = [path.name for path in missing if not path.exists()]
            return (None, f"not yet there: {', '.join(absent)}") if absent else (True, "")

        await wait_until("the sandbox's hosts to start", all_there, within_s=_STARTED_WITHIN_S, gap_s=0.005)

    async def start_consul(self, host: LocalHost) -> None:
        """The first start of a host's agent. On a spare host it is that of a server that joins the others."""
        await self._configure(host)
        await host.start_agent("consul")

    async def _configure(self, host: LocalHost) -> None:
        """The agent's first configuration, and its command: a spare host's agent is started by a fault, or never."""
        servers = [network.server_address(n) for n in range(1, self.spec.consul.servers + 1)]
        config = agents.consul_config(
            self.spec.consul, name=host.name, role=host.role, address=host.address, servers=servers, data=host.data
        )
        if self.spare_servers and config["retry_join"] == servers:  # with all servers replaced, these are the only ones
            spares = [address for role, address in self._placed().values() if role == "spare"]
            config["retry_join"] = [*servers, *spares]
        self.configs[host.name] = config
        await host.set_agent_config("consul", config)
        host.commands["consul"] = agents.consul_command(self.binaries["consul"], host.config_file("consul"))

    def _remember(self) -> None:
        """What a later process in this sandbox needs to find the hosts again."""
        rows = [
            {"name": host.name, "address": host.address, "role": host.role, "pid": host.pid}
            for host in self.hosts.values()
        ]
        (self.root / "hosts.json").write_text(json.dumps(rows))

    # what engine and faults ask for

    def host(self, name: str) -> Host:
        try:
            return self.hosts[name]
        except KeyError:
            raise SelectorError(f"there is no host {name!r}; there are: {', '.join(self.hosts)}") from None

    def all_hosts(self) -> Sequence[Host]:
        return list(self.hosts.values())

    def tap(self, client: str) -> LocalTap:
        return LocalTap(client, self._tap_socket(client))

    def _tap_socket(self, client: str) -> Path:
        return self.root / f"s/tap-{client}"

    def load_addresses(self) -> Sequence[str]:
        return [network.LOAD_ADDRESS]

    def turn(self, what: str) -> anyio.Lock:
        return self._turns.setdefault(what, anyio.Lock())

    def tool(self, name: str) -> Path:
        try:
            return self.binaries[name]
        except KeyError:
            raise FaultError(f"the datacenter was started without {name}") from None

    def servers(self) -> list[LocalHost]:
        return [host for host in self.hosts.values() if host.role == "server"]

    def clients(self) -> list[LocalHost]:
        return [host for host in self.hosts.values() if host.role == "client"]

    def with_agents(self) -> list[LocalHost]:
        return [host for host in self.hosts.values() if host.role != "spare"]

    async def select(self, selector: str) -> Sequence[Target]:
        """The hosts a selector means now, with their Consul processes. Raises SelectorError when that is none.

        `client:NAME` means that client's tap.
        """
        if selector.startswith(CLIENT_PREFIX):
            return [Target(selector.removeprefix(CLIENT_PREFIX), network.LOAD_ADDRESS, "client")]
        return [await self._target(host) for host in await self._chosen(selector)]

    @staticmethod
    async def _target(host: LocalHost) -> Target:
        process = await host.agent_process("consul")
        return Target(host.name, host.address, "consul", process.reference if process else "")

    async def _chosen(self, selector: str) -> Sequence[LocalHost]:
        kind, _, name = selector.partition(":")
        if kind == "host":
            self.host(name)
            return [self.hosts[name]]
        chosen: Sequence[LocalHost]
        if name in {"leader", "followers", "one-follower"}:
            leader = await self.leader()
            if leader is None:
                raise SelectorError(f"{selector}: no server is known to a majority as the leader just now")
            chosen = [host for host in self.servers() if (host.name == leader) == (name == "leader")]
            chosen = chosen[:1] if name == "one-follower" else chosen
        else:
            chosen = {"servers": self.servers(), "clients": self.clients(), "all": self.with_agents()}[name]
        if not chosen:
            raise SelectorError(f"{selector} matches no host of this datacenter")
        return chosen

    async def leader(self) -> str | None:
        """Name of the host that a majority of the servers takes for the leader."""
        seen: list[str] = []

        async def ask(client: httpx.AsyncClient, host: LocalHost) -> None:
            try:
                answer = await client.get(f"http://{host.address}:{agents.HTTP_PORT}/v1/status/leader")
                seen.append(str(parse(answer.content)).partition(":")[0])
            except (httpx.HTTPError, ValueError):
                return

        async with httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False) as client:
            await all_at_once(partial(ask, client, host) for host in self.servers())
        for host in self.servers():
            if seen.count(host.address) > len(self.servers()) // 2:
                return host.name
        return None

    async def wait_ready(self) -> None:
        """Leader known, all members alive, a write accepted. Raises WaitTimeoutError with what was missing.

        Given up after `ready_within` without any progress: many agents on few cores come up one after the other.
        """
        base = f"http://{self.servers()[0].address}:{agents.HTTP_PORT}"
        async with httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S, trust_env=False, base_url=base) as client:

            async def ready() -> tuple[bool | None, str, int | None]:
                await self._all_agents_run()
                if await self.leader() is None:
                    return None, "no leader is known to a majority of the servers", None
                try:
                    members = parse((await client.get("/v1/agent/members")).content)
                    alive = sorted(member["Name"] for member in members if member["Status"] == 1)
                    wanted = sorted(host.name for host in self.with_agents())
                    if alive != wanted:
                        return None, f"alive are {', '.join(alive)} of {', '.join(wanted)}", len(alive)
                    answer = await client.put("/v1/kv/hashidrill/ready", content=b"ready")
                except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                    return None, f"{type(error).__name__}: {error}", None
                return (True if answer.text == "true" else None), f"a write was answered {answer.text!r}", len(alive)

            within_s = self.spec.ready_within
            await wait_while_it_moves(
                "the datacenter to be ready", ready, still_s=within_s, within_s=_READY_PATIENCE * within_s
            )

    async def _all_agents_run(self) -> None:
        for host in self.with_agents():
            if await host.agent_process("consul") is None:
                raise DatacenterError(f"{host.name}: consul ended: {_tail(host.logs / 'consul.log')}")

    async def load_specifications(self, experiment: Experiment) -> Sequence[LoadSpecification]:
        """Each load and client with the agents of its `via`: the clients now, or the servers where there are none."""
        specifications = []
        for name, load in experiment.load.items():
            kind = registry.load(load.kind)
            params = kind.Params.model_validate(load.params)
            endpoints = await self._endpoints(kind.via(params))
            specifications.append(LoadSpecification(name, load.kind, params, endpoints, network.LOAD_ADDRESS))
        for name, client in experiment.clients.items():
            endpoints = await self._endpoints(client.agents)
            specification = LoadSpecification(
                name, registry.CLIENT, client, endpoints, network.LOAD_ADDRESS, control=str(self._tap_socket(name)),
                namespace=None if client.on is None else self.hosts[client.on.removeprefix("host:")].namespace,
            )  # fmt: skip
            specifications.append(specification)
        return specifications

    async def _endpoints(self, via: str | None) -> list[str]:
        if via is None:
            return []
        fallback = via == "consul:clients" and not self.clients()
        hosts = await self._chosen("consul:servers" if fallback else via)
        return [f"http://{host.address}:{agents.HTTP_PORT}" for host in hosts]

    def probes(self) -> Sequence[Probe]:
        """Everything that is watched during a run, from the control address."""
        known = {host.name: host.address for host in self.hosts.values() if host.role != "client"}
        probes = consul_probes(_Servers(self.hosts), port=agents.HTTP_PORT, known=known)
        for host in self.hosts.values():
            probes += [DiskProbe(host), ProcessProbe(host)]
        return [*probes, MachineProbe()]

    def describe(self) -> Mapping[str, Any]:
        """`hosts` and `config`, for run.json."""
        hosts = [{"name": host.name, "address": host.address, "role": host.role} for host in self.hosts.values()]
        return {"hosts": hosts, "config": self.configs}

    async def collect_logs(self, into: Path) -> None:
        for host in self.hosts.values():
            private_folder(into / host.name)
            for log in host.logs.glob("*.log"):
                self.redactor.file(log, into / host.name / log.name)


class _Servers(Mapping[str, str]):
    """Name -> address of the hosts that are servers just now."""

    def __init__(self, hosts: Mapping[str, LocalHost]) -> None:
        self._hosts = hosts

    def __getitem__(self, name: str) -> str:
        if self._hosts[name].role != "server":
            raise KeyError(name)
        return self._hosts[name].address

    def __iter__(self) -> Iterator[str]:
        return (name for name, host in self._hosts.items() if host.role == "server")

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _numbers(user: AgentUser | None) -> list[int] | None:
    return None if user is None else [user.uid, user.gid]


def _tail(log: Path) -> str:
    if not log.is_file():
        return f"({log.name}: nothing logged)"
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-_LOG_TAIL_LINES:])
