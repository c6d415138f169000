"""`consul.service.registrations`: registers and removes instances, and compares Consul's catalog with the changes.

An agent knows the services that were registered with it, and now and then brings the catalog in line with them
(anti-entropy): every 60 s to 120 s, and soon after a server has started. Services registered directly in the catalog,
as external services are, exist only in the catalog.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext, LoadRate
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.loads.schedule import UNDER_WAY, Reply, Spells
from hashidrill.core.protocols.abc import EmitOperation, LoadCost
from hashidrill.core.protocols.rights import Left, Right
from hashidrill.core.units import Rate
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import leftovers, rights
from hashidrill.products.consul.loads.base import NOWHERE, ConsulLoad
from hashidrill.products.consul.loads.kv import Via

REGISTER, DEREGISTER = "register", "deregister"
MISSING, GHOST = "missing", "ghost"
PREPARE_WITHIN_S = 60.0
FINAL_READS_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.5
ASK_WITHIN_S = 5.0
_LEAVE_WITHIN_S = 4.0


class Registrations(ConsulLoad):
    """Replaces the instances of a service one after the other, and compares Consul's catalog with the changes.

    An operation is a period in which the catalog is wrong about an instance: after each change (`register`,
    `deregister`), from when it was due; later while the instance is `missing`, or is a `ghost`, which was deregistered
    but is back. The final reads say for each instance which of its changes the catalog shows.

    The load also writes `LOAD.present`, `LOAD.missing` and `LOAD.ghosts`.
    """

    kind: ClassVar[str] = "consul.service.registrations"
    signals: ClassVar = {"present": None, MISSING: None, "ghosts": None}

    class Params(Strict):
        """`services` instances at a time; `rate` changes a second register a new one and deregister the oldest."""

        rate: LoadRate = Rate("1/s")
        services: Annotated[int, Field(ge=1, le=500, description="Instances that are registered at any time")] = 10
        through: Annotated[
            Literal["agents", "catalog"],
            Field(description="`catalog`: registers with the servers, on a node without agent, like external services"),
        ] = "agents"
        via: Via = "consul:clients"

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:
        return rights.registering(name, f"hashidrill-{name}" if params.through == "catalog" else "")

    @classmethod
    def leaves(cls, name: str, params: Any, run_id: str) -> Sequence[Left]:
        left = Left(leftovers.SERVICE, leftovers.ALL, _service(name, run_id))
        node = Left(leftovers.SERVICE, leftovers.NODE, f"hashidrill-{name}")
        return (left, *([node] if params.through == "catalog" else []))

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._book = Book()
        self._oldest, self._next = 0, 0

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(rate_per_s=params.rate + 1 / _LOOK_EVERY_S)

    @property
    def service(self) -> str:
        return _service(self.name, self.context.run_id)

    async def prepare(self) -> None:
        async with self.client() as http:

            async def register(n: int) -> None:
                path, body = self._request(n, REGISTER)
                await insist(http, [self.endpoint(n)], "PUT", path, _taken, within_s=PREPARE_WITHIN_S, body=body)
                self._book.changed(self._id(n), REGISTER, self.context.clock.now_ns())

            await for_each(range(self.params.services), register)
        self._next = self.params.services

    async def run(self, emit: EmitOperation) -> None:
        wrong = _Wrong(self.name, self.context.waiting, emit)
        try:
            async with self.client() as http, asyncio.TaskGroup() as tasks:

                async def change(n: int, key: str, step: str) -> Reply:  # noqa: ARG001 - the key names the instance
                    return await self._change(http, key, step)

                tasks.create_task(self.open_loop(self._plan, change).run(emit))
                turn = 0
                while True:
                    turn += 1
                    await self._look(http, turn, wrong)
                    await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            wrong.close(self.context.clock.now_ns())

    def _plan(self, n: int) -> tuple[str, str]:
        if n % 2 == 0:
            self._next += 1
            return self._id(self._next - 1), REGISTER
        self._oldest += 1
        return self._id(self._oldest - 1), DEREGISTER

    def _id(self, n: int) -> str:
        return f"{self.service}-{n}"

    async def _change(self, http: HttpClient, key: str, step: str) -> Reply:
        number = int(key.rpartition("-")[2])
        path, body = self._request(number, step)
        self._book.forget(key)
        answer = await http.request("PUT", self.endpoint(number) + path, body=body, timeout_s=ASK_WITHIN_S)
        if answer.status != 200:
            said = answer.error or answer.body[:200].decode(errors="replace").strip()
            refused = not answer.sent or 400 <= answer.status < 500
            return Reply("fail" if refused else "unknown", status=answer.status, error=said, reason=answer.why)
        await self._book.changed(key, step, self.context.clock.now_ns()).wait()
        return Reply("ok", status=200)

    def _request(self, n: int, step: str) -> tuple[str, bytes]:
        key, node = self._id(n), f"hashidrill-{self.name}"
        body: dict[str, Any]
        if self.params.through == "catalog":
            service = {"ID": key, "Service": self.service}
            body = {"Node": node, "Address": NOWHERE, "Service": service}
            if step == DEREGISTER:
                body = {"Node": node, "ServiceID": key}
            return f"/v1/catalog/{step}", json.dumps(body).encode()
        if step == DEREGISTER:
            return f"/v1/agent/service/deregister/{key}", b""
        return "/v1/agent/service/register", json.dumps({"ID": key, "Name": self.service}).encode()

    async def _look(self, http: HttpClient, turn: int, wrong: _Wrong) -> None:
        asked_ns = self.context.clock.now_ns()
        url = f"{self.endpoint(turn)}/v1/catalog/service/{self.service}"
        answer = await http.request("GET", url, timeout_s=ASK_WITHIN_S)
        present = _present(answer)
        if present is None:
            self.context.sample("present", None, answer.error or f"HTTP {answer.status}")
            return
        found = self._book.look(present, asked_ns)
        wrong.look(found, self._book.known, asked_ns, self.context.clock.now_ns())
        ghosts = sum(what == GHOST for what in found.values())
        self.context.sample("present", float(len(present)))
        self.context.sample(MISSING, float(len(found) - ghosts))
        self.context.sample("ghosts", float(ghosts))

    async def final_reads(self, *, within_s: float = FINAL_READS_WITHIN_S) -> Mapping[str, str | None]:
        """The change that the catalog shows for each instance, by a consistent read. Raises WaitTimeoutError."""
        async with self.client() as http:
            path = f"/v1/catalog/service/{self.service}"
            present = await insist(
                http, self.context.endpoints, "GET", path, _present, within_s=within_s, params={"consistent": ""}
            )
        return {key: REGISTER if key in present else DEREGISTER for key in self._book.known}

    async def clean_up(self) -> None:
        """Deregisters every instance that may exist. Gives up after 4 s, so that it does not wait for a sick agent."""
        left = set(range(self._oldest, self._next))

        async def leave(n: int) -> None:
            path, body = self._request(n, DEREGISTER)
            answer = await http.request("PUT", self.endpoint(n) + path, body=body, timeout_s=_LEAVE_WITHIN_S)
            if answer.status in (200, 404):
                left.discard(n)

        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S), self.client() as http:
                await for_each(sorted(left), leave)
        except TimeoutError:
            pass
        if left:
            self.context.sample("left", float(len(left)), f"{len(left)} instances were not deregistered")


def _service(name: str, run_id: str) -> str:
    return f"{name}-{run_id}"[:60]


class Book:
    """The acknowledged changes, and which of them the catalog has shown since."""

    def __init__(self) -> None:
        self._changes: dict[str, tuple[str, int]] = {}
        self._shown: dict[str, asyncio.Event] = {}

    @property
    def known(self) -> Collection[str]:
        """The instances whose expected state is known."""
        return self._changes

    def changed(self, key: str, step: str, now_ns: int) -> asyncio.Event:
        """Notes an acknowledged change. The returned event is set once the catalog shows it."""
        self._changes[key] = (step, now_ns)
        self._shown[key] = asyncio.Event()
        return self._shown[key]

    def forget(self, key: str) -> None:
        """Notes that the instance is being changed: its expected state is unknown."""
        self._changes.pop(key, None)
        self._shown.pop(key, None)

    def look(self, present: Iterable[str], asked_ns: int) -> dict[str, str]:
        """The errors of instances that the catalog once showed correctly. Changes since `asked_ns` are left out."""
        there, found = set(present), {}
        for key, (step, at_ns) in self._changes.items():
            if at_ns >= asked_ns:
                continue
            if (key in there) == (step == REGISTER):
                self._shown[key].set()
            elif self._shown[key].is_set():
                found[key] = MISSING if step == REGISTER else GHOST
        return found


class _Wrong(Spells[tuple[str, str]]):
    def look(self, found: Mapping[str, str], known: Container[str], asked_ns: int, now_ns: int) -> None:
        """`known`: the instances with an expected state; the load is changing all others."""
        now = set(found.items())
        for each in now - {*self}:
            self.begin(each, asked_ns)
        changed = Reply("unknown", error="changed by the load meanwhile")
        for key, what in {*self} - now:
            self.end((key, what), Reply("ok", status=200) if key in known else changed, now_ns, key=key, value=what)

    def close(self, now_ns: int) -> None:
        for key, what in self:
            self.end((key, what), UNDER_WAY, now_ns, key=key, value=what)


def _present(answer: Answer) -> set[str] | None:
    if answer.status != 200:
        return None
    try:
        return {str(entry["ServiceID"]) for entry in parse(answer.body)}
    except (ValueError, KeyError, TypeError):
        return None


def _taken(answer: Answer) -> bool | None:
    return True if answer.status == 200 else None
