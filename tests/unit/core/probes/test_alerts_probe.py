"""The alerts probe: what fires by Prometheus' rules or in Alertmanager, and that no lie of a server is quiet."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import httpx2
import pytest
from pydantic import ValidationError

from hashidrill.core.probes.alerts import AlertsParams, AlertsProbe, named_in, told
from hashidrill.core.probes.declared import ProbeContext
from virtual_time import ran

NOW = datetime(2026, 11, 26, 12, 0, 0, tzinfo=UTC)
DISK = {"alertname": "SlowDisk", "severity": "page"}


def alert(state="firing", value="0.7", **labels):
    return {"labels": {**DISK, **labels}, "annotations": {}, "state": state, "value": value}


def rule(*alerts, name="SlowDisk", age_s=0.3, **more):
    when = (NOW - timedelta(seconds=age_s)).strftime(
        "%Y-%m-%dT%H:%M:%S.%f123Z"
    )  # nanoseconds, as Prometheus writes them
    return {"name": name, "type": "alerting", "health": "ok", "lastEvaluation": when, "alerts": list(alerts), **more}


def rules(*rules, **more):
    body = {"status": "success", "data": {"groups": [{"name": "one", "rules": list(rules)}]}, **more}
    return httpx2.Response(200, json=body, headers={"Date": format_datetime(NOW, usegmt=True)})


def received(*alerts, state="active"):
    body = [{"labels": {**DISK, **labels}, "status": {"state": state}, "fingerprint": "1"} for labels in alerts]
    return httpx2.Response(200, json=body, headers={"Date": format_datetime(NOW, usegmt=True)})


@ran
async def looked(answer, *, every_s=1.0, times=1, **params):
    """(value, text) of each look."""
    asked = []

    def reply(request):
        asked.append(request)
        said = answer(len(asked)) if callable(answer) else answer
        assert request.url.params.get_list("rule_name[]") or request.url.params["filter"].startswith('alertname=~"Slow')
        return said

    given = AlertsParams.model_validate({"url": "http://prometheus-1:9090", "alerts": ["SlowDisk"], **params})
    probe = AlertsProbe("it", given, ProbeContext(), transport=httpx2.MockTransport(reply))
    seen = []
    for _ in range(times):
        [sample] = await probe.sample()
        assert sample.signal == "it.firing"
        assert sample.ok == (sample.value is not None)
        seen.append((sample.value, sample.text))
        await anyio.sleep(every_s)
    await probe.aclose()
    return seen


MANAGER = {"via": "alertmanager", "watchdog": "Watchdog"}
DOG = {"alertname": "Watchdog"}


@pytest.mark.parametrize(
    ("answer", "params", "expected"),
    [
        (rules(rule()), {}, (0, "")),
        (rules(rule(alert())), {}, (1, "firing: SlowDisk")),
        (rules(rule(alert("pending"))), {}, (0, "pending: SlowDisk")),
        (rules(rule(alert(host="a"), alert("pending", host="b"))), {}, (1, "firing: SlowDisk; pending: SlowDisk")),
        (rules(rule(alert(host="a")), rule(alert(host="b"))), {"labels": {"host": "b"}}, (1, "firing: SlowDisk")),
        (rules(rule(alert(host="a"))), {"labels": {"host": "b"}}, (0, "")),
        (rules(rule(), rule(alert(alertname="Other"), name="Other")), {}, (0, "")),
        (received(DOG), MANAGER, (0, "")),
        (received(DOG, {}), MANAGER, (1, "firing: SlowDisk")),
        (received(DOG, {}, {"alertname": "SlowDisks"}), MANAGER, (1, "firing: SlowDisk")),
    ],
)
def test_what_fires(answer, params, expected):
    assert looked(answer, **params) == [expected]


LIES = {
    "no rule of that name": rules(rule(name="SlowDisks")),
    "no rules at all": rules(),
    "a recording rule of that name": rules(rule(type="recording")),
    "a rule that failed": rules(rule(health="err", lastError="many-to-many matching")),
    "a rule that was never evaluated": rules(rule(health="unknown", lastEvaluation="0001-01-01T00:00:00Z")),
    "a rule that was last evaluated long ago": rules(rule(age_s=90)),
    "one of two rules failed": rules(rule(alert()), rule(health="err")),
    "NaN": rules(rule(alert(value="NaN"))),
    "infinity": rules(rule(alert(value="+Inf"))),
    "the same alert twice": rules(rule(alert()), rule(alert())),
    "no such label": rules(rule(alert())),
    "a state of its own": rules(rule(alert("quiet"))),
    "a warning": rules(rule(), warnings=["one replica did not answer"]),
    "an error with 200": httpx2.Response(200, json={"status": "error", "error": "x"}),
    "no date": httpx2.Response(200, json={"status": "success", "data": {"groups": [{"rules": [rule()]}]}}),
    "a time without a zone": rules(rule(lastEvaluation="2026-11-26T12:00:00")),
    "a login page": httpx2.Response(200, text="<html>sign in"),
    "a redirect": httpx2.Response(302, headers={"Location": "/login"}),
    "it restarts": httpx2.Response(503, text="Service Unavailable"),
    "a gigabyte": httpx2.Response(200, content=b"[" * 2_000_000),
}
MANAGER_LIES = {
    "the watchdog is silent": received({}),
    "nothing fires": received(),
    "it is silenced": received(DOG, {}, state="suppressed"),
    "another watchdog fires": received({"alertname": "WatchdogOfAnotherTeam"}),
    "an object": httpx2.Response(200, json={"data": []}),
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", [*LIES, *MANAGER_LIES])
def test_what_is_not_surely_known_is_unknown(lie):
    params = MANAGER if lie in MANAGER_LIES else {"labels": {"severty": "page"}} if lie == "no such label" else {}
    [(value, text)] = looked({**LIES, **MANAGER_LIES}[lie], **params)
    assert value is None
    assert text not in {"", "not measured"}, "there is a reason"


@pytest.mark.lie
def test_an_answer_out_of_a_cache_is_unknown():
    """A proxy that repeats an answer repeats its date."""
    assert [value for value, _ in looked(rules(rule()), times=2, every_s=3.0)] == [0, None]
    assert [value for value, _ in looked(rules(rule()), times=3, every_s=0.5)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"via": "alertmanager"}, "name an alert that always fires"),
        ({"alerts": ["SlowDisk", "SlowDisk"]}, "named twice"),
        ({"watchdog": "SlowDisk"}, "named twice"),
        ({"alerts": ['a", b="']}, "should match pattern"),
        ({"alerts": []}, "at least 1"),
        ({"url": "http://prometheus-1:9090/?x=1"}, "has a query"),
        ({"stale_after": "2h"}, "from 1s to 1h"),
    ],
)
def test_parameters_that_cannot_be_are_refused(params, said):
    with pytest.raises(ValidationError, match=said):
        AlertsParams.model_validate({"url": "http://prometheus-1:9090", "alerts": ["SlowDisk"], **params})


def test_the_text_of_a_look_can_be_read_again():
    text = told(["A", "B c"], ["D"])
    assert (named_in(text, "firing"), named_in(text, "pending")) == ({"A", "B c"}, {"D"})
    assert named_in("", "firing") == named_in(told(["firing"]), "pending") == frozenset()
