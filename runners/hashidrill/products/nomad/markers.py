"""Marker jobs that run nothing, by which faults of Nomad's state recognise that state later."""

import contextlib
from typing import NamedTuple

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Hosts
from hashidrill.products.nomad import api

PREFIX = "hashidrill-marker-"
_META = "hashidrill"


class Marker(NamedTuple):
    """A marker's value, and the index that Nomad gave to its write."""

    value: str
    modify_index: int


def id_of(name: str) -> str:
    return f"{PREFIX}{name}"


async def put(hosts: Hosts, name: str, value: str) -> None:
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
        "ID": id_of(name),
        "Name": id_of(name),
        "Type": "batch",
        "Datacenters": ["*"],
        "Meta": {_META: value},
        "ParameterizedJob": {"Payload": "forbidden"},
        "TaskGroups": [group],
    }
    await api.when_led(hosts, "POST", "/v1/jobs", body={"Job": job})


async def look(hosts: Hosts, name: str, *, copy: bool = False) -> Marker | None:
    """The marker; None if there is none. `copy`: in a follower's own state. Raises FaultError."""
    params = {"prefix": id_of(name), "meta": "true"}
    found = await (
        api.from_copy(hosts, "/v1/jobs", params) if copy else api.when_led(hosts, "GET", "/v1/jobs", params=params)
    )
    marker = next((one for one in found if one["ID"] == id_of(name) and not one["Stop"]), None)
    return marker and Marker(str((marker.get("Meta") or {}).get(_META)), int(marker["JobModifyIndex"]))


async def remove(hosts: Hosts, name: str) -> None:
    """Removes the marker, if it exists. Raises FaultError, and WaitTimeoutError if there is no leader."""
    if await look(hosts, name) is None:
        return
    with contextlib.suppress(FaultError):  # it may have been removed meanwhile
        await api.when_led(hosts, "DELETE", f"/v1/job/{id_of(name)}", params={"purge": "true"})
    if await look(hosts, name) is not None:
        raise FaultError(f"the marker {id_of(name)} could not be removed")


async def takes_a_write(hosts: Hosts, name: str) -> bool:
    """Whether Nomad accepts a write now, and returns it in a read. Raises FaultError, WaitTimeoutError."""
    await put(hosts, f"{name}-after", name)
    shown = await look(hosts, f"{name}-after")
    await remove(hosts, f"{name}-after")
    return shown is not None and shown.value == name
