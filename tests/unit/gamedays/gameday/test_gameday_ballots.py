"""People predict on pages of their own: nobody reads an answer before all are shown, and nobody answers for another."""

import datetime as dt
import json

import pytest

from game_days import Plays, begin, fits, folder_of, planned
from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Audience
from hashidrill.gamedays.gameday.conduct import conduct
from hashidrill.gamedays.gameday.journal import DayJournal
from hashidrill.gamedays.gameday.leads import OnPage, Terminal
from hashidrill.gamedays.gameday.report import html, markdown, outcome_of
from hashidrill.gamedays.warroom.ballot import RefusedError
from hashidrill.gamedays.warroom.room import Room

ADA, GRACE = {"leader": "another", "stop": "2s"}, {"leader": "same", "stop": "30s"}
ANSWERS = ("another", "2s", "same", "30s")
WAITS = "Enter shows the answers"


class Table:
    """A day whose people have pages. `acts`: what happens at each prompt, in turn: a text that the lead types, or a
    function of the table that returns one; None leaves the prompt to a ballot that is complete.
    """

    def __init__(self, tmp_path, *acts, folder=None, **changes):
        self.plan, self.room, self.acts = planned(tmp_path, **changes), Room(), list(acts)
        self.lines, self.watched = [], []
        self.folder = folder or folder_of(tmp_path)

    def play(self, *, resume=False, plays=None):
        opened = DayJournal.resume(self.folder) if resume else begin(self.plan, self.folder)
        with opened as self.journal:
            if resume:
                self.journal.session(unattended=False)
            terminal = Terminal(self.plan, self.say, self.ask, resume="x", today=lambda: dt.date(2026, 3, 1))
            self.lead = OnPage(self.plan, self.room, terminal, keep=self.journal.finish)
            self.lead.heard = self.lines.append
            self.lead.opens(self.journal.done)
            conduct(self.plan, self.journal, self.lead, plays or Plays(), fits)
            return outcome_of(self.plan, self.journal)

    def say(self, line, style=""):
        del style
        self.lines.append(line)

    def ask(self, prompt):
        self.lines.append(prompt)
        if not self.acts:
            raise KeyboardInterrupt
        act = self.acts.pop(0)
        typed = act(self) if callable(act) else act
        self.watched.append(self.seen())
        assert typed is not None or self.lead.expected.is_over()
        return typed or ""

    def seen(self):
        """What any page or terminal could show now."""
        pages = [self.room.since(audience, None).data for audience in Audience]
        return "\n".join([*pages, *self.lines])

    def page(self, audience=Audience.TRAINEE):
        return json.loads(self.room.since(audience, None).data)

    def refused(self, person, answers, run=1):
        with pytest.raises(RefusedError) as refused:
            self.room.ballot.give(person, run, answers)
        return refused.value.status, str(refused.value)

    @property
    def text(self):
        return "\n".join(self.lines)


def answers(person, texts, run=1, *, typed=None):
    """That person's page sends this."""

    def act(table):
        table.room.ballot.give(person, run, texts)
        return typed

    return act


BEFORE = ("y", "y")
AFTER = ("", "", "", "", "y", "", "", "", "y")
"""From the first go on: notes, pause, nobody predicts the second run, message, go, notes, no action item, message."""


def test_answers_are_shown_together_once_all_have_answered(tmp_path):
    table = Table(tmp_path, *BEFORE, answers("grace", GRACE, typed="x"), answers("ada", ADA), *AFTER)
    found = table.play()
    assert table.acts == []
    assert "Grace has answered (not yet: Ada)" in table.text
    assert "Ada has answered (that is everybody)" in table.text
    assert "Who leads afterwards? Ada: another; Grace: same" in table.text
    said = [[(each["name"], each["answer"]) for each in q["answers"]] for q in found["runs"][0]["questions"]]
    assert said == [[("Ada", "another"), ("Grace", "same")], [("Ada", "2s"), ("Grace", "30s")]]
    assert {each["answer"] for each in table.page()["predictions"]} == set(ANSWERS)


@pytest.mark.lie
def test_nobody_reads_an_answer_before_all_are_shown(tmp_path):
    """Neither on a page nor at the terminal, which both say who has answered."""
    table = Table(tmp_path, *BEFORE, answers("grace", {"stop": "37s", "leader": "nobody"}, typed="x"), "", *AFTER)
    table.play()
    *secret, shown = table.watched[2:5]
    for seen in secret:
        assert "Grace has answered" in seen
        assert "37s" not in seen
        assert '"predictions":[]' in seen
    assert "Grace: 37s" in shown


@pytest.mark.lie
def test_who_answers_after_the_others_are_shown_is_late_and_does_not_count(tmp_path):
    def late(table):
        assert table.room.ballot.give("ada", 1, ADA)
        return ""

    table = Table(tmp_path, *BEFORE, answers("grace", GRACE, typed=""), "", late, *AFTER[2:])
    found = table.play()
    assert "Ada has answered late: it does not count" in table.text
    came = {each["name"]: each["came"] for q in found["runs"][0]["questions"] for each in q["answers"]}
    assert came["Ada"] == "late"
    assert {"name": "Ada"} not in [{"name": each["name"]} for each in found["surprises"]]
    for page in (html(found), markdown(found)):
        assert "late: does not count" in page
        assert "2 predictions, 2 surprises" in page
    assert "2s (late)" in [each["answer"] for each in table.page()["predictions"]]


@pytest.mark.parametrize(
    ("texts", "status", "said"),
    [
        ({"stop": "2"}, 400, "How long do writes stop? '2' has no unit"),
        ({"leader": "consul-1"}, 400, "Who leads afterwards? 'consul-1': answer one of same, another, nobody"),
        ({"leader": " "}, 400, "answer one question or more first"),
        ({"nothing": "x"}, 400, "answer one question or more first"),
    ],
)
def test_a_wrong_answer_is_one_message_and_can_be_sent_again(tmp_path, texts, status, said):
    def sends(table):
        assert table.refused("grace", texts)[0] == status
        assert said in table.refused("grace", texts)[1]
        table.room.ballot.give("grace", 1, GRACE)
        return ""

    table = Table(tmp_path, *BEFORE, sends, *AFTER)
    assert [each["answer"] for each in table.play()["runs"][0]["questions"][1]["answers"]] == ["", "30s"]


@pytest.mark.lie
def test_the_first_answer_of_two_tabs_counts(tmp_path):
    def twice(table):
        table.room.ballot.give("grace", 1, GRACE)
        assert table.refused("grace", ADA) == (
            409,
            "you have answered already, maybe in another tab: the first answer counts",
        )
        assert table.room.ballot.mine("grace") == GRACE
        assert table.room.ballot.mine("ada") is None
        return ""

    table = Table(tmp_path, *BEFORE, twice, *AFTER)
    assert table.play()["runs"][0]["questions"][1]["answers"][1]["answer"] == "30s"


def test_an_experiment_that_ran_takes_no_answers(tmp_path):
    def too_late(table):
        table.lead.ran(table.plan.runs[0], Plays()(table.plan.runs[0], table.folder / "x"))
        assert table.refused("ada", ADA)[0] == 409
        assert table.refused("ada", ADA, run=2)[0] == 409
        assert table.page()["ballot"] is None
        return ""

    Table(tmp_path, *BEFORE, "", "", too_late, *AFTER[2:]).play()


def test_the_lead_types_for_a_person_without_a_page(tmp_path):
    table = Table(tmp_path, *BEFORE, "nobody", "grace", "same", "30s", "grace", "Ada", "another", "", *AFTER)
    found = table.play()
    assert "press Enter, or type the name of a person without answers: ada, grace" in table.text
    assert "press Enter, or type the name of a person without answers: ada" in table.text
    assert [each["answer"] for each in found["runs"][0]["questions"][1]["answers"]] == ["", "30s"]


def test_a_person_who_leaves_without_an_answer_is_named_once(tmp_path):
    def leave(table):
        table.room.left("grace")
        answers("ada", ADA)(table)
        table.room.left("ada")
        return ""

    table = Table(tmp_path, *BEFORE, leave, *AFTER)
    table.play()
    assert table.text.count("closed the page without answering; the page's address still works") == 1
    assert "Grace closed the page" in table.text


@pytest.mark.lie
def test_an_answer_is_on_disk_before_it_is_acknowledged_and_stays_secret_in_the_resumed_day(tmp_path):
    first = Table(tmp_path, *BEFORE, answers("grace", GRACE, typed="x"))
    with pytest.raises(KeyboardInterrupt):
        first.play()
    assert "30s" not in first.seen()
    second = Table(tmp_path, answers("ada", ADA), *AFTER, folder=first.folder)
    found = second.play(resume=True)
    assert second.acts == []
    assert "30s" not in second.watched[0].partition("The answers")[0]
    assert [each["answer"] for each in found["runs"][0]["questions"][1]["answers"]] == ["2s", "30s"]


def test_an_answer_that_cannot_be_kept_is_not_acknowledged(tmp_path):
    def full(table):
        def fail(step, result):
            raise UsageError("the disk is full")

        table.lead._keep = fail
        table.room.ballot._keep = lambda *_: fail("", {})
        assert table.refused("grace", GRACE) == (503, "your answer could not be kept: the disk is full")
        assert table.room.ballot.waiting == ["ada", "grace"]
        return ""

    Table(tmp_path, *BEFORE, full, *AFTER).play()
