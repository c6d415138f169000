"""The engine on a fake datacenter, in virtual time: steps at their times, faults that follow, guardrails, outcomes."""

from __future__ import annotations

import json

import anyio
import pytest
import virtual_time

from hashidrill import engine
from hashidrill.abc import Evidence, Operation, Sample
from hashidrill.errors import (
    DatacenterError,
    FaultError,
    RevertError,
    SelectorError,
    SteadyStateError,
    UnknownNameError,
    WaitTimeoutError,
)
from hashidrill.faults.disk import DiskLatency
from hashidrill.journal import Journal, read_journal
from hashidrill.model import Experiment
from hashidrill.monitor import Monitor
from hashidrill.testing.fakes import FakeDatacenter

S = 1_000_000_000
SLOW = {"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "500ms"}, "for": "10s"}
PROOF_S = 0.2
"""What the observers here take, so that a proof is not there at once."""


class Datacenter(FakeDatacenter):
    """Fake hosts, and the selectors that the tests use. No `leader` means that an election goes on."""

    async def select(self, selector):
        if selector.startswith("host:"):
            return [self.target(selector.removeprefix("host:"))]
        servers = [name for name, host in self.hosts.items() if host.role == "server"]
        chosen = {"consul:servers": servers, "consul:leader": [self.leader] if self.leader else []}[selector]
        if not chosen:
            raise SelectorError(f"{selector}: no server is known to a majority as the leader just now")
        return [self.target(name) for name in chosen]


class Game:
    """One run's tools, without the processes around them."""

    def __init__(self, tmp_path, method, **more):
        document = {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": "short", "title": "A short one", "why": "It tests the engine"},
            "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s"}},
            "steady_state": {"for": "5s", "within": "20s", "require": ["kv-writes.latency.p50 < 300ms"]},
            "method": method,
            "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
            **more,
        }
        self.experiment = Experiment.model_validate(document)
        self.path = tmp_path / "journal.jsonl"
        self.world = Datacenter()
        self.told = []

    def play(self, act):
        """Run `act(running)` in virtual time; returns what it returns."""

        async def main():
            clock = virtual_time.VirtualClock()
            with Journal(self.path, clock) as journal:
                monitor = Monitor(self.experiment.load)
                running = engine.Run(
                    self.experiment, self.world, clock, journal, None, monitor, self.told.append, "run-1"
                )
                return await act(running)

        return virtual_time.run(main())

    @property
    def journal(self):
        return read_journal(self.path)

    @property
    def events(self):
        return [entry.event for entry in self.journal]

    def times_s(self, event):
        """{fault_id: seconds} of that event."""
        return {e.data["fault_id"]: e.t_ns / S for e in self.journal if e.event == event}


@pytest.fixture(autouse=True)
def _observing_takes_time(monkeypatch):
    verify = DiskLatency.verify

    async def slower(self, undo, *, present):
        await anyio.sleep(PROOF_S)
        return await verify(self, undo, present=present)

    monkeypatch.setattr(DiskLatency, "verify", slower)


def feed(running, *, latency_s, outcome="ok", every_s=0.1):
    """A load whose operations end now and took that long; `latency_s` is a function of the time in seconds."""

    async def go():
        while True:
            now = running.clock.now_ns()
            took_ns = int(latency_s(now / S) * S)
            running.monitor.operation(Operation("kv-writes", now - took_ns, now - took_ns, now, outcome))
            await anyio.sleep(every_s)

    return go


async def beside(task, main):
    async with anyio.create_task_group() as group:
        group.start_soon(task)
        result = await main()
        group.cancel_scope.cancel()
    return result


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


def test_an_election_that_goes_on_is_waited_for(tmp_path):
    game = Game(tmp_path, [SLOW])
    game.world.leader = ""

    async def elect():
        await anyio.sleep(4)
        game.world.leader = "consul-2"

    game.play(lambda running: beside(elect, lambda: engine._method(running)))
    [when] = game.times_s("fault.intent").values()
    assert 4 <= when < 4.5
    assert list(game.times_s("fault.intent")) == ["0-disk.latency-consul-2"]


def test_a_selector_that_matches_nobody_in_time_is_an_error_that_says_what_was_seen(tmp_path):
    game = Game(tmp_path, [SLOW])
    game.world.leader = ""
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
    assert (fault["kind"], fault["host"]) == ("disk.latency", "consul-1")
    assert fault["ends_ns"] == pytest.approx((10 + PROOF_S) * S)
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
            game.world.leader = name

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


# outcomes


GRAVEST_LAST = [
    (SteadyStateError("never steady"), "steady-state"),
    (FaultError("not proven"), "fault"),
    (RevertError("stuck"), "revert"),
]


@pytest.mark.parametrize(("error", "outcome"), GRAVEST_LAST)
def test_each_error_has_its_outcome(error, outcome):
    assert engine._outcome(error) == (outcome, str(error))


def test_the_gravest_of_several_errors_decides():
    errors = [error for error, _ in GRAVEST_LAST]
    for n in range(1, len(errors) + 1):
        group = ExceptionGroup("inner", [ExceptionGroup("outer", errors[:n]), DatacenterError("agent ended")])
        assert engine._outcome(group)[0] == GRAVEST_LAST[n - 1][1]


def test_a_selector_that_fails_during_the_method_is_a_fault_that_could_not_be_put_in_force():
    assert engine._outcome(SelectorError("no leader")) == ("fault", "no leader")


@pytest.mark.parametrize("error", [DatacenterError("consul ended"), WaitTimeoutError("waited 60s")])
def test_a_datacenter_that_fails_crashes_the_run_without_a_traceback(error, capsys):
    assert engine._outcome(error) == ("crashed", str(error))
    assert capsys.readouterr().err == ""


def test_a_bug_of_ours_crashes_the_run_and_leaves_its_traceback_in_the_log(capsys):
    error = ZeroDivisionError("by nothing")
    assert engine._outcome(error) == ("crashed", "ZeroDivisionError: by nothing")
    assert "ZeroDivisionError: by nothing" in capsys.readouterr().err


# what a datacenter must be started with


def steps(*kinds):
    return [{"fault": kind, "on": "consul:leader", "with": params, "for": "1s"} for kind, params in kinds]


@pytest.mark.parametrize(
    ("method", "operations", "sized"),
    [
        ([("noop", {})], {"fsync"}, False),  # probes and reports want the canary's fsync in any case
        ([("disk.latency", {"op": "read", "delay": "1s"})], {"fsync", "read"}, False),
        ([("disk.latency", {"op": "all", "delay": "1s"})], {"fsync", "write", "read"}, False),
        ([("disk.full", {}), ("disk.error", {"op": "write"})], {"fsync", "write"}, True),
    ],
)
def test_needs_are_those_of_all_faults_together(method, operations, sized, tmp_path):
    found = engine.needs(Game(tmp_path, steps(*method)).experiment)
    assert (found.disk_operations, found.sized_disk) == (operations, sized)


def test_an_unknown_fault_is_named_with_its_near_ones(tmp_path):
    with pytest.raises(UnknownNameError, match=r"disk\.latency"):
        engine.needs(Game(tmp_path, steps(("disk.latensy", {}))).experiment)


# the whole life


class Loads:
    """Stands for the process of the loads."""

    final_read_errors: dict = {}  # noqa: RUF012 - it is never written to

    def __init__(self, clock, run_id):
        self.stopped = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        return None

    async def start(self, specifications, operation, sample):
        self.operation = operation
        for n in range(3):
            operation(Operation("kv-writes", n, n, n + 1000, "ok", "k", f"v{n}"))

    async def stop(self):
        self.stopped = True

    async def final_reads(self):
        assert self.stopped
        return {"kv-writes": {"k": "v2"}}


class Writer:
    """Stands for the recording's writer, which has a thread."""

    def __init__(self, path):
        self.path = path
        self.rows = []
        self.run = None

    def operation(self, op):
        self.rows.append(op)

    def sample(self, t_ns, sample):
        self.rows.append(sample)

    def final_reads(self, load, values):
        self.rows.append((load, dict(values)))

    def write_run(self, info):
        self.run = dict(info)

    def close(self):
        self.rows.append("closed")


class Living(Datacenter):
    """A datacenter with a life: it starts, gets ready, is probed, and leaves logs."""

    def __init__(self, *, ready_error=None, logs_error=None):
        super().__init__()
        self.life = []
        self._errors = {"ready": ready_error, "logs": logs_error}

    async def start(self):
        self.life.append("started")

    async def wait_ready(self):
        self._fail("ready")
        self.life.append("ready")

    async def load_specifications(self, experiment):
        return []

    def probes(self):
        return [Leader(self)]

    def describe(self):
        return {"hosts": [{"name": name} for name in self.hosts], "config": {}}

    async def collect_logs(self, into):
        self._fail("logs")
        self.life.append("logs")

    def _fail(self, what):
        if self._errors[what] is not None:
            raise self._errors[what]


class Leader:
    interval_s = 1.0

    def __init__(self, world):
        self.world = world

    async def sample(self):
        return [Sample("raft.leader", 1.0, self.world.leader)]


@pytest.fixture
def live(tmp_path, monkeypatch):
    """Runs a whole run; returns (outcome, journal entries, writer, told)."""
    writers = []

    def made(path):
        writers.append(Writer(path))
        return writers[-1]

    async def here(function, *arguments, **_):
        return function(*arguments)

    monkeypatch.setattr(engine, "RecordingWriter", made)
    monkeypatch.setattr(engine, "LoadProcess", Loads)
    monkeypatch.setattr(engine.anyio.to_thread, "run_sync", here)

    def go(game, world, *, cancel_after_s=None):
        told = []

        async def main():
            with anyio.CancelScope() as scope:
                if cancel_after_s is not None:
                    scope.deadline = anyio.current_time() + cancel_after_s
                return await engine.run(
                    game.experiment, world, tmp_path, {"id": "run-1", "root": "/nowhere"},
                    clock=virtual_time.VirtualClock(), tell=told.append,
                )  # fmt: skip

        outcome = virtual_time.run(main())
        return outcome, read_journal(tmp_path / "journal.jsonl"), writers[0], told

    return go


ALWAYS = {"for": "2s", "within": "5s", "require": ["raft.leader >= 0"]}


def test_a_run_goes_through_all_of_its_phases(tmp_path, live):
    game, world = Game(tmp_path, [{**SLOW, "for": "3s"}], steady_state=ALWAYS, recovery={"for": "4s"}), Living()
    outcome, journal, writer, told = live(game, world)
    assert outcome == "complete"
    phases = {entry.data["phase"]: entry.t_ns / S for entry in journal if entry.event == "phase"}
    assert list(phases) == ["start", "ready", "load", "steady", "method", "recovery", "quiesce", "closed"]
    assert phases["quiesce"] - phases["recovery"] == pytest.approx(4)
    assert journal[0].event == "run"
    assert (journal[-1].event, journal[-1].data) == ("end", {"outcome": "complete", "error": ""})
    assert world.life == ["started", "ready", "logs"]
    assert writer.run["outcome"] == "complete"
    assert [row["name"] for row in writer.run["hosts"]] == list(world.hosts)
    assert ("kv-writes", {"k": "v2"}) in writer.rows
    assert writer.rows[-1] == "closed"
    ticks = [event for event in told if event["event"] == "tick"]
    assert {tick["leader"] for tick in ticks[4:]} == {"consul-1"}
    assert any(tick["faults"] for tick in ticks)
    json.dumps(told)


def test_a_datacenter_that_never_gets_ready_has_no_fault_and_its_logs_are_kept(tmp_path, live):
    world = Living(ready_error=WaitTimeoutError("waited 60s for the datacenter to be ready; last seen: no leader"))
    outcome, journal, writer, _ = live(Game(tmp_path, [SLOW]), world)
    assert outcome == "crashed"
    assert "no leader" in writer.run["error"]
    assert not any(entry.event.startswith("fault.") for entry in journal)
    assert world.life == ["started", "logs"]


def test_a_datacenter_that_never_gets_steady_has_no_fault(tmp_path, live):
    never = {**ALWAYS, "require": ["raft.leader > 1"]}
    outcome, journal, _, _ = live(Game(tmp_path, [SLOW], steady_state=never), Living())
    assert outcome == "steady-state"
    assert not any(entry.event.startswith("fault.") for entry in journal)


def test_a_guardrail_that_trips_still_has_a_recovery(tmp_path, live):
    game = Game(tmp_path, [{**SLOW, "for": "60s"}], steady_state=ALWAYS, guardrails=["raft.leader >= 1 for 2s"])
    outcome, journal, writer, _ = live(game, Living())
    assert outcome == "guardrail"
    assert "recovery" in [entry.data.get("phase") for entry in journal]
    assert "guardrail raft.leader >= 1 for 2s: measured 1" in writer.run["error"]


def test_an_interrupted_run_reverts_collects_and_closes(tmp_path, live):
    game, world = Game(tmp_path, [{**SLOW, "for": "60s"}], steady_state=ALWAYS), Living()
    outcome, journal, writer, _ = live(game, world, cancel_after_s=10)
    assert outcome is None  # the caller's cancellation went through
    events = [entry.event for entry in journal]
    assert events.index("fault.reverted") < events.index("fault.gone") < events.index("end")
    assert writer.run["outcome"] == journal[-1].data["outcome"] == "interrupted"
    assert writer.rows[-1] == "closed"
    assert "logs" in world.life


def test_logs_that_cannot_be_had_are_a_note_and_no_more(tmp_path, live):
    world = Living(logs_error=OSError(28, "No space left on device"))
    outcome, journal, _, _ = live(Game(tmp_path, [{**SLOW, "for": "3s"}], steady_state=ALWAYS), world)
    assert outcome == "complete"
    [note] = [entry for entry in journal if entry.event == "note"]
    assert "No space left on device" in note.data["text"]


def test_an_unproven_fault_is_never_complete(tmp_path, live, monkeypatch):
    async def never(self, undo, *, present):
        return Evidence(ok=not present, asked="slow", measured="as ever")

    monkeypatch.setattr(DiskLatency, "verify", never)
    outcome, journal, _, _ = live(Game(tmp_path, [SLOW], steady_state=ALWAYS), Living())
    assert outcome == "fault"
    assert [e.event for e in journal if e.event.startswith("fault.")][-1] == "fault.gone"


def test_a_slow_link_needs_toxiproxy_and_nothing_else_does(tmp_path):
    slow = ("network.latency", {"port": 8300, "delay": "1s"})
    assert engine.needs(Game(tmp_path, steps(("noop", {}), slow)).experiment).toxiproxy
    assert not engine.needs(Game(tmp_path, steps(("noop", {}))).experiment).toxiproxy
