"""A report of a run against an attached datacenter names it, and says what could not be seen of it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hashidrill.core.recording.reader import Recording
from hashidrill.reports.html import render_html
from hashidrill.reports.live.display import final_summary
from hashidrill.reports.markdown import markdown_summary
from report_runs import passing, realistic_run

ATTACHED = {
    "name": "staging-1",
    "title": "The staging datacenter",
    "file": "staging.yaml",
    "addresses": {"consul": "https://consul.example:8501"},
    "versions": {"consul": "1.20.1"},
    "datacenters": {"consul": "dc1"},
    "notes": ["consul: web-3 is failed"],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    realistic_run(folder)
    return folder


def of(path, attached):
    recording = Recording(path)
    recording.run.pop("attached", None)
    if attached:
        recording.run["attached"] = attached
    return recording


def summary(recording):
    console = Console(file=io.StringIO(), width=200)
    final_summary(console, passing(), recording, None)
    return console.file.getvalue()


def test_the_report_the_summary_and_the_last_words_name_it(path):
    recording = of(path, ATTACHED)
    html = render_html(recording, passing())
    assert "Attached datacenter" in html
    assert "1.20.1 at https://consul.example:8501" in html
    assert "Logs, and figures of disks and processes, are not recorded" in html
    assert "consul: web-3 is failed" in html
    assert "against the attached datacenter `staging-1`" in markdown_summary(recording, passing())
    assert "(against staging-1)" in summary(recording)


def test_a_run_in_a_datacenter_of_ours_says_nothing_of_the_kind(path):
    recording = of(path, None)
    for text in (render_html(recording, passing()), markdown_summary(recording, passing()), summary(recording)):
        assert "ttached datacenter" not in text
        assert "(against" not in text
