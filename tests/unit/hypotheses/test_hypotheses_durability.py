"""no_acknowledged_write_lost: a last-write register check, and a brute-force oracle to keep it honest.
A write that is lost during a fault is seen, whatever the load writes after it; and what cannot be seen is said.
"""

import itertools
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import places
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.hypothesis import Broken
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.schedule import Turns
from hashidrill.core.recording.reader import Operations
from hashidrill.products.consul.loads.kv import ONCE_PREFIX, KvWrite
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


EXPERIMENTS = places.ROOT / "experiments"
STEADY_AT_S, METHOD_AT_S, TOOK_S = 4.0, 10.0, 0.01
DEMO = {"rate": "50/s", "keys": 500, "value": "512B"}
"""What experiments/raft/slow-leader-disk.yaml asks for, and so the demo."""


class Store:
    """What a load of `consul.kv.write` offers from 4 s to `until`, and a store that drops what it is told to drop."""

    def __init__(self, until=50.0, **params):
        load = KvWrite(LOAD, KvWrite.Params.model_validate(params), LoadContext(["http://nobody"]))
        rate = float(load.params.rate)
        self.at = [STEADY_AT_S + n / rate for n in range(round((until - STEADY_AT_S) * rate))]
        self.writes = [load._plan(n) for n in range(len(self.at))]

    def inside(self, start, end):
        """The writes that are acknowledged from `start` to `end`."""
        return [n for n, at in enumerate(self.at) if start <= at + TOOK_S < end]

    def holds(self, dropped):
        """What each key holds in the end, when those writes were acknowledged and thrown away."""
        held = dict.fromkeys(key for key, _ in self.writes)
        return held | {key: value for n, (key, value) in enumerate(self.writes) if n not in dropped}

    def judged(self, path, dropped=frozenset(), *, faults=((10, 30),), outcome=lambda _at: "ok"):
        """By the shipped hypothesis, over a recording. What is not `ok` has not taken effect."""
        builder = RecordingBuilder(path)
        for start, end in faults:
            builder.fault("disk.latency", "consul-1", at=start, until=end)
        failed = set()
        for n, ((key, value), at) in enumerate(zip(self.writes, self.at, strict=True)):
            builder.write(LOAD, key, value, start=at, end=at + TOOK_S, outcome=outcome(at))
            failed |= {n} if outcome(at) != "ok" else set()
        builder.only_final_reads(LOAD, self.holds(failed | set(dropped)))
        return hypothesis.get("no_acknowledged_write_lost").check(builder.build(), {"load": LOAD})

    def accused(self, dropped):
        """Whether the registers are found to have lost anything: the same check, without a recording for each try."""
        return bool(registers()(self.operations, self.holds(dropped)).lost)

    @property
    def operations(self):
        at, count = (np.array(self.at) * 1e9).astype(np.int64), len(self.at)
        keys, values = map(list, zip(*self.writes, strict=True))
        took = int(TOOK_S * 1e9)
        return Operations(
            at, at, at + took, np.array(["ok"] * count), np.zeros(count, np.int64), keys, values, [""] * count
        )


def registers():
    return sys.modules[hypothesis.get("no_acknowledged_write_lost").function.__module__].check_registers


@pytest.mark.lie
def test_a_store_that_throws_away_all_that_it_acknowledged_during_the_fault_is_caught(tmp_path):
    store = Store(**DEMO)
    with pytest.raises(Broken, match=r"kv-writes lost acknowledged writes on 1000 keys") as broken:
        store.judged(tmp_path / "run", store.inside(10, 30))
    assert broken.value.figures["lost"] == 1000


@pytest.mark.lie
@pytest.mark.parametrize("seed", range(20))
def test_a_store_that_drops_one_in_a_hundred_during_the_fault_is_caught(seed, tmp_path):
    store, rng = Store(**DEMO), random.Random(seed)
    dropped = [n for n in store.inside(10, 30) if rng.random() < 0.01]
    assert dropped
    with pytest.raises(Broken):
        store.judged(tmp_path / "run", dropped)


KEYED = {"consul.kv.write", "vault.kv.write"}
"""Loads that write to their keys again; a nomad.dispatch is a job of its own each time."""


def shipped(name):
    return [
        pytest.param(experiment, each.params["load"], id=path.stem)
        for path in list_experiments(EXPERIMENTS)
        for experiment in [load_experiment(path)]
        for each in experiment.expect
        if each.hypothesis == name and experiment.load[each.params["load"]].kind in KEYED
    ]


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize(("experiment", "load"), shipped("no_acknowledged_write_lost"))
def test_every_shipped_experiment_sees_one_in_a_hundred_dropped_in_any_of_its_faults(experiment, load, tmp_path):
    """20 of 20, with the numbers of the file, for each step by itself; and the honest store is not accused."""
    faults = [(METHOD_AT_S + float(s.at), METHOD_AT_S + float(s.at + s.for_)) for s in experiment.method]
    until = max(end for _, end in faults) + float(experiment.recovery.for_)
    store = Store(until, **experiment.load[load].params)
    figures = store.judged(tmp_path / "honest", faults=faults).figures
    assert figures["checkable_in_force"] > 0.9 * figures["acknowledged_in_force"] > 0
    for start, end in faults:
        inside = store.inside(start, end)
        for seed in range(20):
            dropped = set(random.Random(seed).sample(inside, max(1, len(inside) // 100)))
            assert store.accused(dropped), f"{len(dropped)} of {len(inside)} dropped from {start} to {end}, unseen"


class TestWhatTheVerdictSays:
    def test_how_many_acknowledged_writes_were_checkable_and_how_many_of_them_from_inside_the_fault(self, tmp_path):
        held = Store(**DEMO, once="50%").judged(tmp_path / "run", faults=[(10, 20)])
        # the half that goes to 500 keys in turn: 1,150 writes, and the last 500 of them are there
        assert "1650 of 2300 acknowledged writes checkable, 250 of them acknowledged while disk.latency on" in held.text
        assert "was in force (of 500): none was lost" in held.text
        assert held.figures["checkable_in_force"] == 250

    def test_writes_that_were_all_overwritten_since_are_invalid_and_no_pass(self, tmp_path):
        with pytest.raises(
            HypothesisInvalidError,
            match=r"500 writes of kv-writes were acknowledged while disk.latency"
            r" on consul-1 was in force, .* 0 of them can be checked \(needed: 250\)",
        ):
            Store(**DEMO, once="0%").judged(tmp_path / "run", faults=[(10, 20)])

    @pytest.mark.lie
    def test_a_fault_of_which_nothing_can_be_checked_is_not_hidden_by_another_one(self, tmp_path):
        """The second fault ends with the run: its writes are the last of their keys, those of the first are not."""
        with pytest.raises(HypothesisInvalidError, match=r"500 writes .* but only 0 of them"):
            Store(**DEMO, once="0%").judged(tmp_path / "run", faults=[(10, 20), (40, 50)])

    def test_what_was_acknowledged_just_before_the_fault_has_to_be_checkable_too(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match=r"250 writes .* in the 5s before disk.latency on consul-1"):
            Store(**DEMO, once="0%").judged(tmp_path / "run", faults=[(39, 50)])

    def test_a_fault_during_which_nothing_was_acknowledged_is_judged_by_what_came_before_it(self, tmp_path):
        stopped = lambda at: "unknown" if 9.975 <= at < 20 else "ok"  # noqa: E731 - what is in flight at its start
        held = Store(**DEMO).judged(tmp_path / "run", faults=[(10, 20)], outcome=stopped)
        assert (
            "none was acknowledged while disk.latency on consul-1 was in force; 249 of the 249 acknowledged in the"
            in held.text
        )
        assert (held.figures["acknowledged_in_force"], held.figures["checkable_in_force"]) == (0, 0)

    @pytest.mark.lie
    def test_a_write_lost_just_before_a_fault_during_which_nothing_was_acknowledged_is_caught(self, tmp_path):
        stopped = lambda at: "unknown" if 9.985 <= at < 20 else "ok"  # noqa: E731 - as above
        store = Store(**DEMO)
        with pytest.raises(Broken, match=r"was acknowledged 10.0s into the run"):
            store.judged(tmp_path / "run", store.inside(9.97, 9.99), faults=[(10, 20)], outcome=stopped)

    def test_a_load_that_had_nothing_to_lose_is_invalid(self, tmp_path):
        """Acknowledged long before the fault, and after it: the fault could lose none of it."""
        quiet = lambda at: "unknown" if 14 <= at < 40 else "ok"  # noqa: E731 - nothing around the fault
        with pytest.raises(HypothesisInvalidError, match="so the fault had nothing to lose"):
            Store(**DEMO).judged(tmp_path / "run", faults=[(20, 30)], outcome=quiet)

    def test_a_noop_beside_a_fault_does_not_stand_in_for_it(self, tmp_path):
        run = RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load(LOAD, keys=50, end=48)
        with pytest.raises(HypothesisInvalidError, match=r"0 of them can be checked"):
            check(run.fault("process.kill", at=12, until=14).load(LOAD, start=48).final_reads(LOAD))

    def test_a_noop_alone_is_the_window_of_time_that_it_is_there_for(self, tmp_path):
        held = check(RecordingBuilder(tmp_path / "run").fault("noop", at=10, until=30).load(LOAD).final_reads(LOAD))
        assert held.figures["checkable_in_force"] == 1000

    def test_a_run_without_any_fault_is_invalid(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match=r"no fault was applied in this run"):
            check(RecordingBuilder(tmp_path / "run").load(LOAD).final_reads(LOAD))


class TestTurns:
    def kinds(self, once, count, *, keys=7, most=20_000):
        turns = Turns(once, keys, most)
        return turns, [turns.next() for _ in range(count)]

    @pytest.mark.parametrize("once", [0.0, 0.1, 0.5, 0.9, 1.0])
    def test_the_share_is_spread_evenly(self, once):
        _, kinds = self.kinds(once, 5000)
        for start in range(0, 5000, 10):
            assert sum(own for own, _ in kinds[start : start + 10]) == round(10 * once)

    def test_no_key_is_used_twice_but_those_in_turn(self):
        _, kinds = self.kinds(0.9, 1000)
        assert [number for own, number in kinds if own] == list(range(900))
        assert [number for own, number in kinds if not own] == [n % 7 for n in range(100)]

    @pytest.mark.long
    def test_a_long_run_leaves_a_bounded_number_of_keys_and_some_in_every_second(self):
        turns, kinds = self.kinds(1.0, 1_000_000, most=1000)
        assert turns.once < 1000 * 8
        assert sum(own for own, _ in kinds[-2000:]) >= 1

    def test_a_load_of_large_values_leaves_less(self):
        load = KvWrite(
            LOAD, KvWrite.Params.model_validate({"rate": "1/s", "value": "512KiB"}), LoadContext(["http://x"])
        )
        once = [key for key, _ in map(load._plan, range(2000)) if key.startswith(ONCE_PREFIX)]
        assert len(once) * 512 * 1024 < 32e6 * 5
