"""How a day goes: in which order, when it ends early, and that it goes on exactly where it was."""

import json
import os

import pytest

from game_days import (
    DAY,
    Clock,
    Plays,
    Script,
    begin,
    fits,
    folder_of,
    planned,
    result,
    resumed,
    whole_day,
)
from hashidrill.core.errors import FaultError, UsageError
from hashidrill.gamedays.gameday.conduct import RUNS, Unattended, conduct
from hashidrill.gamedays.gameday.journal import DAY_JOURNAL, DayJournal
from hashidrill.gamedays.gameday.report import outcome_of

ACTION = {"what": "Alert on commit times", "owner": "grace", "due": "2026-04-01"}
PREDICTIONS = {
    ("first", "ada", "leader"): "another",
    ("first", "ada", "stop"): 30.0,
    ("first", "grace", "leader"): "same",
    ("first", "grace", "stop"): 1.5,
}


def test_a_day_goes_in_order_and_asks_everything_once(tmp_path):
    lead, plays = Script(predictions=PREDICTIONS, actions=[ACTION]), Plays()
    found = whole_day(planned(tmp_path), folder_of(tmp_path), lead=lead, plays=plays)
    predicted = [("predict", "first", who, what) for who in ("ada", "grace") for what in ("leader", "stop")]
    later = [("predict", "second", *each[2:]) for each in predicted]
    shown = [each for each in lead.asked if each[0] != "checked"]
    assert shown == [
        ("confirm", "Nobody deploys"),
        ("message", "start"),
        *predicted,
        ("go", "first"),
        ("run", "first", 1),
        ("note", "first", "PASS"),
        *later,
        ("message", "before second"),
        ("go", "second"),
        ("run", "second", 1),
        ("note", "second", "PASS"),
        ("message", "end"),
    ]
    assert lead.paused == ["first"]  # and not after the last one
    assert plays.played == ["first", "second"]
    assert (found["outcome"], found["verdict"], found["exit_code"]) == ("done", "PASS", 0)
    assert [run["notes"] for run in found["runs"]] == ["seen: first", "seen: second"]
    assert [each["what"] for each in found["actions"]] == ["Alert on commit times"]


def test_what_happened_stands_beside_what_was_predicted(tmp_path):
    found = whole_day(planned(tmp_path), folder_of(tmp_path), lead=Script(predictions=PREDICTIONS))
    came = {
        (question["name"], answer["person"]): answer["came"]
        for question in found["runs"][0]["questions"]
        for answer in question["answers"]
    }
    assert came == {
        ("leader", "ada"): "right",
        ("leader", "grace"): "surprise",
        ("stop", "ada"): "surprise",
        ("stop", "grace"): "right",
    }
    assert [(each["person"], each["answer"]) for each in found["surprises"]] == [("grace", "same"), ("ada", "30s")]
    assert {answer["came"] for q in found["runs"][1]["questions"] for answer in q["answers"]} == {"not asked"}


VERDICT = {"verdict": {"measure": "verdict", "ask": "How does it end?"}}


@pytest.mark.lie
def test_an_invalid_run_surprises_nobody_whatever_they_predicted(tmp_path):
    predictions = PREDICTIONS | {("first", "ada", "verdict"): "PASS", ("first", "grace", "verdict"): "FAIL"}
    invalid = result("INVALID")
    invalid["measured"]["verdict"] = {"value": "INVALID", "text": "INVALID"}
    plan = planned(tmp_path, questions=DAY["questions"] | VERDICT, repeat_invalid=0)
    found = whole_day(plan, folder_of(tmp_path), lead=Script(predictions=predictions), plays=Plays(first=[invalid]))
    assert found["surprises"] == []
    questions = found["runs"][0]["questions"]
    assert {answer["came"] for each in questions for answer in each["answers"]} == {"not measured"}
    assert not any(each["measured"] for each in questions)
    failed = result("FAIL")
    failed["measured"]["verdict"] = {"value": "FAIL", "text": "FAIL"}
    lead = Script(predictions=predictions)
    found = whole_day(plan, folder_of(tmp_path, "failed"), lead=lead, plays=Plays(first=[failed]))
    assert [each["person"] for each in found["surprises"] if each["ask"] == "How does it end?"] == ["ada"]


@pytest.mark.parametrize(
    ("results", "verdict", "code"),
    [
        ({"first": ["PASS"], "second": ["PASS"]}, "PASS", 0),
        ({"first": ["FAIL"], "second": ["PASS"]}, "FAIL", 1),
        ({"first": ["PASS"], "second": ["INVALID"]}, "INVALID", 3),
        ({"first": ["FAIL"], "second": ["INVALID"]}, "FAIL", 1),
        ({"first": ["INVALID", "PASS"], "second": ["PASS"]}, "PASS", 0),
    ],
)
def test_the_verdict_of_a_day_is_the_worst_of_its_runs(tmp_path, results, verdict, code):
    found = whole_day(planned(tmp_path), folder_of(tmp_path), plays=Plays(**results))
    assert (found["verdict"], found["exit_code"], found["outcome"]) == (verdict, code, "done")


def test_an_invalid_run_is_made_again_as_often_as_the_day_says_and_each_attempt_is_named(tmp_path):
    plays = Plays(first=["INVALID"])
    found = whole_day(planned(tmp_path, repeat_invalid=2), folder_of(tmp_path), plays=plays)
    assert plays.played == ["first", "first", "first", "second"]
    assert len(found["runs"][0]["before"]) == 2
    assert found["verdict"] == "INVALID"


def test_a_failed_run_is_not_made_again(tmp_path):
    plays = Plays(first=["FAIL", "PASS"])
    assert whole_day(planned(tmp_path), folder_of(tmp_path), plays=plays)["verdict"] == "FAIL"
    assert plays.played == ["first", "second"]


def test_a_fail_becomes_an_action_item_with_owner_and_date(tmp_path):
    found = whole_day(planned(tmp_path), folder_of(tmp_path), plays=Plays(second=["FAIL"]))
    [item] = found["actions"]
    assert (item["owner"], item["due"], item["from"]) == ("grace", "2026-03-08", "second")
    assert "second FAILED: writes_recover" in item["what"]


# a day that ends early


class TakesTime(Plays):
    """Each run takes so many seconds of that clock."""

    def __init__(self, clock, run_s, **results):
        super().__init__(**results)
        self.clock, self.run_s = clock, run_s

    def __call__(self, run, folder):
        self.clock.go_on(self.run_s)
        return super().__call__(run, folder)


class Talks(Script):
    """People who talk for two hours about that run, before they predict or before they say go."""

    def __init__(self, clock, run, when):
        super().__init__()
        self.clock, self.about = clock, (run, when)

    def predicts(self, run, *rest):
        self.clock.go_on(7200 if self.about == (run.name, "predicts") else 0)
        return super().predicts(run, *rest)

    def goes(self, run):
        self.clock.go_on(7200 if self.about == (run.name, "goes") else 0)
        return super().goes(run)


@pytest.mark.lie
@pytest.mark.parametrize("when", ["predicts", "goes"])
@pytest.mark.parametrize(("about", "played"), [("first", []), ("second", ["first"])])
def test_nothing_begins_once_talk_took_longer_than_the_day_may(tmp_path, about, played, when):
    clock, plays = Clock(step_s=0), Plays()
    plan, folder = planned(tmp_path, abort={"longer_than": "1h"}), folder_of(tmp_path)
    lead = Talks(clock, about, when)
    found = whole_day(plan, folder, plays=plays, lead=lead, clock=clock)
    assert plays.played == played
    assert (found["outcome"], found["verdict"]) == ("aborted", "INVALID")
    assert found["because"] == "the day has lasted longer than 1h"
    assert {run["name"]: run["state"] for run in found["runs"]}[about] == "not run"
    assert [each["when"] for each in found["messages"]][-2:] == ["abort", "end"]
    assert (("go", about) in lead.asked) is (when == "goes")
    again = Plays()
    assert resumed(plan, folder, plays=again)["outcome"] == "aborted"
    assert again.played == []


def test_talk_within_the_time_of_the_day_ends_nothing(tmp_path):
    clock = Clock(step_s=0)
    plan = planned(tmp_path, abort={"longer_than": "3h"})
    found = whole_day(plan, folder_of(tmp_path), lead=Talks(clock, "second", "goes"), clock=clock)
    assert found["outcome"] == "done"


@pytest.mark.parametrize("which", ["the machine", "the lead"])
def test_one_no_before_the_day_starts_nothing(tmp_path, which):
    lead, plays = Script(confirms=which != "the lead"), Plays()
    look = (lambda _check: (False, "no memory")) if which == "the machine" else fits
    found = whole_day(planned(tmp_path), folder_of(tmp_path), lead=lead, plays=plays, look=look)
    assert plays.played == []
    assert (found["outcome"], found["verdict"], found["exit_code"]) == ("no-go", "INVALID", 3)
    assert [each["when"] for each in found["messages"]] == ["no-go"]
    assert {run["state"] for run in found["runs"]} == {"not run"}
    assert len(found["checks"]) == 2  # all of them are looked at


@pytest.mark.parametrize(
    ("changes", "planted", "because"),
    [
        ({"abort": {"failed": 1}}, "FAIL", "1 of the runs ended as FAIL; the day ends after 1"),
        ({"abort": {"invalid": 1}, "repeat_invalid": 0}, "INVALID", "1 of the runs ended as INVALID"),
        ({"abort": {"longer_than": "1s"}}, "PASS", "the day has lasted longer than 1s"),
        ({}, result(passed=["stop of kv-writes was 40s: above 30s"]), "first: stop of kv-writes was 40s: above 30s"),
        ({}, result("FAIL", outcome="revert"), "first: a fault could not be reverted"),
    ],
)
def test_the_day_ends_where_its_abort_criteria_say_so(tmp_path, changes, planted, because):
    clock = Clock(step_s=0)
    plays, lead = TakesTime(clock, 60, first=[planted]), Script()
    found = whole_day(planned(tmp_path, **changes), folder_of(tmp_path), plays=plays, lead=lead, clock=clock)
    assert plays.played == ["first"]
    assert found["outcome"] == "aborted"
    assert because in found["because"]
    assert found["runs"][1]["state"] == "not run"
    assert found["verdict"] != "PASS"
    assert [each["when"] for each in found["messages"]] == ["start", "abort", "end"]
    assert lead.paused == []


def test_below_its_limits_a_day_goes_on(tmp_path):
    abort = {"failed": 2, "invalid": 1, "longer_than": "10h"}
    found = whole_day(planned(tmp_path, abort=abort), folder_of(tmp_path), plays=Plays(first=["FAIL"]))
    assert found["outcome"] == "done"
    found = whole_day(planned(tmp_path, abort=abort), folder_of(tmp_path, "b"), plays=Plays(first=["INVALID", "PASS"]))
    assert found["outcome"] == "done"  # the attempt that was INVALID was made again


def test_a_fault_that_was_not_reverted_is_exit_code_4(tmp_path):
    plays = Plays(second=[result("FAIL", outcome="revert")])
    found = whole_day(planned(tmp_path), folder_of(tmp_path), plays=plays)
    assert (found["exit_code"], found["outcome"]) == (4, "aborted")


@pytest.mark.lie
def test_the_lead_ends_the_day_and_what_did_not_run_makes_it_invalid(tmp_path):
    plays = Plays()
    found = whole_day(planned(tmp_path), folder_of(tmp_path), lead=Script(goes={"second": "stop"}), plays=plays)
    assert (plays.played, found["outcome"], found["verdict"]) == (["first"], "stopped", "INVALID")


def test_a_run_that_the_lead_skips_counts_for_nothing(tmp_path):
    found = whole_day(planned(tmp_path), folder_of(tmp_path), lead=Script(goes={"first": "skip"}))
    assert [run["state"] for run in found["runs"]] == ["skipped", "run"]
    assert found["verdict"] == "PASS"
    both = Script(goes={"first": "skip", "second": "skip"})
    assert whole_day(planned(tmp_path), folder_of(tmp_path, "b"), lead=both)["verdict"] == "INVALID"


def test_nobody_is_asked_on_a_scheduled_day_and_the_report_says_so(tmp_path):
    said, waited = [], []
    lead = Unattended(lambda text, *_: said.append(text), waited.append)
    found = whole_day(planned(tmp_path), folder_of(tmp_path), lead=lead)
    assert waited == [60.0]
    answers = [answer for run in found["runs"] for q in run["questions"] for answer in q["answers"]]
    assert len(answers) == 8
    assert {answer["came"] for answer in answers} == {"not asked"}
    assert not found["surprises"]
    assert not any(message["told"] for message in found["messages"])
    assert any("not sent because the day is unattended" in line for line in said)


# a day that is interrupted


def cut(folder, tmp_path, lines, name, torn=b""):
    """A copy of a day whose journal ends after that many lines, and the recordings that it had by then."""
    there = (folder / DAY_JOURNAL).read_bytes().splitlines(keepends=True)
    other = tmp_path / name
    other.mkdir()
    (other / DAY_JOURNAL).write_bytes(b"".join(there[:lines]) + torn)
    for line in there[: lines + 1]:  # a run that was cut off has left a recording
        said = json.loads(line)
        if said["event"] == "done" and said["step"].startswith("run:"):
            (other / said["result"]["recording"]).mkdir(parents=True, exist_ok=True)
    return other, [json.loads(line) for line in there[:lines]]


def facts(found):
    """Without the times, and without where an attempt that counts lies: another one was made."""
    same = {key: value for key, value in found.items() if key not in {"sessions", "ended_at", "interrupted"}}
    text = json.dumps(same)
    for run in found["runs"]:
        for recording in [run["recording"], *(each["recording"] for each in run["before"])]:
            text = text.replace(recording, f"{RUNS}/{run['name']}") if recording else text
    data = json.loads(text)
    for message in data["messages"]:
        message.pop("at")
    for item in data["actions"]:
        item.pop("due") if item["from"] != "the day" else None
    return data


STORIES = {
    "as planned": ({}, {"first": ["PASS"]}, {}),
    "with all verdicts": ({"repeat_invalid": 2}, {"first": ["INVALID", "INVALID", "FAIL"]}, {}),
    "aborted": ({"abort": {"failed": 1}}, {"first": ["FAIL"]}, {}),
    "stopped": ({}, {}, {"second": "stop"}),
    "a no-go": ({}, {}, {"no": True}),
}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("story", "torn"), [*((story, b"") for story in STORIES), ("as planned", b'{"event": "done", "step": "che')]
)
def test_a_day_cut_off_after_any_line_is_resumed_to_the_same_report(tmp_path, story, torn, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # of thousands of lines, on a disk that others use too
    changes, results, does = STORIES[story]
    plan = planned(tmp_path, **changes)
    script = lambda: Script(predictions=PREDICTIONS, actions=[ACTION], goes=does, confirms="no" not in does)  # noqa: E731
    folder = folder_of(tmp_path)
    whole = whole_day(plan, folder, lead=script(), plays=Plays(**results))
    lines = (folder / DAY_JOURNAL).read_bytes().splitlines()
    assert len(lines) > 5
    for kept in range(1, len(lines) + 1):
        other, before = cut(folder, tmp_path, kept, f"cut-{kept}", torn)
        done = {entry["step"]: entry["result"] for entry in before if entry["event"] == "done"}
        left = {
            name: planted[sum(step.startswith(f"run:{name}:") for step in done) :] or planted[-1:]
            for name, planted in results.items()
        }
        lead, plays = script(), Plays(**left)
        found = resumed(plan, other, lead=lead, plays=plays)
        assert facts(found) == facts(whole), f"cut off after line {kept}: {lines[kept - 1]!r}"
        assert outcome_of(plan, DayJournal.read(other)) == found  # what is on disk says the same
        asked = {":".join(each) for each in lead.asked if each[0] == "predict"}
        assert not asked & done.keys(), "an answer that was given is asked again"
        interrupted = before[-1]["event"] == "begin" and before[-1]["step"].startswith("run:")
        assert len(found["interrupted"]) == interrupted
        if interrupted:
            assert found["interrupted"][0]["step"] == before[-1]["step"]
            left = json.loads(lines[kept])["result"]["recording"]  # it was there, and no line named it any more
            assert found["interrupted"][0]["recording"] == left


@pytest.mark.lie
def test_a_resumed_day_asks_before_it_breaks_things_again(tmp_path):
    """Whoever resumes a day may only want to look: its go was given hours ago."""
    plan, folder, plays = planned(tmp_path), folder_of(tmp_path), Plays()
    with pytest.raises(KeyboardInterrupt):
        whole_day(plan, folder, lead=Script(), plays=Plays(first=[KeyboardInterrupt()]))
    later = Script(goes={"first": "not now"})
    with pytest.raises(KeyboardInterrupt):
        resumed(plan, folder, lead=later, plays=plays)
    assert (later.asked, plays.played) == ([("goes on", "first")], [])
    last = Script()
    assert resumed(plan, folder, lead=last, plays=plays)["outcome"] == "done"
    assert [each for each in last.asked if each[0] in {"goes on", "go"}] == [("goes on", "first"), ("go", "second")]


def test_the_check_of_resumed_days_sees_a_day_that_differs(tmp_path):
    """Planted: the same comparison, of days that did not go the same way."""
    plan = planned(tmp_path)
    one = whole_day(plan, folder_of(tmp_path, "one"))
    for name, other in (("two", Script(goes={"first": "skip"})), ("three", Script(actions=[ACTION]))):
        assert facts(whole_day(plan, folder_of(tmp_path, name), lead=other)) != facts(one)
    assert facts(whole_day(plan, folder_of(tmp_path, "four"), plays=Plays(first=["FAIL"]))) != facts(one)


@pytest.mark.lie
def test_a_run_that_is_interrupted_runs_again_and_is_named(tmp_path):
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        whole_day(plan, folder, plays=Plays(first=[KeyboardInterrupt()]))
    plays = Plays()
    found = resumed(plan, folder, plays=plays)
    assert plays.played == ["first", "second"]
    assert [entry["step"] for entry in found["interrupted"]] == ["run:first:1"]
    assert found["interrupted"][0]["recording"] == f"{RUNS}/000-first"
    assert found["runs"][0]["recording"] == f"{RUNS}/001-first"
    assert found["verdict"] == "PASS"


class Judged(Plays):
    """Ctrl-C while the run is judged."""

    def __call__(self, run, folder):
        super().__call__(run, folder)
        raise KeyboardInterrupt


def test_a_run_that_was_interrupted_after_its_recording_was_made_is_named_with_it(tmp_path):
    """Nobody says which recording it was."""
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        whole_day(plan, folder, plays=Judged())
    found = resumed(plan, folder)
    assert found["interrupted"] == [{"step": "run:first:1", "recording": f"{RUNS}/000-first"}]


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_that_had_ended_is_judged_and_not_run_again(tmp_path, whole):
    """Whoever judges says of what is there whether it had."""
    plan, folder, looked, plays = planned(tmp_path), folder_of(tmp_path), [], Plays()

    def again(run, recording):
        looked.append((run.name, recording))
        return {**result("FAIL"), "recording": str(recording)} if whole else None

    with pytest.raises(KeyboardInterrupt):
        whole_day(plan, folder, plays=Judged())
    with DayJournal.resume(folder) as journal:
        conduct(plan, journal, Script(), plays, fits, again=again)
        found = outcome_of(plan, journal)
    assert looked == [("first", folder / RUNS / "000-first")]
    assert plays.played == (["second"] if whole else ["first", "second"])
    assert found["runs"][0]["verdict"] == ("FAIL" if whole else "PASS")
    assert [each["recording"] for each in found["interrupted"]] == ([] if whole else [f"{RUNS}/000-first"])


def test_a_day_that_is_stopped_after_a_run_keeps_its_verdict_and_does_not_run_it_again(tmp_path):
    plan, folder, plays = planned(tmp_path), folder_of(tmp_path), Plays(first=["FAIL"])
    with begin(plan, folder) as journal:
        with pytest.raises(KeyboardInterrupt):
            conduct(plan, journal, Script(), plays, fits, stopped=lambda: bool(plays.played))
        assert outcome_of(plan, journal)["runs"][0]["verdict"] == "FAIL"
    again = Plays()
    found = resumed(plan, folder, plays=again)
    assert (plays.played, again.played) == (["first"], ["second"])
    assert (found["interrupted"], found["verdict"]) == ([], "FAIL")


def test_a_run_that_could_not_be_made_is_made_by_the_resumed_day(tmp_path):
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    with pytest.raises(FaultError):
        whole_day(plan, folder, plays=Plays(second=[FaultError("planted")]))
    with DayJournal.resume(folder) as journal:
        found = outcome_of(plan, journal)
    assert (found["outcome"], found["verdict"]) == ("unfinished", "INVALID")
    assert found["runs"][0]["verdict"] == "PASS"
    assert resumed(plan, folder)["outcome"] == "done"


def test_a_day_that_is_over_stays_as_it_is(tmp_path):
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    whole_day(plan, folder)
    lead, plays = Script(), Plays()
    resumed(plan, folder, lead=lead, plays=plays)
    assert (lead.asked, plays.played) == ([], [])


def test_time_in_which_nobody_runs_the_day_is_not_counted(tmp_path):
    plan, folder = planned(tmp_path, abort={"longer_than": "1h"}), folder_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        whole_day(plan, folder, plays=Plays(first=[KeyboardInterrupt()]))
    assert resumed(plan, folder, clock=Clock("2026-03-05T10:00:00+00:00"))["outcome"] == "done"  # four days later


# the journal


def test_two_cannot_lead_one_day(tmp_path):
    folder = folder_of(tmp_path)
    with begin(planned(tmp_path), folder):
        with pytest.raises(UsageError, match="is in progress in another terminal"):
            DayJournal.resume(folder)
        assert DayJournal.read(folder).head  # but everybody may look
    DayJournal.resume(folder).close()


@pytest.mark.parametrize(
    "line",
    [
        b"[]\n",
        b"{}\n",
        b'{"event": "done", "step": "x"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"event": "day", "wall": "2026-03-01T10:00:00+00:00", "version": 1}\n',
        b'{"event": "done", "wall": "2026-03-01T10:00:00+00:00", "step": "end", "result": 1}\n',
        b'{"event": "what", "wall": "2026-03-01T10:00:00+00:00"}\n',
    ],
)
def test_a_line_that_we_did_not_write_is_told_with_its_number(tmp_path, line):
    folder = folder_of(tmp_path)
    begin(planned(tmp_path), folder).close()
    path = folder / DAY_JOURNAL
    before = path.read_bytes()
    path.write_bytes(before + line)
    with pytest.raises(UsageError, match=r"line 3 is damaged"):
        DayJournal.resume(folder)
    assert path.read_bytes() == before + line


def test_a_torn_first_line_and_a_newer_format_are_told(tmp_path):
    folder = folder_of(tmp_path)
    (folder / DAY_JOURNAL).write_bytes(b'{"event": "day", "wal')
    with pytest.raises(UsageError, match="begin it again"):
        DayJournal.resume(folder)
    (folder / DAY_JOURNAL).write_bytes(b'{"event": "day", "wall": "2026-03-01T10:00:00+00:00", "version": 2}\n')
    with pytest.raises(UsageError, match="another version of hashidrill"):
        DayJournal.resume(folder)


def test_each_step_is_on_disk_before_and_after_it(tmp_path):
    """What is played looks at the journal: its own begin is there, and nothing of its result."""
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    seen = []

    class Looks(Plays):
        def __call__(self, run, into):
            seen.append(json.loads((folder / DAY_JOURNAL).read_bytes().splitlines()[-1]))
            return super().__call__(run, into)

    whole_day(plan, folder, plays=Looks())
    assert [(entry["event"], entry["step"]) for entry in seen] == [("begin", "run:first:1"), ("begin", "run:second:1")]


def test_the_same_question_of_two_days_is_no_conflict(tmp_path):
    """Names of runs, people and questions are keys of the journal: one that ends like another's begin is no mix-up."""
    people = DAY["people"] | {"ada-b": {"role": "observer"}}
    plan = planned(tmp_path, people=people)
    lead = Script()
    with begin(plan, folder_of(tmp_path)) as journal:
        conduct(plan, journal, lead, Plays(), fits)
        assert len([step for step in journal.done if step.startswith("predict:")]) == 2 * 3 * 2
