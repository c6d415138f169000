"""Synthetic runs for the tests of reports and of the live view, written as the engine writes them."""

import json
import math
import random
from pathlib import Path

from hashidrill.core.experiment.documents import Document
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.recording.journal import Clock, Journal
from hashidrill.core.recording.reader import EXPERIMENT_NAME, Recording
from hashidrill.core.recording.writer import RESOLVED_NAME, RecordingWriter
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.testing.recordings import resolved_data

S = 1_000_000_000

EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: slow-leader-disk, title: The Raft leader's disk slows down but does not fail, why: A test.}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s}
steady_state: {for: 10s, require: ["kv-writes.latency.p50 < 300ms"]}
method:
  - {fault: disk.latency, on: "consul:leader", with: {op: fsync, delay: 500ms}, at: 0s, for: 20s}
recovery: {for: 20s}
expect:
  - writes_recover: {load: kv-writes, p50_below: 300ms, within: 10s}
"""


class PlantedClock(Clock):
    """Says what it is told to."""

    def __init__(self) -> None:
        super().__init__(0)
        self.t_s = 0.0

    def now_ns(self) -> int:
        return int(self.t_s * S)


def run_info(**changes):
    """run.json as the engine writes it."""
    servers = [f"consul-{n}" for n in (1, 2, 3)]
    return {
        "id": "20260301-101500-slow-leader-disk",
        "experiment": "slow-leader-disk",
        "title": "The Raft leader's disk slows down but does not fail",
        "started_at": "2026-03-01T10:15:00+00:00",
        "ended_at": "2026-03-01T10:16:04+00:00",
        "outcome": "complete",
        "error": "",
        "hashidrill": "0.1.0",
        "versions": {"consul": "1.22.2", "python": "3.11.7", "kernel": "6.1.0"},
        "binaries": {"consul": {"path": "/cache/consul-1.22.2", "sha256": "ab" * 32, "source": "built with Go"}},
        "machine": {"cpus": 2, "memory_bytes": 8_200_000_000, "kernel": "6.1.0", "distribution": "Debian 12"},
        "config": {
            host: {"performance": {"raft_multiplier": 1}, "server": host in servers} for host in [*servers, "client-1"]
        },
        "hosts": [
            *({"name": host, "address": f"10.73.0.{11 + n}", "role": "server"} for n, host in enumerate(servers)),
            {"name": "client-1", "address": "10.73.0.31", "role": "client"},
        ],
        "command": "hashidrill run experiments/raft/slow-leader-disk.yaml",
        "generator": {"cpu_share_max": 0.21, "lag_p99_s": 0.0012},
        **changes,
    }


def realistic_run(path: Path, *, fault_kind: str = "disk.latency", load: str = "kv-writes", **changes) -> Recording:
    """Steady at 16 ms; for 20 s an fsync delay with writes at 3 s and a few errors; recovery; a late leader change."""
    chance = random.Random(7)
    writer = RecordingWriter(path)
    writer.write_run(run_info(**changes))
    (path / EXPERIMENT_NAME).write_text(EXPERIMENT)
    (path / RESOLVED_NAME).write_text(json.dumps(resolved_data(Document(EXPERIMENT_NAME, EXPERIMENT).data)))
    clock = PlantedClock()
    with Journal(path / JOURNAL_NAME, clock) as journal:
        write_story(journal, clock, fault_kind)
    for n in range(50 * 50):
        due = 4.0 + n / 50
        slow = 14.2 <= due < 34.3
        latency = chance.lognormvariate(math.log(3.0 if slow else 0.016), 0.25 if slow else 0.2)
        if slow:
            latency = min(latency, max(36.0 - due, 0.2) + chance.random() * 0.3)
        failed = slow and chance.random() < 0.06
        times = (int(due * S), int(due * S) + 90_000, int((due + latency) * S))
        outcome, error, status = ("unknown", "timed out", 0) if failed else ("ok", "", 200)
        writer.operation(Operation(load, *times, outcome, f"k{n % 500}", f"v{n}", status, error))
        if n % 2 == 0:
            times = (times[0], times[1], int((due + chance.lognormvariate(math.log(0.002), 0.3)) * S))
            writer.operation(Operation("kv-reads", *times, "ok", f"k{n % 500}", "", 200, ""))
    write_signals(writer, chance)
    writer.close()
    return Recording(path)


def write_story(journal: Journal, clock: PlantedClock, fault_kind: str = "disk.latency") -> None:
    """The journal of a whole run with one fault on consul-1."""

    def at(t_s, event, **data):
        clock.t_s = t_s
        journal.write(event, **data)

    at(0, "run", id="r", experiment="slow-leader-disk")
    at(0.1, "phase", phase="start")
    at(2.5, "phase", phase="ready")
    at(4, "phase", phase="steady")
    at(14, "steady", held=True, evidence="kv-writes.latency.p50 was 16 ms")
    at(14, "phase", phase="method")
    target = {"host": "consul-1", "address": "10.73.0.11", "agent": "consul"}
    params = {"op": "fsync", "delay": "500ms"}
    at(14.05, "fault.intent", fault_id="f1", kind=fault_kind, step=0, target=target, params=params, undo={})
    at(14.1, "fault.applied", fault_id="f1")
    evidence = {"ok": True, "asked": "500 ms on fsync", "measured": "502 ms", "figures": {"fsync_p50_s": 0.502}}
    at(15.2, "fault.proven", fault_id="f1", evidence=evidence)
    at(34.2, "fault.reverted", fault_id="f1")
    gone = {"ok": True, "asked": "no delay on fsync", "measured": "1.1 ms", "figures": {"fsync_p50_s": 0.0011}}
    at(34.4, "fault.gone", fault_id="f1", evidence=gone)
    at(34.4, "phase", phase="recovery")
    at(54.4, "phase", phase="quiesce")
    at(56, "end", outcome="complete", error="")


def write_signals(writer: RecordingWriter, chance: random.Random) -> None:
    for second in range(4, 55):
        t_ns, slow = second * S, 15 <= second < 34
        leader = "" if second == 41 else "consul-2" if second > 41 else "consul-1"
        writer.sample(t_ns, Sample("raft.leader", 1.0 if leader else 0.0, leader, "", bool(leader)))
        writer.sample(t_ns, Sample("consul.autopilot_healthy", 1.0))
        writer.sample(t_ns, Sample("generator.lag", 0.001 + chance.random() / 1000))
        for host in ("consul-1", "consul-2", "consul-3"):
            sick = slow and host == "consul-1"
            writer.sample(
                t_ns, Sample("raft.commit_time", (1.1 if sick else 0.012) * (1 + chance.random() / 5), "", host)
            )
            writer.sample(
                t_ns, Sample("raft.dispatch_log", (0.5 if sick else 0.003) * (1 + chance.random() / 5), "", host)
            )
            writer.sample(
                t_ns, Sample("disk.fsync", (0.501 if sick else 0.0011) * (1 + chance.random() / 20), "", host)
            )
            writer.sample(t_ns, Sample("raft.last_contact", 0.02 + chance.random() / 50, "", host))
            writer.sample(t_ns, Sample("process.cpu", (0.1 if sick else 0.25) + chance.random() / 10, "", host))
            writer.sample(t_ns, Sample("process.rss", 90e6 + chance.random() * 1e6, "", host))


def held(title: str = "writes_recover(load=kv-writes, p50_below=300ms, within=10s)") -> Judgement:
    text = "kv-writes p50 was below 300 ms again 1.8 s after disk.latency on consul-1 ended"
    return Judgement(title, "writes_recover", Finding.HELD, text, {"recovered_after_s": 1.8, "steady_p50_s": 0.016})


def broken() -> Judgement:
    text = "3 acknowledged writes are not there at the end: k17, k204, k311"
    figures = {"acknowledged": 2460.0, "lost_keys": ["k17", "k204", "k311"]}
    return Judgement(
        "no_acknowledged_write_lost(load=kv-writes)", "no_acknowledged_write_lost", Finding.BROKEN, text, figures
    )


def known() -> Judgement:
    text = "consul-1 led all through disk.latency, 20 s"
    return Judgement(
        "leadership_leaves(fault=disk.latency, within=20s)",
        "leadership_leaves",
        Finding.KNOWN,
        text,
        {"led_for_s": 20.1},
        known_issue="hashicorp/consul#22064",
    )


def passing() -> RunVerdict:
    return RunVerdict([], [held(), known()])


def failing() -> RunVerdict:
    return RunVerdict([], [held(), broken(), known()])


def invalid() -> RunVerdict:
    return RunVerdict(["disk.latency on consul-1 was not proven in force: measured 1.1 ms"], [held()])
