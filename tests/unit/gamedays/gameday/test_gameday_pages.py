"""The reports of a day: everything is in each of them, and nothing that people or clusters wrote becomes markup."""

import json
import re
from html.parser import HTMLParser

import pytest

from game_days import DAY, HOSTILE, Plays, Script, folder_of, planned, result, whole_day
from hashidrill.core.errors import UsageError
from hashidrill.gamedays.gameday.report import checklist, html, markdown, prediction_rows, write_reports

ACTION = {"what": "Alert on commit times", "owner": "grace", "due": "2026-04-01"}
PREDICTIONS = {("first", "ada", "stop"): 30.0, ("first", "grace", "leader"): "another"}


class Tags(HTMLParser):
    """The tags of a page and their attributes, as a browser sees them."""

    def __init__(self, page):
        super().__init__()
        self.found, self.said = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said += data

    @property
    def text(self):
        return " ".join(self.said.split())


@pytest.fixture
def found(tmp_path):
    lead = Script(predictions=PREDICTIONS, actions=[ACTION])
    return whole_day(planned(tmp_path), folder_of(tmp_path), lead=lead, plays=Plays(second=["INVALID", "FAIL"]))


FACTS = (
    "FAIL",
    "A day",
    "See an election",
    "2 of 2 experiments ran: 1 PASS, 1 FAIL",
    "2 predictions, 1 surprise",
    "How long do writes stop?",
    "30s",
    "2.0s",
    "Who leads afterwards?",
    "another: consul-2",
    "seen: first",
    "What is our multiplier?",
    "Alert on commit times",
    "2026-04-01",
    "second FAILED",
    "2026-03-08",
    "Nobody deploys",
    "It begins",
    "lead: Ada",
    "an earlier attempt was INVALID",
    "Grace",
)


@pytest.mark.parametrize("fact", FACTS)
def test_each_fact_of_the_day_is_on_the_page_and_in_markdown(found, fact):
    assert fact in Tags(html(found)).text
    assert fact in re.sub(r"\\([\\`*_\[\]|~])", r"\1", markdown(found))


def test_a_day_without_predictions_says_so(tmp_path):
    found = whole_day(planned(tmp_path), folder_of(tmp_path))
    assert "No predictions were made." in Tags(html(found)).text
    assert "No predictions were made." in markdown(found)


def test_a_question_that_nobody_answered_takes_one_row_and_one_that_somebody_did_a_row_for_each(found):
    rows = [row[:2] for row in prediction_rows(found["runs"][0])]
    assert rows == [
        ("Who leads afterwards?", "Ada"),
        ("Who leads afterwards?", "Grace"),
        ("How long do writes stop?", "Ada"),
        ("How long do writes stop?", "Grace"),
    ]
    assert {row[1:3] for row in prediction_rows(found["runs"][1])} == {("nobody", "\N{EN DASH}")}


def test_an_aborted_day_and_a_no_go_say_so_at_the_top(tmp_path):
    aborted = whole_day(planned(tmp_path, abort={"failed": 1}), folder_of(tmp_path), plays=Plays(first=["FAIL"]))
    assert "1 of the runs ended as FAIL; the day ends after 1" in Tags(html(aborted)).text
    assert "FAIL (aborted)" in Tags(html(aborted)).text
    no_go = whole_day(planned(tmp_path), folder_of(tmp_path, "b"), lead=Script(confirms=False))
    for page in (Tags(html(no_go)).text, markdown(no_go)):
        assert "No-go: a check before the day did not hold, so nothing was started." in page
        assert "NO-GO: Nobody deploys" in page


def test_an_interrupted_run_is_named(tmp_path, found):
    found["interrupted"] = [
        {"step": "run:first:1", "recording": "runs/000-first"},
        {"step": "run:a:2", "recording": ""},
    ]
    for page in (Tags(html(found)).text, markdown(found)):
        assert "first was interrupted and does not count: runs/000-first" in page
        assert "a was interrupted and does not count; it left no recording" in page


def hostile_day(tmp_path):
    people = {"ada": {"role": "lead", "name": HOSTILE[:100]}, "b": {"role": "observer", "name": "x" * 120}}
    plan = planned(
        tmp_path,
        people=people,
        goals=[HOSTILE],
        on_failure={"owner": "ada"},
        metadata={"name": "a-day", "title": HOSTILE, "why": HOSTILE * 20},
        questions={"stop": DAY["questions"]["stop"] | {"ask": HOSTILE}},
        messages=[{"when": "start", "to": HOSTILE, "say": HOSTILE}],
        before=[{"confirm": HOSTILE}],
        experiments=[{"experiment": "raft/killed-leader", "name": "first", "discuss": [HOSTILE], "watch": HOSTILE}],
    )
    planted = result("FAIL", reasons=[HOSTILE, "\x1b[31mred\x00"], passed=[HOSTILE])
    planted["expectations"] = [{"title": HOSTILE, "finding": "broken", "text": HOSTILE + "\x07"}]
    planted["measured"]["stop"]["text"] = HOSTILE
    planted["figures"] = [[HOSTILE] * 7]
    lead = Script(predictions={("first", "ada", "stop"): 1e9}, actions=[ACTION | {"what": HOSTILE, "owner": "ada"}])
    lead.notes = lambda *_: HOSTILE * 100
    return whole_day(plan, folder_of(tmp_path), lead=lead, plays=Plays(first=[planted]))


def test_nothing_that_anybody_wrote_becomes_markup(tmp_path):
    found = hostile_day(tmp_path)
    page = Tags(html(found))
    tags = [tag for tag, _ in page.found]
    assert tags.count("script") == 0
    assert "<script>alert(1)</script>" in page.text  # as text, to be read
    assert not [name for _, attributes in page.found for name in attributes if name.startswith("on")]
    written = re.sub(r"`[^`]*`", "", markdown(found))  # what is code stays as it is, and is no markup there
    assert "<script>" not in written
    assert "**bold**" not in written
    assert not re.search(r"@\w", written)
    for text in (str(html(found)), written, checklist(found)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)


def test_a_page_that_did_not_escape_would_be_caught(tmp_path):
    """Planted: the same look at a page into which a name got as it is."""
    page = "<script>".join(str(html(hostile_day(tmp_path))).rsplit("&lt;script&gt;", 1))
    assert [tag for tag, _ in Tags(page).found].count("script") == 1


def test_the_page_asks_the_network_for_nothing_and_links_to_the_runs(found):
    page = Tags(html(found))
    links = [attributes["href"] for tag, attributes in page.found if "href" in attributes]
    assert links == ["runs/000-first/report.html", "runs/002-second/report.html"]
    assert not [tag for tag, attributes in page.found if "src" in attributes]
    [policy] = [each["content"] for tag, each in page.found if tag == "meta" and "http-equiv" in each]
    assert policy.startswith("default-src 'none'")


def test_a_recording_elsewhere_is_no_link(found):
    found["runs"][0]["recording"] = "javascript:alert(1)"
    assert "javascript:alert(1)/report.html" not in str(html(found))


def test_action_items_are_a_task_list_and_json(tmp_path, found):
    assert "- [ ] Alert on commit times (Grace, due 2026-04-01)" in checklist(found)
    folder = folder_of(tmp_path, "written")
    write_reports(found, folder)
    assert json.loads((folder / "actions.json").read_text())[0]["owner"] == "grace"
    assert json.loads((folder / "report.json").read_text()) == found
    assert (folder / "actions.md").read_text() == checklist(found)
    names = {*(f"report.{kind}" for kind in ("html", "md", "json")), "actions.json", "actions.md"}
    assert {path.name for path in folder.iterdir()} == names
    assert "No action items." in checklist(found | {"actions": []})


def test_a_report_that_cannot_be_written_is_said(tmp_path, found):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_reports(found, tmp_path / "file")
