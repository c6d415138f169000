"""`nomad.services`: jobs that register services with Consul; checks Consul's entries against Nomad's instances."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.loads.schedule import Reply, Spells
from hashidrill.core.protocols.abc import EmitOperation, LoadCost
from hashidrill.core.units import Duration
from hashidrill.core.util.wait import all_at_once
from hashidrill.products.nomad.loads.base import NomadLoad, Via, document, task, timed_out_at_the_end

ALLOC = "hashidrill-alloc"
"""The key of the allocation's id in the meta data of each registration; Nomad fills in the id."""
META = {ALLOC: "${NOMAD_ALLOC_ID}"}
MISSING, CRITICAL, STALE, DUPLICATE = "missing", "critical", "stale", "duplicate"
KINDS_OF_WRONG = (MISSING, CRITICAL, STALE, DUPLICATE)


@dataclass(frozen=True)
class Wrong:
    """A registration that differs from Nomad. `of` is the instance if `kind` is `missing`, otherwise the allocation."""

    kind: str
    of: str


def running_names(allocs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The names, by id, of the allocations that Nomad's servers call running and wanted."""
    return {
        alloc["ID"]: alloc["Name"]
        for alloc in allocs
        if alloc["ClientStatus"] == "running" and alloc["DesiredStatus"] == "run"
    }


def find_wrong(allocs: Iterable[Mapping[str, Any]], entries: Iterable[Mapping[str, Any]]) -> dict[Wrong, str]:
    """The errors in Consul's entries (of `/v1/health/service/NAME`), each with the node of its entry.

    An entry of an allocation that starts is early, not stale: the agent on its node registers it before Nomad's
    servers hear that it runs. An allocation that is `unknown` (its node is away) may still run, so its entry is not
    stale.
    """
    allocs, entries = list(allocs), list(entries)
    here = running_names(allocs)
    may_run = {
        alloc["ID"]
        for alloc in allocs
        if alloc["DesiredStatus"] == "run" and alloc["ClientStatus"] in {"pending", "running", "unknown"}
    }
    found: dict[Wrong, str] = {}
    number = Counter(_alloc(entry) for entry in entries)
    for entry in entries:
        alloc, node = _alloc(entry), str(entry["Node"]["Node"])
        if alloc not in may_run:
            found[Wrong(STALE, alloc)] = node
        elif number[alloc] > 1:
            found[Wrong(DUPLICATE, alloc)] = node
        elif alloc in here and not all(check["Status"] in {"passing", "warning"} for check in entry["Checks"]):
            found[Wrong(CRITICAL, alloc)] = node
    for alloc, name in here.items():
        if alloc not in number:
            found[Wrong(MISSING, name)] = ""
    return found


def _alloc(entry: Mapping[str, Any]) -> str:
    """The allocation's id; for a foreign entry, its service id."""
    return str((entry["Service"].get("Meta") or {}).get(ALLOC) or entry["Service"]["ID"])


_LOOK_EVERY_S = 0.5
_ASK_WITHIN_S = 2.0
_SECOND = 10**9
ConsulVia = Annotated[
    str,
    Field(
        pattern=r"^(consul:[a-z-]+|host:[a-z][a-z0-9-]*(/consul)?)$",
        description="Consul agents to ask, in turn",
    ),
]


class Services(NomadLoad):
    """Registers `jobs` jobs of `count` replicas, each job with a service that every replica registers with Consul.

    An operation lasts while a registration is wrong: an instance that Nomad runs and Consul lacks (`missing`) or calls
    sick (`critical`), an entry in Consul for which Nomad runs no instance (`stale`), two entries of one
    allocation (`duplicate`). The first operations begin when the jobs are registered. Consul is read through agents
    that do not register these services.

    The signals `LOAD.missing`, `LOAD.critical`, `LOAD.stale` and `LOAD.duplicate` count the current errors of each
    kind, `LOAD.registered` counts Consul's entries, and `LOAD.running` the instances that Nomad runs.
    """

    kind: ClassVar[str] = "nomad.services"
    works_on: ClassVar[str] = "client"
    signals: ClassVar = {"registered": None, "running": None, **dict.fromkeys(KINDS_OF_WRONG)}

    class Params(Strict):
        """Each look reads all instances from both products, twice a second, so its cost grows with their number."""

        jobs: int = Field(default=1, ge=1, le=20, description="How many jobs, each with one service")
        count: int = Field(ge=1, le=200, description="How many replicas each job has")
        replace_every: Duration | None = Field(
            default=None, ge=1, description="Stop one replica this often, in rotation: Nomad places it again"
        )
        via: Via = "nomad:servers"
        consul: ConsulVia = "consul:servers"

    params: Params

    @classmethod
    def also(cls, params: Params) -> Mapping[str, str]:
        return {"consul": params.consul}

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(rate_per_s=2 * params.jobs / _LOOK_EVERY_S)

    async def run(self, emit: EmitOperation) -> None:
        book = _Book(self, emit)
        try:
            async with self.client() as client, asyncio.TaskGroup() as tasks:
                book.begin(
                    {job_id: [f"{job_id}.group[{n}]" for n in range(self.params.count)] for job_id in self._jobs()}
                )
                for job_id in self._jobs():
                    await self.register(client, {"ID": job_id, "Name": job_id, **self._job(job_id)})
                if self.params.replace_every is not None:
                    tasks.create_task(self._replace(client, float(self.params.replace_every)))
                turn = 0
                while True:
                    turn += 1
                    await all_at_once(partial(self._look, client, job_id, turn, book) for job_id in self._jobs())
                    book.sample()
                    await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            book.close()

    async def _look(self, client: HttpClient, job_id: str, turn: int, book: _Book) -> None:
        """Reads Consul first, so that instances started in between do not count as missing."""
        consul = self._consul(turn)
        asked_ns = self.context.clock.now_ns()
        registered = await client.request("GET", f"{consul}/v1/health/service/{job_id}", timeout_s=_ASK_WITHIN_S)
        url = f"{self.endpoint(turn)}/v1/job/{job_id}/allocations"
        wanted = await client.request("GET", url, timeout_s=_ASK_WITHIN_S)
        entries, allocs = document(registered), document(wanted)
        if isinstance(entries, list) and isinstance(allocs, list):
            book.look(job_id, allocs, entries, asked_ns)
        else:
            book.blind(job_id, f"Consul: {_said(registered)}; Nomad: {_said(wanted)}")

    async def _replace(self, client: HttpClient, every_s: float) -> None:
        """Stops the oldest replica of the next job. A refused stop is skipped, because nothing measures it."""
        turn = 0
        while True:
            await asyncio.sleep(every_s)
            jobs = self._jobs()
            job_id, endpoint = jobs[turn % len(jobs)], self.endpoint(turn)
            turn += 1
            url = f"{endpoint}/v1/job/{job_id}/allocations"
            allocs = document(await client.request("GET", url, timeout_s=_ASK_WITHIN_S))
            here = running_names(allocs) if isinstance(allocs, list) else {}
            if here:
                first = min((alloc for alloc in allocs if alloc["ID"] in here), key=lambda alloc: alloc["CreateIndex"])
                await client.request("POST", f"{endpoint}/v1/allocation/{first['ID']}/stop", timeout_s=_ASK_WITHIN_S)

    def _consul(self, turn: int) -> str:
        urls = self.context.others["consul"]
        return urls[turn % len(urls)].rstrip("/")

    def _jobs(self) -> list[str]:
        return [f"{self.job_id}-{n}" for n in range(1, self.params.jobs + 1)]

    def _job(self, job_id: str) -> dict[str, Any]:
        service = {"Name": job_id, "Provider": "consul", "Meta": META}
        return {
            "Type": "service",
            "TaskGroups": [
                {
                    "Name": "group",
                    "Count": self.params.count,
                    "EphemeralDisk": {"SizeMB": 10},
                    "Tasks": [task("/bin/sleep", "86400")],
                    "Services": [service],
                    "Spreads": [{"Attribute": "${node.unique.name}", "Weight": 100}],
                    "RestartPolicy": {"Attempts": 2, "Interval": 60 * _SECOND, "Mode": "fail", "Delay": _SECOND},
                    "ReschedulePolicy": {"Unlimited": True, "DelayFunction": "constant", "Delay": 5 * _SECOND},
                }
            ],
        }

    async def clean_up(self) -> None:
        """Removes the jobs; Nomad then removes their services from Consul. Remaining jobs are sampled as `left`."""
        await all_at_once(partial(self.remove, job_id) for job_id in self._jobs())


class _Book:
    def __init__(self, load: Services, emit: EmitOperation) -> None:
        self._load = load
        self._open = Spells[tuple[str, Wrong]](load.name, load.context.waiting, emit)
        self._seen: dict[str, tuple[int, int]] = {}
        """For each job: how many instances Consul lists, and how many Nomad runs."""
        self._blind: dict[str, str] = {}
        self._starting: set[tuple[str, Wrong]] = set()
        """Instances that have not run yet since the jobs were registered."""

    def begin(self, instances: Mapping[str, list[str]]) -> None:
        """Starts all instances of all jobs as missing, from the same moment on."""
        now_ns = self._load.context.clock.now_ns()
        for job_id, names in instances.items():
            for name in names:
                wrong = Wrong(MISSING, name)
                self._starting.add((job_id, wrong))
                self._open.begin((job_id, wrong), now_ns)

    def look(self, job_id: str, allocs: list[Any], entries: list[Any], asked_ns: int) -> None:
        """Begins and ends errors according to this look."""
        self._blind.pop(job_id, None)
        here = running_names(allocs)
        self._seen[job_id] = (len(entries), len(here))
        now = find_wrong(allocs, entries)
        names = set(here.values())
        self._starting = {
            (job, one) for job, one in self._starting if job != job_id or one.of not in names or one in now
        }
        for wrong in now:
            if (job_id, wrong) not in self._open:
                self._open.begin((job_id, wrong), asked_ns)
        for job, wrong in self._open:
            if job == job_id and wrong not in now and (job, wrong) not in self._starting:
                self._end(job, wrong, Reply("ok", status=200))

    def blind(self, job_id: str, why: str) -> None:
        """Notes that the look failed: the errors of that job stay open."""
        self._blind[job_id] = why

    def sample(self) -> None:
        """Samples the sums of this turn's looks; None if a look failed."""
        sample = self._load.context.sample
        if self._blind:
            said = "; ".join(f"{job_id}: {why}" for job_id, why in self._blind.items())
            for what in ("registered", "running", *KINDS_OF_WRONG):
                sample(what, None, said)
            return
        sample("registered", float(sum(registered for registered, _ in self._seen.values())))
        sample("running", float(sum(running for _, running in self._seen.values())))
        for kind in KINDS_OF_WRONG:
            those = sorted(wrong.of for _, wrong in self._open if wrong.kind == kind)
            sample(kind, float(len(those)), ", ".join(those))

    def close(self) -> None:
        for job_id, wrong in self._open:
            self._end(job_id, wrong, timed_out_at_the_end())

    def _end(self, job_id: str, wrong: Wrong, reply: Reply) -> None:
        now_ns = self._load.context.clock.now_ns()
        self._open.end((job_id, wrong), reply, now_ns, key=wrong.of, value=wrong.kind)


def _said(answer: Answer) -> str:
    return answer.error or f"HTTP {answer.status}"
