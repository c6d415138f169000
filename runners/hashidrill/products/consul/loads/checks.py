"""`consul.health_checks`: HTTP checks that the agents make; measures how well they keep their interval.

Every agent that `via` selects makes all the checks, so the number of checks grows with the agents: in line-lbaas-2021
every node of a load balancer checked every backend. The agents do the work; the load's own server measures when each
check arrives. hashidrill.core.loads.arrivals defines an operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.arrivals import Arrivals, CheckServer
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.http_client import HttpClient, for_each, insist
from hashidrill.core.protocols.abc import EmitOperation, Operation
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, positive
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad
from hashidrill.products.consul.loads.kv import PREFIX, PREPARE_WITHIN_S, Via

SHORTEST_INTERVAL = Duration("1s")
"""Consul lengthens shorter intervals."""
MOST_PER_S = 3000
"""Checks a second that one process can answer in time, with a margin."""
_LOOK_EVERY_S = 0.25
_SAMPLE_EVERY = 4
_LEAVE_WITHIN_S = 5.0
_REQUEST_TIMEOUT_S = 5.0
_AT_ONCE = 64


def _sane_interval(interval: Duration) -> Duration:
    if interval < SHORTEST_INTERVAL:
        raise ValueError(f"Consul's shortest interval is {SHORTEST_INTERVAL}, not {interval}")
    return interval


class HealthChecks(ConsulLoad):
    """Registers `checks` HTTP checks on each agent. An operation is one check; its latency is how late it arrived.

    The signal `LOAD.registered` is the number of checks.
    """

    kind: ClassVar[str] = "consul.health_checks"
    not_by_address: ClassVar[str] = "the agents would send their checks to this machine"
    signals: ClassVar[Mapping[str, None]] = {"registered": None}

    class Params(Strict):
        """The number of checks on each agent, which the load's profile scales, and their interval."""

        checks: Annotated[int, Field(ge=1, le=20_000, description="How many checks each agent makes")] = 50
        interval: Annotated[
            Duration, AfterValidator(_sane_interval), Field(description="The interval between two checks")
        ] = Duration("1s")
        check_timeout: Annotated[
            Duration, AfterValidator(positive), Field(description="How long an agent waits for the answer to a check")
        ] = Duration("10s")
        via: Via = "consul:clients"

        @model_validator(mode="after")
        def _bounded(self) -> HealthChecks.Params:
            if (per_s := self.checks / self.interval) > MOST_PER_S:
                raise ValueError(
                    f"{per_s:.0f} checks a second from each agent; the load answers at most {MOST_PER_S} in all"
                )
            return self

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return (rights.right("service", f"{PREFIX}-{name}", "write"),)

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._arrivals = Arrivals(name, round(params.interval * 1e9))
        self._server = CheckServer(self._on_check)
        self._emit: EmitOperation = _drop
        self._registered = 0
        """How many checks every agent makes now."""

    async def prepare(self, *, within_s: float = PREPARE_WITHIN_S) -> None:
        """Registers the service and all checks with every agent.

        Raises DatacenterError for more checks than the load can answer, and WaitTimeoutError if an agent does not
        accept them within `within_s` seconds.
        """
        if self.params.checks > self._most():
            raise DatacenterError(
                f"load {self.name!r}: {self.params.checks} checks on each of {len(self._endpoints)} agents are more"
                f" than the {MOST_PER_S} a second that can be answered; use at most {self._most()}, or check less often"
            )
        await self._server.start(self._address)
        async with self.client() as http:

            async def put(path: str, endpoint: str, body: bytes) -> None:
                await insist(http, [endpoint], "PUT", path, _done, within_s=within_s, body=body)

            async def serve(endpoint: str) -> None:
                body = json.dumps({"ID": self._service, "Name": self._service}).encode()
                await put("/v1/agent/service/register", endpoint, body)

            async def check(place: tuple[str, int]) -> None:
                self._arrivals.expect(_check(*place), self.context.clock.now_ns())
                await put("/v1/agent/check/register", place[0], self._definition(*place))

            await for_each(self._endpoints, serve)
            await for_each(self._places(range(self.params.checks)), check)
        self._registered = self.params.checks

    async def run(self, emit: EmitOperation) -> None:
        self._emit = emit
        async with self.client() as http:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._look(emit))
                    tasks.create_task(self._follow_level(http))
            finally:
                self._emit = _drop
                self._server.stop()
                await asyncio.shield(self._leave(http))

    async def _look(self, emit: EmitOperation) -> None:
        looks = 0
        while True:
            self._arrivals.look(self.context.clock.now_ns(), emit)
            if looks % _SAMPLE_EVERY == 0:
                self.context.sample("registered", self._registered * len(self.context.endpoints))
            looks += 1
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _follow_level(self, http: HttpClient) -> None:
        while True:
            level = self.context.course.at(self.context.clock.now_ns())
            wanted = min(self._most(), round(self.params.checks * level))
            if wanted > self._registered:
                until = min(wanted, self._registered + _AT_ONCE)
                taken = await self._each(http, range(self._registered, until), self._register)
            else:
                until = max(wanted, self._registered - _AT_ONCE)
                taken = await self._each(http, range(until, self._registered), self._deregister)
            self._registered = until if taken else self._registered
            if not taken or wanted == self._registered:
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _each(
        self, http: HttpClient, numbers: range, ask: Callable[[HttpClient, str, int], Awaitable[bool]]
    ) -> bool:
        taken = []

        async def one(place: tuple[str, int]) -> None:
            taken.append(await ask(http, *place))

        await for_each(self._places(numbers), one)
        return all(taken)

    async def _register(self, http: HttpClient, endpoint: str, number: int) -> bool:
        self._arrivals.expect(_check(endpoint, number), self.context.clock.now_ns())
        body = self._definition(endpoint, number)
        return await self._ask(http, f"{endpoint}/v1/agent/check/register", body)

    async def _deregister(self, http: HttpClient, endpoint: str, number: int) -> bool:
        self._arrivals.forget(_check(endpoint, number))
        return await self._ask(http, f"{endpoint}/v1/agent/check/deregister/{self._check_id(number)}")

    async def _leave(self, http: HttpClient) -> None:
        """Removes the checks with their service. An agent that does not answer in time keeps them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_WITHIN_S), asyncio.TaskGroup() as tasks:
                for endpoint in self._endpoints:
                    url = f"{endpoint}/v1/agent/service/deregister/{self._service}"
                    tasks.create_task(self._ask(http, url))

    async def _ask(self, http: HttpClient, url: str, body: bytes | None = None) -> bool:
        return (await http.request("PUT", url, body=body, timeout_s=_REQUEST_TIMEOUT_S)).status == 200

    def _on_check(self, check: str) -> bool:
        return self._arrivals.arrived(check, self.context.clock.now_ns(), self._emit)

    def _definition(self, endpoint: str, number: int) -> bytes:
        """A check that begins as passing, so that its first result changes nothing in the catalog."""
        return json.dumps(
            {
                "ID": self._check_id(number),
                "Name": self._check_id(number),
                "ServiceID": self._service,
                "HTTP": f"http://{self._address}:{self._server.port}/{_check(endpoint, number)}",
                "Interval": _go(self.params.interval),
                "Timeout": _go(self.params.check_timeout),
                "Status": "passing",
            }
        ).encode()

    def _places(self, numbers: range) -> list[tuple[str, int]]:
        return [(endpoint, number) for number in numbers for endpoint in self._endpoints]

    def _most(self) -> int:
        return int(MOST_PER_S * self.params.interval / len(self._endpoints))

    def _check_id(self, number: int) -> str:
        return f"{self._service}-{number}"

    @property
    def _service(self) -> str:
        return f"{PREFIX}-{self.name}"

    @property
    def _address(self) -> str:
        return self.context.local_address or "127.0.0.1"

    @property
    def _endpoints(self) -> list[str]:
        return [endpoint.rstrip("/") for endpoint in self.context.endpoints]


def _check(endpoint: str, number: int) -> str:
    """The name of a check in its URL and in the recording: its agent and its number."""
    return f"{urlsplit(endpoint).hostname}/{number}"


def _drop(_: Operation) -> None:
    """Ignores arrivals before the load begins and after it has ended."""


def _done(answer: Answer) -> bool | None:
    return True if answer.status == 200 else None


def _go(duration: Duration) -> str:
    return f"{round(duration * 1000)}ms"
