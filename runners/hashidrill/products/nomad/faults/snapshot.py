"""Saves a snapshot of Nomad's state during the run, and restores it later.

Both happen once, and reverting does not undo them: jobs registered since the save are gone, and nodes run
allocations that no server knows, until the servers tell them to stop. The observer reads the snapshot file itself, and
marker jobs that must be present or absent.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.faults.saved_first import RestoreParams, RestoresSnapshot, SaveParams, SavesSnapshot
from hashidrill.core.protocols.abc import Claim, Evidence, Host, Hosts, Observer, Place, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi
from hashidrill.core.protocols.claims import EVERYWHERE, takes
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.raft_archive import Archive, decoded, keep, unpack
from hashidrill.products.nomad import api, rights, tasks
from hashidrill.products.nomad.faults.declared import OfWork

PREFIX = "hashidrill-marker-"
_META = "hashidrill"


class Marker(NamedTuple):
    """A marker's value, and the index that Nomad gave to its write."""

    value: str
    modify_index: int


def marker_id(name: str) -> str:
    return f"{PREFIX}{name}"


async def put_marker(hosts: Hosts, name: str, value: str) -> None:
    """Registers a job that is only dispatched: nothing is placed or evaluated. Raises FaultError."""
    group = {
        "Name": "marker",
        "Count": 1,
        "Tasks": [
            {
                "Name": "marker",
                "Driver": "raw_exec",
                "Config": {"command": "/bin/true"},
                "Resources": {"CPU": 1, "MemoryMB": 10},
            },
        ],
    }
    job = {
        "ID": marker_id(name),
        "Name": marker_id(name),
        "Type": "batch",
        "Datacenters": ["*"],
        "Meta": {_META: value},
        "ParameterizedJob": {"Payload": "forbidden"},
        "TaskGroups": [group],
    }
    await api.when_led(hosts, "POST", "/v1/jobs", body={"Job": job})


async def find_marker(hosts: Hosts, name: str, *, copy: bool = False) -> Marker | None:
    """The marker; None if there is none. `copy`: in a follower's own state. Raises FaultError."""
    params = {"prefix": marker_id(name), "meta": "true"}
    found = await (
        api.from_copy(hosts, "/v1/jobs", params) if copy else api.when_led(hosts, "GET", "/v1/jobs", params=params)
    )
    marker = next((one for one in found if one["ID"] == marker_id(name) and not one["Stop"]), None)
    return marker and Marker(str((marker.get("Meta") or {}).get(_META)), int(marker["JobModifyIndex"]))


async def remove_marker(hosts: Hosts, name: str) -> None:
    """Removes the marker, if it exists. Raises FaultError, and WaitTimeoutError if there is no leader."""
    if await find_marker(hosts, name) is None:
        return
    with contextlib.suppress(FaultError):  # it may have been removed meanwhile
        await api.when_led(hosts, "DELETE", f"/v1/job/{marker_id(name)}", params={"purge": "true"})
    if await find_marker(hosts, name) is not None:
        raise FaultError(f"the marker {marker_id(name)} could not be removed")


async def takes_a_write(hosts: Hosts, name: str) -> bool:
    """Whether Nomad accepts a write now, and returns it in a read. Raises FaultError, WaitTimeoutError."""
    await put_marker(hosts, f"{name}-after", name)
    shown = await find_marker(hosts, f"{name}-after")
    await remove_marker(hosts, f"{name}-after")
    return shown is not None and shown.value == name


_SNAPSHOT = "/v1/operator/snapshot"
_SNAPSHOT_WITHIN_S = 60.0
_STATE = "Nomad's state as a whole"


class _OfTheState(OfWork[P]):
    def uses(self, place: Place) -> Sequence[Claim]:
        return (*super().uses(place), takes(_STATE, "both save or restore it", where=EVERYWHERE, local=False))

    def rights(self) -> Sequence[Right]:
        return (*rights.READS, *rights.JOBS, rights.STATE)


class SnapshotSave(SavesSnapshot, _OfTheState[SaveParams]):
    """Saves a snapshot of Nomad's state in the recording, for a later restore.

    Limits: the same as for `consul.snapshot.save`.
    """

    kind: ClassVar[str] = "nomad.snapshot.save"
    observer: ClassVar[Observer] = Observer(
        "hashidrill's own reader of the file: its checksums, and the marker in it",
        "the file, and the fault's own marker",
    )
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"name": "before"}),), momentary=True)

    async def apply(self, undo: Undo) -> None:
        await put_marker(self.hosts, self.params.name, undo["fault_id"])
        snapshot = await _take(self._host(undo))
        await remove_marker(self.hosts, self.params.name)
        await anyio.to_thread.run_sync(keep, self.file, snapshot)

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        if not present:
            return await _over(self.hosts, undo["fault_id"], [self.params.name])
        return await self.proof(
            _read,
            lambda archive: (
                _holds(archive, self.params.name, undo["fault_id"]),
                f"checksums right, Raft index {archive.index}",
                {"index": archive.index, "bytes": len(archive.state)},
            ),
        )

    async def revert(self, undo: Undo) -> None:
        """Removes only the marker, if an interrupted save left it: a snapshot itself changes nothing."""
        await remove_marker(self.hosts, self.params.name)


class SnapshotRestore(RestoresSnapshot, _OfTheState[RestoreParams]):
    """Restores a snapshot of Nomad's state saved earlier in the run. Reverting does not undo the restore.

    Limits: the same as for `consul.snapshot.restore`.
    """

    kind: ClassVar[str] = "nomad.snapshot.restore"
    observer: ClassVar[Observer] = Observer(
        "the markers, in the leader's and a follower's own copy", "the markers are the fault's own jobs"
    )
    cases: ClassVar[Cases] = Cases(on=(("nomad:leader", {"snapshot": "before"}),), momentary=True)

    @property
    def observed_within_s(self) -> float:
        """Followers get the whole state from the leader only after the leader has restored it."""
        return 30.0

    async def prior(self, target: Target) -> Mapping[str, Any]:
        archive = await self.saved(_read, lambda found: marker_id(self.params.snapshot).encode() in found.state)
        return {"index": archive.index, "allocs": sorted(await self._allocs_with_processes())}

    async def _allocs_with_processes(self) -> set[str]:
        return {one.alloc for one in await tasks.on_all_nodes(self.hosts)}

    async def apply(self, undo: Undo) -> None:
        host = self._host(undo)
        self.restored_file.unlink(missing_ok=True)
        await put_marker(self.hosts, undo["fault_id"], undo["fault_id"])
        await remove_marker(self.hosts, self.params.snapshot)
        body = await anyio.to_thread.run_sync(self.file.read_bytes)
        answer = await host.use(AgentApi).api(
            "PUT", _SNAPSHOT, body=body, timeout_s=_SNAPSHOT_WITHIN_S, agent=api.AGENT
        )
        if answer.status != 200:
            raise FaultError(f"{host.name}: Nomad did not restore the snapshot: {api.said(answer)}")

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        if not present:
            return await _over(self.hosts, undo["fault_id"], [self.params.snapshot, undo["fault_id"]])
        asked = "the save's marker is back, and the marker registered just before the restore is gone"
        back = [await self._is_back(undo, copy=copy) for copy in (False, True)]
        if all(back) and not self.restored_file.is_file():
            await anyio.to_thread.run_sync(keep, self.restored_file, await _take(self._host(undo)))
        known = {one["ID"] for one in await api.from_copy(self.hosts, "/v1/allocations")}
        unknown = await self._allocs_with_processes() - known
        words = {True: "restored", False: "not restored"}
        measured = (
            f"the leader's state is {words[back[0]]}, a follower's copy is {words[back[1]]};"
            f" {len(unknown)} allocations that no server knows still run"
        )
        figures: dict[str, float | str] = {"index": undo["prior"]["index"], "unknown_allocations": len(unknown)}
        return Evidence(all(back), asked, measured, figures)

    async def _is_back(self, undo: Undo, *, copy: bool) -> bool:
        saved = await find_marker(self.hosts, self.params.snapshot, copy=copy)
        later = await find_marker(self.hosts, undo["fault_id"], copy=copy)
        return saved is not None and saved.modify_index <= undo["prior"]["index"] and later is None

    async def revert(self, undo: Undo) -> None:
        """Removes only the markers: the rollback stays."""
        await remove_marker(self.hosts, self.params.snapshot)
        await remove_marker(self.hosts, undo["fault_id"])


async def _over(hosts: Any, fault_id: str, names: Sequence[str]) -> Evidence:
    taken = await takes_a_write(hosts, fault_id)
    left = [name for name in names if await find_marker(hosts, name) is not None]
    words = f"it {'accepts a write' if taken else 'does not show a write'}; left: {', '.join(left) or 'nothing'}"
    return Evidence(taken and not left, "Nomad accepts a write, and the markers are gone", words)


async def _take(host: Host) -> bytes:
    answer = await host.use(AgentApi).api("GET", _SNAPSHOT, timeout_s=_SNAPSHOT_WITHIN_S, agent=api.AGENT)
    if answer.status != 200:
        raise FaultError(f"{host.name}: Nomad did not take a snapshot: {api.said(answer)}")
    return answer.body


def _read(file: Path) -> Archive:
    return decoded(file, lambda packed: unpack(packed, "Nomad"))


def _holds(archive: Archive, name: str, value: str) -> bool:
    """Searches the text directly: Nomad's state is MessagePack, which keeps texts readable."""
    return marker_id(name).encode() in archive.state and value.encode() in archive.state
