"""A fault is proven, held, reverted and proven gone; and when any of this goes wrong, it is still reverted."""

from __future__ import annotations

import anyio
import pytest

from hashidrill import inject
from hashidrill.errors import FaultError, RevertError
from hashidrill.faults.disk import DiskLatency, LatencyParams
from hashidrill.journal import Clock, Journal, read_journal
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.units import Duration


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch):
    async def at_once(_seconds):
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(inject, "pause", at_once)
    monkeypatch.setattr(inject, "PROVEN_WITHIN_S", 0.05)


class Scene:
    """A fault on a fake datacenter, with a journal."""

    def __init__(self, tmp_path, cls=DiskLatency):
        self.world = FakeDatacenter()
        self.host = self.world.hosts["consul-1"]
        self.fault = cls(LatencyParams(delay=Duration("500ms")), self.world)
        self.path = tmp_path / "journal.jsonl"

    def run(self, inside=None):
        async def main():
            with Journal(self.path, Clock()) as journal:
                target = self.world.target("consul-1")
                async with inject.injected(
                    self.fault, target, fault_id="f", step=0, journal=journal, gone_within_s=0.05
                ):
                    if inside is not None:
                        await inside()

        anyio.run(main)

    @property
    def events(self):
        return [entry.event for entry in read_journal(self.path)]


def test_the_whole_life_of_a_fault_is_in_the_journal_in_order(tmp_path):
    scene = Scene(tmp_path)

    async def inside():
        assert scene.host.disk_rules

    scene.run(inside)
    assert scene.events == ["fault.intent", "fault.applied", "fault.proven", "fault.reverted", "fault.gone"]
    assert not scene.host.disk_rules


def test_the_intent_is_in_the_file_before_apply_is_called(tmp_path):
    seen = []

    class Reads(DiskLatency):
        async def apply(self, undo):
            seen.extend(entry.data["undo"]["fault_id"] for entry in read_journal(tmp_path / "journal.jsonl"))
            await super().apply(undo)

    Scene(tmp_path, Reads).run()
    assert seen == ["f"]


def test_a_fault_that_does_nothing_is_not_proven_and_the_block_is_never_entered(tmp_path):
    class Nothing(DiskLatency):
        async def apply(self, undo):
            return

    scene = Scene(tmp_path, Nothing)

    async def inside():
        pytest.fail("entered without a proof")

    with pytest.raises(
        FaultError, match=r"disk.latency on consul-1: not proven in force within .*asked for fsync takes 500ms"
    ):
        scene.run(inside)
    assert scene.events == ["fault.intent", "fault.applied", "fault.unproven", "fault.reverted", "fault.gone"]


@pytest.mark.parametrize("error", [ValueError("a bug of ours"), FaultError("the host said no")])
def test_an_apply_that_raises_half_way_is_reverted(tmp_path, error):
    class Raises(DiskLatency):
        async def apply(self, undo):
            await super().apply(undo)
            raise error

    scene = Scene(tmp_path, Raises)
    with pytest.raises(FaultError, match=str(error)):
        scene.run()
    assert scene.events == ["fault.intent", "fault.failed", "fault.reverted", "fault.gone"]
    assert not scene.host.disk_rules


def test_an_observer_that_crashes_has_proven_nothing_and_says_why(tmp_path):
    class Blind(DiskLatency):
        async def verify(self, undo, *, present):
            if present:
                raise RuntimeError("no eyes")
            return await super().verify(undo, present=present)

    with pytest.raises(FaultError, match="the observer failed: RuntimeError: no eyes"):
        Scene(tmp_path, Blind).run()


def test_a_revert_that_fails_twice_is_tried_a_third_time(tmp_path):
    failures = [OSError("busy"), OSError("still busy")]

    class Stubborn(DiskLatency):
        async def revert(self, undo):
            if failures:
                raise failures.pop()
            await super().revert(undo)

    scene = Scene(tmp_path, Stubborn)
    scene.run()
    assert scene.events[-2:] == ["fault.reverted", "fault.gone"]


def test_a_fault_that_cannot_be_reverted_is_stuck_and_said_so(tmp_path):
    class Stays(DiskLatency):
        async def revert(self, undo):
            raise OSError("no way")

    scene = Scene(tmp_path, Stays)
    with pytest.raises(RevertError, match=r"disk\.latency on consul-1: could not be reverted: OSError: no way"):
        scene.run()
    assert scene.events[-1] == "fault.stuck"


def test_a_revert_that_returns_without_effect_is_found_out(tmp_path):
    class Pretends(DiskLatency):
        async def revert(self, undo):
            return

    scene = Scene(tmp_path, Pretends)
    with pytest.raises(RevertError, match="still seen"):
        scene.run()
    assert scene.events[-2:] == ["fault.reverted", "fault.stuck"]


def test_cancellation_while_the_fault_is_held_reverts_it(tmp_path):
    scene = Scene(tmp_path)

    async def main():
        with anyio.CancelScope() as scope:
            with Journal(scene.path, Clock()) as journal:
                target = scene.world.target("consul-1")
                async with inject.injected(scene.fault, target, fault_id="f", step=0, journal=journal):
                    assert scene.host.disk_rules
                    scope.cancel()
                    await anyio.sleep_forever()

    anyio.run(main)
    assert not scene.host.disk_rules
    assert scene.events[-2:] == ["fault.reverted", "fault.gone"]


def test_an_error_inside_of_the_block_reverts_and_comes_out(tmp_path):
    scene = Scene(tmp_path)

    async def inside():
        raise KeyError("something else")

    with pytest.raises(KeyError):
        scene.run(inside)
    assert not scene.host.disk_rules


def test_a_fresh_process_can_rebuild_the_fault_from_its_undo():
    world = FakeDatacenter()
    fault = DiskLatency(LatencyParams(delay=Duration("500ms")), world)
    undo = fault.plan(world.target("consul-2"), fault_id="f")
    rebuilt = inject.fault_from_undo(dict(undo), world)
    assert isinstance(rebuilt, DiskLatency)
    assert rebuilt.plan(world.target("consul-2"), fault_id="f") == undo
