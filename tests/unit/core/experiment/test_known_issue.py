"""A allowed:sue accounts for a break as far as it is known to go, and for nothing worse."""

import math

import pytest
from pydantic import ValidationError

import places
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.experiment.model import Expectation, KnownIssue
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"
ISSUE = "hashicorp/consul#22064"
ROOT = places.ROOT


def judged(tmp_path, latency_s, **bounds):
    """The judgement of a recovery that a allowed:sue spoils: p50 is so slow for 14 s after the fault, then quick."""
    run = RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)
    run.load(LOAD, latency=lambda t: latency_s if 10 <= t < 44 else 0.01).final_reads(LOAD)
    run.expect("writes_recover", load=LOAD, within="5s", known_issue={"issue": ISSUE, **bounds} if bounds else ISSUE)
    verdict = judge(run.build())
    return verdict.verdict, verdict.judgements[0]


def test_a_break_within_its_bounds_is_known(tmp_path):
    verdict, judgement = judged(tmp_path, 0.5, at_most={"worst_p50_s": "600ms", "recovered_after_s": "20s"})
    assert (verdict, judgement.finding, judgement.known_issue) == (Verdict.PASS, Finding.KNOWN, ISSUE)


@pytest.mark.lie
def test_one_that_is_ten_times_worse_than_known_is_a_failure(tmp_path):
    verdict, judgement = judged(tmp_path, 5.0, at_most={"worst_p50_s": "600ms"})
    assert (verdict, judgement.finding) == (Verdict.FAIL, Finding.BROKEN)
    assert judgement.text.startswith(
        "worse than the bounds of hashicorp/consul#22064: worst_p50_s is 5s, allowed: at most 600ms\n"
    )


def test_one_bound_that_does_not_hold_is_enough(tmp_path):
    bounds = {"at_most": {"worst_p50_s": "600ms"}, "at_least": {"operations": 10_000}}
    assert judged(tmp_path, 0.5, **bounds)[1].finding is Finding.BROKEN


def test_one_that_never_ends_is_known_only_where_the_bound_says_never(tmp_path):
    run = {"at_most": {"recovered_after_s": "20s"}}, {"at_most": {"recovered_after_s": "never"}}
    found = []
    for number, bounds in enumerate(run):
        builder = RecordingBuilder(tmp_path / str(number)).fault("disk.latency", "consul-1", at=10, until=30)
        builder.load(LOAD, latency=0.5).final_reads(LOAD)
        builder.expect("writes_recover", load=LOAD, within="5s", known_issue={"issue": ISSUE, **bounds})
        found.append(judge(builder.build()).judgements[0].finding)
    assert found == [Finding.BROKEN, Finding.KNOWN]


def test_a_figure_that_the_hypothesis_does_not_leave_cannot_be_compared(tmp_path):
    verdict, judgement = judged(tmp_path, 0.5, at_most={"worst_p99_s": "600ms"})
    assert (verdict, judgement.finding) == (Verdict.INVALID, Finding.INVALID)
    assert "worst_p99_s was not measured; the measured figures are: recovered_after_s" in judgement.text


def test_without_a_bound_any_break_is_accounted_for_and_the_verdict_says_so(tmp_path):
    verdict, judgement = judged(tmp_path, 5.0)
    assert (verdict, judgement.finding) == (Verdict.PASS, Finding.KNOWN)
    assert judgement.text.endswith("#22064 excuses any break, because it states no bound (at_most, at_least)")


def test_one_that_holds_is_a_failure_bounds_or_not(tmp_path):
    verdict, judgement = judged(tmp_path, 0.01, at_most={"worst_p50_s": "600ms"})
    assert (verdict, judgement.finding) == (Verdict.FAIL, Finding.FIXED)


@pytest.mark.parametrize(
    ("figure", "bound", "measured", "words"),
    [
        ("left_after_s", "15s", 15.01, "left_after_s is 15.01s, allowed: at most 15s"),
        ("left_after_s", "15s", "never", "left_after_s is never, allowed: at most 15s"),
        ("times", 250, 251, "times is 251, allowed: at most 250"),
        ("lost_share", "40%", 0.5, "lost_share is 50%, allowed: at most 40%"),
        ("goodput_at_end_per_s", "5/s", 6.0, "goodput_at_end_per_s is 6/s, allowed: at most 5/s"),
    ],
)
def test_bounds_are_written_with_the_unit_of_their_figure(figure, bound, measured, words):
    known = KnownIssue(issue=ISSUE, at_most={figure: bound})
    assert known.beyond({figure: measured}) == ([words], [])
    better = 0.0 if isinstance(bound, str) else bound
    assert known.beyond({figure: better}) == ([], [])


@pytest.mark.parametrize("measured", ["not measured", math.nan, ["a", "b"], None, True])
def test_what_is_no_number_cannot_be_compared(measured):
    worse, unknown = KnownIssue(issue=ISSUE, at_least={"times": 2}).beyond({"times": measured})
    assert (worse, len(unknown)) == ([], 1)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"issue": ISSUE, "at_most": {"left_after_s": 15}}, "15 has no unit; write a duration"),
        ({"issue": ISSUE, "at_most": {"left_after_s": "30%"}}, "is not a duration"),
        ({"issue": ISSUE, "at_most": {"refused_share": "never"}}, "is not a percentage"),
        ({"issue": ISSUE, "at_most": {"times": "many"}}, "expected a number, got 'many'"),
        ({"issue": ISSUE, "at_most": {"times": True}}, "expected a number"),
        ({"issue": ISSUE, "at_most": {"Times": 3}}, "should match pattern"),
        ({"issue": "known", "at_most": {"times": 3}}, "should match pattern"),
        ({"at_most": {"times": 3}}, "Field required"),
        ({"issue": ISSUE, "up_to": {"times": 3}}, "Extra inputs"),
        ("known", "expected owner/repo#123 or an https URL, got 'known'"),
    ],
)
def test_anything_else_says_what_would_be_right(known, text):
    with pytest.raises(ValidationError, match=text):
        Expectation.model_validate({"writes_recover": {"load": LOAD}, "known_issue": known})


@pytest.mark.parametrize("path", list_experiments(ROOT / "experiments"), ids=lambda path: path.stem)
def test_every_known_issue_of_the_library_says_how_far_it_goes(path):
    known = [each.known_issue for each in load_experiment(path).expect if each.known_issue is not None]
    assert all(issue.bounded for issue in known)
