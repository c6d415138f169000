"""Saves a snapshot of Vault's integrated storage during the run, and restores it later.

Both happen once, and reverting does not undo them: rolled-back data stays rolled back, and hypotheses judge the
loss. Markers identify a state. They are policies that allow nothing: Vault lists policies from its storage, and their
names are readable in a snapshot.

Reads the snapshots of Vault's integrated storage, as `GET sys/storage/raft/snapshot` of 1.21.0 returns them.

The state is a sequence of storage entries: the length as a varint, then a protobuf message of key (1), value (2) and
a flag (3) (FSM.writeTo of physical/raft/fsm.go). Values are encrypted. Keys are readable, so entries can be counted
without Vault and without its keys.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, Cases, P
from hashidrill.core.faults.saved_first import RestoreParams, RestoresSnapshot, SaveParams, SavesSnapshot
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import ANSWERS, needs
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.raft_archive import SnapshotError, decoded, keep, unpack
from hashidrill.core.util.wait import wait_until
from hashidrill.products.vault import rights
from hashidrill.products.vault.faults import servers
from hashidrill.products.vault.operator import VaultOperator

__all__ = ["Snapshot", "SnapshotError", "decode", "read_snapshot"]

_POLICIES, _TOKENS, _LEASES, _SECRETS = "sys/policy/", "sys/token/id/", "sys/expire/id/", "logical/"
_VERSIONS = "/versions/"
"""Each version of a secret of a KV engine (version 2) is an entry of its own."""
_KEY = 0x0A
"""The first byte of a message: field 1, bytes follow."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a snapshot, counted by the keys of its entries."""

    index: int
    entries: int
    policies: frozenset[str]
    tokens: int
    leases: int
    versions: int
    """The number of versions of all secrets."""


def read_snapshot(path: Path) -> Snapshot:
    """The content of the file. Raises SnapshotError, which says what is wrong with the file."""
    return decoded(path, decode)


def decode(packed: bytes) -> Snapshot:
    """Decodes the bytes of a snapshot file. Raises SnapshotError."""
    archive = unpack(packed, "Vault")
    keys = list(_keys(archive.state))
    return Snapshot(
        archive.index,
        len(keys),
        frozenset(key.removeprefix(_POLICIES) for key in keys if key.startswith(_POLICIES)),
        sum(key.startswith(_TOKENS) for key in keys),
        sum(key.startswith(_LEASES) for key in keys),
        sum(key.startswith(_SECRETS) and _VERSIONS in key for key in keys),
    )


def _keys(state: bytes) -> Iterator[str]:
    at = 0
    while at < len(state):
        length, start = _varint(state, at)
        entry = state[start : start + length]
        if len(entry) < length or not entry or entry[0] != _KEY:
            raise SnapshotError(f"its state does not read as Vault's at byte {at} of {len(state)}")
        size, begin = _varint(entry, 1)
        yield entry[begin : begin + size].decode(errors="replace")
        at = start + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return number, at
    raise SnapshotError("its state breaks off in the middle of a number")


_MARKER = "hashidrill-marker-"
_RULES = "# a marker of hashidrill's: it allows nothing"
_REMOVED_WITHIN_S = 20.0
_FILES = "vault-"
_NO_RAFT = "Vault keeps its data in Consul here (datacenter.vault.storage): use consul.snapshot.{}"


class _OfTheStorage(BaseFault[P]):
    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi, VaultOperator})

    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), needs(ANSWERS))

    def troubles(self, place: Place) -> Iterable[Trouble]:
        yield from servers.only_on_vault(self.kind, place)
        vault = place.parts.get(servers.VAULT)
        if vault is not None and vault.storage != "raft":
            yield ("on",), _NO_RAFT.format(self.kind.rpartition(".")[2])
        if place.many and len(place.hosts) > 1:
            yield ("on",), f"{self.kind} affects the state that all servers share; write vault:active"

    def rights(self) -> Sequence[Right]:
        return (*rights.MARKERS, *rights.path("sys/storage/raft/snapshot", "read", "update"))

    async def prior(self, target: Target) -> Mapping[str, Any]:
        active = await servers.actives(self.hosts)
        if active != [target.host]:
            raise FaultError(f"{target.host} is not active; {', '.join(active) or 'none'} is; use on: vault:active")
        return {}

    async def _mark(self, undo: Undo, marker: str) -> None:
        path = f"sys/policies/acl/{marker}"
        said = await self._operator(undo).ask("PUT", path, {"policy": _RULES}, timeout_s=10.0)
        if not said.ok:
            raise FaultError(f"{undo['host']}: the marker {marker} could not be written: {said.text}")

    async def _unmark(self, undo: Undo, *markers: str) -> None:
        """Retries until Vault has removed the markers: it may be busy with a restore. Raises WaitTimeoutError."""

        async def removed() -> tuple[bool | None, str]:
            said = await self._operator(undo).ask("DELETE", f"sys/policies/acl/{marker}")
            return (True if said.ok else None), said.text

        for marker in markers:
            await wait_until(f"the marker {marker} to be removed", removed, within_s=_REMOVED_WITHIN_S)

    async def _marks(self, undo: Undo) -> tuple[frozenset[str] | None, str]:
        """The markers that Vault's storage lists, read through another server; None without an answer."""
        host = self._another(undo)
        said = await host.use(VaultOperator).ask("GET", "sys/policies/acl?list=true")
        keys = said.data.get("data", {}).get("keys") if said.ok else None
        if not isinstance(keys, list):
            return None, f"{host.name}: {said.text}"
        return frozenset(str(key) for key in keys if str(key).startswith(_MARKER)), host.name

    async def _over(self, undo: Undo, *markers: str) -> Evidence:
        asked = "Vault answers, and the markers are gone"
        there, who = await self._marks(undo)
        if there is None:
            return Evidence(False, asked, who)
        left = sorted(there & {*markers})
        return Evidence(not left, asked, f"asked through {who}; left: {', '.join(left) or 'nothing'}")

    def _operator(self, undo: Undo) -> VaultOperator:
        return self._host(undo).use(VaultOperator)

    def _another(self, undo: Undo) -> Host:
        others = [host for host in servers.servers_of(self.hosts) if host.name != undo["host"]]
        return others[0] if others else self._host(undo)


class SnapshotSave(SavesSnapshot, _OfTheStorage[SaveParams]):
    """Saves a snapshot of Vault's integrated storage in the recording, for a later restore.

    Limits: it happens at one moment, and reverting only removes the marker. Use it on `vault:active` with `storage:
    raft`; for a Vault with `storage: consul`, use `consul.snapshot.save`.
    """

    kind: ClassVar[str] = "vault.snapshot.save"
    observer: ClassVar[Observer] = Observer(
        "hashidrill's own reader of the file: its checksums, and the marker in it",
        "the file, and the fault's own marker",
    )
    files: ClassVar[str] = _FILES
    cases: ClassVar[Cases] = Cases(on=(("vault:active", {"name": "before"}),), momentary=True)

    async def apply(self, undo: Undo) -> None:
        await self._mark(undo, saved_marker(self.params.name, undo["fault_id"]))
        packed = await self._operator(undo).take_snapshot()
        await anyio.to_thread.run_sync(keep, self.file, packed)
        await self._unmark(undo, saved_marker(self.params.name, undo["fault_id"]))

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        marker = saved_marker(self.params.name, undo["fault_id"])
        if not present:
            return await self._over(undo, marker)
        return await self.proof(
            read_snapshot,
            lambda snapshot: (
                marker in snapshot.policies,
                f"{snapshot.versions} secrets, {snapshot.leases} leases, {snapshot.entries} entries",
                {
                    "entries": snapshot.entries,
                    "tokens": snapshot.tokens,
                    "leases": snapshot.leases,
                    "secrets": snapshot.versions,
                },
            ),
        )

    async def revert(self, undo: Undo) -> None:
        """Removes only the marker: a snapshot changes nothing else."""
        await self._unmark(undo, saved_marker(self.params.name, undo["fault_id"]))


class SnapshotRestore(RestoresSnapshot, _OfTheStorage[RestoreParams]):
    """Restores a snapshot saved earlier in the run: secrets, tokens and leases. Reverting does not undo the restore.

    Limits: a standby forwards requests to the active server. `no_secret_lost` and `no_lease_lost` with `snapshot`
    judge the loss.
    """

    kind: ClassVar[str] = "vault.snapshot.restore"
    observer: ClassVar[Observer] = Observer(
        (
            "the markers that Vault's storage lists, read through another server, and hashidrill's count of a "
            "second snapshot"
        ),
        "the markers are the fault's own; a standby forwards the query to the active server",
    )
    observed_within_s = 30.0
    """Vault answers before it has restored: it first waits for all open requests, and then loads its state again."""
    files: ClassVar[str] = _FILES
    cases: ClassVar[Cases] = Cases(on=(("vault:active", {"snapshot": "before"}),), momentary=True)

    async def prior(self, target: Target) -> Mapping[str, Any]:
        await super().prior(target)
        begin = saved_marker(self.params.snapshot, "")

        def marks(snapshot: Snapshot) -> list[str]:
            return sorted(name for name in snapshot.policies if name.startswith(begin))

        snapshot = await self.saved(read_snapshot, marks)
        return {"marker": marks(snapshot)[0], "secrets": snapshot.versions, "leases": snapshot.leases}

    async def apply(self, undo: Undo) -> None:
        self.restored_file.unlink(missing_ok=True)
        await self._mark(undo, _restored_marker(undo))
        packed = await anyio.to_thread.run_sync(self.file.read_bytes)
        await self._operator(undo).restore_snapshot(packed)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        saved, later = undo["prior"]["marker"], _restored_marker(undo)
        if not present:
            return await self._over(undo, saved, later)
        asked = "the save's marker is listed again, and the marker from just before the restore is not"
        there, who = await self._marks(undo)
        if there is None:
            return Evidence(False, asked, who)
        back = saved in there and later not in there
        words = f"asked through {who}: the save's {_seen(saved in there)}, the restore's {_seen(later in there)}"
        if not back:
            return Evidence(False, asked, words)
        if not self.restored_file.is_file():
            packed = await self._operator(undo).take_snapshot()
            await anyio.to_thread.run_sync(keep, self.restored_file, packed)
        after = await anyio.to_thread.run_sync(read_snapshot, self.restored_file)
        figures: dict[str, float | str] = {"secrets": after.versions, "leases": after.leases, "tokens": after.tokens}
        counted = f"{after.versions} secrets and {after.leases} leases in it (saved: {undo['prior']['secrets']} and "
        return Evidence(True, asked, f"{words}; {counted}{undo['prior']['leases']})", figures)

    async def revert(self, undo: Undo) -> None:
        """Removes only the markers: Vault keeps the snapshot's state."""
        await self._unmark(undo, _restored_marker(undo), undo["prior"]["marker"])


def saved_marker(name: str, fault_id: str) -> str:
    """The marker's name; Vault writes the names of policies in lower case."""
    return f"{_MARKER}saved-{name}-{fault_id}".lower()


def _restored_marker(undo: Undo) -> str:
    return f"{_MARKER}restored-{undo['fault_id']}".lower()


def _seen(there: bool) -> str:
    return "is there" if there else "is absent"
