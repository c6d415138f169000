"""contrast: what holds for the good client is broken for the bad one; anything else is a finding, or no verdict."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder


def sick(at):
    return "fail" if 10 <= at < 30 else "ok"


@pytest.fixture
def recording(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").fault("tap.fail", at=10, until=30)
    return builder.load("good").load("bad", outcome=sick).load("worse", outcome=sick).build()


def check(recording, **params):
    return hypothesis.get("contrast").check(recording, {"of": "available_during", **params})


def test_it_holds_where_the_good_one_holds_and_the_bad_one_is_broken(recording):
    held = check(recording, good="good", bad="bad", params={"success": "95%"})
    assert "good holds: 100% of 1000 good operations were acknowledged" in held.text
    assert "bad breaks, as expected: bad was not available" in held.text
    assert (held.figures["good_success_share"], held.figures["bad_success_share"]) == (1, 0)


def test_a_good_one_that_is_broken_is_a_finding(recording):
    with pytest.raises(Broken, match=r"available_during is broken for the good side .bad.: bad was not available"):
        check(recording, good="bad", bad="worse")


def test_a_bad_one_that_holds_as_well_shows_no_difference(recording):
    with pytest.raises(Broken, match=r"holds for the bad side too .good.") as broken:
        check(recording, good={"load": "good"}, bad={"load": "good", "success": "50%"})
    assert broken.value.figures["bad_success_share"] == 1


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ({"good": "nobody", "bad": "bad"}, r"for the good side \(nobody\): load 'nobody' has no operations"),
        ({"good": "good", "bad": "nobody"}, r"for the bad side \(nobody\): load 'nobody' has no operations"),
        ({"good": {"load": "good", "succes": "5%"}, "bad": "bad"}, r"for the good side \(good\): succes"),
        ({"good": "good", "bad": {"success": "5%"}}, r"for the bad side \(success=5%\): load"),
    ],
)
def test_where_one_side_cannot_be_judged_neither_can_the_contrast(recording, sides, said):
    with pytest.raises(HypothesisInvalidError, match=said):
        check(recording, **sides)


def test_each_side_may_have_parameters_of_its_own(recording):
    held = check(recording, good={"load": "bad", "success": "0%"}, bad="worse", params={"success": "50%"})
    assert "bad holds: 0% of 1000" in held.text
