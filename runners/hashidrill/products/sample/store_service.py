"""The replicated store as a service of a datacenter: its hosts, agents, roles, readiness and probes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.abc import Hosts, Probe
from hashidrill.core.protocols.service import (
    BEHIND,
    LEADER_ELECTED,
    SNAPSHOT_BEGINS,
    SNAPSHOT_INSTALLED,
    AgentPlace,
    AgentPlan,
    Lane,
    Panel,
    Sampled,
    Site,
    Wanted,
)
from hashidrill.core.units import Duration, Quantity
from hashidrill.core.util.addresses import Addresses
from hashidrill.core.util.wait import wait_until
from hashidrill.products.sample.service import python
from hashidrill.products.services import LedServers

Bug = Literal[
    "stale-read-after-install",
    "hole-after-broken-install",
    "sessions-from-snapshot",
    "index-after-install",
    "log-cut-before-snapshot",
    "snapshot-of-uncommitted",
    "vote-before-recovery",
    "half-quorum",
    "async-when-slow",
    "lock-lease-in-ticks",
]
"""playbooks/local-datacenter.md says what each bug does, and which faults show it."""


class Store(Strict):
    """A small replicated store: Raft, keys, and locks with sessions. It has the part of Consul's API that loads use."""

    servers: int = Field(default=3, ge=1, le=7, description="Number of servers: replica-1 and so on")
    election: Annotated[Duration, Field(ge=0.2, le=10)] = Field(
        default=Duration("600ms"),
        description="How long replica-1 waits for a leader before it asks for votes; each later replica waits longer",
    )
    snapshot_every: int = Field(default=100, ge=10, le=100_000, description="Entries from one snapshot to the next")
    trailing: int = Field(default=120, ge=0, le=100_000, description="Entries that stay in the log after a snapshot")
    install_takes: Annotated[Duration, Field(gt=0, le=60)] = Field(
        default=Duration("1s"), description="How long the install of a snapshot takes"
    )
    bug: Bug | None = Field(default=None, description="A planted bug; two or three faults, in order, show it")


PORT = 8500
"""The port of Consul's API, which is the default of faults that target a port."""


class StoreService(LedServers):
    """The servers of the replicated store (hashidrill.core.protocols.service.Service)."""

    name: ClassVar[str] = "store"
    Spec: ClassVar[type[Store]] = Store
    agent_bytes: ClassVar[int] = 25_000_000
    roles: ClassVar[tuple[str, ...]] = ("leader", "followers", "one-follower", "servers", "all")
    many: ClassVar[tuple[str, ...]] = ("followers", "servers", "all")
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "store.leader": None,  # 1 while there is a leader, otherwise 0
        "store.term": None,
        "store.commit_index": None,
        "store.snapshots": None,  # how many a server began since it started
        "store.installs": None,  # how many it installed
    }
    probed: ClassVar[Sequence[Sampled]] = (
        Sampled(frozenset({"store.leader"}), "store.leader"),
        Sampled(frozenset(signals) - {"store.leader"}, "store.term"),
    )
    panels: ClassVar[Sequence[Panel]] = ()
    lanes: ClassVar[Sequence[Lane]] = (
        Lane("store.leader", "store leader", bad="no leader", names=True, term="store.term"),
    )
    undrawn: ClassVar[frozenset[str]] = frozenset(signals) | {"store.state"}
    moments: ClassVar[Mapping[str, str]] = {
        LEADER_ELECTED: "store.term",
        BEHIND: "store.commit_index",
        SNAPSHOT_BEGINS: "store.snapshots",
        SNAPSHOT_INSTALLED: "store.installs",
    }

    def places(self) -> Sequence[AgentPlace]:
        """`replica-1`, ..."""
        return [AgentPlace(f"replica-{n}", "server") for n in range(1, self.spec.servers + 1)]

    def impossible(self, role: str) -> str:  # noqa: ARG002 - only followers can be missing
        return f"a single server has no followers (datacenter.store.servers is {self.spec.servers})"

    def binaries(self) -> Sequence[Wanted]:
        return []

    def agent(self, site: Site) -> AgentPlan:
        """Raises DatacenterError if agents have no Python to run the program."""
        from hashidrill.products.sample import store, store_program  # noqa: PLC0415 - the command line needs the kinds

        config: dict[str, Any] = {
            "name": site.host,
            "peers": {place.host: site.addresses[place.host] for place in self.places()},
            "port": PORT,
            "data": str(site.data),
            "election_s": float(self.spec.election),
            "snapshot_every": self.spec.snapshot_every,
            "trailing": self.spec.trailing,
            "install_s": float(self.spec.install_takes),
            "bug": self.spec.bug or "",
        }
        source = Path(store.__file__).read_text() + _alone(Path(store_program.__file__).read_text())
        command = [str(python()), "-c", source, str(site.config_file)]
        return AgentPlan(config, command, f"http://{site.address}:{PORT}", store_program.LEADER)

    async def leader(self, hosts: Hosts) -> str | None:
        from hashidrill.products.sample.store_probes import leader_of  # noqa: PLC0415 - see above

        return await leader_of(self._hosts(hosts, "server"))

    async def wait_ready(self, hosts: Hosts, *, within_s: float, agents_run: Callable[[], Awaitable[None]]) -> None:
        async def ready() -> tuple[bool | None, str]:
            await agents_run()
            leader = await self.leader(hosts)
            return (None if leader is None else True), "no leader is known to a majority of the servers"

        await wait_until("the store to be ready", ready, within_s=within_s)

    def probes(self, hosts: Hosts) -> Sequence[Probe]:
        from hashidrill.core.probes.agents import AgentsApi  # noqa: PLC0415 - see above
        from hashidrill.products.sample.store_probes import LeaderProbe, ServerProbe  # noqa: PLC0415 - see above

        servers = Addresses(self._hosts(hosts, "server"))
        calls = AgentsApi(port=PORT)
        return [LeaderProbe(servers, api=calls), *(ServerProbe(host, servers, api=calls) for host in servers)]

    def moment_probes(self, hosts: Hosts) -> Sequence[Probe]:
        return self.probes(hosts)[1:]


def _alone(source: str) -> str:
    """The program without its imports of the algorithm, whose source precedes it, and of annotations."""
    return "".join(
        line for line in source.splitlines(keepends=True) if not line.startswith(("from hashidrill", "from __future__"))
    )
