"""backoff, exponential, jitter, retry_after_honoured: each with near misses on both sides."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hashidrill.clients.retry.timing import Own, backoff, exponential, jitter, retry_after_honoured, work_s
from retry_runs import attempt, run, tried


def clients(gaps, *, spread=0.0, noise_s=0.0, count=20, seed=1):
    """Independent clients: each gap spread by that share either way, and late by up to `noise_s`."""
    chance = random.Random(seed)
    return [
        tried(
            [
                gap * chance.uniform(1 - spread, 1 + spread) + chance.expovariate(1 / noise_s)
                if noise_s
                else gap * chance.uniform(1 - spread, 1 + spread)
                for gap in gaps
            ]
        )
        for _ in range(count)
    ]


class TestBackoff:
    @pytest.mark.parametrize("gaps", [[1, 2, 4], [1, 2, 3], [0.1, 0.15, 0.225], [0, 0.2, 0.4], [1, 2, 2, 2]], ids=str)
    def test_gaps_that_grow(self, gaps):
        assert backoff("503", [tried(gaps)] * 5).verdict == "PASS"

    @pytest.mark.parametrize("gaps", [[1, 1, 1], [4, 2, 1], [0, 0, 0], [0, 0.5, 0.5], [1, 1.2, 1.3]], ids=str)
    def test_gaps_that_do_not(self, gaps):
        assert backoff("503", [tried(gaps)] * 5).verdict == "FAIL"

    @pytest.mark.parametrize("gaps", [[], [1], [0, 1]], ids=str)
    def test_too_few_gaps_say_nothing(self, gaps):
        judged = backoff("503", [tried(gaps)] * 5)
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("gaps", "verdict"), [([0, 0.5, 0.92], "PASS"), ([0, 0.5, 0.5], "FAIL"), ([0, 0.5], "INVALID")], ids=str
    )
    def test_a_first_retry_without_any_wait_is_said(self, gaps, verdict):
        """urllib3 does that; it is a burst of everybody at once, whatever comes after it."""
        judged = backoff("503", [tried(gaps)] * 5)
        assert (judged.verdict, judged.evidence["at_once"]) == (verdict, 1)
        assert judged.text.startswith("the first retry comes without any wait; then ")

    def test_a_client_that_waits_before_each_retry_is_not_told_that(self):
        judged = backoff("503", [tried([0.2, 0.4])] * 5)
        assert (judged.evidence["at_once"], judged.text) == (0, "gaps grow: 0.20, 0.40 s")

    @pytest.mark.lie
    def test_work_that_takes_longer_and_longer_is_no_waiting(self):
        """A loop of curl without a sleep; the machine gets busier meanwhile."""
        own = Own([0.03] * 90, work_s=0.015, start_work_s=0.02)
        judged = backoff("503", clients([0.03, 0.05, 0.09], noise_s=0.002), own=own)
        assert (judged.verdict, judged.text[:18]) == ("FAIL", "no waiting at all:")

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
        assert exponential("503", [tried([0.1 * factor**n for n in range(5)])] * 5).verdict == "PASS"

    @pytest.mark.parametrize(
        "gaps", [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1.2, 1.4, 1.7]], ids=str
    )
    def test_linear_constant_and_none_are_not(self, gaps):
        assert exponential("503", [tried(gaps)] * 5).verdict == "FAIL"

    def test_the_cap_does_not_count_against_it(self):
        judged = exponential("503", [tried([1, 2, 4, 8, 10, 10, 10])] * 5)
        assert (judged.verdict, judged.evidence["uncapped"]) == ("PASS", 5)

    @pytest.mark.parametrize("gaps", [[1, 2, 4], [1, 2, 4, 4, 4, 4], [0, 1, 2, 4]], ids=str)
    def test_under_four_uncapped_gaps_there_is_no_curve(self, gaps):
        judged = exponential("503", [tried(gaps)] * 5)
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("gaps", "along"),
        [
            ([0.05, 0.35, 0.65, 0.95, 1.25], "a straight line"),
            ([1, 3, 5, 7], "a straight line"),
            ([1, 4, 9, 16, 25], "a square"),
            ([0.1, 0.4, 0.9, 1.6], "a square"),
            ([4, 9, 16, 25, 36], "a square"),
            ([0.1, 0.2, 0.5, 1.0, 1.7], "a square"),
            ([1, 8, 27, 64], "a cube"),
            ([1, 16, 81, 256], "a fourth power"),
            ([1, 4, 9, 16, 16, 16], "a square"),
        ],
        ids=str,
    )
    def test_a_steep_slope_alone_is_no_growth_by_a_factor(self, gaps, along):
        judged = exponential("503", [tried(gaps)] * 5)
        assert (judged.verdict, judged.evidence["slope"] > 0.5) == ("FAIL", True)
        assert f"along {along};" in judged.text

    @pytest.mark.lie
    @pytest.mark.parametrize("added", [0.05, 0.3, 0.9])
    def test_what_is_added_to_each_gap_does_not_hide_the_factor(self, added):
        """tenacity's wait_exponential_jitter adds up to a second to 1, 2, 4, 8."""
        assert exponential("503", [tried([added + 2**n for n in range(5)])] * 5).verdict == "PASS"

    @pytest.mark.long
    @pytest.mark.lie
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        factor=st.floats(1.5, 4),
        first_s=st.floats(0.1, 1),
        gaps=st.integers(4, 6),
        noise_s=st.floats(0.0005, 0.004),
        spread=st.sampled_from([0.0, 0.05, 0.1]),
        seed=st.integers(0, 10**6),
    )
    def test_a_factor_is_one_with_the_noise_of_a_machine(self, *, factor, first_s, gaps, noise_s, spread, seed):
        runs = clients([first_s * factor**n for n in range(gaps)], spread=spread, noise_s=noise_s, seed=seed, count=60)
        found = exponential("503", runs).verdict
        assert found == "PASS" if spread < 0.1 and factor > 1.6 else found != "FAIL"

    @pytest.mark.long
    @pytest.mark.lie
    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(
        rise_s=st.floats(0.05, 1),
        more=st.floats(0, 3),
        power=st.sampled_from([1, 2, 3]),
        gaps=st.integers(4, 6),
        noise_s=st.floats(0.0005, 0.02),
        spread=st.floats(0, 1),
        count=st.sampled_from([20, 60]),
        seed=st.integers(0, 10**6),
    )
    def test_no_power_ever_passes_for_a_factor(self, *, rise_s, more, power, gaps, noise_s, spread, count, seed):
        start = 1 + (more if power == 1 else round(more) % 3)
        meant = [rise_s * (start + n) ** power for n in range(gaps)]
        found = exponential("503", clients(meant, spread=spread, noise_s=noise_s, seed=seed, count=count)).verdict
        assert found != "PASS"
        if spread < 0.05 and noise_s < 0.003:
            assert found == "FAIL"

    @pytest.mark.long
    @pytest.mark.lie
    @pytest.mark.parametrize("factor", [1.5, 2, 3, 4])
    def test_a_factor_with_much_jitter_passes_or_asks_for_more_clients(self, factor):
        gaps = [0.1 * factor**n for n in range(6)]
        found = [exponential("503", clients(gaps, spread=0.5, seed=seed, count=60)) for seed in range(40)]
        assert [one for one in found if one.verdict == "FAIL"] == []
        assert sum(one.verdict == "PASS" for one in found) >= (20 if factor < 2 else 25)
        assert all(one.evidence["more_clients"] for one in found if one.verdict == "INVALID")

    def test_constant_gaps_fail_whatever_their_jitter(self):
        found = [exponential("503", clients([0.2] * 6, spread=1.0, seed=seed)).verdict for seed in range(40)]
        assert found.count("FAIL") >= 38
        assert "PASS" not in found

    def test_growth_with_jitter_along_a_line_fails(self):
        assert exponential("503", clients([0.1, 0.2, 0.3, 0.4, 0.5], spread=0.05)).verdict == "FAIL"

    def test_what_is_work_makes_no_curve(self):
        own = Own([0.03] * 90, work_s=0.015)
        judged = exponential("503", clients([0.03, 0.06, 0.12, 0.24], noise_s=0.001), own=own)
        assert (judged.verdict, judged.text[:18]) == ("FAIL", "no waiting at all:")


class TestJitter:
    gaps = (0.3, 0.6, 1.2)

    def judged(self, spread, noise_s, seed, count=20):
        mine = clients(self.gaps, spread=spread, noise_s=noise_s, seed=seed, count=count)
        return jitter("503", mine, clients(self.gaps, noise_s=noise_s, seed=seed + 1000, count=count))

    @pytest.mark.long
    def test_five_percent_passes_and_none_fails_a_hundred_times(self):
        for seed in range(100):
            assert self.judged(0.05, 0.001, seed).verdict == "PASS"
            assert self.judged(0.0, 0.001, seed).verdict == "FAIL"

    @pytest.mark.long
    def test_a_busy_machine_never_gives_a_client_jitter_that_it_has_not(self):
        """Delays of 20 ms on average are as large as 5 % of jitter: no certainty, but no wrong answer either."""
        assert {self.judged(0.0, 0.02, seed).verdict for seed in range(100)} <= {"FAIL", "INVALID"}
        assert {self.judged(0.05, 0.02, seed, count=60).verdict for seed in range(100)} <= {"PASS", "INVALID"}

    def test_too_few_clients_prove_nothing(self):
        assert jitter("503", clients(self.gaps, spread=0.5, count=19), clients(self.gaps)).verdict == "INVALID"

    @pytest.mark.lie
    @pytest.mark.parametrize("gaps", [[0, 0, 0], [0.001, 0.002], [0.03] * 6, [0.02, 0.04, 0.07]], ids=str)
    def test_where_hardly_anything_is_waited_there_is_no_jitter_to_judge(self, gaps):
        """A shell loop without a sleep: gaps of 30 ms, a third of which is noise; an HTTP library that replays."""
        for seed in range(20):
            mine = clients(gaps, spread=0.36, noise_s=0.004, seed=seed)
            judged = jitter("503", mine, clients(gaps, noise_s=0.0005, seed=seed + 1000))
            assert (judged.verdict, judged.applies) == ("INVALID", False)
            assert "it waits too little" in judged.text

    @pytest.mark.lie
    def test_clients_that_wait_for_each_others_work_do_not_wait(self):
        """Twenty loops of curl on two cores: the gaps of each are ten times those of one that is alone."""
        mine, theirs = clients([0.3] * 6, spread=0.36), clients([0.3] * 6, noise_s=0.0005)
        assert jitter("503", mine, theirs).verdict == "PASS"  # for all that is seen of them they might jitter
        for own in (Own([0.03] * 88 + [0.2] * 2), Own([0.12] * 90, work_s=0.05)):
            judged = jitter("503", mine, theirs, own=own)
            assert (judged.verdict, judged.applies) == ("INVALID", False)

    @pytest.mark.lie
    def test_what_the_client_does_itself_between_two_attempts_is_no_jitter(self):
        """A loop of curl that sleeps 0.3 s: what curl adds scatters as it does before the first attempt."""
        chance = random.Random(1)

        def late():
            return chance.expovariate(1 / 0.012)

        def loop():
            starts = [0.02 + late()]
            for _ in range(4):
                starts.append(starts[-1] + 0.33 + late())
            return run(*(attempt(1 + start, fault="503") for start in starts), ok=False, start=1.0)

        mine, theirs = [loop() for _ in range(60)], clients([0.33] * 4, noise_s=0.0005, count=60)
        assert jitter("503", mine, theirs).verdict == "PASS"
        assert jitter("503", mine, theirs, own=Own([0.33] * 4, 0.012, 0.012)).verdict in {"FAIL", "INVALID"}
        small = Own([0.33] * 4, 0.0005, 0.2)  # Python takes 0.2 s to start: little of that is done again for a retry
        assert jitter("503", mine, theirs, own=small).verdict == "PASS"

    def test_no_gaps_at_all_say_nothing(self):
        judged = jitter("503", [tried([])] * 20, [])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_a_first_retry_without_waiting_does_not_count_as_jitter(self):
        mine = clients([0.004, 0.3, 0.6], noise_s=0.001)
        assert jitter("503", mine, clients([0.004, 0.3, 0.6], noise_s=0.001)).verdict == "FAIL"


class TestRetryAfter:
    def told(self, waited, told=2.0, fault="503-retry-after", *, ended=True):
        first = attempt(0, fault=fault, status=503, retry_after_s=told)
        return run(first, *([] if waited is None else [attempt(waited, status=200)]), ended=ended)

    def judged(self, *waited, others=(1.0,) * 12, fault="503-retry-after"):
        return retry_after_honoured(
            fault, [self.told(wait, fault=fault) for wait in waited], [self.told(wait, 1.0) for wait in others]
        )

    @pytest.mark.parametrize(
        ("waited", "verdict"), [(2.0, "PASS"), (1.95, "PASS"), (5, "PASS"), (1.8, "FAIL"), (0, "FAIL")]
    )
    def test_it_comes_back_no_sooner_than_told(self, waited, verdict):
        assert self.judged(2.0, waited, 2.0).verdict == verdict

    def test_a_client_that_waits_so_long_anyway_shows_nothing(self):
        judged = self.judged(5, 5, 5, others=[5.0] * 12)
        assert (judged.verdict, judged.applies) == ("INVALID", True)
        assert self.judged(1, 5, 5, others=[5.0] * 12).verdict == "FAIL"

    def test_one_of_its_other_waits_is_enough_for_that(self):
        assert self.judged(2, 2, 2, others=[1.0] * 11 + [1.9]).verdict == "INVALID"

    @pytest.mark.parametrize(("told", "others"), [(1, 0), (3, 0), (1, 12), (2, 12), (3, 11)])
    def test_without_its_other_waits_or_from_a_few_nothing_is_passed(self, told, others):
        assert self.judged(*[2.0] * told, others=[1.0] * others).verdict == "INVALID"

    def test_what_is_told_after_a_later_attempt_is_no_proof(self):
        """Its third wait is 2 s in any case."""
        later = run(
            attempt(0, fault="503", status=503),
            attempt(1, fault="503-retry-after", status=503, retry_after_s=2.0),
            attempt(3, status=200),
        )
        assert retry_after_honoured("503-retry-after", [later] * 3, [self.told(1.0, 1.0)] * 12).verdict == "INVALID"

    def test_a_short_wait_that_was_not_kept_is_one_that_was_not_kept(self):
        assert self.judged(2, 2, 2, others=[1.0] * 11 + [0.5]).verdict == "FAIL"
        assert self.judged(2, 2, 2, others=[1.0] * 11 + [0.5], fault="429-retry-after").verdict == "PASS"

    def test_a_client_that_does_not_retry_has_nothing_to_honour(self):
        judged = retry_after_honoured("503-retry-after", [self.told(None)])
        assert (judged.verdict, judged.applies) == ("INVALID", False)

    def test_a_client_that_is_still_waiting_at_the_deadline_is_not_said_to_give_up(self):
        judged = retry_after_honoured("503-retry-after", [self.told(None, ended=False)])
        assert (judged.verdict, judged.applies) == ("INVALID", True)


@pytest.mark.parametrize("judge", [backoff, exponential])
def test_gaps_of_a_few_operations_may_be_chance(judge):
    """A client that sleeps at random looks so now and then."""
    assert judge("503", [tried([0.5, 1, 2, 4])] * 4).verdict == "INVALID"
    assert judge("503", [tried([0.5, 1, 2, 4])] * 5).verdict == "PASS"


def test_work_is_what_one_more_attempt_takes_whatever_a_single_run_takes():
    runs = [run(*[attempt(n) for n in range(count)], cpu_s=0.2 + 0.01 * count) for count in (1, 2, 2, 4, 4)]
    assert work_s([*runs, run(attempt(0), cpu_s=0.9)]) == pytest.approx(0.01, abs=0.001)
    assert work_s([run(attempt(0), cpu_s=0.2)]) == 0
