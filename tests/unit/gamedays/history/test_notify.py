"""The webhook is told once, in a form that is documented, for a bounded time; its URL stays a secret."""

import json
import threading

import httpx2
import pytest
from rich.console import Console

from docs_pages import ROOT
from hashidrill.core.errors import UsageError
from hashidrill.core.util.redaction import is_secret_name, without_secrets
from hashidrill.faces.cli.remembering import Memory
from hashidrill.gamedays.history.changes import changed
from hashidrill.gamedays.history.from_recording import record_run
from hashidrill.gamedays.history.on_turn_red import SCHEMA, VARIABLE, keep, message, send, webhook_url
from hashidrill.gamedays.history.store import Turn, history_file
from history_runs import planted, recorded

URL = "https://hooks.example.org/services/T000/B000/s3cr3t-path"
TURN = Turn("slow-disk", planted(2, "FAIL", broken=["writes_recover(load=kv-writes)"]), planted(1))


class Webhook:
    """Answers with these statuses, one after the other; an exception is raised."""

    def __init__(self, *answers):
        self.answers, self.got, self.slept, self.told = list(answers), [], [], []

    def take(self, request):
        self.got.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer, headers={"location": "https://elsewhere.example.org/"})

    def send(self, body=None):
        client = httpx2.Client(transport=httpx2.MockTransport(self.take))
        return send(URL, body or message(TURN), tell=self.told.append, client=client, sleep=self.slept.append)


# what it is told


def test_the_message_has_a_text_for_people_and_fields_for_programs():
    now = planted(2, "FAIL", versions={"consul": "1.23.0"}, broken=["writes_recover(load=kv-writes)"])
    said = message(Turn("slow-disk", now, planted(1)), changed([planted(1), now]))
    assert said["text"].splitlines()[0].startswith("slow-disk turned from PASS to FAIL: it last passed ")
    assert "writes_recover(load=kv-writes): it did not" in said["text"]
    assert "changed since: versions: consul: 1.22.2 -> 1.23.0" in said["text"]
    assert (said["schema"], said["kind"], said["verdict"], said["before"]) == (SCHEMA, "run", "FAIL", "PASS")
    assert said["changes"] == ["versions: consul: 1.22.2 -> 1.23.0"]
    assert said["last_passed"]["id"] == "run-0001"
    assert json.loads(json.dumps(said)) == said


def test_every_field_is_documented_and_no_other():
    page = (ROOT / "playbooks/game-days-on-a-schedule.md").read_text()
    [block] = [each for each in page.split("```json\n")[1:] if SCHEMA in each]
    documented = json.loads(block.partition("```")[0])
    assert list(documented) == list(message(TURN, changed([TURN.before, TURN.now])))


HOSTILE = "<!channel> & <https://evil.example.org|the report> @here"


@pytest.mark.lie
def test_evidence_calls_nobody_in_a_chat_and_is_as_it_was_for_programs():
    said = message(Turn("slow-disk", planted(2, "FAIL", broken=[HOSTILE]), planted(1)))
    shown = "&lt;!channel> &amp; &lt;https://evil.example.org|the report> @\N{WORD JOINER}here"
    assert shown in said["text"]
    assert said["broken"] == [f"{HOSTILE}: it did not"]
    assert not {"<!", "<h", "@h"} & {said["text"][at : at + 2] for at in range(len(said["text"]))}


def test_a_secret_is_found_before_its_letters_are_escaped(monkeypatch):
    monkeypatch.setenv("VAULT_TOKEN", "s3cr&t<of@mine")
    said = message(Turn("slow-disk", planted(2, "FAIL", broken=["it said s3cr&t<of@mine"]), planted(1)))
    assert "s3cr" not in json.dumps(said)


# how it is told


def test_a_webhook_that_takes_it_is_told_once():
    hook = Webhook(200)
    assert hook.send()
    [request] = hook.got
    assert (request.method, str(request.url)) == ("POST", URL)
    assert json.loads(request.content)["schema"] == SCHEMA
    assert hook.told == hook.slept == []


@pytest.mark.parametrize(
    ("answers", "tries", "says"),
    [
        ((503, 200), 2, None),
        ((429, 500, 204), 3, None),
        ((500, 500, 500, 200), 3, "HTTP 500"),
        ((404, 200), 1, "HTTP 404"),
        ((302, 200), 1, "HTTP 302"),
        ((httpx2.ConnectError(f"cannot reach {URL}"),) * 3, 3, "ConnectError"),
        ((httpx2.ReadTimeout("slow"), 200), 2, None),
        ((ValueError(URL),), 1, "ValueError"),
    ],
)
def test_it_is_tried_again_where_that_makes_sense_and_never_more_than_three_times(answers, tries, says):
    hook = Webhook(*answers)
    assert hook.send() is (says is None)
    assert len(hook.got) == tries
    assert len(hook.slept) == tries - 1
    if says:
        [line] = hook.told
        assert says in line
        assert "hooks.example.org" in line
        assert "the verdict stands" in line


@pytest.mark.lie
def test_a_server_that_answers_byte_by_byte_does_not_hold_up_the_end_of_a_run():
    goes_on = threading.Event()

    def hang(_):
        goes_on.wait(30)
        return httpx2.Response(200)

    told = []
    client = httpx2.Client(transport=httpx2.MockTransport(hang))
    try:
        assert not send(URL, {}, tell=told.append, client=client, within_s=0.01)
    finally:
        goes_on.set()
    assert "no answer within 0.01 s" in told[0]


class Slow(threading.Thread):
    """Goes on for as long as anybody waits for it."""

    waited = ()

    def start(self):
        self.waited = []

    def is_alive(self):
        return True

    def join(self, timeout=None):
        self.waited.append(timeout)


class Interrupted(Slow):
    """Somebody who waits for it types Ctrl-C."""

    def join(self, timeout=None):
        raise KeyboardInterrupt


def test_whoever_waits_is_told_for_what(monkeypatch):
    told = []
    with monkeypatch.context() as slow:
        slow.setattr("hashidrill.gamedays.history.on_turn_red.threading.Thread", Slow)
        assert not send(URL, {}, tell=told.append)
    assert told == [
        "the webhook at hooks.example.org is slow to answer; Ctrl-C ends the wait, the verdict stands",
        "the webhook at hooks.example.org did not get the message: no answer within 20 s; the verdict stands",
    ]


def test_ctrl_c_ends_the_waiting_and_says_that_the_verdict_stands(monkeypatch):
    told = []
    with monkeypatch.context() as stopped:
        stopped.setattr("hashidrill.gamedays.history.on_turn_red.threading.Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(URL, {}, tell=told.append)
    assert told == ["interrupted while the webhook was called; the verdict stands"]


# its URL


@pytest.mark.parametrize("wrong", ["hooks.example.org/x", "ftp://example.org/x", "https://", "https://[half/x"])
def test_what_is_no_url_is_refused_and_not_repeated(wrong):
    with pytest.raises(UsageError) as refused:
        webhook_url(wrong)
    assert wrong not in str(refused.value).replace("https://hooks.example.org/services/...", "")


def test_the_environment_names_it_too_and_is_kept_from_agents_under_test(monkeypatch):
    assert webhook_url(None) is None
    monkeypatch.setenv(VARIABLE, URL)
    assert webhook_url(None) == URL
    assert webhook_url("https://other.example.org/") == "https://other.example.org/"
    assert is_secret_name(VARIABLE)
    assert VARIABLE not in without_secrets({VARIABLE: URL, "PATH": "/bin"})


@pytest.mark.lie
def test_it_is_in_no_message_no_log_and_no_history(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setenv(VARIABLE, URL)
    told = []
    caplog.set_level("DEBUG")
    hook = Webhook(500, 404)
    monkeypatch.setattr(
        "hashidrill.gamedays.history.on_turn_red.send",
        lambda url, body, *, tell, **_: send(
            url,
            body,
            tell=tell,
            sleep=hook.slept.append,
            client=httpx2.Client(transport=httpx2.MockTransport(hook.take)),
        ),
    )
    record_run(recorded(tmp_path, "a").path)
    failed = recorded(tmp_path, "b", fails=True)
    from hashidrill.core.judging.judge import judge

    turn = keep(failed, judge(failed), webhook=URL, tell=told.append)
    assert turn is not None
    assert len(hook.got) == 2
    out = capsys.readouterr()
    stored = b"".join(path.read_bytes() for path in history_file().parent.iterdir()).decode("latin-1")
    for place in (*told, caplog.text, out.out, out.err, stored, json.dumps(json.loads(hook.got[0].content))):
        assert "s3cr3t-path" not in place
    assert "hooks.example.org" in told[0]


@pytest.mark.long
@pytest.mark.lie
def test_a_run_that_is_kept_twice_tells_once_and_one_that_fails_again_tells_nobody(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr("hashidrill.gamedays.history.on_turn_red.send", lambda url, body, **_: sent.append(body["id"]))
    from hashidrill.core.judging.judge import judge

    for name, fails in (("a", False), ("b", True), ("c", True), ("d", False), ("e", True)):
        recording = recorded(tmp_path, name, fails=fails)
        for _ in range(2):
            keep(recording, judge(recording), webhook=URL, tell=pytest.fail)
    assert sent == ["b", "e"]


def test_a_game_day_that_turned_is_told_as_a_day(tmp_path, monkeypatch, capsys):
    sent = []
    monkeypatch.setattr("hashidrill.gamedays.history.on_turn_red.send", lambda url, body, **_: sent.append(body))
    for number, verdict in enumerate(("PASS", "INVALID", "FAIL", "FAIL")):
        folder = tmp_path / f"day-{number}"
        folder.mkdir()
        began = f"2026-11-2{number}T10:00:00Z"
        report = {"name": "first", "verdict": verdict, "started_at": began, "ended_at": began, "runs": []}
        (folder / "report.json").write_text(json.dumps(report))
        Memory(URL).keep_day(folder, Console(width=200))
    [body] = sent
    assert (body["kind"], body["gameday"], body["id"], body["last_passed"]["id"]) == ("day", "first", "day-2", "day-0")
    assert "experiment" not in body
    assert capsys.readouterr().out.count("first turned from PASS to FAIL") == 1
