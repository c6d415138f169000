"""A write that is lost during a fault is seen, whatever the load writes after it; and what cannot be seen is said."""

import random
import sys

import numpy as np
import pytest

import places
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.hypothesis import Broken
from hashidrill.core.loads.context import LoadContext
from hashidrill.core.loads.schedule import Turns
from hashidrill.core.recording.reader import Operations
from hashidrill.products.consul.loads.kv import ONCE_PREFIX, KvWrite
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"
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


def check(builder):
    return hypothesis.get("no_acknowledged_write_lost").check(builder.build(), {"load": LOAD})


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
