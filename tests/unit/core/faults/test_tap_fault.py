"""tap.fail: every class of failure keeps the contract of a fault in memory, and its proof counts what was seen."""

import anyio
import pytest
from pydantic import ValidationError

from hashidrill.core.engine.inject import fault_from_undo
from hashidrill.core.faults.tap import TapFail
from hashidrill.core.protocols.abc import Target
from hashidrill.core.tap.catalogue import FAULTS
from hashidrill.core.tap.plans import UNSEEN
from hashidrill.lab.local.hosts import LocalTap
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.faults import check_fault

CLASSES = sorted(FAULTS.keys() - UNSEEN)
TARGET = Target("careful", "10.73.0.2", "client")


def fault(world, **params):
    return TapFail(TapFail.Params.model_validate(params), world)


@pytest.mark.parametrize("percent", ["100%", "30%"])
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_keeps_the_contract_of_a_fault(name, percent):
    world = FakeDatacenter()
    report = anyio.run(check_fault, fault(world, fault=name, percent=percent), TARGET)
    assert report.present.figures["exchanges"] == (18 if percent == "100%" else 273)
    assert list(world.tap("careful").faults.faults) == []


async def test_it_is_seen_when_it_was_disarmed_behind_its_back():
    world = FakeDatacenter()
    one = fault(world, fault="503", percent="50%")
    undo = one.plan(TARGET, fault_id="0-tap.fail-careful")

    await one.apply(undo)
    armed = await one.verify(undo, present=True)
    await world.tap("careful").let_pass("0-tap.fail-careful")
    after, gone = await one.verify(undo, present=True), await one.verify(undo, present=False)
    assert (armed.ok, after.ok, gone.ok) == (True, False, True)
    assert after.measured == "144 of 144 exchanges: 200"


async def test_a_fresh_process_reverts_from_what_the_journal_holds():
    world = FakeDatacenter()
    one = fault(world, fault="hang", percent="30%", seed=3)
    undo = dict(one.plan(TARGET, fault_id="0-tap.fail-careful"))
    assert undo["params"] == {"fault": "hang", "percent": "30%", "seed": 3}

    await one.apply(undo)
    await fault_from_undo(undo, world).revert(undo)
    assert set(await world.tap("careful").look("hang", 60)) == {"200"}


class Seeing(FakeDatacenter):
    """Its taps show what the test says."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def tap(self, client):
        return self

    async def look(self, fault, tries):
        assert len(self.seen) == tries
        return self.seen


@pytest.mark.parametrize(
    ("percent", "seen", "present", "gone"),
    [
        ("100%", ["503"] * 18, True, False),
        ("100%", ["503"] * 17 + ["200"], False, False),
        ("100%", ["429"] * 18, False, True),
        ("100%", ["503-retry-after"] * 18, False, True),
        ("100%", ["200"] * 18, False, True),
        ("30%", ["503"] * 82 + ["200"] * 191, True, False),
        ("30%", ["503"] * 48 + ["200"] * 225, True, False),
        ("30%", ["503"] * 47 + ["200"] * 226, False, False),
        ("30%", ["503"] * 119 + ["200"] * 154, True, False),
        ("30%", ["503"] * 120 + ["200"] * 153, False, False),
        ("5%", ["200"] * 1880, False, True),
        ("30%", ["503"] + ["200"] * 272, False, False),
    ],
)
async def test_the_share_that_is_seen_is_the_share_that_was_asked_for(percent, seen, present, gone):
    one = fault(Seeing(seen), fault="503", percent=percent)
    undo = one.plan(TARGET, fault_id="x")

    assert ([(await one.verify(undo, present=asked)).ok for asked in (True, False)]) == [present, gone]


@pytest.mark.lie
async def test_a_small_share_that_is_in_force_is_never_proven_gone():
    """60 exchanges missed 5 % once in twenty looks, and an observer looks until it agrees."""
    world = FakeDatacenter()
    one = fault(world, fault="503", percent="5%")
    undo = one.plan(TARGET, fault_id="x")

    await one.apply(undo)
    assert not any([(await one.verify(undo, present=False)).ok for _ in range(100)])


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"fault": "refused"}, "network.block with action: reject"),
        ({"fault": "dns"}, "network.block with action: reject"),
        ({"fault": "505"}, "the tap has no fault '505'"),
        ({"fault": "503", "percent": "0%"}, "means no fault"),
        ({"fault": "503", "percent": "4%"}, "percent must be at least 5%"),
        ({"fault": "503", "percent": "130%"}, "percent"),
        ({}, "fault"),
    ],
)
def test_what_a_tap_cannot_give_is_refused(params, said):
    with pytest.raises(ValidationError) as error:
        TapFail.Params.model_validate(params)
    assert said in str(error.value)


def test_a_tap_that_is_gone_with_its_client_has_nothing_to_revert(tmp_path):
    anyio.run(LocalTap("careful", tmp_path / "tap-careful").let_pass, "0-tap.fail-careful")
