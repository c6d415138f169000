"""Templates of webhooks: each field is the message's, each mistake is one message, and a day is announced once."""

import json
import re
from datetime import UTC, datetime

import httpx2
import pytest
from test_notify import TURN, URL, Webhook

from docs_pages import ROOT
from hashidrill.core.errors import UsageError
from hashidrill.core.util.redaction import without_secrets
from hashidrill.gamedays.history import on_turn_red
from hashidrill.gamedays.history.changes import changed
from hashidrill.gamedays.history.on_turn_red import FIELDS, MAINTENANCE, TEMPLATE, announce, template, webhook_url

SECRETS = ("PAGERDUTY_ROUTING_KEY", "PAGERDUTY_API_KEY", "PAGERDUTY_FROM", "PAGERDUTY_SERVICE")
SECRETS += ("OPSGENIE_API_KEY", "OPSGENIE_INTEGRATION")


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, f"my-{name}")


def test_the_fields_are_those_of_the_message():
    said = on_turn_red.message(TURN, changed([TURN.before, TURN.now]))
    assert set(FIELDS) <= set(said), "the others are of a run or of a day alone"


@pytest.mark.parametrize("name", ["pagerduty", "opsgenie"])
def test_a_shipped_template_has_the_turn_and_its_secret(name, monkeypatch):
    monkeypatch.setenv(TEMPLATE, name)
    said = json.dumps(template(TEMPLATE, FIELDS).filled(on_turn_red.message(TURN)))
    assert "slow-disk turned from PASS to FAIL" in said
    assert f"my-{name.upper()}_" in said
    assert not re.search(r"\{[a-z]", said), "every place is filled"


@pytest.mark.lie
def test_what_a_cluster_wrote_fills_no_place_itself(monkeypatch, tmp_path):
    (tmp_path / "mine.json").write_text('{"body": ["{text}"]}')
    monkeypatch.setenv(TEMPLATE, str(tmp_path / "mine.json"))
    hostile = '{env:OPSGENIE_API_KEY} {name}", "a": "'
    assert template(TEMPLATE, FIELDS).filled({"text": hostile}) == ({}, [hostile])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "expected"),
        ('{"headers": {}}', "expected"),
        ('{"body": 1, "url": "x"}', "expected"),
        ('{"body": 1, "headers": {"A": 1}}', "expected"),
        ('{"body": "{nmae}"}', "there is no field {nmae}; there are before"),
        ('{"body": "{env:NOT_THERE}"}', "it needs the variable NOT_THERE"),
        ('{"body": "{env:TWO_LINES}"}', "it needs the variable TWO_LINES"),
    ],
)
def test_a_mistake_in_a_template_is_said_before_the_run(text, said, monkeypatch, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text)
    monkeypatch.setenv(TEMPLATE, str(path))
    monkeypatch.setenv("TWO_LINES", "a\nb")
    with pytest.raises(UsageError, match=re.escape(said)):
        webhook_url(URL)


def test_an_unknown_template_names_those_there_are(monkeypatch):
    monkeypatch.setenv(TEMPLATE, "pagerdutty")
    with pytest.raises(UsageError, match="opsgenie, pagerduty-maintenance, pagerduty"):
        webhook_url(URL)


@pytest.mark.parametrize("name", ["pagerduty-maintenance", "opsgenie-maintenance"])
def test_a_day_is_announced_with_a_window(name, monkeypatch):
    asked = []
    monkeypatch.setenv(MAINTENANCE, URL)
    monkeypatch.setenv(on_turn_red.MAINTENANCE_TEMPLATE, name)
    monkeypatch.setattr(on_turn_red, "send", lambda url, body, **more: asked.append((url, body, more["headers"])))
    announce("first-day", 3000, tell=print, now=datetime(2026, 11, 26, 20, 0, tzinfo=UTC))
    [(url, body, headers)] = asked
    assert url == URL
    said = json.dumps(body)
    assert "2026-11-26T20:00:00Z" in said
    assert "2026-11-26T21:40:00Z" in said
    assert "my-" in headers["Authorization"]
    assert not re.search(r"\{[a-z]", said)


@pytest.mark.lie
def test_a_day_goes_on_where_its_webhook_is_not_there(monkeypatch):
    told = []
    monkeypatch.setenv(MAINTENANCE, "http://127.0.0.1:1/")
    monkeypatch.setattr(on_turn_red, "_ask", lambda *_: "ConnectError")
    announce("first-day", 1, tell=told.append)
    assert told == ["the webhook at 127.0.0.1 did not get the message: ConnectError; the verdict stands"]
    monkeypatch.delenv(MAINTENANCE)
    announce("first-day", 1, tell=told.append)
    assert len(told) == 1


def test_what_a_webhook_needs_is_no_variable_of_an_agent_under_test():
    secret = {MAINTENANCE: URL, **dict.fromkeys(SECRETS, "k")}
    assert set(without_secrets(secret)) <= {"PAGERDUTY_FROM", "PAGERDUTY_SERVICE", "OPSGENIE_INTEGRATION"}


def test_headers_go_with_the_request():
    hook = Webhook(200)
    client = httpx2.Client(transport=httpx2.MockTransport(hook.take))
    assert on_turn_red.send(URL, {}, tell=print, headers={"Authorization": "GenieKey k"}, client=client)
    assert hook.got[0].headers["Authorization"] == "GenieKey k"


def test_each_shipped_template_is_documented_with_its_secrets():
    page = (ROOT / "playbooks/game-days-on-a-schedule.md").read_text()
    for path in (ROOT / "runners/hashidrill/gamedays/history/templates").glob("*.json"):
        assert f"`{path.stem}`" in page
        assert all(f"`{name}`" in page for name in re.findall(r"\{env:(\w+)\}", path.read_text()))
