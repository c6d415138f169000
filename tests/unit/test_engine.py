"""The pure parts of a run: what a method needs, what an error comes to, guardrails, faults that move with a role."""

from __future__ import annotations

import anyio
import pytest

from hashidrill import engine
from hashidrill.abc import Operation
from hashidrill.errors import (
    DatacenterError,
    FaultError,
    RevertError,
    SelectorError,
    SteadyStateError,
)
from hashidrill.journal import Journal, read_journal
from hashidrill.loader import load_text
from hashidrill.monitor import Monitor
from hashidrill.testing.fakes import FakeDatacenter

SECOND = 1_000_000_000

EXPERIMENT = """
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: drill, title: A drill, why: To test the engine}}
datacenter: {{disk: {{size: 256MB}}}}
load:
  kv: {{kind: consul.kv.write, rate: 50/s}}
steady_state: {{for: 2s, within: 5s, require: ["kv.latency.p50 < 300ms"]}}
method: [{steps}]
guardrails: ["kv.errors > 90% for 2s"]
recovery: {{for: 1s}}
expect: [no_acknowledged_write_lost: {{load: kv}}]
"""


def experiment(*steps: str):
    return load_text(EXPERIMENT.format(steps=", ".join(steps)))


class VirtualClock:
    """Time passes only where the engine pauses."""

    def __init__(self) -> None:
        self.now = 0
        self.at: list[tuple[int, object]] = []

    def now_ns(self) -> int:
        return self.now

    async def pause(self, seconds: float) -> None:
        """Wakes when the clock reaches the moment; the clock moves to the earliest moment that anybody waits for."""
        wake = self.now + int(seconds * SECOND)
        self.at.append((wake, token := object()))
        try:
            while self.now < wake:
                for _ in range(20):  # let everybody else come to their own pause first
                    await anyio.lowlevel.checkpoint()
                self.now = max(self.now, min(moment for moment, _ in self.at))
                await anyio.lowlevel.checkpoint()
        finally:
            self.at.remove((wake, token))


class RoleDatacenter(FakeDatacenter):
    """A fake datacenter whose `consul:leader` can change."""

    async def select(self, selector):
        if selector != "consul:leader":
            return [self.target(selector.partition(":")[2])]
        if self.leader is None:
            raise SelectorError("no leader")
        return [self.target(self.leader)]


@pytest.fixture
def clock(monkeypatch):
    clock = VirtualClock()
    for module in ("engine", "inject", "wait"):
        monkeypatch.setattr(f"hashidrill.{module}.pause", clock.pause)
    return clock


def running(tmp_path, clock, experiment_, world):
    journal = Journal(tmp_path / "journal.jsonl", clock)

    class NoWriter:
        def operation(self, op): ...

        def sample(self, t_ns, sample): ...

    return engine.Run(
        experiment_, world, clock, journal, NoWriter(), Monitor(experiment_.load), lambda _event: None, "run-1"
    )


def told(tmp_path):
    return [(entry.event, entry.data.get("fault_id")) for entry in read_journal(tmp_path / "journal.jsonl")]


class TestNeeds:
    def test_fsync_can_always_be_slowed(self):
        found = engine.needs(experiment("{fault: noop, on: 'consul:leader', for: 1s}"))
        assert found.disk_operations == {"fsync"}
        assert not found.sized_disk
        assert not found.toxiproxy

    def test_a_slow_link_needs_toxiproxy(self):
        slow = "{fault: network.latency, on: 'consul:leader', with: {port: 8300, delay: 1s}, for: 1s}"
        assert engine.needs(experiment("{fault: noop, on: 'consul:leader', for: 1s}", slow)).toxiproxy

    def test_all_steps_together_decide(self):
        found = engine.needs(
            experiment(
                "{fault: disk.latency, on: 'host:consul-1', with: {op: write, delay: 1s}, for: 1s}",
                "{fault: disk.full, on: 'host:consul-2', for: 1s}",
            )
        )
        assert found.disk_operations == {"fsync", "write"}
        assert found.sized_disk


class TestOutcomes:
    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (SteadyStateError("a"), "steady-state"),
            (FaultError("a"), "fault"),
            (SelectorError("a"), "fault"),
            (RevertError("a"), "revert"),
            (DatacenterError("a"), "crashed"),
            (ExceptionGroup("g", [FaultError("b"), ExceptionGroup("h", [RevertError("a")])]), "revert"),
            (ExceptionGroup("g", [DatacenterError("b"), FaultError("a")]), "fault"),
        ],
    )
    def test_the_gravest_error_decides(self, error, outcome):
        assert engine._outcome(error) == (outcome, "a")

    def test_a_bug_of_ours_is_a_crash_with_its_name_and_its_traceback_in_the_log(self, capsys):
        assert engine._outcome(ZeroDivisionError("by nothing")) == ("crashed", "ZeroDivisionError: by nothing")
        assert "ZeroDivisionError" in capsys.readouterr().err


class TestSteadyState:
    def steady(self, tmp_path, clock, latency_s):
        run = running(tmp_path, clock, experiment("{fault: noop, on: 'consul:leader', for: 1s}"), RoleDatacenter())

        async def offered():
            while True:
                now = clock.now_ns()
                run.operation(Operation("kv", now - int(latency_s * SECOND), now, now, "ok"))
                await clock.pause(0.1)

        async def main():
            async with anyio.create_task_group() as group:
                group.start_soon(offered)
                try:
                    await engine._hold_steady_state(run)
                finally:
                    group.cancel_scope.cancel()

        anyio.run(main)

    def test_it_is_held_for_its_whole_length(self, tmp_path, clock):
        self.steady(tmp_path, clock, 0.01)
        [steady] = [entry for entry in read_journal(tmp_path / "journal.jsonl") if entry.event == "steady"]
        assert steady.data["held"]
        assert steady.t_ns >= 2 * SECOND

    def test_one_that_never_holds_says_what_was_measured(self, tmp_path, clock, monkeypatch):
        async def never(what, check, *, within_s, gap_s):
            _, evidence = await check()
            raise engine.WaitTimeoutError(f"waited {within_s:g}s for {what}; last seen: {evidence}")

        monkeypatch.setattr(engine, "wait_until", never)
        with pytest.raises(BaseExceptionGroup) as raised:
            self.steady(tmp_path, clock, 1.5)
        [error] = raised.value.exceptions
        assert isinstance(error, SteadyStateError)
        assert "no fault was applied" in str(error)
        assert "kv.latency.p50 < 300ms (measured" in str(error)


class TestMethod:
    def test_steps_begin_at_their_times_and_last_as_long_as_they_say(self, tmp_path, clock):
        run = running(
            tmp_path, clock,
            experiment(
                "{fault: disk.latency, on: 'host:consul-1', with: {delay: 1s}, for: 2s}",
                "{fault: process.pause, on: 'host:consul-2', at: 3s, for: 4s}",
            ),
            RoleDatacenter(),
        )  # fmt: skip
        assert anyio.run(engine._method, run) == ""
        at = {
            (entry.data["fault_id"], entry.event): entry.t_ns / SECOND
            for entry in read_journal(tmp_path / "journal.jsonl")
            if entry.event in {"fault.proven", "fault.reverted"}
        }
        assert at == {
            ("0-disk.latency-consul-1", "fault.proven"): pytest.approx(0, abs=0.3),
            ("0-disk.latency-consul-1", "fault.reverted"): pytest.approx(2, abs=0.3),
            ("1-process.pause-consul-2", "fault.proven"): pytest.approx(3, abs=0.3),
            ("1-process.pause-consul-2", "fault.reverted"): pytest.approx(7, abs=0.3),
        }

    def test_a_guardrail_that_trips_reverts_everything_and_ends_the_method(self, tmp_path, clock):
        world = RoleDatacenter()
        run = running(
            tmp_path, clock, experiment("{fault: disk.latency, on: 'host:consul-1', with: {delay: 1s}, for: 1m}"), world
        )

        async def failing():
            while True:
                now = clock.now_ns()
                run.operation(Operation("kv", now, now, now, "fail"))
                await clock.pause(0.1)

        async def main():
            async with anyio.create_task_group() as group:
                group.start_soon(failing)
                tripped = await engine._method(run)
                group.cancel_scope.cancel()
            return tripped

        assert anyio.run(main).startswith("guardrail kv.errors > 90% for 2s: measured 1")
        assert clock.now < 10 * SECOND
        assert [event for event, _ in told(tmp_path)][-3:] == ["guardrail", "fault.reverted", "fault.gone"]
        assert not world.hosts["consul-1"].disk_rules

    def test_a_fault_that_follows_moves_with_the_leader(self, tmp_path, clock):
        world = RoleDatacenter()
        run = running(
            tmp_path, clock,
            experiment("{fault: disk.latency, on: 'consul:leader', with: {delay: 1s}, for: 10s, follow: true}"), world,
        )  # fmt: skip

        async def election():
            await clock.pause(3)
            world.leader = None  # an election goes on: the fault stays where it is
            await clock.pause(2)
            assert world.hosts["consul-1"].disk_rules
            world.leader = "consul-3"
            await clock.pause(2)
            assert not world.hosts["consul-1"].disk_rules
            assert world.hosts["consul-3"].disk_rules

        async def main():
            async with anyio.create_task_group() as group:
                group.start_soon(election)
                await engine._method(run)

        anyio.run(main)
        assert not any(host.disk_rules for host in world.hosts.values())
        assert [fault for event, fault in told(tmp_path) if event == "fault.proven"] == [
            "0-disk.latency-consul-1-move0",
            "0-disk.latency-consul-3-move1",
        ]

    def test_a_selector_that_matches_nothing_is_a_fault_that_was_not_applied(self, tmp_path, clock, monkeypatch):
        monkeypatch.setattr(engine, "_TARGETS_WITHIN_S", 0.05)
        world = RoleDatacenter()
        world.leader = None
        run = running(
            tmp_path, clock, experiment("{fault: disk.latency, on: 'consul:leader', with: {delay: 1s}, for: 1s}"), world
        )
        with pytest.raises(BaseExceptionGroup) as raised:
            anyio.run(engine._method, run)
        assert engine._outcome(raised.value)[0] == "fault"
        assert "fault.intent" not in [event for event, _ in told(tmp_path)]
