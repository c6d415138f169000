"""A server's raft.db, the BoltDB file of its Raft log: looked at by the real `bbolt`, and compacted by it.

`bbolt page` reads the file without its lock, so it can be asked while Consul runs; a page that was being written
meanwhile says so, and is looked at again.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Host, Hosts
from hashidrill.core.protocols.capabilities import AgentFiles, ProcessControl, Processes
from hashidrill.core.util.wait import wait_until, wait_while_it_moves
from hashidrill.products.consul import api, markers
from hashidrill.products.consul.faults.change import TURN

_BURST = 10
_COMMITTED_STILL_S = 10.0
_COMMITTED_WITHIN_S = 60.0
_LOOKS_WITHIN_S = 5.0
_WRITES_WITHIN_S = 30.0


@dataclass(frozen=True)
class Look:
    """What bbolt says: free pages, and pages in all."""

    free: int
    pages: int


@dataclass(frozen=True)
class Cost:
    """What commits cost the server: bytes passed to write calls for each transaction of raft.db, and how many."""

    bytes_each: float
    transactions: float


class _Meta(NamedTuple):
    """A meta page: the one with the higher transaction counts."""

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
        """Raises FaultError for a host whose Raft log is not in BoltDB, or keeps no list of free pages."""
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
        """Raises FaultError, or WaitTimeoutError when the file never holds still."""

        async def looked() -> tuple[Look | None, str]:
            meta = await self._meta()
            listed = await self._beginning_of(meta.freelist)
            count = re.search(r"Page Type: +freelist\n.*?Item Count: (\d+)\n", listed, re.DOTALL)
            return (None, listed[-300:]) if count is None else (Look(int(count[1]), meta.pages), "")

        return await wait_until(f"bbolt to read {self.path}", looked, within_s=_LOOKS_WITHIN_S)

    async def cost(self) -> Cost:
        """Of some writes of our own, one after the other, beside whatever else is being written."""
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
        """The server may commit between two looks: what it had written belongs to the moment between them."""
        first = (await self._meta()).transaction
        written = await self.host.use(Processes).written_bytes(api.AGENT)
        second = (await self._meta()).transaction
        return _Reading((first + second) / 2, written)

    async def _meta(self) -> _Meta:
        """The newer of the two meta pages. Raises FaultError."""
        said = await self._run("page", str(self.path), "0", "1")
        columns = [
            [int(found) for found in re.findall(pattern, said)]
            for pattern in (r"Txn ID: +(\d+)", r"Freelist: +<pgid=(\d+)>", r"HWM: +<pgid=(\d+)>")
        ]
        if any(len(column) != 2 for column in columns):
            raise FaultError(f"{self.host.name}: bbolt page {self.path}: {said[-300:]}")
        return max(_Meta(*row) for row in zip(*columns, strict=True))

    async def _beginning_of(self, page: int) -> str:
        """What bbolt prints of a page, up to the count of what is in it: the rest may be a million lines."""
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
        """Returns once the server is in step and takes writes. Raises WaitTimeoutError."""
        await api.wait_in_step(self.hosts, self.host)

        async def takes() -> tuple[bool | None, str]:
            trouble = await markers.takes_a_write(self.host, f"running-{self.host.name}")
            return (None if trouble else True), trouble

        await wait_until(f"{self.host.name} to take a write", takes, within_s=_WRITES_WITHIN_S, gap_s=0.1)

    async def compact(self) -> None:
        """Runs the real bbolt on the stopped server: a new file with the same content replaces the old one."""
        self._compacted.unlink(missing_ok=True)  # of a try that was cut off
        await self._run("compact", "-o", str(self._compacted), str(self.path))
        before = self.path.stat()
        self._compacted.chmod(before.st_mode & 0o777)
        os.chown(self._compacted, before.st_uid, before.st_gid)  # the agent's user may be another than ours
        self._compacted.replace(self.path)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call that reads or writes the file."""
        return await anyio.to_thread.run_sync(function, *arguments)

    def identity(self) -> int:
        """Another one after a compaction."""
        return self.path.stat().st_ino

    async def _run(self, command: str, *arguments: str) -> str:
        bbolt: Path = self.hosts.tool("bbolt")
        result = await anyio.run_process([str(bbolt), command, *arguments], check=False)
        if result.returncode:
            said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
            raise FaultError(f"{self.host.name}: bbolt {command} {self.path}: {said[0] if said else 'failed'}")
        return result.stdout.decode(errors="replace")
