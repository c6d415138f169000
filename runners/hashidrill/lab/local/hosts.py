"""One host of the local datacenter, as faults and observers see it (hashidrill.core.protocols.abc.Host).

It uses only the Unix sockets in the sandbox's run directory, /proc, and netlink in the host's network namespace. So a
later process inside the sandbox can do as much as the process that started the host.
"""

import errno
import json
import os
import pwd
import signal as signals
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx2

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.faults import toxiproxy
from hashidrill.core.protocols import packets
from hashidrill.core.protocols.abc import AgentProcess, ApiAnswer, Barrier, Timing, Toxic
from hashidrill.core.protocols.capabilities import CAPABILITIES, Capable, Connection, Proxies
from hashidrill.core.protocols.packets import Chain, PacketRule, Statement
from hashidrill.core.protocols.service import AgentPlan
from hashidrill.core.tap import observer
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.files import private
from hashidrill.core.util.processes import is_machine_root
from hashidrill.core.util.wait import all_at_once, wait_until
from hashidrill.lab.canaries import ANSWERS_WITHIN_S, CanaryOfHost
from hashidrill.lab.sandbox import cgroups, connections, nf_tables


async def ask(socket_path: Path, request: Mapping[str, Any], *, within_s: float = ANSWERS_WITHIN_S) -> dict[str, Any]:
    """Sends one request to hostd, a canary or diskd. Raises FaultError for an error, or if no answer comes."""
    try:
        with anyio.fail_after(within_s):
            async with await anyio.connect_unix(str(socket_path)) as stream:
                await stream.send(json.dumps(request).encode() + b"\n")
                answer = b""
                while not answer.endswith(b"\n"):
                    answer += await stream.receive(1 << 20)
    except TimeoutError:
        raise FaultError(f"{socket_path.name}: no answer to {request['op']} within {within_s:g}s") from None
    except (OSError, anyio.EndOfStream) as error:
        raise FaultError(f"{socket_path.name}: cannot ask for {request['op']}: {error or 'closed'}") from None
    decoded: dict[str, Any] = json.loads(answer)
    if decoded.get("error"):
        raise FaultError(f"{socket_path.name}: {request['op']}: {decoded['error']}")
    return decoded


T = TypeVar("T")
_TOXIPROXY_WITHIN_S = 10.0
_KILLED_WITHIN_S = 10.0
_SQUEEZES, _SQUEEZE_BYTES = 8, 1 << 20


_STATUS = Path("/proc/self/status")
_CHOWN, _DAC_OVERRIDE, _KILL, _SETGID, _SETUID, _SYS_PTRACE = 0, 1, 5, 6, 7, 19
_NEEDED = sum(1 << bit for bit in (_CHOWN, _DAC_OVERRIDE, _KILL, _SETGID, _SETUID, _SYS_PTRACE))
"""Capabilities to hand files over, to become the user, and to signal and watch its processes (capabilities(7))."""
_PASSABLE, _GROUP_ONLY = 0o711, 0o750
_OWNER_PASSES, _OTHERS_PASS = 0o100, 0o001


@dataclass(frozen=True)
class AgentUser:
    """The ids of a user and its group."""

    uid: int
    gid: int

    def owns(self, path: Path) -> None:
        """Makes this user the owner of a file or folder. Raises OSError."""
        os.chown(path, self.uid, self.gid)

    def reaches(self, root: Path, host: Path) -> None:
        """Lets the user pass, but not list, the folders from `root` to `host`.

        Other users cannot enter `host`. Raises OSError.
        """
        for folder in (root, *reversed([parent for parent in host.parents if root in parent.parents])):
            folder.chmod(_PASSABLE)
        os.chown(host, -1, self.gid)
        host.chmod(_GROUP_ONLY)


def agent_user(root: Path) -> AgentUser | None:
    """The user for agents whose files are below `root`; None if they run as the user of the sandbox."""
    if not is_machine_root() or _NEEDED & ~_capabilities():
        return None
    user = _user()
    return user if user is not None and all(_passable(parent, user) for parent in root.parents) else None


def _passable(folder: Path, user: AgentUser) -> bool:
    status = folder.stat()
    owned = status.st_uid == user.uid
    return bool(status.st_mode & (_OWNER_PASSES if owned else _OTHERS_PASS))


def _user() -> AgentUser | None:
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid.isdecimal() and gid.isdecimal() and int(uid):
        return AgentUser(int(uid), int(gid))
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return None
    return AgentUser(nobody.pw_uid, nobody.pw_gid)


def _capabilities() -> int:
    try:
        [line] = [line for line in _STATUS.read_text().splitlines() if line.startswith("CapEff:")]
        return int(line.split()[1], 16)
    except (OSError, ValueError):
        return 0


class LocalHost(CanaryOfHost, Capable):
    """A host in the sandbox. `root` is the sandbox's run directory."""

    def __init__(
        self,
        name: str,
        address: str,
        roles: Mapping[str, str],
        root: Path,
        pid: int,
        *,
        toxiproxy: Path | None = None,
        agent_user: AgentUser | None = None,
    ) -> None:
        super().__init__()
        self.parts |= dict.fromkeys(CAPABILITIES, self)
        if toxiproxy is None:
            del self.parts[Proxies]
        self.name = name
        self.address = address
        self.roles |= roles
        self.pid = pid
        self.data = root / "hosts" / name / "data"
        self.logs = root / "hosts" / name / "logs"
        self.plans: dict[str, AgentPlan] = {}
        self.armed: set[str] = set()  # agents that keep root's rights over this host
        self.ballast_name: Callable[[str], str] = ".ballast-{}".format
        """The name of the file that fills the disk, made from the fault's name."""
        self._root = root
        self._toxiproxy = toxiproxy
        self._agent_user = agent_user
        self._hostd = root / "s" / f"{name}.host"
        self._canary = root / "s" / f"{name}.canary"
        self._diskd = root / "s" / "diskd"

    @property
    def namespace(self) -> str:
        """Path of the host's network namespace."""
        return f"/proc/{self.pid}/ns/net"

    @property
    def _group_name(self) -> str:
        return f"{self._root.name}/{self.name}"

    @property
    def cpus(self) -> int:
        return len(os.sched_getaffinity(0))

    # injectors

    async def set_disk_rule(self, rule_id: str, rule: Mapping[str, Any]) -> None:
        await ask(self._diskd, {"op": "set", "host": self.name, "rule_id": rule_id, "rule": dict(rule)})

    async def clear_disk_rule(self, rule_id: str) -> None:
        await ask(self._diskd, {"op": "clear", "host": self.name, "rule_id": rule_id})

    async def fill_disk(self, name: str, leave_bytes: int) -> None:
        """Fills the file system with a file, except for `leave_bytes`."""
        await anyio.to_thread.run_sync(self._fill, self._ballast(name), leave_bytes)

    async def unfill_disk(self, name: str) -> None:
        self._ballast(name).unlink(missing_ok=True)

    def _ballast(self, name: str) -> Path:
        return self.data / self.ballast_name(name)

    def _fill(self, ballast: Path, leave_bytes: int) -> None:
        """Retries with a little less, because the agent writes meanwhile."""
        with ballast.open("wb", buffering=0) as file:
            size, shy = 0, 0
            while (room := self._free(file.fileno()) - leave_bytes - shy) > 0:
                try:
                    os.posix_fallocate(file.fileno(), size, room)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    shy = shy * 2 or os.fstatvfs(file.fileno()).f_frsize
                else:
                    size, shy = size + room, 0

    @staticmethod
    def _free(fd: int) -> int:
        stat = os.fstatvfs(fd)
        return stat.f_bavail * stat.f_frsize

    async def set_packet_rules(self, table: str, rules: Sequence[PacketRule]) -> None:
        await self._put(table, packets.chains_of(rules), packets.statements_of(rules))

    async def suspend_packet_rules(self, table: str) -> None:
        await self._suspend(table, packets.REDIRECTING, packets.BLOCKING)

    async def clear_packet_rules(self, table: str) -> None:
        await self._in_namespace(partial(nf_tables.remove, table))

    async def _put(self, table: str, chains: Sequence[Chain], statements: Sequence[Statement]) -> None:
        await self._in_namespace(partial(nf_tables.replace, table, chains, statements))

    async def _suspend(self, table: str, redirecting: Chain, blocking: Chain) -> None:
        await self._in_namespace(partial(nf_tables.suspend, table, redirecting, blocking))

    async def _in_namespace(self, work: Callable[[], T], what: str = "packet rules") -> T:
        try:
            return await anyio.to_thread.run_sync(sc.in_network, self.namespace, work)
        except OSError as error:
            raise FaultError(f"{self.name}: the kernel refuses {what}: {error.strerror or error}") from None

    async def packet_tables(self) -> Sequence[str]:
        return await self._in_namespace(nf_tables.tables)

    async def packet_barriers(self) -> Sequence[Barrier]:
        seen = [rule for rule in await self._in_namespace(nf_tables.rules) if rule.drops and rule.addresses]
        return [Barrier(rule.table, rule.chain, rule.addresses, port) for rule in seen for port in rule.ports or [None]]

    async def packet_counts(self, table: str) -> Mapping[str, int]:
        counted = Counter[str]()
        for rule in await self._in_namespace(nf_tables.rules):
            if rule.table == table and rule.comment and rule.packets is not None:
                counted[rule.comment] += rule.packets
        return counted

    async def add_proxy(self, name: str, listen: int, port: int, toxics: Sequence[Toxic]) -> None:
        await self._start_toxiproxy()
        try:
            ends = f"{self.address}:{listen}", f"{self.address}:{port}"
            await toxiproxy.create(self.address, name, *ends, toxics)
        except httpx2.HTTPError as error:
            raise FaultError(f"{self.name}: toxiproxy refused the proxy {name}: {toxiproxy.said(error)}") from None

    async def remove_proxy(self, name: str) -> None:
        """Removes the proxy; kills a toxiproxy that does not answer, with its connections."""
        process = await self.agent_process(toxiproxy.AGENT)
        if process is None:
            return
        try:
            await toxiproxy.delete(self.address, name)
        except httpx2.HTTPError:
            await self.signal(process.reference, signals.SIGKILL)
            await self._toxiproxy_ends()

    async def proxy_toxics(self, name: str) -> Sequence[Toxic] | None:
        if await self.agent_process(toxiproxy.AGENT) is None:
            return None
        try:
            return await toxiproxy.toxics(self.address, name)
        except httpx2.HTTPError:
            return None

    async def _start_toxiproxy(self) -> None:
        """Starts toxiproxy unless it runs. Returns when its API answers."""
        if self._toxiproxy is None:
            raise FaultError(f"{self.name}: the datacenter was started without a toxiproxy-server")
        command = toxiproxy.command(self._toxiproxy, self.name, self.address)
        await self.spawn_agent(toxiproxy.AGENT, command, toxiproxy.ENVIRONMENT)

        async def answers() -> tuple[bool | None, str]:
            if await self.agent_process(toxiproxy.AGENT) is None:
                raise FaultError(f"{self.name}: toxiproxy-server ended; its log is {self.logs / 'toxiproxy.log'}")
            return (True if await toxiproxy.answers(self.address) else None), "its API does not answer"

        await wait_until(f"toxiproxy on {self.name} to start", answers, within_s=_TOXIPROXY_WITHIN_S, gap_s=0.02)

    async def _toxiproxy_ends(self) -> None:
        async def ended() -> tuple[bool | None, str]:
            return (None if await self.agent_process(toxiproxy.AGENT) else True), "it still runs"

        await wait_until(f"toxiproxy on {self.name} to end", ended, within_s=_TOXIPROXY_WITHIN_S, gap_s=0.02)

    async def signal(self, reference: str, signal: int) -> bool:
        pid, _, start_time = reference.partition("@")
        return bool(pid) and sc.signal_process(int(pid), int(start_time), signals.Signals(signal))

    async def start_agent(self, agent: str) -> None:
        """Starts the agent by its known command; a later process repeats the command of its last start."""
        if agent in self.plans:
            plan = self.plans[agent]
            await self.spawn_agent(agent, plan.command, plan.environment, as_root=plan.as_root)
        else:
            await ask(self._hostd, {"op": "start", "agent": agent})

    async def stop_agent(self, agent: str, *, within_s: float = 15.0) -> None:
        process = await self.agent_process(agent)
        if process is None:
            return
        await self.signal(process.reference, signals.SIGCONT)  # a stopped process would not handle SIGTERM
        await self.signal(process.reference, signals.SIGTERM)

        async def ended() -> tuple[bool | None, str]:
            now = await self.agent_process(agent)
            same = now is not None and now.reference == process.reference
            return (None, f"process {process.pid} still runs") if same else (True, "")

        try:
            await wait_until(f"{agent} on {self.name} to end", ended, within_s=within_s, gap_s=0.02)
        except WaitTimeoutError:
            await self.signal(process.reference, signals.SIGKILL)
            await wait_until(f"{agent} on {self.name} to be killed", ended, within_s=_KILLED_WITHIN_S, gap_s=0.02)

    def config_file(self, agent: str) -> Path:
        return self.data.parent / f"{agent}.json"

    def make_folder(self, agent: str) -> None:
        """The agent's own folder on the host's disk. Raises OSError."""
        folder = self.data / agent
        folder.mkdir(mode=0o750, exist_ok=True)
        if self._agent_user is not None:
            self._agent_user.owns(folder)

    async def agent_config(self, agent: str) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(self.config_file(agent).read_text())
        return config

    async def set_agent_config(self, agent: str, config: Mapping[str, Any]) -> None:
        file = self.config_file(agent)
        new = file.with_suffix(".new")
        with private(new, "wb") as opened:
            opened.write(json.dumps(config, indent=2).encode() + b"\n")
        if self._agent_user is not None:
            self._agent_user.owns(new)
        new.replace(file)

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
        if agent not in self.plans:
            raise FaultError(f"{self.name}: there is no {agent} to ask for {path}")
        url = self.plans[agent].url + path
        try:
            async with httpx2.AsyncClient(timeout=timeout_s, trust_env=False) as client:
                answer = await client.request(
                    method, url, params=dict(params or {}), content=body, headers=dict(headers or {})
                )
        except httpx2.HTTPError as error:
            raise FaultError(f"{self.name}: {method} {path}: {type(error).__name__} {error}".rstrip()) from None
        return ApiAnswer(answer.status_code, answer.content, {k.lower(): v for k, v in answer.headers.items()})

    async def spawn_agent(
        self, agent: str, argv: Sequence[str], environment: Mapping[str, str], *, as_root: bool = True
    ) -> None:
        """Starts an agent for the first time; `start_agent` repeats this. The agent's log is LOGS/AGENT.log."""
        request = {
            "op": "start",
            "agent": agent,
            "argv": list(argv),
            "log": str(self.logs / f"{agent}.log"),
            "environment": dict(environment),
            "as_root": as_root,
            **({"armed": True} if agent in self.armed else {}),
        }
        await ask(self._hostd, request)

    async def configure_network(self, prefix: int) -> None:
        await ask(self._hostd, {"op": "net", "address": self.address, "prefix": prefix})

    async def limit_cpu(self, name: str, cores: float) -> None:
        """Limits by cgroup if possible, otherwise by stopping and continuing the host's processes."""
        group = cgroups.make(self._group_name)
        if group is not None:
            group.limit(cores)
            await ask(self._hostd, {"op": "join", "files": group.procs_files()})
        else:
            await ask(self._hostd, {"op": "throttle", "name": name, "cores": cores})

    async def unlimit_cpu(self, name: str) -> None:
        group = cgroups.find(self._group_name)
        if group is not None:
            group.limit(None)
        await ask(self._hostd, {"op": "unthrottle", "name": name})

    async def hold_agents(self) -> None:
        """Puts the host's agents, present and later, into a memory cgroup, if this user may create one."""
        group = cgroups.make(self._group_name, "memory")
        if group is not None:
            await ask(self._hostd, {"op": "hold", "files": group.procs_files()})

    def _memory_group(self) -> cgroups.Group:
        group = cgroups.find(self._group_name, "memory")
        if group is None:
            raise FaultError(
                f"{self.name}: its agents are not in a memory cgroup: this machine has no memory controller that"
                " this user may use; run as root on a machine with cgroups"
            )
        return group

    async def memory_in_use(self) -> tuple[int, int]:
        return self._memory_group().memory_in_use()

    async def limit_memory(self, name: str, limit_bytes: int) -> None:
        """Limits the agents. If the kernel refuses (cgroups v1), a process takes memory until an agent is killed."""
        group, least = self._memory_group(), 0
        for _ in range(_SQUEEZES):
            if group.limit_memory(limit_bytes):
                return
            least, _ = group.memory_in_use()
            group.limit_memory(least + _SQUEEZE_BYTES)
            size_bytes = least - limit_bytes + 2 * _SQUEEZE_BYTES
            await ask(self._hostd, {"op": "take", "name": name, "size": size_bytes})
            await ask(self._hostd, {"op": "release", "name": name})
        raise FaultError(
            f"{self.name}: the kernel refuses a limit of {limit_bytes} bytes: it cannot reclaim enough of {least}"
        )

    async def take_memory(self, name: str, size_bytes: int) -> None:
        """Allocates memory in a process, which is started again if the kernel kills it."""
        for _ in range(_SQUEEZES):
            if (await ask(self._hostd, {"op": "take", "name": name, "size": size_bytes}))["held"]:
                return
            await ask(self._hostd, {"op": "release", "name": name})
        raise FaultError(f"{self.name}: the kernel ends each process that takes {size_bytes} bytes among the agents")

    async def free_memory(self, name: str) -> None:
        group = cgroups.find(self._group_name, "memory")
        if group is not None:
            group.limit_memory(None)
        await ask(self._hostd, {"op": "release", "name": name})

    # observers

    async def canary_take(self, size_bytes: int) -> int:
        request = {"op": "take", "size": size_bytes, "files": self._memory_group().procs_files()}
        taken = (await ask(self._canary, request))["taken"]
        if taken is None:
            raise FaultError(f"{self.name}: no process could be started to test how much memory is free")
        return int(taken)

    async def own_bytes(self, name: str) -> int:
        return int((await ask(self._hostd, {"op": "resident", "name": name}))["bytes"])

    async def memory_refusals(self) -> int:
        return self._memory_group().memory_refusals()

    async def agent_process(self, agent: str) -> AgentProcess | None:
        answer = await ask(self._hostd, {"op": "agent", "agent": agent})
        if answer["pid"] is None:
            return None
        return AgentProcess(answer["pid"], answer["start_time"], answer["state"])

    async def written_bytes(self, agent: str) -> int:
        process = await self.agent_process(agent)
        if process is None:
            raise FaultError(f"{self.name}: {agent} does not run")
        try:
            counters = (Path("/proc") / str(process.pid) / "io").read_text()
        except OSError as error:
            raise FaultError(f"{self.name}: cannot read how much {agent} has written: {error.strerror}") from None
        return int(dict(line.split(": ") for line in counters.splitlines())["wchar"])

    async def canary_fsync(self) -> Timing:
        return await self._timing("fsync")

    async def canary_write(self, size_bytes: int) -> Timing:
        return await self._timing("write", size=size_bytes)

    async def canary_read(self, size_bytes: int) -> Timing:
        return await self._timing("read", size=size_bytes)

    async def canary_disk(self, operation: str, size_bytes: int, trials: int, within_s: float) -> Sequence[Timing]:
        request = {"op": "disk", "operation": operation, "size": size_bytes, "count": trials, "within": within_s}
        answer = await ask(self._canary, request, within_s=within_s + ANSWERS_WITHIN_S)
        return [Timing(seconds, number) for seconds, number in answer["timings"]]

    async def ask_canary(
        self,
        of: str,  # noqa: ARG002 - one canary serves for all
        op: str,
        *,
        within_s: float = ANSWERS_WITHIN_S,
        **request: Any,
    ) -> dict[str, Any]:
        return await ask(self._canary, {"op": op, **request}, within_s=within_s)

    async def connections(self, port: int) -> Sequence[Connection]:
        return await self._in_namespace(partial(connections.established, port), "to list its connections")

    async def cpu_seconds(self, agent: str) -> float:
        process = await self.agent_process(agent)
        return 0.0 if process is None else sc.cpu_seconds(process.pid)

    async def free_bytes(self) -> int:
        return int((await ask(self._canary, {"op": "space"}))["free"])

    async def agent_answers(self, agent: str, timeout_s: float) -> bool:
        """Whether the agent answers anything at all within `timeout_s`, over HTTP or to a line over TCP."""
        plan = self.plans[agent]
        where = urlsplit(plan.url)
        try:
            if where.scheme != "tcp":
                async with httpx2.AsyncClient(timeout=timeout_s, trust_env=False) as client:
                    await client.get(plan.url + plan.health)
                return True
            with anyio.fail_after(timeout_s):
                async with await anyio.connect_tcp(str(where.hostname), where.port or 0) as stream:
                    await stream.send(f"{plan.health}\n".encode())
                    return bool(await stream.receive())
        except (httpx2.HTTPError, OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            return False

    async def _timing(self, op: str, **request: int) -> Timing:
        answer = await ask(self._canary, {"op": op, **request})
        return Timing(answer["seconds"], answer["errno"])


_AT_ONCE = 100


class LocalTap:
    """`socket` is where the client's tap listens (hashidrill.core.loads.clients); it exists while the client does."""

    def __init__(self, client: str, socket: Path) -> None:
        self.client = client
        self._socket = socket

    async def fail(self, fault_id: str, fault: str, share: float, seed: int) -> None:
        await ask(self._socket, {"op": "fail", "id": fault_id, "fault": fault, "share": share, "seed": seed})

    async def let_pass(self, fault_id: str) -> None:
        if self._socket.exists():
            await ask(self._socket, {"op": "pass", "id": fault_id})

    async def look(self, fault: str, tries: int) -> Sequence[str]:
        url = (await ask(self._socket, {"op": "observe"}))["url"]
        seen: list[str] = []

        room = anyio.Semaphore(_AT_ONCE)

        async def one() -> None:
            async with room:
                seen.append(await observer.exchange(url, fault))

        await all_at_once(partial(one) for _ in range(tries))
        return seen
