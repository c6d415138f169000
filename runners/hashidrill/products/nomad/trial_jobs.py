"""Small jobs that only one node can run: they show observers how Nomad treats work for that node."""

from typing import Any

from hashidrill.core.errors import FaultError, WaitTimeoutError
from hashidrill.core.protocols.abc import Hosts
from hashidrill.core.util.wait import wait_until
from hashidrill.products.nomad import api

PREFIX = "hashidrill-trial-"
"""The prefix of these jobs' ids. Probes and hypotheses do not count these jobs."""
_SECOND = 10**9
_NEVER = {"Attempts": 0, "Interval": 5 * _SECOND, "Delay": 0, "Mode": "fail"}
_ENDS_WITHIN_S = 10.0
_ENDED = ("complete", "failed", "lost")


def trial_job(name: str, node_id: str) -> dict[str, Any]:
    """A job of one task that ends at once, is tried once, and may run only on that node."""
    task = {
        "Name": "trial",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": 1, "MemoryMB": 10},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1, "Disabled": True},
    }
    group = {
        "Name": "trial",
        "Count": 1,
        "EphemeralDisk": {"SizeMB": 10},
        "RestartPolicy": _NEVER,
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "Tasks": [task],
    }
    only = {"LTarget": "${node.unique.id}", "RTarget": node_id, "Operand": "="}
    job_id = f"{PREFIX}{name}"
    return {
        "ID": job_id,
        "Name": job_id,
        "Type": "batch",
        "Datacenters": ["*"],
        "Constraints": [only],
        "TaskGroups": [group],
    }


async def would_place(hosts: Hosts, node_id: str) -> bool:
    """Whether the scheduler would place work on that node now, by a plan that runs nothing. Raises FaultError."""
    job = trial_job("plan", node_id)
    plan = await api.when_led(hosts, "PUT", f"/v1/job/{job['ID']}/plan", body={"Job": job, "Diff": False})
    return not plan.get("FailedTGAllocs")


async def outcome(hosts: Hosts, node_id: str, name: str) -> str:
    """How a task there ends now: `complete`, `failed`, ...; `not placed` or `pending` if late. Raises FaultError."""
    job = trial_job(name, node_id)
    await api.when_led(hosts, "POST", "/v1/jobs", body={"Job": job})
    last = "not placed"

    async def ended() -> tuple[str | None, str]:
        nonlocal last
        allocs = await api.when_led(hosts, "GET", f"/v1/job/{job['ID']}/allocations")
        last = allocs[0]["ClientStatus"] if allocs else "not placed"
        return (last if last in _ENDED else None), last

    try:
        return await wait_until("a trial job to end", ended, within_s=_ENDS_WITHIN_S, gap_s=0.1)
    except WaitTimeoutError:
        return last
    finally:
        try:
            await api.when_led(hosts, "DELETE", f"/v1/job/{job['ID']}", params={"purge": "true"})
        except (FaultError, WaitTimeoutError) as error:
            raise FaultError(f"the trial job {job['ID']} could not be removed: {error}") from None
