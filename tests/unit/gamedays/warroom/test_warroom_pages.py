"""The server of the page, called without a network: who may ask for what, and what a stream holds."""

import asyncio
import datetime as dt
import json
import re

import pytest

from hashidrill.core.protocols.events import Audience, Note
from hashidrill.core.units import Duration
from hashidrill.gamedays.warroom.ballot import Ballot, BallotQuestion
from hashidrill.gamedays.warroom.room import Room
from hashidrill.gamedays.warroom.serving import (
    HEADERS,
    LATE,
    LEAD,
    LONGEST_BODY,
    MOST_STREAMS,
    MOST_TABS,
    NOT_OURS,
    NOTED,
    WATCHER,
    Guard,
    Pages,
    Visitor,
)

PORT = 8800
OURS = f"http://127.0.0.1:{PORT}"
ABSENT = object()
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class Site:
    """A room and its pages; what the buttons did is in `pressed`."""

    def __init__(self):
        self.pressed = []
        self.room = Room(interrupt=lambda: self.pressed.append("stop"), now=lambda: NOON)
        self.guard = Guard(PORT)
        self.pages = Pages(self.room, self.guard)
        self.lead, self.watch = self.guard.tokens[LEAD], self.guard.tokens[WATCHER]

    def ask(self, path, method="GET", body=b"", **headers):
        """(status, headers, body) of one request."""
        said = {"host": f"127.0.0.1:{PORT}"}
        if method == "POST":
            said |= {"origin": OURS, "content-type": "application/json"}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(n.encode(), v.encode()) for n, v in said.items() if v is not ABSENT],
            "server": ("127.0.0.1", PORT),
            "client": ("127.0.0.1", 50000),
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(self._asked(scope, data))

    async def _asked(self, scope, data):
        sent, given = [], [{"type": "http.request", "body": data, "more_body": False}]

        async def receive():
            return given.pop() if given else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(self.pages(scope, receive, send), 20)
        start = sent[0]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, b"".join(each.get("body", b"") for each in sent[1:])

    def stream(self, token, after=None, **headers):
        """The messages of a stream to its end: (event, id, data)."""
        self.room.over()
        query = "" if after is None else f"?after={after}"
        status, _, body = self.ask(f"/{token}/events{query}", **headers)
        assert status == 200
        return [
            (found[2], int(found[1]), json.loads(found[3]))
            for found in re.finditer(r"id: (\d+)\nevent: (\w+)\ndata: (.*)\n\n", body.decode())
        ]


@pytest.fixture
def site():
    return Site()


# what is served


def test_the_page_and_its_files_are_there_with_either_token_and_with_no_other(site):
    for name, kind in (("", "text/html"), ("warroom.css", "text/css"), ("warroom.js", "text/javascript")):
        for token in (site.lead, site.watch):
            status, headers, body = site.ask(f"/{token}/{name}")
            assert status == 200
            assert headers["content-type"].startswith(kind)
            assert body
        for token in ("", "x", site.lead[:-1], site.lead + "x", "é" * 30):
            assert site.ask(f"/{token}/{name}")[0] == 404
    assert site.ask(f"/{site.lead}/../room.py")[0] == 404
    assert site.ask("/favicon.ico")[0] == 404


def test_every_answer_forbids_what_the_page_does_not_need(site):
    for path in (f"/{site.lead}/", "/", f"/{site.lead}/nothing"):
        _, headers, _ = site.ask(path)
        assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_names_no_other_server_and_has_no_script_of_its_own(site):
    for name in ("", "page.css", "warroom.css", "warroom.js", "charts.js"):
        text = site.ask(f"/{site.lead}/{name}")[2].decode()
        assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {"http://www.w3.org/2000/svg"}
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick="):
            assert sink not in text


# who may ask


WRONG = {
    "a site whose name was made to resolve to the loopback": {"host": f"evil.example:{PORT}"},
    "a name without our port": {"host": "127.0.0.1"},
    "another port": {"host": "127.0.0.1:80"},
    "no host": {"host": ABSENT},
    "a page of another site": {"origin": "https://evil.example"},
    "a page on another port of this machine": {"origin": "http://127.0.0.1:9000"},
    "a sandboxed page": {"origin": "null"},
    "what a browser says is from elsewhere": {"sec_fetch_site": "cross-site"},
    "what a browser says is from another port": {"sec_fetch_site": "same-site"},
}


@pytest.mark.lie
@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("what", ["", "events", "stop"])
def test_with_the_right_token_it_is_still_refused(site, what, headers):
    site.room.begins("x")
    status, _, body = site.ask(f"/{site.lead}/{what}", "POST" if what == "stop" else "GET", b"{}", **headers)
    assert status == 403
    assert site.lead.encode() not in body
    assert site.pressed == []


FORGED = {
    "a form": {"content_type": "application/x-www-form-urlencoded"},
    "a form of plain text": {"content_type": "text/plain"},
    "no type": {"content_type": ABSENT},
    "no origin, as from an old browser's form": {"origin": ABSENT},
}


@pytest.mark.lie
@pytest.mark.parametrize("headers", FORGED.values(), ids=FORGED)
def test_what_changes_anything_comes_as_json_from_the_page_alone(site, headers):
    site.room.begins("x")
    assert site.ask(f"/{site.lead}/stop", "POST", b"{}", **headers)[0] == 403
    assert site.pressed == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_but_a_post_presses_a_button(site, method):
    site.room.begins("x")
    assert site.ask(f"/{site.lead}/stop", method, b"{}")[0] in {403, 404, 405}
    assert site.pressed == []


def test_a_name_that_a_tunnel_gives_it_is_known(site):
    assert site.ask(f"/{site.lead}/", host=f"localhost:{PORT}")[0] == 200
    assert (
        site.ask(
            f"/{site.lead}/note", "POST", {"text": "x"}, host=f"localhost:{PORT}", origin=f"http://localhost:{PORT}"
        )[0]
        == 200
    )


# the buttons


def test_the_stop_button_interrupts_a_run_once(site):
    assert site.ask(f"/{site.lead}/stop", "POST", {})[0] == 409, "nothing runs"
    site.room.begins("x")
    assert site.ask(f"/{site.lead}/stop", "POST", {})[0] == 200
    assert site.ask(f"/{site.lead}/stop", "POST", {})[0] == 409, "a second Ctrl-C would do more than the first"
    assert site.pressed == ["stop"]


def test_who_watches_can_press_no_button(site):
    site.room.begins("x")
    answers = []
    with site.room.asking("go?", "go or no-go?", [("Go", "")], answers.append):
        for name, body in (("stop", {}), ("answer", {"question": 1, "answer": ""}), ("note", {"text": "x"})):
            assert site.ask(f"/{site.watch}/{name}", "POST", body)[0] == 403
    assert (site.pressed, answers) == ([], [])


@pytest.mark.lie
def test_a_question_is_answered_once_whoever_is_first(site):
    answers = []
    with site.room.asking("Start it?", "go or no-go?", [("Go", ""), ("End", "e")], answers.append):
        said = {"question": 1, "answer": "e"}
        assert site.ask(f"/{site.lead}/answer", "POST", said | {"question": 2})[0] == 409
        assert site.ask(f"/{site.lead}/answer", "POST", said)[0] == 200
        assert site.ask(f"/{site.lead}/answer", "POST", said | {"answer": ""})[0] == 409
    assert answers == ["e"]
    with site.room.asking("Start the next?", "go or no-go?", [], answers.append):
        assert site.ask(f"/{site.lead}/answer", "POST", said)[0] == 409, "an answer to the question before"
    assert site.ask(f"/{site.lead}/answer", "POST", said)[0] == 409
    assert answers == ["e"]


def test_an_answer_is_one_line_whatever_is_sent(site):
    answers = []
    with site.room.asking("Notes?", "", [], answers.append):
        site.ask(f"/{site.lead}/answer", "POST", {"question": 1, "answer": "a\nb\x1b[2J" + "c" * 9000})
    assert "\n" not in answers[0]
    assert "\x1b" not in answers[0]
    assert len(answers[0]) < 4100


BROKEN = [
    b"",
    b"[]",
    b"{",
    b'{"question": "1", "answer": ""}',
    b'{"question": 1}',
    b"[" * 9000,
    b'{"question": 1, "answer": "' + b"x" * LONGEST_BODY + b'"}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_what_the_page_would_not_send_is_refused(site, body):
    answers = []
    with site.room.asking("go?", "", [], answers.append):
        assert site.ask(f"/{site.lead}/answer", "POST", body)[0] == (413 if len(body) > LONGEST_BODY else 400)
    assert answers == []


def test_a_note_is_in_the_log_of_the_lead_and_of_others_only_if_it_is_meant_for_them(site):
    site.ask(f"/{site.lead}/note", "POST", {"text": "it is the disk"})
    site.ask(f"/{site.lead}/note", "POST", {"text": "writes are slow", "watchers": True})
    assert site.ask(f"/{site.lead}/note", "POST", {"text": "  "})[0] == 400
    seen = {token: site.stream(token)[0][2]["data"]["log"] for token in (site.lead, site.watch)}
    assert [line["text"] for line in seen[site.lead]] == ["it is the disk", "writes are slow"]
    assert [line["text"] for line in seen[site.watch]] == ["writes are slow"]
    assert site.room.take_notes() == ["12:00:00 UTC scribe: it is the disk", "12:00:00 UTC scribe: writes are slow"]
    assert site.room.take_notes() == []


# the stream


def texts(messages):
    """The lines of the log that a stream brought, as a page has them."""
    lines = []
    for event, _, said in messages:
        if event == "whole":
            lines = [line["text"] for line in said["data"]["log"]]
        else:
            lines += [value["text"] for path, value in said["data"] if path[0] == "log"]
    return lines


def test_a_page_that_comes_back_gets_what_it_lacks_and_nothing_twice(site):
    site.room.begins("x")
    for number in range(5):
        site.room.tell(Note(text=f"line {number}"))
    have = site.room.since(Audience.OPERATOR, None).number
    for number in range(5, 8):
        site.room.tell(Note(text=f"line {number}"))
    for headers in ({"after": have}, {"last_event_id": str(have)}, {"after": 1, "last_event_id": str(have)}):
        messages = site.stream(site.lead, **headers)
        assert [event for event, *_ in messages] == ["changes"]
        assert texts(messages) == ["line 5", "line 6", "line 7"]


@pytest.mark.parametrize("odd", ["x", "-1", "1e3", "٣", "9" * 40, "9" * 14, " "])
def test_a_page_that_says_it_has_what_nobody_sent_gets_everything(site, odd):
    site.room.tell(Note(text="line"))
    messages = site.stream(site.lead, last_event_id=odd) if odd.isascii() else site.stream(site.lead)
    assert messages[0][0] == "whole"


def test_a_stream_ends_when_the_room_is_over_and_has_said_so(site):
    messages = site.stream(site.watch)
    assert messages[-1][2]["data"]["over"] is not None


def test_more_streams_than_any_game_day_has_are_refused(site):
    site.pages.streams |= dict.fromkeys((LEAD, WATCHER), MOST_STREAMS)
    assert site.ask(f"/{site.lead}/events")[0] == 503


def test_those_who_watch_take_no_stream_of_the_lead(site):
    site.pages.streams[WATCHER] = MOST_STREAMS
    assert site.ask(f"/{site.watch}/events")[0] == 503
    assert site.stream(site.lead)
    assert site.pages.streams == {LEAD: 0, WATCHER: MOST_STREAMS}


# a person's own page


class Voted(Site):
    """A site with a question to two people; `kept` is what is on disk."""

    def __init__(self):
        super().__init__()
        self.kept = []
        self.room.people = {"ada": "Ada", "grace": "Grace"}
        self.room.ballot = Ballot(
            1,
            [BallotQuestion("stop", "How long?", "a duration")],
            self.room.people,
            read=lambda _, text: float(Duration(text)),
            words=lambda _, value: f"{value:g}s",
            keep=lambda *given: self.kept.append(given),
            changed=lambda _: self.room.shows_ballot(),
        )
        self.room.shows_ballot()
        self.ada, self.grace = (
            self.guard.url(Visitor(Audience.TRAINEE, key)).split("/")[3] for key in ("ada", "grace")
        )

    def send(self, token, text="2s", /, *, run=1, **more):
        status, _, body = self.ask(f"/{token}/predict", "POST", {"run": run, "answers": {"stop": text}} | more)
        return status, json.loads(body)["said"]

    def mine(self, token):
        return json.loads(self.ask(f"/{token}/mine")[2])


@pytest.fixture
def voted():
    return Voted()


def test_a_person_answers_on_their_own_page_once(voted):
    assert voted.mine(voted.ada) == {"name": "Ada", "answers": None}
    assert voted.send(voted.ada) == (200, NOTED)
    assert voted.kept == [("ada", {"stop": 2.0}, False)]
    assert voted.mine(voted.ada)["answers"] == {"stop": "2s"}
    assert voted.send(voted.ada, "3s")[0] == 409
    voted.room.ballot.reveal()
    assert voted.send(voted.grace, "9s") == (200, LATE)
    assert voted.kept[1:] == [("grace", {"stop": 9.0}, True)]


@pytest.mark.lie
def test_no_address_shows_an_answer_of_another_before_all_are_shown(voted):
    """Every address that the server has, asked with every other token."""
    voted.send(voted.ada, "37s")
    others = (voted.grace, voted.watch, voted.lead)
    names = ("", "page.css", "warroom.css", "warroom.js", "charts.js", "mine", "nothing", "ballot", "answers", "ada")
    told = [voted.ask(f"/{token}/{name}")[2] for token in others for name in names]
    told += [json.dumps(voted.stream(token)).encode() for token in others]
    assert not [each for each in told if (b"37" in each and b"stop" in each) or b"37s" in each]
    assert b"37s" in voted.ask(f"/{voted.ada}/mine")[2], "or nothing is proven"


@pytest.mark.lie
@pytest.mark.parametrize("name", ["person", "who", "key", "token"])
def test_a_link_answers_for_its_own_person_whatever_it_sends(voted, name):
    assert voted.send(voted.ada, **{name: "grace"})[0] == 200
    assert [each[0] for each in voted.kept] == ["ada"]
    assert voted.mine(voted.grace)["answers"] is None


@pytest.mark.parametrize("who", ["watch", "lead"])
def test_only_a_persons_page_answers_and_it_leads_nothing(voted, who):
    assert voted.send(getattr(voted, who)) == (403, "only a person's own page may answer")
    for name in ("stop", "answer", "note"):
        assert voted.ask(f"/{voted.ada}/{name}", "POST", {})[0] == 403
    assert voted.pressed == []


def test_a_wrong_token_and_an_answer_of_a_megabyte_are_one_message_each(voted):
    assert voted.ask(f"/{voted.ada[:-1]}/predict", "POST", {})[0] == 404
    status, said = voted.send(voted.ada, "x" * 1_000_000)
    assert (status, said) == (413, "this is too long: the limit is 16 KiB")
    assert voted.send(voted.ada, "x" * 500) == (400, NOT_OURS)
    assert voted.send(voted.ada, "soon")[1].startswith("How long? ")
    assert voted.kept == []
    voted.room.ballot = None
    assert voted.send(voted.ada) == (409, "no question is open now")


@pytest.mark.lie
def test_the_leads_page_is_on_the_loopback_alone_whatever_else_is_served():
    guard = Guard(PORT, elsewhere="10.73.0.1")
    lead, ada = guard.tokens[LEAD], guard.url(Visitor(Audience.TRAINEE, "ada"))
    assert guard.url(LEAD).startswith("http://127.0.0.1:")
    assert ada.startswith(f"http://10.73.0.1:{PORT}/")
    assert guard.who(lead) == LEAD
    assert guard.who(lead, "10.73.0.1") is None
    assert guard.who(ada.split("/")[3], "10.73.0.1").person == "ada"
    assert guard.refuses("GET", {"host": f"10.73.0.1:{PORT}"}) == ""
    assert "10.73.0.1" in guard.refuses("GET", {"host": f"10.73.0.2:{PORT}"})


def test_a_person_has_a_few_tabs_and_takes_nobody_elses(voted):
    voted.pages.streams[Visitor(Audience.TRAINEE, "ada")] = MOST_TABS
    assert voted.ask(f"/{voted.ada}/events")[0] == 503
    assert voted.stream(voted.grace)
