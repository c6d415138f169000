"""What a run says in a few sentences: what happened, what came closest to breaking, and what to do now."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hashidrill.core.errors import NOT_A_REPLY, OWN_CONFIGURATION
from hashidrill.core.judging.judge import judge
from hashidrill.core.judging.verdict import HARMLESS, Finding, Judgement, RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.reports import story as stories
from hashidrill.reports.html import meaning, render_html
from hashidrill.reports.markdown import markdown_summary
from hashidrill.reports.story import story
from hashidrill.reports.timeline import MOST_CHOSEN, timeline
from hashidrill.testing.recordings import RecordingBuilder
from report_runs import failing, invalid, passing, realistic_run
from tasks import raising


def held(title="writes_recover(load=kv-writes, within=6s)", text="", **figures):
    return RunVerdict([], [Judgement(title, title.partition("(")[0], Finding.HELD, text, figures)])


@pytest.fixture
def builder(tmp_path):
    return RecordingBuilder(tmp_path / "run")


def sick(at):
    return 3.0 if 12 <= at < 17 else 0.01


def test_three_sentences_say_what_broke_what_users_noticed_and_who_led(builder):
    run = builder.fault("process.kill", "consul-1", at=11, until=20, params={"signal": "KILL", "percent": "100%"})
    run.load("kv-writes", latency=sick).load("kv-reads")
    run.leader(lambda at: "consul-1" if at < 12 else "" if at < 15 else "consul-2")
    broke, users, over = story(run.build(), passing()).sentences
    assert broke == "At 11.0 s into the run, process.kill (signal=KILL) hit consul-1, then the leader, for 9.0 s."
    assert users == (
        "kv-writes noticed 1.0 s later, for 5 seconds: p50 up to 3.0 s instead of 10 ms; kv-reads noticed nothing."
    )
    assert over == (
        "Leader: consul-1, then no leader for 3.0 s from 12.0 s, then consul-2 from 15.0 s;"
        " it was over at 17.0 s, 3.0 s before the fault ended."
    )


def test_who_led_is_told_of_the_product_that_was_hit(builder):
    run = builder.fault("process.kill", "consul-1", at=11, until=20, agent="nomad").load("batch")
    run.leader("consul-2").leader(lambda at: "consul-1" if at < 12 else "consul-3", signal="nomad.leader")
    broke, *_, over = story(run.build(), passing()).sentences
    assert "hit consul-1, then the leader, for" in broke
    assert over == "Leader: consul-1, then consul-3 from 12.0 s."


def asks(run, *changes, client="client-1", until=50):
    """What the probe of a client agent says each second: (from when, the servers); None is a look that failed."""
    for at in range(4, until):
        text = [said for since, said in changes if since <= at][-1]
        ok = text is not None
        run.sample("consul.asks", float(bool(text)) if ok else None, at=at, host=client, text=text or "", ok=ok)
    return run


@pytest.mark.parametrize(
    ("changes", "led", "broke", "over"),
    [
        ([(4, "consul-1")], "consul-1", "hit consul-1, then the leader and asked by client-1, for", ""),
        ([(4, "consul-1")], "consul-2", "hit consul-1, asked by client-1, for", ""),
        (
            [(4, "consul-1"), (15, "consul-3, consul-1"), (16, "consul-3")],
            "consul-2",
            "asked by client-1",
            "consul-2 led throughout; client-1 asked consul-1 until 15.0 s, then consul-3",
        ),
        (
            [(4, "consul-2")],
            "consul-2",
            "hit consul-1 (it did not lead, and no client agent was connected to it) for",
            "",
        ),
        ([(4, "consul-2")], "consul-1", "hit consul-1, then the leader, for", ""),
    ],
)
def test_which_server_client_agents_asked_is_in_the_story(builder, changes, led, broke, over):
    run = builder.fault("disk.latency", "consul-1", at=11, until=20).load("kv-writes").leader(led)
    told = story(asks(run, *changes).build(), passing()).sentences
    assert broke in told[0]
    assert over in told[-1]
    assert over or "asked" not in told[-1]


@pytest.mark.lie
@pytest.mark.parametrize(
    "changes",
    [
        [(4, "consul-2, consul-1")],
        [(4, "consul-2"), (19, "consul-2, consul-1")],
        [(4, "consul-2"), (15, None), (16, "consul-2")],
        [(4, None)],
    ],
    ids=["connected", "connected late", "not seen for a second", "never seen"],
)
def test_a_server_is_called_unasked_only_if_that_was_seen_all_the_time(builder, changes):
    run = builder.fault("disk.latency", "consul-1", at=11, until=20).load("kv-writes").leader("consul-2")
    assert "no client agent" not in story(asks(run, *changes).build(), passing()).sentences[0]


@pytest.mark.lie
def test_a_server_that_led_for_a_while_had_to_do_with_users(builder):
    run = builder.fault("disk.latency", "consul-1", at=11, until=20).load("kv-writes")
    run.leader(lambda at: "consul-1" if 14 <= at < 16 else "consul-2")
    assert "no client agent" not in story(asks(run, (4, "consul-2")).build(), passing()).sentences[0]


def test_each_client_agent_has_a_lane_and_many_have_a_few(builder):
    run = asks(builder.load("kv-writes"), (4, "consul-1"), (15, "consul-3, consul-1"), (20, None), (30, ""))
    for number in range(2, 9):
        asks(run, (4, "consul-2"), client=f"client-{number}")
    lanes = {lane["title"]: lane["segments"] for lane in timeline(run.build())["lanes"]}
    told = [(each["label"], each["start"], each["ok"]) for each in lanes["client-1"]]
    assert told == [
        ("asks consul-1", 4, True),
        ("asks consul-3", 15, True),
        ("no answer", 20, False),
        ("asks no server", 30, False),
    ]
    assert lanes["others"][0]["label"] == "3 more client agents not drawn"
    assert len([title for title in lanes if title.startswith("client-")]) == 5


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"latency": lambda at: 3.0 if at >= 12 else 0.01}, "it was not over when the loads stopped at"),
        ({"outcome": lambda at: "fail" if 12 <= at < 13 else "ok"}, "100 % of its operations failed in those seconds"),
    ],
)
def test_what_lasts_and_what_fails_is_said(builder, wrong, sentence):
    run = builder.fault("disk.latency", at=11, until=20).load("kv-writes", **wrong).leader("consul-1")
    assert sentence in " ".join(story(run.build(), failing()).sentences)


def test_a_load_that_never_got_slower_noticed_nothing(builder):
    """Planted: a rule that calls any second under a fault bad."""
    run = builder.fault("disk.latency", at=11, until=20).load("kv-writes", latency=lambda at: 0.04).leader("consul-1")
    told = story(run.build(), passing())
    assert told.sentences[1:] == ("kv-writes noticed nothing.", "consul-1 led throughout.")


@pytest.mark.lie
def test_what_was_cut_off_when_the_loads_stopped_was_noticed_by_no_user(builder):
    run = builder.fault("disk.latency", at=11, until=20).leader("consul-1")
    run.load("kv-writes", latency=sick, outcome=lambda at: "unknown" if at >= 49.5 else "ok")
    told = story(run.build(), passing()).sentences
    assert "it was over at 17.0 s" in told[2]


@pytest.mark.lie
@pytest.mark.parametrize(("failed", "loud"), [(0.1, False), (0.3, True)])
def test_a_pass_in_which_much_failed_says_so_on_top(builder, failed, loud):
    run = builder.fault("disk.latency", at=10, until=30).load(
        "kv-writes", outcome=lambda at: "fail" if at % 1 < failed and 10 <= at < 30 else "ok"
    )
    recording = run.build()
    warning = story(recording, passing()).warning
    assert bool(warning) is loud
    if loud:
        assert "30 % of kv-writes while a fault was in force" in warning
        assert render_html(recording, passing()).index("It passed, and yet") < render_html(recording, passing()).index(
            "Timeline"
        )
        assert story(recording, failing()).warning == "", "of a FAIL, the verdict says it"


@pytest.mark.parametrize(
    ("verdict", "closest"),
    [
        (held(recovered_after_s=4.5, worst_p50_s="never"), "writes_recover took 4.5 s of the 6.0 s allowed (75%)."),
        (
            held("leader_elected()", "known 3s after (allowed: 4s)", elected_after_s=3.0),
            "3.0 s of the 4.0 s allowed (75%).",
        ),
        (held("latency_stays(load=w, p99_below=200ms)", worst_p99_s=0.05), "50 ms of the 200 ms allowed (25%)."),
        (held("available_during(load=w, errors_below=1%)", errors_share=0.005), "0.50 % of the 1.0 % allowed (50%)."),
        (held("no_acknowledged_write_lost(load=w)", lost=0.0), ""),
        (held(recovered_after_s=0.0), ""),
    ],
)
def test_of_a_pass_the_least_room_is_named(builder, verdict, closest):
    assert story(builder.build(), verdict).closest.endswith(closest)
    assert bool(story(builder.build(), verdict).closest) is bool(closest)


def test_the_closest_is_the_closest_and_a_broken_one_is_no_candidate(builder):
    near, far = (
        held(recovered_after_s=5.0).judgements[0],
        held("leader_elected(within=9s)", elected_after_s=1.0).judgements[0],
    )
    broken = Judgement("writes_recover(within=1s)", "writes_recover", Finding.KNOWN, "", {"recovered_after_s": 0.99})
    assert "5.0 s of the 6.0 s" in story(builder.build(), RunVerdict([], [far, broken, near])).closest


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("the steady state never held, so no fault was applied: waited 3s", "Look at the logs"),
        ("fault noop on consul-1 was not proven in force: asked for it", "hashidrill doctor"),
        ("the generator used up its core: over 0.9 for 10 s", "Lower the rates"),
        ("this machine cannot carry the experiment: memory", "larger machine"),
        (f"the run crashed: load generator (pid 7): load w: OSError at kv.py:9; {NOT_A_REPLY}", "Correct the load"),
        ("the run was interrupted", "let it run to its end"),
        ("the run crashed: the engine exited", "hashidrill heal"),
        (f"the datacenter never got ready: consul ended, {OWN_CONFIGURATION} (x)", "Correct that configuration"),
        ("the datacenter never got ready: consul-1: consul died", "an agent ended before any fault"),
        ("the experiment of this recording cannot be read: x", "--recorded-hypotheses"),
        ("the recording is damaged: x", "from a copy"),
    ],
)
def test_an_invalid_run_names_its_cure(builder, reason, cure):
    steps = story(builder.build(), RunVerdict([reason], [])).next
    assert cure in " ".join(f"{what} {how}" for what, how in steps)


@pytest.mark.lie
def test_what_makes_no_expectation_invalid_has_no_cure(builder):
    overwritten = Judgement("none_lost(load=w)", "none_lost", Finding.INVALID, "the others were overwritten", {})
    busy = "other work kept this machine busy"
    cured = [
        story(builder.build(), RunVerdict([], [overwritten], [f"{busy}{end}"])).next for end in ("", f"; {HARMLESS}")
    ]
    assert ["Stop the other work" in str(steps) for steps in cured] == [True, False]


@pytest.mark.lie
@pytest.mark.parametrize(
    ("condition", "cure"),
    [
        ("health.ok == 1 (measured 0)", "steady_state.require. Or probes.health asks the wrong address"),
        ("unhealth.ok == 1 (measured 0)", "steady_state.require"),
    ],
)
def test_a_probe_of_the_experiment_may_ask_the_wrong_address(builder, monkeypatch, condition, cure):
    probed = SimpleNamespace(probes={"health": None}, metadata=SimpleNamespace(why=""), method=[], load={})
    monkeypatch.setattr(stories, "_experiment", lambda _: probed)
    (what, _), *_ = story(
        builder.build(), RunVerdict([f"the steady state never held: last seen: {condition}"], [])
    ).next
    assert what.endswith(cure)


def test_one_summary_of_an_invalid_run_counts_what_could_not_be_judged():
    one = held().judgements[0]
    unjudged = [Judgement(f"other-{n}", "other", Finding.INVALID, "") for n in range(3)]
    assert meaning(RunVerdict([], [one, one, *unjudged], ["a doubt"])) == (
        "This run gives no verdict. 2 of 5 expectations held, 3 could not be judged."
    )
    assert meaning(RunVerdict(["it crashed"], unjudged)) == (
        "This run proves nothing, good or bad. 0 of 3 expectations held, 3 could not be judged."
    )


def test_a_fail_has_commands_and_a_pass_something_harder(tmp_path):
    recording = realistic_run(tmp_path / "run")
    (recording.path / "logs" / "consul-1").mkdir(parents=True)
    commands = [how for _, how in story(recording, failing()).next]
    assert commands == [
        f"less {recording.path / 'logs' / 'consul-1'}/*",
        "hashidrill history changed slow-leader-disk",
        "hashidrill run experiments/raft/slow-leader-disk.yaml",
    ]
    [(what, how)] = story(recording, passing()).next
    assert what == "Harder: in slow-leader-disk.yaml, double what disk.latency does"
    assert how == "method[0].with.delay: 1s   # was 500ms"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("fault", "with_", "said"),
    [
        ("disk.bandwidth", {"rate": "4MB/s"}, ("half of what disk.bandwidth leaves", "rate: 2MB/s   # was 4MB/s")),
        ("network.latency", {"delay": "600ms"}, ("double what network.latency does", "delay: 1.2s   # was 600ms")),
        ("network.loss", {"percent": "60%"}, ("twice the load of kv", "load.kv.rate: 20/s   # was 10/s")),
    ],
)
def test_what_is_called_harder_is_harder(fault, with_, said):
    """Twice the bandwidth was called harder."""
    method = [SimpleNamespace(fault=fault, with_=with_)]
    asked = SimpleNamespace(method=method, load={"kv": SimpleNamespace(params={"rate": "10/s"})})
    what, line = stories._harder(asked, "in a.yaml")
    assert what == f"Harder: in a.yaml, {said[0]}"
    assert line.endswith(said[1])


def test_of_an_experiment_that_ships_the_harder_one_is_a_copy(tmp_path, monkeypatch):
    recording = realistic_run(tmp_path / "run")
    monkeypatch.setattr(stories, "shipped", lambda _: Path.cwd())
    [(what, _)] = story(recording, passing()).next
    assert what.startswith("Harder: in a copy (`hashidrill new --from slow-leader-disk harder`), double")


def test_why_the_experiment_is_run_is_on_the_page(tmp_path):
    recording = realistic_run(tmp_path / "run")
    assert "Why this experiment: A test." in render_html(recording, passing())


# ---- at most four charts stand open


def test_charts_of_what_expectations_read_and_of_what_moved_stand_open(tmp_path):
    shown = timeline(realistic_run(tmp_path / "run"), reads={"kv-writes"})["panels"]
    chosen = [panel["title"] for panel in shown if panel.get("chosen")]
    assert len(chosen) == MOST_CHOSEN < len(shown)
    assert {"kv-writes: latency", "kv-writes: operations per second", "Canary fsync next to the data"} <= set(chosen)
    assert not [title for title in chosen if "generator" in title]


# ---- what a recording may lack


def _without_samples(run):
    return run.fault("disk.latency", at=11, until=20).load("kv-writes")


LACKING = {
    "no loads": lambda run: run.fault("disk.latency", at=11, until=20).leader("consul-1"),
    "no samples": _without_samples,
    "no faults": lambda run: run.load("kv-writes").leader("consul-1"),
    "a fault that was never applied": lambda run: run.fault("disk.latency", at=11, until=20, failed="no"),
    "a fault that was never reverted": lambda run: run.fault("disk.latency", at=11, until=None).load("kv-writes"),
    "a run that never got to its method": lambda run: run.phase("start", at=0).load("kv-writes").end("steady-state"),
    "nothing": lambda run: run,
}


@pytest.mark.lie
@pytest.mark.parametrize("make", LACKING.values(), ids=LACKING)
@pytest.mark.parametrize("verdict", [passing(), failing(), invalid()], ids=["PASS", "FAIL", "INVALID"])
def test_whatever_a_recording_lacks_it_has_a_page(builder, make, verdict):
    recording = make(builder).build()
    assert story(recording, verdict).sentences
    page, summary = str(render_html(recording, verdict)), markdown_summary(recording, verdict)
    assert "nan" not in page.split("<main>")[1].partition("<script")[0].lower().replace("nanos", "")
    assert verdict.verdict.value in summary


@pytest.mark.lie
@pytest.mark.parametrize("lost", ["recording.sqlite", "resolved.json", "run.json"])
def test_a_recording_that_lost_a_file_has_a_page(builder, lost):
    path = builder.fault("disk.latency", at=11, until=20).load("kv-writes").leader("consul-1").build().path
    (path / lost).unlink()
    recording = Recording(path)
    assert "<main>" in render_html(recording, judge(recording))


@pytest.mark.lie
def test_a_journal_that_ends_in_the_middle_has_a_page(builder):
    path = builder.fault("disk.latency", at=11, until=20).load("kv-writes").leader("consul-1").build().path
    lines = (path / JOURNAL_NAME).read_text().splitlines()
    applied = next(n for n, line in enumerate(lines) if json.loads(line)["event"] == "fault.applied")
    (path / JOURNAL_NAME).write_text("\n".join(lines[: applied + 1]) + "\n")
    recording = Recording(path)
    assert "hashidrill heal" in render_html(recording, judge(recording))


@pytest.mark.lie
@pytest.mark.parametrize("defect", [TypeError, KeyError, ValueError, IndexError])
def test_a_defect_of_the_story_does_not_pass_for_a_damaged_recording(builder, monkeypatch, defect):
    monkeypatch.setattr(stories, "_leaders", raising(defect("planted")))
    run = builder.fault("disk.latency", at=11, until=20).load("kv-writes").leader("consul-1").build()
    with pytest.raises(defect, match="planted"):
        story(run, passing())


def watched(run, *fired, end=50, unknown=(), probe="rules"):
    """A probe that sees the alert SlowDisk fire in these seconds."""
    run.probe(probe, "alerts", url="http://prometheus-1:9090", alerts=["SlowDisk"])
    for at in range(4, end):
        known, fires = at not in unknown, at in fired
        text = "reset by peer" if not known else "firing: SlowDisk" if fires else ""
        run.sample(f"{probe}.firing", float(fires) if known else None, at=at, ok=known, text=text)
    return run


@pytest.mark.parametrize(
    ("fired", "more", "row"),
    [
        (range(15, 25), {}, ("15.0 s, 4.0 s after the fault", "kv-writes noticed 3.0 s before", "25.0 s")),
        (range(11, 50), {}, ("11.0 s", "kv-writes noticed 1.0 s later", "not seen")),
        (range(15, 25), {"unknown": (25, 26)}, ("15.0 s, 4.0 s after the fault; 2 of 46 looks failed", None, "27.0 s")),
        ((), {}, ("no", "", "")),
        ((), {"unknown": (20,)}, ("not seen; 1 of 46 looks failed", "", "")),
    ],
)
def test_a_table_of_alerts_says_who_was_first(builder, fired, more, row):
    run = builder.fault("process.kill", "consul-1", at=11, until=20).load("kv-writes", latency=sick)
    [(alert, *found)] = stories.alert_rows(watched(run, *fired, **more).build())
    assert alert == "SlowDisk"
    assert [each for each, wanted in zip(found, row, strict=True) if wanted is not None] == [
        x for x in row if x is not None
    ]


def test_the_first_alert_comes_first_and_names_its_probe_where_there_are_several(builder):
    run = builder.fault("process.kill", "consul-1", at=11, until=20).load("kv-writes", latency=sick)
    for probe, fired in (("quiet", ()), ("late", (18,)), ("early", (15,))):
        watched(run, *fired, probe=probe)
    rows = stories.alert_rows(run.build())
    assert [row[0] for row in rows] == ["early: SlowDisk", "late: SlowDisk", "quiet: SlowDisk"]


def test_the_table_of_alerts_is_in_both_reports(builder):
    run = watched(builder.fault("process.kill", "consul-1", at=11, until=20).load("kv-writes"), 15).build()
    assert "| `SlowDisk` | 15.0 s, 4.0 s after the fault | noticed nothing | 16.0 s |" in markdown_summary(
        run, passing()
    )
    assert "<h3>Alerts</h3>" in str(render_html(run, passing()))
    assert "Alerts" not in str(render_html(realistic_run(builder.path.parent / "other"), passing()))
