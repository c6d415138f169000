"""Flame graphs in the report, what grew beside them, and the same profiles for speedscope."""

import json
import re

import pytest

from go_profiles import HEALTHY, OTHER, SICK, STREAM, Profiled, encoded, profiled
from hashidrill.core.errors import UsageError
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.recording.profiles import read_profile
from hashidrill.faces.cli.interchange import _speedscope
from hashidrill.reports import flame
from hashidrill.reports.html import render_html

NEXT = "stream.(*Subscription).Next"


def boxes(text):
    """{full name: (class, left, width in percent)} of the boxes of the first graph."""
    found = re.findall(r'<svg class="([\w-]+)" x="([\d.]+)%" y="\d+" width="([\d.]+)%"[^>]*><title>([^:]+): ', text)
    return {name: (colour, float(x), float(wide)) for colour, x, wide, name in found}


def test_the_boxes_have_the_width_and_the_colour_of_what_they_are(tmp_path):
    drawn = boxes(flame.flame_graph(read_profile(encoded(SICK)), read_profile(encoded({OTHER: 90, STREAM: 2}))))
    assert drawn["all"] == ("grew-3", 0.0, 100.0)
    assert drawn[STREAM[1]] == ("grew-3", 0.0, pytest.approx(76.923))
    assert drawn[OTHER[1]] == ("shrank-3", pytest.approx(76.923), pytest.approx(23.077))


def test_the_report_names_what_grew_and_where_the_files_are(tmp_path):
    text = str(render_html(profiled(tmp_path / "run").build(), RunVerdict([], [])))
    section = text[text.index("<h2>Profiles</h2>") :]
    assert "consul on consul-1, 15.0 s into the run: kv-writes.latency.p50 &lt; 300ms (measured 2s)." in section
    rows = re.findall(r"<code>([^<]+)</code></div></td><td[^>]*><div>([^<]+)</div>", section)
    assert (NEXT, "+0.66 cores") in rows
    assert "artifacts/profiles/consul-1-cpu-15.pb.gz" in section


@pytest.mark.lie
def test_names_are_text_and_many_boxes_are_cut(tmp_path):
    stacks = {(f"<script>{n}", *(f"f{n}-{depth}" for depth in range(200))): 100 for n in range(150)}
    text = str(render_html(profiled(tmp_path / "run", stacks).build(), RunVerdict([], [])))
    assert "<script>0" not in text
    assert "&lt;script&gt;0" in text
    assert text.count("<title>") <= flame.MOST_BOXES + 1
    assert len(text) < 2_000_000


def test_a_run_without_profiles_has_no_such_section_and_an_unreadable_one_says_why(tmp_path):
    assert flame.profiles_section(Profiled(tmp_path / "none").build()) is None
    torn = str(flame.profiles_section(profiled(tmp_path / "torn", encoded(SICK, at=15)[:-9]).build()))
    assert "its gzip is truncated" in torn
    assert "<svg" not in torn


def test_speedscope_gets_every_sample_of_every_profile(tmp_path, capsys):
    run = profiled(tmp_path / "run").profile({STREAM: 70}, at=16, kind="goroutine").profile(b"torn", at=17)
    recording = run.build()
    _speedscope(str(recording.path))
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [(each["unit"], each["endValue"], sum(each["weights"])) for each in document["profiles"]] == [
        ("nanoseconds", 10_000_000 * sum(HEALTHY.values()), 10_000_000 * sum(HEALTHY.values())),
        ("nanoseconds", 10_000_000 * sum(SICK.values()), 10_000_000 * sum(SICK.values())),
        ("none", 70, 70),
    ]
    frames = [each["name"] for each in document["shared"]["frames"]]
    [stack] = document["profiles"][2]["samples"]
    assert tuple(frames[each] for each in stack) == STREAM
    assert "is not readable" in err


@pytest.mark.lie
def test_a_recording_without_profiles_is_refused_with_the_reason(tmp_path):
    run = Profiled(tmp_path / "run").event("profile", at=8, host="consul-1", kind="cpu", began_ns=0, error="HTTP 403")
    recording = run.build()
    assert flame.profiles_section(recording) is None
    with pytest.raises(UsageError, match="consul-1: no cpu profile: HTTP 403"):
        _speedscope(str(recording.path))
