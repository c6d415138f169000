"""What the engine knows of the last seconds: windows, statistics, and what was not measured."""

import math
from dataclasses import asdict

import pytest

from hashidrill.core.engine import monitor as engine_monitor
from hashidrill.core.engine.monitor import KEEP_S, Monitor, longest_window_s
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.model import Experiment
from hashidrill.core.protocols.abc import Operation, Sample

S = 1_000_000_000


@pytest.fixture
def monitor():
    return Monitor(["kv-writes", "kv-reads"])


def done(monitor, *, at_s, latency_s=0.01, outcome="ok", load="kv-writes"):
    end_ns = int(at_s * S)
    intended_ns = end_ns - int(latency_s * S)
    monitor.operation(Operation(load, intended_ns, end_ns, end_ns, outcome))


def reading(monitor, text, *, now_s=10, window_s=5.0):
    return monitor.reading(Condition.parse(text), int(now_s * S), window_s)


def value(monitor, text, **when):
    return reading(monitor, text, **when).figure


def surely(monitor, text, **when):
    return reading(monitor, text, **when).surely(Condition.parse(text))


def trips(monitor, text, **when):
    """Whether it trips as a guardrail."""
    return reading(monitor, text, **when).maybe(Condition.parse(text))


def looked(monitor, signal, start_s, end_s, figure, *hosts):
    """A look each second; None: it failed."""
    for second in range(start_s, end_s):
        said = figure(second) if callable(figure) else figure
        for host in hosts or ("",):
            monitor.sample(second * S, Sample(signal, said, "", host, ok=said is not None))


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0), ("mean", 0.505)],
)
def test_statistics_of_latency(monitor, statistic, expected):
    for n in range(1, 101):
        done(monitor, at_s=9, latency_s=n / 100)
    assert value(monitor, f"kv-writes.latency.{statistic} < 1s") == pytest.approx(expected)


def test_latency_counts_from_the_moment_that_an_operation_was_due(monitor):
    """Not from its start: a stall of the load's client would hide the stall of the datacenter."""
    monitor.operation(Operation("kv-writes", 5 * S, 8 * S, 9 * S, "ok"))
    assert value(monitor, "kv-writes.latency.max < 1s") == pytest.approx(4.0)


def test_a_window_holds_what_ended_in_it_and_nothing_older(monitor):
    done(monitor, at_s=4.9, latency_s=3)
    done(monitor, at_s=5.0, latency_s=1)
    done(monitor, at_s=9.9, latency_s=2)
    assert value(monitor, "kv-writes.latency.max < 1s") == pytest.approx(2.0)
    assert value(monitor, "kv-writes.rate > 1/s") == pytest.approx(2 / 5)
    assert value(monitor, "kv-writes.latency.max < 1s", window_s=6.0) == pytest.approx(3.0)


def test_errors_are_the_share_of_what_was_not_acknowledged(monitor):
    for outcome in ("ok", "ok", "fail", "unknown"):
        done(monitor, at_s=9, outcome=outcome)
    assert value(monitor, "kv-writes.errors < 1%") == pytest.approx(0.5)


@pytest.mark.lie
@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_a_failure_is_infinitely_slow_however_quickly_it_came(monitor, outcome):
    for n in range(100):
        done(monitor, at_s=9, latency_s=0.001, outcome="ok" if n < 40 else outcome)
    measured = {what: value(monitor, f"kv-writes.latency.{what} < 1s") for what in ("p50", "p90", "max", "mean")}
    assert set(measured.values()) == {math.inf}
    assert surely(monitor, "kv-writes.latency.p50 > 1s")


@pytest.mark.lie
def test_failures_are_no_rate(monitor):
    """50 refused writes a second are 0 writes a second; what a client sends is another matter."""
    for n in range(250):
        done(monitor, at_s=5 + n / 50, outcome="fail")
    assert value(monitor, "kv-writes.rate < 10/s") == 0


def test_one_load_does_not_count_for_another(monitor):
    done(monitor, at_s=9, load="kv-reads", outcome="fail")
    assert math.isnan(value(monitor, "kv-writes.errors < 1%"))
    assert value(monitor, "kv-reads.errors < 1%") == 1.0


@pytest.mark.parametrize("text", ["kv-writes.latency.p50 < 1s", "kv-writes.errors < 1%", "raft.commit_time < 1s"])
def test_what_was_not_measured_is_nan_and_holds_no_condition(monitor, text):
    assert math.isnan(value(monitor, text))
    assert not surely(monitor, text)


def test_no_operations_are_a_rate_of_nothing(monitor):
    assert value(monitor, "kv-writes.rate < 1/s") == 0


def test_a_signal_of_several_hosts_counts_as_its_worst_host(monitor):
    for host, seconds in (("consul-1", 0.1), ("consul-2", 0.5), ("consul-2", 0.7), ("consul-3", 0.2)):
        monitor.sample(9 * S, Sample("disk.fsync", seconds, host=host))
    assert value(monitor, "disk.fsync < 1s") == pytest.approx(0.6)


def test_the_view_of_the_majority_goes_before_those_of_hosts(monitor):
    monitor.sample(9 * S, Sample("raft.leader", 1.0, "consul-1"))
    monitor.sample(9 * S, Sample("raft.leader", 0.0, host="consul-2"))
    assert value(monitor, "raft.leader == 1") == 1.0


def test_a_failed_sample_holds_no_condition(monitor):
    """A sick host is not a well one because it gave no figure."""
    monitor.sample(9 * S, Sample("disk.fsync", 0.001, host="consul-1"))
    monitor.sample(9.5 * S, Sample("disk.fsync", None, "no answer", "consul-1", ok=False))
    assert not surely(monitor, "disk.fsync < 1s")
    assert str(reading(monitor, "disk.fsync < 1s")) == "measured 1ms; 1 looks failed"


@pytest.mark.parametrize("sick", ["consul-1", "consul-2"])
def test_a_host_that_was_not_measured_is_neither_below_a_limit_nor_hides_one_that_is_above(monitor, sick):
    """Whichever of them comes first: a steady state needs all hosts, a guardrail only one."""
    for host in ("consul-1", "consul-2"):
        slow = Sample("disk.fsync", 2.0, host=host)
        monitor.sample(9 * S, Sample("disk.fsync", None, "no answer", host, ok=False) if host == sick else slow)
    assert not surely(monitor, "disk.fsync < 5s")
    assert surely(monitor, "disk.fsync > 1s")
    assert value(monitor, "disk.fsync > 1s") == 2.0


@pytest.mark.lie
class TestAGuardrailFailsSafe:
    """The lie: with two of three servers paused every look failed, which compared false, and nothing tripped."""

    AUTOPILOT = "consul.autopilot_healthy < 1 for 5s"

    def test_trips_when_every_look_failed_over_its_window(self, monitor):
        looked(monitor, "consul.autopilot_healthy", 0, 5, 1.0)
        looked(monitor, "consul.autopilot_healthy", 5, 11, None)
        assert not trips(monitor, self.AUTOPILOT, now_s=8)
        assert trips(monitor, self.AUTOPILOT, now_s=10)
        said = str(reading(monitor, self.AUTOPILOT))
        assert said == "unknown: no look at consul.autopilot_healthy succeeded for 5s"

    def test_trips_when_its_probe_is_silent(self, monitor):
        looked(monitor, "consul.autopilot_healthy", 0, 4, 1.0)
        assert trips(monitor, self.AUTOPILOT)

    @pytest.mark.parametrize(("figure", "tripped"), [(0.9, True), (0.1, False)])
    def test_a_failed_look_mutes_no_other_one(self, monitor, figure, tripped):
        looked(monitor, "web.errors-seen", 5, 10, lambda second: figure if second % 2 else None)
        assert trips(monitor, "web.errors-seen > 0.5 for 5s") is tripped

    @pytest.mark.parametrize("text", ["disk.fsync > 1s", "disk.fsync < 1ms"])
    def test_a_host_that_cannot_be_seen_trips_it_unless_a_fault_is_in_force_there(self, monitor, text):
        monitor = Monitor(["kv-writes"], keep_s=15)
        looked(monitor, "disk.fsync", 0, 20, 0.1, "consul-1")
        looked(monitor, "disk.fsync", 0, 2, 0.1, "consul-2")
        looked(monitor, "disk.fsync", 2, 20, None, "consul-2")
        assert not trips(monitor, text, now_s=16), "its probe may wait for 15 s"
        assert trips(monitor, text, now_s=19)
        monitor.faulted(["consul-2"], 12 * S)
        assert not trips(monitor, text, now_s=19)

    def test_what_only_the_leader_reports_needs_no_other_host(self, monitor):
        looked(monitor, "raft.commit_time", 0, 10, 0.1, "consul-1")
        looked(monitor, "raft.commit_time", 0, 10, None, "consul-2")
        assert not trips(monitor, "raft.commit_time > 1s")

    def test_a_load_of_which_nothing_is_due_trips_none_and_a_silent_generator_does(self, monitor):
        looked(monitor, "generator.cpu", 0, 10, 0.3)
        assert not trips(monitor, "kv-writes.errors > 50%")
        assert trips(monitor, "kv-writes.errors > 50%", now_s=15)
        assert "generator was silent" in str(reading(monitor, "kv-writes.errors > 50%", now_s=15))

    def test_a_level_lasts_until_it_is_told_again(self, monitor):
        monitor.sample(1 * S, Sample("kv-writes.level", 3.0))
        assert trips(monitor, "kv-writes.level > 200%", now_s=10)
        assert not trips(monitor, "kv-writes.level > 400%", now_s=10)


def test_samples_that_are_heard_of_late_stay_where_they_belong(monitor):
    for at_s, seconds in ((9.0, 0.3), (1.0, 5.0), (8.0, 0.1)):
        monitor.sample(int(at_s * S), Sample("disk.fsync", seconds, host="consul-1"))
    assert value(monitor, "disk.fsync < 1s") == pytest.approx(0.2)


def test_no_leader_is_a_value_that_a_guardrail_can_name(monitor):
    for second in range(6, 10):
        monitor.sample(second * S, Sample("raft.leader", 0.0, "no majority", ok=False))
    assert value(monitor, "raft.leader < 1") == 0
    assert not surely(monitor, "raft.leader == 1")


def test_the_leader_is_the_majoritys(monitor):
    assert monitor.leaders == {}
    monitor.sample(1 * S, Sample("raft.leader", 1.0, "consul-2"))
    monitor.sample(1 * S, Sample("raft.leader", 1.0, "consul-3", "consul-3"))
    assert monitor.leaders == {"leader": "consul-2"}
    monitor.sample(2 * S, Sample("raft.leader", 0.0, ok=False))
    assert monitor.leaders == {"leader": ""}


def test_a_live_view_gets_the_highest_of_all_hosts_or_what_the_majority_says(monitor):
    for host, seconds in (("consul-1", 0.5), ("consul-2", 0.1)):
        monitor.sample(1 * S, Sample("disk.fsync", seconds, host=host))
    monitor.sample(1 * S, Sample("raft.lag", 9.0, host="consul-1"))
    monitor.sample(1 * S, Sample("raft.lag", 2.0))
    assert monitor.probes(2 * S) == {"disk.fsync": 0.5, "raft.lag": 2.0}


def test_a_live_view_is_told_of_no_sample_that_failed_or_is_old(monitor):
    monitor.sample(1 * S, Sample("disk.fsync", 0.5, host="consul-1"))
    monitor.sample(5 * S, Sample("disk.fsync", 0.1, host="consul-2"))
    monitor.sample(5 * S, Sample("process.cpu", None, ok=False, host="consul-1"))
    assert monitor.probes(7 * S) == {"disk.fsync": 0.1}
    assert monitor.probes(11 * S) == {}


def test_what_is_older_than_the_longest_window_is_forgotten_in_time():
    """Kept for as long as a condition asks for, and never for more than twice that."""
    monitor = Monitor(["kv-writes"], keep_s=300)
    for second in range(2000):
        done(monitor, at_s=second)
        monitor.sample(second * S, Sample("disk.fsync", 0.1, host="consul-1"))
        assert len(monitor._operations["kv-writes"]) <= 603
    assert value(monitor, "kv-writes.rate < 1/s", now_s=1999, window_s=300) == pytest.approx(301 / 300)
    assert len(monitor._samples["disk.fsync"]) == 301


def test_conditions_of_one_look_share_a_window_and_read_no_more_than_is_in_it(monkeypatch):
    """Each of them read all that was kept, 120 s of operations four times a tick."""
    monitor, looked = Monitor(["kv-writes"], keep_s=120), []
    for n in range(12_000):
        done(monitor, at_s=n / 100)
    bisect = engine_monitor.bisect_left

    def counted(column, since_ns):
        looked.append(len(column) - bisect(column, since_ns))
        return bisect(column, since_ns)

    monkeypatch.setattr(engine_monitor, "bisect_left", counted)
    for text in ("kv-writes.latency.p50 < 1s", "kv-writes.latency.p99 < 1s", "kv-writes.errors < 1%"):
        assert value(monitor, text, now_s=120) < 1
    assert looked == [500], "one window of 5 s, of 12,000 operations"
    value(monitor, "kv-writes.rate > 1/s", now_s=120.5)
    assert looked == [500, 450], "a look later is another one"


def test_a_window_longer_than_what_is_kept_is_a_mistake_of_ours(monitor):
    with pytest.raises(ValueError, match="the last 10s are kept, not 300s"):
        value(monitor, "kv-writes.rate < 1/s", window_s=300)


def test_the_longest_window_that_any_condition_asks_for_is_kept():
    document = {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": "long", "title": "Long windows", "why": "Each place in which a condition may stand"},
        "load": {"w": {"kind": "consul.kv.write", "rate": "50/s"}},
        "steady_state": {"for": "5s", "require": ["w.errors < 1%"]},
        "method": [{"fault": "noop", "on": "consul:leader", "for": "1s"}],
        "expect": [{"no_acknowledged_write_lost": {"load": "w"}}],
    }
    ramp = {"by": "10%", "every": "70s", "while": ["w.errors < 1%", "w.errors < 2% for 80s"]}
    more = [
        ({}, KEEP_S),
        ({"steady_state": {"for": "40s", "require": ["w.errors < 1%"]}}, 40),
        ({"steady_state": {"for": "5s", "require": ["w.errors < 1% for 50s"]}}, 50),
        ({"guardrails": ["w.errors > 5%", "w.rate < 10/s for 300s"]}, 300),
        ({"load": {"w": {"kind": "consul.kv.write", "rate": "50/s", "profile": {"ramp": ramp}}}}, 80),
    ]
    longest = [longest_window_s(Experiment.model_validate(document | other)) for other, _ in more]
    assert longest == [wanted for _, wanted in more]


def test_a_tick_shows_the_last_second_of_every_load(monitor):
    done(monitor, at_s=8.5, latency_s=9)
    for n in range(10):
        done(monitor, at_s=9.5, latency_s=0.02, outcome="fail" if n == 0 else "ok")
    table = monitor.tick(10 * S)
    shown = asdict(table["kv-writes"])
    assert (shown.pop("waiting"), shown.pop("waited_s")) == (0, None)
    assert shown == pytest.approx({"rate": 9.0, "p50_s": 0.02, "p99_s": math.inf, "errors": 0.1})
    assert table["kv-reads"].rate == 0
    assert table["kv-reads"].p50_s is None


def test_a_tick_says_what_waits_and_does_not_call_it_an_error(monitor):
    """A guardrail takes who has waited too long for an error; an operator must see that nothing has failed."""
    monitor.waiting("kv-writes", [4 * S + n for n in range(42)] + [int(9.9 * S)], [])
    shown = monitor.tick(10 * S)["kv-writes"]
    assert (shown.waiting, shown.waited_s) == (42, 6.0), "one of 100 ms is on its way as usual"
    assert shown.errors is None
    done(monitor, at_s=9.5, latency_s=0.02)
    assert monitor.tick(10 * S)["kv-writes"].errors == 0
    done(monitor, at_s=9.6, latency_s=0.02, outcome="fail")
    assert monitor.tick(10 * S)["kv-writes"].errors == pytest.approx(0.5)
    guarded = Condition.parse("kv-writes.errors > 90%")
    assert monitor.reading(guarded, 10 * S, 5.0).maybe(guarded)


def test_what_is_slower_than_a_second_as_a_rule_is_not_waiting_until_it_takes_twice_as_long(monitor):
    done(monitor, at_s=9.5, latency_s=4)
    monitor.waiting("kv-writes", [4 * S], [])
    assert monitor.tick(10 * S)["kv-writes"].waiting == 0
    assert monitor.tick(int(12.4 * S))["kv-writes"].waiting == 1


def test_a_live_view_has_the_servers_that_the_first_client_agents_ask(monitor):
    for number in range(1, 6):
        monitor.sample(S, Sample("consul.asks", 1.0, "consul-2, consul-1", f"client-{number}"))
    monitor.sample(2 * S, Sample("consul.asks", None, "no answer within 1s", "client-1", ok=False))
    monitor.sample(2 * S, Sample("consul.asks", 0.0, "", "client-2"))
    assert monitor.asked == {"client-1": "asks an unknown server", "client-2": "", "client-3": "asks consul-2"}
    assert monitor.leaders == {}
