"""Saves a snapshot of Consul's state during the run, and restores it later.

Both happen once, and reverting does not undo them: rolled-back data stays rolled back, and hypotheses judge the
loss. The observer reads the snapshot file itself, and marker keys that must be present or absent.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import BaseFault, Cases, P
from hashidrill.core.faults.saved_first import RestoreParams, RestoresSnapshot, SaveParams, SavesSnapshot
from hashidrill.core.protocols.abc import Evidence, Host, Observer, Place, Target, Trouble, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.raft_archive import keep
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.consul import markers, rights
from hashidrill.products.consul.api import AGENT, said, when_led
from hashidrill.products.consul.snapshots import Snapshot, SnapshotError, read_snapshot

_SNAPSHOT_WITHIN_S = 30.0
"""For one request: a snapshot of 30 kB takes 0.1 s; in a restore, Consul itself waits up to a minute for its leader."""


class _OfTheState(BaseFault[P]):
    at_a_time: ClassVar[int | None] = 0
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({AgentApi})

    def troubles(self, place: Place) -> Iterable[Trouble]:
        if place.many:
            text = f"{self.kind} affects the state that all servers share, so one host is enough; use on: consul:leader"
            yield ("on",), text

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, rights.STATE, rights.keys(f"{markers.PREFIX}/"))


class SnapshotSave(SavesSnapshot, _OfTheState[SaveParams]):
    """Saves a snapshot of Consul's state in the recording, for a later restore.

    Limits: it happens at one moment, and reverting only removes the marker. All servers share one state, so name one
    host; a follower forwards the request to the leader.
    """

    kind: ClassVar[str] = "consul.snapshot.save"
    observer: ClassVar[Observer] = Observer(
        "hashidrill's own reader of the file: its checksums, and the marker in it",
        "the file, and the fault's own marker",
    )
    cases: ClassVar[Cases] = Cases(
        each=({"name": "later"},), momentary=True, overlaps=((["consul:leader"], {"name": "?"}),)
    )

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        await markers.put(host, _marker_of(self.params.name), undo["fault_id"])
        snapshot = await _take(host)
        await markers.remove(host, _marker_of(self.params.name))
        await anyio.to_thread.run_sync(keep, self.file, snapshot)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        return await (self._saved(undo) if present else self._over(undo))

    async def _saved(self, undo: Undo) -> Evidence:
        return await self.proof(
            read_snapshot,
            lambda snapshot: (
                _holds_marker_of(snapshot, self.params.name, undo["fault_id"]),
                f"checksums right, Raft index {snapshot.index}, {len(snapshot.kv)} keys",
                {
                    "index": snapshot.index,
                    "keys": len(snapshot.kv),
                    "sessions": len(snapshot.sessions),
                    "bytes": self.file.stat().st_size,
                },
            ),
        )

    async def _over(self, undo: Undo) -> Evidence:
        host, asked = self._host(undo), "the datacenter accepts a write, and the marker is gone"
        if trouble := await markers.takes_a_write(host, undo["fault_id"]):
            return Evidence(False, asked, trouble)
        left = await markers.look(host, _marker_of(self.params.name))
        # once the file exists, the save has removed its marker: if it is back, a restore brought it and will remove it
        gone = left is None or await anyio.to_thread.run_sync(self._is_saved, undo)
        return Evidence(gone, asked, f"it accepts a write; the marker is {'gone' if gone else 'still there'}")

    async def revert(self, undo: Undo) -> None:
        """Removes only the marker, if an interrupted save left it: a snapshot itself changes nothing."""
        if not await anyio.to_thread.run_sync(self._is_saved, undo):
            await markers.remove(self._host(undo), _marker_of(self.params.name))

    def _is_saved(self, undo: Undo) -> bool:
        try:
            return _holds_marker_of(read_snapshot(self.file), self.params.name, undo["fault_id"])
        except SnapshotError:
            return False


class SnapshotRestore(RestoresSnapshot, _OfTheState[RestoreParams]):
    """Restores a snapshot saved earlier in the run. Reverting does not undo the restore.

    Limits: it happens at one moment. The data that it rolls back stays lost; reverting only removes the markers. The
    step's `for` is how long the method goes on afterwards. Only one restore per run can be judged.
    """

    kind: ClassVar[str] = "consul.snapshot.restore"
    observer: ClassVar[Observer] = Observer(
        "the markers, by consistent reads and in another server's own copy",
        "the markers are the fault's own",
    )
    observed_within_s = 90.0
    """Followers get the whole state only after the leader has restored it; a sick leader took 12 s for a write."""
    cases: ClassVar[Cases] = Cases(
        each=({"snapshot": "before"},),
        momentary=True,
        overlaps="it undoes the writes of other faults of Consul, and with them their proofs",
    )

    async def prior(self, target: Target) -> Mapping[str, Any]:
        key = _key_of(self.params.snapshot)
        snapshot = await self.saved(read_snapshot, lambda found: key in found.kv)
        marker_index = snapshot.kv[key].modify_index
        return {"index": snapshot.index, "keys": len(snapshot.kv), "marker_index": marker_index}

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        self.restored_file.unlink(missing_ok=True)
        await markers.put(host, _restored_marker(undo), undo["fault_id"])
        await markers.remove(host, _marker_of(self.params.snapshot))
        body = await anyio.to_thread.run_sync(self.file.read_bytes)
        answer = await host.use(AgentApi).api(
            "PUT", "/v1/snapshot", body=body, timeout_s=_SNAPSHOT_WITHIN_S, agent=AGENT
        )
        if answer.status != 200:
            raise FaultError(f"{host.name}: Consul did not restore the snapshot: {said(answer)}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        host = self._host(undo)
        if not present:
            return await self._over(host, undo)
        asked = "the save's marker is at its old index, and what was written just before the restore is gone"
        saved = await markers.look(host, _marker_of(self.params.snapshot))
        later = await markers.look(host, _restored_marker(undo))
        back = saved is not None and saved.modify_index == undo["prior"]["marker_index"]
        measured = (
            f"the save's marker is {f'at {saved.modify_index}' if saved else 'absent'} "
            f"(saved at {undo['prior']['marker_index']}); what was written before the restore is "
            f"{'gone' if later is None else 'there'}"
        )
        if back and later is None and not self.restored_file.is_file():
            await anyio.to_thread.run_sync(keep, self.restored_file, await _take(host))
        figures: dict[str, float | str] = {"index": undo["prior"]["index"], "keys": undo["prior"]["keys"]}
        copied = await self._copied(undo)
        return Evidence(back and later is None and copied, asked, measured + _elsewhere(copied), figures)

    async def _copied(self, undo: Undo) -> bool:
        host = self._host(undo)
        saved = await markers.look_elsewhere(self.hosts, host, _marker_of(self.params.snapshot))
        later = await markers.look_elsewhere(self.hosts, host, _restored_marker(undo))
        return saved is not None and saved.modify_index == undo["prior"]["marker_index"] and later is None

    async def _over(self, host: Host, undo: Undo) -> Evidence:
        asked = "the datacenter accepts a write, and the markers are gone"
        if trouble := await markers.takes_a_write(host, undo["fault_id"]):
            return Evidence(False, asked, trouble)
        keys = [_marker_of(self.params.snapshot), _restored_marker(undo)]
        left = [key for key in keys if await markers.look(host, key) is not None]
        return Evidence(not left, asked, f"it accepts a write; left: {', '.join(left) or 'nothing'}")

    async def revert(self, undo: Undo) -> None:
        """Removes only the markers: the datacenter keeps the snapshot's state."""
        host = self._host(undo)
        left = (_restored_marker(undo), _marker_of(self.params.snapshot))
        await all_at_once(partial(markers.remove, host, key) for key in left)


def _elsewhere(copied: bool) -> str:
    return f"; another server's own copy {'says the same' if copied else 'is not restored'}"


def _marker_of(name: str) -> str:
    return f"saved/{name}"


def _key_of(name: str) -> str:
    return f"{markers.PREFIX}/{_marker_of(name)}"


def _restored_marker(undo: Undo) -> str:
    return f"restored/{undo['fault_id']}"


def _holds_marker_of(snapshot: Snapshot, name: str, fault_id: str) -> bool:
    entry = snapshot.kv.get(_key_of(name))
    return entry is not None and entry.value == fault_id.encode()


async def _take(host: Host) -> bytes:
    answer = await when_led(host, "GET", "/v1/snapshot", timeout_s=_SNAPSHOT_WITHIN_S)
    if answer.status != 200:
        raise FaultError(f"{host.name}: Consul did not take a snapshot: {said(answer)}")
    return answer.body
