"""The events of a run that never ran: ticks twice a second, a slow disk, a leader that changes, a verdict."""

import math

from hashidrill.core.protocols.events import (
    Began,
    Change,
    End,
    Expected,
    Figures,
    InForce,
    Intent,
    Judged,
    Note,
    Phase,
    Proof,
    Seen,
    Steady,
    Tick,
    Where,
)

FAULT = "f1"
SECRET = ("disk.latency", "consul-1", "slow-leader-disk", "delay=")
"""What of it no trainee may read."""


def ns(seconds):
    return int(seconds * 1e9)


def events(length_s=90.0, *, seed_text="", until_s=None):
    """In the order of their times. `seed_text` comes in wherever a cluster or an experiment can put a text."""
    until_s = length_s if until_s is None else until_s
    fault_at, fault_to = length_s * 0.4, length_s * 0.7
    moments = [
        (0.0, Began(id="20261123-slow-leader-disk", experiment="slow-leader-disk" + seed_text)),
        (0.0, Phase(phase="start")),
        (0.5, Note(text="built consul 1.22.2" + seed_text)),
        (length_s * 0.05, Phase(phase="load")),
        (length_s * 0.1, Phase(phase="steady", ends_ns=ns(length_s * 0.3))),
        (length_s * 0.3, Steady(held=True, evidence="kv-writes.latency.p50 < 300ms (measured 0.004)")),
        (length_s * 0.3, Phase(phase="method", ends_ns=ns(fault_to))),
        (
            fault_at,
            Intent(
                fault_id=FAULT,
                kind="disk.latency" + seed_text,
                target=Where(host="consul-1" + seed_text),
                params={"delay": "500ms" + seed_text, "op": "fsync"},
                step=0,
            ),
        ),
        (fault_at + 0.4, Change(event="fault.applied", fault_id=FAULT)),
        (
            fault_at + 1.2,
            Proof(
                event="fault.proven",
                fault_id=FAULT,
                evidence=Seen("fsync slower than 250 ms", "fsync took 512 ms" + seed_text),
            ),
        ),
        (fault_to, Change(event="fault.reverted", fault_id=FAULT)),
        (fault_to + 0.5, Proof(event="fault.gone", fault_id=FAULT, evidence=Seen("", "fsync took 0.4 ms"))),
        (fault_to + 0.6, Phase(phase="recovery", ends_ns=ns(length_s * 0.95))),
        (length_s * 0.95, Phase(phase="quiesce")),
    ]
    moments += [(at / 2, tick(at / 2, length_s, seed_text)) for at in range(2, int(length_s * 2))]
    for at, event in sorted(moments, key=lambda each: each[0]):
        if at <= until_s:
            yield at_time(event, at)


def at_time(event, seconds):
    from dataclasses import replace

    return replace(event, t_ns=ns(seconds))


def tick(at, length_s, seed_text=""):
    fault_at, fault_to = length_s * 0.4, length_s * 0.7
    sick = fault_at < at < fault_to
    stopped = fault_at + 4 <= at < fault_at + 4 + length_s * 0.05
    wave = 1 + 0.3 * math.sin(at / 3)
    writes = Figures(
        rate=0.0 if stopped else (31.0 if sick else 50.0) * (0.9 + 0.1 * wave),
        p50_s=math.inf if stopped else 0.52 * wave if sick else 0.004 * wave,
        p99_s=math.inf if stopped else 1.4 * wave if sick else 0.019 * wave,
        errors=1.0 if stopped else 0.12 if sick else 0.0,
        waiting=17 if sick else 0,
        waited_s=2.4 if sick else None,
    )
    reads = Figures(rate=200.0 * wave, p50_s=0.001 * wave, p99_s=0.006 * wave, errors=0.0)
    leader = "consul-1" if at < fault_at + 4 else "" if stopped else "consul-2"
    phases = [(0.05, "start"), (0.1, "load"), (0.3, "steady"), (0.7, "method"), (0.95, "recovery"), (2, "quiesce")]
    force = InForce(FAULT, "disk.latency" + seed_text, "consul-1" + seed_text, ns(fault_to))
    return Tick(
        phase=next(name for share, name in phases if at < share * length_s),
        phase_ends_ns=ns(fault_to),
        loads={"kv-writes" + seed_text: writes, "kv-reads": reads},
        leaders=(("leader", leader + seed_text),),
        faults=(force,) if sick else (),
        probes=(
            ("disk.fsync", 0.512 if sick else 0.0004),
            ("process.cpu", 0.4 * wave),
            ("raft.commit_time", 0.6 if sick else 0.002),
        ),
    )


def end(length_s=90.0, outcome="done"):
    return End(t_ns=ns(length_s), outcome=outcome)


def judged(seed_text="", verdict="FAIL"):
    expectations = (
        Expected("writes_recover(load=kv-writes)" + seed_text, "writes_recover", "held", "", {}),
        Expected(
            "leadership_leaves(fault=disk.latency)",
            "leadership_leaves",
            "broken",
            "consul-1 still led 20 s after disk.latency was proven in force" + seed_text,
            {},
        ),
        Expected("no_acknowledged_write_lost(load=kv-writes)", "no_acknowledged_write_lost", "held", "", {}),
    )
    return Judged(verdict=verdict, expectations=expectations, report="/srv/runs/20261123/report.html" + seed_text)
