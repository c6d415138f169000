"""The capabilities of hosts: one small protocol for each way to change or observe a host.

A host has a capability or lacks it: `host.can(DiskControl)` asks, `host.use(DiskControl)` gives the object to call,
or raises an error that names the host and what is missing. A host has no methods for a capability that it lacks.

Injectors: DiskControl, DiskSpace, PacketFilter, Proxies, ProcessControl, AgentFiles, CpuControl, MemoryControl,
ChaosMachine, ChaosPod. Observers: DiskCanary, NetworkCanary, CpuCanary, MemoryCanary, Processes, Connections,
PodStatus. A canary makes ordinary system calls in a process on that host, which shares nothing with the injector.
AgentApi changes and observes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from hashidrill.core.errors import CapabilityError, FaultError
from hashidrill.core.protocols.packets import PacketRule
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.safe_json import parse

C = TypeVar("C")

ECHO_PORT = 7007
"""Each host's observer answers other hosts on this port. The canary has a copy: it does not import this module."""


@dataclass(frozen=True)
class Timing:
    """One canary operation: its length in seconds, and the errno it ended with (0: success)."""

    seconds: float
    errno: int = 0


@dataclass(frozen=True)
class Barrier:
    """A packet rule that blocks packets from or to some addresses. `port`: a TCP port of this host; None: all ports."""

    table: str
    chain: str
    addresses: frozenset[str]
    port: int | None = None


@dataclass(frozen=True)
class PodSeen:
    """One pod as its kubelet reports it. `containers`: the number of restarts of each, by name."""

    name: str
    uid: str
    ready: bool
    owner: str
    """The kind of its controller, like StatefulSet; "" without one."""
    containers: Mapping[str, int]


@dataclass(frozen=True)
class ContainerUse:
    """What the cgroup of a container has used."""

    cpu_s: float
    """Seconds of CPU since the container started."""
    memory_bytes: int
    """Anonymous memory, without the page cache."""


@dataclass(frozen=True)
class Toxic:
    """One toxic, in toxiproxy's words. `attributes` are whole numbers; times are in ms unless its docs differ."""

    type: str
    attributes: Mapping[str, int]
    stream: str = "upstream"
    toxicity: float = 1.0


@dataclass(frozen=True)
class Exchange:
    """One TCP connection of a canary: seconds from its first byte to its end, errno (0: complete), bytes received.

    ENODATA means that the other side closed the connection before all bytes had arrived.
    """

    seconds: float
    errno: int = 0
    received: int = 0


@dataclass(frozen=True)
class ExchangeRequest:
    """What a canary sends and expects on each of several connections, `at_once` of them at a time.

    With `until_closed`, it waits until the other side closes the connection, after the last byte.
    """

    upload_bytes: int = 0
    download_bytes: int = 1
    timeout_s: float = 1.0
    connections: int = 1
    until_closed: bool = False
    at_once: int = 32


@dataclass(frozen=True)
class ApiAnswer:
    """An answer of an agent's HTTP API, whatever the status."""

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
        """Puts these rules in force, in place of all others in the table of this fault. Raises FaultError."""

    async def suspend_packet_rules(self, table: str) -> None:
        """Lets all packets pass; redirected connections are still translated on their way back. Raises FaultError."""

    async def clear_packet_rules(self, table: str) -> None:
        """Removes the table; does nothing when there is none. Raises FaultError."""

    async def packet_tables(self) -> Sequence[str]: ...

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        """The packets that each rule with a comment has counted, by comment; empty if there is no such table."""

    async def packet_barriers(self) -> Sequence[Barrier]:
        """The rules on this host, in any table, that drop or refuse packets from or to an address."""


@runtime_checkable
class Proxies(Protocol):
    """Put a toxiproxy in front of a port of the host."""

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        """Starts a toxiproxy on this host that forwards `listen` to the host's own `port`, with the toxics.

        The proxy does not listen before its toxics are in place. Raises FaultError.
        """

    async def remove_proxy(self, name: str) -> None:
        """Ends the proxy and its connections; does nothing when there is none. Raises FaultError."""

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        """The toxics that the proxy holds now; None when it is missing or does not listen."""


@runtime_checkable
class EstateLinks(Protocol):
    """Put toxics on the estate's own proxies that lead to the host, and observe through them."""

    def proxies_to(self, port: int) -> Sequence[str]:
        """The names of the proxies that lead to that port of the host."""

    def toxic_names(self, fault_id: str, count: int) -> Sequence[str]:
        """Names for `count` toxics; no other run uses these names."""

    def provable(self, port: int) -> bool:
        """Whether the agent behind that port has a known request that it answers at once."""

    async def add_toxics(self, proxy: str, names: Sequence[str], toxics: Sequence[Toxic]) -> None:
        """Adds the toxics; all existing ones, also other people's, stay unchanged. Raises FaultError."""

    async def remove_toxics(self, proxy: str, names: Sequence[str]) -> None:
        """Removes the toxics with these names; missing ones are ignored. Raises FaultError."""

    async def held_toxics(self, proxy: str, names: Sequence[str]) -> Sequence[Toxic]:
        """The toxics with these names that the proxy holds. Raises FaultError."""

    async def exchange_through(self, proxy: str, request: ExchangeRequest) -> Sequence[Exchange]:
        """Connections through the proxy to the agent behind it, with a request that it answers at once."""


@dataclass(frozen=True)
class AgentProcess:
    """A running agent. `pid` and `start_time` (clock ticks since boot) together never identify another process."""

    pid: int
    start_time: int
    state: str

    @property
    def reference(self) -> str:
        """The `Target.reference` of this process: `1234@56789`."""
        return f"{self.pid}@{self.start_time}"


class ChaosObjects(Protocol):
    """Control another injector by Kubernetes objects, each aimed at this capability's machine or pod."""

    @property
    def netem(self) -> bool:
        """Whether the kernel there has netem, according to the estate's file."""

    def object_of(self, kind: str, fault_id: str) -> Mapping[str, str]:
        """`kind`, `name` and `namespace` of this run's object for that fault. Pure."""

    async def check(self, kind: str, spec: Mapping[str, Any], rights: Sequence[Right] = ()) -> None:
        """Raises FaultError if the cluster would refuse the spec, drop a part of it, or refuse one of the `rights`.

        Creates nothing. An object that was created without the right to delete it would stay.
        """

    async def create(self, made: Mapping[str, str], spec: Mapping[str, Any], *, once: bool) -> None:
        """Creates the object if it is missing; it has a duration unless the fault happens `once`. Raises FaultError."""

    async def said(self, made: Mapping[str, str]) -> str:
        """The controller's report about the object, for people: never a proof. "" without such an object."""

    async def remove(self, made: Mapping[str, str]) -> None:
        """Deletes the object and waits until it is gone; ignores a missing one. Raises FaultError with a remedy."""


@runtime_checkable
class ChaosMachine(ChaosObjects, Protocol):
    """Break the machine with Chaos Mesh, through its chaosd."""


@runtime_checkable
class ChaosPod(ChaosObjects, Protocol):
    """Break the agent's pod with Chaos Mesh."""


@runtime_checkable
class LitmusPod(ChaosObjects, Protocol):
    """Break the agent's pod with Litmus."""


@runtime_checkable
class LitmusNode(ChaosObjects, Protocol):
    """Drain the node of the agent's pod with Litmus."""


@runtime_checkable
class NodeStatus(Protocol):
    """See whether the node of the agent's pod accepts pods."""

    async def name(self) -> str:
        """The name of the node that the pod is on now. Raises FaultError."""

    async def takes_pods(self, name: str) -> bool:
        """Whether that node accepts pods; False if the node is gone. Raises FaultError."""


@runtime_checkable
class PodStatus(Protocol):
    """See what the kubelet reports of the agent's pod, and what its containers use."""

    async def pod(self) -> PodSeen | None:
        """None when there is no pod of that name. Raises FaultError."""

    async def used(self, container: str) -> ContainerUse:
        """Its use, read inside the container from the files of its cgroup. Raises FaultError."""


@runtime_checkable
class Processes(Protocol):
    """See the processes of the host's agents."""

    async def agent_process(self, agent: str) -> AgentProcess | None: ...

    async def agent_answers(self, agent: str, timeout_s: float) -> bool:
        """Whether the agent's API answers, with any status, within `timeout_s`."""

    async def cpu_seconds(self, agent: str) -> float:
        """CPU time that the agent's process has used since it started; 0 if no process runs."""

    async def written_bytes(self, agent: str) -> int:
        """Bytes that the agent has passed to write calls since it started, sockets included. Raises FaultError."""


@dataclass(frozen=True)
class Connection:
    """An established TCP connection of a host: the host's port, the other side's address, the bytes written so far.

    `window_limited_s` is the time for which data waited because the other side's receive window had no room for it.
    """

    port: int
    address: str
    written_bytes: int
    window_limited_s: float = 0.0


@runtime_checkable
class Connections(Protocol):
    """See the TCP connections that the host holds."""

    async def connections(self, port: int) -> Sequence[Connection]:
        """The established connections to other hosts on their port `port`. Raises FaultError."""


@runtime_checkable
class ProcessControl(Protocol):
    """Signal, stop and start the host's agents."""

    async def signal(self, reference: str, signal: int) -> bool:
        """Signals the process of that `AgentProcess.reference`; False when it has ended."""

    async def start_agent(self, agent: str) -> None: ...

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:
        """Sends SIGTERM, and SIGKILL after `within_s`; returns when the process has ended, or if none runs."""


@runtime_checkable
class AgentFiles(Protocol):
    """Read and replace the configuration and data files of the host's agents."""

    async def agent_config(self, agent: str) -> dict[str, Any]:
        """The agent's configuration file."""

    async def set_agent_config(self, agent: str, config: Mapping[str, Any]) -> None:
        """Replaces the configuration file. The running agent sees it only after a reload or restart."""

    @property
    def data(self) -> Path:
        """The host's disk: an agent's data is in the folder with the agent's name."""


@runtime_checkable
class AgentSettings(Protocol):
    """Add settings to the host's agents in an additional file; their owner's files stay unchanged."""

    async def agent_settings(self, agent: str) -> dict[str, Any]:
        """The content of the additional file; empty without one. Raises FaultError if the agent's files are missing."""

    async def set_agent_settings(
        self, agent: str, settings: Mapping[str, Any], *, restart: bool, check: Sequence[str]
    ) -> None:
        """Writes the file, and makes the agent read it: by SIGHUP, or by a restart.

        `check`: arguments with which the agent's own program first checks its files. Raises FaultError.
        """

    async def clear_agent_settings(self, agent: str) -> None:
        """Removes the file and makes the agent read its files again; ignores a missing one. Raises FaultError."""


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
        """Sends one request to the HTTP API of that agent on this host. Raises FaultError."""


@runtime_checkable
class CpuControl(Protocol):
    """Limit how many cores the host's processes get."""

    async def limit_cpu(self, name: str, cores: float) -> None: ...

    async def unlimit_cpu(self, name: str) -> None: ...


@runtime_checkable
class MemoryControl(Protocol):
    """Limit the memory of the host's agents, and take memory away from them."""

    async def memory_in_use(self) -> tuple[int, int]:
        """Bytes charged to the agents, and how many of them belong to processes rather than to cached files.

        Raises FaultError if the machine allows no cgroup for memory.
        """

    async def limit_memory(self, name: str, limit_bytes: int) -> None:
        """Limits the agents' memory; the kernel kills agents that hold more than it can reclaim. Raises FaultError."""

    async def take_memory(self, name: str, size_bytes: int) -> None:
        """Starts a process of that name, which counts as an agent and holds `size_bytes`. Raises FaultError."""

    async def free_memory(self, name: str) -> None:
        """Lifts the limit and ends the process; does nothing if there is neither."""


@runtime_checkable
class DiskCanary(Protocol):
    """Time operations on the host's disk."""

    async def canary_fsync(self) -> Timing: ...

    async def canary_write(self, size_bytes: int) -> Timing: ...

    async def canary_read(self, size_bytes: int) -> Timing: ...

    async def canary_disk(self, operation: str, size_bytes: int, trials: int, within_s: float) -> Sequence[Timing]:
        """Makes `trials` of an operation (`fsync`, `write`, `read`), up to 256 at once.

        No trial begins after `within_s`, so there may be fewer.
        """

    async def free_bytes(self) -> int: ...


@runtime_checkable
class NetworkCanary(Protocol):
    """Send and receive over the network from the host."""

    async def connect(self, address: str, port: int, timeout_s: float) -> Timing: ...

    async def canary_listen(self, port: int) -> None:
        """Makes the canary answer exchanges on that port too, from now on."""

    async def exchange(self, address: str, port: int, request: ExchangeRequest) -> Sequence[Exchange]: ...

    async def echo_loss(self, address: str, datagrams: int, timeout_s: float) -> float: ...


@runtime_checkable
class CpuCanary(Protocol):
    """Measure how much CPU time processes on the host get."""

    @property
    def cpus(self) -> int:
        """The number of CPUs that the host's processes can use at once."""

    async def canary_burn(self, threads: int, windows: int, window_s: float) -> Sequence[float]:
        """CPU seconds per second that `threads` busy threads get together, in each of successive windows.

        Raises FaultError if the threads did not finish.
        """


@runtime_checkable
class MemoryCanary(Protocol):
    """See how much memory the host's agents hold, and how much more they could take."""

    async def canary_take(self, size_bytes: int) -> int:
        """The part of `size_bytes` that a new process among the agents could allocate. The kernel kills that process
        before any agent.

        Raises FaultError when it could not be started.
        """

    async def own_bytes(self, name: str) -> int:
        """Bytes outside of files that the process of that agent, or of that name, holds; 0 if there is no process."""

    async def memory_refusals(self) -> int:
        """The kernel's count of how often the agents reached a memory limit. Raises FaultError."""


CAPABILITIES: tuple[type[Any], ...] = (
    DiskControl,
    DiskSpace,
    PacketFilter,
    Proxies,
    Processes,
    Connections,
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
"""The capabilities that hashidrill's own faults and probes use; a plug-in may define others."""


def described(capability: type[Any]) -> str:
    """The capability for a message: `DiskControl (slow or fail the operations of the host's disk)`."""
    summary = (capability.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return f"{capability.__name__} ({summary[:1].lower()}{summary[1:]})"


class Capable:
    """Base of hosts: `parts` maps each capability that the host has to the object that implements it."""

    name: str

    def __init__(self) -> None:
        self.parts: dict[type[Any], Any] = {}
        self.roles: dict[str, str] = {}

    @property
    def role(self) -> str:
        """The role of its first agent; "" if it has no agent."""
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
