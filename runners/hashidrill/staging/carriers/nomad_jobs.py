"""hashidrill's jobs on single Nomad clients: how they are written, started, signalled, read and removed.

A job is a system batch job with the driver raw_exec, for one node by its id: Nomad never restarts it, nor places it
again once it ended. The job holds no secrets: the arguments of a fault come by exec. Paths and fields of Nomad 1.10.5.
"""

import base64
import contextlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import anyio

from hashidrill.core.errors import FaultError, HashidrillError
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.util import safe_json
from hashidrill.staging.attach.http import UnansweredError, Wire

PREFIX = "hashidrill-carrier-"
META_RUN, META_HOST = "hashidrill_run", "hashidrill_host"
TASK = "carrier"
ENDED = frozenset({"complete", "failed", "lost", "unknown"})
_GROUP = "host"
_LOOK_EVERY_S = 0.3
_AGAIN_EVERY_S = 3.0
"""After this long without an allocation, Nomad is asked once more to place a job. It does not do so by itself when a
client comes back: the evaluations of a node leave out system batch jobs (createNodeEvals of Nomad 1.10.5).
"""
_TIMEOUT_S = 10.0
_LOG_MB, _DISK_MB = 2, 10
"""Nomad accepts no group with less disk."""
_CPU_MHZ, _MEMORY_MB = 50, 64
_KILL_AFTER_NS = 25_000_000_000
"""Longer than a revert takes, and less than the 30 s that Nomad's clients allow by default."""
_RUNNER = "import base64,zlib;exec(compile(zlib.decompress(base64.b64decode('{}')),'hashidrill','exec'))"
_ANY_RUN = "none"


@dataclass(frozen=True)
class Node:
    """A Nomad client for a job."""

    id: str
    name: str
    datacenter: str


def job_name(run: str, number: str) -> str:
    """`number`: eight hexadecimal digits. A run's id may be the beginning of another run's id, so a dot ends it."""
    return f"{PREFIX}{_safe(run)}.{number}"


def _safe(run: str) -> str:
    return re.sub(r"[^\w-]", "_", run) or _ANY_RUN


def job_of(name: str, node: Node, program: str, *, python: str, run: str, host: str) -> dict[str, Any]:
    """The job's specification, in the JSON of Nomad's API: one task on that node, once."""
    packed = base64.b64encode(zlib.compress(program.encode(), 9)).decode()
    task = {
        "Name": TASK,
        "Driver": "raw_exec",
        "KillSignal": "SIGTERM",
        "KillTimeout": _KILL_AFTER_NS,
        "Config": {"command": python, "args": ["-c", _RUNNER.format(packed)]},
        "Resources": {"CPU": _CPU_MHZ, "MemoryMB": _MEMORY_MB},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": _LOG_MB},
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
    }
    group = {
        "Name": _GROUP,
        "Count": 1,
        "Tasks": [task],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "Constraints": [{"LTarget": "${node.unique.id}", "Operand": "=", "RTarget": node.id}],
        "EphemeralDisk": {"SizeMB": _DISK_MB},
    }
    return {
        "ID": name,
        "Name": name,
        "Type": "sysbatch",
        "Datacenters": [node.datacenter],
        "NodePool": "all",
        "Meta": {META_RUN: run, META_HOST: host},
        "TaskGroups": [group],
    }


class Jobs:
    """Requests about jobs. Each raises `error` with the problem and a remedy, UnansweredError without an answer."""

    def __init__(self, wire: Wire, error: type[HashidrillError] = FaultError) -> None:
        self._wire, self._error = wire, error

    async def submit(self, job: Mapping[str, Any]) -> None:
        """Never replaces an existing job: JobModifyIndex is 0."""
        body = {"Job": job, "EnforceIndex": True, "JobModifyIndex": 0}
        await self.ask("POST", "/v1/jobs", needs="submit-job", body=body)

    async def fits(self, node: Node) -> None:
        """Raises FaultError if Nomad would not place the job there now, because Nomad does not retry later."""
        if why := unfit(await self.ask("GET", f"/v1/node/{node.id}", needs="node:read")):
            raise self._error(why)

    async def placed(self, name: str, node: Node, *, within_s: float) -> str:
        """The id of the job's only allocation, once it runs."""
        status, asks_s = "", anyio.current_time() + _AGAIN_EVERY_S
        with anyio.move_on_after(within_s):
            while True:
                found = await self.allocations(name)
                if len(found) > 1:
                    raise self._error(f"Nomad placed {len(found)} allocations of the job {name}, instead of one")
                for one in found:
                    status = f"its allocation {one['ID'][:8]} is {one['ClientStatus']}"
                    if one["NodeID"] != node.id:
                        raise self._error(f"Nomad placed the job {name} on {one['NodeName']}, not on {node.name}")
                    if one["ClientStatus"] == "failed":
                        raise self._error(f"the job {name} failed on {node.name}: {told(one)}{_hint(told(one))}")
                    if one["ClientStatus"] in ENDED:
                        raise self._error(f"the job {name} ended on {node.name} before it was used: {status}")
                    if one["ClientStatus"] != "pending":
                        return str(one["ID"])
                if not found and anyio.current_time() >= asks_s:
                    asks_s = anyio.current_time() + _AGAIN_EVERY_S
                    await self.ask("POST", f"/v1/job/{quote(name)}/evaluate", needs="submit-job", body={"JobID": name})
                await anyio.sleep(_LOOK_EVERY_S)
        why = status or await self._unplaced(name, node)
        raise self._error(f"the job {name} does not run on {node.name} within {within_s:g}s: {why}")

    async def _unplaced(self, name: str, node: Node) -> str:
        said = await self.evaluations(name)
        why = [f"the evaluation is {one.get('Status', '')}" for one in said[-1:]]
        if (counted := refusals(said)) is not None:
            why = [f"Nomad could not place it: {', '.join(counted) or 'no client fits'}"]
        client = await self.ask("GET", f"/v1/node/{node.id}", needs="node:read")
        return "; ".join([*why, *filter(None, [unfit(client)])])

    async def evaluations(self, name: str) -> Any:
        return await self.ask("GET", f"/v1/job/{quote(name)}/evaluations", needs="read-job")

    async def allocations(self, name: str) -> Any:
        return await self.ask("GET", f"/v1/job/{quote(name)}/allocations", needs="read-job")

    async def status(self, allocation: str) -> tuple[str, str]:
        """(client status, the last events of the allocation's task)."""
        one = await self.ask("GET", f"/v1/allocation/{allocation}", needs="read-job")
        return str(one["ClientStatus"]), told(one)

    async def signal(self, allocation: str, name: str) -> None:
        """`name`: like SIGUSR1."""
        path = f"/v1/client/allocation/{allocation}/signal"
        await self.ask("POST", path, needs="alloc-lifecycle", body={"Signal": name, "Task": TASK})

    async def log(self, allocation: str, offset: int, task: str = TASK) -> bytes:
        """The program's output from that offset on; empty if there is none yet."""
        params = {"task": task, "type": "stdout", "plain": "true", "origin": "start", "offset": str(offset)}
        answer = await self._asked("GET", f"/v1/client/fs/logs/{allocation}", needs="read-logs", params=params)
        return answer.body if answer.status == 200 else b""

    async def purge(self, name: str) -> None:
        """Stops the job by SIGTERM, and removes it. The job's allocations stay until Nomad's garbage collection."""
        path = f"/v1/job/{quote(name)}"
        answer = await self._asked("DELETE", path, needs="submit-job", params={"purge": "true"})
        if answer.status not in {200, 404}:
            raise self._error(f"Nomad: DELETE {path}: {_said(answer)}")

    async def left(self, begin: str, rest: str = "") -> list[str]:
        """The jobs, running or dead, whose names begin with `begin` and match the expression `rest` after it."""
        said = await self.ask("GET", "/v1/jobs", needs="list-jobs", params={"prefix": begin})
        try:
            names = [str(one["ID"]) for one in said]
        except (TypeError, KeyError):
            raise self._error("Nomad's answer to /v1/jobs is not a list of jobs") from None
        return [name for name in names if re.fullmatch(rest, name.removeprefix(begin))]

    async def remove(self, begin: str, rest: str = "") -> list[str]:
        """Removes what `left` finds, and returns the names of the jobs that Nomad has removed."""
        removed = []
        with contextlib.suppress(FaultError, self._error):
            for name in await self.left(begin, rest):
                await self.purge(name)
                removed.append(name)
        return removed

    async def ask(
        self, method: str, path: str, *, needs: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> Any:
        """Nomad's answer, parsed."""
        answer = await self._asked(method, path, needs=needs, body=body, params=params)
        if answer.status != 200:
            raise self._error(f"Nomad: {method} {path}: {_said(answer)}")
        try:
            return safe_json.parse(answer.body)
        except ValueError:
            raise self._error(f"Nomad answered {method} {path} with a body that is not JSON: {_said(answer)}") from None

    async def _asked(
        self, method: str, path: str, *, needs: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = await self._wire.request(method, path, body=content, params=params, timeout_s=_TIMEOUT_S)
        except UnansweredError as error:
            raise UnansweredError(f"Nomad does not answer: {error}") from None
        if answer.status == 403:
            raise self._error(f"the token of Nomad lacks {needs}: {method} {path}: {_said(answer)}")
        return answer


async def remove_jobs(wire: Wire, run: str) -> list[str]:
    """Removes the jobs that a killed run left, which reverts faults still in force. Returns their names."""
    return await Jobs(wire).remove(job_name(run, ""), r"[0-9a-f]{8}")


def refusals(evaluations: Any) -> dict[str, int] | None:
    """Why the last failed evaluation placed no allocation, as clients by reason; None if none failed."""
    found = None
    for one in evaluations:
        for failed in (one.get("FailedTGAllocs") or {}).values():
            found = {**(failed.get("ConstraintFiltered") or {}), **(failed.get("DimensionExhausted") or {})}
    return found


def restarting(node: Mapping[str, Any]) -> bool:
    """Whether the client may become usable soon: it has not connected, or has not reported its drivers yet."""
    allowed = node["SchedulingEligibility"] == "eligible"
    return bool(unfit(node)) and (node["Status"] != "ready" or allowed)


def unfit(node: Mapping[str, Any]) -> str:
    """Why Nomad cannot place a job on that client now, and what happens to an existing one; "" if it can."""
    if node["Status"] != "ready":
        return f"the client is {node['Status']}: start its Nomad agent, or fix its connection to the servers"
    if node.get("DrainStrategy") or node.get("Drain"):
        return (
            "the client is draining: Nomad starts nothing there, and stops running jobs, which reverts: end the drain"
        )
    if node["SchedulingEligibility"] != "eligible":
        return "the client is ineligible: allow it by `nomad node eligibility -enable`"
    driver = (node.get("Drivers") or {}).get("raw_exec") or {}
    if not driver.get("Detected"):
        return 'it has no driver raw_exec: allow it by `plugin "raw_exec" { config { enabled = true } }` on that client'
    if not driver.get("Healthy"):
        said = driver.get("HealthDescription") or "it does not say why"
        return f"its driver raw_exec is not healthy: {said}"
    return ""


def told(allocation: Mapping[str, Any]) -> str:
    """The last events of its task, in Nomad's words."""
    states = allocation.get("TaskStates") or {}
    events = [event for state in states.values() for event in state.get("Events") or ()]
    said = [event.get("DisplayMessage") or event.get("Type", "") for event in events[-3:]]
    return "; ".join(said) or str(allocation.get("ClientDescription") or "Nomad gave no reason")


def _hint(said: str) -> str:
    missing = "not found" in said or "no such file" in said
    return "; python3 is missing there: install it, or name it in carriers.nomad.python" if missing else ""


def _said(answer: ApiAnswer) -> str:
    return f"HTTP {answer.status} {answer.body[:300].decode(errors='replace').strip()}".rstrip()
