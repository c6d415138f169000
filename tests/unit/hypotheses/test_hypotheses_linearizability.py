"""`linearizable` over whole recordings: a sound one, and one planted violation after the other."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.products.consul.loads.cas import Step
from hashidrill.testing.recordings import RecordingBuilder

KEY = "hashidrill/registers/run/0"


class History:
    """A recording of a `consul.kv.cas` load, an operation a line."""

    def __init__(self, path):
        self.builder = RecordingBuilder(path / "run").fault("process.pause", "consul-1", at=10, until=20)

    def op(self, step, start, end, *, outcome="ok", key=KEY):
        value, detail = step.value or "", step.detail()
        self.builder.write("registers", key, value, start=start, end=end, outcome=outcome, detail=detail)
        return self

    def read(self, value, index, start, end, **more):
        return self.op(Step("read", value, index), start, end, **more)

    def write(self, value, start, end, **more):
        return self.op(Step("write", value), start, end, **more)

    def cas(self, expected, index, value, start, end, *, hit=True, **more):
        return self.op(Step("cas" if hit else "miss", value, index, expected), start, end, **more)

    def finally_holds(self, value):
        self.builder.only_final_reads("registers", {KEY: value})
        return self

    def check(self, **params):
        return hypothesis.get("linearizable").check(self.builder.build(), {"load": "registers", **params})


@pytest.fixture
def history(tmp_path):
    """Two clients: a first value, read by both, and one of them puts r.2."""
    return (
        History(tmp_path)
        .write("r.0", 5, 5.1)
        .read("r.0", 10, 6, 6.1)
        .read("r.0", 10, 6.01, 6.11)
        .cas("r.0", 10, "r.2", 11, 11.5)
    )


def test_holds_when_one_order_explains_it(history):
    held = history.cas("r.0", 10, "r.3", 11, 11.6, hit=False).read("r.2", 14, 12, 12.1).finally_holds("r.2").check()
    assert (held.figures["keys"], held.figures["cas"], held.figures["cas_missed"]) == (1, 1, 1)
    assert "registers is linearizable on 1 keys: 7 answered operations" in held.text


@pytest.mark.lie
def test_it_says_how_many_were_answered_under_the_fault_and_is_invalid_where_none_was(history, tmp_path):
    held = history.read("r.2", 14, 12, 12.1).check()
    assert "2 of them answered while a fault was in force" in held.text
    after = History(tmp_path / "after").write("r.0", 25, 25.1).read("r.0", 10, 26, 26.1)
    with pytest.raises(HypothesisInvalidError, match="no operation of registers was answered while a fault was in"):
        after.check()


def test_a_stale_read_is_caught_and_the_operations_that_cannot_be_are_named(history):
    with pytest.raises(Broken) as broken:
        history.read("r.0", 10, 12, 12.1).finally_holds("r.2").check()
    assert broken.value.figures["broken_keys"] == [KEY]
    assert "no order explains these" in broken.value.text
    assert "cas #0 -> #2 (11.0s into the run, 500.0ms long)" in broken.value.text
    assert "read #0 (12.0s into the run, 100.0ms long)" in broken.value.text


IMPOSSIBLE = {
    "a cas that succeeded twice": (lambda h: h.cas("r.0", 10, "r.3", 11, 11.6).finally_holds("r.3"), "cas #0 -> #3"),
    "a lost update, which the final read alone shows": (lambda h: h.finally_holds("r.0"), r"read #0 \(50\.0s into the"),
    "a cas that missed without a reason": (
        lambda h: h.read("r.2", 14, 12, 12.1).cas("r.2", 14, "r.5", 13, 13.1, hit=False).finally_holds("r.2"),
        "refused: the key did not hold #2",
    ),
    "a value that comes back": (lambda h: h.read("r.2", 14, 12, 12.1).read("r.0", 10, 13, 13.1), "no order explains"),
    "an unknown write, read before it was sent": (
        lambda h: h.read("r.7", 30, 11.8, 11.9).write("r.7", 12, 22, outcome="unknown"),
        "#7",
    ),
    "a refused write": (lambda h: h.write("r.7", 12, 12.1, outcome="fail").read("r.7", 30, 13, 13.1), "#7"),
}


@pytest.mark.parametrize("plant", IMPOSSIBLE)
def test_what_no_order_explains_is_caught(history, plant):
    build, said = IMPOSSIBLE[plant]
    with pytest.raises(Broken, match=said):
        build(history).check()


@pytest.mark.parametrize("last", ["r.2", "r.7"])
def test_an_unknown_write_may_take_effect_late_or_never(history, last):
    history.write("r.7", 12, 22, outcome="unknown").read("r.2", 14, 23, 23.1).read(last, 30, 45, 45.1)
    assert history.finally_holds(last).check()


def test_one_bad_key_among_good_ones_is_named(history):
    history.write("r.8", 5, 6, key="other").read("r.8", 3, 7, 8, key="other").read(None, 0, 9, 10, key="other")
    with pytest.raises(Broken) as broken:
        history.check()
    assert broken.value.figures["broken_keys"] == ["other"]
    assert "read nothing" in broken.value.text


def test_what_is_not_decided_is_invalid(tmp_path):
    hard = History(tmp_path).write("r.0", 4, 4.1)
    for n in range(1, 9):
        hard.write(f"r.{n}", 10, 20).cas(f"r.{n}", 0, f"r.{n + 20}", 10, 20)
    hard.cas("r.21", 0, "r.50", 10, 20).cas("r.21", 0, "r.51", 10, 20).read("r.50", 0, 25, 26)
    with pytest.raises(HypothesisInvalidError, match=f"undecided after 100 configurations: {KEY}"):
        hard.check(configurations=100)


@pytest.mark.parametrize("outcome", ["fail", "unknown"])
def test_nothing_acknowledged_is_invalid(tmp_path, outcome):
    with pytest.raises(HypothesisInvalidError, match="nothing to judge"):
        History(tmp_path).write("r.0", 5, 6, outcome=outcome).read(None, 0, 7, 8).check()


def test_another_load_is_invalid(tmp_path):
    builder = RecordingBuilder(tmp_path / "run").load("kv-writes")
    with pytest.raises(HypothesisInvalidError, match=r"not an operation of a consul\.kv\.cas load"):
        hypothesis.get("linearizable").check(builder.build(), {"load": "kv-writes"})
