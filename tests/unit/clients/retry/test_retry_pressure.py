"""amplification, retry_budget, no_storm, recovers, circuit_breaks, and the two of Consul's own clients."""

from __future__ import annotations

import numpy as np
import pytest

from hashidrill.clients.retry.verdicts import (
    amplification,
    circuit_breaks,
    lock_reacquired,
    no_storm,
    recovers,
    retry_budget,
    watch_resets,
)
from retry_runs import attempt

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
