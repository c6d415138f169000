"""backoff, exponential, jitter, retry_after_honoured: each with near misses on both sides."""

from __future__ import annotations

import random

import pytest
from retry_runs import attempt, run, tried

from hashidrill.retry.timing import backoff, exponential, jitter, retry_after_honoured


def clients(gaps, *, spread=0.0, noise_s=0.0, count=20, seed=1):
    """Independent clients: each gap spread by that share either way, and late by up to `noise_s`."""
    chance = random.Random(seed)
    return [
        tried([gap * chance.uniform(1 - spread, 1 + spread) + chance.expovariate(1 / noise_s) if noise_s else
               gap * chance.uniform(1 - spread, 1 + spread) for gap in gaps])
        for _ in range(count)
    ]  # fmt: skip


class TestBackoff:
    @pytest.mark.parametrize("gaps", [[1, 2, 4], [1, 2, 3], [0.1, 0.15, 0.225], [0, 0.2, 0.4], [1, 2, 2, 2]], ids=str)
    def test_gaps_that_grow(self, gaps):
        assert backoff("503", [tried(gaps)]).verdict == "PASS"

    @pytest.mark.parametrize("gaps", [[1, 1, 1], [4, 2, 1], [0, 0, 0], [0, 0.5, 0.5], [1, 1.2, 1.3]], ids=str)
    def test_gaps_that_do_not(self, gaps):
        assert backoff("503", [tried(gaps)]).verdict == "FAIL"

    @pytest.mark.parametrize("gaps", [[], [1], [0, 1]], ids=str)
    def test_too_few_gaps_say_nothing(self, gaps):
        judged = backoff("503", [tried(gaps)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_full_jitter_grows_all_the_same(self):
        assert backoff("503", clients([0.1, 0.2, 0.4], spread=1.0)).verdict == "PASS"

    def test_full_jitter_around_a_constant_never_passes(self):
        found = {backoff("503", clients([0.2, 0.2, 0.2], spread=1.0, seed=seed)).verdict for seed in range(20)}
        assert "PASS" not in found

    def test_what_hangs_in_the_balance_asks_for_more_clients(self):
        judged = backoff("503", clients([0.2, 0.27], spread=1.0, count=5))
        assert (judged.verdict, judged.evidence["more_clients"]) == ("INVALID", True)


class TestExponential:
    @pytest.mark.parametrize("factor", [1.5, 2, 3])
    def test_growth_by_a_factor(self, factor):
        assert exponential("503", [tried([0.1 * factor**n for n in range(5)])]).verdict == "PASS"

    @pytest.mark.parametrize(
        "gaps", [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1.2, 1.4, 1.7]], ids=str
    )
    def test_linear_constant_and_none_are_not(self, gaps):
        assert exponential("503", [tried(gaps)]).verdict == "FAIL"

    def test_the_cap_does_not_count_against_it(self):
        judged = exponential("503", [tried([1, 2, 4, 8, 10, 10, 10])])
        assert (judged.verdict, judged.evidence["uncapped"]) == ("PASS", 5)

    @pytest.mark.parametrize("gaps", [[1, 2, 4], [1, 2, 4, 4, 4, 4], [0, 1, 2, 4]], ids=str)
    def test_under_four_uncapped_gaps_there_is_no_curve(self, gaps):
        judged = exponential("503", [tried(gaps)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_with_jitter(self):
        assert exponential("503", clients([0.1, 0.2, 0.4, 0.8, 1.6], spread=0.5)).verdict == "PASS"
        assert exponential("503", clients([0.1, 0.2, 0.3, 0.4, 0.5], spread=0.05)).verdict == "FAIL"


class TestJitter:
    gaps = (0.3, 0.6, 1.2)

    def judged(self, spread, noise_s, seed, count=20):
        mine = clients(self.gaps, spread=spread, noise_s=noise_s, seed=seed, count=count)
        return jitter("503", mine, clients(self.gaps, noise_s=noise_s, seed=seed + 1000, count=count))

    def test_five_percent_passes_and_none_fails_a_hundred_times(self):
        for seed in range(100):
            assert self.judged(0.05, 0.001, seed).verdict == "PASS"
            assert self.judged(0.0, 0.001, seed).verdict == "FAIL"

    def test_a_busy_machine_never_gives_a_client_jitter_that_it_has_not(self):
        """Delays of 20 ms on average are as large as 5 % of jitter: no certainty, but no wrong answer either."""
        assert {self.judged(0.0, 0.02, seed).verdict for seed in range(100)} <= {"FAIL", "INVALID"}
        assert {self.judged(0.05, 0.02, seed, count=60).verdict for seed in range(100)} <= {"PASS", "INVALID"}

    def test_too_few_clients_prove_nothing(self):
        assert jitter("503", clients(self.gaps, spread=0.5, count=19), clients(self.gaps)).verdict == "INVALID"

    def test_no_waiting_is_no_jitter(self):
        assert jitter("503", clients([0.001, 0.002], spread=0.9), clients([0.001, 0.001])).verdict == "FAIL"

    def test_no_gaps_at_all_say_nothing(self):
        judged = jitter("503", [tried([])] * 20, [])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_a_first_retry_without_waiting_does_not_count_as_jitter(self):
        mine = clients([0.004, 0.3, 0.6], noise_s=0.001)
        assert jitter("503", mine, clients([0.004, 0.3, 0.6], noise_s=0.001)).verdict == "FAIL"


class TestRetryAfter:
    def told(self, waited, told=2.0, retried=True):
        first = attempt(0, fault="503-retry-after", status=503, retry_after_s=told)
        return run(first, *([attempt(waited, status=200)] if retried else []))

    @pytest.mark.parametrize(
        ("waited", "verdict"), [(2.0, "PASS"), (1.95, "PASS"), (5, "PASS"), (1.8, "FAIL"), (0, "FAIL")]
    )
    def test_it_comes_back_no_sooner_than_told(self, waited, verdict):
        assert retry_after_honoured("503-retry-after", [self.told(waited)]).verdict == verdict

    def test_a_client_that_waits_so_long_anyway_shows_nothing(self):
        judged = retry_after_honoured("503-retry-after", [self.told(5)], usual_gap_s=5)
        assert (judged.verdict, judged.applies) == ("INVALID", True)
        assert retry_after_honoured("503-retry-after", [self.told(1)], usual_gap_s=5).verdict == "FAIL"

    def test_a_client_that_does_not_retry_has_nothing_to_honour(self):
        judged = retry_after_honoured("503-retry-after", [self.told(0, retried=False)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)
