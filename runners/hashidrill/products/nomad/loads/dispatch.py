"""`nomad.dispatch`: batch work that is handed to Nomad at a rate, as a queue or a build service does.

The fate of the work is read from its job and its allocations, and reported by the tasks themselves.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.http_client import insist
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import EmitOperation
from hashidrill.core.units import Duration, Rate
from hashidrill.products.nomad.loads.base import (
    FINAL_READS_WITHIN_S,
    NomadLoad,
    Timeout,
    Via,
    change_reply,
    document,
    task,
)

FORGOTTEN, DROPPED, LOST = "forgotten", "dropped", "lost"
COMPLETE, RUNS, WAITS, FAILED = "complete", "runs", "waits", "failed"
STATES = frozenset({FORGOTTEN, DROPPED, LOST, COMPLETE, RUNS, WAITS, FAILED})
"""Forgotten: the job is unknown. Dropped: the job has ended, and never had an allocation. Lost: its last allocation is
lost, and was not replaced. Waits: the job waits for room, or for its restart.
"""


@dataclass(frozen=True)
class Account:
    """The fate of a job. `started`: how often its task began to run, on any node."""

    state: str
    started: int = 0


def account_of(job: Mapping[str, Any] | None, allocs: Iterable[Mapping[str, Any]]) -> Account:
    """The account of a job; `allocs` as Nomad lists them for all jobs, with their tasks' events."""
    if job is None:
        return Account(FORGOTTEN)
    mine = [one for one in allocs if one["JobID"] == job["ID"]]
    started = sum(_started(one) for one in mine)
    statuses = {one["ClientStatus"] for one in mine}
    if "complete" in statuses:
        return Account(COMPLETE, started)
    if statuses & {"running", "pending", "unknown"}:
        return Account(RUNS if "running" in statuses else WAITS, started)
    if job["Status"] != "dead":
        return Account(WAITS, started)
    if not mine:
        return Account(DROPPED)
    last = max(mine, key=lambda one: int(one["CreateIndex"]))
    return Account(LOST if last["ClientStatus"] == "lost" else FAILED, started)


def _started(alloc: Mapping[str, Any]) -> int:
    """Nomad keeps a task's last ten events: enough for a task that restarts a few times."""
    tasks = (alloc.get("TaskStates") or {}).values()
    return sum(event["Type"] == "Started" for one in tasks for event in one.get("Events") or ())


_BASH = "/bin/bash"
_BEGINS, _ENDS = "begins", "ends"
_LINE_LIMIT, _HEARD_WITHIN_S = 1_000, 5.0
_SCRIPT = """\
say() {{
  for try in 1 2 3; do
    {{ exec 3<>/dev/tcp/{host}/{port} && echo "$1 $NOMAD_META_HASHIDRILL" >&3 && exec 3>&-; }} 2>/dev/null && return
    /bin/sleep 1
  done
}}
say {begins}
/bin/sleep {seconds:g}
say {ends}
exit 0
"""
"""bash itself can open TCP connections, so a node needs nothing else. A failed report is dropped: the work goes on."""


class Witness:
    """Listens to the tasks' own reports: how often the work of each key `began` and `ended`."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._at = ("", 0)

    async def listen(self, host: str | None) -> None:
        """Listens on a port of that address, which nodes reach. Raises DatacenterError."""
        if host is None or shutil.which(_BASH) is None:
            what = "its load generator has no address that nodes reach" if host is None else f"there is no {_BASH}"
            raise DatacenterError(f"the tasks of nomad.dispatch cannot report: {what}; leave `witness` out")
        self._server = await asyncio.start_server(self._heard, host, 0)
        self._at = (host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def command(self, runs_for_s: float) -> tuple[str, str, str]:
        """A task's command that reports its begin and end."""
        host, port = self._at
        script = _SCRIPT.format(host=host, port=port, begins=_BEGINS, ends=_ENDS, seconds=runs_for_s)
        return _BASH, "-c", script

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEARD_WITHIN_S):
                self.hear((await reader.read(_LINE_LIMIT)).decode(errors="replace"))
        except (TimeoutError, OSError):
            return  # an unidentified sender is ignored
        finally:
            writer.close()

    def hear(self, line: str) -> None:
        """One line from a task. Other text is ignored."""
        what, _, key = line.strip().partition(" ")
        heard = {_BEGINS: self.began, _ENDS: self.ended}.get(what)
        if heard is not None and key:
            heard[key] += 1

    def account(self, key: str) -> tuple[int, str]:
        """(how often it began, `ended`, `began` or `silent`)."""
        return self.began[key], "ended" if self.ended[key] else "began" if self.began[key] else "silent"


_META = "hashidrill"


class Dispatch(NomadLoad):
    """Dispatches a job `rate` times a second; each dispatch is a batch job of one task that ends by itself.

    An operation is `ok` when Nomad has acknowledged the dispatch. The final reads are the dispatched jobs that Nomad
    knows at the end, for `no_acknowledged_write_lost`.

    `LOAD.work` is how often the task of each dispatch started; its text has the state (`complete`, `runs`, `waits`,
    `failed`, `lost`, `dropped`, `forgotten`) that `no_alloc_lost` judges. `LOAD.witnessed` is the same from the tasks'
    own reports.
    """

    kind: ClassVar[str] = "nomad.dispatch"
    signals: ClassVar = {"work": None, "witnessed": None}

    class Params(Strict):
        """Each task takes some 0.1 s of CPU to start: on two cores, 2/s is a lot."""

        rate: Rate = Field(gt=0, le=100)
        """Dispatches offered, at most 100/s; each starts processes: on two cores, 2/s is a lot."""
        runs_for: Duration = Field(default=Duration("0s"), ge=0, description="How long each task runs")
        witness: bool = Field(default=False, description="Each task reports its begin and end by itself, over TCP")
        via: Via = "nomad:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    def __init__(self, name: str, params: Params, context: Any) -> None:
        super().__init__(name, params, context)
        self._acknowledged: dict[str, None] = {}
        self._witness = Witness()

    async def prepare(self) -> None:
        seconds = float(self.params.runs_for)
        ran = task("/bin/sleep", f"{seconds:g}") if seconds else task("/bin/true")
        if self.params.witness:
            await self._witness.listen(self.context.local_address)
            ran = task(*self._witness.command(seconds))
        job = {
            "Type": "batch",
            "ParameterizedJob": {"MetaRequired": [_META], "Payload": "forbidden"},
            "TaskGroups": [{"Name": "group", "Count": 1, "EphemeralDisk": {"SizeMB": 10}, "Tasks": [ran]}],
        }
        async with self.client() as client:
            await self.register(client, job)

    async def run(self, emit: EmitOperation) -> None:
        async with self.client() as client:

            async def dispatch(n: int, key: str, value: str) -> Reply:  # noqa: ARG001 - the key names the dispatch
                url = f"{self.endpoint(n)}/v1/job/{self.job_id}/dispatch"
                body = json.dumps({"Meta": {_META: key}}).encode()
                reply = change_reply(await client.request("POST", url, body=body, timeout_s=float(self.params.timeout)))
                if reply.outcome == "ok":
                    self._acknowledged[key] = None
                return reply

            await self.open_loop(self._plan, dispatch).run(emit)

    def _plan(self, n: int) -> tuple[str, str]:
        return f"{self.context.run_id}-{n}", "dispatched"

    async def final_reads(self) -> Mapping[str, str | None]:
        """The state of each dispatch that Nomad knows; None for a dispatch that Nomad acknowledged and forgot. Raises
        WaitTimeoutError.

        `LOAD.work` samples the fate of each dispatch, `LOAD.witnessed` the reports of its task.
        """
        params = {"prefix": f"{self.job_id}/dispatch-", "meta": "true"}
        async with self.client() as client:

            async def ask(path: str, params: Mapping[str, str]) -> list[dict[str, Any]]:
                return await insist(
                    client, self.context.endpoints, "GET", path, _listed, within_s=FINAL_READS_WITHIN_S, params=params
                )

            jobs = {str((job.get("Meta") or {}).get(_META)): job for job in await ask("/v1/jobs", params)}
            allocs = await ask("/v1/allocations", {"task_states": "true"})
        for key in self._acknowledged:
            account = account_of(jobs.get(key), allocs)
            self.context.sample("work", float(account.started), f"{key} {account.state}")
            if self.params.witness:
                began, state = self._witness.account(key)
                self.context.sample("witnessed", float(began), f"{key} {state}")
        known = {key: "dispatched" for key in jobs if key.startswith(f"{self.context.run_id}-")}
        return {**self._acknowledged, **known}

    async def clean_up(self) -> None:
        """Removes the parameterized job. Nomad itself removes the dispatched jobs, because they have ended."""
        await self._witness.close()
        await self.remove(self.job_id)


def _listed(answer: Answer) -> list[dict[str, Any]] | None:
    found = document(answer)
    return found if isinstance(found, list) else None
