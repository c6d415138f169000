"""When harm begins and ends: from the intent of a fault, from the loss of a leader, and with the end of the loads."""

import pytest

from confusion_cases import REPLICAS, at_work, nodes, registered
from confusion_stack import HEAL, reset
from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.lie

LOAD = "kv-writes"


def check(builder, name, **params):
    return hypothesis.get(name).check(builder.build(), params)


def run(tmp_path, kind="consul.snapshot.restore", **fault):
    """A fault whose apply takes ten seconds: from 10 s to 20 s."""
    return RecordingBuilder(tmp_path / "run").fault(kind, at=10, **{"until": 30, "applied": 20, **fault})


def moved(lost, found, to="consul-2"):
    return lambda t: "consul-1" if t < lost else "" if t < found else to


class TestWhileItIsApplied:
    def test_ten_seconds_of_failing_writes_are_its_doing(self, tmp_path):
        failing = run(tmp_path).load(LOAD, outcome=lambda t: "fail" if 10 <= t < 20 else "ok")
        with pytest.raises(Broken, match="50% of 1000 operations"):
            check(failing, "available_during", load=LOAD)

    def test_nor_is_what_it_does_afterwards_diluted_by_a_long_apply_that_did_no_harm(self, tmp_path):
        failing = run(tmp_path).load(LOAD, outcome=lambda t: "fail" if 20 <= t < 20.16 else "ok")
        with pytest.raises(Broken, match=r"98.4% of 500 operations"):
            check(failing, "available_during", load=LOAD)

    def test_ten_seconds_of_slow_writes_are_too(self, tmp_path):
        with pytest.raises(Broken, match="reached 2s"):
            check(run(tmp_path).load(LOAD, latency=lambda t: 2.0 if 10 <= t < 20 else 0.01), "latency_stays", load=LOAD)

    def test_a_leader_that_is_lost_meanwhile_did_not_stay(self, tmp_path):
        with pytest.raises(Broken, match="did not stay"):
            check(run(tmp_path).leader(moved(12, 15)), "leadership_stays", fault="consul.snapshot.restore")

    def test_and_its_election_is_judged(self, tmp_path):
        with pytest.raises(Broken, match="consul-2 led after"):
            check(run(tmp_path).leader(moved(12, 19)), "leader_elected", within="4s")

    @pytest.mark.parametrize(("at", "after_s"), [(15, 0.0), (23, pytest.approx(3.0, abs=0.5))])
    def test_a_leader_that_leaves_meanwhile_left_and_its_time_begins_when_it_is_applied(self, tmp_path, at, after_s):
        leaving = run(tmp_path).leader(moved(at, at))
        held = check(leaving, "leadership_leaves", fault="consul.snapshot.restore", within="4s")
        assert held.figures["left_after_s"] == after_s

    def test_a_replica_that_goes_away_meanwhile_must_return(self, tmp_path):
        away = at_work(tmp_path / "run", came_back=(15,), applied=15)
        with pytest.raises(Broken, match="1 of 1 replicas"):
            check(away, "replicas_return", load=REPLICAS, within="5s")


class TestFromTheLoss:
    @pytest.mark.parametrize("name", ["leader_elected", "vault_serves_within"])
    def test_a_leader_that_is_lost_late_has_its_whole_time(self, tmp_path, name):
        """A slow disk takes its leader after 15 s, and another one leads 3 s later."""
        signal = "raft.leader" if name == "leader_elected" else "vault.active"
        held = check(run(tmp_path, applied=10).leader(moved(25, 28), signal=signal), name, within="5s")
        assert 3.0 <= next(iter(held.figures.values())) <= 4.0

    @pytest.mark.parametrize("name", ["leader_elected", "vault_serves_within"])
    def test_noticing_that_it_is_gone_is_part_of_it(self, tmp_path, name):
        """The majority names it for 4 s more, and it says nothing itself from the fault on."""
        signal = "raft.leader" if name == "leader_elected" else "vault.active"
        dead = run(tmp_path, applied=10).leader(
            moved(14, 17), signal=signal, term=lambda t: 1.0 if t < 10 or t > 17 else None
        )
        with pytest.raises(Broken):
            check(dead, name, within="5s")

    def test_a_loss_that_no_leader_told_is_not_guessed_at(self, tmp_path):
        """It may have been lost at 10 s, when the fault began, or at 25 s, when the majority saw it gone."""
        silent = run(tmp_path, applied=10).leader(moved(25, 28), term=lambda _: None)
        with pytest.raises(HypothesisInvalidError, match="did not report when it last led"):
            check(silent, "leader_elected", within="5s")

    @pytest.mark.parametrize("name", ["leader_elected", "vault_serves_within"])
    def test_each_loss_counts_and_not_the_first_alone(self, tmp_path, name):
        signal = "raft.leader" if name == "leader_elected" else "vault.active"
        twice = lambda t: moved(11, 12)(t) if t < 15 else "" if t < 27 else "consul-3"  # noqa: E731
        with pytest.raises(Broken, match="12"):
            check(run(tmp_path, applied=10).leader(twice, signal=signal), name, within="5s")

    def test_what_was_wrong_before_the_fault_is_not_its_doing(self, tmp_path):
        """`s-4` had been missing for 12 s when the fault began, and came back with it."""
        wrong = reset(tmp_path / "run", missing=[("s-5", 5)], since={"s-4": (8, 21)})
        assert check_recording(wrong, "registrations_heal", **HEAL).figures["longest_s"] == pytest.approx(5)


def check_recording(recording, name, **params):
    return hypothesis.get(name).check(recording, params)


class TestCutOffByTheEndOfTheLoads:
    def test_a_replica_that_had_time_left_is_neither_back_nor_late(self, tmp_path):
        cut = at_work(tmp_path / "run", came_back=(2,)).write(
            REPLICAS, "web.group[9]", "node-2", start=46, end=50, outcome="unknown"
        )
        with pytest.raises(HypothesisInvalidError, match="longer `recovery"):
            check(cut, "replicas_return", load=REPLICAS, within="5s")

    def test_a_registration_that_had_time_left_is_neither_right_nor_late(self, tmp_path):
        cut = registered(tmp_path / "run").write(REPLICAS, "late", "stale", start=46, end=50, outcome="unknown")
        with pytest.raises(HypothesisInvalidError, match="longer `recovery"):
            check(cut, "services_agree", load=REPLICAS, within="5s")

    def test_an_instance_that_had_time_left_is_neither_healed_nor_late(self, tmp_path):
        cut = reset(tmp_path / "run", missing=[("s-4", 5)], since={"s-5": (45, None)})
        with pytest.raises(HypothesisInvalidError, match="longer `recovery"):
            check_recording(cut, "registrations_heal", **HEAL)

    def test_one_that_is_late_is_late_whatever_another_had_left(self, tmp_path):
        cut = at_work(tmp_path / "run", came_back=(9,)).write(
            REPLICAS, "web.group[9]", "node-2", start=46, end=50, outcome="unknown"
        )
        with pytest.raises(Broken, match="1 of 2 replicas"):
            check(cut, "replicas_return", load=REPLICAS, within="5s")

    def test_a_node_that_had_time_left_is_neither_back_nor_late(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match="longer `recovery"):
            check_recording(nodes(tmp_path / "run", away=(12.0, 99.0)), "nodes_reappear", within="30s")
