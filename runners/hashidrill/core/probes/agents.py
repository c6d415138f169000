"""Probes of agents' HTTP APIs: Go metrics, Raft, and the leader that a majority sees.

They share neither code nor connections with loads.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from typing import ClassVar, TypeVar

import anyio
import httpx2
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.protocols.service import LEADS

T = TypeVar("T")


class AgentsApi:
    """GET requests to agents, by address. One object may serve many probes; `aclose` is idempotent."""

    def __init__(self, *, port: int, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._port = port
        # no proxy from the environment between a probe and its agent; the probes' own deadlines are shorter
        self._client = httpx2.AsyncClient(trust_env=False, timeout=30.0, transport=transport)

    async def get(
        self, address: str, path: str, shape: TypeAdapter[T], *, accept: Container[int] = frozenset({200})
    ) -> T:
        """The reply, parsed as `shape`. Raises SickError for any other reply."""
        try:
            reply = await self._client.get(f"http://{address}:{self._port}{path}")
        except (httpx2.HTTPError, OSError) as error:
            raise SickError(f"GET {path}: {error or type(error).__name__}") from None
        if reply.status_code not in accept:
            raise SickError(f"GET {path}: HTTP {reply.status_code}: {reply.text.strip()[:200]}")
        try:
            return shape.validate_json(reply.content)
        except ValidationError:
            raise SickError(
                f"GET {path}: HTTP {reply.status_code} with an unexpected body: {reply.text[:200]}"
            ) from None

    async def get_from_any(
        self,
        hosts: Mapping[str, str],
        path: str,
        shape: TypeAdapter[T],
        *,
        accept: Container[int] = frozenset({200}),
    ) -> T:
        """The first good reply of all hosts, queried at the same time. Raises SickError with each host's reason."""
        found: list[T] = []
        reasons: dict[str, str] = {}

        async def ask(name: str, address: str) -> None:
            try:
                found.append(await self.get(address, path, shape, accept=accept))
                tasks.cancel_scope.cancel()
            except SickError as error:
                reasons[name] = str(error)

        async with anyio.create_task_group() as tasks:
            for name, address in hosts.items():
                tasks.start_soon(ask, name, address)
        if not found:
            raise SickError("; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items())) or "no hosts")
        return found[0]

    async def lines(self, address: str, path: str) -> AsyncGenerator[str]:
        """The lines of an endless reply, after "" when it begins. Raises SickError without a reply of status 200."""
        try:
            async with self._client.stream("GET", f"http://{address}:{self._port}{path}", timeout=_ENDLESS) as reply:
                if reply.status_code != 200:
                    raise SickError(f"GET {path}: HTTP {reply.status_code}")
                yield ""
                async for line in reply.aiter_lines():
                    yield line
        except (httpx2.HTTPError, OSError) as error:
            raise SickError(f"GET {path}: {error or type(error).__name__}") from None

    async def aclose(self) -> None:
        await self._client.aclose()


_ENDLESS = httpx2.Timeout(2.0, read=None)
_STANDS_S = 25.0
"""A report that stays the same for longer has stopped: an interval lasts 10 s, and is reported for the next 10 s."""


class Timer(BaseModel):
    """One timer over one interval, in milliseconds."""

    name: str = Field(alias="Name")
    count: int = Field(alias="Count")
    mean_ms: float = Field(alias="Mean")
    max_ms: float = Field(alias="Max")


class GoCounter(BaseModel):
    """How often an event happened in one interval."""

    name: str = Field(alias="Name")
    count: int = Field(alias="Count")


class Gauge(BaseModel):
    """The value of a figure at the end of one interval."""

    name: str = Field(alias="Name")
    value: float = Field(alias="Value")


class Metrics(BaseModel):
    """The metrics of the last complete interval of 10 s, which began at `timestamp`."""

    timestamp: str = Field(alias="Timestamp")
    samples: list[Timer] = Field(alias="Samples")
    counters: list[GoCounter] = Field(alias="Counters", default=[])
    gauges: list[Gauge] = Field(alias="Gauges", default=[])


class Interval:
    """The interval that an agent last reported. An agent that keeps reporting the same one has stopped counting."""

    def __init__(self) -> None:
        self._last = ("", 0.0)

    def goes_on(self, metrics: Metrics, now_s: float) -> None:
        """Raises SickError if the reported interval has not changed for `_STANDS_S` seconds."""
        timestamp, since_s = self._last
        if metrics.timestamp != timestamp:
            self._last = (metrics.timestamp, now_s)
        elif now_s - since_s > _STANDS_S:
            raise SickError(f"its telemetry has not changed for {now_s - since_s:.0f}s, since {timestamp}")


def merged(signal: str, timers: Sequence[Timer], since: str, host: str) -> Sample:
    """One sample for timers that belong together (one for each peer): their mean in seconds; its text has maximum and
    count.
    """
    count = sum(timer.count for timer in timers)
    mean_s = sum(timer.mean_ms * timer.count for timer in timers) / count / 1000
    worst_s = max(timer.max_ms for timer in timers) / 1000
    return Sample(signal, mean_s, f"max {worst_s:.6f}s, {count} in 10s since {since}", host)


class RaftStats(BaseModel):
    """What a server reports about its Raft."""

    state: str
    term: int
    commit_index: int


_LEADER = TypeAdapter(str)
_METRICS = TypeAdapter(Metrics)


class AgentsProbe(BaseProbe):
    """A probe of agents by host name and address; `hosts` are read at each sample, because servers may be replaced."""

    leader_path: ClassVar[str] = "/v1/status/leader"

    def __init__(self, hosts: Mapping[str, str], *, api: AgentsApi) -> None:
        self.hosts = hosts
        self._api = api

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _leader_of(self, address: str, names: Mapping[str, str]) -> str:
        """The host name of the leader that the agent at `address` reports. Raises SickError if it knows no leader."""
        leader = await self._api.get(address, self.leader_path, _LEADER)
        if not leader:
            raise SickError("knows no leader")
        leader_address = leader.rpartition(":")[0].strip("[]")
        return names.get(leader_address, leader_address)


class HostProbe(AgentsProbe):
    """A probe of one agent."""

    def __init__(self, host: str, hosts: Mapping[str, str], *, api: AgentsApi) -> None:
        super().__init__(hosts, api=api)
        self.host = host
        self._address = hosts[host]


class RaftProbe(HostProbe):
    """Samples one server's state (text; value 1 for a leader), term (text: `leads` if it leads) and commit index.

    `signals` are these three.
    """

    async def _stats(self) -> RaftStats:
        raise NotImplementedError

    async def measure(self) -> Sequence[Sample]:
        raft = await self._stats()
        state, term, commit_index = self.signals
        return [
            Sample(state, float(raft.state == "Leader"), raft.state, self.host),
            Sample(term, float(raft.term), LEADS if raft.state == "Leader" else "", self.host),
            Sample(commit_index, float(raft.commit_index), "", self.host),
        ]


class TimesProbe(HostProbe):
    """An agent's own timers, in seconds: the mean of its last 10 s interval (text: max and count).

    A timer that did not run in that interval has no sample.
    """

    path: ClassVar[str]
    interval_s = 2.0
    timeout_s = 2.0

    def __init__(self, host: str, hosts: Mapping[str, str], *, api: AgentsApi) -> None:
        super().__init__(host, hosts, api=api)
        self._interval = Interval()

    def _signal_of(self, timer: str) -> str | None:
        raise NotImplementedError

    async def measure(self) -> Sequence[Sample]:
        metrics = await self._api.get(self._address, self.path, _METRICS)
        self._interval.goes_on(metrics, anyio.current_time())
        timers: dict[str, list[Timer]] = defaultdict(list)
        for timer in metrics.samples:
            if timer.count and (signal := self._signal_of(timer.name)):
                timers[signal].append(timer)
        times = [merged(signal, same, metrics.timestamp, self.host) for signal, same in timers.items()]
        return [*times, *self._counted(metrics)]

    def _counted(self, metrics: Metrics) -> Sequence[Sample]:  # noqa: ARG002 - subclasses look at it
        return []


class SnapshotLogProbe(HostProbe):
    """How often the server's Raft began a snapshot of its own, and installed a snapshot of the leader's, since this
    probe began to read the agent's log over its API (text: the line). `signals` are these two counts.

    The agents' own counters show snapshots only after an interval of 10 s. A sample waits for the log's next line
    about a snapshot, however long that takes.
    """

    log_path: ClassVar[str]
    words: ClassVar[tuple[str, str]] = ("starting snapshot up to", "installed remote snapshot")
    """The words in these lines of hashicorp/raft 1.1 to 1.7."""
    interval_s = 0.2

    def __init__(self, host: str, hosts: Mapping[str, str], *, api: AgentsApi) -> None:
        super().__init__(host, hosts, api=api)
        self._counts = dict.fromkeys(self.signals, 0.0)
        self._lines: AsyncGenerator[str] | None = None

    async def sample(self) -> Sequence[Sample]:
        self._lines = self._lines or self._api.lines(self._address, self.log_path)
        try:
            async for line in self._lines:
                if told := self._read(line):
                    return told
            why = "the agent ended the log"
        except SickError as error:
            why = str(error)
        self._lines = None
        return self.failed(why)

    def _read(self, line: str) -> Sequence[Sample]:
        if not line:
            return [Sample(signal, count, "", self.host) for signal, count in self._counts.items()]
        for signal, words in zip(self.signals, self.words, strict=True):
            if words in line.lower():
                self._counts[signal] += 1
                return [Sample(signal, self._counts[signal], line.strip()[-200:], self.host)]
        return []

    async def aclose(self) -> None:
        if self._lines is not None:
            await self._lines.aclose()
        await super().aclose()


class LeaderProbe(AgentsProbe):
    """The leader that a majority of all servers reports: value 1 and the leader's host name, otherwise a failed sample
    with value 0. Its one signal has an empty host.

    One server's answer is not enough: a frozen or isolated leader still believes that it leads. The sample is ready
    when a majority agrees, so that a hung server does not delay it.
    """

    interval_s = 0.5

    async def measure(self) -> Sequence[Sample]:
        names = {address: name for name, address in self.hosts.items()}
        votes: Counter[str] = Counter()
        said = dict.fromkeys(self.hosts, f"no answer within {self.timeout_s:g}s")

        async def ask(name: str, address: str) -> None:
            try:
                said[name] = await self._leader_of(address, names)
            except SickError as error:
                said[name] = str(error)
                return
            votes[said[name]] += 1
            if self._majority(votes):
                tasks.cancel_scope.cancel()

        # just under the probe's own deadline, after which the answers would be lost
        with anyio.move_on_after(self.timeout_s * 0.9):
            async with anyio.create_task_group() as tasks:
                for name, address in self.hosts.items():
                    tasks.start_soon(ask, name, address)
        leader = self._majority(votes)
        if leader:
            return [Sample(self.signals[0], 1.0, leader)]
        return self.failed("no majority: " + "; ".join(f"{name}: {word}" for name, word in said.items()))

    def _majority(self, votes: Counter[str]) -> str:
        return next((leader for leader, count in votes.items() if count * 2 > len(self.hosts)), "")

    def failed(self, reason: str) -> Sequence[Sample]:
        return [Sample(self.signals[0], 0.0, reason, ok=False)]
