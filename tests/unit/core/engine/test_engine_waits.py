"""`after`: a step comes after a fault that takes longer than planned, and everything else stands still meanwhile."""

import anyio
import pytest

from engine_game import PROOF_S, Game, S, slow_observers
from hashidrill.core.errors import FaultError
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.faults.process import ProcessPause

APPLY_S = 20.0


@pytest.fixture(autouse=True)
def slow_on_one_host(monkeypatch):
    """Applying a fault on consul-1 takes APPLY_S, as a reconfiguration does on a small machine."""
    slow_observers(monkeypatch)
    apply = DiskLatency.apply

    async def slowly(self, undo):
        if undo["host"] == "consul-1":
            await anyio.sleep(APPLY_S)
        await apply(self, undo)

    monkeypatch.setattr(DiskLatency, "apply", slowly)


def slow(host, **more):
    return {"fault": "disk.latency", "on": f"host:{host}", "with": {"delay": "500ms"}, "at": "1s", "for": "10s", **more}


def named(host, **more):
    return slow(host, name="slow-one", **more)


LATER = {"mark": "later", "at": "5s", "for": "2s", "after": ["slow-one"]}


def times(game, *events):
    return [(e.event, round(game.since_method_s(e.t_ns), 6)) for e in game.journal if e.event in events]


def played(tmp_path, method):
    game = Game(tmp_path, method)
    assert game.run() == "complete"
    return game


@pytest.mark.lie
def test_a_later_step_waits_until_the_fault_is_proven(tmp_path):
    game = played(tmp_path, [named("consul-1"), LATER])
    proven = 1 + APPLY_S + PROOF_S
    assert times(game, "fault.proven", "mark.begin", "mark.end") == [
        ("fault.proven", proven),
        ("mark.begin", proven),
        ("mark.end", proven + 2),
    ]
    stops, goes = (e for e in game.journal if e.event.startswith("clock."))
    assert (game.since_method_s(stops.t_ns), stops.data["waits_for"]) == (pytest.approx(5.0), ["slow-one"])
    assert goes.data["at_s"] == 5.0
    assert goes.data["stood_ns"] / S == pytest.approx(proven - 5)


def test_without_it_steps_go_by_the_clock_alone(tmp_path):
    game = played(tmp_path, [named("consul-1"), {**LATER, "after": []}])
    assert times(game, "mark.begin", "mark.end", "clock.stops") == [("mark.begin", 5.0), ("mark.end", 7.0)]


def test_a_fault_that_is_in_time_stops_nothing(tmp_path):
    game = played(tmp_path, [named("consul-2"), LATER])
    assert times(game, "mark.begin", "clock.stops") == [("mark.begin", 5.0)]


def test_steps_keep_their_distance_and_what_is_in_force_lasts_longer_by_as_much(tmp_path):
    other = slow("consul-2", at="0s", **{"for": "6s"})
    last = slow("consul-3", at="8s", **{"for": "2s"})
    game = played(tmp_path, [named("consul-1"), LATER, other, last])
    stood = 1 + APPLY_S + PROOF_S - 5
    assert game.times_s("fault.intent")["3-disk.latency-consul-3"] == pytest.approx(8 + stood)
    reverted = game.times_s("fault.reverted")
    assert reverted["2-disk.latency-consul-2"] == pytest.approx(6 + stood)
    assert reverted["0-disk.latency-consul-1"] == pytest.approx(1 + APPLY_S + 10)


@pytest.mark.lie
def test_a_step_at_a_time_when_the_fault_was_to_be_over_comes_after_its_end(tmp_path):
    """Although the clock stands still: what is late and waited for goes on by real time."""
    during = {"mark": "during", "at": "8s", "for": "1s"}
    after = {"mark": "afterwards", "at": "12s", "for": "1s", "after": ["slow-one"]}
    game = played(tmp_path, [named("consul-1"), during, after])
    begins = {e.data["mark"]: game.since_method_s(e.t_ns) for e in game.journal if e.event == "mark.begin"}
    gone = game.times_s("fault.gone")["0-disk.latency-consul-1"]
    assert begins == {"during": pytest.approx(8.0), "afterwards": pytest.approx(gone)}
    assert gone == pytest.approx(1 + APPLY_S + 10, abs=1)


@pytest.mark.lie
def test_a_fault_that_waits_for_its_host_is_waited_for(tmp_path, monkeypatch):
    """Two faults of one agent follow each other, the first of them late; a third step comes after the second."""
    apply = ProcessPause.apply

    async def late(self, undo):
        await anyio.sleep(4.0)
        await apply(self, undo)

    monkeypatch.setattr(ProcessPause, "apply", late)
    first = {"fault": "process.pause", "on": "host:consul-1", "at": "0s", "for": "4s"}
    second = {"name": "slow-one", "fault": "process.pause", "on": "host:consul-1", "at": "4.5s", "for": "5s"}
    game = played(tmp_path, [first, second, {**LATER, "at": "6s"}])
    [(_, begins)], proven = times(game, "mark.begin"), game.times_s("fault.proven")
    assert begins == pytest.approx(proven["1-process.pause-consul-1"])
    assert proven["1-process.pause-consul-1"] > game.times_s("fault.gone")["0-process.pause-consul-1"] >= 8


def test_all_its_hosts_are_waited_for(tmp_path):
    game = played(tmp_path, [{**named("x"), "on": "consul:servers"}, LATER])
    assert times(game, "mark.begin") == [("mark.begin", 1 + APPLY_S + PROOF_S)]


def test_a_fault_that_cannot_be_applied_ends_the_wait_and_the_method(tmp_path, monkeypatch):
    async def fails(_self, _undo):
        await anyio.sleep(30)
        raise FaultError("the disk says no")

    monkeypatch.setattr(DiskLatency, "apply", fails)
    game = Game(tmp_path, [named("consul-1"), LATER])
    assert game.run() == "fault"
    assert "the disk says no" in game.error
    assert "mark.begin" not in game.events


def test_the_loads_are_told_and_what_is_shown_is_later(tmp_path):
    game = played(tmp_path, [named("consul-1"), slow("consul-2", at="0s", **{"for": "6s"}), LATER])
    stood = 1 + APPLY_S + PROOF_S - 5
    told = [(what, game.since_method_s(t_ns)) for what, t_ns in game.traffic.told]
    assert told == [("begin", 0.0), ("hold", pytest.approx(5.0)), ("go", pytest.approx(5 + stood))]
    shown = next(tick for tick in game.ticks if game.since_method_s(tick.t_ns) >= 22)
    [ends_ns] = [each.ends_ns for each in shown.faults if each.host == "consul-2"]
    ends_s = [game.since_method_s(each) for each in (shown.phase_ends_ns, ends_ns)]
    assert ends_s == pytest.approx([11 + stood, 6 + stood])
