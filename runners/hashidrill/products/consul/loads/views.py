"""`consul.views`: views that agents keep open, without a client that waits.

One `GET /v1/health/service/NAME?cached&tag=TAG` for each distinct tag leaves a stream to a server (with
use_streaming_backend) or a long poll in the background (without) open in the agent for 20 minutes and more. Thousands
of them cost the generator nothing once they stand; what they cost is Consul's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import Timeout
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.schedule import CANCELLED
from hashidrill.core.protocols.abc import LoadCost, Operation, Reason
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Quantity, Rate
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad
from hashidrill.products.consul.loads.held import SIGNALS, Count, Establish, Held
from hashidrill.products.consul.loads.kv import Via

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.protocols.abc import EmitOperation

SERVICE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9-]{0,60}$"
BACKEND = "x-consul-query-backend"
_ASK_EVERY_S = 1.0
_ASK_TIMEOUT_S = 5.0
_AGAIN_AFTER_S = 1.0

Service = Annotated[
    str, Field(pattern=SERVICE_PATTERN, description="Its name; consul.service.churn changes the one of the same name")
]


class Views(ConsulLoad):
    """Keeps `count` materialized views open in each agent that `via` selects; the service need not exist.

    It also writes `LOAD.open` (open views), `LOAD.streaming` (the share of them that streaming serves, by
    `X-Consul-Query-Backend`) and `LOAD.establish` (views offered per second:
    """

    kind: ClassVar[str] = "consul.views"
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = SIGNALS

    class Params(Strict):
        """An operation is the opening of a view; a view whose agent was restarted is opened again."""

        count: Annotated[Count, Field(description="Views in each agent, at a level of 100%; they are never closed")]
        service: Service = "hashidrill"
        establish: Establish = Rate("100/s")
        via: Via = "consul:clients"
        timeout: Timeout = Duration("30s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - of all loads
        return (rights.right("service", params.service), rights.right("node_prefix"))

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._held = Held(
            context, params.count, params.establish, self._hold, each=len(context.endpoints), shrinks=False
        )
        self._gone: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._begun: set[str] = set()
        """Agents whose first view was opened, and not missed since."""

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(opened_per_s=params.establish, views=params.count)

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled."""
        self._emit = emit
        async with self.context.http() as self._http, asyncio.TaskGroup() as tasks:
            for agent in self.context.endpoints:
                tasks.create_task(self._look_after(agent))
            await self._held.run()

    def _path(self, n: int) -> str:
        return f"/v1/health/service/{self.params.service}?cached&tag=t{n}"

    async def _hold(self, slot: int, due_ns: int) -> None:
        """Open view `slot`, and return when its agent has lost it."""
        clock, agents = self.context.clock, self.context.endpoints
        agent, n = agents[slot % len(agents)].rstrip("/"), slot // len(agents)
        gone, start_ns = self._gone[agent], clock.now_ns()
        answer = Answer(0, error=CANCELLED, reason=Reason.CANCELLED)
        try:
            with self.context.waiting.operation(due_ns):
                answer = await self._http.request("GET", agent + self._path(n), timeout_s=float(self.params.timeout))
        finally:
            ok, backend = answer.status == 200, answer.headers.get(BACKEND, "")
            outcome = "ok" if ok else "unknown" if answer.reason == Reason.CANCELLED else "fail"
            error, reason = ("", "") if ok else (read_error(answer), answer.why)
            key = f"{agent.removeprefix('http://')}/t{n}"
            self._emit(
                Operation(
                    self.name, due_ns, start_ns, clock.now_ns(), outcome, key, backend, answer.status, error, reason
                )
            )
        if answer.status != 200:
            await asyncio.sleep(_AGAIN_AFTER_S)
            return
        self._held.opened(slot, backend)
        if n == 0:
            self._begun.add(agent)
        await gone.wait()

    async def _look_after(self, agent: str) -> None:
        """Ask for the agent's first view now and then: when it is not in the cache any more, none of them is."""
        agent = agent.rstrip("/")
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            if agent not in self._begun:
                continue
            answer = await self._http.request("GET", agent + self._path(0), timeout_s=_ASK_TIMEOUT_S)
            if not answer.sent or (answer.status == 200 and answer.headers.get("x-cache") == "MISS"):
                self._begun.discard(agent)
                self._gone.pop(agent, asyncio.Event()).set()
