"""A candidate and the good end in one run: what counts as broken, when a run is clear, and what searches make of it."""

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.model import Experiment
from hashidrill.rollouts.bisect.broken import SUFFIX, PairedFigure
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.testing.recordings import RecordingBuilder
from noisy_runs import Recorded, searches, searches_of

RULE = "ingest.latency.p99"
CLIENTS = {"ingest": {"command": ["x", "{url}"], "service": True}}


@pytest.fixture
def trial(tmp_path):
    """The trial of a run in which points take so long, of the candidate and of the good end."""

    def trial_(candidate, good=0.2, *, rate=20, ended="complete"):
        built = RecordingBuilder(tmp_path / "run").mark("spikes", at=10, until=30)
        for load, latency in (("ingest", candidate), (f"ingest{SUFFIX}", good)):
            built.load(load, rate=rate, latency=latency)
        recording = built.expect("available_during", load="ingest", fault="spikes").end(ended).build()
        document = {**built.experiment(), "clients": CLIENTS, "load": {}}
        rule = PairedFigure.of(RULE, 1.5, Experiment.model_validate(document))
        return rule.trial(recording, tmp_path / "x.yaml")

    return trial_


def test_twice_the_latency_of_the_good_end_is_broken_and_clear(trial):
    found = trial(0.4)

    assert (found.outcome, found.clear) == (Outcome.BROKEN, True)
    assert found.text == f"{RULE} 400ms, of the good end at the same time 200ms: 1.99 times"


def test_the_same_latency_holds_and_is_clear(trial):
    found = trial(0.2)
    assert (found.outcome, found.clear) == (Outcome.HELD, True)


def test_a_machine_that_keeps_both_waiting_breaks_nothing(trial):
    found = trial(1.9, 2.0)
    assert (found.outcome, found.clear) == (Outcome.HELD, True)


@pytest.mark.lie
def test_one_bad_moment_of_the_candidate_alone_is_broken_and_not_clear(trial):
    """One second of twenty makes the p99: a run whose answer hangs on it may be wrong as any other."""
    found = trial(lambda at: 0.9 if 15 <= at < 16 else 0.2)

    assert (found.outcome, found.clear) == (Outcome.BROKEN, False)
    assert found.text.endswith("4.47 times, not clearly")


@pytest.mark.lie
def test_so_is_one_bad_moment_of_the_good_end(trial):
    found = trial(0.4, lambda at: 0.9 if 15 <= at < 16 else 0.2)
    assert (found.outcome, found.clear) == (Outcome.HELD, False)


def test_what_is_near_the_factor_is_not_clear(trial):
    assert not trial(0.31).clear
    assert not trial(0.29).clear


def test_a_run_that_is_invalid_or_that_measured_too_little_says_nothing(trial, tmp_path):
    assert trial(0.4, ended="fault").outcome is Outcome.INVALID


def test_too_few_operations_say_nothing(trial):
    found = trial(0.4, rate=0.5)
    assert found.outcome is Outcome.INVALID
    assert "20 are needed" in found.text


@pytest.mark.parametrize(
    ("figure", "factor", "said"),
    [
        (RULE, 1.0, "worse is more than 1 times"),
        ("cpu", 1.5, "cpu is not a latency"),
        ("ingest.errors", 1.5, "is not a latency"),
        ("kv-writes.latency.p50", 1.5, "is not a latency"),
    ],
)
def test_what_no_duet_can_compare_is_said(tmp_path, figure, factor, said):
    document = {**RecordingBuilder(tmp_path / "run").experiment(), "clients": CLIENTS}
    with pytest.raises(UsageError, match=said):
        PairedFigure.of(figure, factor, Experiment.model_validate(document))


def test_clear_runs_take_two_thirds_of_the_runs_and_no_more_builds():
    _, plain, _ = searches(20, 0.0, 0.0, clear=0.0)
    wrong, clear, builds = searches(20, 0.0, 0.0, clear=1.0)
    assert (wrong, builds) == (0, 8)
    assert clear < 0.7 * plain


@pytest.mark.parametrize("rate", [0.02, 0.05])
def test_a_wrong_turn_is_rarer_than_one_in_a_hundred_searches_by_clear_runs(rate):
    wrong, _, _ = searches(100, rate, rate, clear=1.0)
    assert wrong <= 1


def test_duets_as_noisy_as_real_ones_find_the_commit():
    wrong, runs, builds = searches_of(40, Recorded)
    assert (wrong, builds) == (0, 8)
    assert runs < 17
