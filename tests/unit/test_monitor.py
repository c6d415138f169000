"""What the engine knows while a run goes on: trailing windows, and nothing where nothing was measured."""

from __future__ import annotations

import math

import pytest

from hashidrill.abc import Operation, Sample
from hashidrill.conditions import Condition
from hashidrill.monitor import Monitor

SECOND = 1_000_000_000


def monitor_with(operations=(), samples=()):
    monitor = Monitor(["kv"])
    for end_s, latency_s, outcome in operations:
        end_ns = int(end_s * SECOND)
        intended = end_ns - int(latency_s * SECOND)
        monitor.operation(Operation("kv", intended, intended, end_ns, outcome))
    for t_s, sample in samples:
        monitor.sample(int(t_s * SECOND), sample)
    return monitor


def value(monitor, text, now_s=10.0, window_s=5.0):
    return monitor.value(Condition.parse(text), int(now_s * SECOND), window_s)


def test_only_the_window_counts():
    monitor = monitor_with([(1, 9.0, "ok"), (6, 0.1, "ok"), (7, 0.2, "ok"), (8, 0.3, "ok")])
    assert value(monitor, "kv.latency.p50 < 1s") == pytest.approx(0.2)
    assert value(monitor, "kv.latency.max < 1s") == pytest.approx(0.3)
    assert value(monitor, "kv.latency.max < 1s", window_s=20) == pytest.approx(9.0)


def test_errors_are_the_share_of_all_that_is_not_ok():
    monitor = monitor_with([(6, 0.1, "ok"), (7, 0.1, "fail"), (8, 0.1, "unknown"), (9, 0.1, "ok")])
    assert value(monitor, "kv.errors < 1%") == pytest.approx(0.5)


def test_the_rate_is_per_second_of_the_window():
    monitor = monitor_with([(6 + n / 10, 0.01, "ok") for n in range(20)])
    assert value(monitor, "kv.rate > 1/s") == pytest.approx(4.0)


def test_nothing_measured_is_not_a_number_and_holds_for_no_condition():
    silent = value(monitor_with(), "kv.latency.p50 < 1s")
    assert math.isnan(silent)
    assert not Condition.parse("kv.latency.p50 < 1s").holds(silent)
    assert not Condition.parse("kv.latency.p50 > 1s").holds(silent)


def test_a_signal_of_many_hosts_counts_as_its_worst_host():
    samples = [
        (9, Sample("raft.commit_time", 0.01, host="consul-1")),
        (9, Sample("raft.commit_time", 0.5, host="consul-2")),
    ]
    assert value(monitor_with(samples=samples), "raft.commit_time < 100ms") == pytest.approx(0.5)


def test_the_majoritys_view_counts_over_each_servers_own():
    samples = [(9, Sample("raft.leader", 1.0, "consul-1")), (9, Sample("raft.leader", 0.0, host="consul-2", ok=False))]
    monitor = monitor_with(samples=samples)
    assert value(monitor, "raft.leader == 1") == 1.0
    assert monitor.leader == "consul-1"


def test_a_leader_that_is_lost_is_no_longer_shown():
    samples = [(8, Sample("raft.leader", 1.0, "consul-1")), (9, Sample("raft.leader", 0.0, "no majority", ok=False))]
    assert monitor_with(samples=samples).leader == ""


def test_what_is_old_is_forgotten():
    monitor = monitor_with([(1, 0.1, "ok"), (500, 0.2, "ok")])
    assert value(monitor, "kv.rate > 1/s", now_s=500, window_s=1000) == pytest.approx(1 / 1000)


def test_a_tick_has_each_loads_last_second():
    monitor = monitor_with([(8, 5.0, "ok"), (9.5, 0.1, "ok"), (9.6, 0.3, "fail")])
    tick = monitor.tick(10 * SECOND)["kv"]
    assert tick["rate"] == 2
    assert tick["p50_s"] == pytest.approx(0.2)
    assert tick["errors"] == pytest.approx(0.5)
