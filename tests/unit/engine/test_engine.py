"""The engine on a fake datacenter, in virtual time: steps at their times, faults that follow, guardrails."""

from __future__ import annotations

import anyio
import pytest

from engine_game import PROOF_S, SLOW, Game, S, beside, feed, offer, slow_observers
from hashidrill.abc import Operation, Sample
from hashidrill.capabilities import DiskControl
from hashidrill.engine import run as engine
from hashidrill.errors import FaultError, SteadyStateError
from hashidrill.faults.disk import DiskLatency
from hashidrill.faults.process import ProcessKill
from hashidrill.loads.schedule import Reply


@pytest.fixture(autouse=True)
def _observing_takes_time(monkeypatch):
    slow_observers(monkeypatch)


# the method


def test_a_step_starts_at_its_time_and_is_held_for_its_length_from_its_proof_on(tmp_path):
    game = Game(tmp_path, [{**SLOW, "at": "3s"}])
    assert game.play(engine._method) == ""
    [fault_id] = game.times_s("fault.intent")
    assert fault_id == "0-disk.latency-consul-1"
    assert game.times_s("fault.intent")[fault_id] == pytest.approx(3)
    proven = game.times_s("fault.proven")[fault_id]
    assert proven == pytest.approx(3 + PROOF_S)
    assert game.times_s("fault.reverted")[fault_id] == pytest.approx(proven + 10)
    assert game.world.hosts["consul-1"].disk_rules == {}


def test_a_selector_of_several_hosts_puts_one_fault_on_each_at_once(tmp_path):
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers"}])
    game.play(engine._method)
    assert sorted(game.times_s("fault.gone")) == [f"0-disk.latency-consul-{n}" for n in (1, 2, 3)]
    assert set(game.times_s("fault.intent").values()) == {0.0}
    assert {entry.data["step"] for entry in game.journal if entry.event == "fault.intent"} == {0}


def test_steps_overlap_as_their_times_say(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "6s"}, {**SLOW, "on": "host:consul-3", "at": "2s", "for": "1s"}])
    game.play(engine._method)
    gone = game.times_s("fault.gone")
    assert gone["1-disk.latency-consul-3"] < gone["0-disk.latency-consul-1"]


def test_a_fault_of_an_agent_waits_for_the_one_before_it_that_came_late(tmp_path, monkeypatch):
    """By their times the one is over when the other begins; but its proof took 3 s, and its agent was not back yet."""
    verify = ProcessKill.verify

    async def late(self, undo, *, present):
        await anyio.sleep(3)
        return await verify(self, undo, present=present)

    monkeypatch.setattr(ProcessKill, "verify", late)
    kill = {"fault": "process.kill", "on": "host:consul-2", "for": "5s"}
    pause = {"fault": "process.pause", "on": "host:consul-2", "at": "6s", "for": "1s"}
    elsewhere = {**pause, "on": "host:consul-3"}
    game = Game(tmp_path, [kill, pause, elsewhere])
    assert game.play(engine._method) == ""
    killed, paused, other = "0-process.kill-consul-2", "1-process.pause-consul-2", "2-process.pause-consul-3"
    began, gone = game.times_s("fault.intent"), game.times_s("fault.gone")
    assert set(gone) == {killed, paused, other}
    assert gone[killed] == pytest.approx(11)
    assert began[paused] >= gone[killed]
    assert began[other] == pytest.approx(6)
    targets = {entry.data["fault_id"]: entry.data["target"] for entry in game.journal if entry.event == "fault.intent"}
    now = game.world.hosts["consul-2"].process.reference
    assert targets[paused]["reference"] == now != targets[killed]["reference"]


def test_an_election_that_goes_on_is_waited_for(tmp_path):
    game = Game(tmp_path, [SLOW])
    game.world.consul.leader = ""

    async def elect():
        await anyio.sleep(4)
        game.world.consul.leader = "consul-2"

    game.play(lambda running: beside(elect, lambda: engine._method(running)))
    [when] = game.times_s("fault.intent").values()
    assert 4 <= when < 4.5
    assert list(game.times_s("fault.intent")) == ["0-disk.latency-consul-2"]


def test_a_selector_that_matches_nobody_in_time_is_an_error_that_says_what_was_seen(tmp_path):
    game = Game(tmp_path, [SLOW])
    game.world.consul.leader = ""
    with pytest.raises(BaseExceptionGroup) as raised:
        game.play(engine._method)
    outcome, error = engine._outcome(raised.value)
    assert outcome == "fault"
    assert "waited 10s for consul:leader to match a host" in error
    assert "no server is known to a majority" in error


def test_one_unproven_fault_reverts_the_others_and_decides_the_outcome(tmp_path, monkeypatch):
    apply = DiskLatency.apply

    async def idle_on_consul_2(self, undo):
        if undo["host"] != "consul-2":
            await apply(self, undo)

    monkeypatch.setattr(DiskLatency, "apply", idle_on_consul_2)
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers", "for": "60s"}])
    with pytest.raises(BaseExceptionGroup) as raised:
        game.play(engine._method)
    outcome, error = engine._outcome(raised.value)
    assert (outcome, "disk.latency on consul-2: not proven in force" in error) == ("fault", True)
    assert len(game.times_s("fault.gone")) == 3
    assert not any(host.disk_rules for host in game.world.hosts.values())
    assert game.journal[-1].t_ns < 10 * S


def test_a_host_that_lacks_what_a_fault_requires_is_named_and_left_alone(tmp_path):
    game = Game(tmp_path, [{**SLOW, "on": "host:consul-2"}])
    del game.world.hosts["consul-2"].parts[DiskControl]
    with pytest.raises(BaseExceptionGroup) as raised:
        game.play(engine._method)
    outcome, error = engine._outcome(raised.value)
    assert outcome == "fault"
    assert "disk.latency on consul-2: nothing was applied: consul-2 lacks DiskControl (slow or fail the" in error
    assert "fault.intent" not in game.events


def test_cancelling_the_run_reverts_what_is_in_force(tmp_path):
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers", "for": "60s"}])

    async def cancelled(running):
        with anyio.move_on_after(5):
            await engine._method(running)

    game.play(cancelled)
    assert len(game.times_s("fault.gone")) == 3
    assert max(game.times_s("fault.gone").values()) == pytest.approx(5 + PROOF_S, abs=0.1)


def test_what_is_in_force_is_told_while_it_is(tmp_path):
    game = Game(tmp_path, [SLOW])
    seen = {}

    async def look(running):
        async def at_five():
            await anyio.sleep(5)
            seen["then"] = list(running.in_force.values())

        await beside(at_five, lambda: engine._method(running))
        seen["after"] = dict(running.in_force)

    game.play(look)
    [fault] = seen["then"]
    assert (fault.kind, fault.host) == ("disk.latency", "consul-1")
    assert fault.ends_ns == pytest.approx((10 + PROOF_S) * S)
    assert seen["after"] == {}


# faults that follow a role


def follow(tmp_path, moves, length="20s"):
    """The game after a following fault, while the leader moves: `moves` are (seconds, name)."""
    game = Game(tmp_path, [{**SLOW, "follow": True, "for": length}])
    held = []

    async def elections():
        begun = anyio.current_time()
        for at_s, name in moves:
            await anyio.sleep_until(begun + at_s)
            game.world.consul.leader = name

    async def watch():
        while True:
            await anyio.sleep(0.5)
            held.append(sorted(name for name, host in game.world.hosts.items() if host.disk_rules))

    async def act(running):
        async with anyio.create_task_group() as group:
            group.start_soon(elections)
            group.start_soon(watch)
            await engine._method(running)
            group.cancel_scope.cancel()

    game.play(act)
    return game, held


def test_a_fault_that_follows_moves_with_the_role(tmp_path):
    game, held = follow(tmp_path, [(5, "consul-3"), (12, "consul-1")])
    ids = [entry.data["fault_id"] for entry in game.journal if entry.event == "fault.intent"]
    assert ids == [
        "0-disk.latency-consul-1-move0", "0-disk.latency-consul-3-move1", "0-disk.latency-consul-1-move2",
    ]  # fmt: skip
    applied, reverted = game.times_s("fault.applied"), game.times_s("fault.reverted")
    assert 5 <= applied[ids[1]] <= 6
    assert 5 <= reverted[ids[0]] <= 6
    assert 12 <= reverted[ids[1]] <= 13
    assert set(game.times_s("fault.gone")) == set(ids)
    assert ["consul-3"] in held
    assert not any(host.disk_rules for host in game.world.hosts.values())


def test_a_fault_that_follows_lasts_for_its_length_in_all_however_often_it_moves(tmp_path):
    game, _ = follow(tmp_path, [(5, "consul-3"), (12, "consul-2")])
    assert max(game.times_s("fault.reverted").values()) == pytest.approx(20, abs=1)


def test_a_fault_that_follows_stays_where_it_is_while_nobody_has_the_role(tmp_path):
    game, held = follow(tmp_path, [(5, ""), (9, "consul-2")])
    assert held[12] == held[16] == ["consul-1"]
    assert 9 <= game.times_s("fault.reverted")["0-disk.latency-consul-1-move0"] <= 10


def test_a_role_that_moves_while_the_fault_is_being_proven_costs_that_place_alone(tmp_path, monkeypatch):
    verify = DiskLatency.verify

    async def slowly(self, undo, *, present):
        await anyio.sleep(3)
        return await verify(self, undo, present=present)

    monkeypatch.setattr(DiskLatency, "verify", slowly)
    game, _ = follow(tmp_path, [(1, "consul-3")])
    first, second = "0-disk.latency-consul-1-move0", "0-disk.latency-consul-3-move1"
    assert list(game.times_s("fault.moved")) == [first]
    assert list(game.times_s("fault.proven")) == [second]
    assert list(game.times_s("fault.still")) == [second]
    assert set(game.times_s("fault.gone")) == {first, second}


def test_a_proof_that_fails_because_the_role_has_moved_is_no_failure(tmp_path, monkeypatch):
    """The engine looks twice a second; a leader that is deposed by the fault may fail its proof before that."""
    game = Game(tmp_path, [{**SLOW, "follow": True, "for": "20s"}])
    apply = DiskLatency.apply

    async def deposed(self, undo):
        if undo["host"] == "consul-1":
            game.world.consul.leader = "consul-2"
            raise FaultError("consul-1: does not lead")
        await apply(self, undo)

    monkeypatch.setattr(DiskLatency, "apply", deposed)
    assert game.play(engine._method) == ""
    assert list(game.times_s("fault.moved")) == ["0-disk.latency-consul-1-move0"]
    assert list(game.times_s("fault.still")) == ["0-disk.latency-consul-2-move1"]


def test_a_proof_that_fails_where_the_role_still_is_ends_the_method(tmp_path, monkeypatch):
    async def idle(self, undo):
        return

    monkeypatch.setattr(DiskLatency, "apply", idle)
    game = Game(tmp_path, [{**SLOW, "follow": True}])
    with pytest.raises(BaseExceptionGroup) as raised:
        game.play(engine._method)
    assert engine._outcome(raised.value)[0] == "fault"


def test_a_role_that_comes_back_waits_until_the_host_is_free(tmp_path, monkeypatch):
    """Two of one fault on one host: the revert of the first would take away the second."""
    verify = DiskLatency.verify

    async def slow_to_go(self, undo, *, present):
        await anyio.sleep(PROOF_S if present else 4)
        return await verify(self, undo, present=present)

    monkeypatch.setattr(DiskLatency, "verify", slow_to_go)
    game, _ = follow(tmp_path, [(5, "consul-2"), (6.5, "consul-1")])
    first, again = "0-disk.latency-consul-1-move0", "0-disk.latency-consul-1-move2"
    assert game.times_s("fault.intent")[again] >= game.times_s("fault.gone")[first]


# loads that a search steers


def test_a_search_that_finds_nothing_ends_the_run_as_unfit_and_reverts_what_is_in_force(tmp_path):
    search = {"until": ["kv-writes.errors > 50%"], "from": "200%", "to": "400%", "every": "2s", "for": "50s"}
    load = {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s", "profile": {"search": search}}}
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], load=load)

    async def act(running):
        with pytest.raises(ExceptionGroup) as raised:
            await beside(feed(running, latency_s=lambda _: 0.01), lambda: engine._method(running))
        return engine._outcome(raised.value)

    outcome, error = game.play(act)
    assert outcome == "unfit"
    assert error.startswith("kv-writes was raised to 400%, and kv-writes.errors > 50% did not hold")
    assert game.events[-2:] == ["fault.reverted", "fault.gone"]
    assert game.journal[-1].t_ns / S < 10


# guardrails


def test_a_guardrail_that_trips_ends_the_method_and_reverts(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], guardrails=["kv-writes.latency.p50 > 1s for 4s"])
    slow_from_6_on = lambda t: 3.0 if t >= 6 else 0.01  # noqa: E731

    async def act(running):
        return await beside(feed(running, latency_s=slow_from_6_on), lambda: engine._method(running))

    tripped = game.play(act)
    assert tripped.startswith("guardrail kv-writes.latency.p50 > 1s for 4s: measured ")
    assert game.events.index("guardrail") < game.events.index("fault.reverted") < game.events.index("fault.gone")
    [when] = [entry.t_ns / S for entry in game.journal if entry.event == "guardrail"]
    assert 8 <= when <= 10.5  # half of the last four seconds, at the earliest


def test_a_guardrail_does_not_trip_over_what_was_before_the_method(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "8s"}], guardrails=["kv-writes.errors > 90% for 5s"])

    async def act(running):
        failed = Operation("kv-writes", 0, 0, running.clock.now_ns(), "fail")
        for _ in range(100):
            running.monitor.operation(failed)
        return await beside(feed(running, latency_s=lambda _: 0.01), lambda: engine._method(running))

    assert game.play(act) == ""
    assert "guardrail" not in game.events


async def hangs(_n, _key, _value):
    await anyio.sleep(3600)


def stalled(game, *, from_s=2.0, rate=50):
    """Play the method while every operation from `from_s` on waits for ever; when the guardrail tripped, in seconds."""

    async def act(running):
        async def perform(*operation):
            await (hangs(*operation) if running.clock.now_ns() >= from_s * S else anyio.sleep(0.01))
            return Reply("ok")

        return await beside(offer(running, perform, rate=rate), lambda: engine._method(running))

    assert game.play(act)
    [when] = [entry.t_ns / S for entry in game.journal if entry.event == "guardrail"]
    return when


@pytest.mark.parametrize(
    ("guardrail", "trips_within_s"),
    [
        ("kv-writes.latency.p50 > 1s", 3.5),
        ("kv-writes.latency.p99 > 1s for 2s", 1.5),
        ("kv-writes.latency.mean > 1s", 3.5),
        ("kv-writes.latency.max > 5s", 5.5),
        ("kv-writes.latency.p50 > 10s for 5s", 10.5),  # longer than its own window
        ("kv-writes.errors > 50%", 8),
        ("kv-writes.rate < 10/s", 5.5),
    ],
)
def test_a_guardrail_sees_a_total_stall_in_which_no_operation_ends(tmp_path, guardrail, trips_within_s):
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], guardrails=[guardrail])
    assert 3 <= stalled(game) <= 2 + trips_within_s


def test_a_slow_client_that_makes_one_request_in_ten_seconds_is_seen_to_hang(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], guardrails=["kv-writes.latency.p50 > 8s", "kv-writes.errors > 50%"])
    assert stalled(game, from_s=5, rate=0.1) <= 10 + 8.5


def test_a_guardrail_over_more_than_two_minutes_measures_them_all(tmp_path):
    """A rate over 300 s that was counted in the last 120 s alone would read 40% of what it is, and trip."""
    game = Game(tmp_path, [{**SLOW, "for": "320s"}], guardrails=["kv-writes.rate < 10/s for 300s"])

    async def act(running):
        return await beside(feed(running, latency_s=lambda _: 0.01, every_s=1 / 20), lambda: engine._method(running))

    assert game.play(act) == ""


def test_nothing_measured_trips_no_guardrail(tmp_path):
    game = Game(tmp_path, [SLOW], guardrails=["kv-writes.latency.p50 > 1us for 2s"])
    assert game.play(engine._method) == ""


# the steady state


def test_a_steady_state_holds_once_it_has_held_for_its_whole_length(tmp_path):
    game = Game(tmp_path, [SLOW])
    rough_start = lambda t: 2.0 if t < 3 else 0.01  # noqa: E731

    async def act(running):
        await beside(feed(running, latency_s=rough_start), lambda: engine._hold_steady_state(running))
        return running.clock.now_ns() / S

    assert 5 <= game.play(act) <= 6.5
    [steady] = [entry for entry in game.journal if entry.event == "steady"]
    assert steady.data["held"] is True
    assert "kv-writes.latency.p50 < 300ms (measured 0.01)" in steady.data["evidence"]


@pytest.mark.parametrize(("cores", "fits"), [(0.75, True), (0.85, False)])
def test_a_generator_that_is_busy_in_the_steady_state_has_nothing_left_for_the_method(tmp_path, cores, fits):
    game = Game(tmp_path, [SLOW])

    async def act(running):
        async def world():
            while True:
                running.sample(running.clock.now_ns(), Sample("generator.cpu", cores))
                now = running.clock.now_ns()
                running.monitor.operation(Operation("kv-writes", now, now, now, "ok"))
                await anyio.sleep(0.1)

        running.writer = Nowhere()
        await beside(world, lambda: engine._hold_steady_state(running))

    if fits:
        game.play(act)
    else:
        with pytest.raises(ExceptionGroup) as raised:
            game.play(act)
        outcome, error = engine._outcome(raised.value)
        assert (outcome, "uses 0.85 of its one core" in error) == ("unfit", True)


class Nowhere:
    def sample(self, t_ns, sample):
        pass


def test_a_load_whose_operations_hang_is_not_steady(tmp_path):
    """All that ended was quick; most did not end."""
    game = Game(tmp_path, [SLOW])

    async def act(running):
        async def perform(n, _key, _value):
            await anyio.sleep(0.01 if n % 3 == 0 else 3600)
            return Reply("ok")

        await beside(offer(running, perform, rate=50), lambda: engine._hold_steady_state(running))

    with pytest.raises(BaseExceptionGroup) as raised:
        game.play(act)
    assert engine._outcome(raised.value)[0] == "steady-state"


def test_a_steady_condition_with_a_time_of_its_own_is_judged_over_that(tmp_path):
    steady = {"for": "2s", "within": "30s", "require": ["kv-writes.errors < 1% for 8s"]}
    game = Game(tmp_path, [SLOW], steady_state=steady)

    async def act(running):
        early = lambda: running.clock.now_ns() < 3 * S  # noqa: E731

        async def perform(*_operation):
            return Reply("fail" if early() else "ok")

        await beside(offer(running, perform, rate=50), lambda: engine._hold_steady_state(running))
        return running.clock.now_ns() / S

    assert 10.9 <= game.play(act) <= 11.6


def test_a_steady_state_that_never_holds_is_given_up_with_what_was_measured(tmp_path):
    game = Game(tmp_path, [SLOW])

    async def act(running):
        await beside(feed(running, latency_s=lambda _: 2.0), lambda: engine._hold_steady_state(running))

    with pytest.raises(BaseExceptionGroup) as raised:
        game.play(act)
    outcome, error = engine._outcome(raised.value)
    assert outcome == "steady-state"
    assert "no fault was applied" in error
    assert "(measured 2)" in error
    assert game.journal[-1].data["held"] is False
    assert game.journal[-1].t_ns / S == pytest.approx(20, abs=0.3)


def test_a_load_that_does_nothing_is_not_steady(tmp_path):
    game = Game(tmp_path, [SLOW])
    with pytest.raises(SteadyStateError, match="measured nan"):
        game.play(engine._hold_steady_state)
