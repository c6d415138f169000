"""A fault is on disk before it is applied, proven before the block is entered, and gone whatever leaves the block."""

import json

import anyio
import pytest

import virtual_time
from hashidrill.core.engine.inject import (
    GONE_WITHIN_S,
    PROVEN_WITHIN_S,
    REVERT_TRIES,
    REVERT_WITHIN_S,
    injected,
)
from hashidrill.core.errors import FaultError, OthersFaultError, RevertError
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.protocols.abc import Evidence
from hashidrill.core.recording.journal import Journal, read_journal
from hashidrill.testing.fakes import FakeDatacenter
from tasks import raising

WHOLE = ["fault.intent", "fault.applied", "fault.proven", "fault.reverted", "fault.gone"]


class Game:
    """A fault on consul-1 of a fake datacenter, with a journal on a real disk, in virtual time."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "journal.jsonl"
        self.world = FakeDatacenter()
        self.disk_rules = self.world.hosts["consul-1"].disk_rules
        self.seen_inside = None

    def fault(self, **overrides):
        cls = type("Planted", (DiskLatency,), {"game": self, **overrides})
        return cls(cls.Params.model_validate({"delay": "500ms"}), self.world)

    async def inject(self, fault, inside=None, hold=None):
        with Journal(self.path, virtual_time.VirtualClock()) as journal:
            target = self.world.target("consul-1")
            async with injected(fault, target, fault_id="0-slow", step=0, journal=journal) as in_force:
                self.seen_inside = (dict(self.disk_rules), self.events, in_force.evidence)
                if inside is not None:
                    await inside()
                if hold is not None:
                    await in_force.hold(**hold)

    @property
    def journal(self):
        return read_journal(self.path)

    @property
    def events(self):
        return [entry.event for entry in self.journal]

    def entry(self, event):
        [one] = [entry for entry in self.journal if entry.event == event]
        return one


@pytest.fixture
def game(tmp_path):
    return Game(tmp_path)


def test_inside_of_the_block_the_fault_is_proven_and_afterwards_it_is_gone(game):
    virtual_time.run(game.inject(game.fault()))
    rules, events, evidence = game.seen_inside
    assert list(rules) == ["0-slow"]
    assert events == WHOLE[:3]
    assert evidence.ok
    assert game.disk_rules == {}
    assert game.events == WHOLE


def test_the_journal_holds_all_that_a_revert_needs(game):
    virtual_time.run(game.inject(game.fault()))
    intent = game.entry("fault.intent").data
    assert intent["target"]["host"] == "consul-1"
    assert intent["params"] == intent["undo"]["params"]
    assert intent["step"] == 0
    assert json.loads(json.dumps(intent["undo"])) == intent["undo"]
    assert game.entry("fault.proven").data["evidence"]["figures"]["asked_s"] == 0.5


def test_the_intent_is_on_disk_before_anything_is_touched(game):
    async def apply(self, undo):
        self.game.found = (self.game.events, self.game.entry("fault.intent").data["undo"])
        await DiskLatency.apply(self, undo)

    virtual_time.run(game.inject(game.fault(apply=apply)))
    events, undo = game.found
    assert events == ["fault.intent"]
    assert undo["fault_id"] == "0-slow"


def test_an_apply_that_raises_is_a_fault_error_and_is_reverted_all_the_same(game):
    async def apply(self, undo):
        await DiskLatency.apply(self, undo)  # it got half way
        raise FaultError("consul-1.host: cannot ask for set: closed")

    with pytest.raises(FaultError, match=r"on consul-1: could not be applied: consul-1.host"):
        virtual_time.run(game.inject(game.fault(apply=apply)))
    assert game.seen_inside is None
    assert game.disk_rules == {}
    assert game.events == ["fault.intent", "fault.failed", "fault.reverted", "fault.gone"]


def test_an_apply_that_crashes_is_a_fault_error_too(game):
    async def apply(self, undo):
        return undo["no such key"]

    with pytest.raises(FaultError, match="apply crashed: KeyError"):
        virtual_time.run(game.inject(game.fault(apply=apply)))
    assert game.entry("fault.failed").data["error"].startswith("KeyError")
    assert game.events[-1] == "fault.gone"


@pytest.mark.parametrize(("own", "within_s"), [({}, PROVEN_WITHIN_S), ({"observed_within_s": 30.0}, 30.0)])
def test_an_apply_that_does_nothing_is_not_proven(game, own, within_s):
    async def apply(self, undo):
        return

    said = rf"not proven in force within {within_s:.0f}s: expected fsync takes 500ms; measured fsync"
    with pytest.raises(FaultError, match=said):
        virtual_time.run(game.inject(game.fault(apply=apply, **own)))
    assert game.seen_inside is None
    assert game.events == ["fault.intent", "fault.applied", "fault.unproven", "fault.reverted", "fault.gone"]
    waited_ns = game.entry("fault.unproven").t_ns - game.entry("fault.applied").t_ns
    assert waited_ns == pytest.approx(within_s * 1e9)


async def test_an_effect_that_shows_after_some_seconds_is_waited_for(game):
    async def verify(self, undo, *, present):
        if present and anyio.current_time() < self.game.began + 3:
            return Evidence(ok=False, asked="slow", measured="not yet")
        return await DiskLatency.verify(self, undo, present=present)

    game.began = anyio.current_time()
    await game.inject(game.fault(verify=verify))
    assert game.events == WHOLE
    assert 3e9 <= game.entry("fault.proven").t_ns < 3.2e9


def test_an_observer_that_crashes_has_proven_nothing_and_says_why(game):
    async def verify(self, undo, *, present):
        if present:
            raise ExceptionGroup("in a task group", [FaultError("consul-1.canary: closed")])
        return await DiskLatency.verify(self, undo, present=present)

    with pytest.raises(FaultError, match=r"the observer failed: FaultError: consul-1\.canary: closed"):
        virtual_time.run(game.inject(game.fault(verify=verify)))
    assert game.disk_rules == {}


def test_an_observer_that_never_answers_has_proven_nothing(game):
    async def verify(self, undo, *, present):
        if present:
            await anyio.sleep_forever()
        return await DiskLatency.verify(self, undo, present=present)

    with pytest.raises(FaultError, match="the observer never answered"):
        virtual_time.run(game.inject(game.fault(verify=verify)))
    assert game.events[-1] == "fault.gone"


def failing_revert(times):
    async def revert(self, undo):
        self.game.reverts = getattr(self.game, "reverts", 0) + 1
        if self.game.reverts <= times:
            raise FaultError("diskd: no answer")
        await DiskLatency.revert(self, undo)

    return revert


def test_a_revert_that_fails_twice_is_tried_again(game):
    virtual_time.run(game.inject(game.fault(revert=failing_revert(2))))
    assert game.reverts == 3
    assert game.disk_rules == {}
    assert game.events == WHOLE


def test_a_revert_that_never_works_is_a_revert_error_and_stuck(game):
    with pytest.raises(RevertError, match="on consul-1: could not be reverted: FaultError: diskd: no answer"):
        virtual_time.run(game.inject(game.fault(revert=failing_revert(99))))
    assert game.reverts == REVERT_TRIES
    assert game.events == [*WHOLE[:3], "fault.stuck"]
    assert game.entry("fault.stuck").data["error"] == "FaultError: diskd: no answer"


def test_a_revert_that_hangs_is_given_up_and_stuck(game):
    async def revert(self, undo):
        await anyio.sleep_forever()

    with pytest.raises(RevertError, match="its revert did not finish within 45s"):
        virtual_time.run(game.inject(game.fault(revert=revert)))
    assert game.events == [*WHOLE[:3], "fault.stuck"]
    assert game.journal[-1].t_ns < (REVERT_TRIES * REVERT_WITHIN_S + 5) * 1e9


def test_a_fault_that_is_still_seen_after_its_revert_is_stuck(game):
    async def revert(self, undo):
        return

    with pytest.raises(RevertError, match="still seen 20s after its revert: expected fsync no longer takes"):
        virtual_time.run(game.inject(game.fault(revert=revert)))
    assert game.events == [*WHOLE[:4], "fault.stuck"]
    waited_ns = game.entry("fault.stuck").t_ns - game.entry("fault.reverted").t_ns
    assert waited_ns == pytest.approx(GONE_WITHIN_S * 1e9)


@pytest.mark.parametrize("theirs_lasts_s", [0, 5, 1e6])
async def test_what_another_run_has_in_force_there_is_not_called_ours(game, theirs_lasts_s):
    """Nothing of this run is left, and its observers see the other one's: until that goes, or as long as they look."""

    async def revert(self, undo):
        async def theirs_ends():
            await anyio.sleep(theirs_lasts_s)
            await DiskLatency.revert(self, undo)

        game.tasks.start_soon(theirs_ends)
        raise OthersFaultError("consul-1: 0-slow: nothing of this run is left there: it is of the run b")

    async with anyio.create_task_group() as game.tasks:
        await game.inject(game.fault(revert=revert))
        game.tasks.cancel_scope.cancel()
    if theirs_lasts_s < GONE_WITHIN_S:
        assert game.events == WHOLE
    else:
        assert game.events == [*WHOLE[:4], "fault.ended"]
        evidence = game.entry("fault.ended").data["evidence"]
        assert evidence["asked"] == "nothing of this run on consul-1"
        assert "it is of the run b; seen: " in evidence["measured"]


def test_an_error_inside_of_the_block_reverts_and_goes_on_as_it_was(game):
    with pytest.raises(ZeroDivisionError):
        virtual_time.run(game.inject(game.fault(), raising(ZeroDivisionError)))
    assert game.events == WHOLE


async def slow_revert(self, undo):
    await anyio.sleep(2)  # cancellation would get in here, were it let
    await DiskLatency.revert(self, undo)


async def test_cancellation_while_it_is_held_still_reverts(game):
    with anyio.move_on_after(7) as scope:
        await game.inject(game.fault(revert=slow_revert), anyio.sleep_forever)
    assert scope.cancelled_caught
    assert game.disk_rules == {}
    assert game.events == WHOLE
    assert game.entry("fault.gone").t_ns == pytest.approx(9e9)


async def test_cancellation_while_it_is_applied_still_reverts(game):
    async def apply(self, undo):
        await DiskLatency.apply(self, undo)
        await anyio.sleep_forever()

    with anyio.move_on_after(1):
        await game.inject(game.fault(apply=apply, revert=slow_revert))
    assert game.disk_rules == {}
    assert game.events == ["fault.intent", "fault.reverted", "fault.gone"]


def test_a_plan_that_cannot_be_made_leaves_no_intent(game):
    with pytest.raises(FaultError, match="names no other host"):
        virtual_time.run(game.inject(game.fault(plan_more=raising(FaultError("names no other host")))))
    assert game.events == []


# the second proof


def test_a_fault_that_is_held_is_proven_again_just_before_its_revert(game):
    virtual_time.run(game.inject(game.fault(), hold={"for_s": 10}))
    assert game.events == [*WHOLE[:3], "fault.still", *WHOLE[3:]]
    assert game.entry("fault.still").t_ns / 1e9 == pytest.approx(10, abs=0.1)
    assert game.entry("fault.still").data["evidence"]["ok"]


@pytest.mark.lie
def test_an_effect_that_vanished_half_way_through_has_faded(game):
    """It was there at the beginning, and its revert finds it gone, as it should be: only the second proof can tell."""

    async def vanish():
        await anyio.sleep(5)
        game.disk_rules.clear()

    virtual_time.run(game.inject(game.fault(), inside=vanish, hold={"for_s": 10}))
    assert game.events == [*WHOLE[:3], "fault.faded", *WHOLE[3:]]
    evidence = game.entry("fault.faded").data["evidence"]
    assert not evidence["ok"]
    assert evidence["asked"] == "fsync takes 500ms"


def test_the_second_proof_ends_when_the_time_is_over(game):
    """It begins as long before as the first one took. The fault is in force for as long as was asked for, from when it
    was applied: it acts while it is proven.
    """

    async def slowly(self, undo, *, present):
        await anyio.sleep(2)
        return await DiskLatency.verify(self, undo, present=present)

    virtual_time.run(game.inject(game.fault(verify=slowly), hold={"for_s": 10}))
    assert game.entry("fault.reverted").t_ns - game.entry("fault.applied").t_ns == pytest.approx(10e9, rel=0.01)


@pytest.mark.parametrize(
    ("seen", "event"),
    [([0], "fault.faded"), ([0, 1, 0], "fault.faded"), ([0, 1, 1], "fault.still"), ([1], "fault.still")],
)
def test_an_observer_that_once_did_not_see_it_must_see_it_twice_in_a_row(game, seen, event):
    looks = iter([1, *seen, *[0] * 9])

    async def verify(self, undo, *, present):
        return Evidence(not present or bool(next(looks)), "planted", "planted")

    virtual_time.run(game.inject(game.fault(verify=verify), hold={"for_s": 10}))
    assert game.events[3] == event


@pytest.mark.parametrize(("own", "within_s"), [({}, PROVEN_WITHIN_S), ({"observed_within_s": 60.0}, 60.0)])
def test_an_observer_that_hangs_before_the_revert_has_proven_nothing(game, own, within_s):
    looks = iter([True, False])

    async def verify(self, undo, *, present):
        if present and not next(looks, False):
            await anyio.sleep_forever()
        return Evidence(ok=True, asked="planted", measured="planted")

    virtual_time.run(game.inject(game.fault(verify=verify, **own), hold={"for_s": 10}))
    assert game.entry("fault.faded").data["evidence"]["measured"] == "the observer never answered"
    assert 10 + within_s <= game.entry("fault.faded").t_ns / 1e9 <= 10 + within_s + 6
    assert game.events[-1] == "fault.gone"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("then", "event"),
    [([True], "fault.still"), ([False, False], "fault.faded"), ([False, None, True, True], "fault.still")],
    ids=["in force", "gone", "at first not"],
)
@pytest.mark.parametrize("silence", ["hangs", "fails"])
def test_an_observer_that_is_silent_for_a_while_is_asked_until_it_answers(game, silence, then, event):
    """An agent that is too busy to answer has not healed, and its silence must not hide that it has, either."""
    looks = iter([True, None, None, *then, *[False] * 9])

    async def verify(self, undo, *, present):
        if present and (seen := next(looks)) is None:
            if silence == "fails":
                raise TimeoutError("planted")
            await anyio.sleep_forever()
        return Evidence(ok=not present or seen, asked="planted", measured="planted")

    virtual_time.run(game.inject(game.fault(verify=verify, observed_within_s=60.0), hold={"for_s": 10}))
    assert game.events[3] == event
    assert game.entry(event).data["evidence"]["measured"] == "planted"


def test_what_is_done_once_need_not_last(game):
    virtual_time.run(game.inject(game.fault(once=True), hold={"for_s": 10}))
    assert game.events == WHOLE


def test_what_another_fault_was_meant_to_undo_is_not_asked_for(game):
    compacted = lambda kinds: "consul.raft.compact" if "consul.raft.compact" in kinds else ""  # noqa: E731
    fault = game.fault(undone_by=frozenset({"consul.raft.compact"}))
    virtual_time.run(game.inject(fault, hold={"for_s": 10, "undone_by": compacted}))
    assert game.entry("fault.undone").data["by"] == "consul.raft.compact"


# a disk that is full under the journal


@pytest.fixture
def full_from(monkeypatch):
    """From that event on, the journal's disk takes nothing more."""

    def plan(event):
        write = Journal.write
        full = []

        def refuse(journal, what, **more):
            if what == event or full:
                full.append(what)
                raise OSError(28, "No space left on device")
            return write(journal, what, **more)

        monkeypatch.setattr(Journal, "write", refuse)
        return full

    return plan


@pytest.mark.lie
@pytest.mark.parametrize("event", ["fault.applied", "fault.proven", "fault.reverted", "fault.gone"])
def test_a_full_disk_keeps_no_fault_in_force_and_no_proof_from_being_taken(game, full_from, event):
    looked = []

    async def verify(self, undo, *, present):
        looked.append(present)
        return await DiskLatency.verify(self, undo, present=present)

    full_from(event)
    with pytest.raises(OSError, match="No space left"):
        virtual_time.run(game.inject(game.fault(verify=verify)))
    assert game.disk_rules == {}
    assert looked[-1] is False


@pytest.mark.lie
@pytest.mark.parametrize("event", ["fault.applied", "fault.stuck"])
def test_a_fault_that_stays_is_told_although_the_journal_cannot_hold_it(game, full_from, event):
    full = full_from(event)
    with pytest.raises(RevertError, match="could not be reverted: OSError: the host does not answer"):
        virtual_time.run(game.inject(game.fault(revert=raising(OSError("the host does not answer")))))
    assert full[-1] == "fault.stuck"


def test_a_fault_that_is_still_seen_is_told_although_the_journal_cannot_hold_it(game, full_from):
    async def verify(self, undo, *, present):
        return Evidence(ok=present, asked="slow", measured="slow as ever")

    full_from("fault.stuck")
    with pytest.raises(RevertError, match="still seen"):
        virtual_time.run(game.inject(game.fault(verify=verify)))
