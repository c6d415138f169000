"""What ten probes at one look a second cost the runner: CPU time of a process with them, less that of one without.

    pytest -m bench -s tests/bench/test_bench_probes.py

The servers are another process, on the loopback: its time is not counted. Of a run of the same length without probes
comes the cost of the event loop itself.
"""

import asyncio
import json
import multiprocessing
import resource
import time

import dns.message
import dns.rrset
import pytest

from hashidrill.core.probes.base import run_probes
from hashidrill.core.probes.declared import ProbeContext
from hashidrill.core.protocols import registry

pytestmark = pytest.mark.bench
LENGTH_S = 30.0
MOST = 0.02
"""Of a core."""


def serve(ports):
    asyncio.run(_serve(ports))


async def _serve(ports):
    now = time.time

    async def http(reader, writer):
        while head := await _head(reader):
            await reply(head, reader, writer)
        writer.close()

    async def reply(head, reader, writer):
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        body = await reader.readexactly(length)
        parts = {"asked": 1.0, "value": 1.0, "taken": now()} if b"timestamp" in body else {}
        series = [
            {"metric": {"job": "web", "hashidrill": what}, "value": [now(), str(figure)]}
            for what, figure in parts.items()
        ]
        said = json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(said) + said
        )
        await writer.drain()

    class Dns(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, addr):
            answer = dns.message.make_response(dns.message.from_wire(data))
            answer.answer.append(dns.rrset.from_text("web.service.consul.", 0, "IN", "A", "10.0.0.1"))
            self.transport.sendto(answer.to_wire(), addr)

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Dns, local_addr=("127.0.0.1", 0))
    ports.send((server.sockets[0].getsockname()[1], transport.get_extra_info("sockname")[1]))
    await asyncio.sleep(LENGTH_S * 4)


async def _head(reader):
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def made(kind, **params):
    cls = registry.probe(kind)
    return cls(kind, cls.Params.model_validate(params), ProbeContext())


def cost(probes):
    """Seconds of CPU, of this process and of the commands that it ran, and the samples."""
    samples = []

    async def main():
        task = asyncio.create_task(run_probes(probes, samples.append))
        await asyncio.sleep(LENGTH_S)
        task.cancel()

    before = _used()
    asyncio.run(main())
    return _used() - before, samples


def _used():
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in each)


def ten(http, named):
    url = f"http://127.0.0.1:{http}"
    return [
        *(made("http", url=f"{url}/{n}", json="status", equals="success") for n in range(4)),
        *(made("prometheus", url=url, query="up", labels={"job": "web"}) for _ in range(2)),
        *(made("dns", name="web.service.consul", server=f"127.0.0.1:{named}") for _ in range(2)),
        *(made("tcp", address=f"127.0.0.1:{http}") for _ in range(2)),
    ]


async def _once(probes):
    for probe in probes:
        await probe.sample()
        await probe.aclose()


def test_ten_probes_at_one_look_a_second_cost_under_two_percent_of_a_core():
    here, there = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(there,), daemon=True)
    server.start()
    ports = here.recv()
    try:
        asyncio.run(_once(ten(*ports)))  # imports are paid for once
        alone, _ = cost([])
        used, samples = cost(ten(*ports))
    finally:
        server.kill()
        server.join()
    good = sum(one.value == 1 for one in samples if one.signal.endswith((".ok", "prometheus.value")))
    print(
        f"\n{good} good looks in {LENGTH_S:g} s: {used - alone:.2f} s of CPU, {(used - alone) / LENGTH_S:.1%} of a core"
    )
    assert good >= 10 * (LENGTH_S - 1)
    assert (used - alone) / LENGTH_S < MOST
