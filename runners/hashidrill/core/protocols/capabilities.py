"""What can be done to a host, and what can be seen on it: one small protocol for each capability.

A host has a capability or lacks it: `host.can(DiskControl)` asks, `host.use(DiskControl)` gives the object to call, or
raises an error that names the host and what is missing. No host implements a capability by raising.

Injectors: DiskControl, DiskSpace, PacketFilter, Proxies, ProcessControl, AgentFiles, CpuControl, MemoryControl,
ChaosMachine, ChaosPod. Observers: DiskCanary, NetworkCanary, CpuCanary, MemoryCanary, Processes, PodStatus. A canary
makes ordinary system calls in a process on that host, which knows nothing of the injector. AgentApi is both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from hashidrill.core.errors import CapabilityError, FaultError
from hashidrill.core.protocols.packets import PacketRule
from hashidrill.core.util.foreign import parse

C = TypeVar("C")

ECHO_PORT = 7007
"""Where the observer of each host answers those of others; the canary, which shares no module with this, has a copy."""


@dataclass(frozen=True)
class Timing:
    """One canary operation: its length in seconds, and the errno it ended with (0: success)."""

    seconds: float
    errno: int = 0


@dataclass(frozen=True)
class Barrier:
    """A packet rule that keeps packets of some addresses out or in. `port`: of TCP, on this host; None for all."""

    table: str
    chain: str
    addresses: frozenset[str]
    port: int | None = None


@dataclass(frozen=True)
class PodSeen:
    """One pod as its kubelet reports it. `containers`: how often each was restarted."""

    name: str
    uid: str
    ready: bool
    owner: str
    """The kind of what keeps it there, like StatefulSet; "" for nobody."""
    containers: Mapping[str, int]


@dataclass(frozen=True)
class Toxic:
    """One toxic of toxiproxy, in its own words: `attributes` are whole numbers, times in ms unless its docs differ."""

    type: str
    attributes: Mapping[str, int]
    stream: str = "upstream"
    toxicity: float = 1.0


@dataclass(frozen=True)
class Exchange:
    """One TCP connection of a canary: seconds from its first byte to its end, errno (0: all came), bytes received.

    ENODATA says that the other side closed the connection before all had come.
    """

    seconds: float
    errno: int = 0
    received: int = 0


@dataclass(frozen=True)
class ExchangeRequest:
    """What a canary sends and wants back over each of some connections, `at_once` of them at a time.

    `until_closed` waits for the other side, which closes when it has sent all, to do so.
    """

    upload_bytes: int = 0
    download_bytes: int = 1
    timeout_s: float = 1.0
    connections: int = 1
    until_closed: bool = False
    at_once: int = 32


@dataclass(frozen=True)
class ApiAnswer:
    """What an agent's HTTP API answered, whatever the status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""

    def json(self) -> Any:
        """Raises FaultError for a body that is not JSON."""
        try:
            return parse(self.body)
        except ValueError:
            raise FaultError(f"HTTP {self.status}, not JSON: {self.body[:200]!r}") from None


@runtime_checkable
class DiskControl(Protocol):
    """Slow or fail the operations of the host's disk."""

    async def set_disk_rule(self, rule_id: str, rule: Mapping[str, Any]) -> None: ...

    async def clear_disk_rule(self, rule_id: str) -> None: ...


@runtime_checkable
class DiskSpace(Protocol):
    """Fill the host's disk and empty it again."""

    async def fill_disk(self, name: str, leave_bytes: int) -> None: ...

    async def unfill_disk(self, name: str) -> None: ...


@runtime_checkable
class PacketFilter(Protocol):
    """Drop, refuse, count and redirect packets in the host's network namespace, by nf_tables."""

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        """Put these rules in force, in a table of their own, in place of what it held. Raises FaultError."""

    async def suspend_packet_rules(self, table: str) -> None:
        """Let all packets pass; what was redirected is still translated on its way back. Raises FaultError."""

    async def clear_packet_rules(self, table: str) -> None:
        """Remove the table; nothing when there is none. Raises FaultError."""

    async def packet_tables(self) -> Sequence[str]: ...

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        """Packets counted by each rule of a table that has a comment, by that comment; empty without such a table."""

    async def packet_barriers(self) -> Sequence[Barrier]:
        """The rules of this host, of all tables, that drop or refuse packets of an address."""


@runtime_checkable
class Proxies(Protocol):
    """Put a toxiproxy in front of a port of the host."""

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        """A toxiproxy on this host: what comes in on `listen` goes on to the host's own `port`, with the toxics.

        It is not there before its toxics are. Raises FaultError.
        """

    async def remove_proxy(self, name: str) -> None:
        """Ends the proxy and its connections; nothing when there is none. Raises FaultError."""

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        """What the proxy holds now; None when it is not there or does not listen."""


@runtime_checkable
class EstateLinks(Protocol):
    """Put toxics on the estate's own proxies that lead to the host, and look through them."""

    def proxies_to(self, port: int) -> Sequence[str]:
        """The names of the proxies that lead to that port of the host."""

    def toxic_names(self, fault_id: str, count: int) -> Sequence[str]:
        """Names for toxics that are this run's alone."""

    def provable(self, port: int) -> bool:
        """Whether something is known that the agent behind that port answers at once."""

    async def add_toxics(self, proxy: str, names: Sequence[str], toxics: Sequence[Toxic]) -> None:
        """Those that are there already stay as they are, also those of others. Raises FaultError."""

    async def remove_toxics(self, proxy: str, names: Sequence[str]) -> None:
        """Nothing for those that are not there. Raises FaultError."""

    async def held_toxics(self, proxy: str, names: Sequence[str]) -> Sequence[Toxic]:
        """Those of these names that the proxy holds. Raises FaultError."""

    async def exchange_through(self, proxy: str, request: ExchangeRequest) -> Sequence[Exchange]:
        """Connections through the proxy to the agent behind it, which is asked something that it answers at once."""


@dataclass(frozen=True)
class AgentProcess:
    """A running agent. `pid` together with `start_time` (clock ticks since boot) never names another process."""

    pid: int
    start_time: int
    state: str

    @property
    def reference(self) -> str:
        """As `Target.reference` has it: `1234@56789`."""
        return f"{self.pid}@{self.start_time}"


class ChaosObjects(Protocol):
    """What others who inject are told by objects, each aimed at the machine or pod that the capability is about."""

    @property
    def netem(self) -> bool:
        """Whether the kernel there has netem, as the estate's file says."""

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        """`kind`, `name` and `namespace` of this run's object for that fault. Pure."""

    async def check(self, kind: str, spec: Mapping[str, Any]) -> None:
        """Raises FaultError where the cluster would refuse the spec, or drop a part of it. Creates nothing."""

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        """With a duration of its own, unless it is over at `once`. Nothing when it is there. Raises FaultError."""

    async def said(self, made: Mapping[str, str]) -> str:
        """What its controller says of it, in words for people: never a proof. "" when there is no such object."""

    async def remove(self, made: Mapping[str, str]) -> None:
        """Deletes it and waits until it is gone; nothing when it is not there. Raises FaultError with what helps."""


@runtime_checkable
class ChaosMachine(ChaosObjects, Protocol):
    """Break the machine by Chaos Mesh, through its chaosd."""


@runtime_checkable
class ChaosPod(ChaosObjects, Protocol):
    """Break the pod of the agent by Chaos Mesh."""


@runtime_checkable
class LitmusPod(ChaosObjects, Protocol):
    """Break the pod of the agent by Litmus."""


@runtime_checkable
class LitmusNode(ChaosObjects, Protocol):
    """Drain the node of the agent's pod by Litmus."""


@runtime_checkable
class NodeStatus(Protocol):
    """See whether the node of the agent's pod takes pods."""

    async def name(self) -> str:
        """Of the node that the pod is on now. Raises FaultError."""

    async def takes_pods(self, name: str) -> bool:
        """Whether that node does; not when it is gone. Raises FaultError."""


@runtime_checkable
class PodStatus(Protocol):
    """See what the kubelet reports of the agent's pod."""

    async def pod(self) -> PodSeen | None:
        """None when there is no pod of that name. Raises FaultError."""


@runtime_checkable
class Processes(Protocol):
    """See the processes of the host's agents."""

    async def agent_process(self, agent: str) -> AgentProcess | None: ...

    async def agent_answers(self, agent: str, timeout_s: float) -> bool:
        """Whether the agent's API answers anything at all within `timeout_s`."""

    async def cpu_seconds(self, agent: str) -> float:
        """CPU time that the agent's process has used since it started; 0 without one."""

    async def written_bytes(self, agent: str) -> int:
        """What the agent has passed to write calls since it started, sockets included. Raises FaultError."""


@runtime_checkable
class ProcessControl(Protocol):
    """Signal, stop and start the host's agents."""

    async def signal(self, reference: str, signal: int) -> bool:
        """Signal the process of that `AgentProcess.reference`; False when it is gone."""

    async def start_agent(self, agent: str) -> None: ...

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:
        """SIGTERM, and SIGKILL after `within_s`; returns when the process is gone. Nothing when none runs."""


@runtime_checkable
class AgentFiles(Protocol):
    """Read and replace the configuration and data files of the host's agents."""

    async def agent_config(self, agent: str) -> dict[str, Any]:
        """The agent's configuration file."""

    async def set_agent_config(self, agent: str, config: Mapping[str, Any]) -> None:
        """Replace the configuration file. The running agent knows nothing of it until it is reloaded or restarted."""

    @property
    def data(self) -> Path:
        """The host's disk: what an agent keeps is in the folder of the agent's name."""


@runtime_checkable
class AgentSettings(Protocol):
    """Add settings to the host's agents, in one more file beside those of their owner, which stay as they are."""

    async def agent_settings(self, agent: str) -> dict[str, Any]:
        """What the file of ours says; empty without one. Raises FaultError where the agent's files are not found."""

    async def set_agent_settings(
        self, agent: str, settings: Mapping[str, Any], *, restart: bool, check: Sequence[str]
    ) -> None:
        """Writes the file, and has the agent read it: by SIGHUP, or by its restart.

        `check`: the words of the agent's own program that look at its files first. Raises FaultError.
        """

    async def clear_agent_settings(self, agent: str) -> None:
        """Takes the file away and has the agent read again; nothing where there is none. Raises FaultError."""


@runtime_checkable
class AgentApi(Protocol):
    """Call the HTTP APIs of the host's agents."""

    async def api(
        self,
        method: str,
        path: str,
        *,
        agent: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float = 5.0,
    ) -> ApiAnswer:
        """One request to the HTTP API of that agent of this host. Raises FaultError."""


@runtime_checkable
class CpuControl(Protocol):
    """Limit how many cores the host's processes get."""

    async def limit_cpu(self, name: str, cores: float) -> None: ...

    async def unlimit_cpu(self, name: str) -> None: ...


@runtime_checkable
class MemoryControl(Protocol):
    """Hold the host's agents to a memory limit, and take memory away from them."""

    async def memory_in_use(self) -> tuple[int, int]:
        """Bytes that are charged to the agents; those of them that are the processes' own, and no file's.

        Raises FaultError where the machine allows no cgroup for memory.
        """

    async def limit_memory(self, name: str, limit_bytes: int) -> None:
        """The kernel ends agents where they hold more that it cannot reclaim. Raises FaultError."""

    async def take_memory(self, name: str, size_bytes: int) -> None:
        """A process of that name, which counts as one of the agents, holds `size_bytes`. Raises FaultError."""

    async def free_memory(self, name: str) -> None:
        """Lifts the limit and ends the process; nothing without them."""


@runtime_checkable
class DiskCanary(Protocol):
    """Time operations on the host's disk."""

    async def canary_fsync(self) -> Timing: ...

    async def canary_write(self, size_bytes: int) -> Timing: ...

    async def canary_read(self, size_bytes: int) -> Timing: ...

    async def canary_disk(self, operation: str, size_bytes: int, trials: int, within_s: float) -> Sequence[Timing]:
        """`trials` of an operation (`fsync`, `write`, `read`), up to 256 at once.

        None begins after `within_s`: then there are fewer.
        """

    async def free_bytes(self) -> int: ...


@runtime_checkable
class NetworkCanary(Protocol):
    """Send and receive over the network from the host."""

    async def connect(self, address: str, port: int, timeout_s: float) -> Timing: ...

    async def canary_listen(self, port: int) -> None:
        """The canary answers exchanges on that port too, from now on."""

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]: ...

    async def echo_loss(self, address: str, datagrams: int, timeout_s: float) -> float: ...


@runtime_checkable
class CpuCanary(Protocol):
    """Measure how much CPU time processes on the host get."""

    @property
    def cpus(self) -> int:
        """How many its processes can use at once."""

    async def canary_burn(self, threads: int, windows: int, window_s: float) -> Sequence[float]:
        """CPU seconds per second that `threads` busy threads get together, in each of the windows, one after the other.

        Raises FaultError when they did not get through.
        """


@runtime_checkable
class MemoryCanary(Protocol):
    """See how much memory the host's agents hold, and how much more they could take."""

    async def canary_take(self, size_bytes: int) -> int:
        """How many of `size_bytes` a new process among the agents could take. The kernel ends it before any of them.

        Raises FaultError when it could not be started.
        """

    async def own_bytes(self, name: str) -> int:
        """What the process of that agent, or of that name, holds that is no file's; 0 without one."""

    async def memory_refusals(self) -> int:
        """How often the agents met a limit of memory, by the kernel's count. Raises FaultError."""


CAPABILITIES: tuple[type[Any], ...] = (
    DiskControl,
    DiskSpace,
    PacketFilter,
    Proxies,
    Processes,
    ProcessControl,
    AgentFiles,
    AgentApi,
    CpuControl,
    MemoryControl,
    DiskCanary,
    NetworkCanary,
    CpuCanary,
    MemoryCanary,
)
"""Those that hashidrill's own faults and probes use; a plug-in may define others."""


def described(capability: type[Any]) -> str:
    """`DiskControl (slow or fail the operations of the host's disk)`."""
    summary = (capability.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return f"{capability.__name__} ({summary[:1].lower()}{summary[1:]})"


class Capable:
    """Base of hosts: `parts` maps each capability that the host has to the object that carries it out."""

    name: str

    def __init__(self) -> None:
        self.parts: dict[type[Any], Any] = {}
        self.roles: dict[str, str] = {}

    @property
    def role(self) -> str:
        """That of its first agent; "" without any."""
        return next(iter(self.roles.values()), "")

    def can(self, capability: type[Any]) -> bool:
        """Whether the host has this capability."""
        return capability in self.parts

    def use(self, capability: type[C]) -> C:
        """The capability, to call its methods. Raises CapabilityError that names the host and what it lacks."""
        try:
            part: C = self.parts[capability]
        except KeyError:
            raise CapabilityError(self.name, described(capability)) from None
        return part
