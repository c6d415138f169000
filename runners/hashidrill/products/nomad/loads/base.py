"""The base of loads on Nomad: the agents that they call, small jobs, and the outcomes of changes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import AgentLoad
from hashidrill.core.loads.http_client import HttpClient, insist
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import Reason
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Duration
from hashidrill.core.util.safe_json import parse
from hashidrill.products.nomad import rights
from hashidrill.products.nomad.leftovers import JOBS_OF

Via = Annotated[
    str, Field(pattern=r"^(nomad:[a-z-]+|host:[a-z][a-z0-9-]*)$", description="Agents to send to, round robin")
]
PREPARE_WITHIN_S = 60.0
FINAL_READS_WITHIN_S = 60.0
_LEAVE_WITHIN_S = 4.0
PREFIX = "hashidrill-"
NODE_NAME = r"^[a-z][a-z0-9-]*$"


def task(command: str, *arguments: str) -> dict[str, Any]:
    """A task with minimal resources. Nomad does not collect its output, which would take a process for each task."""
    return {
        "Name": "task",
        "Driver": "raw_exec",
        "Config": {"command": command, "args": list(arguments)},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1, "Disabled": True},
        "KillTimeout": 1_000_000_000,
    }


class NomadLoad(AgentLoad):
    asks: ClassVar[str] = "Nomad agent"

    @property
    def job_id(self) -> str:
        return f"{PREFIX}{self.name}"

    async def register(self, client: HttpClient, job: Mapping[str, Any], job_id: str = "") -> None:
        """Retries until a server accepts the job. Raises WaitTimeoutError."""
        job_id = job_id or self.job_id
        body = json.dumps({"Job": {"ID": job_id, "Name": job_id, "Datacenters": ["*"], **job}}).encode()
        await insist(client, self.context.endpoints, "POST", "/v1/jobs", taken, within_s=PREPARE_WITHIN_S, body=body)

    async def remove(self, job_id: str) -> None:
        """Removes the job with its children. Gives up after 4 s, so that it does not wait for a sick server."""
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self.client() as client:
                for n in range(len(self.context.endpoints)):
                    url = f"{self.endpoint(n)}/v1/job/{job_id}"
                    answer = await client.request("DELETE", url, params={"purge": "true"}, timeout_s=_LEAVE_WITHIN_S)
                    if answer.status == 200:
                        return
        except TimeoutError:
            pass
        self.context.sample("left", 1.0, f"the job {job_id} was not removed: no server answered")

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:  # noqa: ARG003 - the signature of all loads
        return (Left("nomad", JOBS_OF, f"{PREFIX}{name}"),)

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return (*rights.READS, *rights.JOBS, rights.work("read-fs"))


def taken(answer: Answer) -> bool | None:
    return True if answer.status == 200 else None


def document(answer: Answer) -> Any:
    """The JSON of a good answer; None for any other answer, or if the answer is cut short."""
    if answer.status != 200:
        return None
    try:
        return parse(answer.body)
    except ValueError:
        return None


def change_reply(answer: Answer) -> Reply:
    """The outcome of a change: `ok` is 200.

    `fail` means that the change was certainly not applied: no connection, or a refusal (4xx). Any other result is
    `unknown`: a server that answers 500 may have passed the change to a leader that lost leadership.
    """
    if answer.status == 200:
        return Reply("ok", status=200)
    said = answer.error or answer.body[:200].decode(errors="replace").strip() or "(empty body)"
    refused = not answer.sent or (400 <= answer.status < 500 and answer.status != 408)
    return Reply("fail" if refused else "unknown", status=answer.status, error=said, reason=answer.why)


def timed_out_at_the_end() -> Reply:
    return Reply("unknown", error="had not ended when the load was stopped", reason=Reason.CANCELLED)


Timeout = Annotated[Duration, Field(gt=0, description="Give up an operation after this long; its outcome is unknown")]
