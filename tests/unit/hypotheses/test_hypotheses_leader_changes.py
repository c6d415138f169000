"""Do writes go on while leadership moves about?"""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder

LEADERS = ("consul-1", "consul-2", "consul-3", "consul-1")


def moving(t):
    """Another leader every five seconds of the method, half a second after the last one was lost."""
    turn, since = divmod(t - 10, 5)
    if turn < 0:
        return LEADERS[0]
    return "" if turn and since < 0.5 and turn < 4 else LEADERS[min(int(turn), 3)]


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("process.pause", "consul-1", at=10, until=30).leader(moving)


def check(builder, **params):
    return hypothesis.get("survives_leader_changes").check(builder.build(), {"load": "kv-writes", **params})


def test_holds_when_writes_go_on_through_every_change(builder):
    lost = lambda t: "fail" if 10 < t < 30 and (t - 10) % 5 < 0.5 else "ok"  # noqa: E731
    held = check(builder.load("kv-writes", outcome=lost))
    assert held.figures["leader_changes"] == 3
    assert held.figures["leaders"] == 3
    assert held.figures["longest_stall_s"] == pytest.approx(0.52, abs=0.03)


def test_a_planted_stall_is_caught(builder):
    stalls = lambda t: "unknown" if 15 <= t < 22 else "ok"  # noqa: E731
    with pytest.raises(Broken, match=r"no operation was acknowledged for 7\.02s \(15\.0s into the run\)") as broken:
        check(builder.load("kv-writes", outcome=stalls))
    assert "then consul-2 15.5s into the run" in broken.value.text


def test_one_long_answer_for_all_is_a_stall_too(builder):
    """Nothing failed, but all that was due in six seconds was answered at their end."""
    with pytest.raises(Broken):
        check(builder.load("kv-writes", latency=lambda t: 21.0 - t if 15 <= t < 21 else 0.01))


BLINKS = lambda t: "" if 12 <= t < 14 else "consul-1"  # noqa: E731


@pytest.mark.parametrize("leader", [BLINKS, "consul-1"], ids=["seen gone", "never seen gone"])
def test_a_leader_that_is_elected_again_is_a_change(tmp_path, leader):
    builder = RecordingBuilder(tmp_path / "run").fault("process.restart", "consul-1", at=10, until=30)
    builder.leader(leader, term=lambda t: 2 if t < 13 else 3)
    assert check(builder.load("kv-writes"), changes=1).figures["leader_changes"] == 1


@pytest.mark.parametrize("term", [2, None])
def test_a_leader_that_comes_back_in_its_term_or_in_an_unknown_one_is_no_change(tmp_path, term):
    builder = RecordingBuilder(tmp_path / "run").fault("process.pause", "consul-1", at=10, until=30)
    builder.leader(BLINKS, term=lambda _: term)
    with pytest.raises(HypothesisInvalidError, match="changed 0 times, expected at least 1"):
        check(builder.load("kv-writes"), changes=1)


def test_too_few_changes_are_invalid(builder):
    with pytest.raises(HypothesisInvalidError, match="changed 3 times, expected at least 4"):
        check(builder.load("kv-writes"), changes=4)
