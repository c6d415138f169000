"""Ten bisections of 64 commits of the ingest service, each with another culprit. About 5 minutes each, on 2 cores."""

import random

import pytest

from noisy_runs import Recorded, searches, searches_of
from uber_commits import COMMITS, bisected, write_history

pytestmark = pytest.mark.bench
_TIMES = 10


@pytest.mark.timeout(3 * 3600)
@pytest.mark.needs("datacenter")
def test_the_culprit_is_found_each_time_with_at_most_8_builds(tmp_path):
    culprits = random.Random(2019).sample(range(1, COMMITS + 1), _TIMES)
    for number in culprits:
        history = write_history(tmp_path / f"m3-{number}", number)
        found = bisected(history)
        runs = sum(len(each["runs"]) for each in found["candidates"])
        right = found["found"] == [history.culprit]
        said = "found" if right else "WRONG"
        print(f"commit {number} of {COMMITS}: {said}, {len(found['candidates'])} builds, {runs} runs")
        assert right, found["answer"]
        assert len(found["candidates"]) <= 8


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("rate", "clear"), [(0.0, 1.0), (0.01, 1.0), (0.05, 1.0), (0.05, 0.5), (0.1, 0.0)])
def test_of_1000_searches_with_planted_runs_at_least_990_are_right(rate, clear):
    """`rate`: the share of runs that are wrong; `clear`: the share of runs that call themselves clear."""
    wrong, runs, builds = searches(1000, rate, rate, clear=clear)
    print(
        f"{rate:.0%} wrong, {clear:.0%} clear: {1000 - wrong} of 1000 right, {runs:.1f} runs, at most {builds} builds"
    )
    assert wrong <= 10


@pytest.mark.timeout(1800)
def test_of_1000_searches_as_noisy_as_real_duets_at_least_990_are_right():
    wrong, runs, builds = searches_of(1000, Recorded)
    print(f"as recorded: {1000 - wrong} of 1000 right, {runs:.1f} runs, at most {builds} builds")
    assert wrong <= 10
