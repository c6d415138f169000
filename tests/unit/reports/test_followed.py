"""A runbook that is followed shows each command, its answer, and which branch was taken and why: bounded, as text."""

import io
import json

import pytest
from rich.console import Console

import virtual_time
from hashidrill.core.protocols.events import decode
from hashidrill.core.util.redaction import MARK, Redactor
from hashidrill.gamedays.runbooks.follower import Follower, Ran
from hashidrill.reports.followed import LONGEST, MOST_LINES, step_lane, step_lines, step_marks, step_of
from hashidrill.reports.live.display import LiveView
from runbook_pages import line_of, page, sick

S = 1_000_000_000


def followed(hands):
    """The entries that a follower leaves, a second apart."""
    virtual_time.run(Follower(page(), hands).follow())
    return [
        (number * S, {"what": what, "text": text, **data}) for number, (what, text, data) in enumerate(hands.notes, 10)
    ]


def lines(hands):
    return [
        line
        for t_ns, data in followed(hands)
        if (step := step_of(t_ns, data, 0)) is not None
        for line in step_lines(step)
    ]


def test_each_step_shows_its_command_its_answer_and_the_branch_that_was_taken():
    said = lines(sick())
    assert said[:6] == [
        f"observe leader on consul-1 (line {line_of('sh observe leader')}), 0.5 s",
        "  $ who leads",
        "  > consul-2",
        f"observe commit_ms on consul-2 (line {line_of('sh observe commit_ms')}), 0.5 s",
        "  $ how slow",
        "  > 812.5",
    ]
    at = said.index(f"decided (line {line_of('commit_ms > 300')}): slow-disk: the leader's disk")
    assert said[at + 1] == "  because commit_ms > 300: commit_ms = 812.5"
    assert "  > exit 1" in said[at:], "the confirm before the act"
    assert said[-1] == "done: the runbook was followed to its end"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"how_slow": 7}, ["  > exit 7", f"observed (line {line_of('sh observe commit_ms')}): commit_ms: missing"]),
        (
            {"how_slow": 7},
            [f"undecided (line {line_of('decide')}): no line of the decision in line {line_of('decide')} holds"],
        ),
        ({"how_slow": 7}, ["  because commit_ms = missing"]),
        ({"how_slow": Ran(None, "", "", 30.0)}, ["  > did not end in time"]),
        ({"transfer": Ran(1, "", "no leader\n", 0.2)}, ["  > exit 1", "    no leader"]),
    ],
)
def test_what_failed_does_not_look_as_if_it_had_answered(changed, told):
    said = lines(sick(**changed))
    assert [line for line in told if line not in said] == []


@pytest.mark.lie
def test_an_answer_is_bounded_and_stays_text():
    output = "\x1b[2J" + "x" * 9000 + "\n" + "line\n" * 5000
    data = {"what": "command", "kind": "act", "line": 3, "host": "h", "command": "c", "code": 0, "output": output}
    step = step_of(S, data, 0)
    said = [*step_lines(step)]
    assert len(said) <= MOST_LINES + 4
    assert max(map(len, said)) <= LONGEST + 60
    assert "\x1b" not in "".join(said)
    assert "more" in said[-1]


@pytest.mark.lie
def test_a_secret_that_the_run_knows_is_not_shown():
    redactor = Redactor()
    redactor.learn({"consul": {"token": "9f1c2d3e-secret-of-the-run"}})
    data = {"what": "command", "kind": "observe", "line": 3, "host": "h", "code": 0}
    data |= {"command": "curl -H 'X-Consul-Token: 9f1c2d3e-secret-of-the-run'", "output": "9f1c2d3e-secret-of-the-run"}
    said = "\n".join(step_lines(step_of(S, redactor.data(data), 0)))
    assert "secret-of-the-run" not in said
    assert said.count(MARK) == 2


def test_the_terminal_shows_it_as_it_happens_and_says_nothing_twice():
    out = Console(file=io.StringIO(), width=200)
    with LiveView(out, "a rehearsal", plain=True) as view:
        for t_ns, data in followed(sick()):
            view.event(decode(json.dumps({"event": "attended.did", "t_ns": t_ns, **data})))
    shown = out.file.getvalue()
    for told in ("$ who leads", "> consul-2", "because commit_ms > 300: commit_ms = 812.5", "done: "):
        assert shown.count(told) == 1, told
    assert "leader: consul-2" not in shown


def test_the_steps_are_spans_and_moments_of_one_clock():
    steps = [step for t_ns, data in followed(sick()) if (step := step_of(t_ns, data, 0)) is not None]
    lane = step_lane(steps)
    assert [each["label"] for each in lane] == ["observe", "check", "act", "confirm"]
    assert all(each["start"] < each["end"] for each in lane)
    assert [each["label"] for each in step_marks(steps)] == ["decided: slow-disk", "confirmed", "confirmed", "done"]
