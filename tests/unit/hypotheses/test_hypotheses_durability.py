"""no_acknowledged_write_lost: a last-write register check, and a brute-force oracle to keep it honest."""

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.core.recording.reader import Operations
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run").fault("process.kill", "consul-1", at=10, until=30)


def check(builder):
    return hypothesis.get("no_acknowledged_write_lost").check(builder.build(), {"load": LOAD})


def written(builder):
    return builder.write(LOAD, "a", "x", start=11, end=12)


def both_written(builder):
    return written(builder).write(LOAD, "b", "y", start=11, end=12)


def refused(builder):
    over = {"outcome": "fail", "error": "429 over the limit"}
    return written(builder).write(LOAD, "a", "y", start=13, end=14, **over).final_reads(LOAD, {"a": "y"})


FATES = {
    "it is missing": (lambda b: written(b).final_reads(LOAD, {"a": None}), Broken, "the key is absent at the end"),
    "nobody wrote it": (lambda b: written(b).final_reads(LOAD, {"a": "ghost"}), Broken, "'ghost', which nobody wrote"),
    "its write was refused": (refused, Broken, r"whose write was refused \(429 over the limit\)"),
    "it is another key's": (lambda b: both_written(b).final_reads(LOAD, {"a": "y"}), Broken, "phantom values: a"),
    "there are no final reads": (lambda b: b.load(LOAD), HypothesisInvalidError, "reads of kv-writes are missing"),
    "nothing was acknowledged": (
        lambda b: b.load(LOAD, outcome="unknown").only_final_reads(LOAD, {"kv-writes/0": None}),
        HypothesisInvalidError,
        "no write of kv-writes was acknowledged",
    ),
    "a key was never read at the end": (
        lambda b: both_written(b).only_final_reads(LOAD, {"a": "x"}),
        HypothesisInvalidError,
        "the final reads of kv-writes miss 1 keys with acknowledged writes: b",
    ),
}


class TestFindings:
    def test_holds_when_every_key_holds_its_last_write(self, builder):
        held = check(builder.load(LOAD).final_reads(LOAD))
        assert held.figures["acknowledged_writes"] == 46 * 50
        assert "none was lost" in held.text

    def test_an_older_value_at_the_end_is_a_loss_and_the_key_is_named(self, builder):
        builder.write(LOAD, "a", "old", start=11, end=12).write(LOAD, "a", "new", start=13, end=14)
        with pytest.raises(Broken) as broken:
            check(builder.final_reads(LOAD, {"a": "old"}))
        assert "kv-writes lost acknowledged writes on 1 keys: a" in broken.value.text
        assert "a: 'new' was acknowledged 14.0s into the run, but the key holds the older 'old'" in broken.value.text
        assert broken.value.figures["lost_keys"] == ["a"]

    @pytest.mark.parametrize("fate", FATES)
    def test_a_key_says_what_is_wrong_with_it(self, builder, fate):
        build, error, said = FATES[fate]
        with pytest.raises(error, match=said):
            check(build(builder))

    def test_a_load_that_claims_writes_which_are_not_there_is_caught(self, builder):
        """The first ten keys are named, all are counted."""
        for index in range(25):
            builder.write(LOAD, f"claimed/{index:02}", "x", start=11, end=12)
        with pytest.raises(
            Broken, match=r"lost acknowledged writes on 25 keys: claimed/00, .*, claimed/09 and 15 more"
        ):
            check(builder.final_reads(LOAD, {f"claimed/{index:02}": None for index in range(25)}))


class TestWhatIsNoLoss:
    def test_either_of_two_concurrent_writes_may_be_last(self, builder):
        builder.write(LOAD, "a", "x", start=11, end=14).write(LOAD, "a", "y", start=13, end=15)
        assert check(builder.final_reads(LOAD, {"a": "x"}))

    def test_a_write_of_unknown_outcome_may_take_effect_any_time_later(self, builder):
        builder.write(LOAD, "a", "late", start=11, end=12, outcome="unknown").write(LOAD, "a", "y", start=20, end=21)
        builder.write(LOAD, "b", "z", start=20, end=21)
        assert check(builder.final_reads(LOAD, {"a": "late"}))

    def test_a_key_without_acknowledged_writes_may_be_absent(self, builder):
        builder.write(LOAD, "a", "x", start=11, end=12, outcome="unknown").write(LOAD, "b", "y", start=11, end=12)
        assert check(builder.final_reads(LOAD, {"a": None}))


# -- against an oracle ------------------------------------------------------------------------------------------------


def check_registers(writes, final):
    """The shipped checker on one key; True when it finds nothing wrong."""
    import numpy as np

    found = hypothesis.get("no_acknowledged_write_lost")
    module = sys.modules[found.function.__module__]
    columns = list(zip(*writes, strict=True)) if writes else [(), (), (), ()]
    start, end = (np.array(column, np.int64) for column in columns[:2])
    count = len(writes)
    ops = Operations(
        start,
        start,
        end,
        np.array(columns[2], dtype=np.str_),
        np.zeros(count, np.int64),
        ["k"] * count,
        list(columns[3]),
        [""] * count,
    )
    result = module.check_registers(ops, {"k": final})
    return not result.lost and not result.phantoms


def possible(writes, final):
    """Brute force: is there an order of instants, one inside each write, after which the register holds `final`?

    Acknowledged writes all take effect between their start and end; unknown ones do at any time after their start, or
    never; refused ones never do. An order of the writes is possible when instants can be given that never go back.
    """
    must = [write for write in writes if write[2] == "ok"]
    may = [write for write in writes if write[2] == "unknown"]
    for size in range(len(may) + 1):
        for extra in itertools.combinations(may, size):
            for order in itertools.permutations([*must, *extra]):
                if (order[-1][3] if order else None) == final and _fits(order):
                    return True
    return False


def _fits(order):
    instant = float("-inf")
    for start, end, outcome, _ in order:
        instant = max(instant, start)
        if outcome == "ok" and instant > end:
            return False
    return True


@st.composite
def histories(draw):
    """Up to five writes of one key, each with a value of its own, and what the key holds in the end."""
    writes = []
    for index in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, 8))
        end = start + draw(st.integers(0, 5))
        writes.append((start, end, draw(st.sampled_from(["ok", "ok", "unknown", "fail"])), f"v{index}"))
    final = draw(st.sampled_from([None, "ghost", *(write[3] for write in writes)]))
    return writes, final


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(histories())
def test_agrees_with_brute_force_on_every_small_history(history):
    writes, final = history
    assert check_registers(writes, final) == possible(writes, final)


@st.composite
def simulated(draw):
    """A register that works, and clients that talk to it at the same time, each doing one write after another."""
    writes, register = [], None
    effects = []
    for client in range(draw(st.integers(1, 3))):
        now = 0
        for index in range(draw(st.integers(1, 4))):
            start = now + draw(st.integers(1, 3))
            effect = start + draw(st.integers(0, 3))
            end = effect + draw(st.integers(0, 3))
            outcome = draw(st.sampled_from(["ok", "ok", "ok", "unknown"]))
            value = f"c{client}-{index}"
            writes.append((start, end, outcome, value))
            if outcome == "ok" or draw(st.booleans()):
                effects.append((effect, draw(st.integers(0, 9)), value))
            now = end
    if effects:
        register = max(effects)[2]
    return writes, register


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(simulated())
def test_a_register_that_works_is_never_accused(history):
    writes, register = history
    assert check_registers(writes, register)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(simulated(), st.data())
def test_a_planted_loss_is_always_caught(history, data):
    """One more acknowledged write begins after everything is over, and then the register loses it."""
    writes, _ = history
    last = max(end for _, end, _, _ in writes) + 1
    older = [None, *(value for _, _, outcome, value in writes if outcome == "ok")]
    assert not check_registers([*writes, (last, last + 1, "ok", "lost")], data.draw(st.sampled_from(older)))
