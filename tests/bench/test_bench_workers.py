"""Where `engine: nomad` would break first: 100 workers that report 1,000,000 operations a second between them.

    pytest -m bench -s tests/bench/test_bench_workers.py

No worker runs: what they would send is made beforehand, in the sizes that they send, and each stage of the runner takes
it in by itself, on one core. A stage that takes less than a second for what is due in one second keeps up.
"""

import json
import time

import pytest

from bench_runs import table
from hashidrill.core.loads.schedule import packed, unpacked
from hashidrill.core.protocols.abc import Operation
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.staging.generators.conductor import Merge
from hashidrill.staging.generators.link import Frames, Link

pytestmark = pytest.mark.bench

WORKERS = 100
OPERATIONS_PER_S = 1_000_000
FLUSH_S = 0.05
SIMULATED_S = 0.2
"""Simulated seconds of reports: enough batches for a stable figure, and little enough memory."""


def reports():
    """{worker: its messages, as bytes}, for SIMULATED_S."""
    each = round(OPERATIONS_PER_S * FLUSH_S / WORKERS)
    found = {}
    for worker in range(WORKERS):
        lines = []
        for flush in range(round(SIMULATED_S / FLUSH_S)):
            at_ns = int(flush * FLUSH_S * 1e9)
            due = [at_ns + round((n * WORKERS + worker) * 1e9 / OPERATIONS_PER_S) for n in range(each)]
            batch = [
                packed(Operation("kv", t, t + 40_000, t + 2_000_000, "ok", f"hashidrill/kv/{t % 500}", f"run.{t}", 200))
                for t in due
            ]
            lines += [json.dumps({"operations": batch}).encode(), json.dumps({"upto": at_ns}).encode()]
        found[f"w{worker}"] = lines
    return found


def test_what_the_runner_takes_in_of_a_hundred_workers(capsys, tmp_path):
    sent = reports()
    total = OPERATIONS_PER_S * SIMULATED_S
    took = {}

    began = time.process_time()
    data = {}
    for worker, lines in sent.items():
        link = Link(1 << 30)
        data[worker] = b"".join(link.send(line) for line in lines)
    took["worker: numbered and kept (all 100)"] = time.process_time() - began

    began = time.process_time()
    arrived = {}
    for worker, stream in data.items():
        frames, link = Frames(), Link()
        taken = [
            link.take(frame)
            for at in range(0, len(stream), 1 << 18)
            for frame in frames.fed(stream[at : at + (1 << 18)])
        ]
        arrived[worker] = taken
    took["runner: frames, numbers"] = time.process_time() - began

    began = time.process_time()
    messages = {worker: [json.loads(line) for line in lines] for worker, lines in arrived.items()}
    took["runner: JSON in"] = time.process_time() - began

    began = time.process_time()
    merge, merged = Merge(list(sent)), []
    for turn in zip(*messages.values(), strict=True):
        for worker, message in zip(messages, turn, strict=True):
            if "upto" in message:
                merge.upto(worker, message["upto"])
            else:
                merge.add(worker, message["operations"])
        merged += merge.taken()
    merged += merge.rest()
    took["runner: merged in order"] = time.process_time() - began
    assert len(merged) == total
    assert [line[3] for line in merged] == sorted(line[3] for line in merged)

    began = time.process_time()
    out = [
        json.dumps({"operations": merged[at : at + 500]}, separators=(",", ":")) for at in range(0, len(merged), 500)
    ]
    took["runner: JSON out"] = time.process_time() - began

    began = time.process_time()
    operations = [unpacked(line) for text in out for line in json.loads(text)["operations"]]
    took["engine: JSON in"] = time.process_time() - began

    part = operations[: len(operations) // 10]
    began = time.process_time()
    writer = RecordingWriter(tmp_path / "run")
    for operation in part:
        writer.operation(operation)
    writer.close()
    took["engine: recording written"] = (time.process_time() - began) * len(operations) / len(part)

    ratios = {stage: seconds / SIMULATED_S for stage, seconds in took.items()}
    rows = [("stage", "us an operation", "cores needed", "keeps up to")]
    for stage, ratio in ratios.items():
        cost_s = ratio / OPERATIONS_PER_S
        rows.append((stage, f"{cost_s * 1e6:.2f}", f"{ratio:.2f}", f"{1 / cost_s:,.0f}/s"))
    size = sum(map(len, data.values())) / total
    rows.append(
        ("bytes an operation on the wire", f"{size:.0f}", f"{size * OPERATIONS_PER_S * 8 / 1e9:.1f} Gbit/s", "")
    )
    table(capsys, f"{WORKERS} workers, {OPERATIONS_PER_S:,} operations/s", rows)
    assert all(ratio > 0 for ratio in ratios.values())
