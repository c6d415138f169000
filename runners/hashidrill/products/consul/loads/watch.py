"""`consul.watch`: blocking queries that stay open, as applications and sidecars keep them by the thousand.

A watcher follows Consul's documentation on blocking queries: it asks again with the index of the last answer, starts
again at 0 when the index goes backwards, and treats an index under 1 as 1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from hashidrill.core.experiment.model import NAME_PATTERN
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.answer import Answer, read_error
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.http_client import for_each, insist
from hashidrill.core.loads.schedule import CANCELLED
from hashidrill.core.protocols.abc import EmitOperation, LoadCost, Operation, Reason
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Quantity, Rate
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad, newest_ns
from hashidrill.products.consul.loads.kv import FINAL_READS_WITHIN_S, PREFIX, Via, identify
from hashidrill.products.consul.loads.views import BACKEND, SIGNALS, Count, Establish, Held, Service

_INDEX = "x-consul-index"
_GRACE_S = 10.0
"""How long an answer may take beyond `wait` and the sixteenth of `wait` that Consul adds."""
_MAX_WAIT = Duration("10m")
_ANSWERS = (200, 404)
"""404 is an answer too: the key does not exist (yet, or any more)."""
_SAMPLE_EVERY_S = 1.0

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
