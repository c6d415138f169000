"""What a comparison of variants says of planted recordings: the truth, and the lies that must not pass."""

import json
import textwrap

import pytest

import compared_runs
from compared_runs import BETTER, NO_WORSE, compared, planted, rounds_of
from hashidrill.core.compare.comparison_file import read_comparison
from hashidrill.core.compare.judged import judge_comparison
from hashidrill.core.errors import RecordingError
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.util.files import COMPARISON_NAME
from hashidrill.core.util.redaction import MARK
from places import ROOT

pytestmark = pytest.mark.long

FIGURE = "kv-writes.latency.p50"


def judged(path, p50s, **kwargs):
    return judge_comparison(compared(path, rounds_of(path, p50s), **kwargs))


def test_a_candidate_that_is_truly_twice_as_slow_fails(tmp_path):
    verdict = judged(tmp_path, [(0.02, 0.04)] * 3)
    [found] = verdict.comparisons
    assert (verdict.verdict, found.finding) == (Verdict.FAIL, Finding.BROKEN)
    assert found.figures["ratio"] == pytest.approx(2, rel=0.1)
    assert f"{FIGURE} is" in found.text
    assert all(run.verdict.verdict is Verdict.PASS for run in verdict.runs), "each side by itself was in order"


def test_two_sides_that_are_the_same_pass(tmp_path):
    verdict = judged(tmp_path, [(0.02, 0.02)] * 3)
    assert [each.finding for each in verdict.comparisons] == [Finding.HELD]
    assert verdict.verdict is Verdict.PASS


def test_with_the_sides_swapped_the_slow_baseline_is_no_regression_and_the_candidate_is_better(tmp_path):
    verdict = judged(tmp_path, [(0.04, 0.02)] * 3, compare=(NO_WORSE, BETTER))
    assert [each.finding for each in verdict.comparisons] == [Finding.HELD, Finding.HELD]


def test_what_is_no_better_is_not_called_better(tmp_path):
    assert judged(tmp_path, [(0.02, 0.02)] * 3, compare=(BETTER,)).verdict is Verdict.FAIL


@pytest.mark.lie
@pytest.mark.parametrize("name", ["no_worse_than", "mine"])
def test_a_side_without_its_stress_is_not_compared(tmp_path, name):
    """The candidate is as quick as the baseline: the load that makes both slow stopped in the candidate's run."""
    folder = tmp_path / "hypotheses"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from hashidrill import comparison\n\n\n@comparison(rounds=True)\ndef mine(candidate, baseline, *,"
        " figure: str):\n    assert len(candidate) == len(baseline)\n"
    )
    with_stress = lambda built: built.load("churn", rate=20)  # noqa: E731
    runs = rounds_of(tmp_path, [(0.02, 0.02)] * 3, change=with_stress)
    without = {"change": lambda built: built.load("churn", rate=20, end=11)}
    runs[1]["new"] = planted(tmp_path / "stopped", "new", seed=51, **without)
    compare = {name: NO_WORSE["no_worse_than"]}
    kept = compared(tmp_path, runs, compare=(compare,), change=lambda built: with_stress(built.load("kv-writes")))
    verdict = judge_comparison(kept, near_to=tmp_path / "x.yaml")
    said = "new and old cannot be compared: new did not run as written: load churn stopped: it started no operation"
    assert verdict.comparisons[0].finding is Finding.INVALID
    assert said in verdict.comparisons[0].text


@pytest.mark.lie
def test_rounds_that_scatter_too_much_cannot_tell_and_say_how_many_more_would(tmp_path):
    verdict = judged(tmp_path, [(0.02, 0.03), (0.03, 0.02), (0.02, 0.024)])
    [found] = verdict.comparisons
    assert (verdict.verdict, found.finding) == (Verdict.INVALID, Finding.INVALID)
    assert "cannot tell" in found.text
    assert "more rounds would tell" in found.text


def test_two_rounds_that_disagree_cannot_tell(tmp_path):
    verdict = judged(tmp_path, [(0.02, 0.04), (0.02, 0.02)])
    assert verdict.verdict is Verdict.INVALID
    assert "with `rounds: 3` or more there is an interval" in verdict.comparisons[0].text


def test_a_candidate_under_the_limit_is_no_worse_whatever_the_ratio(tmp_path):
    limit = {"no_worse_than": {**NO_WORSE["no_worse_than"], "or_below": "100ms"}}
    verdict = judged(tmp_path, [(0.02, 0.06)], compare=(limit,))
    assert verdict.comparisons[0].finding is Finding.HELD
    assert "under 100ms" in verdict.comparisons[0].text


@pytest.mark.parametrize(("limit", "finding"), [("100ms", Finding.HELD), ("10ms", Finding.INVALID)])
def test_a_busy_machine_is_no_reason_to_doubt_a_limit_that_is_kept_and_one_to_doubt_the_rest(tmp_path, limit, finding):
    compare = {"no_worse_than": {**NO_WORSE["no_worse_than"], "or_below": limit}}
    busy = lambda built: built.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)  # noqa: E731
    runs = rounds_of(tmp_path, [(0.02, 0.06)], change=busy)
    [found] = judge_comparison(compared(tmp_path, runs, compare=(compare,))).comparisons
    assert found.finding is finding


def test_a_known_issue_of_a_comparison_is_an_expected_failure(tmp_path):
    known = {**NO_WORSE, "known_issue": "hashicorp/consul#12080"}
    verdict = judged(tmp_path, [(0.02, 0.04)] * 3, compare=(known,))
    assert (verdict.verdict, verdict.comparisons[0].finding) == (Verdict.PASS, Finding.KNOWN)


def test_the_figures_of_all_variants_are_side_by_side(tmp_path):
    verdict = judged(tmp_path, [(0.02, 0.04)])
    rows = {row.name: row for row in verdict.figures}
    assert rows[FIGURE].numbers["new"] == pytest.approx(2 * rows[FIGURE].numbers["old"], rel=0.1)
    assert "kv-writes.recovery" in rows
    assert json.loads(json.dumps(verdict.to_data()))["figures"][0]["name"] == FIGURE


# lies


def invalid(verdict, *expected):
    assert verdict.verdict is Verdict.INVALID
    said = "\n".join([*verdict.invalid, *(each.text for each in verdict.comparisons)])
    for each in expected:
        assert each in said
    return said


@pytest.mark.lie
def test_a_variant_that_did_not_take_effect_is_noticed(tmp_path):
    """The experiments differ, and the agents were started with the same configuration all the same."""
    runs = rounds_of(tmp_path, [(0.02, 0.02)], took_effect=False)
    invalid(judge_comparison(compared(tmp_path, runs)), "old", "new", "use_streaming_backend took no effect")


@pytest.mark.lie
def test_one_run_under_both_names_is_refused(tmp_path):
    run = planted(tmp_path / "old", "old")
    verdict = judge_comparison(compared(tmp_path, [{"old": run, "new": run}]))
    invalid(verdict, "did not run the variant new", "use_streaming_backend", "the same run cannot count twice")


@pytest.mark.lie
def test_swapped_recordings_are_refused(tmp_path):
    """The slow one under the name of the fast one would turn every verdict round."""
    [runs] = rounds_of(tmp_path, [(0.02, 0.04)])
    verdict = judge_comparison(compared(tmp_path, [{"old": runs["new"], "new": runs["old"]}]))
    invalid(verdict, "did not run the variant old", "did not run the variant new", "no round has a valid run")


@pytest.fixture
def secret(monkeypatch):
    """The two variants differ in a secret alone."""
    for name in ("old", "new"):
        over = {"datacenter": {"consul": {"config": {"limits": {"shared_secret": f"hunter-of-{name}"}}}}}
        monkeypatch.setitem(compared_runs.OVERLAYS, name, over)
    clean = {"consul-1": {"limits": {"shared_secret": MARK}}}
    return lambda built: built.run_info(config=clean, variant=built._variant[0])


@pytest.mark.lie
def test_variants_that_differ_in_a_secret_alone_are_compared_though_no_recording_has_it(tmp_path, secret):
    kept = compared(tmp_path, rounds_of(tmp_path, [(0.02, 0.04)] * 3, change=secret))
    verdict = judge_comparison(read_comparison(kept.path))
    assert (verdict.comparisons[0].finding, verdict.invalid) == (Finding.BROKEN, [])
    assert "hunter" not in (kept.path / COMPARISON_NAME).read_text() + repr(verdict)


@pytest.mark.lie
def test_their_recordings_cannot_be_swapped(tmp_path, secret):
    [runs] = rounds_of(tmp_path, [(0.02, 0.04)], change=secret)
    verdict = judge_comparison(compared(tmp_path, [{"old": runs["new"], "new": runs["old"]}]))
    invalid(verdict, "did not run the variant old: its recording belongs to new", "no round has a valid run")


@pytest.mark.lie
@pytest.mark.usefixtures("secret")
def test_nor_is_a_secret_compared_that_no_agent_was_started_with(tmp_path):
    runs = rounds_of(tmp_path, [(0.02, 0.04)], change=lambda built: built.run_info(config={"consul-1": {"a": 1}}))
    invalid(judge_comparison(compared(tmp_path, runs)), "old", "new", "limits.shared_secret took no effect")


def test_the_recording_of_another_experiment_is_refused(tmp_path):
    runs = rounds_of(tmp_path, [(0.02, 0.02)])
    runs[0]["old"] = planted(tmp_path / "other", "old", change=lambda built: setattr(built, "name", "another"))
    invalid(judge_comparison(compared(tmp_path, runs)), "is a run of another experiment, another")


@pytest.mark.lie
def test_a_side_that_is_invalid_makes_all_of_it_invalid(tmp_path):
    runs = rounds_of(tmp_path, [(0.02, 0.02)])
    runs[0]["new"] = planted(tmp_path / "sick", "new", change=lambda built: built.end("crashed", error="out of memory"))
    invalid(judge_comparison(compared(tmp_path, runs)), "round 1 of new is INVALID", "no round has a valid run of new")


def test_one_invalid_round_of_several_is_left_out_and_does_not_pass(tmp_path):
    runs = rounds_of(tmp_path, [(0.02, 0.02)] * 4)
    runs[2]["old"] = planted(tmp_path / "sick", "old", change=lambda built: built.end("crashed", error="out of memory"))
    for number in (2, 3):  # the pair of the first is discarded; its slow half would move the median of a side
        runs[number]["new"] = planted(tmp_path / f"slow-{number}", "new", p50_s=[0.09, 0.02][number - 2])
    verdict = judge_comparison(compared(tmp_path, runs))
    invalid(verdict, "round 3 of old is INVALID")
    assert verdict.comparisons[0].finding is Finding.HELD
    assert verdict.comparisons[0].figures["rounds"] == 3
    [row] = [row for row in verdict.figures if row.name == FIGURE]
    assert row.shown == {
        "old": verdict.comparisons[0].figures["baseline"],
        "new": verdict.comparisons[0].figures["candidate"],
    }


@pytest.mark.lie
@pytest.mark.parametrize("there", [{}, {"new": "gone"}])
def test_a_missing_side_makes_all_of_it_invalid(tmp_path, there):
    [runs] = rounds_of(tmp_path, [(0.02, 0.02)])
    runs = {"old": runs["old"], **{name: tmp_path / path for name, path in there.items()}}
    invalid(judge_comparison(compared(tmp_path, [runs])), "round 1 has no recording of new: the pair is incomplete")


@pytest.mark.lie
def test_a_figure_that_one_side_did_not_measure_is_invalid(tmp_path):
    """Nobody read back what the candidate acknowledged: that is not none lost."""
    lost = {"no_worse_than": {**NO_WORSE["no_worse_than"], "figure": "kv-writes.lost"}}
    runs = rounds_of(tmp_path, [(0.02, 0.02)])
    forget = lambda built: built._finals.clear()  # noqa: E731 - what a run that lost its final reads leaves
    runs[0]["new"] = planted(tmp_path / "forgetful", "new", change=forget)
    invalid(
        judge_comparison(compared(tmp_path, runs, compare=(lost,))), "kv-writes.lost of the candidate was not measured"
    )


def test_a_figure_that_nobody_has_is_invalid(tmp_path):
    odd = {"no_worse_than": {**NO_WORSE["no_worse_than"], "figure": "kv-writes.latency.p42"}}
    invalid(judged(tmp_path, [(0.02, 0.02)], compare=(odd,)), "did you mean kv-writes.latency.p")


def test_a_broken_expectation_of_one_side_fails_though_the_comparison_holds(tmp_path):
    lose = lambda built: built._finals["kv-writes"].update(dict.fromkeys(built._finals["kv-writes"]))  # noqa: E731
    runs = rounds_of(tmp_path, [(0.02, 0.02)])
    runs[0]["old"] = planted(tmp_path / "lossy", "old", change=lose)
    assert judge_comparison(compared(tmp_path, runs)).verdict is Verdict.FAIL


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.parametrize("figure", [FIGURE, "kv-writes.recovery", "kv-writes.lost"])
@pytest.mark.parametrize("p50s", [(0.02, 0.02), (0.02, 0.04)])
@pytest.mark.parametrize("rounds", [1, 2])
def test_fewer_than_three_rounds_tell_no_difference_and_no_equality(tmp_path, rounds, p50s, figure):
    """How far two equal runs lie apart is not known then: one of them may have had luck with its leader."""
    wanted = [{each: {**asked[each], "figure": figure}} for asked in (NO_WORSE, BETTER) for each in asked]
    for found in judged(tmp_path, [p50s] * rounds, compare=wanted).comparisons:
        assert found.finding is Finding.INVALID
        assert "with `rounds: 3` or more there is an interval" in found.text


# a user's own


OWN = """\
from hashidrill.core.hypothesis import comparison

@comparison
def quicker(fast, slow, *, load: str):
    assert fast.operations(load).percentile_s(80) < slow.operations(load).percentile_s(80)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "own.py").write_text(textwrap.dedent(OWN))
    return tmp_path / "own.yaml"


def of_own(path, p50s, near_to):
    quicker = {"quicker": {"fast": "new", "slow": "old", "load": "kv-writes"}}
    return judge_comparison(compared(path, rounds_of(path, p50s), compare=(quicker,)), near_to=near_to)


def test_a_comparison_of_a_users_own_gets_a_recording_for_each_side(tmp_path, own):
    assert of_own(tmp_path, [(0.04, 0.02)], own).verdict is Verdict.PASS


def test_a_comparison_of_a_users_own_is_judged_in_every_round(tmp_path, own):
    verdict = of_own(tmp_path, [(0.04, 0.02), (0.02, 0.04)], own)
    invalid(verdict, "the rounds do not agree", "round 2: broken")


@pytest.mark.lie
def test_seconds_in_doubt_on_either_side_spoil_a_comparison_of_a_users_own(tmp_path, own):
    """A machine that other work kept busy under the baseline alone would make the candidate look quick."""
    runs = rounds_of(tmp_path, [(0.04, 0.02)])
    busy = lambda built: built.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)  # noqa: E731
    runs[0]["old"] = planted(tmp_path / "busy", "old", p50_s=0.04, change=busy)
    quicker = {"quicker": {"fast": "new", "slow": "old", "load": "kv-writes"}}
    verdict = judge_comparison(compared(tmp_path, runs, compare=(quicker,)), near_to=own)
    assert verdict.comparisons[0].finding is Finding.INVALID
    assert "without a valid measurement" in verdict.comparisons[0].text


# on disk


def test_a_comparison_is_judged_again_from_what_is_on_disk(tmp_path):
    kept = compared(tmp_path, rounds_of(tmp_path, [(0.02, 0.04)] * 3))
    again = judge_comparison(read_comparison(kept.path))
    assert again.to_data() == judge_comparison(kept).to_data()


def test_a_folder_that_was_moved_with_its_recordings_still_finds_them(tmp_path):
    (tmp_path / "runs").mkdir()
    compared(tmp_path / "runs", rounds_of(tmp_path / "runs", [(0.02, 0.04)] * 3))
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert judge_comparison(read_comparison(tmp_path / "elsewhere" / "compared")).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 1}', '{"format": 1, "resolved": {}, "variants": {}, "rounds": []}']
)
def test_what_is_no_comparison_is_told(tmp_path, text):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(RecordingError, match=r"comparison\.json: is not readable"):
        read_comparison(tmp_path)


def test_a_comparison_of_a_newer_hashidrill_is_not_guessed_at(tmp_path):
    (tmp_path / "comparison.json").write_text('{"format": 99, "hashidrill": "9.0"}')
    with pytest.raises(RecordingError, match=r"hashidrill 9\.0 wrote this comparison"):
        read_comparison(tmp_path)


def test_the_comparison_in_the_reference_page_judges_as_it_says(tmp_path):
    page = (ROOT / "playbooks" / "verdicts.md").read_text()
    example = page.partition("# hypotheses/sooner.py\n")[2].partition("```")[0]
    (tmp_path / "hypotheses").mkdir()
    (tmp_path / "hypotheses" / "sooner.py").write_text(example)
    sooner = {"starts_sooner": {"fast": "new", "slow": "old", "load": "kv-writes"}}
    for old_s, finding in ((3.0, Finding.HELD), (0.02, Finding.BROKEN)):
        folder = tmp_path / f"{old_s}"
        kept = compared(folder, rounds_of(folder, [(old_s, 0.02)]), compare=(sooner,))
        assert judge_comparison(kept, near_to=tmp_path / "x.yaml").comparisons[0].finding is finding
