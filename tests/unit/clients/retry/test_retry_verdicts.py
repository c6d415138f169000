"""Verdicts on whether a client tries again, and on what many operations do to the upstream."""

import numpy as np
import pytest

from hashidrill.clients.retry.verdicts import (
    amplification,
    bounded,
    circuit_breaks,
    idempotent_only,
    lock_reacquired,
    no_storm,
    present,
    recovers,
    retry_budget,
    timeout_present,
    transport_only,
    watch_resets,
)
from retry_runs import attempt, recovered, run, tried


class TestPresent:
    def test_two_attempts_and_success_is_a_retry(self):
        judged = present("503", [recovered()])
        assert (judged.verdict, judged.evidence["attempts"]) == ("PASS", 2)

    def test_one_attempt_is_none(self):
        assert present("503", [tried([])]).verdict == "FAIL"

    def test_one_attempt_that_the_caller_takes_for_success_is_none_either(self):
        """curl without --fail: exit status 0 for a 503."""
        judged = present("503", [run(attempt(fault="503", status=503), ok=True, note="exit status 0")])
        assert judged.verdict == "FAIL"
        assert "mistakes the failure for an answer" in judged.text

    def test_retries_that_do_not_help_the_caller_are_none(self):
        assert present("503", [recovered(ok=False)]).verdict == "FAIL"

    def test_two_requests_that_are_made_anyway_are_no_retry(self):
        plain = (attempt(status=200), attempt(0.1, status=200))
        twice = run(attempt(fault="503"), attempt(0.1, status=200), plain=plain)
        assert present("503", [twice]).verdict == "FAIL"
        thrice = run(attempt(fault="503"), attempt(0.1, status=200), attempt(0.2, status=200), plain=plain)
        assert present("503", [thrice]).verdict == "PASS"

    def test_another_request_after_the_failure_is_no_retry(self):
        other = run(attempt(fault="503"), attempt(0.1, path="/v1/status/leader", status=200))
        assert present("503", [other]).verdict == "FAIL"

    def test_nothing_that_failed_is_invalid(self):
        judged = present("503", [run(attempt(status=200))])
        assert (judged.verdict, judged.applies) == ("INVALID", True)

    @pytest.mark.parametrize(("fault", "verdict"), [("reply-dropped", "INVALID"), ("503", "FAIL"), ("refused", "FAIL")])
    def test_a_write_without_a_key_is_asked_for_retries_only_where_they_are_safe(self, fault, verdict):
        once = run(attempt(fault=fault, method="POST"), ok=False)
        assert present(fault, [once]).verdict == verdict

    def test_a_refused_connection_counts_although_it_has_no_request(self):
        refused = attempt(fault="refused", method="", path="", connection=0)
        assert present("refused", [run(refused, attempt(0.1, status=200))]).verdict == "PASS"
        assert present("refused", [run(refused, ok=False)]).verdict == "FAIL"

    def test_over_many_operations_each_one_has_to_be_tried_again(self):
        assert present("503", [recovered()] * 99 + [tried([])]).verdict == "FAIL"
        assert present("503", [recovered()] * 99 + [recovered(ok=False)], success=0.99).verdict == "PASS"
        assert present("503", [recovered()] * 98 + [recovered(ok=False)] * 2, success=0.99).verdict == "FAIL"


DEAF = {"503": [tried([])], "reset-after-fresh": [tried([], fault="reset-after-fresh")]}


class TestTransportOnly:
    reset = run(attempt(fault="reset-after-reused", reused=True), attempt(0.001, status=200))
    no_replay = run(attempt(fault="reset-after-reused", reused=True), ok=False)

    def test_a_replay_on_a_reused_connection_alone_is_transport_only(self):
        judged = transport_only("reset-after-reused", [self.reset], DEAF)
        assert (judged.verdict, judged.evidence["transport_only"]) == ("FAIL", True)

    def test_a_client_that_retries_a_503_is_not(self):
        judged = transport_only("reset-after-reused", [self.reset], {**DEAF, "503": [recovered()]})
        assert (judged.verdict, judged.evidence["retried"]) == ("PASS", ["503"])

    def test_a_client_that_replays_nothing_is_not_said_to_retry(self):
        judged = transport_only("reset-after-reused", [self.no_replay], DEAF)
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_without_a_reused_connection_nothing_is_known(self):
        judged = transport_only("reset-after-reused", [run(attempt(status=200))], DEAF)
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    @pytest.mark.parametrize("known", [[], ["503"], ["reset-after-fresh"]], ids=str)
    def test_without_both_to_compare_with_it_is_invalid(self, known):
        """curl --retry retries a 503, and no reset."""
        others = {name: runs for name, runs in DEAF.items() if name in known}
        judged = transport_only("reset-after-reused", [self.reset], others)
        assert (judged.verdict, judged.applies) == ("INVALID", True)


class TestBounded:
    def test_three_retries_are_within_the_default_and_four_are_not(self):
        assert bounded("503", [tried([1, 2, 4])]).verdict == "PASS"
        judged = bounded("503", [tried([1, 2, 4, 8])])
        assert judged.verdict == "FAIL"
        assert "unbounded" not in judged.text

    def test_the_bound_is_the_callers(self):
        assert bounded("503", [tried([1, 2, 4, 8])], most_retries=4).verdict == "PASS"

    def test_ninety_attempts_are_unbounded_whatever_was_allowed(self):
        judged = bounded("503", [tried([0.01] * 89)], most_retries=200)
        assert judged.verdict == "FAIL"
        assert "unbounded" in judged.text

    def test_one_that_was_still_at_it_is_unbounded(self):
        judged = bounded("503", [run(attempt(fault="503"), attempt(9, fault="503"), ended=False, ok=False, end=10)])
        assert judged.verdict == "FAIL"
        assert "unbounded" in judged.text

    def test_giving_up_after_the_deadline_is_too_late(self):
        assert bounded("503", [tried([1, 2, 4])], deadline_s=6).verdict == "FAIL"
        assert bounded("503", [tried([1, 2, 4])], deadline_s=8).verdict == "PASS"

    def test_one_that_does_not_retry_has_nothing_to_bound(self):
        judged = bounded("503", [tried([])])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_one_that_sleeps_past_the_deadline_is_not_said_to_retry_nothing(self):
        judged = bounded("503", [run(attempt(fault="503"), ended=False, ok=False, end=10)])
        assert (judged.verdict, judged.applies) == ("INVALID", True)

    def test_the_worst_operation_counts(self):
        assert bounded("503", [tried([1]), tried([1] * 5), tried([1])]).evidence["attempts"] == 6


class TestTimeoutPresent:
    def test_an_attempt_that_the_client_ends_has_a_timeout(self):
        hung = attempt(end=2, fault="hang", abandoned=True)
        judged = timeout_present("hang", [run(hung, attempt(2.1, status=200))], deadline_s=10)
        assert (judged.verdict, judged.evidence["waited_s"]) == ("PASS", 2)

    def test_one_that_is_open_when_the_client_is_stopped_has_none(self):
        hung = attempt(end=10, fault="hang", abandoned=True)
        assert timeout_present("hang", [run(hung, ended=False, ok=False, end=10)], deadline_s=10).verdict == "FAIL"

    def test_one_that_ends_after_the_deadline_is_none(self):
        hung = attempt(end=12, fault="hang", abandoned=True)
        assert timeout_present("hang", [run(hung, ok=False, end=12)], deadline_s=10).verdict == "FAIL"

    def test_a_client_that_is_stopped_in_its_second_attempt_had_a_timeout_in_its_first(self):
        hung = attempt(end=2, fault="hang", abandoned=True)
        judged = timeout_present("hang", [run(hung, ended=False, ok=False, end=10)], deadline_s=10)
        assert judged.verdict == "PASS"

    @pytest.mark.lie
    def test_one_that_never_read_the_body_gave_nothing_up(self):
        """It took the head for the answer, and was done after 0 s."""
        judged = timeout_present("slow-body", [run(attempt(end=0.01, fault="slow-body"), end=0.02)], deadline_s=10)
        assert (judged.verdict, judged.applies) == ("INVALID", False)
        assert "never read the body" in judged.text
        slower = run(attempt(end=2, fault="slow-body", abandoned=True), end=2.1)
        assert timeout_present("slow-body", [slower], deadline_s=10).verdict == "PASS"

    def test_nothing_that_hung_is_invalid(self):
        assert timeout_present("hang", [run(attempt(status=200))], deadline_s=10).verdict == "INVALID"


class TestIdempotentOnly:
    @pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
    def test_a_write_sent_twice_fails_and_once_passes(self, method):
        twice = recovered("reply-dropped", method=method, upstream=True)
        judged = idempotent_only("reply-dropped", [twice])
        assert (judged.verdict, judged.evidence["applied"]) == ("FAIL", 2)
        once = run(attempt(fault="reply-dropped", method=method), ok=False)
        assert idempotent_only("reply-dropped", [once]).verdict == "PASS"

    @pytest.mark.parametrize(
        "about", [{"method": "GET"}, {"method": "DELETE"}, {"method": "PUT", "key": "cas=7"}], ids=str
    )
    def test_what_may_be_sent_twice_says_nothing(self, about):
        judged = idempotent_only("reply-dropped", [recovered("reply-dropped", **about)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_a_client_that_sleeps_past_the_deadline_may_still_send_it_again(self):
        dropped = attempt(end=0.1, fault="reply-dropped", method="PUT", upstream=True)
        judged = idempotent_only("reply-dropped", [run(dropped, ended=False, ok=False, end=10)])
        assert (judged.verdict, judged.applies) == ("INVALID", True)

    def test_a_client_that_still_waits_has_not_shown_anything(self):
        hung = attempt(end=10, fault="hang", method="PUT")
        judged = idempotent_only("hang", [run(hung, ended=False, ok=False, end=10)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)


_NS = 1_000_000_000


def every(gap, start=0.0, end=10.0):
    return (np.arange(start, end, gap) * _NS).astype(np.int64)


def test_amplification_is_requests_over_operations():
    assert amplification("f", 40, 10).verdict == "PASS"
    assert amplification("f", 41, 10).verdict == "FAIL"
    assert amplification("f", 390, 10, at_most=39).verdict == "PASS"
    assert amplification("f", 5, 0).verdict == "INVALID"


def test_the_budget_is_a_share_of_the_attempts():
    assert retry_budget("f", 125, 100).verdict == "PASS"
    assert retry_budget("f", 126, 100).verdict == "FAIL"
    assert retry_budget("f", 0, 0).verdict == "INVALID"


def test_a_storm_is_more_than_the_capacity_in_any_window():
    operations = every(0.1)
    burst = np.sort(np.concatenate([operations, every(0.02, 5, 6)]))
    assert no_storm("f", operations, operations, capacity_per_s=20).verdict == "PASS"
    assert no_storm("f", burst, operations, capacity_per_s=20).verdict == "FAIL"
    assert no_storm("f", burst, operations, capacity_per_s=5).verdict == "INVALID"
    assert no_storm("f", burst[:0], operations, capacity_per_s=5).verdict == "INVALID"


class TestRecovers:
    def judged(self, ok, rate_after=0.1, **params):
        intended = np.concatenate([every(0.1, 0, 20), every(rate_after, 20, 40)])
        good = np.array([ok(t / _NS) for t in intended])
        spans = {"before_ns": (0, 10 * _NS), "after_ns": (20 * _NS, 40 * _NS)}
        return recovers("f", intended, good, **spans, within_s=5, **params)

    def test_goodput_that_comes_back_in_time(self):
        judged = self.judged(lambda t: not 10 <= t < 23)
        assert (judged.verdict, judged.evidence["back_after_s"]) == ("PASS", 3)

    def test_goodput_that_comes_back_late_or_never_is_metastable(self):
        assert self.judged(lambda t: not 10 <= t < 28).verdict == "FAIL"
        judged = self.judged(lambda t: t < 10)
        assert (judged.verdict, judged.evidence["back_after_s"]) == ("FAIL", "never")

    def test_a_load_that_was_cut_proves_nothing(self):
        assert self.judged(lambda t: not 10 <= t < 21, rate_after=0.2).verdict == "INVALID"

    def test_too_short_a_time_afterwards_proves_nothing(self):
        intended = every(0.1, 0, 24)
        spans = {"before_ns": (0, 10 * _NS), "after_ns": (20 * _NS, 24 * _NS)}
        assert recovers("f", intended, intended < 10 * _NS, **spans, within_s=5).verdict == "INVALID"


def test_a_breaker_sends_a_fifth_or_less_in_the_second_half():
    operations = every(0.1)
    span = {"lasted_ns": (0, 10 * _NS)}
    assert circuit_breaks("f", every(0.1, 0, 5), operations, **span).verdict == "PASS"
    assert (
        circuit_breaks("f", np.concatenate([every(0.1, 0, 5), every(0.5, 5, 10)]), operations, **span).verdict == "PASS"
    )
    assert circuit_breaks("f", every(0.4), operations, **span).verdict == "FAIL"
    assert circuit_breaks("f", operations, every(1.0), **span).verdict == "INVALID"


class TestWatchResets:
    def watch(self, *pairs, gap=1.0):
        """Queries by (index asked for, index answered)."""
        return [
            attempt(n * gap, path=f"/v1/kv/x?index={asked}&wait=1s", status=200, index=answered)
            for n, (asked, answered) in enumerate(pairs)
        ]

    def test_starting_again_at_0(self):
        assert watch_resets("f", self.watch((0, 50), (50, 20), (0, 20), (20, 20))).verdict == "PASS"

    @pytest.mark.parametrize("after", [20, 50])
    def test_going_on_with_either_index_is_wrong(self, after):
        assert watch_resets("f", self.watch((0, 50), (50, 20), (after, 50))).verdict == "FAIL"

    def test_a_query_without_an_index_is_a_fresh_start(self):
        watch = self.watch((0, 50), (50, 20))
        assert watch_resets("f", [*watch, attempt(3, path="/v1/kv/x", status=200, index=20)]).verdict == "PASS"

    def test_spinning_is_wrong(self):
        spin = self.watch((0, 50), (50, 20), *[(0, 20)] * 15, gap=0.01)
        assert "spins" in watch_resets("f", spin).text
        assert watch_resets("f", spin).verdict == "FAIL"

    def test_nothing_that_went_backwards_or_no_watch_is_invalid(self):
        assert watch_resets("f", self.watch((0, 50), (50, 60))).verdict == "INVALID"
        assert watch_resets("f", self.watch((0, 50), (50, 20))).verdict == "INVALID"
        judged = watch_resets("f", [attempt(status=200)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)


class TestLockReacquired:
    def tries(self, *pairs):
        return [attempt(at, method="PUT", path="/v1/kv/l?acquire=s", status=200, granted=ok) for at, ok in pairs]

    def test_granted_again(self):
        tries = self.tries((1, True), (12, False), (14, True))
        judged = lock_reacquired("f", tries, lost_ns=10 * _NS)
        assert (judged.verdict, judged.evidence["after_s"]) == ("PASS", 4)
        assert lock_reacquired("f", tries, lost_ns=10 * _NS, within_s=3).verdict == "FAIL"

    def test_never_granted_again(self):
        assert lock_reacquired("f", self.tries((1, True), (12, False)), lost_ns=10 * _NS).verdict == "FAIL"

    def test_no_lock_to_lose(self):
        assert lock_reacquired("f", self.tries((1, False), (12, True)), lost_ns=10 * _NS).verdict == "INVALID"
