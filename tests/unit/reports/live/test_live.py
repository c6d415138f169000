"""The live view: it fits the terminal, it says plainly what happens elsewhere, and no event can break it.
One line that renews on a terminal; piped, one line an item.
"""

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hashidrill.core.errors import NOT_READY
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict
from hashidrill.core.protocols.events import Phase, Tick, decode
from hashidrill.reports.live.display import LiveView, final_summary
from hashidrill.reports.live.progress import Progress
from hashidrill.reports.live.sentences import JsonLines
from hashidrill.reports.text import NOTHING
from report_runs import S, broken, failing, held, invalid, known, passing, realistic_run


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return realistic_run(tmp_path_factory.mktemp("run") / "run")


def console(encoding="utf-8", width=80, height=24, *, terminal=False):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    return Console(file=file, width=width, height=height, force_terminal=terminal, _environ={"TERM": "xterm"})


def written(out):
    return out.file.buffer.getvalue().decode(out.file.encoding)


def tick(t_s, *, loads=("kv-writes",), faults=1, leader="consul-1", p50_s=3.0, phase="method", left_s=12):
    return {
        "event": "tick",
        "t_ns": int(t_s * S),
        "phase": phase,
        "phase_ends_ns": int((t_s + left_s) * S),
        "leaders": [["leader", leader]],
        "faults": [
            {"fault_id": f"f{n}", "kind": "disk.latency", "host": f"consul-{n}", "ends_ns": int((t_s + 7) * S)}
            for n in range(1, faults + 1)
        ],
        "loads": {name: {"rate": 50.0, "p50_s": p50_s, "p99_s": 5.2, "errors": 0.048} for name in loads},
    }


def plain_lines(*events, encoding="utf-8"):
    out = console(encoding)
    with LiveView(out, "slow-leader-disk", plain=True) as view:
        for event in events:
            view.event(decode(event))
    return written(out).splitlines()


def screen(*events, width=80, height=24, encoding="utf-8"):
    """The lines of the terminal after these events."""
    out = console(encoding, width, height, terminal=True)
    view = LiveView(out, "The Raft leader's disk slows down but does not fail", plain=False)
    for event in events:
        view.event(decode(event))
    lines = out.render_lines(view._screen(), pad=False)
    return ["".join(segment.text for segment in line) for line in lines]


FAULT = {
    "event": "fault.intent",
    "t_ns": 14 * S,
    "fault_id": "f1",
    "kind": "disk.latency",
    "target": {"host": "consul-1"},
    "params": {"op": "fsync", "delay": "500ms"},
}
EVIDENCE = {"ok": True, "asked": "500 ms on fsync", "measured": "502 ms", "figures": {}}


# ---- plain lines


def test_without_a_terminal_each_phase_and_fault_event_is_one_line():
    lines = plain_lines(
        {"event": "phase", "t_ns": 14 * S, "phase": "method"},
        FAULT,
        {"event": "fault.applied", "fault_id": "f1"},
        {"event": "fault.proven", "t_ns": 15 * S, "fault_id": "f1", "evidence": EVIDENCE},
        {"event": "fault.still", "t_ns": 33 * S, "fault_id": "f1", "evidence": EVIDENCE},
        {"event": "fault.reverted", "t_ns": 34 * S, "fault_id": "f1"},
        {"event": "fault.gone", "t_ns": 35 * S, "fault_id": "f1", "evidence": {**EVIDENCE, "measured": "1.1 ms"}},
        {"event": "guardrail", "t_ns": 36 * S, "condition": "kv-writes.errors > 90% for 20s", "evidence": "97 %"},
        {"event": "end", "t_ns": 40 * S, "outcome": "guardrail", "error": ""},
    )
    assert lines == [
        "slow-leader-disk",
        "[   14.0 s] phase method",
        "[   14.0 s] disk.latency on consul-1: applying (op=fsync, delay=500ms)",
        "[   15.0 s] disk.latency on consul-1: proven in force: measured 502 ms (asked: 500 ms on fsync)",
        "[   33.0 s] disk.latency on consul-1: still in force: measured 502 ms (asked: 500 ms on fsync)",
        "[   34.0 s] disk.latency on consul-1: reverted",
        "[   35.0 s] disk.latency on consul-1: proven gone, measured 1.1 ms",
        "[   36.0 s] guardrail tripped: kv-writes.errors > 90% for 20s (97 %)",
        "[   40.0 s] the run ended: guardrail",
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {"event": "fault.faded", "evidence": {**EVIDENCE, "measured": "1.1 ms"}},
            "NO LONGER in force: measured 1.1 ms (asked: 500 ms on fsync)",
        ),
        ({"event": "fault.moved", "on": "consul:leader"}, "given up, because consul:leader is now another host"),
        ({"event": "fault.undone", "by": "process.kill"}, "undone by process.kill, as planned"),
    ],
)
def test_what_became_of_a_fault_before_its_revert_is_one_line(event, line):
    lines = plain_lines(FAULT, {**event, "t_ns": 33 * S, "fault_id": "f1"})
    assert lines[-1] == f"[   33.0 s] disk.latency on consul-1: {line}"


def test_without_a_terminal_there_is_a_status_line_every_five_seconds_and_no_more():
    lines = plain_lines(*[tick(n / 2) for n in range(2, 42)])
    status = [line for line in lines if "leader" in line and "|" in line]
    assert [line.split("]")[0] for line in status] == ["[    1.0 s", "[    6.0 s", "[   11.0 s", "[   16.0 s"]
    assert status[0] == (
        "[    1.0 s] method, 12 s left | leader consul-1 | disk.latency on consul-1, 7 s left"
        " | kv-writes 50/s p50 3.0 s p99 5.2 s errors 4.8 %"
    )


def test_an_agent_that_did_not_start_is_not_called_a_crash():
    error = f"consul-1: consul {NOT_READY}: invalid config key"
    [line] = plain_lines({"event": "end", "t_ns": 3 * S, "outcome": "crashed", "error": error})[-1:]
    assert line == f"[    3.0 s] the run ended: the datacenter never got ready: {error}"


def test_a_steady_state_says_which_conditions_it_waits_for():
    waits = {**tick(1, phase="steady"), "unmet": ["health.ok == 1 (measured 0)", "kv-writes.errors < 1% (measured 4%)"]}
    assert "left | waits for health.ok == 1 (measured 0) | waits for kv-writes.errors" in plain_lines(waits)[-1]
    assert "waits   health.ok == 1 (measured 0)" in screen(waits)


WAITING = {"rate": 0.0, "p50_s": 6.0, "p99_s": 6.0, "errors": None, "waiting": 42, "waited_s": 6.0}


@pytest.mark.lie
def test_what_waits_is_not_called_an_error():
    lines = plain_lines({**tick(1), "loads": {"kv-writes": WAITING}})
    assert lines[-1].endswith(f"| kv-writes 0/s (42 waiting, up to 6.0 s) p50 6.0 s p99 6.0 s errors {NOTHING}")
    some_failed = {**WAITING, "rate": 2.0, "errors": 0.5, "waiting": 1}
    lines = plain_lines({**tick(1), "loads": {"kv-writes": some_failed}})
    assert lines[-1].endswith("| kv-writes 2.0/s (1 waiting, up to 6.0 s) p50 6.0 s p99 6.0 s errors 50 %")


@pytest.mark.parametrize("loads", [1, 8])
def test_the_screen_says_what_waits(loads):
    waits = {**tick(1), "loads": {f"load-{n}": WAITING for n in range(loads)}}
    text = "\n".join(screen(waits))
    assert text.count("42 waiting, up to 6.0 s" if loads == 1 else "waiting") == loads
    assert "100 %" not in text


def test_a_log_gets_no_escape_sequences_and_no_folded_lines():
    evil = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\n" + "y" * 200
    text = "\n".join(plain_lines({"event": "fault.failed", "fault_id": "f1", "error": evil, "t_ns": 1}, tick(1)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x[/red]" in text, "and no markup is read in it"
    assert len(text.splitlines()) == 3


def test_a_mark_is_told_and_shown_while_it_lasts():
    begin = {"event": "mark.begin", "t_ns": 14 * S, "mark": "load-grows", "step": 0}
    lasts = {**tick(15, faults=0), "marks": [{"mark": "load-grows", "ends_ns": 18 * S}]}
    end = {"event": "mark.end", "t_ns": 18 * S, "mark": "load-grows", "step": 0}
    lines = plain_lines(begin, lasts, end)
    assert lines[1] == "[   14.0 s] mark load-grows begins"
    assert "| no fault in force | mark load-grows, 3 s left | kv-writes" in lines[2]
    assert lines[3] == "[   18.0 s] mark load-grows ends"
    assert "mark    load-grows, 3 s left" in "\n".join(screen(lasts))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("fault.unproven", "NOT PROVEN in force: measured 1.1 ms (asked: 500 ms)"),
        ("fault.failed", "could not be applied: no such host"),
        ("fault.stuck", "COULD NOT BE REVERTED: no such host"),
    ],
)
def test_trouble_with_a_fault_is_said_with_its_reason(event, words):
    reason = (
        {"evidence": {"asked": "500 ms", "measured": "1.1 ms"}}
        if event == "fault.unproven"
        else {"error": "no such host"}
    )
    lines = plain_lines(FAULT, {"event": event, "fault_id": "f1", "t_ns": S, **reason})
    assert lines[-1] == f"[    1.0 s] disk.latency on consul-1: {words}"


# ---- the terminal


def test_the_screen_has_phase_leader_faults_and_each_load_with_its_sparklines():
    lines = screen(FAULT, *[tick(10 + n / 2, p50_s=0.016) for n in range(30)], *[tick(25 + n / 2) for n in range(30)])
    text = "\n".join(lines)
    assert "phase   method, 12 s left" in text
    assert "leader  consul-1" in text
    assert "fault   disk.latency on consul-1, 7 s left" in text
    p50 = next(line for line in lines if line.strip().startswith("p50"))
    assert p50.split()[1:3] == ["3.0", "s"]
    spark = p50.split("  ")[-1].strip()
    assert spark == "▁" * (len(spark) // 2) + "█" * (len(spark) // 2)
    assert len(spark) >= 56


def test_sparklines_keep_the_last_sixty_ticks():
    lines = screen(
        *[tick(n / 2, p50_s=9.0) for n in range(60)], *[tick(30 + n / 2, p50_s=1.0) for n in range(60)], width=140
    )
    p50 = next(line for line in lines if line.strip().startswith("p50"))
    assert p50.split()[-1] == "█" * 60, "the nines have left, so one is the largest"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (60, 20), (40, 24)])
@pytest.mark.parametrize("loads", [0, 1, 2, 3, 8])
@pytest.mark.parametrize(("faults", "marks"), [(0, 0), (1, 0), (9, 0), (9, 9)])
def test_the_screen_fits_the_terminal(width, height, loads, faults, marks):
    names = [f"a-load-with-quite-a-long-name-{n}" for n in range(loads)]
    noise = [{"event": "note", "t_ns": n * S, "text": "word " * 60} for n in range(20)]
    lasting = [{"mark": f"part-{n}", "ends_ns": 99 * S} for n in range(marks)]
    ticks = [{**tick(n, loads=names, faults=faults), "marks": lasting} for n in range(70)]
    lines = screen(*noise, FAULT, *ticks, width=width, height=height)
    assert len(lines) < height, "the last line is the cursor's"
    assert max(cell_len(line) for line in lines) <= width
    assert sum("50/s" in line for line in lines) == loads, "no load is pushed out"
    assert any("phase" in line for line in lines)


def test_no_leader_is_said():
    assert "leader  none" in "\n".join(screen(tick(1, leader="")))


def test_a_terminal_without_unicode_gets_ascii():
    events = [tick(n, p50_s=float(n % 5), loads=("a", "b", "c", "d", "e", "f")) for n in range(20)]
    for lines in (screen(*events, encoding="ascii"), plain_lines(*events, encoding="ascii")):
        assert "\n".join(lines).isascii()
    out = console("ascii", terminal=True)
    with LiveView(out, "the title → with an arrow", plain=False) as view:
        for event in [*events, {"event": "note", "text": "long … " * 80}]:
            view.event(decode(event))
    assert written(out).isascii()


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
KINDS = ["tick", "phase", "fault.intent", "fault.proven", "fault.stuck", "fault.new", "guardrail", "steady", "end", "?"]
FIELDS = [
    "t_ns",
    "phase",
    "phase_ends_ns",
    "leader",
    "faults",
    "loads",
    "fault_id",
    "target",
    "params",
    "evidence",
    "error",
    "condition",
    "held",
    "outcome",
    "kind",
]
odd_events = st.fixed_dictionaries(
    {"event": st.sampled_from(KINDS) | junk}, optional=dict.fromkeys(FIELDS, junk)
) | st.fixed_dictionaries(
    {
        "event": st.just("tick"),
        "loads": st.dictionaries(st.text(max_size=5), junk, max_size=3),
        "faults": st.lists(junk, max_size=3),
    }
)


@pytest.mark.long
@settings(deadline=None)  # a busy machine renders slowly
@given(st.lists(odd_events, max_size=4), st.booleans())
def test_no_event_however_odd_breaks_the_view(events, plain):
    out = console(terminal=not plain)
    with LiveView(out, "t", plain=plain) as view:
        for event in [{}, *events, tick(500)]:
            if (known := decode(event)) is not None:
                view.event(known)
    assert "kv-writes" in written(out)


# ---- the end


def summary(verdict, recording, encoding="utf-8", width=80, *, terminal=False):
    out = console(encoding, width, terminal=terminal)
    final_summary(out, verdict, recording, Path("/runs/r1/report.html"))
    return written(out)


@pytest.mark.parametrize(("verdict", "line"), [(passing(), "✓ PASS"), (failing(), "✗ FAIL"), (invalid(), "! INVALID")])
def test_the_verdict_is_said_first(recording, verdict, line):
    assert summary(verdict, recording).strip().startswith(f"{line}  The Raft leader's disk")


def test_each_expectation_is_said_with_its_finding_and_evidence(recording):
    fixed = Judgement("fixed()", "fixed", Finding.FIXED, "it led on", known_issue="a/b#1")
    unsure = Judgement("unsure()", "unsure", Finding.INVALID, "no operations")
    text = summary(RunVerdict([], [held(), broken(), known(), fixed, unsure]), recording)
    assert "  ✓ writes_recover(load=kv-writes, p50_below=300ms, within=10s)\n    kv-writes p50 was below" in text
    assert "  ✗ no_acknowledged_write_lost(load=kv-writes)\n    3 acknowledged writes are not there" in text
    known_text = "broken by a known issue (hashicorp/consul#22064): consul-1 led"
    assert f"  ~ leadership_leaves(fault=disk.latency, within=20s)\n    {known_text}" in text
    assert "  ✗ fixed()\n    held, although it names a known issue (a/b#1): it led on" in text
    assert "  ! unsure()\n    could not be judged: no operations" in text


def test_why_a_whole_run_is_invalid_is_said_once(recording):
    """Beside each of nine expectations it was a page; what an expectation alone lacks stays beside it."""
    why = "the steady state never held, so no fault was applied: machine.idle > 0.9 (measured 0.6)"
    unjudged = [Judgement(f"one_{n}()", "one", Finding.INVALID, f"not judged: {why}") for n in range(3)]
    of_its_own = Judgement("other()", "other", Finding.INVALID, "not judged: its file is gone")
    text = summary(RunVerdict([why], [*unjudged, of_its_own]), recording)
    assert text.count("measured 0.6") == 1
    assert "  ! one_0()\n  ! one_1()\n  ! one_2()\n" in text
    assert "  ! other()\n    could not be judged: not judged: its file is gone" in text


TABLE = "   level  streaming p50  changes\n    100%          4.7ms   20.0/s\n   8000%        623.3ms  292.6/s"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_rows_of_a_table_stay_aligned(recording, terminal):
    known = Judgement(
        "knee()", "knee", Finding.BROKEN, f"streaming keeps the SLO at less load than long polls:\n{TABLE}"
    )
    text = summary(RunVerdict([], [known]), recording, terminal=terminal)
    assert "    streaming keeps the SLO at less load than long polls:\n" in text
    assert "".join(f"    {row}\n" for row in TABLE.splitlines()) in text


def test_the_reasons_the_report_and_the_next_steps_are_said(recording):
    text = summary(invalid(), recording)
    assert "! disk.latency on consul-1 was not proven in force: measured 1.1 ms" in text
    assert "report     /runs/r1/report.html" in text
    assert f"hashidrill check {recording.path}" in text, "never folded, so that it can be copied"
    assert "hashidrill run experiments/raft/slow-leader-disk.yaml" in text


def test_a_run_that_left_a_fault_behind_names_heal(tmp_path):
    (tmp_path / "journal.jsonl").write_text("")
    from hashidrill.core.recording.reader import Recording

    assert f"hashidrill heal {tmp_path}" in summary(invalid(), Recording(tmp_path))


def test_the_summary_is_ascii_where_the_terminal_is(recording):
    text = summary(failing(), recording, encoding="ascii")
    assert text.isascii()
    assert text.strip().startswith("x FAIL")
    assert "  + writes_recover" in text


@pytest.fixture
def pipe():
    """Both ends: the reading one as a file descriptor, the writing one as text, as standard output is."""
    read_end, write_end = os.pipe()
    out = os.fdopen(write_end, "w")
    yield read_end, out
    out.close()


def test_a_line_is_there_as_soon_as_its_event_was_seen(pipe):
    read_end, out = pipe
    JsonLines(out).event(Phase(phase="method", t_ns=5))
    line = os.read(read_end, 1000)
    os.close(read_end)
    assert line.endswith(b"\n")
    assert json.loads(line) == {"event": "phase", "t_ns": 5, "phase": "method", "ends_ns": None}


@pytest.mark.lie
def test_once_nobody_reads_the_rest_is_dropped_and_closing_it_is_no_error(pipe):
    """Python closes standard output at its end; a line that cannot be written then makes the exit code 120."""
    read_end, out = pipe
    lines = JsonLines(out)
    os.close(read_end)
    with pytest.raises(BrokenPipeError):
        lines.event(Phase(phase="method"))
    out.write("more")
    out.close()


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def out(*, terminal, width=80):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, height=24)


def test_piped_each_item_is_one_line_with_elapsed_and_expected(clock):
    console = out(terminal=False, width=30)
    with Progress(console, 360.0, now_s=clock) as progress:
        progress.item("round 1: baseline")
        clock.now_s += 125
        progress.item("round 1: candidate, which has a name that is longer than the terminal is wide")
    assert console.file.getvalue().splitlines() == [
        "[0 s of about 6 min] round 1: baseline",
        "[2 min 5 s of about 6 min] round 1: candidate, which has a name that is longer than the terminal is wide",
    ]


def test_on_a_terminal_the_line_renews_and_leaves_nothing(clock):
    console = out(terminal=True)
    with Progress(console, now_s=clock) as progress:
        progress.item("building consul")
        clock.now_s += 5
        assert str(progress._line()) == "[5 s] building consul"
    shown = console.file.getvalue()
    assert "building consul" in shown
    assert "\x1b[2K" in shown, "the line is erased at the end"


def test_the_same_item_renews_the_line_and_is_one_line_where_it_is_piped(clock):
    for terminal, lines in ((True, ["[0 s] starting", "[2 s] starting"]), (False, ["[0 s] starting"])):
        console, clock.now_s = out(terminal=terminal), 0.0
        with Progress(console, now_s=clock) as progress:
            progress.item("starting")
            clock.now_s = 2.0
            progress.item("starting")
        assert [line for line in ("[0 s] starting", "[2 s] starting") if line in console.file.getvalue()] == lines


@pytest.mark.lie
def test_without_knowledge_only_the_elapsed_time_is_said(clock):
    progress = Progress(out(terminal=False), now_s=clock)
    clock.now_s += 90
    progress.item("run 3")
    assert str(progress) == "1 min 30 s"
    progress.item("starting", left_s=30.0)
    assert str(progress) == "1 min 30 s of about 2 min"


def test_what_is_done_of_many_tells_the_whole(clock):
    progress = Progress(out(terminal=False), now_s=clock)
    progress.item("1 of 4: a", done=0.0)
    assert str(progress) == "0 s"
    clock.now_s += 10
    progress.item("2 of 4: b", done=0.25)
    assert str(progress) == "10 s of about 40 s"


def test_a_run_says_how_long_it_and_the_whole_take(clock):
    console, whole = out(terminal=True), Progress(out(terminal=False), 600.0, now_s=clock)
    with LiveView(console, "a run", plain=False, expected_s=90.0, whole=whole) as view:
        clock.now_s += 200
        view.event(Tick(t_ns=12_000_000_000, phase="steady"))
        assert "12 s of about 1 min 30 s into the run" in console.file.getvalue()
        assert "all     3 min 20 s of about 10 min" in console.file.getvalue()


def test_piped_the_title_of_a_run_has_the_whole(clock):
    console = out(terminal=False)
    with LiveView(console, "run 2", plain=False, whole=Progress(console, now_s=clock)):
        pass
    assert console.file.getvalue() == "[0 s] run 2\n"


def test_a_runs_length_is_that_of_its_phases():
    from hashidrill.core.experiment.loader import resolve
    from hashidrill.lab.runs.rounds import STARTS_S, expected_s, total_s

    experiment = load_experiment(find_experiment("raft/slow-leader-disk"))
    method = max(step.at + step.for_ for step in experiment.method)
    assert expected_s(experiment) == STARTS_S + experiment.steady_state.for_ + method + experiment.recovery.for_
    assert total_s(resolve(find_experiment("raft/slow-leader-disk"))) == expected_s(experiment)
