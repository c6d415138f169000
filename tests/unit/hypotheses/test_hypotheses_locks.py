"""Locks that are held twice, and nearly; renewals that are shed before claims, and after."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken
from hashidrill.products.consul.loads.locks import SESSION_GONE, Action
from hashidrill.testing.recordings import RecordingBuilder

TTL_S = 10.0
KEY = "hashidrill/leases/0"


class Locks:
    """A recording of a `consul.lock` load, an operation a call."""

    def __init__(self, path):
        self.builder = RecordingBuilder(path / "run").fault("disk.latency", "consul-1", at=10, until=30)

    def act(self, op, session, start, *, took=0.1, outcome="ok", key=KEY, reason="", **more):
        action = Action(op, f"leases/{session}", session, **more)
        self.builder.write(
            "leases", key, "", start=start, end=start + took, outcome=outcome, reason=reason, detail=action.detail()
        )
        return self

    def session(self, session, start, **more):
        return self.act("session", session, start, ttl_s=TTL_S, **more)

    def check(self, name="no_two_lock_holders", **params):
        return hypothesis.get(name).check(self.builder.build(), {"load": "leases", **params})


@pytest.fixture
def locks(tmp_path):
    """A holds the lock from 5.1 on, and its lease runs until 14; B asks in vain."""
    it = Locks(tmp_path).session("A", 4).session("B", 4).act("claim", "A", 5).act("refused", "B", 6)
    return it.act("refused", "B", 40)


class TestNoTwoLockHolders:
    def test_holds_while_one_holds_and_the_other_asks(self, locks):
        held = locks.act("renew", "A", 9).check()
        assert (held.figures["held_twice"], held.figures["locks"], held.figures["holders"]) == (0, 1, 1)
        assert "1 leases ran out" in held.text

    @pytest.mark.lie
    def test_a_lock_that_nobody_held_under_the_fault_says_nothing_about_it(self, tmp_path):
        it = Locks(tmp_path).session("A", 35).session("B", 35).act("claim", "A", 36).act("refused", "B", 37)
        with pytest.raises(HypothesisInvalidError, match="no lock of leases was held while a fault was in force"):
            it.act("refused", "B", 40).check()

    def test_a_planted_second_holder_is_caught_with_how_long_it_was_so(self, locks):
        with pytest.raises(Broken) as broken:
            locks.session("B", 11).act("claim", "B", 12).check()
        assert (
            "hashidrill/leases/0: leases/A and leases/B both held it for 1.9s (12.1s into the run)" in broken.value.text
        )
        assert broken.value.figures["held_twice"] == 1
        assert broken.value.figures["held_twice_s"] == pytest.approx(1.9)

    def test_an_acknowledged_renewal_prolongs_the_belief(self, locks):
        locks.act("renew", "A", 12).session("B", 18).act("claim", "B", 19)
        with pytest.raises(Broken, match=r"both held it for 2\.9s"):
            locks.check()

    @pytest.mark.parametrize(
        "acts",
        [
            lambda it: it.act("renew", "A", 12, outcome="unknown").session("B", 18).act("claim", "B", 19),
            lambda it: it.act("renew", "A", 12, outcome="fail").session("B", 18).act("claim", "B", 19),
            lambda it: it.act("renew", "A", 9, took=4).session("B", 18).act("claim", "B", 19.5),
            lambda it: it.act("renew", "A", 14, took=11).session("B", 18).act("claim", "B", 19),
            lambda it: it.act("claim", "A", 10.9, took=0.5).act("release", "A", 11).act("claim", "B", 11.2),
        ],
        ids=[
            "a renewal that was not answered",
            "a renewal that was refused",
            "a renewal counts from when it was sent",
            "an answer after the lease",
            "a claim under way during the release",
        ],
    )
    def test_it_is_not_held_twice(self, locks, acts):
        assert acts(locks).check().figures["held_twice"] == 0

    @pytest.mark.parametrize("op", ["release", "end"])
    @pytest.mark.parametrize("outcome", ["ok", "unknown"])
    def test_who_sends_a_release_does_not_rely_on_the_lock_any_more(self, locks, op, outcome):
        held = locks.act(op, "A", 11, outcome=outcome).act("claim", "B", 11.05).check()
        assert (held.figures["held_twice"], held.figures["leases_ran_out"]) == (0, 1)

    def test_who_claims_again_after_its_release_relies_on_it_again(self, locks):
        locks.act("release", "A", 7).act("claim", "A", 8).act("claim", "B", 9)
        with pytest.raises(Broken, match=r"both held it for 4\.9s"):
            locks.check()

    def test_who_learned_that_its_session_is_gone_does_not_rely_on_it(self, locks):
        locks.act("renew", "A", 9, outcome="fail", reason=SESSION_GONE).act("claim", "B", 9.2)
        held = locks.check()
        assert (held.figures["held_twice"], held.figures["sessions_gone"]) == (0, 1)

    def test_a_claim_that_was_not_acknowledged_makes_no_holder(self, locks):
        assert locks.act("claim", "B", 12, outcome="unknown").check().figures["timed_out"] == 1

    def test_the_same_session_may_claim_twice_and_other_locks_are_other_locks(self, locks):
        locks.act("claim", "A", 7).act("claim", "B", 8, key="hashidrill/leases/1")
        assert locks.check().figures["locks"] == 2

    def test_one_fencing_token_for_two_sessions_is_caught(self, locks):
        locks.act("fence", "A", 5.2, lock_index=3).act("fence", "B", 30, lock_index=3)
        with pytest.raises(Broken, match="LockIndex 3: A, B"):
            locks.check()

    def test_tokens_that_count_up_and_are_seen_again_are_sound(self, locks):
        locks.act("fence", "A", 5.2, lock_index=3).act("fence", "A", 6, lock_index=3)
        locks.act("fence", "", 20, lock_index=3).act("fence", "B", 30, lock_index=4)
        assert locks.check().figures["fencing_tokens_reused"] == 0

    def test_what_was_shed_is_counted(self, locks):
        locks.act("renew", "A", 7, outcome="fail", reason="refused")
        locks.builder._operations[-1] = locks.builder._operations[-1]._replace(status=429)
        assert locks.check().figures["shed"] == 1

    def test_no_rival_is_invalid(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match="no lock could be held twice"):
            Locks(tmp_path).session("A", 4).act("claim", "A", 5).act("refused", "A", 6).check()

    def test_no_holder_is_invalid(self, tmp_path):
        with pytest.raises(HypothesisInvalidError, match="so no holder had a lock"):
            Locks(tmp_path).act("refused", "A", 6).act("refused", "B", 6).check()

    def test_another_load_is_invalid(self, tmp_path):
        builder = RecordingBuilder(tmp_path / "run").load("kv-writes")
        with pytest.raises(HypothesisInvalidError, match=r"not a consul.lock load"):
            hypothesis.get("no_two_lock_holders").check(builder.build(), {"load": "kv-writes"})


class TestRenewalsBeforeClaims:
    @pytest.fixture
    def storm(self, tmp_path):
        """Twenty renewals and forty claims a time, of which so many are served."""

        def build(renewed, claimed, *, refused=0, gone=0):
            it = Locks(tmp_path)
            for n in range(20):
                it.act("renew", "A", 10 + n / 2, outcome="ok" if n < renewed else "unknown")
            for n in range(40):
                op = "refused" if n < refused else "claim"
                ok = n < refused + claimed
                reason = SESSION_GONE if not ok and n < refused + claimed + gone else ""
                it.act(op, "B", 10 + n / 4, outcome="ok" if ok else "fail", reason=reason)
            return it

        return build

    def test_holds_when_claims_are_shed_first(self, storm):
        held = storm(18, 2, refused=8).check("renewals_before_claims")
        assert "90% of 20 renewals against 25% of 40 claims" in held.text

    def test_served_equally_badly_is_not_enough(self, storm):
        with pytest.raises(Broken, match=r"50% of 20 renewals against 50% of 40 claims \(expected 10% more\)"):
            storm(10, 20).check("renewals_before_claims")

    @pytest.mark.parametrize(("claimed", "holds"), [(16, True), (17, False)])
    def test_the_difference_asked_for_is_the_limit(self, storm, claimed, holds):
        it = storm(10, claimed)
        if holds:
            assert it.check("renewals_before_claims", by="10%")
        else:
            with pytest.raises(Broken):
                it.check("renewals_before_claims", by="10%")

    def test_a_claim_that_was_answered_with_no_is_served(self, storm):
        with pytest.raises(Broken):
            storm(10, 0, refused=40).check("renewals_before_claims")

    def test_a_claim_with_a_lost_session_was_answered_and_not_shed(self, storm):
        with pytest.raises(Broken, match="100% of 40 claims"):
            storm(10, 0, refused=20, gone=20).check("renewals_before_claims")

    def test_no_overload_is_invalid(self, storm):
        with pytest.raises(HypothesisInvalidError, match="there was no overload"):
            storm(20, 40).check("renewals_before_claims")

    def test_too_few_are_invalid(self, tmp_path):
        it = Locks(tmp_path).act("renew", "A", 12, outcome="unknown").act("claim", "B", 12)
        with pytest.raises(HypothesisInvalidError, match="only 1 renewals and 1 claims"):
            it.check("renewals_before_claims")

    def test_what_happens_outside_the_fault_does_not_count(self, storm):
        it = storm(18, 20)
        for n in range(50):
            it.act("renew", "A", 31 + n / 2, outcome="fail")
        assert it.check("renewals_before_claims")
