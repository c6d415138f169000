"""`consul.streams`: subscriptions to a service's health, straight at the servers, by the thousand over few connections.

What agents do for the views that they keep, without the agents: a datacenter's worth of streams from one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.loads.base import Timeout
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.http_client import connected
from hashidrill.core.loads.schedule import CANCELLED
from hashidrill.core.protocols.abc import LoadCost, Operation, Reason
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Duration, Quantity, Rate
from hashidrill.products.consul import rights
from hashidrill.products.consul.loads.base import ConsulLoad
from hashidrill.products.consul.loads.changes import newest_ns
from hashidrill.products.consul.loads.held import Count, Establish, Held
from hashidrill.products.consul.loads.kv import Via
from hashidrill.products.consul.loads.subscribe import RPC_PORT, Event, SubscribeConnection, Subscription
from hashidrill.products.consul.loads.views import Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hashidrill.core.protocols.abc import EmitOperation

_SAMPLE_EVERY_S = 1.0
_AGAIN_AFTER_S = 1.0
_NS = 1_000_000_000


class Streams(ConsulLoad):
    """Opens `count` streaming subscriptions, spread over the servers that `via` selects.

    It also writes `LOAD.open`, `LOAD.events` (a second) and `LOAD.lag` (99th percentile of how long after a change of
    `consul.service.churn` was sent its event came).
    """

    kind: ClassVar[str] = "consul.streams"
    not_by_address: ClassVar[str] = "it opens streams at the servers' port 8300, which wants an agent's certificate"
    asks: ClassVar[str] = "server"
    signals: ClassVar[Mapping[str, type[Quantity] | None]] = {
        "open": None,
        "establish": Rate,
        "events": Rate,
        "lag": Duration,
    }

    class Params(Strict):
        """An operation is the opening of a stream, up to the end of its first snapshot. One that ends is opened again.

        `events` are those that came in a second after that; `lag` is the 99th percentile of how long after the change
        was sent they came, where a load of ours made it.
        """

        count: Annotated[Count, Field(description="How many, at a level of 100%")]
        service: Service = "hashidrill"
        connections: Annotated[int, Field(ge=1, le=1000, description="TCP connections to each server")] = 1
        port: Annotated[int, Field(ge=1, le=65535, description="The servers' RPC port")] = RPC_PORT
        establish: Establish = Rate("100/s")
        via: Via = "consul:servers"
        timeout: Timeout = Duration("30s")

    params: Params

    @classmethod
    def rights(cls, name: str, params: Any) -> Sequence[Right]:  # noqa: ARG003 - of all loads
        return (rights.right("service", params.service), rights.right("node_prefix"))

    def __init__(self, name: str, params: Params, context: LoadContext) -> None:
        super().__init__(name, params, context)
        self._held = Held(context, params.count, params.establish, self._hold)
        self._connections: dict[tuple[str, int], SubscribeConnection] = {}
        self._turns: dict[tuple[str, int], asyncio.Lock] = {}
        self._events = 0
        self._lags_ns: list[int] = []

    @classmethod
    def cost(cls, params: Params) -> LoadCost:
        return LoadCost(opened_per_s=params.establish)

    async def run(self, emit: EmitOperation) -> None:
        """Until cancelled."""
        self._emit = emit
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sample())
                await self._held.run()
        finally:
            for connection in self._connections.values():
                connection.close()
            await asyncio.sleep(0)  # the transports close in the loop's next turn

    async def _hold(self, slot: int, due_ns: int) -> None:
        """Open stream `slot`, and return when it has ended."""
        clock = self.context.clock
        servers = [urlsplit(endpoint).hostname or "" for endpoint in self.context.endpoints]
        server, number = servers[slot % len(servers)], slot // len(servers) % self.params.connections
        start_ns, outcome, error, reason = clock.now_ns(), "unknown", CANCELLED, Reason.CANCELLED.value
        connection, stream = None, _Stream(self)
        try:
            try:
                async with self._opening(due_ns):
                    connection = await self._connection(server, number)
                    stream.subscription = connection.subscribe(self.params.service, stream.event)
                    first: list[asyncio.Future[Any]] = [stream.subscription.ended, stream.opened]
                    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if stream.opened.done():
                    outcome, error, reason = "ok", "", ""
                else:
                    outcome, error, reason = "fail", stream.subscription.ended.result(), Reason.NO_ANSWER
            except TimeoutError:
                outcome, error, reason = "fail", f"no snapshot within {self.params.timeout}", Reason.NO_ANSWER
            except OSError as failure:
                outcome, error, reason = "fail", f"could not connect: {failure}", Reason.NOT_SENT
            finally:
                key = f"{server}:{self.params.port}#{slot}"
                self._emit(
                    Operation(self.name, due_ns, start_ns, clock.now_ns(), outcome, key, error=error, reason=reason)
                )
            if outcome == "ok" and stream.subscription is not None:
                self._held.opened(slot)
                await stream.subscription.ended
                self._held.closed(slot)
        finally:
            if connection is not None and stream.subscription is not None:
                connection.cancel(stream.subscription)
        await asyncio.sleep(_AGAIN_AFTER_S)

    @asynccontextmanager
    async def _opening(self, due_ns: int) -> AsyncIterator[None]:
        """Raises TimeoutError."""
        with self.context.waiting.operation(due_ns):
            async with asyncio.timeout(float(self.params.timeout)):
                yield

    async def _connection(self, server: str, number: int) -> SubscribeConnection:
        """Raises OSError."""
        place = server, number
        async with self._turns.setdefault(place, asyncio.Lock()):
            known = self._connections.get(place)
            if known is None or known.closed:
                local = None if self.context.local_address is None else (self.context.local_address, 0)
                known = await connected(SubscribeConnection, server, self.params.port, local=local)
                self._connections[place] = known
            return known

    def came(self, sent_ns: int | None) -> None:
        """An event after a snapshot, of a change that was sent then, where that is known."""
        self._events += 1
        if sent_ns is not None:
            self._lags_ns.append(self.context.clock.now_ns() - sent_ns)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_EVERY_S)
            events, self._events = self._events, 0
            lags_ns, self._lags_ns = self._lags_ns, []
            self.context.sample("events", events / _SAMPLE_EVERY_S)
            if lags_ns:
                self.context.sample("lag", sorted(lags_ns)[int(0.99 * (len(lags_ns) - 1))] / _NS)


class _Stream:
    """Tells the first snapshot from what comes after it."""

    def __init__(self, load: Streams) -> None:
        self._load = load
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.subscription: Subscription | None = None
        self._in_snapshot = True
        self._newest_ns = 0

    def event(self, event: Event) -> None:
        # what is deregistered carries the mark of its last change: only a mark that is news tells of this one
        sent_ns = newest_ns(event.raw)
        news, self._newest_ns = sent_ns > self._newest_ns, max(sent_ns, self._newest_ns)
        if event.new_snapshot:
            self._in_snapshot = True
        elif event.end_of_snapshot:
            self._in_snapshot = False
            if not self.opened.done():
                self.opened.set_result(None)
        elif not self._in_snapshot:
            self._load.came(sent_ns if news else None)
