"""The local datacenter: real agents on hosts that are network namespaces of one sandbox.

The services (hashidrill.core.protocols.service.Service) decide what runs on the hosts: this module knows no product.
Everything here runs inside the sandbox (hashidrill.lab.runs.launch enters it), and ends with it.
"""

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import anyio

from hashidrill.core.errors import NOT_READY, OWN_CONFIGURATION, DatacenterError, FaultError, SelectorError
from hashidrill.core.experiment.model import DatacenterSpec, services_of
from hashidrill.core.experiment.selectors import CLIENT_PREFIX
from hashidrill.core.probes.agent_reports import reports
from hashidrill.core.probes.hosts import DiskProbe, MachineProbe, ProcessProbe
from hashidrill.core.protocols.abc import Probe, Target
from hashidrill.core.protocols.service import (
    AddsCapabilities,
    AgentPlace,
    Describes,
    HandsOutTokens,
    HasCommandLine,
    HasOperator,
    HasPage,
    Opens,
    Operates,
    Service,
    Site,
    Watched,
    Workspace,
    WritesFiles,
    after,
)
from hashidrill.core.util.cores import quotas
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.processes import boot_command
from hashidrill.core.util.redaction import Redactor, without_secrets
from hashidrill.core.util.wait import all_at_once, wait_until
from hashidrill.lab.host_selection import HostSelection
from hashidrill.lab.local.hosts import AgentUser, LocalHost, LocalTap, agent_user

BRIDGE = "hashidrill0"
PREFIX = 24
NETWORK = f"10.73.0.0/{PREFIX}"
CONTROL_ADDRESS = "10.73.0.1"
"""The address of probes and observers. No fault ever targets it: an observer must not depend on a component under
fault.
"""
LOAD_ADDRESS = "10.73.0.2"
"""The address of loads. Faults on `clients` and `all` do include it."""
_BLOCKS = {"server": range(11, 31), "spare": range(11, 31), "client": range(31, 61)}
"""The last numbers of the addresses of each role's hosts; servers and spare servers share one range."""
_OTHERS = range(61, 251)
"""The last numbers for every other role, and for hosts that do not fit into their role's range."""


def addresses(roles: Mapping[str, str]) -> dict[str, str]:
    """The address of each host: in order, from the range of its role. Raises DatacenterError."""
    left = {block: iter(block) for block in (*_BLOCKS.values(), _OTHERS)}
    given = {}
    for host, role in roles.items():
        numbers = itertools.chain(left[_BLOCKS.get(role, _OTHERS)], left[_OTHERS])
        number = next(numbers, None)
        if number is None:
            raise DatacenterError(f"{len(roles)} hosts are too many for the sandbox's network; use fewer")
        given[host] = f"10.73.0.{number}"
    return given


def preload() -> None:
    """Imports what `build` needs. Run it in a thread, during other work."""
    import pyroute2  # noqa: F401, PLC0415 - see build


def build(hosts: Mapping[str, int]) -> None:
    """Makes the bridge, and for each host (name -> pid of its hostd) an `eth0` in its namespace.

    The kernel removes them with the sandbox. Raises DatacenterError.
    """
    from pyroute2 import IPRoute  # noqa: PLC0415 - this import takes 0.4 s; `preload` does it while hosts start

    try:
        with IPRoute() as route:
            route.link("add", ifname=BRIDGE, kind="bridge")
            bridge = route.link_lookup(ifname=BRIDGE)[0]
            for address in (CONTROL_ADDRESS, LOAD_ADDRESS):
                route.addr("add", index=bridge, address=address, prefixlen=PREFIX)
            route.link("set", index=bridge, state="up")
            for number, pid in enumerate(hosts.values()):
                near = f"veth{number}"
                route.link("add", ifname=near, kind="veth", peer={"ifname": "eth0", "net_ns_pid": pid})
                route.link("set", index=route.link_lookup(ifname=near)[0], master=bridge, state="up")
    except Exception as error:
        raise DatacenterError(f"the sandbox's network could not be built: {error}") from error


_STARTED_WITHIN_S = 20.0
_LOG_TAIL_LINES = 5


@dataclass
class LocalDatacenter(HostSelection):
    """`root` is the sandbox's own directory; faults may slow or fail `disk_operations` later.

    `binaries` holds the binaries of the services and of the faults' tools. `spare_servers` hosts have no agent yet.
    """

    spec: DatacenterSpec
    root: Path
    binaries: Mapping[str, Path]
    disk_operations: frozenset[str] = frozenset({"fsync"})
    memory_groups: bool = False
    """Whether agents run in memory cgroups, if this user may create them."""
    spare_servers: int = 0
    artifacts: Path = Path("artifacts")
    redactor: Redactor = field(default_factory=Redactor)
    check_machine: Callable[[], None] = lambda: None
    """Raises UnfitError if this machine cannot carry the datacenter; called before anything is started."""
    hosts: dict[str, LocalHost] = field(default_factory=dict)
    configs: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Each agent's configuration by service and host; `reported`: what each agent reports once all are ready."""
    reported: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)
    host_kind: ClassVar[type[LocalHost]] = LocalHost
    agent_user: AgentUser | None = field(init=False)
    """The user that agents run as; None: the user of the sandbox."""
    _placed_agents: list[tuple[str, AgentPlace]] = field(default_factory=list)
    """The agents configured so far, with their services."""
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _turns: dict[str, anyio.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.agent_user = agent_user(self.root)
        self.services: list[Service] = services_of(self.spec, spares=self.spare_servers)

    async def start(self) -> None:
        """Starts network, disks, hosts, and the agents that wait for no other service. Raises DatacenterError."""
        await anyio.to_thread.run_sync(self.check_machine)
        async with anyio.create_task_group() as beside:
            beside.start_soon(anyio.to_thread.run_sync, preload)
            pids = await self._start_hosts()
        placed = self._placed()
        self._addresses = addresses({host: next(iter(roles.values())) for host, roles in placed.items()})
        await anyio.to_thread.run_sync(self._build_network, pids)
        for name, roles in placed.items():
            host = self.host_kind(
                name,
                self._addresses[name],
                roles,
                self.root,
                pids[name],
                toxiproxy=self.binaries.get("toxiproxy-server"),
                agent_user=self.agent_user,
            )
            self.hosts[name] = host
        await all_at_once(partial(host.configure_network, PREFIX) for host in self.hosts.values())
        if self.memory_groups:
            await all_at_once(host.hold_agents for host in self.hosts.values())
        self._remember()
        await self._start_services()

    async def _start_services(self) -> None:
        """Starts the agents that wait for no other service."""
        here = {service.name for service in self.services}
        for service in self.services:
            folder = self.root / "services" / service.name
            folder.mkdir(mode=0o700, parents=True)
            if isinstance(service, Opens):
                service.open(Workspace(folder, self.redactor.know))
            if not here & after(service):
                await self._start_agents(service)

    def _build_network(self, pids: Mapping[str, int]) -> None:
        build(pids)

    async def _start_agents(self, service: Service) -> None:
        for _, places in itertools.groupby(service.places(), key=attrgetter("role")):
            await all_at_once([partial(self._place, service, place) for place in places])

    async def _start_hosts(self) -> dict[str, int]:
        """Starts diskd, then a hostd and a canary for each host. Returns the pid of each host's hostd."""
        (self.root / "s").mkdir(mode=0o700, exist_ok=True)
        placed = self._placed()
        diskd = {"parent": os.getpid(), "socket": str(self.root / "s/diskd"), "registrations": str(self.root / "s/reg")}
        self._spawn("diskd", diskd)
        await self._wait_for_sockets(["reg", "diskd"])
        pids = {name: self._spawn_host(name) for name in placed}
        await self._wait_for_sockets([f"{name}.{kind}" for name in placed for kind in ("host", "canary")])
        return pids

    def _placed(self) -> dict[str, dict[str, str]]:
        """The roles of every host, by service: services that name the same host share it. Guests come last."""
        placed: dict[str, dict[str, str]] = {}
        every = [(service.name, place) for service in self.services for place in service.places()]
        for service, place in sorted(every, key=lambda one: one[1].guest):
            placed.setdefault(place.host, {})[service] = place.role
        return placed

    def _shows_processes(self, host: str) -> Path | None:
        """The folder in which the host's armed agents see its processes; None without armed agents."""
        places = [place for service in self.services for place in service.places() if place.host == host]
        return self.root / "hosts" / host / "proc" if any(place.armed for place in places) else None

    def _spawn_host(self, name: str) -> int:
        base = self.root / "hosts" / name
        (base / "logs").mkdir(parents=True, exist_ok=True)
        (base / "data").mkdir(exist_ok=True)
        if self.agent_user is not None:
            self.agent_user.reaches(self.root, base)
        size, processes = self.spec.disk.size, self._shows_processes(name)
        spec = {
            "parent": os.getpid(),
            "name": name,
            "data": str(base / "data"),
            "size_bytes": None if size is None else int(size),
            "operations": sorted(self.disk_operations),
            "diskd": str(self.root / "s/reg"),
            "socket": str(self.root / f"s/{name}.host"),
            "canary_socket": str(self.root / f"s/{name}.canary"),
            "agent_user": None if self.agent_user is None else [self.agent_user.uid, self.agent_user.gid],
            **({"processes": str(processes)} if processes else {}),
        }
        return self._spawn("hostd", spec)

    def _spawn(self, module: str, spec: Mapping[str, Any]) -> int:
        log = (self.root / f"{module}.log").open("ab")
        with log:
            child = subprocess.Popen(
                boot_command(f"hashidrill.lab.local.inside.{module}", spec),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=without_secrets(os.environ),
            )
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

    async def _place(self, service: Service, place: AgentPlace) -> None:
        """Configures the agent and starts it for the first time; on a spare host, only a fault may start it."""
        host = self.hosts[place.host]
        site = Site(
            host.name,
            place.role,
            host.address,
            host.data / service.name,
            host.config_file(service.name),
            self.binaries,
            self._addresses,
            dict(host.roles),
            self._shows_processes(host.name) or Path("/proc"),
            {each.name: dict(each.roles) for each in self.hosts.values()},
        )
        if place.armed:
            host.armed.add(service.name)
        if isinstance(service, AddsCapabilities):
            host.parts |= service.parts(host)
        plan = service.agent(site)
        self.configs.setdefault(service.name, {})[host.name] = plan.config
        host.plans[service.name] = plan
        host.make_folder(service.name)
        await anyio.to_thread.run_sync(self._write_files, host.data / service.name, plan.files)
        await host.set_agent_config(service.name, plan.config)
        if place.starts:
            await host.start_agent(service.name)
        self._placed_agents.append((service.name, place))

    def _write_files(self, folder: Path, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            write_whole(folder / name, text)
            if self.agent_user is not None:
                self.agent_user.owns(folder / name)

    def _remember(self) -> None:
        rows = [
            {"name": host.name, "address": host.address, "role": host.role, "pid": host.pid}
            for host in self.hosts.values()
        ]
        (self.root / "hosts.json").write_text(json.dumps(rows))

    # for engine and faults

    def tap(self, client: str) -> LocalTap:
        return LocalTap(client, self._tap_socket(client))

    def _tap_socket(self, client: str) -> Path:
        return self.root / f"s/tap-{client}"

    def load_addresses(self) -> Sequence[str]:
        return [LOAD_ADDRESS]

    def tool(self, name: str) -> Path:
        try:
            return self.binaries[name]
        except KeyError:
            raise FaultError(f"the datacenter was started without {name}") from None

    def client_target(self, selector: str) -> Target:
        return Target(selector.removeprefix(CLIENT_PREFIX), LOAD_ADDRESS, "client")

    async def endpoints(self, via: str | None) -> Sequence[str]:
        """The URLs of the agents that a load goes through; empty for None. Raises SelectorError."""
        if via is None:
            return []
        agents = await self.agents(via)
        for host, agent in agents:
            if agent not in host.plans:
                raise SelectorError(f"{host.name}: there is no {agent}")
        return [host.plans[agent].url for host, agent in agents]

    def access(self, via: str | None) -> Mapping[str, str]:
        """The variables, like tokens, that a load needs for the agents that it goes through. Raises SelectorError."""
        return {} if via is None else _access(self.service(self.service_of(via)))

    def environment(self, host: str) -> dict[str, str]:
        """The environment for an operator's command lines on that host, not for loads or agents.

        It holds the URLs of the host's agents (or of each service's first agent), and tokens.
        """
        told: dict[str, str] = {}
        for service in self.services:
            urls = {name: one.plans[service.name].url for name, one in self.hosts.items() if service.name in one.plans}
            if isinstance(service, HasCommandLine) and urls:
                told[service.address_variable] = urls.get(host, next(iter(urls.values())))
            told |= service.login() if isinstance(service, HasOperator) else _access(service)
        return told

    def pages(self) -> dict[str, tuple[str, str]]:
        """For each service, the URL of an agent that serves a page for people, and the page's path."""
        found = {}
        for service in self.services:
            if isinstance(service, HasPage):
                first = next(place.host for place in service.places() if place.starts)
                found[service.name] = (self.hosts[first].plans[service.name].url, service.ui)
        return found

    def left(self) -> dict[str, str]:
        """Files that the services have written for people, by name."""
        writing = [service for service in self.services if isinstance(service, WritesFiles)]
        return {what: path for service in writing for what, path in service.left().items()}

    async def keep(self, tell: Callable[[str], None]) -> None:
        """Does the manual work of the services until cancelled; `tell` receives each action."""
        await all_at_once(partial(one.keep, self, tell) for one in self.services if isinstance(one, Operates))

    def tap_control(self, client: str) -> str:
        """Path of the Unix socket that controls a client's tap."""
        return str(self._tap_socket(client))

    def namespace(self, host: str) -> str:
        """Path of the network namespace of a host."""
        return self.hosts[host].namespace

    async def wait_ready(self) -> None:
        """Waits for every service, and starts each once its prerequisites are ready. Raises WaitTimeoutError."""
        done = {service.name: anyio.Event() for service in self.services}

        async def make_ready(service: Service) -> None:
            for name in done.keys() & after(service):
                await done[name].wait()
            if not any(name == service.name for name, _ in self._placed_agents):
                await self._start_agents(service)
            await service.wait_ready(self, within_s=self.spec.ready_within, agents_run=self._all_agents_run)
            self.redactor.learn_environment(_access(service))
            done[service.name].set()

        await all_at_once(partial(make_ready, service) for service in self.services)
        self.reported = await reports(self)

    async def _all_agents_run(self) -> None:
        for service, place in self._placed_agents:
            host = self.hosts[place.host]
            if place.starts and await host.agent_process(service) is None:
                own = own_configuration(self.service(service), place.role)
                added = f", {OWN_CONFIGURATION} ({own})" if own else ""
                said = _tail(host.logs / f"{service}.log")
                raise DatacenterError(f"{host.name}: {service} {NOT_READY}{added}: {said}")

    def probes(self) -> Sequence[Probe]:
        """All probes of a run; they send their requests from the control address."""
        probes = [probe for one in self.services if isinstance(one, Watched) for probe in one.probes(self)]
        for host in self.hosts.values():
            own, *others = host.roles
            probes += [DiskProbe(host), ProcessProbe(host, agent=own)]
            probes += [ProcessProbe(host, agent=agent, label=f"{host.name}/{agent}") for agent in others]
        return [*probes, MachineProbe(quotas())]

    def describe(self) -> Mapping[str, Any]:
        """`hosts`, and the services' descriptions, for run.json."""
        told: dict[str, Any] = {"hosts": self.described_hosts(), "reported": self.reported}
        for service in self.services:
            configs = self.configs.get(service.name, {})
            told |= service.describe(configs) if isinstance(service, Describes) else {service.name: {"config": configs}}
        return told

    async def collect_logs(self, into: Path) -> None:
        for host in self.hosts.values():
            private_folder(into / host.name)
            for log in host.logs.glob("*.log"):
                self.redactor.file(log, into / host.name / log.name)


def own_configuration(service: Service, role: str) -> str:
    """Where the experiment adds to the configuration of agents of that role: `datacenter.consul.server_config`."""
    keys = ("config", "client_config" if role == "client" else "server_config")
    return " and ".join(f"datacenter.{service.name}.{key}" for key in keys if getattr(service.spec, key, None))


def _access(service: Service) -> Mapping[str, str]:
    return service.access() if isinstance(service, HandsOutTokens) else {}


def _tail(log: Path) -> str:
    if not log.is_file():
        return f"({log.name}: nothing logged)"
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-_LOG_TAIL_LINES:])
