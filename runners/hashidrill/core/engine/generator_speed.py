"""Measures what one operation costs the load generator on this machine, by running some."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, cast

import uvloop

from hashidrill.core.errors import UnfitError
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.http_client import HttpClient
from hashidrill.core.loads.lines import packed
from hashidrill.core.loads.schedule import OpenLoop, Reply
from hashidrill.core.loads.turns import Turns, stamp

if TYPE_CHECKING:
    from hashidrill.core.protocols.abc import EmitOperation, Operation

_RATE_PER_S = 2000
_ONCE, _KEYS, _VALUE_BYTES, _TIMEOUT_S = 0.9, 100, 512, 30.0
_WARM_S, _LONG_S = 0.1, 0.3
_SHARE = 0.8
"""The generator's share of the CPU that both sides use in one process: answering costs little, but not nothing."""
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Answer-Index: 31\r\nX-Answer-From-Leader: true\r\n"
    b"X-Answer-Age: 0\r\nContent-Length: 4\r\n\r\ntrue"
)


class _Answers(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        if data:  # head and body come in one piece
            self._transport.write(_ANSWER)


def operation_s() -> float:
    """CPU seconds of one write, from its schedule to its line in the recording, to our own server on loopback.

    Measured in the calling thread, which must not run an event loop. Takes half a second. Raises UnfitError when no
    write succeeds.
    """
    return uvloop.run(_measured())


async def _write(url: str, emit: EmitOperation) -> None:
    """Writes like those of the loads: a key each, mostly one of its own, and a value that says when it was sent."""
    context, turns = LoadContext([url]), Turns(_ONCE, _KEYS, _RATE_PER_S)
    async with HttpClient() as http:

        def plan(n: int) -> tuple[str, str]:
            once, number = turns.next()
            return f"speed/{'once/' if once else ''}{number}", stamp("run", n)

        async def put(_n: int, key: str, value: str) -> Reply:
            body = f"{value} {time.time_ns()}".ljust(_VALUE_BYTES, "x").encode()
            answer = await http.request("PUT", f"{url}/{key}", body=body, timeout_s=_TIMEOUT_S)
            return Reply("ok" if answer.status == 200 and answer.body.strip() == b"true" else "fail", answer.status)

        loop = OpenLoop(
            "speed",
            _RATE_PER_S,
            plan,
            put,
            context.clock,
            lag=context.lag,
            waiting=context.waiting,
            course=context.course,
        )
        await loop.run(emit)


async def _measured() -> float:
    server = await asyncio.get_running_loop().create_server(_Answers, "127.0.0.1", 0)
    outcomes: list[str] = []

    def emit(op: Operation) -> None:
        json.dumps(packed(op))
        outcomes.append(op.outcome)

    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        task = asyncio.create_task(_write(url, emit))
        try:
            await asyncio.sleep(_WARM_S)
            outcomes.clear()
            before = time.thread_time()
            await asyncio.sleep(_LONG_S)
            took_s, done = time.thread_time() - before, len(outcomes)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    if not done or "ok" not in outcomes:
        raise UnfitError(
            f"none of {done} writes to hashidrill's own server on loopback succeeded within {_LONG_S:g}s: free this"
            " machine of other work, or check its loopback interface"
        )
    return _SHARE * took_s / done
