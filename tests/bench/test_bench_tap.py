"""What the tap adds, and what it sustains, beside mitmproxy on the same work.

    pytest -m bench tests/bench/test_bench_tap.py

The work: GETs of 160 bytes over kept-alive connections to one upstream, which answers from a script.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

pytestmark = pytest.mark.bench

RATE_PER_S = 2000
SECONDS = 8
LATENCY_REQUESTS = 2000
CONNECTIONS = 16
MITMPROXY_READY_S = 60
_REQUEST = b"GET /v1/kv/x HTTP/1.1\r\nHost: upstream\r\nAccept: */*\r\n\r\n"
_BODY = b"x" * 160
_REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Consul-Index: 12\r\nContent-Length: 160\r\n\r\n" + _BODY
)

UPSTREAM = f"""
import asyncio, uvloop
REPLY = {_REPLY!r}
class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(REPLY * data.count(b"\\r\\n\\r\\n"))
async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""
TAP = """
import asyncio, sys
from hashidrill.retry.tap import Tap
from hashidrill.retry.upstream import HttpUpstream
async def main():
    async with Tap(HttpUpstream(sys.argv[1])) as tap:
        print(tap.port, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@contextlib.contextmanager
def python(code, *arguments):
    """A server in a process of its own: (port, process)."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


@contextlib.contextmanager
def mitmproxy(upstream_port):
    """mitmdump as a reverse proxy; skips, with the reason, where it cannot be had."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("mitmproxy is run by uv, which is not installed")
    asked = [uv, "run", "--isolated", "--no-project", "--with", "mitmproxy", "mitmdump"]
    got = subprocess.run([*asked, "--version"], capture_output=True, text=True, timeout=600, check=False)
    if got.returncode:
        pytest.skip(f"mitmproxy cannot be had: {got.stderr.strip().splitlines()[-1:]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mode = f"reverse:http://127.0.0.1:{upstream_port}"
    options = ["-q", "--set", "flow_detail=0", "--listen-host", "127.0.0.1", "-p", str(port), "--mode", mode]
    with subprocess.Popen([*asked, *options], start_new_session=True) as process:
        try:
            deadline = time.monotonic() + MITMPROXY_READY_S
            while not listens(port):
                assert time.monotonic() < deadline, "mitmdump does not listen"
                time.sleep(0.1)
            # uv is the parent of what does the work
            yield port, max(psutil.Process(process.pid).children(recursive=True), key=lambda p: p.memory_info().rss)
        finally:
            os.killpg(process.pid, 9)


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
        return True
    return False


def latencies_ms(port):
    """One request after the other on one connection, ms each."""
    found = []
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(LATENCY_REQUESTS):
            began = time.perf_counter()
            client.sendall(_REQUEST)
            received = b""
            while not received.endswith(_BODY):
                received += client.recv(65536)
            found.append((time.perf_counter() - began) * 1e3)
    return np.array(found[100:])


async def offered(port, rate_per_s, seconds):
    """Open loop over some connections: (requests that were answered each second, latencies from when they were due)."""
    due: list[list[float]] = [[] for _ in range(CONNECTIONS)]
    latencies, answered = [], 0
    links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]

    async def read(number):
        nonlocal answered
        while True:
            await links[number][0].readuntil(b"\r\n\r\n")
            await links[number][0].readexactly(160)
            latencies.append(time.perf_counter() - due[number].pop(0))
            answered += 1

    readers = [asyncio.create_task(read(number)) for number in range(CONNECTIONS)]
    began = time.perf_counter()
    sent = 0
    while sent < rate_per_s * seconds:
        while sent < (time.perf_counter() - began) * rate_per_s and sent < rate_per_s * seconds:
            number = sent % CONNECTIONS
            due[number].append(began + sent / rate_per_s)
            links[number][1].write(_REQUEST)
            sent += 1
        await asyncio.sleep(0.001)
    in_time = answered
    for reader in readers:
        reader.cancel()
    for _, writer in links:
        writer.close()
    return in_time / (time.perf_counter() - began), np.array(latencies) * 1e3


def measured(port, pid):
    one = latencies_ms(port)
    process = psutil.Process(pid) if pid else None
    before = sum(process.cpu_times()[:2]) if process else 0
    rate, under_load = asyncio.run(offered(port, RATE_PER_S, SECONDS))
    cpu = (sum(process.cpu_times()[:2]) - before) / SECONDS if process else 0
    return np.percentile(one, [50, 99]), rate, np.percentile(under_load, [50, 99]), cpu


def test_the_tap_beside_mitmproxy(tell):
    rows = []
    with python(UPSTREAM) as (upstream_port, upstream):
        direct = measured(upstream_port, upstream.pid)
        rows.append(("direct", direct))
        with python(TAP, f"http://127.0.0.1:{upstream_port}") as (port, process):
            tap = measured(port, process.pid)
        rows.append(("tap", tap))
        reason = ""
        try:
            with mitmproxy(upstream_port) as (port, process):
                rows.append(("mitmproxy", measured(port, process.pid)))
        except pytest.skip.Exception as skipped:
            reason = str(skipped)
    titles = ("p50 alone", "p99 alone", "answered/s", "p50 loaded", "p99 loaded", "cores")
    tell("\n" + " " * 12 + "".join(f"{title:>12}" for title in titles))
    for name, (alone, rate, loaded, cpu) in rows:
        cells = [
            f"{alone[0]:.2f} ms",
            f"{alone[1]:.2f} ms",
            f"{rate:.0f}",
            f"{loaded[0]:.2f} ms",
            f"{loaded[1]:.2f} ms",
        ]
        tell(f"{name:<12}" + "".join(f"{cell:>12}" for cell in cells) + f"{cpu:>8.2f}")
    tell(f"  {RATE_PER_S}/s offered for {SECONDS} s over {CONNECTIONS} connections; load {os.getloadavg()[0]:.1f}")
    if reason:
        tell(f"  mitmproxy was left out: {reason}")
    assert tap[0][0] - direct[0][0] < 1.0
    assert tap[1] > 0.97 * RATE_PER_S


def test_the_jitter_verdict_twenty_times_while_the_other_core_is_busy(tell):
    """±5 % passes and none fails, each 20 times out of 20, beside a process that keeps one core busy."""
    from hashidrill.retry import timing
    from hashidrill.retry.battery import Battery, Settings
    from hashidrill.retry.upstream import Scripted

    clients = Path(__file__).resolve().parents[1] / "contract" / "clients" / "homemade"

    async def verdict(name):
        command = [sys.executable, str(clients / f"{name}.py"), "{url}"]
        battery = Battery(command, Scripted(), Settings(10.0, faults=("503",)))
        measured = await battery.measure()
        judged = timing.jitter("503", measured.timed, measured.reference)
        while judged.evidence.get("more_clients") and len(measured.timed) < 60:
            await battery.more_clients(20)
            judged = timing.jitter("503", measured.timed, measured.reference)
        return str(judged.verdict), judged.text

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for name, right in (("five_percent_jitter", "PASS"), ("no_jitter", "FAIL")):
                found = [asyncio.run(verdict(name)) for _ in range(20)]
                tell(f"{name}: {sum(v == right for v, _ in found)} of {len(found)} {right}")
                assert [text for v, text in found if v != right] == []
        finally:
            busy.kill()


def test_the_confusion_matrix_three_times_while_the_other_core_is_busy(consul, tell):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))
    from clients.prepare import go_binaries
    from test_retry_confusion import confusion

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for _ in range(3):
                began = time.monotonic()
                matrix = asyncio.run(confusion(consul.path, go_binaries()))
                for line in [f"{time.monotonic() - began:.0f} s", *matrix.lines()]:
                    tell(line)
                assert not matrix.troubles
                assert not matrix.wrong
        finally:
            busy.kill()
