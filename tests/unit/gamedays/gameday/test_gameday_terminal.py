"""The lead at a terminal: what is said and asked, in order, and that no wrong answer is taken."""

from __future__ import annotations

import datetime as dt

import pytest

from game_days import DAY, Plays, folder_of, planned, resumed, whole_day
from hashidrill.gamedays.gameday.terminal import Terminal

TODAY = dt.date(2026, 3, 1)


class Sitting:
    """Somebody at a terminal, who types these lines; after the last one the terminal is closed."""

    def __init__(self, plan, *typed):
        self.lines, self.left = [], list(typed)
        self.lead = Terminal(plan, self.say, self.ask, resume="hashidrill gameday resume DAY", today=lambda: TODAY)

    def say(self, line, style=""):
        del style
        self.lines.append(line)

    def ask(self, prompt):
        self.lines.append(prompt)
        if not self.left:
            raise KeyboardInterrupt
        return self.left.pop(0)

    @property
    def text(self):
        return "\n".join(self.lines)


def sat(tmp_path, *typed, **changes):
    plan = planned(tmp_path, **changes)
    sitting = Sitting(plan, *typed)
    sitting.lead.welcome()
    found = whole_day(plan, folder_of(tmp_path), lead=sitting.lead)
    return sitting, found


WHOLE = (
    "y",
    "y",  # nobody deploys; #sre is told
    "another",
    "2s",
    "same",
    "30s",
    "",
    "It took two seconds",
    "",  # predictions, go, notes, pause
    "",
    "",
    "",
    "",
    "y",
    "",
    "none",  # no predictions; #dba is told, go, notes
    "Alert on commit times",
    "grace",
    "14d",
    "",
    "y",  # an action item, no more, #sre is told
)


def test_a_lead_who_reads_nothing_else_gets_through_the_day(tmp_path):
    sitting, found = sat(tmp_path, *WHOLE)
    assert sitting.left == []
    assert found["outcome"] == "done"
    assert [run["notes"] for run in found["runs"]] == ["It took two seconds", "none"]
    [item] = found["actions"]
    assert (item["what"], item["owner"], item["due"]) == ("Alert on commit times", "grace", "2026-03-15")
    assert [line for line in sitting.lines if line.startswith("Step ")] == [
        "Step 1 of 4: go or no-go",
        "Step 2 of 4: first: The Raft leader is killed and starts again later",
        "Step 3 of 4: second: One follower's disk slows down, and users must not notice",
        "Step 4 of 4: what follows from it",
    ]


def test_it_says_beforehand_how_to_stop_and_how_to_go_on(tmp_path):
    sitting, _ = sat(tmp_path, *WHOLE)
    before = sitting.text.partition("Step 1")[0]
    assert "Ctrl-C stops at any moment" in before
    assert "hashidrill gameday resume DAY" in before
    assert "lead: Ada" in before


def test_it_says_what_comes_next_before_each_run_and_what_happened_after_it(tmp_path):
    sitting, _ = sat(tmp_path, *WHOLE)
    assert sitting.text.count("Next: the experiment runs by itself") == 2
    assert "How long do writes stop? 2.0s" in sitting.text
    assert "Discuss: What is our multiplier?" in sitting.text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("2", "has no unit"), ("5%", "is not a duration"), ("soon", "is not a duration"), ("-2s", "is negative")],
)
def test_a_prediction_in_a_wrong_unit_is_asked_again(tmp_path, wrong, said):
    typed = [*WHOLE[:3], wrong, *WHOLE[3:]]
    sitting, found = sat(tmp_path, *typed)
    assert said in sitting.text
    [question] = [each for each in found["runs"][0]["questions"] if each["name"] == "stop"]
    assert [answer["answer"] for answer in question["answers"]] == ["2s", "30s"]


def test_an_answer_that_is_none_of_those_asked_for_is_asked_again(tmp_path):
    typed = ["maybe", "", *WHOLE[:2], "consul-1", *WHOLE[2:6], "x", *WHOLE[6:]]
    sitting, found = sat(tmp_path, *typed)
    assert found["outcome"] == "done"
    for said in ("answer y or n", "answer one of same, another, nobody", "press Enter, or answer s or e"):
        assert said in sitting.text


def test_an_action_item_has_somebody_of_the_day_and_a_date_to_come(tmp_path):
    people = DAY["people"] | {"grace-2": {"role": "observer", "name": "Grace", "predicts": False}}
    items = ["Fix it", "Nobody", "Grace", "grace-2", "tomorrow", "2026-02-28", "2026-02-30", "2026-03-02", "", "y"]
    sitting, found = sat(tmp_path, *WHOLE[:-5], *items, people=people)
    [item] = found["actions"]
    assert (item["owner"], item["name"], item["due"]) == ("grace-2", "Grace (grace-2)", "2026-03-02")
    for said in ("'Nobody' takes no part", "answer grace or grace-2", "'tomorrow' is no date", "2026-02-28 is over"):
        assert said in sitting.text


def test_no_is_a_no_go(tmp_path):
    sitting, found = sat(tmp_path, "n", "y")
    assert found["outcome"] == "no-go"
    assert "NO-GO: Nobody deploys: Ada says no" in sitting.text


def test_a_resumed_day_says_that_it_goes_on_and_how_to_stop(tmp_path):
    plan = planned(tmp_path)
    sitting = Sitting(plan)
    lead = Terminal(plan, sitting.say, sitting.ask, resume="x", today=lambda: TODAY, resumed=True)
    lead.welcome()
    assert "goes on where it stopped" in sitting.text
    assert "Ctrl-C stops it again" in sitting.text


@pytest.mark.lie
@pytest.mark.parametrize("typed", range(len(WHOLE)))
def test_a_terminal_closed_at_any_prompt_loses_no_answer_and_asks_none_twice(tmp_path, typed):
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    first = Sitting(plan, *WHOLE[:typed])
    plays = Plays()
    with pytest.raises(KeyboardInterrupt):
        whole_day(plan, folder, lead=first.lead, plays=plays)
    # an action item is one step: what, who and when are asked together again
    at = len(WHOLE) - 5 if typed in {len(WHOLE) - 4, len(WHOLE) - 3} else typed
    second = Sitting(plan, *WHOLE[at:])
    found = resumed(plan, folder, lead=second.lead, plays=plays)
    assert second.left == []
    assert found["outcome"] == "done"
    assert plays.played == ["first", "second"]
    assert [run["notes"] for run in found["runs"]] == ["It took two seconds", "none"]
    assert len(found["surprises"]) == 2


def test_hostile_words_stay_words(tmp_path):
    _, found = sat(tmp_path, *WHOLE[:7], "\x1b[2J" + "x" * 10_000, *WHOLE[8:])
    assert len(found["runs"][0]["notes"]) <= 4000
