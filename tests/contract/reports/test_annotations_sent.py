"""Annotations as Grafana gets them: by a small server of ours that holds requests to Grafana's documented API.

It stands in for Grafana (POST /api/annotations, https://grafana.com/docs/grafana/latest/developers/http_api/annotations/).
"""

import json
import threading

import pytest
from test_traces_sent import RUN as TRACED
from test_traces_sent import Collector, S

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Intent, Proof, Seen, Where
from hashidrill.reports.live.annotations import RunAnnotations, annotated, send

TOKEN = "glsa_s3cret"
RUN = (
    *TRACED[:-2],
    Intent(event="fault.intent", fault_id="1", kind="process.kill", target=Where("consul-2"), t_ns=3 * S),
    Proof(event="fault.unproven", fault_id="1", evidence=Seen("gone", "it runs"), t_ns=3 * S),
    *TRACED[-2:],
)
"""A run with a fault that was proven, and one that was not."""


def refused(path, headers, body):
    """The status with which Grafana refuses a request; 0 if it does not. Unknown keys are refused, too."""
    if path != "/grafana/api/annotations" or headers.get("Content-Type") != "application/json":
        return 404
    if headers.get("Authorization") != f"Bearer {TOKEN}":
        return 401
    said = json.loads(body)
    whole = {"dashboardUID": str, "panelId": int, "time": int, "timeEnd": int, "tags": list, "text": str}
    if not all(isinstance(value, whole.get(key, ())) for key, value in said.items()) or not said.get("text"):
        return 400
    fine = all(isinstance(tag, str) for tag in said["tags"]) and 10**12 < said["time"] <= said["timeEnd"] < 10**13
    return 0 if fine else 400


class Grafana(Collector):
    """Adds annotations, as `added`; from number `after` on it answers with that status and body instead."""

    def __init__(self, *, after=99, status=500, body=b"{}", waits=None):
        def answer(path, headers, said):
            wrong = refused(path, headers, said)
            if wrong or len(self.added) >= after:
                return wrong or status, body
            self.added.append(json.loads(said))
            return 200, json.dumps({"message": "Annotation added", "id": len(self.added)}).encode()

        super().__init__(waits=waits, answer=answer)
        self.added = []
        self.address += "/grafana"


def told(address, token=TOKEN, **more):
    said = []
    environment = {"HASHIDRILL_GRAFANA_URL": address, "HASHIDRILL_GRAFANA_TOKEN": token, **more}
    with annotated(said.append, environment) as subscriber:
        for event in RUN:
            subscriber(event)
    return said


def test_a_run_and_its_faults_are_regions():
    with Grafana() as grafana:
        assert told(f"{grafana.address}/") == []
    run, slow, killed = grafana.added
    assert run["text"] == "raft/slow-leader-disk: FAIL"
    assert run["tags"] == ["hashidrill", "run", "raft/slow-leader-disk", "FAIL"]
    assert run["timeEnd"] - run["time"] == 4000
    assert (slow["time"] - run["time"], slow["timeEnd"] - slow["time"]) == (1000, 2000)
    assert slow["text"] == "disk.latency on consul-1: 510 ms"
    assert killed["text"] == "process.kill on consul-2: not proven"


def test_the_token_may_be_in_a_file(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with Grafana() as grafana:
        assert told(grafana.address, token="", HASHIDRILL_GRAFANA_TOKEN_FILE=str(tmp_path / "token")) == []
        assert len(grafana.added) == 3


@pytest.mark.lie
@pytest.mark.parametrize(
    ("server", "token", "sent", "why"),
    [
        ({}, "wrong", 0, "it answered HTTP 401"),
        ({"after": 1}, TOKEN, 1, "it answered HTTP 500"),
        ({"after": 0, "status": 302}, TOKEN, 0, "it answered HTTP 302"),
        ({"after": 0, "status": 200, "body": b"<html>sign in"}, TOKEN, 0, "it answered HTTP 200"),
        ({"after": 0, "status": 200, "body": b"[]"}, TOKEN, 0, "it answered HTTP 200"),
    ],
)
def test_what_grafana_did_not_add_is_one_line_without_the_token(server, token, sent, why):
    with Grafana(**server) as grafana:
        [line] = told(grafana.address, token)
    assert line == f"Grafana at 127.0.0.1 has {sent} of 3 annotations: {why}; the verdict stands"


@pytest.mark.lie
def test_a_grafana_that_hangs_or_is_not_there_holds_a_run_up_for_the_time_that_is_given():
    ends, said = threading.Event(), []
    with Grafana(waits=ends) as grafana:
        send(grafana.address, TOKEN, [{"text": "a"}], said.append, within_s=0.2)
        ends.set()
    [line] = told("http://127.0.0.1:1")
    assert line == "Grafana at 127.0.0.1 has 0 of 3 annotations: ConnectError; the verdict stands"
    assert said == ["Grafana at 127.0.0.1 has 0 of 1 annotations: no answer within 0.2 s; the verdict stands"]


@pytest.mark.lie
def test_no_secret_of_the_environment_is_in_an_annotation(monkeypatch):
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "s3cret-of-mine")
    sent = []
    annotations = RunAnnotations(sent.extend)
    seen = Seen("", "s3cret-of-mine")
    for event in (RUN[0], RUN[2], Proof(event="fault.proven", fault_id="0", evidence=seen, t_ns=S)):
        annotations.event(event)
    annotations.close()
    assert "s3cret-of-mine" not in repr(sent)
    assert sent[0]["text"] == "raft/slow-leader-disk: not judged"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"HASHIDRILL_GRAFANA_URL": "grafana:3000"}, "expected the address"),
        ({"HASHIDRILL_GRAFANA_URL": "http://me:pw@grafana"}, "without a password"),
        ({"HASHIDRILL_GRAFANA_URL": "http://grafana/?orgId=1"}, "expected the address"),
        ({"HASHIDRILL_GRAFANA_TOKEN": ""}, "needs the token"),
        ({"HASHIDRILL_GRAFANA_TOKEN": "a\nb"}, "needs the token"),
        ({"HASHIDRILL_GRAFANA_TOKEN": "", "HASHIDRILL_GRAFANA_TOKEN_FILE": "/no/such"}, "cannot be read"),
    ],
)
def test_a_mistake_is_one_message(changed, said):
    environment = {"HASHIDRILL_GRAFANA_URL": "http://grafana", "HASHIDRILL_GRAFANA_TOKEN": TOKEN, **changed}
    with pytest.raises(UsageError, match=said), annotated(print, environment):
        pass
