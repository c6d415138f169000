"""Fills raft.db with free pages, as on the slow leaders of October 2021, and compacts it.

BoltDB rewrites the list of its free pages at each commit, 8 bytes per page: with half a million free pages, a write of
16 kB becomes one of 4 MB. The injector writes the file's own structures (hashidrill.products.consul.boltdb) or makes
Consul write them; the observers are the real `bbolt` and the kernel's count of the process's writes.
"""

import itertools
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import anyio
from pydantic import Field

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import SERVERS, Cases, NoParams
from hashidrill.core.protocols.abc import (
    Claim,
    Evidence,
    Host,
    Hosts,
    Observer,
    Place,
    Requires,
    Restarts,
    Target,
    Undo,
)
from hashidrill.core.protocols.capabilities import AgentApi, AgentFiles, ProcessControl, Processes
from hashidrill.core.protocols.claims import takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.wait import wait_until, wait_while_it_moves
from hashidrill.products.consul import api, boltdb, markers, rights
from hashidrill.products.consul.faults.config import TURN
from hashidrill.products.consul.faults.declared import AGENT_CONFIG, OfServers

_BURST = 10
_COMMITTED_STILL_S = 10.0
_COMMITTED_WITHIN_S = 60.0
_LOOKS_WITHIN_S = 5.0
_WRITES_WITHIN_S = 30.0


@dataclass(frozen=True)
class Look:
    """What bbolt reports: the number of free pages, and of all pages."""

    free: int
    pages: int


@dataclass(frozen=True)
class Cost:
    """The cost of commits: bytes given to write calls for each transaction of raft.db, and how many there were."""

    bytes_each: float
    transactions: float


class _Meta(NamedTuple):
    transaction: int
    freelist: int
    pages: int


@dataclass(frozen=True)
class _Reading:
    transaction: float
    written_bytes: int


class RaftDb:
    """The raft.db of one server."""

    def __init__(self, hosts: Hosts, host: Host) -> None:
        self.hosts, self.host = hosts, host
        self.path = host.use(AgentFiles).data / "consul" / "raft" / "raft.db"
        self._compacted = self.path.with_suffix(".compacted")

    async def check_usable(self) -> None:
        """Raises FaultError if the host's Raft log is not in BoltDB, or does not store its list of free pages."""
        if self.host.roles.get(api.AGENT) != "server":
            raise FaultError(f"{self.host.name} is not a server, so it has no Raft log; use on: consul:leader")
        store = (await self.host.use(AgentFiles).agent_config(api.AGENT)).get("raft_logstore", {})
        if not self.path.is_file():
            where = store.get("backend", "WAL, the default of this version")
            raise FaultError(
                f"{self.host.name} keeps its Raft log in {where}, not in BoltDB; "
                "set datacenter.consul.server_config to {raft_logstore: {backend: boltdb}}"
            )
        if store.get("boltdb", {}).get("no_freelist_sync"):
            raise FaultError(
                f"{self.host.name} writes no list of free pages (raft_logstore.boltdb.no_freelist_sync), so a bloated "
                "file would not make commits larger"
            )

    async def look(self) -> Look:
        """Reads the file with bbolt. Raises FaultError, or WaitTimeoutError if the file changes all the time."""

        async def looked() -> tuple[Look | None, str]:
            meta = await self._meta()
            listed = await self._beginning_of(meta.freelist)
            count = re.search(r"Page Type: +freelist\n.*?Item Count: (\d+)\n", listed, re.DOTALL)
            return (None, listed[-300:]) if count is None else (Look(int(count[1]), meta.pages), "")

        return await wait_until(f"bbolt to read {self.path}", looked, within_s=_LOOKS_WITHIN_S)

    async def cost(self) -> Cost:
        """Measures the cost with ten successive writes of hashidrill's own, during any other writes."""
        before = await self._reading()
        key = f"cost/{self.host.name}"
        for number in range(_BURST):
            await markers.put(self.host, key, str(number))

        async def committed() -> tuple[bool | None, str, float]:
            done = (await self._meta()).transaction - before.transaction
            return (True if done >= _BURST else None), f"{done:g} of {_BURST} transactions", done

        await wait_while_it_moves(
            f"{self.host.name} to write its log", committed, still_s=_COMMITTED_STILL_S, within_s=_COMMITTED_WITHIN_S
        )
        after = await self._reading()
        await markers.remove(self.host, key)
        transactions = after.transaction - before.transaction
        return Cost((after.written_bytes - before.written_bytes) / transactions, transactions)

    async def _reading(self) -> _Reading:
        """Reads the transaction number before and after the server's count of bytes, and takes their mean."""
        first = (await self._meta()).transaction
        written = await self.host.use(Processes).written_bytes(api.AGENT)
        second = (await self._meta()).transaction
        return _Reading((first + second) / 2, written)

    async def _meta(self) -> _Meta:
        said = await self._run("page", str(self.path), "0", "1")
        columns = [
            [int(found) for found in re.findall(pattern, said)]
            for pattern in (r"Txn ID: +(\d+)", r"Freelist: +<pgid=(\d+)>", r"HWM: +<pgid=(\d+)>")
        ]
        if any(len(column) != 2 for column in columns):
            raise FaultError(f"{self.host.name}: bbolt page {self.path}: {said[-300:]}")
        return max(_Meta(*row) for row in zip(*columns, strict=True))

    async def _beginning_of(self, page: int) -> str:
        """The beginning of bbolt's output for a page, up to the item count: the rest may have a million lines."""
        said = b""
        command = [str(self.hosts.tool("bbolt")), "page", str(self.path), str(page)]
        async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT) as bbolt:
            assert bbolt.stdout is not None
            async for part in bbolt.stdout:
                said += part
                if b"\n" in said.partition(b"Item Count: ")[2]:
                    break
            with suppress(ProcessLookupError):
                bbolt.kill()
        return said.decode(errors="replace")

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """Stops this server for the block; afterwards starts it and waits until it has caught up and accepts writes."""
        async with self.hosts.turn(TURN):
            if await api.has_agent(self.host):
                await api.check_quorum_without(self.hosts, self.host)
                await self.host.use(ProcessControl).stop_agent(api.AGENT)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self.host.use(ProcessControl).start_agent(api.AGENT)
            await self.running()

    async def running(self) -> None:
        """Returns once the server has caught up and accepts writes. Raises WaitTimeoutError."""
        await api.wait_in_step(self.hosts, self.host)

        async def takes() -> tuple[bool | None, str]:
            trouble = await markers.takes_a_write(self.host, f"running-{self.host.name}")
            return (None if trouble else True), trouble

        await wait_until(f"{self.host.name} to accept a write", takes, within_s=_WRITES_WITHIN_S, gap_s=0.1)

    async def compact(self) -> None:
        """Runs the real bbolt on the stopped server: a new file with the same content replaces the old one."""
        self._compacted.unlink(missing_ok=True)  # left by an interrupted try
        await self._run("compact", "-o", str(self._compacted), str(self.path))
        before = self.path.stat()
        self._compacted.chmod(before.st_mode & 0o777)
        os.chown(self._compacted, before.st_uid, before.st_gid)  # the agent may run as another user
        self._compacted.replace(self.path)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments)

    def identity(self) -> int:
        return self.path.stat().st_ino

    async def _run(self, command: str, *arguments: str) -> str:
        bbolt: Path = self.hosts.tool("bbolt")
        result = await anyio.run_process([str(bbolt), command, *arguments], check=False)
        if result.returncode:
            said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
            raise FaultError(f"{self.host.name}: bbolt {command} {self.path}: {said[0] if said else 'failed'}")
        return result.stdout.decode(errors="replace")


MOST_PAGES = 100_000
"""This many pages are 400 MB of log on each server, which takes half a minute on an ordinary disk."""
_VALUE = b"x" * 400_000
_AT_ONCE = 2
_FILLED_WITHIN_S = 120.0
_DROPPED_STILL_S = 60.0
_DROPPED_WITHIN_S = 180.0
_KEEP_ALL = {"raft_trailing_logs": 1_000_000, "raft_snapshot_threshold": 1_000_000}
_KEEP_FEW = {"raft_trailing_logs": 50, "raft_snapshot_threshold": 50, "raft_snapshot_interval": "1s"}


async def bloat_by_writes(db: RaftDb, free_pages: int, config: Mapping[str, Any]) -> None:
    """Makes Consul itself produce the free pages. Raises FaultError or WaitTimeoutError if this takes too long."""
    await _restarted(db, {**config, **_KEEP_ALL})
    key = f"bloat/{db.host.name}"
    target = boltdb.read_meta(db.path).high_water + free_pages
    try:
        with anyio.fail_after(_FILLED_WITHIN_S):
            await _fill(db, key, target)
    except TimeoutError:
        there = boltdb.read_meta(db.path).high_water
        raise FaultError(
            f"{db.host.name}: raft.db has {there} of {target} pages after {_FILLED_WITHIN_S:g}s; ask for fewer"
        ) from None
    finally:
        with anyio.CancelScope(shield=True):
            await markers.remove(db.host, f"{key}/", below=True)
    await _restarted(db, {**config, **_KEEP_FEW})

    async def dropped() -> tuple[bool | None, str, int]:
        await markers.put(db.host, key, "")  # so that a snapshot has content
        free = (await db.look()).free
        return (True if free >= 0.95 * free_pages else None), f"{free} free pages", free

    await wait_while_it_moves(
        "the old log to be dropped", dropped, still_s=_DROPPED_STILL_S, within_s=_DROPPED_WITHIN_S, gap_s=0.1
    )
    await markers.remove(db.host, key)
    await _restarted(db, config)


async def restore_configuration(db: RaftDb, config: Mapping[str, Any]) -> None:
    """Restores the former configuration, if an interrupted bloat left another configuration."""
    if await db.host.use(AgentFiles).agent_config(api.AGENT) != config:
        await _restarted(db, config)


async def _restarted(db: RaftDb, config: Mapping[str, Any]) -> None:
    async with db.stopped():
        await db.host.use(AgentFiles).set_agent_config(api.AGENT, config)


async def _fill(db: RaftDb, key: str, target: int) -> None:
    numbers = itertools.count()

    async def write() -> None:
        for number in numbers:
            answer = await db.host.use(AgentApi).api(
                "PUT", f"/v1/kv/{markers.PREFIX}/{key}/{number % 4}", body=_VALUE, timeout_s=30.0, agent=api.AGENT
            )
            if answer.status != 200:
                raise FaultError(f"{db.host.name}: Consul did not accept a large write: {api.said(answer)}")
            if boltdb.read_meta(db.path).high_water >= target:
                return

    async with anyio.create_task_group() as group:
        for _ in range(_AT_ONCE):
            group.start_soon(write)


_FEWEST, _MOST = 50_000, 2_000_000
"""This many pages cost 400 kB a commit, well over the ordinary 20 kB, to 16 MB, twice the worst reported case."""
_SEEN = 0.7
"""The first and the last look may each fall into a commit, so the bytes of one or two commits in ten are uncertain."""
_FEW = 500
"""A file in use that is not bloated has fewer free pages: some tens, while old log entries are dropped."""
_RESTARTED_WITHIN_S = 10.0
"""Measured: some 6 s from the stop until the server has caught up again."""


class BloatParams(Strict):
    """The number of free pages, and whether they are added to the stopped server's file or produced by writes."""

    free_pages: Annotated[int, Field(ge=_FEWEST, le=_MOST)] = 300_000
    """Number of free pages to produce: 50,000 to 2,000,000; `by: writes` produces at most 100,000."""
    by: Literal["offline", "writes"] = "offline"
    """How the free pages are made: `offline` (into the stopped server's file) or `writes`."""


class RaftBloat(OfServers[BloatParams]):
    """Bloats raft.db with free pages, whose list BoltDB rewrites at each commit.

    Limits: the log must be in BoltDB: in Consul 1.10 it is; newer versions need `raft_logstore: {backend: boltdb}` in
    `datacenter.consul.server_config`, without `no_freelist_sync`. A leader is restarted and so loses its leadership;
    `consul.leader.pin` gives it back. `bbolt check` reports one leaked page, which Consul does not notice. `by: writes`
    also grows the files of the other servers, but without free pages in them.
    """

    kind: ClassVar[str] = "consul.raft.bloat"
    cases: ClassVar[Cases] = Cases(each=({"free_pages": 50000},), overlaps=((SERVERS, {"free_pages": 20_000}),))
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "`bbolt page`, and the bytes in /proc/PID/io for each transaction",
        "nothing; but `by: writes` waits for the same `bbolt page`, without looking at /proc",
    )
    undone_by: ClassVar[frozenset[str]] = frozenset({"consul.raft.compact"})
    restarts: ClassVar[Restarts | None] = Restarts(_RESTARTED_WITHIN_S, end=True)
    Params: ClassVar[type[Strict]] = BloatParams
    _cost_before: float | None = None

    def requires(self) -> Requires:
        return replace(super().requires(), tools=frozenset({"bbolt"}))

    def uses(self, place: Place) -> Sequence[Claim]:
        claims = super().uses(place)
        by_writes = takes(AGENT_CONFIG, "both set the server's configuration")
        return (*claims, by_writes) if self.params.by == "writes" else claims

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.keys(f"{markers.PREFIX}/"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        db = RaftDb(self.hosts, self.hosts.host(target.host))
        await db.check_usable()
        if self.params.by == "writes" and self.params.free_pages > MOST_PAGES:
            raise FaultError(f"`by: writes` can produce at most {MOST_PAGES} free pages in time; ask for fewer")
        return {
            "free_pages": (await db.look()).free,
            "config": await db.host.use(AgentFiles).agent_config(target.agent),
        }

    async def apply(self, undo: Undo) -> None:
        db = RaftDb(self.hosts, self._host(undo))
        self._cost_before = (await db.cost()).bytes_each
        if self.params.by == "writes":
            await bloat_by_writes(db, self.params.free_pages, undo["prior"]["config"])
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
        return Evidence(ok, f"{before}, and under half of {listed / 1000:.1f} kB a commit", measured, figures)

    async def revert(self, undo: Undo) -> None:
        """Compacts the file: the log has moved on, so the old file cannot be restored."""
        db = RaftDb(self.hosts, self._host(undo))
        await restore_configuration(db, undo["prior"]["config"])
        if (await db.look()).free > undo["prior"]["free_pages"] + _FEW:
            async with db.stopped():
                await db.compact()
        else:  # the file was compacted meanwhile, or never bloated
            await db.host.use(ProcessControl).start_agent(undo["agent"])


class RaftCompact(OfServers[NoParams]):
    """Stops the server, compacts raft.db with `bbolt compact` and starts it again: Roblox's fix of 2021.

    Limits: it is momentary, and is not reverted. It needs BoltDB, as `consul.raft.bloat` does.
    """

    kind: ClassVar[str] = "consul.raft.compact"
    cases: ClassVar[Cases] = Cases(momentary=True, overlaps=((SERVERS, {}),))
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, AgentFiles, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "`bbolt page`, and the identity of the file",
        "bbolt, which compacts the file as well",
    )
    once: ClassVar[bool] = True
    restarts: ClassVar[Restarts | None] = Restarts(_RESTARTED_WITHIN_S)

    def requires(self) -> Requires:
        return replace(super().requires(), tools=frozenset({"bbolt"}))

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.keys(f"{markers.PREFIX}/"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        db = RaftDb(self.hosts, self.hosts.host(target.host))
        await db.check_usable()
        look = await db.look()
        return {"file": db.identity(), "free_pages": look.free, "pages": look.pages}

    async def apply(self, undo: Undo) -> None:
        db = RaftDb(self.hosts, self._host(undo))
        async with db.stopped():
            await db.compact()

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        """In force: another file, with few free pages. Gone: the server has caught up and accepts writes."""
        db = RaftDb(self.hosts, self._host(undo))
        if not present:
            await db.running()
            return Evidence(True, "the server has caught up and accepts writes", "it caught up and accepts writes")
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
