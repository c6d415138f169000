"""A raft.db full of free pages, as on the slow leaders of October 2021, and its cure.

BoltDB rewrites the list of its free pages at each commit, 8 bytes per page: with half a million of them, a write of
16 kB becomes one of 4 MB. The injector writes the file's own structures (hashidrill.products.consul.boltdb), or makes
Consul do it; the observers are the real `bbolt` and the kernel's count of the process's writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SERVERS, Cases, NoParams
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Requires, Restarts, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, ProcessControl, Processes
from hashidrill.core.protocols.claims import takes
from hashidrill.core.protocols.rights import Right
from hashidrill.products.consul import boltdb, markers, rights
from hashidrill.products.consul.faults import raft_writes
from hashidrill.products.consul.faults.declared import AGENT_CONFIG, OfServers
from hashidrill.products.consul.faults.raft_db import RaftDb

_FEWEST, _MOST = 50_000, 2_000_000
"""400 kB a commit are well over what one costs by itself (some 20 kB); 16 MB are twice the worst that was reported."""
_SEEN = 0.7
"""The bytes of a commit that is under way at the first or the last look may belong to either side: 1 of 10 or two."""
_FEW = 500
"""Free pages of a file that is in use and not bloated: some tens, while old log entries are dropped."""
_RESTARTED_WITHIN_S = 10.0
"""Some 6 s here, from the stop until the server is in step again."""


class BloatParams(Strict):
    """How many free pages, and whether they are put into the stopped server's file, or made by writes."""

    free_pages: Annotated[int, Field(ge=_FEWEST, le=_MOST)] = 300_000
    """How many pages are free afterwards: 50,000 to 2,000,000; `by: writes` makes 100,000 at most."""
    by: Literal["offline", "writes"] = "offline"
    """How the pages come to be free: `offline` or `writes`."""


class RaftBloat(OfServers[BloatParams]):
    """Bloats raft.db with free pages, whose list BoltDB rewrites at each commit.

    Limits: only where the log is in BoltDB: Consul 1.10, or `raft_logstore: {backend: boltdb}` in
    `datacenter.consul.server_config` of newer ones, without `no_freelist_sync`. A leader is restarted and so loses its
    leadership: `consul.leader.pin` returns it. boltdb v1 itself drops the last free page of a list this long when it
    opens the file (one page is leaked, which `bbolt check` reports); Consul does not notice. `by: writes` grows the
    files of the other servers too, without free pages in them.
    """

    kind: ClassVar[str] = "consul.raft.bloat"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "`bbolt page`, and the bytes in /proc/PID/io for each transaction",
        "nothing; but `by: writes` waits for the same `bbolt page`, without looking at /proc",
    )
    undone_by: ClassVar[frozenset[str]] = frozenset({"consul.raft.compact"})
    restarts: ClassVar[Restarts | None] = Restarts(_RESTARTED_WITHIN_S, end=True)
    Params: ClassVar[type[Strict]] = BloatParams
    _cost_before: float | None = None
    cases: ClassVar[Cases] = Cases(each=({"free_pages": 50000},), overlaps=((SERVERS, {"free_pages": 20_000}),))

    def requires(self) -> Requires:
        return replace(super().requires(), tools=frozenset({"bbolt"}))

    def uses(self, place: Place) -> Sequence[Claim]:
        claims = super().uses(place)
        by_writes = takes(AGENT_CONFIG, "both set the server's configuration")
        return (*claims, by_writes) if self.params.by == "writes" else claims

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.keys(f"{markers.PREFIX}/"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Free pages, and the agent's configuration. Raises FaultError for a server that cannot be bloated."""
        db = RaftDb(self.hosts, self.hosts.host(target.host))
        await db.check_usable()
        if self.params.by == "writes" and self.params.free_pages > raft_writes.MOST_PAGES:
            raise FaultError(
                f"`by: writes` can make at most {raft_writes.MOST_PAGES} free pages in time; ask for fewer"
            )
        return {
            "free_pages": (await db.look()).free,
            "config": await db.host.use(AgentFiles).agent_config(target.agent),
        }

    async def apply(self, undo: Undo) -> None:
        db = RaftDb(self.hosts, self._host(undo))
        self._cost_before = (await db.cost()).bytes_each
        if self.params.by == "writes":
            await raft_writes.bloat(db, self.params.free_pages, undo["prior"]["config"])
            return
        async with db.stopped():
            await db.in_thread(boltdb.bloat, db.path, self.params.free_pages)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        db, wanted = RaftDb(self.hosts, self._host(undo)), self.params.free_pages
        look, cost = await db.look(), await db.cost()
        listed = boltdb.ID_BYTES * wanted
        figures: dict[str, float | str] = {
            "free_pages": look.free,
            "bytes_per_commit": cost.bytes_each,
            "commits": cost.transactions,
        }
        if self._cost_before is not None:
            figures["bytes_per_commit_before"] = self._cost_before
        measured = f"{look.free} free pages of {look.pages}; {cost.bytes_each / 1000:.1f} kB written a commit"
        if present:
            ok = look.free >= 0.9 * wanted and cost.bytes_each >= _SEEN * listed
            return Evidence(ok, f"{wanted} free pages, {listed / 1000:.1f} kB a commit", measured, figures)
        ok = look.free <= undo["prior"]["free_pages"] + _FEW and cost.bytes_each < 0.5 * listed
        before = f"{undo['prior']['free_pages']} free pages as before"
        return Evidence(ok, f"{before}, and far under {listed / 1000:.1f} kB a commit", measured, figures)

    async def revert(self, undo: Undo) -> None:
        """Compact the file: the log has moved on, so the old file cannot be put back."""
        db = RaftDb(self.hosts, self._host(undo))
        await raft_writes.put_back(db, undo["prior"]["config"])
        if (await db.look()).free > undo["prior"]["free_pages"] + _FEW:
            async with db.stopped():
                await db.compact()
        else:  # it was compacted meanwhile, or never bloated
            await db.host.use(ProcessControl).start_agent(undo["agent"])


class RaftCompact(OfServers[NoParams]):
    """Stops the server, compacts raft.db with `bbolt compact` and starts it again: Roblox's fix of 2021.

    Limits: it is momentary: nothing is reverted. It needs BoltDB, as `consul.raft.bloat` does.
    """

    kind: ClassVar[str] = "consul.raft.compact"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "`bbolt page`, and which file it is",
        "bbolt, which compacts the file as well",
    )
    once: ClassVar[bool] = True
    restarts: ClassVar[Restarts | None] = Restarts(_RESTARTED_WITHIN_S)
    cases: ClassVar[Cases] = Cases(momentary=True, overlaps=((SERVERS, {}),))

    def requires(self) -> Requires:
        return replace(super().requires(), tools=frozenset({"bbolt"}))

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.keys(f"{markers.PREFIX}/"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Which file it is, and what it holds. Raises FaultError for a server without raft.db."""
        db = RaftDb(self.hosts, self.hosts.host(target.host))
        await db.check_usable()
        look = await db.look()
        return {"file": db.identity(), "free_pages": look.free, "pages": look.pages}

    async def apply(self, undo: Undo) -> None:
        db = RaftDb(self.hosts, self._host(undo))
        async with db.stopped():
            await db.compact()

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: another file, with few free pages. Gone: the server is in step and takes writes."""
        db = RaftDb(self.hosts, self._host(undo))
        if not present:
            await db.running()
            return Evidence(True, "the server has caught up and takes writes", "it has, and does")
        look, before = await db.look(), undo["prior"]
        other = db.identity() != before["file"]
        return Evidence(
            other and look.free <= _FEW,
            f"another file, with {_FEW} free pages at most",
            f"{'another' if other else 'the same'} file; {look.free} free pages of {look.pages}, before "
            f"{before['free_pages']} of {before['pages']}",
            {"free_pages": look.free, "free_pages_before": before["free_pages"]},
        )

    async def revert(self, undo: Undo) -> None:
        """Only makes sure that the server runs: the file stays compacted."""
        await self._host(undo).use(ProcessControl).start_agent(undo["agent"])
