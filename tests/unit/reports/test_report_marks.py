"""A report shows the marks of a run, and does not call them faults."""

from __future__ import annotations

import pytest

from hashidrill.core.judging.judge import judge
from hashidrill.reports.figures import marked, parts
from hashidrill.reports.html import render_html
from hashidrill.reports.markdown import markdown_summary
from hashidrill.reports.timeline import timeline
from hashidrill.testing.recordings import RecordingBuilder

S = 1_000_000_000


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
    assert marked(recording) == ["load-grows, from 2.0 s to 10.0 s into the method"]
    verdict = judge(recording)
    page, summary = str(render_html(recording, verdict)), markdown_summary(recording, verdict)
    for text in (page, summary):
        assert "load-grows, from 2.0 s to 10.0 s into the method" in text
    assert "No fault was applied." in page


def test_without_a_fault_the_key_figures_are_those_of_the_marks(builder):
    recording = builder.mark("load-grows", at=12, until=20).build()
    assert list(parts(recording)) == ["steady", "mark", "recovery"]
    assert parts(recording)["mark"] == [(12 * S, 20 * S)]


def test_beside_a_fault_they_are_those_of_the_fault(builder):
    recording = builder.mark("load-grows", at=12, until=20).fault("disk.latency", at=14, until=18).build()
    assert parts(recording)["fault"] == [(14 * S, 18 * S)]
    assert "mark" not in parts(recording)
