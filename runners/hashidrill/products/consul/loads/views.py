"""`consul.views`, and `Held`, which opens queries, views and streams at a steady rate and keeps them open.

One `GET /v1/health/service/NAME?cached&tag=TAG` for each distinct tag makes the agent keep a stream to a server
(with use_streaming_backend) or a background long poll (without) for at least 20 minutes. Thousands of open views
cost the generator nothing; Consul bears the cost.

A load that keeps things open has a `count`, which its profile scales, and an `establish` rate. Openings are open loop,
like requests: each is due at a fixed moment, and a slow opening does not delay the others. Streams cost the generator
CPU time: near the limit of its core it opens them more slowly, which the signal `establish` shows.

`consul.watch`: blocking queries that stay open, as applications and sidecars keep them by the thousand.

A watcher follows Consul's documentation on blocking queries: it asks again with the index of the last answer, starts
again at 0 when the index goes backwards, and treats an index under 1 as 1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, model_validator

from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.base import LoadContext, Timeout
from hashidrill.core.loads.http_client import for_each, insist
from hashidrill.core.loads.schedule import CANCELLED, CPU_EVERY_S
from hashidrill.core.protocols.abc import EmitOperation, LoadCost, Operation, Reason
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Percent, Quantity, Rate
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, newest_ns
from hashidrill.products.consul.loads.kv import FINAL_READS_WITHIN_S, PREFIX, Via, identify

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


_INDEX = "x-consul-index"
_GRACE_S = 10.0
"""How long an answer may take beyond `wait` and the sixteenth of `wait` that Consul adds."""
_MAX_WAIT = Duration("10m")
_ANSWERS = (200, 404)
"""404 is an answer too: the key does not exist (yet, or any more)."""

Wait = Annotated[Duration, Field(description="How long Consul holds a query open when nothing changes; at most 10m")]


class Watch(ConsulLoad):
    """Keeps `count` blocking queries open, on a load's keys or on a service, spread over the agents.

    It also writes the signals `LOAD.open`, `LOAD.streaming`, `LOAD.establish` and `LOAD.wakeups` (per second).
    """

    kind: ClassVar[str] = "consul.watch"
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {**SIGNALS, "wakeups": Rate}

    class Params(Strict):
        """An operation is a watcher's first answer, or one notification of a change.

        For changes by hashidrill's loads, the latency is measured from the sending of the change. A query that ends
        because its `wait` is over is not an operation.
        """

        count: Annotated[Count, Field(description="The number of queries at a level of 100%")]
        service: Service | None = None
        """The service to watch."""
        keys_of: Annotated[str, Field(pattern=NAME_PATTERN)] | None = Field(
            default=None, description="The load whose keys are watched, in turn"
        )
        keys: Annotated[int, Field(ge=1, le=100_000, description="How many keys that load has")] = 500
        wait: Wait = Duration("5m")
        reset: bool = Field(
            default=True, description="Start again at 0 when the index goes backwards; false plants a bug"
        )
        retry: Annotated[Duration, Field(description="How long a watcher waits after an error")] = Duration("1s")
        establish: Establish = Rate("100/s")
        via: Via = "consul:clients"

        @model_validator(mode="after")
        def _one_thing(self) -> Watch.Params:
            if (self.service is None) == (self.keys_of is None):
                raise ValueError("a watch needs either `service`, or `keys_of` with a load that writes keys")
            if not 0 < self.wait <= _MAX_WAIT:
                raise ValueError(f"Consul holds a query open for over 0s and at most {_MAX_WAIT}, not {self.wait}")
            if self.retry <= 0:
                raise ValueError("retry must be longer than 0s: a watcher that asks again at once is a storm")
            return self

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - the signature of all loads
        if params.service is not None:
            return (rights.right("service", params.service), rights.right("node_prefix"))
        return (rights.keys(f"{PREFIX}/{params.keys_of}/", "read"),)

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._held = Held(context, params.count, params.establish, self._hold)
        self._wakeups = 0

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(opened_per_s=params.establish)

    async def run(self, emit: EmitOperation) -> None:
        self._emit = emit
        async with self.context.http() as self._http, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample())
            await self._held.run()

    async def final_reads(self, *, within_s: float = FINAL_READS_WITHIN_S) -> Mapping[str, str | None]:
        found: dict[str, str | None] = {}
        count = min(self.params.count, self.params.keys) if self.params.keys_of else 1

        async with self.context.http() as http:

            async def read(n: int) -> None:
                what, path = self._watched(n)
                accept = lambda answer: [self._state(answer)] if answer.status in _ANSWERS else None  # noqa: E731
                states = await insist(
                    http, self.context.endpoints, "GET", f"{path}&consistent", accept, within_s=within_s
                )
                found[what] = states[0]

            await for_each(range(count), read)
        return found

    def _watched(self, slot: int) -> tuple[str, str]:
        if self.params.service is not None:
            return self.params.service, f"/v1/health/service/{self.params.service}?"
        key = f"{PREFIX}/{self.params.keys_of}/{slot % self.params.keys}"
        return key, f"/v1/kv/{key}?raw"

    def _state(self, answer: Answer) -> str:
        if answer.status == 404:
            return ""
        return _instances(answer.body) if self.params.service is not None else identify(answer.body)

    async def _hold(self, slot: int, due_ns: int) -> None:
        clock, agents = self.context.clock, self.context.endpoints
        what, path = self._watched(slot)
        key, url = f"{what}#{slot}", agents[slot % len(agents)].rstrip("/") + path
        answer = await self._first(key, url, due_ns)
        state, told_ns, index = self._state(answer), newest_ns(answer.body), 0
        while answer.status in _ANSWERS:
            self._held.opened(slot, answer.headers.get(BACKEND, ""))
            index = self._next_index(index, answer)
            answer = await self._ask(url, index)
            now, changed_ns, now_ns = self._state(answer), newest_ns(answer.body), clock.now_ns()
            if answer.status not in _ANSWERS:
                self._emit(
                    Operation(
                        self.name,
                        now_ns,
                        now_ns,
                        now_ns,
                        "fail",
                        key,
                        "",
                        answer.status,
                        read_error(answer),
                        answer.why,
                    )
                )
            elif now != state:
                self._wakeups += 1
                # the send time of a foreign change, or of a removal, is unknown
                since_ns = changed_ns if changed_ns > told_ns else now_ns
                self._emit(Operation(self.name, since_ns, since_ns, now_ns, "ok", key, now, answer.status))
                state, told_ns = now, max(told_ns, changed_ns)
        self._held.closed(slot)
        await asyncio.sleep(float(self.params.retry))

    async def _first(self, key: str, url: str, due_ns: int) -> Answer:
        """The first query, which Consul answers at once; it is an operation whatever its result."""
        clock, answer = self.context.clock, Answer(0, error=CANCELLED, reason=Reason.CANCELLED)
        start_ns = clock.now_ns()
        try:
            with self.context.waiting.operation(due_ns):
                answer = await self._ask(url, 0)
        finally:
            ok, cancelled = answer.status in _ANSWERS, answer.reason == Reason.CANCELLED
            outcome = "ok" if ok else "unknown" if cancelled else "fail"
            state, error, reason = (self._state(answer), "", "") if ok else ("", read_error(answer), answer.why)
            self._emit(
                Operation(
                    self.name, due_ns, start_ns, clock.now_ns(), outcome, key, state, answer.status, error, reason
                )
            )
        return answer

    async def _ask(self, url: str, index: int) -> Answer:
        if not index:
            return await self._http.request("GET", url, timeout_s=_GRACE_S)
        wait_s = float(self.params.wait)
        params = {"index": str(index), "wait": f"{max(1, round(wait_s * 1e3))}ms"}
        return await self._http.request("GET", url, params=params, timeout_s=wait_s * 17 / 16 + _GRACE_S)

    def _next_index(self, index: int, answer: Answer) -> int:
        """Follows the documentation of blocking queries; `reset: false` omits the rule that matters after a restore."""
        said = answer.headers.get(_INDEX, "")
        told = int(said) if said.isdecimal() else 0
        if told < index:
            return 0 if self.params.reset else index
        return max(1, told)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_EVERY_S)
            woken, self._wakeups = self._wakeups, 0
            self.context.sample("wakeups", woken / _SAMPLE_EVERY_S)


def _instances(body: bytes) -> str:
    """A digest of the instances and the status of each of their checks, in any order."""
    try:
        rows: list[Any] = sorted(
            (entry["Service"]["ID"], sorted((check["CheckID"], check["Status"]) for check in entry["Checks"]))
            for entry in parse(body)
        )
    except (ValueError, KeyError, TypeError):
        rows = [body.decode(errors="replace")]  # any other answer is the state itself
    return hashlib.sha1(json.dumps(rows).encode(), usedforsecurity=False).hexdigest()[:12]
