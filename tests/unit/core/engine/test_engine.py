"""Whole runs on a fake datacenter, in virtual time: steps at their times, faults that follow, guardrails."""

import anyio
import pytest

import engine_game
from engine_game import PROOF_S, SLOW, STEADY, Game, S, feed, offer, slow_observers
from hashidrill.core.errors import FaultError
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.faults.process import ProcessKill
from hashidrill.core.loads.schedule import Reply
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.protocols.capabilities import DiskControl


@pytest.fixture(autouse=True)
def _observing_takes_time(monkeypatch):
    slow_observers(monkeypatch)


# the method


def test_a_step_starts_at_its_time_and_is_held_for_its_length_its_proofs_included(tmp_path):
    game = Game(tmp_path, [{**SLOW, "at": "3s"}])
    assert game.run() == "complete"
    [fault_id] = game.times_s("fault.intent")
    assert fault_id == "0-disk.latency-consul-1"
    assert game.times_s("fault.intent")[fault_id] == pytest.approx(3)
    proven = game.times_s("fault.proven")[fault_id]
    assert proven == pytest.approx(3 + PROOF_S)
    assert game.times_s("fault.reverted")[fault_id] == pytest.approx(3 + 10)
    assert game.world.hosts["consul-1"].disk_rules == {}


def test_a_selector_of_several_hosts_puts_one_fault_on_each_at_once(tmp_path):
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers"}])
    assert game.run() == "complete"
    assert sorted(game.times_s("fault.gone")) == [f"0-disk.latency-consul-{n}" for n in (1, 2, 3)]
    assert list(game.times_s("fault.intent").values()) == pytest.approx([0, 0, 0])
    assert {entry.data["step"] for entry in game.journal if entry.event == "fault.intent"} == {0}


def test_steps_overlap_as_their_times_say(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "6s"}, {**SLOW, "on": "host:consul-3", "at": "2s", "for": "1s"}])
    assert game.run() == "complete"
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
    assert game.run() == "complete"
    killed, paused, other = "0-process.kill-consul-2", "1-process.pause-consul-2", "2-process.pause-consul-3"
    began, gone = game.times_s("fault.intent"), game.times_s("fault.gone")
    assert set(gone) == {killed, paused, other}
    assert gone[killed] == pytest.approx(9)
    assert began[paused] >= gone[killed]
    assert began[other] == pytest.approx(6)
    targets = {entry.data["fault_id"]: entry.data["target"] for entry in game.journal if entry.event == "fault.intent"}
    now = game.world.hosts["consul-2"].process.reference
    assert targets[paused]["reference"] == now != targets[killed]["reference"]


def test_an_election_that_goes_on_is_waited_for(tmp_path):
    game = Game(tmp_path, [SLOW])
    game.world.consul.leader = ""

    async def elect(_traffic):
        await anyio.sleep(4)
        game.world.consul.leader = "consul-2"

    assert game.run(during=elect) == "complete"
    [when] = game.times_s("fault.intent").values()
    assert 4 <= when < 4.5
    assert list(game.times_s("fault.intent")) == ["0-disk.latency-consul-2"]


def test_a_selector_that_matches_nobody_in_time_is_an_error_that_says_what_was_seen(tmp_path):
    game = Game(tmp_path, [SLOW])
    game.world.consul.leader = ""
    assert game.run() == "fault"
    assert "waited 10s for consul:leader to match a host" in game.error
    assert "no server is known to a majority" in game.error


def test_one_unproven_fault_reverts_the_others_and_decides_the_outcome(tmp_path, monkeypatch):
    apply = DiskLatency.apply

    async def idle_on_consul_2(self, undo):
        if undo["host"] != "consul-2":
            await apply(self, undo)

    monkeypatch.setattr(DiskLatency, "apply", idle_on_consul_2)
    game = Game(tmp_path, [{**SLOW, "on": "consul:servers", "for": "60s"}])
    assert game.run() == "fault"
    assert "disk.latency on consul-2: not proven in force" in game.error
    assert len(game.times_s("fault.gone")) == 3
    assert not any(host.disk_rules for host in game.world.hosts.values())
    assert game.journal[-1].t_ns < 10 * S


@pytest.mark.lie
def test_a_host_that_lacks_what_a_fault_requires_is_named_and_left_alone(tmp_path):
    game = Game(tmp_path, [{**SLOW, "on": "host:consul-2"}])
    del game.world.hosts["consul-2"].parts[DiskControl]
    assert game.run() == "fault"
    assert "disk.latency on consul-2: nothing was applied: consul-2 lacks DiskControl (slow or fail the" in game.error
    assert "fault.intent" not in game.events


def test_what_is_in_force_is_told_while_it_is(tmp_path):
    game = Game(tmp_path, [SLOW])
    assert game.run() == "complete"
    told = {game.since_method_s(tick.t_ns): tick.faults for tick in game.ticks}
    [fault] = next(faults for when_s, faults in told.items() if 5 <= when_s < 6)
    assert (fault.kind, fault.host) == ("disk.latency", "consul-1")
    assert game.since_method_s(fault.ends_ns) == pytest.approx(10)
    assert game.ticks[-1].phase == "recovery"
    assert {faults for when_s, faults in told.items() if not PROOF_S < when_s < 10 + PROOF_S} == {()}


# faults that follow a role


def follow(tmp_path, moves, length="20s"):
    """The game after a following fault, while the leader moves: `moves` are (seconds, name)."""
    game = Game(tmp_path, [{**SLOW, "follow": True, "for": length}])
    held = []

    async def elections(_traffic):
        begun = anyio.current_time()
        for at_s, name in moves:
            await anyio.sleep_until(begun + at_s)
            game.world.consul.leader = name

    async def watch():
        while True:
            await anyio.sleep(0.5)
            held.append(sorted(name for name, host in game.world.hosts.items() if host.disk_rules))

    async def both(traffic):
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await elections(traffic)

    assert game.run(during=both) == "complete"
    return game, held


def test_a_fault_that_follows_moves_with_the_role(tmp_path):
    game, held = follow(tmp_path, [(5, "consul-3"), (12, "consul-1")])
    ids = [entry.data["fault_id"] for entry in game.journal if entry.event == "fault.intent"]
    assert ids == [
        "0-disk.latency-consul-1-move0",
        "0-disk.latency-consul-3-move1",
        "0-disk.latency-consul-1-move2",
    ]
    applied, reverted = game.times_s("fault.applied"), game.times_s("fault.reverted")
    assert 5 <= applied[ids[1]] <= 6
    assert 5 <= reverted[ids[0]] <= 6
    assert 12 <= reverted[ids[1]] <= 13
    assert reverted[ids[2]] == pytest.approx(20, abs=1), "in all, however often it moves"
    assert set(game.times_s("fault.gone")) == set(ids)
    assert ["consul-3"] in held
    assert not any(host.disk_rules for host in game.world.hosts.values())


def test_a_fault_that_follows_stays_where_it_is_while_nobody_has_the_role(tmp_path):
    game, held = follow(tmp_path, [(5, ""), (9, "consul-2")])
    assert held[12] == held[16] == ["consul-1"]
    assert 9 <= game.times_s("fault.reverted")["0-disk.latency-consul-1-move0"] <= 10


@pytest.mark.lie
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


@pytest.mark.lie
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
    assert game.run() == "complete"
    assert list(game.times_s("fault.moved")) == ["0-disk.latency-consul-1-move0"]
    assert list(game.times_s("fault.still")) == ["0-disk.latency-consul-2-move1"]


def test_a_proof_that_fails_where_the_role_still_is_ends_the_method(tmp_path, monkeypatch):
    async def idle(self, undo):
        return

    monkeypatch.setattr(DiskLatency, "apply", idle)
    game = Game(tmp_path, [{**SLOW, "follow": True}])
    assert game.run() == "fault"


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


@pytest.mark.lie
def test_a_search_that_finds_nothing_ends_the_run_as_unfit_and_reverts_what_is_in_force(tmp_path):
    search = {"until": ["kv-writes.errors > 50%"], "from": "200%", "to": "400%", "every": "2s", "for": "50s"}
    load = {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s", "profile": {"search": search}}}
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], load=load)
    assert game.run(during=feed(latency_s=lambda _: 0.01)) == "unfit"
    assert game.error.startswith("kv-writes was raised to 400%, and kv-writes.errors > 50% did not hold")
    assert game.events[-3:] == ["fault.reverted", "fault.gone", "end"]
    assert game.since_method_s(game.journal[-1].t_ns) < 10


# guardrails


def test_a_guardrail_that_trips_ends_the_method_and_reverts(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], guardrails=["kv-writes.latency.p50 > 1s for 4s"])
    slow_from_6_on = lambda t: 3.0 if t >= 6 else 0.01  # noqa: E731
    assert game.run(during=feed(latency_s=slow_from_6_on)) == "guardrail"
    assert game.error.startswith("guardrail kv-writes.latency.p50 > 1s for 4s: measured ")
    assert game.events.index("guardrail") < game.events.index("fault.reverted") < game.events.index("fault.gone")
    assert "recovery" in game.phases_s()
    assert 8 <= game.at_s("guardrail") <= 10.5  # half of the last four seconds, at the earliest


@pytest.mark.lie
def test_a_guardrail_whose_every_look_fails_trips_and_reverts(tmp_path, monkeypatch):
    """Two of three servers paused: no look at the whole succeeds any more."""
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], guardrails=["raft.leader < 1 for 5s"])

    async def sample(probe):
        seen = game.traffic is None or "fault.proven" not in game.events
        return [Sample("raft.leader", 1.0 if seen else None, "" if seen else "no answer", ok=seen)]

    monkeypatch.setattr(engine_game.Leader, "sample", sample)
    assert game.run(during=feed(latency_s=lambda _: 0.01)) == "guardrail"
    assert game.error.endswith("unknown: no look at raft.leader succeeded for 5s")
    assert game.events.index("guardrail") < game.events.index("fault.reverted") < game.events.index("fault.gone")
    assert 5 <= game.at_s("guardrail") <= 8


def test_a_guardrail_does_not_trip_over_what_was_before_the_method(tmp_path):
    game = Game(tmp_path, [{**SLOW, "for": "8s"}], guardrails=["kv-writes.errors > 90% for 5s"])
    quickly = feed(latency_s=lambda _: 0.01)

    async def failed_until_then(traffic):
        for _ in range(100):
            traffic.emit(Operation("kv-writes", 0, 0, traffic.clock.now_ns(), "fail"))
        await quickly(traffic)

    assert game.run(during=failed_until_then) == "complete"
    assert "guardrail" not in game.events


def stalled(game, *, from_s=2.0, rate=50):
    """Run it while every operation from `from_s` on waits for ever; when the guardrail tripped, in seconds."""

    async def perform(_n, now_s):
        await anyio.sleep(3600 if now_s >= from_s else 0.01)
        return Reply("ok")

    assert game.run(during=offer(perform, rate=rate)) == "guardrail"
    return game.at_s("guardrail")


@pytest.mark.lie
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


@pytest.mark.lie
def test_a_guardrail_over_more_than_two_minutes_measures_them_all(tmp_path):
    """A rate over 300 s that was counted in the last 120 s alone would read 40% of what it is, and trip."""
    game = Game(tmp_path, [{**SLOW, "for": "320s"}], guardrails=["kv-writes.rate < 10/s for 300s"])
    assert game.run(during=feed(latency_s=lambda _: 0.01, every_s=1 / 20)) == "complete"


def test_nothing_measured_trips_no_guardrail(tmp_path):
    game = Game(tmp_path, [SLOW], guardrails=["kv-writes.latency.p50 > 1us for 2s"])
    assert game.run() == "complete"


# the steady state


def steady_s(game):
    """(when the steady state was decided, in seconds since it was asked for; what the journal says of it)."""
    [steady] = [entry for entry in game.journal if entry.event == "steady"]
    return steady.t_ns / S - game.phases_s()["steady"], steady.data


def test_a_steady_state_holds_once_it_has_held_for_its_whole_length(tmp_path):
    game = Game(tmp_path, [SLOW], steady_state=STEADY)
    rough_start = lambda t: 2.0 if t < 3 else 0.01  # noqa: E731
    assert game.run(from_start=feed(latency_s=rough_start)) == "complete"
    when_s, steady = steady_s(game)
    assert 5 <= when_s <= 6.5
    assert steady["held"] is True
    assert "kv-writes.latency.p50 < 300ms (measured 10ms)" in steady["evidence"]


@pytest.mark.lie
@pytest.mark.parametrize(("cores", "fits"), [(0.75, True), (0.85, False)])
def test_a_generator_that_is_busy_in_the_steady_state_has_nothing_left_for_the_method(tmp_path, cores, fits):
    game = Game(tmp_path, [SLOW], steady_state=STEADY)

    async def busy(traffic):
        while True:
            now = traffic.clock.now_ns()
            traffic.sample(now, Sample("generator.cpu", cores))
            traffic.emit(Operation("kv-writes", now, now, now, "ok"))
            await anyio.sleep(0.1)

    assert game.run(from_start=busy) == ("complete" if fits else "unfit")
    assert ("fault.intent" in game.events) is fits
    assert ("uses 0.85 of its one core" in game.error) is not fits


def test_a_machine_that_is_taken_says_so_before_anything_is_broken(tmp_path):
    """Only what does not hold is named, and who took it; on a machine that is free the same experiment runs."""
    require = ["kv-writes.latency.p50 < 300ms", "machine.idle > 0.9"]
    steady = {"for": "2s", "within": "10s", "require": require}

    def on(others, idle):
        async def traffic_of(traffic):
            while True:
                now = traffic.clock.now_ns()
                traffic.sample(now, Sample("machine.others", others))
                traffic.sample(now, Sample("machine.idle", idle))
                traffic.emit(Operation("kv-writes", now, now, now, "ok"))
                await anyio.sleep(0.1)

        return traffic_of

    (tmp_path / "free").mkdir()
    game = Game(tmp_path, [SLOW], steady_state=steady)
    assert game.run(from_start=on(1.02, 0.5)) == "steady-state"
    _, said = steady_s(game)
    assert said["evidence"] == (
        "waited 10s for the steady state; last seen: machine.idle > 0.9 (measured 0.5); other work on this machine uses"
        " 1.0 of its CPUs"
    )
    assert "fault.intent" not in game.events
    assert Game(tmp_path / "free", [SLOW], steady_state=steady).run(from_start=on(0.02, 1.5)) == "complete"


@pytest.mark.lie
def test_a_load_whose_operations_hang_is_not_steady(tmp_path):
    """All that ended was quick; most did not end."""
    game = Game(tmp_path, [SLOW], steady_state=STEADY)

    async def perform(n, _now_s):
        await anyio.sleep(0.01 if n % 3 == 0 else 3600)
        return Reply("ok")

    assert game.run(from_start=offer(perform, rate=50)) == "steady-state"


@pytest.mark.lie
def test_a_steady_condition_with_a_time_of_its_own_is_judged_over_that(tmp_path):
    steady = {"for": "2s", "within": "30s", "require": ["kv-writes.errors < 1% for 8s"]}
    game = Game(tmp_path, [SLOW], steady_state=steady)

    async def perform(_n, now_s):
        return Reply("fail" if now_s < 3 else "ok")

    assert game.run(from_start=offer(perform, rate=50)) == "complete"
    assert 10.9 <= steady_s(game)[0] <= 11.6


def test_a_steady_state_that_never_holds_is_given_up_with_what_was_measured(tmp_path):
    game = Game(tmp_path, [SLOW], steady_state=STEADY)
    assert game.run(from_start=feed(latency_s=lambda _: 2.0)) == "steady-state"
    assert "no fault was applied" in game.error
    assert "(measured 2s)" in game.error
    assert "fault.intent" not in game.events
    when_s, steady = steady_s(game)
    assert steady["held"] is False
    assert when_s == pytest.approx(20, abs=0.3)
