"""What a comparison of variants says of planted recordings: the truth, and the lies that must not pass.
Playing the variants of an experiment: their order, what is written down, and what a person and a pipeline see.
"""

import json
import textwrap

import pytest
from typer.testing import CliRunner

import compared_runs
from compared_runs import BETTER, NO_WORSE, OVERLAYS, TEXT, compared, planted, rounds_of
from hashidrill.core.compare.judged import judge_comparison, read_comparison
from hashidrill.core.errors import BinaryError, RecordingError, UsageError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.util.files import COMPARISON_NAME
from hashidrill.core.util.redaction import MARK
from hashidrill.faces.cli import runs
from hashidrill.faces.cli.app import app
from hashidrill.lab.runs.rounds import play_variants
from hashidrill.reports.compared import judge_and_report_comparison
from hashidrill.testing.recordings import RecordingBuilder
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


@pytest.fixture
def resolved(tmp_path):
    (tmp_path / "planted.yaml").write_text(TEXT)
    return resolve(tmp_path / "planted.yaml")


def nothing(_variant, _say):
    """Every binary is there."""


class Runner:
    """Runs nothing: it leaves a planted recording of each variant, and notes the order."""

    def __init__(self, *, stop_after=None, p50_s=None, **kwargs):
        self.order = []
        self._stop_after = stop_after
        self._p50_s = p50_s or {"old": 0.02, "new": 0.02}
        self._kwargs = kwargs

    def __call__(self, one, *, runs_dir, events):
        self.order.append(one.variant)
        path = planted(
            runs_dir / f"{len(self.order)}-{one.variant}",
            one.variant,
            seed=len(self.order),
            p50_s=self._p50_s[one.variant],
            **self._kwargs,
        )
        if len(self.order) == self._stop_after:
            raise KeyboardInterrupt(path)
        return path


def test_the_order_turns_round_in_every_other_round(tmp_path, resolved):
    runner = Runner()
    kept = read_comparison(play_variants(resolved, runs_dir=tmp_path / "runs", run=runner, prepare=nothing))
    assert runner.order == ["old", "new", "new", "old", "old", "new"]
    assert [set(each.recordings) for each in kept.rounds] == [{"old", "new"}] * 3
    assert kept.variants.keys() == OVERLAYS.keys()
    assert kept.experiment.experiment.compare == resolved.experiment.compare


def test_what_was_played_until_an_interrupt_is_written_down_and_is_invalid(tmp_path, resolved):
    with pytest.raises(KeyboardInterrupt) as stop:
        play_variants(resolved, runs_dir=tmp_path / "runs", run=Runner(stop_after=3), prepare=nothing)
    kept = read_comparison(stop.value.args[0])
    assert [sorted(each.recordings) for each in kept.rounds] == [["new", "old"], ["new"], []]
    verdict = judge_comparison(kept)
    assert verdict.verdict is Verdict.INVALID
    assert "round 2 has no recording of old: the pair is incomplete" in verdict.invalid


def test_a_figure_that_a_side_does_not_have_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "x.yaml").write_text(TEXT.replace("latency.p50}", "latency.p5}"))
    runner = Runner()
    with pytest.raises(UsageError, match=r"no figure 'kv-writes.latency.p5'.*did you mean"):
        play_variants(resolve(tmp_path / "x.yaml"), runs_dir=tmp_path / "runs", run=runner, prepare=nothing)
    assert runner.order == []
    assert not (tmp_path / "runs").exists()


def test_a_version_that_cannot_be_had_is_told_before_the_first_variant_runs(tmp_path, resolved):
    def ensure(one, _say):
        if one.variant == "new":
            raise BinaryError("consul 9.9.9 cannot be had")

    runner = Runner()
    with pytest.raises(BinaryError, match="cannot be had"):
        play_variants(resolved, runs_dir=tmp_path / "runs", run=runner, prepare=ensure)
    assert (runner.order, (tmp_path / "runs").exists()) == ([], False)


def test_validate_checks_every_variant_and_the_figures_that_are_compared(tmp_path):
    (tmp_path / "x.yaml").write_text(TEXT)
    assert CliRunner().invoke(app, ["validate", str(tmp_path / "x.yaml")]).exit_code == 0
    for old, new, expected in (
        ("latency.p50}", "latency.p5}", "no figure 'kv-writes.latency.p5'"),
        ("use_streaming_backend: true}", "use_streaming_backend: true}, servers: 12", "(in the variant new)"),
        ("rounds: 3", "rounds: 2", "`rounds: 2` cannot tell a difference from luck; write 3 or more"),
    ):
        (tmp_path / "x.yaml").write_text(TEXT.replace(old, new))
        called = CliRunner().invoke(app, ["validate", str(tmp_path / "x.yaml")])
        assert called.exit_code == 2
        assert expected in called.output.replace("\n    ", " ")


def test_secrets_of_the_experiment_do_not_get_into_the_comparison(tmp_path):
    secret = "config: {use_streaming_backend: true, encrypt: pUqJrVyVRj5jsiYEkM/tFQYfWyJIv4s3XkvDwy7Cu5s=}"
    (tmp_path / "x.yaml").write_text(TEXT.replace("config: {use_streaming_backend: true}", secret))
    folder = play_variants(resolve(tmp_path / "x.yaml"), runs_dir=tmp_path / "runs", run=Runner(), prepare=nothing)
    assert "pUqJrVyVRj5" not in "".join(file.read_text() for file in folder.iterdir())


# what people see


def test_an_experiment_with_variants_is_not_run_as_one(tmp_path, resolved):
    from hashidrill.lab.runs.launch import run_experiment

    with pytest.raises(UsageError, match=r"has variants \(old, new\), which run one by one: name one"):
        run_experiment(resolved, runs_dir=tmp_path / "runs")


def test_show_prints_a_variant_complete(tmp_path, resolved):
    shown = CliRunner().invoke(app, ["show", str(resolved.path), "--variant", "new"])
    assert shown.exit_code == 0
    assert "use_streaming_backend: true" in shown.output
    assert "variants:" not in shown.output


def test_show_prints_the_summary_of_a_comparison(tmp_path):
    folder = compared(tmp_path, rounds_of(tmp_path, [(0.02, 0.04)] * 3)).path
    for name, runs_dir in ((str(folder), tmp_path / "nowhere"), (folder.name, tmp_path)):
        shown = CliRunner().invoke(app, ["show", name, "--runs", str(runs_dir)])
        assert shown.output.startswith("### ✗ FAIL: The planted recording")
        assert "| figure | old | new |" in shown.output


def test_a_variant_that_is_not_there_is_bad_usage(resolved):
    called = CliRunner().invoke(app, ["run", str(resolved.path), "--variant", "odl"])
    assert "did you mean old?" in str(called.exception)
    assert called.exception.exit_code == 2


@pytest.mark.parametrize(("new_s", "code", "verdict"), [(0.02, 0, "PASS"), (0.04, 1, "FAIL")])
def test_check_judges_a_comparison_again(tmp_path, new_s, code, verdict):
    folder = compared(tmp_path, rounds_of(tmp_path, [(0.02, new_s)] * 3)).path
    called = CliRunner().invoke(app, ["check", str(folder)])
    assert called.exit_code == code
    for said in (
        verdict,
        "no_worse_than(candidate=new, baseline=old",
        "kv-writes.latency.p50",
        "old, round 1",
        f"hashidrill check {folder}",
    ):
        assert said in called.output.replace("\n", "")
    as_json = json.loads(CliRunner().invoke(app, ["check", str(folder), "--json"]).output)
    assert (as_json["verdict"], as_json["exit_code"]) == (verdict, code)
    assert [run["variant"] for run in as_json["runs"]] == ["old", "new"] * 3
    assert as_json == as_json | json.loads((folder / "verdict.json").read_text())


def test_the_reports_name_both_sides_and_put_their_figures_side_by_side(tmp_path):
    kept = compared(tmp_path, rounds_of(tmp_path, [(0.02, 0.04)] * 3))
    verdict, report = judge_and_report_comparison(kept)
    page, summary = report.read_text(), (kept.path / "summary.md").read_text()
    [row] = [row for row in verdict.figures if row.name == "kv-writes.latency.p50"]
    for text in (page, summary):
        assert all(shown in text for shown in row.shown.values())
        assert "FAIL" in text
        assert text.index("old") < text.index("new")
    assert "| figure | old | new |" in summary
    assert 'href="../new-0/report.html"' in page
    assert "<script" not in page


def test_what_a_recording_says_cannot_get_into_the_page_as_markup(tmp_path):
    evil = lambda built: built.end("crashed", error="<script>alert(1)</script>")  # noqa: E731 - one planted change
    runs = rounds_of(tmp_path, [(0.02, 0.02)])
    runs[0]["new"] = planted(tmp_path / "evil", "new", change=evil)
    _, report = judge_and_report_comparison(compared(tmp_path, runs))
    assert "<script" not in report.read_text()
    assert "alert(1)" in report.read_text()


@pytest.fixture
def called(tmp_path, monkeypatch):
    """`hashidrill run` of an experiment with variants, with an engine that leaves planted recordings."""
    plain = RecordingBuilder(tmp_path / "x").fault("disk.latency", "consul-1", at=10, until=30).experiment()
    plain["method"][0]["with"] = {"op": "fsync", "delay": "20ms"}
    whole = plain | {"load": {"kv-writes": {"kind": "consul.kv.write", "rate": "25/s"}}}
    whole |= {"variants": OVERLAYS, "rounds": 3, "compare": [NO_WORSE]}
    (tmp_path / "planted.yaml").write_text(json.dumps(whole))
    monkeypatch.setattr(runs, "prepare", nothing)
    with_parameters = lambda built: built._method[0].update({"with": plain["method"][0]["with"]})  # noqa: E731

    def call(*args, stop_after=None, new_s=0.02):
        runner = Runner(stop_after=stop_after, p50_s={"old": 0.02, "new": new_s}, change=with_parameters)
        monkeypatch.setattr(runs, "run_experiment", runner)
        command = ["run", str(tmp_path / "planted.yaml"), "--runs", str(tmp_path / "runs"), *args]
        return CliRunner().invoke(app, command), runner.order

    return call


@pytest.mark.parametrize(("new_s", "code", "verdict"), [(0.02, 0, "PASS"), (0.04, 1, "FAIL")])
def test_run_plays_every_variant_and_ends_with_the_verdict_of_the_comparison(called, new_s, code, verdict):
    made, order = called("--plain", new_s=new_s)
    assert order == ["old", "new", "new", "old", "old", "new"]
    assert made.exit_code == code
    assert f"{verdict}  The planted recording" in made.output
    assert "no_worse_than(candidate=new, baseline=old" in made.output


def test_run_prints_the_comparison_as_json(called, tmp_path):
    made, _ = called("--json", new_s=0.04)
    [result] = json.loads(made.stdout)
    assert (result["verdict"], result["exit_code"], made.exit_code) == ("FAIL", 1, 1)
    assert result["outcome"] == "complete"
    assert (tmp_path / "runs" / result["recording"] / "comparison.json").is_file()
    assert [each["finding"] for each in result["comparisons"]] == ["broken"]


def test_every_run_of_a_comparison_ends_its_json_lines_with_its_own_verdict(called):
    made, _ = called("--json-lines")
    said = [json.loads(line) for line in made.stdout.splitlines()]
    assert [each["verdict"] for each in said if each["event"] == "judged"] == ["PASS"] * 6


def test_one_variant_is_run_and_judged_by_itself(called, tmp_path):
    made, order = called("--plain", "--variant", "new")
    assert (made.exit_code, order) == (0, ["new"])
    assert not list((tmp_path / "runs").glob("*-compared-*"))


def test_an_interrupted_comparison_exits_with_130_and_says_what_is_missing(called):
    made, order = called("--plain", stop_after=1)
    assert (made.exit_code, order) == (130, ["old"])
    assert "round 1 has no recording of new: the pair is incomplete" in made.output
