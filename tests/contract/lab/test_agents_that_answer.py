"""An agent answers over HTTP, or to a line over TCP; one that only accepts connections does not."""

from pathlib import Path

import anyio
import pytest

from hashidrill.core.protocols.service import AgentPlan
from hashidrill.lab.local.hosts import LocalHost


async def answers(serve, url="tcp://127.0.0.1:{}", health="PING"):
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        host = LocalHost("kv-1", "127.0.0.1", {"kv": "server"}, Path("/nowhere"), 1)
        host.plans["kv"] = AgentPlan({}, [], url.format(listener.extra(anyio.abc.SocketAttribute.local_port)), health)
        said = await host.agent_answers("kv", 0.3)
        tasks.cancel_scope.cancel()
    return said


async def pong(stream):
    async with stream:
        if await stream.receive() == b"PING\n":
            await stream.send(b"PONG\n")


async def page(stream):
    async with stream:
        await stream.receive()
        await stream.send(b"HTTP/1.1 503 Sick\r\nContent-Length: 0\r\n\r\n")


async def silence(stream):
    """As the kernel does for a frozen process, or a program whose threads all wait."""
    async with stream:
        await anyio.sleep_forever()


async def hangs_up(stream):
    await stream.aclose()


async def test_an_answer_to_the_line_is_an_answer():
    assert await answers(pong)


async def test_any_status_over_http_is_one():
    assert await answers(page, "http://127.0.0.1:{}", "/health")


@pytest.mark.lie
@pytest.mark.parametrize("serve", [silence, hangs_up])
@pytest.mark.parametrize("url", ["tcp://127.0.0.1:{}", "http://127.0.0.1:{}"])
async def test_a_connection_alone_is_none(serve, url):
    assert not await answers(serve, url, "PING" if url.startswith("tcp") else "/")


async def test_a_closed_port_is_none():
    assert not await answers(pong, "tcp://127.0.0.1:9")
