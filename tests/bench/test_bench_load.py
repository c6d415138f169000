"""What the load generator can offer, what it costs, and whether it tells the truth about a stall.

    pytest -m bench tests/bench/test_bench_load.py

Figures are printed; only sanity is asserted, because a busy machine is not a defect of ours.
"""

import asyncio
import os
import re
import subprocess

import anyio
import numpy as np
import psutil
import pytest

from bench_runs import server, table
from hashidrill.core.engine.load_generator import LoadGenerator, LoadSpecification
from hashidrill.core.recording.journal import Clock
from hashidrill.products.consul.loads.kv import KvWrite

pytestmark = [pytest.mark.bench, pytest.mark.needs("wrk")]

RATE_PER_S = 3000
SECONDS = 20
STALL_RATE_PER_S = 1000
STALL_AFTER_S = 8.0
STALL_FOR_S = 2.0


def offered(url, rate_per_s, seconds):
    """The operations that were due in the time asked for, CPU seconds of the generator, and the clock's origin."""
    operations, clock = [], Clock()
    params = KvWrite.Params.model_validate({"rate": f"{rate_per_s}/s"})

    async def main():
        async with LoadGenerator(clock, "bench") as loads:
            writes = LoadSpecification("w", KvWrite.kind, params, [url])
            process = psutil.Process(loads._process.pid)
            await loads.start([writes], operations.append, lambda _t_ns, _sample: None)
            before = process.cpu_times()
            await anyio.sleep(seconds + 0.5)
            after = process.cpu_times()
            await loads.stop()
            return after.user + after.system - before.user - before.system

    cpu_s = asyncio.run(main())
    start_ns = min(op.intended_ns for op in operations)
    due = [op for op in operations if op.intended_ns < start_ns + seconds * 1e9]
    return due, cpu_s / len(operations), clock.origin_ns


def wrk(url, seconds, tmp_path, connections=16):
    """wrk, closed loop, on the same requests: requests done, CPU seconds for each, and its own latency percentiles."""
    script = tmp_path / "put.lua"
    script.write_text('wrk.method = "PUT"\nwrk.path = "/v1/kv/hashidrill/w/1"\nwrk.body = string.rep("x", 512)\n')
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=30s", "--latency", "-s", str(script), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        text = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    requests = int(re.search(r"(\d+) requests in", text)[1])
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    percentiles = {
        int(percent): float(value) * units[unit]
        for percent, value, unit in re.findall(r"^\s+(\d+)%\s+([\d.]+)(us|ms|s)\s*$", text, re.MULTILINE)
    }
    return requests, (usage.ru_utime + usage.ru_stime) / requests, percentiles


def test_the_offered_load_and_what_it_costs_beside_wrk(capsys, tmp_path):
    with server() as (url, _):
        operations, cpu_per_request_s, _ = offered(url, RATE_PER_S, SECONDS)
        done, wrk_cpu_per_request_s, _ = wrk(url, 5, tmp_path)
    planned = RATE_PER_S * SECONDS
    sent = sum(op.outcome == "ok" for op in operations)
    lag_ms = np.percentile([(op.start_ns - op.intended_ns) / 1e6 for op in operations], [50, 99, 100])
    table(
        capsys,
        f"offered load: {RATE_PER_S}/s for {SECONDS} s, PUT of 512 B, one process, {os.cpu_count()} CPUs",
        [
            ("", "hashidrill", "wrk (closed loop)"),
            ("planned", f"{planned}", "-"),
            ("sent and answered", f"{sent} ({sent / planned:.2%})", f"{done}"),
            ("schedule lag p50", f"{lag_ms[0]:.2f} ms", "-"),
            ("schedule lag p99", f"{lag_ms[1]:.2f} ms", "-"),
            ("schedule lag max", f"{lag_ms[2]:.2f} ms", "-"),
            ("CPU per request", f"{cpu_per_request_s * 1e6:.1f} us", f"{wrk_cpu_per_request_s * 1e6:.1f} us"),
            (
                f"CPU seconds for {planned}",
                f"{cpu_per_request_s * planned:.2f}",
                f"{wrk_cpu_per_request_s * planned:.2f}",
            ),
            ("CPU ratio", f"{cpu_per_request_s / wrk_cpu_per_request_s:.1f}", "1.0"),
        ],
    )
    assert len(operations) == planned
    assert sent > 0


def test_a_planted_stall_shows_as_users_had_it(capsys, tmp_path):
    seconds = SECONDS
    with server(STALL_AFTER_S, STALL_FOR_S) as (url, line):
        operations, _, origin_ns = offered(url, STALL_RATE_PER_S, seconds)
        begin_ns, end_ns = (int(word) - origin_ns for word in line().split())
    with server(STALL_AFTER_S, STALL_FOR_S) as (url, _):
        _, _, closed = wrk(url, seconds, tmp_path, connections=8)
    # the truth, from the stall alone: who comes while it lasts waits for its end, everybody else not at all
    intended_ns = np.array([op.intended_ns for op in operations])
    true_s = np.where((intended_ns >= begin_ns) & (intended_ns < end_ns), (end_ns - intended_ns) / 1e9, 0.0)
    ours_s = np.array([op.end_ns - op.intended_ns for op in operations]) / 1e9
    ranks = (50, 90, 95, 99)
    truth, ours = np.percentile(true_s, ranks), np.percentile(ours_s, ranks)
    table(
        capsys,
        f"latency under a stall of {STALL_FOR_S:g} s in {seconds} s at {STALL_RATE_PER_S}/s",
        [
            ("", "true", "hashidrill", "wrk (closed loop)"),
            *(
                (
                    f"p{rank}",
                    f"{t * 1e3:.1f} ms",
                    f"{o * 1e3:.1f} ms",
                    f"{closed[rank] * 1e3:.2f} ms" if rank in closed else "-",
                )
                for rank, t, o in zip(ranks, truth, ours, strict=True)
            ),
        ],
    )
    assert truth[3] == pytest.approx(STALL_FOR_S * (1 - 0.01 * seconds / STALL_FOR_S), abs=0.05)
    assert ours[3] > 0.5 * truth[3]
