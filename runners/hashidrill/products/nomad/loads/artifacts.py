"""`nomad.artifacts`: builds that download what they need by their `artifact` stanza, as real Nomad tasks do.

The artifact is on the disk of one node, where a task has written it, and that node's agent serves it (Nomad's own file
API), so a fault of that node's disk breaks the downloads. Builds run on the other nodes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.http_client import HttpClient, insist
from hashidrill.core.loads.schedule import Reply, detail_as
from hashidrill.core.protocols.abc import Detail, EmitOperation
from hashidrill.core.units import Duration, Rate, Size
from hashidrill.products.nomad.loads.base import (
    NODE_NAME,
    PREPARE_WITHIN_S,
    NomadLoad,
    Timeout,
    Via,
    change_reply,
    document,
    task,
)
from hashidrill.products.nomad.settings import HTTP_PORT

TABLE = "nomad_build"
FAILED_DOWNLOAD = "nomad.artifact-not-downloaded"
FAILED_BUILD = "nomad.build-failed"
NOT_ENDED = "nomad.build-not-ended"
_LOOK_EVERY_S = 0.25
_ASK_WITHIN_S = 2.0
_SECOND = 10**9
_FILE = "artifact"


@dataclass(frozen=True)
class Build:
    """The result of one build, from the events of its task: its `Operation.detail`.

    `failed_downloads`: how many of the ten events that Nomad keeps for a task are such failures. `restarts`: how often
    Nomad restarted the task.
    """

    node: str
    failed_downloads: int
    restarts: int

    def detail(self) -> Detail:
        return Detail(TABLE, asdict(self))

    @classmethod
    def of(cls, detail: Detail | None) -> Build:
        """Raises ValueError for a detail that is not of a build."""
        return detail_as(cls, detail, TABLE, "nomad.artifacts")


class Artifacts(NomadLoad):
    """Dispatches builds; each is a batch task that downloads an artifact from a node's disk before it starts.

    An operation is a build: `ok` when it is complete, `fail` when Nomad gave it up. The operation's detail holds the
    number of failed downloads and of Nomad's retries.
    """

    kind: ClassVar[str] = "nomad.artifacts"
    not_by_address: ClassVar[str] = "its store of artifacts works only in a local datacenter"

    class Params(Strict):
        """Nomad itself retries a failed download only as often as the task's restart policy says: `retries`."""

        rate: Rate = Field(gt=0, le=20)
        """Builds offered, at most 20/s; each starts processes: on two cores, 2/s is a lot."""
        retries: int = Field(default=0, ge=0, le=5, description="Restarts that the policy of the task allows")
        gap: Duration = Field(default=Duration("1s"), gt=0, description="Delay before each restart")
        size: Size = Field(default=Size("64KiB"), gt=0, le=64 * 2**20, description="Size of the artifact")
        checksum: bool = Field(default=True, description="Whether the stanza has the artifact's checksum")
        store: Annotated[str, StringConstraints(pattern=NODE_NAME)] = Field(
            default="node-1", description="The node whose disk holds the artifact, and that runs no builds"
        )
        via: Via = "nomad:servers"
        timeout: Timeout = Duration("60s")

    params: Params

    @property
    def _store_id(self) -> str:
        return f"{self.job_id}-store"

    async def prepare(self) -> None:
        async with self.client() as client:
            await self.register(client, self._store_job(), self._store_id)
            source = await insist(
                client,
                self.context.endpoints,
                "GET",
                f"/v1/job/{self._store_id}/allocations",
                _where_it_lies,
                within_s=PREPARE_WITHIN_S,
            )
            address = await insist(
                client, self.context.endpoints, "GET", "/v1/nodes", self._address_of_store, within_s=PREPARE_WITHIN_S
            )
            await self.register(client, self._build_job(f"http://{address}:{HTTP_PORT}{source}"))

    def _address_of_store(self, answer: Answer) -> str | None:
        nodes = document(answer)
        return next((node["Address"] for node in nodes or () if node["Name"] == self.params.store), None)

    def _store_job(self) -> dict[str, Any]:
        write = f"head -c {int(self.params.size)} /dev/zero > $NOMAD_ALLOC_DIR/data/{_FILE} && exec /bin/sleep 86400"
        group = {"Name": "group", "Count": 1, "EphemeralDisk": {"SizeMB": 100}, "Tasks": [task("/bin/sh", "-c", write)]}
        return {"Type": "service", "TaskGroups": [group], "Constraints": [self._only("=")]}

    def _build_job(self, source: str) -> dict[str, Any]:
        size = int(self.params.size)
        sums = {"checksum": f"sha256:{hashlib.sha256(bytes(size)).hexdigest()}"} if self.params.checksum else {}
        artifact = {
            "GetterSource": source,
            "RelativeDest": f"local/{_FILE}",
            "GetterMode": "file",
            "GetterOptions": sums,
        }
        # a build from half an artifact fails
        builds = task("/bin/sh", "-c", f"test $(/usr/bin/wc -c < local/{_FILE}) -eq {size}") | {"Artifacts": [artifact]}
        group = {
            "Name": "group",
            "Count": 1,
            "EphemeralDisk": {"SizeMB": 10},
            "Tasks": [builds],
            "RestartPolicy": {
                "Attempts": self.params.retries,
                "Interval": 3_600 * _SECOND,
                "Mode": "fail",
                "Delay": int(float(self.params.gap) * _SECOND),
            },
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        }
        return {
            "Type": "batch",
            "ParameterizedJob": {"Payload": "forbidden"},
            "TaskGroups": [group],
            "Constraints": [self._only("!=")],
        }

    def _only(self, operand: str) -> dict[str, str]:
        return {"LTarget": "${node.unique.name}", "RTarget": self.params.store, "Operand": operand}

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as client:

            async def build(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - the plan has the same arguments
                url = f"{self.endpoint(n)}/v1/job/{self.job_id}/dispatch"
                answer = await client.request("POST", url, body=b"{}", timeout_s=_ASK_WITHIN_S)
                dispatched = document(answer)
                if dispatched is None:
                    return change_reply(answer)
                try:
                    async with asyncio.timeout(float(self.params.timeout)):
                        return await self._ended(client, n, dispatched["DispatchedJobID"])
                except TimeoutError:
                    return Reply("unknown", error=f"not ended after {self.params.timeout}", reason=NOT_ENDED)

            await self.open_loop(self._plan, build).run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        return f"{self.context.run_id}-{n}", "built"

    async def _ended(self, client: HttpClient, n: int, job_id: str) -> Reply:
        while True:
            n += 1
            url = f"{self.endpoint(n)}/v1/job/{job_id}/allocations"
            allocs = document(await client.request("GET", url, timeout_s=_ASK_WITHIN_S))
            if allocs and (reply := outcome(allocs[0])) is not None:
                return reply
            await asyncio.sleep(_LOOK_EVERY_S)

    async def clean_up(self) -> None:
        """Removes both jobs. Nomad itself removes the builds, because they have ended."""
        for job_id in (self.job_id, self._store_id):
            await self.remove(job_id)


def outcome(alloc: Mapping[str, Any]) -> Reply | None:
    """The outcome of a build that ended; None for a build in progress."""
    state: Mapping[str, Any] = next(iter((alloc.get("TaskStates") or {}).values()), {})
    failed = [event for event in state.get("Events") or () if event["Type"] == "Failed Artifact Download"]
    detail = Build(str(alloc.get("NodeName", "")), len(failed), int(state.get("Restarts") or 0)).detail()
    match alloc["ClientStatus"]:
        case "complete":
            return Reply("ok", status=200, detail=detail)
        case "failed":
            reason = FAILED_DOWNLOAD if failed else FAILED_BUILD
            said = failed[-1]["DisplayMessage"][:300] if failed else "the build failed"
            return Reply("fail", error=said, reason=reason, detail=detail)
        case "lost":
            return Reply("unknown", error="the node was lost", reason=FAILED_BUILD, detail=detail)
    return None


def _where_it_lies(answer: Answer) -> str | None:
    """The artifact's path in its node's API, once the task that writes it runs."""
    allocs: Sequence[Mapping[str, Any]] = document(answer) or ()
    return next(
        (
            f"/v1/client/fs/cat/{alloc['ID']}?path=alloc%2Fdata%2F{_FILE}"
            for alloc in allocs
            if alloc["ClientStatus"] == "running"
        ),
        None,
    )
