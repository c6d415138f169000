"""Reports say what the recording holds; nothing in it can become markup; no run makes them too large."""

import base64
import hashlib
import io
import json
import math
import os
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from ruamel.yaml import YAML

from hashidrill.core.experiment.model import Experiment
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict
from hashidrill.core.protocols.abc import Sample
from hashidrill.core.recording.journal import Journal
from hashidrill.core.recording.reader import Operations, Recording
from hashidrill.core.recording.writer import RecordingWriter
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.reports.document import data_script, el
from hashidrill.reports.figures import load_figures, marked, merged, parts
from hashidrill.reports.html import render_html, write_html
from hashidrill.reports.live.display import final_summary
from hashidrill.reports.markdown import markdown_summary, write_markdown
from hashidrill.reports.text import (
    NOTHING,
    for_encoding,
    human_bytes,
    human_countdown,
    human_duration,
    human_figure,
    human_number,
    human_rate,
    human_share,
    printable,
    sparkline,
)
from hashidrill.reports.timeline import LIMIT_BYTES, load_panels, timeline
from hashidrill.reports.write import judge_and_report
from hashidrill.testing.recordings import RecordingBuilder
from report_runs import (
    EXPERIMENT,
    PlantedClock,
    S,
    broken,
    failing,
    held,
    invalid,
    passing,
    realistic_run,
    run_info,
    write_story,
)

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    recorded = realistic_run(tmp_path_factory.mktemp("run") / "run")
    recorded.__dict__["experiment"] = Experiment.model_validate(YAML(typ="safe").load(EXPERIMENT))
    return recorded


def operations(due_s, latency_s, outcome=None):
    """Operations as columns, from seconds."""
    due = (np.asarray(due_s) * S).astype(np.int64)
    end = due + (np.asarray(latency_s) * S).astype(np.int64)
    outcomes = np.full(len(due), "ok") if outcome is None else np.asarray(outcome)
    empty = [""] * len(due)
    return Operations(due, due, end, outcomes, np.zeros(len(due), np.int64), empty, empty, empty)


def visible_text(page):
    return re.sub(
        r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL))
    )


# ---- numbers as a person reads them


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (85e-8, "1 µs"),
        (0.00085, "850 µs"),
        (0.0009996, "1.0 ms"),
        (0.0016, "1.6 ms"),
        (0.00996, "10 ms"),
        (0.016, "16 ms"),
        (0.9996, "1.0 s"),
        (3.0, "3.0 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.7, "1 h 0 min"),
        (3780, "1 h 3 min"),
        (-3, "-3.0 s"),
        (math.nan, NOTHING),
        (None, NOTHING),
    ],
)
def test_a_duration_is_written_with_its_unit(seconds, text):
    assert human_duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e6))
def test_no_duration_is_a_raw_float(seconds):
    assert re.fullmatch(r"\d{1,3}(\.\d)? (µs|ms|s)|\d+ min \d+ s|\d+ h \d+ min", human_duration(seconds))


def test_other_quantities_carry_their_units():
    assert [human_bytes(n) for n in (0, 512, 4100, 90e6, 999_700, 1.2e9)] == [
        "0 B",
        "512 B",
        "4.1 kB",
        "90 MB",
        "1.0 MB",
        "1.2 GB",
    ]
    assert [human_rate(n) for n in (0, 0.2, 9.97, 50, math.nan)] == ["0/s", "0.2/s", "10/s", "50/s", NOTHING]
    assert [human_number(n) for n in (3, 0.50123, 1_200_000)] == ["3", "0.5012", "1\u00a0200\u00a0000"]
    assert [human_countdown(n) for n in (0, 11.2, 125, -4)] == ["0 s", "12 s", "2 min 5 s", "0 s"]


def test_a_share_is_nought_or_a_hundred_only_when_it_is_exactly_that():
    assert human_share(0) == "0 %"
    assert human_share(1) == "100 %"
    assert human_share(1e-9) == "< 0.01 %"
    assert human_share(0.99999) == "> 99.9 %"
    assert [human_share(n) for n in (0.0003, 0.05, 0.12)] == ["0.03 %", "5.0 %", "12 %"]


def test_the_unit_of_a_figure_comes_from_its_name():
    assert human_figure("fsync_p50_s", 0.502) == ("fsync p50", "502 ms")
    assert human_figure("delay_ms", 500) == ("delay", "500 ms")
    assert human_figure("left_after_s", "never") == ("left after", "never")
    assert human_figure("judged_s", "by hand") == ("judged s", "by hand")
    assert human_figure("error_share", 0.048) == ("error", "4.8 %")
    assert human_figure("acknowledged", 2460.0)[1] == "2\u00a0460"
    assert human_figure("lost_keys", [f"k{n}" for n in range(25)])[1].endswith("k19 and 5 more")


def test_a_sparkline_scales_from_zero_to_the_largest_and_keeps_every_spike():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, None, math.nan, 1], 10) == "█  █"
    assert sparkline([0, 0, 0], 5) == "▁▁▁"
    assert sparkline([1] * 59 + [100], 10)[-1] == "█"
    assert sparkline([0.0] * 30 + [9.0] + [0.0] * 29, 6).count("█") == 1
    assert sparkline([0, 7], 4, ascii_only=True).isascii()
    assert sparkline([], 5) == sparkline([1], 0) == ""


@given(st.lists(st.none() | st.floats(), max_size=200), st.integers(0, 100))
def test_a_sparkline_is_never_wider_than_it_may_be(values, width):
    assert len(sparkline(values, width)) == min(width, len(values))


def test_control_characters_are_taken_out_and_ascii_terminals_get_ascii():
    assert "\x1b" not in printable("\x1b[31mred\x1b[0m")
    assert printable("x" * 50, 10).startswith("xxxxxxxxxx … (40 more")
    assert for_encoding("✓ 3.0 s ▁▅█ →", "ascii") == "+ 3.0 s _=# ->"
    assert for_encoding("✓ ▁", "utf-8") == "✓ ▁"


# ---- the figures


def test_an_operation_belongs_to_the_part_of_the_run_in_which_it_was_due(recording):
    rows = {(row.load, row.part): row for row in load_figures(recording)}
    steady, fault, recovery = (rows["kv-writes", part] for part in ("steady", "fault", "recovery"))
    assert steady.operations == 500
    assert 0.014 < steady.p50_s < 0.018
    assert steady.errors == 0
    assert 2.5 < fault.p50_s < 3.5
    assert 0.02 < fault.errors < 0.1
    assert recovery.p50_s < 0.02
    assert rows["kv-reads", "fault"].rate_per_s == pytest.approx(25, rel=0.02)
    assert parts(recording)["fault"] == [(int(14.1 * S), int(34.2 * S))]


def test_time_under_two_faults_counts_once():
    assert merged([(5, 9), (0, 3), (2, 4), (9, 10)]) == [(0, 4), (5, 10)]


# ---- the timeline


def test_each_bucket_has_the_percentiles_of_what_was_due_in_it():
    latency = np.concatenate([np.linspace(0.010, 0.020, 50), np.linspace(1.0, 3.0, 50)])
    panel, rates = load_panels("kv", operations(np.arange(100) / 50, latency), (0.0, 2.0), 1.0)
    assert [one["name"] for one in panel["series"]] == ["p50", "p99"]
    assert panel["t"] == [0.5, 1.5]
    assert panel["series"][0]["v"] == pytest.approx([0.015, 2.0], rel=1e-3)
    assert panel["series"][1]["v"] == pytest.approx(
        [np.percentile(latency[:50], 99), np.percentile(latency[50:], 99)], rel=1e-3
    )
    due = next(one for one in rates["series"] if one["name"] == "due")
    assert due["v"] == [50, 50]


def test_a_bucket_without_operations_is_a_gap_and_the_last_short_one_keeps_its_rate():
    panel, rates = load_panels("kv", operations([0.1, 2.1, 2.2], [0.01] * 3, ["ok", "fail", "ok"]), (0.0, 2.5), 1.0)
    assert panel["series"][0]["v"][1] is None
    by_name = {one["name"]: one["v"] for one in rates["series"]}
    assert by_name["due"] == [1, 0, 4]
    assert by_name["errors"] == [0, 0, 2]
    assert by_name["acknowledged"] == [1, 0, 2]


def test_what_was_asked_for_after_the_method_waited_is_drawn_later_by_as_much(recording, monkeypatch):
    monkeypatch.setitem(vars(recording), "standstills", [(1.0, 5_000_000_000)])
    assert timeline(recording)["faults"][0]["asked"] == [14.0, 39.0], "it began before the method waited"


def test_the_timeline_shows_asked_applied_and_proven_of_each_fault(recording):
    (fault,) = timeline(recording)["faults"]
    assert fault["label"] == "disk.latency on consul-1"
    assert fault["asked"] == [14.0, 34.0]
    assert fault["applied"] == [14.1, 34.4]
    assert fault["proven"] == [15.2, 34.2]


def test_a_leader_that_was_elected_again_is_a_mark(tmp_path):
    run = RecordingBuilder(tmp_path / "run").leader(term=lambda t: 2 if t < 20 else 3).load("kv-writes")
    assert [(mark["t"], mark["label"]) for mark in timeline(run.build())["marks"]] == [(20.0, "consul-1, again")]


def test_leader_changes_are_marks_with_names_and_a_lost_leader_is_one_too(recording):
    shown = timeline(recording)
    assert [(mark["t"], mark["label"]) for mark in shown["marks"]] == [(41.0, "no leader"), (42.0, "consul-2")]
    leader = next(lane for lane in shown["lanes"] if lane["title"] == "leader")
    assert [part["label"] for part in leader["segments"]] == ["consul-1", "no leader", "consul-2"]
    assert [part["ok"] for part in leader["segments"]] == [True, False, True]


def test_guardrails_are_marks(tmp_path):
    clock = PlantedClock()
    with Journal(tmp_path / JOURNAL_NAME, clock) as journal:
        write_story(journal, clock)
        clock.t_s = 20
        journal.write("guardrail", condition="kv-writes.errors > 90% for 20s", evidence="97 %")
    (mark,) = timeline(Recording(tmp_path))["marks"]
    assert mark == {"t": 20.0, "kind": "guardrail", "label": "guardrail: kv-writes.errors > 90% for 20s"}


def test_a_failed_sample_is_a_gap_and_signals_nobody_knows_are_drawn_too(tmp_path):
    clock = PlantedClock()
    with Journal(tmp_path / JOURNAL_NAME, clock) as journal:
        write_story(journal, clock)
    writer = RecordingWriter(tmp_path)
    for second, value in ((5, 0.01), (6, None), (7, 0.02)):
        writer.sample(second * S, Sample("raft.commit_time", value, "timed out", "consul-1", value is not None))
        writer.sample(second * S, Sample("my.own_signal", 4.0))
    writer.close()
    panels = {panel["signal"]: panel for panel in timeline(Recording(tmp_path))["panels"]}
    assert panels["raft.commit_time"]["series"][0]["v"] == [0.01, None, 0.02]
    assert panels["my.own_signal"]["series"][0]["v"] == [4, 4, 4]


class LongRun(Recording):
    """600 s at 3000 operations a second, on nine servers: what is on disk is only the journal."""

    loads = ("kv-writes", "kv-reads", "locks", "sessions")
    signals = ("raft.commit_time", "raft.dispatch_log", "raft.last_contact", "disk.fsync", "process.cpu", "process.rss")

    def operations(self, load, *, unknown=""):
        due = np.arange(1_800_000 // len(self.loads)) / (3000 / len(self.loads)) + 4
        return operations(due, np.random.default_rng(1).lognormal(-4, 1, len(due)))

    def series(self, signal, host=None, *, unknown=""):
        full = super().series
        if signal not in self.signals:
            return full(signal, host)
        times = np.arange(4, 604, 0.25)
        hosts = [host] if host is not None else [f"consul-{n}" for n in range(1, 10)]
        t_ns = np.tile((times * S).astype(np.int64), len(hosts))
        values = np.random.default_rng(2).lognormal(-4, 1, len(t_ns))
        from hashidrill.core.recording.reader import Series

        named = [name for name in hosts for _ in times]
        return Series(t_ns, values, [""] * len(t_ns), named, np.ones(len(t_ns), np.bool_))


@pytest.mark.long
def test_a_long_run_at_a_high_rate_still_gives_a_report_under_2_mb(tmp_path):
    clock = PlantedClock()
    with Journal(tmp_path / JOURNAL_NAME, clock) as journal:
        write_story(journal, clock)
        clock.t_s = 605
        journal.write("phase", phase="quiesce")
    (tmp_path / "run.json").write_text(
        json.dumps(run_info(config={f"h{n}": {"x": ["y" * 1000, n] * 200} for n in range(30)}))
    )
    reported = LongRun(tmp_path)
    many = [Judgement("t" * 500, "h", Finding.HELD, "x" * 5000, {"lost_keys": ["k" * 50] * 5000}) for _ in range(50)]
    payload = timeline(reported)
    assert len(json.dumps(payload)) <= LIMIT_BYTES
    assert len(payload["panels"]) == 4 * 2 + 6
    assert len(payload["panels"][0]["t"]) >= 100, "and is still worth looking at"
    assert len(write_html(reported, RunVerdict([], many), tmp_path).read_bytes()) < 2_000_000


# ---- the page


@pytest.mark.parametrize(
    ("verdict", "word"),
    [(passing(), "✓ PASS"), (failing(), "✗ FAIL"), (invalid(), "! INVALID"), (RunVerdict([], []), "! INVALID")],
)
def test_the_verdict_stands_first_and_in_words(recording, verdict, word):
    body = visible_text(render_html(recording, verdict).split("<body>")[1])
    assert " ".join(body.split()).startswith(word)


def test_every_reason_against_the_run_is_in_the_banner(recording):
    banner = visible_text(render_html(recording, RunVerdict(["the generator was 2.1 s behind"], [broken()]))).split(
        "Expectations"
    )[0]
    assert "no_acknowledged_write_lost(load=kv-writes)" in banner
    assert "the generator was 2.1 s behind" in banner


def test_each_expectation_has_its_finding_its_evidence_and_its_figures_and_the_broken_one_is_first(recording):
    text = visible_text(render_html(recording, failing())).split("Key figures")[0].split("Expectations")[1]
    assert text.index("✗ broken") < text.index("~ broken by a known issue") < text.index("✓ held")
    assert "3 acknowledged writes are not there at the end: k17, k204, k311" in text
    assert "recovered after 1.8 s" in text


def test_the_rows_of_a_table_in_the_evidence_stay_aligned(recording):
    table = "   level  streaming p50\n    100%          4.7ms"
    knee = Judgement("knee()", "knee", Finding.BROKEN, f"streaming bears less:\n{table}\nhint: look at the knee")
    page = render_html(recording, RunVerdict([], [knee]))
    assert f'<p class="text">streaming bears less:</p><pre class="text">{table}</pre>' in page
    assert '<p class="text">hint: look at the knee</p>' in page


def test_the_page_has_proofs_versions_machine_configuration_and_the_command(recording):
    text = visible_text(render_html(recording, passing()))
    for part in (
        "disk.latency",
        "op=fsync, delay=500ms",
        "✓ 502 ms",
        "✓ 1.1 ms",
        "proven, and proven gone",
        "20.1 s",
        "1.22.2",
        "8.2 GB",
        "consul-1, consul-2, consul-3",
        "raft_multiplier",
        "hashidrill run experiments/raft/slow-leader-disk.yaml",
        "hashidrill check",
    ):
        assert part in text, part


def test_an_unproven_fault_is_not_shown_as_proven(tmp_path):
    clock = PlantedClock()
    with Journal(tmp_path / JOURNAL_NAME, clock) as journal:
        target = {"host": "consul-1", "address": "10.73.0.11", "agent": "consul"}
        journal.write("fault.intent", fault_id="f1", kind="noop", step=0, target=target, params={}, undo={})
        journal.write("fault.applied", fault_id="f1")
        evidence = {"ok": False, "asked": "500 ms", "measured": "1.1 ms", "figures": {}}
        journal.write("fault.unproven", fault_id="f1", evidence=evidence)
    page = visible_text(render_html(Recording(tmp_path), invalid()))
    assert "! not proven" in page
    assert "✗ 1.1 ms" in page
    assert "proven gone" not in page


def test_nothing_from_yaml_or_logs_becomes_markup(tmp_path):
    recorded = realistic_run(
        tmp_path / "run",
        fault_kind=EVIL,
        load=EVIL,
        title=EVIL,
        command=EVIL,
        experiment=EVIL,
        versions={EVIL: EVIL},
        config={EVIL: {EVIL: EVIL}},
        machine={EVIL: EVIL},
        outcome=EVIL,
        error=EVIL,
        binaries={EVIL: {"path": EVIL}},
        hosts=[{"name": EVIL, "role": EVIL}],
        id=EVIL,
        generator={EVIL: EVIL},
    )
    judgement = Judgement(EVIL, EVIL, Finding.KNOWN, EVIL, {EVIL: EVIL, "keys": [EVIL]}, known_issue=EVIL)
    page = render_html(recorded, RunVerdict([EVIL], [judgement]))
    assert EVIL not in page
    assert page.lower().count("<script") == 2, "the data and the page's own script"
    assert "<img" not in page
    assert not re.search(r"<[^>]+\son\w+=", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    assert "&lt;script&gt;alert(1)" in page


def test_data_for_the_script_cannot_close_its_element():
    element = data_script("d", {"x": "</script><script>alert(1)</script>"})
    assert element.count("</script>") == 1
    assert json.loads(re.sub("<[^>]+>", "", element))["x"].startswith("</script>")


def test_text_is_escaped_unless_it_is_markup_already():
    assert el("p", "<b>", el("b", "x"), title='a"b') == '<p title="a&quot;b">&lt;b&gt;<b>x</b></p>'


def test_an_issue_is_a_link_only_when_it_is_an_address(recording):
    def link(issue):
        judgement = Judgement("t", "h", Finding.KNOWN, "", known_issue=issue)
        return re.findall(r'<a href="([^"]+)"', render_html(recording, RunVerdict([], [judgement])))

    assert link("hashicorp/consul#22064") == ["https://github.com/hashicorp/consul/issues/22064"]
    assert link("https://example.com/1") == ["https://example.com/1"]
    assert link("javascript:alert(1)") == []


def test_the_page_names_no_other_file_and_its_policy_matches_what_is_in_it(recording):
    page = render_html(recording, passing())
    assert not re.findall(
        r"\b(?:src|srcset|data|poster|action)\s*=\s*[\"']?[^\"'\s>]",
        re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL),
    )
    assert "@import" not in page
    assert "url(" not in re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1].replace("&#x27;", "'")
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_a_run_that_died_or_never_started_still_gets_a_report(tmp_path):
    (tmp_path / JOURNAL_NAME).write_text("")
    page = write_html(Recording(tmp_path), RunVerdict(["the steady state never held"], []), tmp_path)
    text = visible_text(page.read_text())
    assert page == tmp_path / "report.html"
    assert "! INVALID" in text
    assert "The runner died" in text
    assert "This recording holds no operations" in text
    assert "! INVALID" in write_markdown(Recording(tmp_path), RunVerdict(["x"], []), tmp_path).read_text()


# ---- the summary


def rows_of(summary):
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in summary.splitlines() if line.startswith("|")]


def test_the_summary_has_verdict_expectations_faults_figures_and_where_the_report_is(recording, tmp_path):
    write_html(recording, failing(), tmp_path)
    summary = write_markdown(recording, failing(), tmp_path).read_text()
    assert summary.startswith("### ✗ FAIL: The Raft leader's disk slows down but does not fail\n")
    assert "1 of 3 expectations held" in summary
    assert any(row[0].strip() == "✗ broken" and "k17, k204, k311" in row[2] for row in rows_of(summary))
    assert any(
        "disk.latency" in row[0] and row[3].strip() == "502 ms" and row[4].strip() == "1.1 ms"
        for row in rows_of(summary)
        if len(row) == 6
    )
    fault = next(row for row in rows_of(summary) if "kv-writes" in row[0] and row[1].strip() == "faults in force")
    assert fault[4].strip() == "3.0 s"
    assert "[report.html](<report.html>)" in summary


def test_reasons_why_a_run_is_invalid_are_in_the_summary(recording):
    assert "- disk.latency on consul-1 was not proven in force" in markdown_summary(recording, invalid())


def test_pipes_newlines_and_markup_do_not_break_the_summary(tmp_path):
    evil = "a|b\n| c | `d` **e** <b>f</b> @team"
    recorded = realistic_run(tmp_path / "run", fault_kind=evil, load=evil, title=evil, command=evil)
    judgement = Judgement(evil, evil, Finding.BROKEN, evil, known_issue=evil)
    summary = markdown_summary(recorded, RunVerdict([evil], [judgement]))
    widths = [len(row) for row in rows_of(summary)]
    assert set(widths) == {3, 6, 8}, summary
    assert "<b>f" not in summary.replace("`", "\0").split("\0")[0]
    assert summary.splitlines()[0].startswith("### ✗ FAIL: a\\|b \\| c \\|")
    assert "@team" not in re.sub(r"`[^`]*`", "", summary)


def test_the_shown_verdict_is_the_computed_one_and_not_a_count(recording):
    """A run whose every expectation held is INVALID all the same when a fault was not proven."""
    assert markdown_summary(recording, RunVerdict(["unproven"], [held()])).startswith("### ! INVALID")
    assert markdown_summary(recording, RunVerdict(["unproven"], [broken()])).startswith("### ✗ FAIL")


@pytest.mark.parametrize("name", [b"\xff-run", b"\x1b]0;x\x07run", "✓ é".encode()], ids=["bytes", "escapes", "utf-8"])
def test_a_folder_with_an_odd_name_has_its_reports(tmp_path, name):
    builder = RecordingBuilder(tmp_path / os.fsdecode(name) / "run", name="odd").load("kv-writes")
    recording = Recording(builder.end("complete").build().path)
    verdict, report = judge_and_report(recording)
    assert verdict.verdict is not None
    for file in (report, recording.path / "summary.md", recording.path / "verdict.json", recording.path / "run.json"):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", file.read_text(encoding="utf-8"))


ATTACHED = {
    "name": "staging-1",
    "title": "The staging datacenter",
    "file": "staging.yaml",
    "addresses": {"consul": "https://consul.example:8501"},
    "versions": {"consul": "1.20.1"},
    "datacenters": {"consul": "dc1"},
    "notes": ["consul: web-3 is failed"],
}


def summary(recording):
    console = Console(file=io.StringIO(), width=200)
    final_summary(console, passing(), recording, None)
    return console.file.getvalue()


def test_the_report_the_summary_and_the_last_words_name_it(recording, monkeypatch):
    monkeypatch.setitem(recording.run, "attached", ATTACHED)
    html = render_html(recording, passing())
    assert "Attached datacenter" in html
    assert "1.20.1 at https://consul.example:8501" in html
    assert "Logs, and figures of disks and processes, are not recorded" in html
    assert "consul: web-3 is failed" in html
    assert "against the attached datacenter `staging-1`" in markdown_summary(recording, passing())
    assert "(against staging-1)" in summary(recording)


def test_a_run_in_a_datacenter_of_ours_says_nothing_of_the_kind(recording):
    for text in (render_html(recording, passing()), markdown_summary(recording, passing()), summary(recording)):
        assert "ttached datacenter" not in text
        assert "(against" not in text


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run").load("kv-writes").healthy().final_reads("kv-writes")


def test_the_timeline_has_a_lane_for_marks_and_another_where_they_overlap(builder):
    recording = builder.mark("first", at=10, until=20).mark("second", at=15, until=25).mark("third", at=21, until=30)
    lanes = [lane for lane in timeline(recording.build())["lanes"] if lane["title"] == "mark"]
    assert [[(part["label"], part["start"], part["end"]) for part in lane["segments"]] for lane in lanes] == [
        [("first", 10, 20), ("third", 21, 30)],
        [("second", 15, 25)],
    ]


def test_marks_are_no_faults_in_a_report(builder):
    recording = builder.mark("load-grows", at=12, until=20).build()
    assert timeline(recording)["faults"] == []
    assert marked(recording) == ["load-grows, from 12.0 s to 20.0 s into the run"]
    verdict = judge(recording)
    page, summary = str(render_html(recording, verdict)), markdown_summary(recording, verdict)
    for text in (page, summary):
        assert "load-grows, from 12.0 s to 20.0 s into the run" in text
    assert "No fault was applied." in page


def test_without_a_fault_the_key_figures_are_those_of_the_marks(builder):
    recording = builder.mark("load-grows", at=12, until=20).build()
    assert list(parts(recording)) == ["steady", "mark", "recovery"]
    assert parts(recording)["mark"] == [(12 * S, 20 * S)]


def test_beside_a_fault_they_are_those_of_the_fault(builder):
    recording = builder.mark("load-grows", at=12, until=20).fault("disk.latency", at=14, until=18).build()
    assert parts(recording)["fault"] == [(14 * S, 18 * S)]
    assert "mark" not in parts(recording)
