"""The lead at a terminal and on a page: what is said and asked, that no wrong answer is taken, who reads what."""

import datetime as dt
import json
import os
import pty

import pytest

from game_days import DAY, Plays, begin, folder_of, planned, resumed, whole_day
from hashidrill.core.protocols.events import Audience
from hashidrill.faces.cli.gameday_words import Asker
from hashidrill.gamedays.gameday.conduct import conduct
from hashidrill.gamedays.gameday.leads import TROUBLE, Expected, OnPage, Terminal
from hashidrill.gamedays.gameday.report import outcome_of
from hashidrill.gamedays.warroom.room import Room

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
    *("y", "y"),  # nobody deploys; #sre is told
    *("another", "2s", "same", "30s", "", "It took two seconds", ""),  # predictions, go, notes, pause
    *("", "", "", "", "y", "", "none"),  # no predictions; #dba is told, go, notes
    *("Alert on commit times", "grace", "14d", "", "y"),  # an action item, no more, #sre is told
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
        "Step 2 of 4: A server goes away",
        "Step 3 of 4: experiment 2",
        "Step 4 of 4: action items",
    ]


def test_it_says_beforehand_how_to_stop_and_how_to_go_on(tmp_path):
    sitting, _ = sat(tmp_path, *WHOLE)
    before = sitting.text.partition("Step 1")[0]
    assert "Ctrl-C stops at any moment" in before
    assert "hashidrill gameday resume DAY" in before
    assert "lead: Ada" in before


@pytest.mark.lie
def test_what_an_experiment_was_is_said_once_it_has_run(tmp_path):
    sitting, _ = sat(tmp_path, *WHOLE)
    for after in ("The leader was killed", "One follower's disk slows down, and users must not notice"):
        before, said, _ = sitting.text.partition(after)
        assert said
        assert "PASS  " in before.splitlines()[-1]


def test_it_says_what_comes_next_before_each_run_and_what_happened_after_it(tmp_path):
    sitting, _ = sat(tmp_path, *WHOLE)
    assert sitting.text.count("Next: the experiment runs without your help") == 2
    assert "How long do writes stop? 2.0s" in sitting.text
    assert "Discuss: What is our multiplier?" in sitting.text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("2", "has no unit"),
        ("00", "has no unit"),
        ("5%", "is not a duration"),
        ("soon", "is not a duration"),
        ("-2s", "is negative"),
    ],
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
    items = ["Fix it", "Grace", "grace-2", "tomorrow", "2026-02-28", "2026-02-30", "2026-03-02", "", "y"]
    sitting, found = sat(tmp_path, *WHOLE[:-5], *items, people=people)
    [item] = found["actions"]
    assert (item["owner"], item["name"], item["due"]) == ("grace-2", "Grace (grace-2)", "2026-03-02")
    for said in ("answer grace or grace-2", "'tomorrow' is not a date", "2026-02-28 is in the past"):
        assert said in sitting.text


@pytest.mark.parametrize(("typed", "name"), [("the storage team", "the storage team"), ("", "no owner yet")])
def test_an_owner_may_be_somebody_else_or_nobody_yet(tmp_path, typed, name):
    _, found = sat(tmp_path, *WHOLE[:-5], "Fix it", typed, "14d", "", "y")
    [item] = found["actions"]
    assert (item["owner"], item["name"], item["due"]) == (typed, name, "2026-03-15")


def test_nothing_is_a_duration_and_a_share(tmp_path):
    typed = [*WHOLE[:3], "0", *WHOLE[4:]]
    _, found = sat(tmp_path, *typed)
    [question] = [each for each in found["runs"][0]["questions"] if each["name"] == "stop"]
    assert [(each["answer"], each["came"]) for each in question["answers"]] == [("0s", "surprise"), ("30s", "surprise")]


def test_after_a_run_each_prediction_stands_beside_what_happened(tmp_path):
    """As on the page: the verdict first, and what broke."""
    sitting, found = sat(tmp_path, *WHOLE)
    after = sitting.text.partition("It runs now.")[2].partition("Step 3")[0]
    [leader, stop] = found["runs"][0]["questions"]
    assert f"  {found['runs'][0]['verdict']}  first" in after
    for question in (leader, stop):
        for each in question["answers"]:
            assert f"{each['name']} predicted {each['answer']}: {each['came']}" in after
    assert {each["came"] for each in stop["answers"]} == {"right", "surprise"}


def test_no_is_a_no_go(tmp_path):
    sitting, found = sat(tmp_path, "n", "y")
    assert found["outcome"] == "no-go"
    assert "NO-GO: Nobody deploys: Ada says no" in sitting.text


def test_a_resumed_day_says_that_it_goes_on_and_how_to_stop(tmp_path):
    plan = planned(tmp_path)
    sitting = Sitting(plan)
    lead = Terminal(plan, sitting.say, sitting.ask, resume="x", today=lambda: TODAY, resumed=True)
    lead.welcome()
    assert "continues where it stopped" in sitting.text
    assert "Ctrl-C stops the day again" in sitting.text


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


NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NAMES = ("killed", "slow-follower", "first", "disk")


def tree(room, audience=Audience.OPERATOR):
    return json.loads(room.since(audience, None).data)


class Leading:
    """A day that is led on a page alone: `clicks` are labels of buttons, or texts that are typed there."""

    def __init__(self, plan, *clicks):
        self.room, self.left, self.questions, self.watched = Room(now=lambda: NOON), list(clicks), [], []
        terminal = Terminal(plan, self.say, self.ask, resume="x", today=lambda: TODAY)
        self.lead = OnPage(plan, self.room, terminal)

    def say(self, line, style=""):
        if style == TROUBLE:
            self.lead.trouble = line.strip()

    def ask(self, prompt):
        answers = []
        expected = self.lead.expected
        with self.room.asking(
            expected.text or prompt.strip(),
            expected.for_all,
            expected.choices,
            answers.append,
            hint=expected.hint,
            trouble=self.lead.trouble,
        ):
            question = tree(self.room)["question"]
            self.questions.append(question)
            self.watched.append(tree(self.room, Audience.TRAINEE))
            if not self.left:
                raise KeyboardInterrupt
            said = self.left.pop(0)
            buttons = {each["label"]: each["answer"] for each in question["choices"]}
            assert said in buttons or not buttons, f"{said!r} is none of {list(buttons)}"
            assert self.room.answer(question["id"], buttons.get(said, said))
        return answers[0]


CLICKS = (
    *("Yes", "Yes"),  # nobody deploys; #sre is told
    *("another", "2s", "same", "30s", "Go", "It took two seconds", "Go on"),  # predictions, go, notes, pause
    *("No prediction", "", "No prediction", "", "Yes", "Go", "none"),  # no predictions; #dba is told, go, notes
    *("Alert on commit times", "grace", "14d", "", "Yes"),  # an action item, no more, #sre is told
)


def led(tmp_path, *clicks, **changes):
    plan = planned(tmp_path, **changes)
    leading = Leading(plan, *clicks)
    leading.lead.opens({})
    return leading, whole_day(plan, folder_of(tmp_path), lead=leading.lead)


def test_a_day_can_be_led_on_the_page_alone(tmp_path):
    leading, found = led(tmp_path, *CLICKS)
    assert leading.left == []
    assert found["outcome"] == "done"
    assert [run["notes"] for run in found["runs"]] == ["It took two seconds", "none"]
    [item] = found["actions"]
    assert (item["what"], item["owner"], item["due"]) == ("Alert on commit times", "grace", "2026-03-15")
    said = tree(leading.room)
    assert said["question"] is None
    assert [(each["who"], each["answer"]) for each in said["predictions"]] == [
        ("Ada", "another"),
        ("Ada", "2s"),
        ("Grace", "same"),
        ("Grace", "30s"),
    ]


def test_skip_and_end_are_buttons_that_say_what_the_terminal_would(tmp_path):
    leading, found = led(tmp_path, *CLICKS[:6], "Skip it", *CLICKS[9:14], "End the day here", "", "Yes")
    assert leading.left == []
    assert [run["state"] for run in found["runs"]] == ["skipped", "not run"]


def test_the_lead_is_told_what_is_wrong_with_an_answer(tmp_path):
    leading, _ = led(tmp_path, *CLICKS[:3], "soon", *CLICKS[3:])
    again = leading.questions[4]
    assert leading.questions[3]["trouble"] == ""
    assert "soon" in again["trouble"]
    assert again["text"] == leading.questions[3]["text"]
    assert leading.questions[5]["trouble"] == "", "of another question"


@pytest.mark.lie
def test_who_watches_reads_no_experiment_and_what_was_predicted(tmp_path):
    leading, _ = led(tmp_path, *CLICKS)
    leading.watched.append(tree(leading.room, Audience.TRAINEE))
    for each in leading.watched:
        assert [name for name in NAMES if name in json.dumps(each)] == []
        assert each["question"] is None or each["question"]["choices"] == []
    assert len(leading.watched[-1]["predictions"]) == 4
    assert "Go or no-go for experiment 1 of 2" in [each["question"]["text"] for each in leading.watched[:-1]]


def test_what_the_scribe_wrote_on_the_page_is_in_the_notes_of_the_run(tmp_path):
    plan = planned(tmp_path)
    leading = Leading(plan, *CLICKS)
    leading.lead.opens({})
    plays = Plays()

    def play(run, folder):
        leading.room.write("scribe", f"seen in {run.name}", watchers=False)
        return plays(run, folder)

    found = whole_day(plan, folder_of(tmp_path), lead=leading.lead, plays=play)
    notes = [run["notes"] for run in found["runs"]]
    assert notes == [
        "12:00:00 UTC scribe: seen in first; It took two seconds",
        "12:00:00 UTC scribe: seen in second; none",
    ]


def test_a_resumed_day_shows_what_was_predicted_and_ran_before(tmp_path):
    plan, folder = planned(tmp_path), folder_of(tmp_path)
    with begin(plan, folder) as journal:
        first = Leading(plan, *CLICKS[:9])
        with pytest.raises(KeyboardInterrupt):
            conduct(plan, journal, first.lead, Plays(), lambda _: (True, "fine"))
        done = dict(journal.done)
    second = Leading(plan, *CLICKS[9:])
    second.lead.opens(done)
    shown = tree(second.room)
    assert [run["verdict"] for run in shown["runs"]] == ["PASS", ""]
    for audience in Audience:
        assert [run["title"] for run in tree(second.room, audience)["runs"]] == [
            "The leader was killed",
            "experiment 2",
        ]
    assert [each["measured"] for each in shown["predictions"][:2]] == ["another: consul-2", "2.0s"]
    assert resumed(plan, folder, lead=second.lead)["outcome"] == "done"


def test_the_day_is_the_same_whether_or_not_somebody_has_the_page_open(tmp_path):
    """The page is a face: outcome and answers are those of the same words at a terminal."""
    leading, found = led(tmp_path, *CLICKS)
    plan, folder = planned(tmp_path), folder_of(tmp_path, "again")
    typed = iter([question_answer(q, click) for q, click in zip(leading.questions, CLICKS, strict=True)])
    lead = Terminal(plan, lambda *_: None, lambda _: next(typed), resume="x", today=lambda: TODAY)
    with begin(plan, folder) as journal:
        conduct(plan, journal, lead, Plays(), lambda _: (True, "as it must be"))
        again = outcome_of(plan, journal)
    assert again["runs"] == found["runs"]


def question_answer(question, click):
    return {each["label"]: each["answer"] for each in question["choices"]}.get(click, click)


# a line from the terminal or from the page


class Both:
    """An `Asker` with a pipe for a terminal, whose other end is `typed`."""

    def __init__(self):
        self.room, (reads, self.typed) = Room(), os.pipe()
        self.asker = Asker(self.room, stdin=reads)

    def type(self, text):
        os.write(self.typed, text.encode())

    def ask(self, prompt="Go? ", on_page=None):
        """`on_page`: what the page answers once it is asked."""

        def asked():
            question = tree(self.room)["question"]
            if question is not None and on_page is not None:
                self.room.answer(question["id"], on_page)

        self.room.on_change = asked
        return self.asker.ask(prompt, Expected("Go?", "go?"))


@pytest.fixture
def both(capsys):
    del capsys
    return Both()


def test_a_line_that_is_typed_answers(both):
    both.type("yes\n")
    assert both.ask() == "yes"
    assert tree(both.room)["question"] is None


def test_lines_that_came_at_once_answer_one_question_each(both):
    both.type("one\ntwo\nthr")
    assert [both.ask(), both.ask()] == ["one", "two"]
    both.type("ee\n")
    assert both.ask() == "three"


def test_the_page_answers_and_the_terminal_says_so(both, capsys):
    assert both.ask(on_page="e") == "e"
    assert "answered on the page" in capsys.readouterr().out


def test_a_line_about_a_person_is_shown_above_the_open_question_once(both, capsys):
    both.asker.tell("  Grace has answered")
    both.asker.tell("  Ada has \x1b[2Janswered")
    both.type("yes\n")
    assert both.ask() == "yes"
    said = capsys.readouterr().out
    assert said.count("Grace has answered") == 1
    assert said.index("Grace has answered") < said.rindex("Go?")
    assert "\x1b[2J" not in said


def test_a_question_that_needs_no_answer_any_more_ends_by_itself(both):
    people = ["ada"]

    def answers():
        if people and tree(both.room)["question"] is not None:
            both.asker.tell(f"{people.pop()} has answered")

    both.room.on_change = answers
    assert both.asker.ask("Enter?", Expected("Enter?", "all?", is_over=lambda: not people)) == ""
    assert tree(both.room)["question"] is None


def test_an_answer_of_the_page_that_lost_answers_no_other_question(both):
    both.type("typed\n")
    assert both.ask() == "typed"
    both.asker._answered("a moment too late")
    both.type("typed again\n")
    assert both.ask() == "typed again"


@pytest.mark.lie
def test_what_was_typed_while_the_page_answered_answers_no_other_question():
    ours, theirs = pty.openpty()
    both = Both()
    both.asker = Asker(both.room, stdin=theirs)
    os.write(ours, b"typed\nmore\n")
    assert both.ask(on_page="e") == "e"
    os.write(ours, b"for the next one\n")
    assert both.ask() == "for the next one"
    os.close(ours)
    os.close(theirs)


def test_where_there_is_no_terminal_the_page_leads_alone(both):
    os.close(both.typed)
    assert both.ask(on_page="s") == "s"
    assert both.ask(on_page="e") == "e"


def test_a_line_without_its_end_counts_when_the_pipe_ends(both):
    both.type("last")
    os.close(both.typed)
    assert both.ask() == "last"


def test_a_terminal_that_is_closed_stops_the_day():
    """As without a page: Ctrl-D says that nobody is there."""
    ours, theirs = pty.openpty()
    asker = Asker(Room(), stdin=theirs)
    os.write(ours, b"\x04")
    with pytest.raises(KeyboardInterrupt):
        asker.ask("Go?", Expected())
    os.close(ours)
    os.close(theirs)


def test_what_is_no_text_is_asked_again(both, capsys):
    os.write(both.typed, b"\xff\xfe\nyes\n")
    assert both.ask() == "yes"
    assert "not text" in capsys.readouterr().out
