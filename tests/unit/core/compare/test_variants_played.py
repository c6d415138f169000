"""Playing the variants of an experiment: their order, what is written down, and what a person and a pipeline see."""

import json

import pytest
from typer.testing import CliRunner

from compared_runs import NO_WORSE, OVERLAYS, TEXT, compared, planted, rounds_of
from hashidrill.core.compare.comparison_file import read_comparison
from hashidrill.core.compare.judged import judge_comparison
from hashidrill.core.errors import BinaryError, UsageError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.judging.verdict import Verdict
from hashidrill.faces.cli import runs
from hashidrill.faces.cli.app import app
from hashidrill.lab.runs.rounds import play_variants
from hashidrill.reports.compared import judge_and_report_comparison
from hashidrill.testing.recordings import RecordingBuilder

pytestmark = pytest.mark.long


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
