"""Playing the variants of an experiment: their order, what is written down, and what a person and a pipeline see."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from compared_runs import OVERLAYS, compared, planted, rounds_of
from hashidrill.cli.app import app
from hashidrill.compare.judged import judge_comparison
from hashidrill.compare.kept import read_comparison
from hashidrill.compare.variants import play_variants
from hashidrill.errors import UsageError
from hashidrill.experiment.loader import resolve
from hashidrill.reports.compared import judge_and_report_comparison
from hashidrill.verdict import Verdict

TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: planted, title: Old and new, why: To see what is played}
datacenter: {consul: {servers: 3, clients: 1}}
load:
  kv-writes: {kind: consul.kv.write, rate: 50/s}
steady_state: {for: 5s, require: ["kv-writes.errors < 1%"]}
method:
  - {fault: disk.latency, on: "host:consul-1", with: {op: fsync, delay: 20ms}, for: 20s}
recovery: {for: 20s}
expect:
  - no_acknowledged_write_lost: {load: kv-writes}
variants:
  old:
  new: {datacenter: {consul: {config: {use_streaming_backend: true}}}}
rounds: 3
compare:
  - no_worse_than: {candidate: new, baseline: old, figure: kv-writes.latency.p50}
"""


@pytest.fixture
def resolved(tmp_path):
    (tmp_path / "planted.yaml").write_text(TEXT)
    return resolve(tmp_path / "planted.yaml")


class Runner:
    """Runs nothing: it leaves a planted recording of each variant, and notes the order."""

    def __init__(self, *, stop_after=None):
        self.order = []
        self._stop_after = stop_after

    def __call__(self, one, *, runs_dir, events):
        self.order.append(one.variant)
        path = planted(runs_dir / f"{len(self.order)}-{one.variant}", one.variant, seed=len(self.order))
        if len(self.order) == self._stop_after:
            raise KeyboardInterrupt(path)
        return path


def test_the_order_turns_round_in_every_other_round(tmp_path, resolved):
    runner = Runner()
    kept = read_comparison(play_variants(resolved, runs_dir=tmp_path / "runs", run=runner))
    assert runner.order == ["old", "new", "new", "old", "old", "new"]
    assert [set(each.recordings) for each in kept.rounds] == [{"old", "new"}] * 3
    assert kept.variants.keys() == OVERLAYS.keys()
    assert kept.experiment.experiment.compare == resolved.experiment.compare


def test_what_was_played_until_an_interrupt_is_written_down_and_is_invalid(tmp_path, resolved):
    with pytest.raises(KeyboardInterrupt) as stop:
        play_variants(resolved, runs_dir=tmp_path / "runs", run=Runner(stop_after=3))
    kept = read_comparison(stop.value.args[0])
    assert [sorted(each.recordings) for each in kept.rounds] == [["new", "old"], ["new"], []]
    verdict = judge_comparison(kept)
    assert verdict.verdict is Verdict.INVALID
    assert "round 2 has no recording of old: the pair is incomplete" in verdict.invalid


def test_a_figure_that_a_side_does_not_have_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "x.yaml").write_text(TEXT.replace("latency.p50}", "latency.p5}"))
    runner = Runner()
    with pytest.raises(UsageError, match=r"no figure 'kv-writes.latency.p5'.*did you mean"):
        play_variants(resolve(tmp_path / "x.yaml"), runs_dir=tmp_path / "runs", run=runner)
    assert runner.order == []
    assert not (tmp_path / "runs").exists()


def test_secrets_of_the_experiment_do_not_get_into_the_comparison(tmp_path):
    secret = "config: {use_streaming_backend: true, encrypt: pUqJrVyVRj5jsiYEkM/tFQYfWyJIv4s3XkvDwy7Cu5s=}"
    (tmp_path / "x.yaml").write_text(TEXT.replace("config: {use_streaming_backend: true}", secret))
    folder = play_variants(resolve(tmp_path / "x.yaml"), runs_dir=tmp_path / "runs", run=Runner())
    assert "pUqJrVyVRj5" not in "".join(file.read_text() for file in folder.iterdir())


# what people see


def test_an_experiment_with_variants_is_not_run_as_one(tmp_path, resolved):
    from hashidrill.engine.launch import run_experiment

    with pytest.raises(UsageError, match=r"has variants \(old, new\), which run one by one: name one"):
        run_experiment(resolved, runs_dir=tmp_path / "runs")


def test_show_prints_a_variant_complete(tmp_path, resolved):
    shown = CliRunner().invoke(app, ["show", str(resolved.path), "--variant", "new"])
    assert shown.exit_code == 0
    assert "use_streaming_backend: true" in shown.output
    assert "variants:" not in shown.output


def test_a_variant_that_is_not_there_is_bad_usage(resolved):
    called = CliRunner().invoke(app, ["run", str(resolved.path), "--variant", "odl"])
    assert "did you mean old?" in str(called.exception)
    assert called.exception.exit_code == 2


@pytest.mark.parametrize(("new_s", "code", "verdict"), [(0.02, 0, "PASS"), (0.04, 1, "FAIL")])
def test_check_judges_a_comparison_again(tmp_path, new_s, code, verdict):
    folder = compared(tmp_path, rounds_of(tmp_path, [(0.02, new_s)])).path
    called = CliRunner().invoke(app, ["check", str(folder)])
    assert called.exit_code == code
    for said in (verdict, "no_worse_than(candidate=new, baseline=old", "kv-writes.latency.p50", "old, round 1",
                 f"hashidrill check {folder}"):  # fmt: skip
        assert said in called.output.replace("\n", "")
    as_json = json.loads(CliRunner().invoke(app, ["check", str(folder), "--json"]).output)
    assert (as_json["verdict"], as_json["exit_code"]) == (verdict, code)
    assert [run["variant"] for run in as_json["runs"]] == ["old", "new"]
    assert as_json == as_json | json.loads((folder / "verdict.json").read_text())


def test_the_reports_name_both_sides_and_put_their_figures_side_by_side(tmp_path):
    kept = compared(tmp_path, rounds_of(tmp_path, [(0.02, 0.04)]))
    verdict, report = judge_and_report_comparison(kept)
    page, summary = report.read_text(), (kept.path / "summary.md").read_text()
    [row] = [row for row in verdict.figures if row.name == "kv-writes.latency.p50"]
    for text in (page, summary):
        assert all(shown in text for shown in row.shown.values())
        assert "FAIL" in text
        assert text.index("old") < text.index("new")
    assert "| figure | `old` | `new` |" in summary
    assert 'href="../new-0/report.html"' in page
    assert "<script" not in page


def test_what_a_recording_says_cannot_get_into_the_page_as_markup(tmp_path):
    evil = lambda built: built.end("crashed", error="<script>alert(1)</script>")  # noqa: E731 - one planted change
    runs = rounds_of(tmp_path, [(0.02, 0.02)])
    runs[0]["new"] = planted(tmp_path / "evil", "new", change=evil)
    _, report = judge_and_report_comparison(compared(tmp_path, runs))
    assert "<script" not in report.read_text()
    assert "alert(1)" in report.read_text()
