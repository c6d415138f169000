"""Jobs and their allocations, as faults ask Nomad for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.abc import Hosts
from hashidrill.core.protocols.registry import near
from hashidrill.products.nomad import api, trial_jobs

JobId = Annotated[str, StringConstraints(pattern=r"^[^\s?#%]{1,200}$")]


class JobParams(Strict):
    """Which job."""

    job: JobId = Field(description="The id of a job; that of a load is hashidrill-LOAD")


def path_of(job: str) -> str:
    return f"/v1/job/{job}"


async def _found(hosts: Hosts, job: str, *, copy: bool) -> Mapping[str, Any] | None:
    """By a list: a job that is not there is then no error. Raises FaultError, WaitTimeoutError."""
    params = {"prefix": job}
    listed = await (api.from_copy if copy else _led)(hosts, "/v1/jobs", params)
    return next((one for one in listed if one["ID"] == job), None)


async def _led(hosts: Hosts, path: str, params: Mapping[str, str]) -> Any:
    return await api.when_led(hosts, "GET", path, params=params)


async def stopped(hosts: Hosts, job: str, *, copy: bool = False) -> bool | None:
    """Whether the job is stopped; None for one that Nomad does not know. `copy`: a follower says so by itself."""
    found = await _found(hosts, job, copy=copy)
    return None if found is None else bool(found["Stop"])


async def registered(hosts: Hosts, job: str) -> Mapping[str, Any]:
    """The whole job. Raises FaultError for one that Nomad does not know, or that is stopped."""
    found = await _found(hosts, job, copy=False)
    if found is None:
        known = [one["ID"] for one in await _led(hosts, "/v1/jobs", {})]
        known = [one for one in known if not one.startswith(trial_jobs.PREFIX)]
        raise FaultError(f"Nomad knows no job {job!r}: {near(job, known) if known else 'there are none'}")
    if found["Stop"]:
        raise FaultError(f"the job {job} is stopped already: it runs nothing, with or without this fault")
    whole: Mapping[str, Any] = await api.when_led(hosts, "GET", path_of(job))
    return whole


async def allocations(hosts: Hosts, job: str, *, copy: bool = False) -> Sequence[Mapping[str, Any]]:
    """All that Nomad remembers of the job, in order of their names and ids."""
    path = f"{path_of(job)}/allocations"
    found = await (api.from_copy(hosts, path) if copy else api.when_led(hosts, "GET", path))
    return sorted(found or (), key=lambda one: (one["Name"], one["ID"]))


def runs(alloc: Mapping[str, Any]) -> bool:
    """Whether it runs, and should."""
    return bool(alloc["ClientStatus"] == "running" and alloc["DesiredStatus"] == "run")
