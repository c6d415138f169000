"""`consul.views`, and `Held`, which opens queries, views and streams at a steady rate and keeps them open.

One `GET /v1/health/service/NAME?cached&tag=TAG` for each distinct tag makes the agent keep a stream to a server
(with use_streaming_backend) or a background long poll (without) for at least 20 minutes. Thousands of open views
cost the generator nothing; Consul bears the cost.

A load that keeps things open has a `count`, which its profile scales, and an `establish` rate. Openings are open loop,
like requests: each is due at a fixed moment, and a slow opening does not delay the others. Streams cost the generator
CPU time: near the limit of its core it opens them more slowly, which the signal `establish` shows.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import Timeout
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.schedule import CANCELLED, CPU_EVERY_S
from hashidrill.core.protocols.abc import EmitOperation, LoadCost, Operation, Reason
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent, Quantity, Rate
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad
from hashidrill.products.consul.loads.kv import Via

MAX_COUNT = 100_000
_LOOK_EVERY_S = 0.05
_SAMPLE_EVERY_S = 1.0
_NS = 1_000_000_000
BUSY_CORES, CALM_CORES = 0.7, 0.5
"""Shares of the generator's one core: above the first, openings slow down; below the second, they speed up again.
Above 0.9 for three seconds, the run would measure the generator instead of Consul."""
_SLOWER, _FASTER = 0.7, 1.1
"""The factors by which the pace changes at each check of the CPU."""
_SLOWEST = 0.02


def _sane_rate(rate: Rate) -> Rate:
    if not 0 < rate <= 5000:
        raise ValueError(f"the rate of openings must be over 0/s and at most 5000/s, not {rate}")
    return rate


Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Establish = Annotated[
    Rate, AfterValidator(_sane_rate), Field(description="The rate of openings, including those after a loss")
]
SIGNALS = {"open": None, "streaming": Percent, "establish": Rate}


class Held:
    """Keeps slots open, `count` times the load's level; `hold(slot, due_ns)` opens a slot and holds it until its loss.

    Slots are numbered from 0; a lost slot is opened again, and the highest numbers are closed first (by
    cancellation). `hold` raises only cancellation, and calls `opened` and `closed`.
    """

    def __init__(
        self,
        context: LoadContext,
        count: int,
        establish_per_s: float,
        hold: Callable[[int, int], Coroutine[Any, Any, None]],
        *,
        each: int = 1,
        shrinks: bool = True,
    ) -> None:
        self._context = context
        self._count, self._each = count, each
        self._establish_per_s = establish_per_s
        self._pace = 1.0
        self._paced_ns = 0
        self._hold = hold
        self._shrinks = shrinks
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lost: deque[int] = deque()
        self._next = 0
        self._backends: dict[int, str] = {}

    def opened(self, slot: int, backend: str = "") -> None:
        """Notes that the slot is open, and what serves it in Consul: `streaming` or `blocking-query`."""
        self._backends[slot] = backend

    def closed(self, slot: int) -> None:
        self._backends.pop(slot, None)

    @property
    def open(self) -> int:
        return len(self._backends)

    def wanted(self) -> int:
        level = self._context.course.at(self._context.clock.now_ns())
        return max(0, round(self._count * level)) * self._each

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            await self._keep(tasks)

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        clock = self._context.clock
        due_ns = float(clock.now_ns())
        while True:
            now_ns = clock.now_ns()
            wanted = self.wanted()
            self._shrink(wanted)
            self._look_at_cpu(now_ns)
            gap_ns = _NS / (self._establish_per_s * self._pace)
            if self._pace < 1:  # do not open all the overdue streams at once
                due_ns = max(due_ns, now_ns - _LOOK_EVERY_S * _NS)
            while len(self._tasks) < wanted and due_ns <= now_ns:
                self._open(tasks, round(due_ns))
                due_ns += gap_ns
            missing = len(self._tasks) < wanted
            if not missing:  # while all slots are open, no backlog of openings builds up
                due_ns = max(due_ns, float(now_ns))
            wait_s = min(_LOOK_EVERY_S, (due_ns - now_ns) / _NS) if missing else _LOOK_EVERY_S
            await asyncio.sleep(math.ceil(wait_s * 1e3) / 1e3)

    def _look_at_cpu(self, now_ns: int) -> None:
        """Slows down in steps while the generator is busy; returns to the requested pace afterwards."""
        if now_ns - self._paced_ns < CPU_EVERY_S * _NS:
            return
        self._paced_ns = now_ns
        cores = self._context.cpu.cores()
        if cores > BUSY_CORES:
            self._pace = max(_SLOWEST, self._pace * _SLOWER)
        elif cores < CALM_CORES:
            self._pace = min(1.0, self._pace * _FASTER)

    def _open(self, tasks: asyncio.TaskGroup, due_ns: int) -> None:
        if self._lost:
            slot = self._lost.popleft()
        else:
            slot, self._next = self._next, self._next + 1
        self._context.lag.note(self._context.clock.now_ns() - due_ns)
        task = tasks.create_task(self._hold(slot, due_ns))
        self._tasks[slot] = task
        task.add_done_callback(lambda _: self._ended(slot))

    def _ended(self, slot: int) -> None:
        self._tasks.pop(slot, None)
        self.closed(slot)
        self._lost.append(slot)

    def _shrink(self, wanted: int) -> None:
        """Closes surplus slots; without `shrinks` it gives up only slots that are not open yet."""
        surplus = len(self._tasks) - wanted
        if surplus <= 0:
            return
        closable = self._tasks if self._shrinks else self._tasks.keys() - self._backends.keys()
        for slot in sorted(closable, reverse=True)[:surplus]:
            self._tasks.pop(slot).cancel()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_EVERY_S)
            self._context.sample("open", float(self.open))
            self._context.sample("establish", self._establish_per_s * self._pace)
            if any(self._backends.values()):
                streaming = sum(backend == "streaming" for backend in self._backends.values())
                self._context.sample("streaming", streaming / self.open)


SERVICE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9-]{0,60}$"
BACKEND = "x-consul-query-backend"
_ASK_EVERY_S = 1.0
_ASK_TIMEOUT_S = 5.0
_AGAIN_AFTER_S = 1.0

Service = Annotated[
    str, Field(pattern=SERVICE_PATTERN, description="The service's name, as in consul.service.churn, which changes it")
]


class Views(ConsulLoad):
    """Keeps `count` materialized views open in each agent that `via` selects; the service need not exist.

    It also writes the signals `LOAD.open` (open views), `LOAD.streaming` (the share of them that streaming serves, by
    `X-Consul-Query-Backend`) and `LOAD.establish` (the rate at which views are opened, per second).
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
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        return (rights.right("service", params.service), rights.right("node_prefix"))

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._held = Held(
            context, params.count, params.establish, self._hold, each=len(context.endpoints), shrinks=False
        )
        self._gone: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._begun: set[str] = set()
        """Agents whose first view was opened and has not been lost since."""

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(opened_per_s=params.establish, views=params.count)

    async def run(self, emit: EmitOperation) -> None:
        self._emit = emit
        async with self.context.http() as self._http, asyncio.TaskGroup() as tasks:
            for agent in self.context.endpoints:
                tasks.create_task(self._look_after(agent))
            await self._held.run()

    def _path(self, n: int) -> str:
        return f"/v1/health/service/{self.params.service}?cached&tag=t{n}"

    async def _hold(self, slot: int, due_ns: int) -> None:
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
        """Requests the agent's first view now and then: if it has left the cache, all views have."""
        agent = agent.rstrip("/")
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            if agent not in self._begun:
                continue
            answer = await self._http.request("GET", agent + self._path(0), timeout_s=_ASK_TIMEOUT_S)
            if not answer.sent or (answer.status == 200 and answer.headers.get("x-cache") == "MISS"):
                self._begun.discard(agent)
                self._gone.pop(agent, asyncio.Event()).set()
