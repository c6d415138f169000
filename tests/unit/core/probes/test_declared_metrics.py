"""metrics probes: which series exist and how old their samples are, and that no lie of a server hides a missing one."""

import httpx2
import pytest
from test_declared_http import HOSTS, Server, hang, looked, refuse, reply, vector

from hashidrill.core.probes.prometheus import MetricsParams, MetricsProbe, Selector
from virtual_time import run

COMMIT = 'consul_raft_commitTime{quantile="0.5"}'
PAGE = """\
# HELP consul_raft_commitTime The time to commit
# TYPE consul_raft_commitTime summary
consul_raft_commitTime{quantile="0.5"} NaN
consul_raft_commitTime{quantile="0.9"} 0.25
consul_raft_commitTime_count 12
consul_kvs_apply{path="a, \\"b\\"}",job="web"} +Inf 1700000000000
"""


def probe(answer, **params):
    given = MetricsParams.model_validate({"url": "http://client-1:9090", "series": [COMMIT], **params})
    transport = httpx2.MockTransport(answer if callable(answer) else lambda _: answer)
    return MetricsProbe("it", given, HOSTS, transport=transport)


def page(text, *series):
    [seen] = looked(probe(httpx2.Response(200, text=text), source="page", series=list(series or [COMMIT])))
    return seen["ok"]


@pytest.mark.parametrize(
    "series",
    [
        [COMMIT],
        ["consul_raft_commitTime"],
        ['consul_raft_commitTime{quantile=~"0.[59]"}', "consul_raft_commitTime_count"],
        ['consul_raft_commitTime{quantile!="0.5", job=""}'],
        ['consul_kvs_apply{job!~"api|db", path="a, \\"b\\"}"}'],
    ],
)
def test_a_series_on_a_page(series):
    assert page(PAGE, *series) == 1


MISSING_ON_A_PAGE = {
    "another label": (PAGE, ['consul_raft_commitTime{quantile="0.99"}']),
    "a label that is gone": (PAGE, ['consul_raft_commitTime{version!=""}']),
    "a longer name": (PAGE, ["consul_raft"]),
    "a shorter name": (PAGE, ["consul_kvs_apply_count"]),
    "a name in a comment": ("# TYPE consul_raft_commitTime summary\nup 1\n", ["consul_raft_commitTime"]),
    "a name in a label": ('up{a="consul_raft_commitTime 1"} 1\n', ["consul_raft_commitTime"]),
    "one of two": (PAGE, [COMMIT, "consul_raft_apply"]),
    "another case": (PAGE, ["consul_raft_committime"]),
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", MISSING_ON_A_PAGE)
def test_a_series_that_is_not_on_the_page_is_missing(lie):
    text, series = MISSING_ON_A_PAGE[lie]
    assert page(text, *series) == 0


def test_the_missing_ones_are_named():
    ok, _ = run(probe(httpx2.Response(200, text="up 1\n"), source="page").sample())
    assert (ok.value, ok.text) == (0, f"missing: {COMMIT}; a page has no times")


NO_PAGE = {
    "JSON": httpx2.Response(200, json={"Gauges": []}),
    "a login page": httpx2.Response(200, text="<html>sign in"),
    "nothing": httpx2.Response(200, text=""),
    "an error": httpx2.Response(500, text=PAGE),
    "a redirect": httpx2.Response(302, headers={"Location": "/login"}),
    "a line that ends in its middle": httpx2.Response(200, text=PAGE + 'consul_x{quantile="0.'),
    "a series without a value": httpx2.Response(200, text=PAGE + "consul_x\n"),
    "a word as a value": httpx2.Response(200, text=PAGE + "consul_x up\n"),
    "no connection": refuse,
    "no answer": hang,
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", NO_PAGE)
def test_what_is_not_a_whole_page_says_nothing_of_a_series(lie):
    [seen] = looked(probe(NO_PAGE[lie], source="page"))
    assert isinstance(seen["ok"], str)
    assert seen["ok"] not in {"", "not measured"}, "there is a reason"


def there(*selectors):
    """What Prometheus says of selectors that exist so often, with samples of these ages."""

    def said(now_s):
        found = {}
        for at, (exists, *ages) in enumerate(selectors):
            found |= {f"{at} exists": exists} if exists else {}
            found |= {f"{at} oldest": now_s - max(ages), f"{at} newest": now_s - min(ages)} if ages else {}
        return found

    return said


def asked(answer, times=1, **params):
    return looked(probe(answer, **params), times)


def test_how_old_the_newest_sample_is():
    assert asked(Server(there((3, 2.0, 4.5)))) == [{"ok": 1, "lag": 4.5}], "of the series for which that is longest"
    both = asked(Server(there((1, 1.0), (2, 7.0))), series=["a", "b"])
    assert both == [{"ok": 1, "lag": 7.0}]
    assert asked(Server(there((1, -0.5)))) == [{"ok": 1, "lag": 0}], "clocks may differ by a little"


def test_the_query_of_one_moment():
    server = Server(there((1, 1.0), (1, 1.0)))
    asked(server, series=["up"], each={"instance": ["old:8500", "new:8500"]}, look_back="1m")
    assert 'count(up{instance="old:8500"})' in server.query
    newest = 'timestamp(up{instance="new:8500"}) or max_over_time(timestamp(up{instance="new:8500"})[60s:1s])'
    assert f'label_replace((min({newest})\n), "hashidrill", "1 oldest", "", "")' in server.query


@pytest.mark.lie
@pytest.mark.parametrize(
    ("selectors", "ok", "lag"),
    [
        ([(0, 30.0), (1, 1.0)], 0, 30.0),  # stale: the target is down, and was scraped half a minute ago
        ([(0,), (1, 1.0)], 0, "no sample in the last 5m"),
        ([(1, 1.0), (1, 1.0, 290.0)], 1, 290.0),  # one of several series stopped
        ([(1, 1.0, -3600.0), (1, 1.0)], 1, "from the future"),  # it would hide that it is late
    ],
)
def test_a_sample_that_is_late_or_gone_is_no_fresh_one(selectors, ok, lag):
    [seen] = asked(Server(there(*selectors)), series=["a", "b"])
    assert seen["ok"] == ok
    assert seen["lag"] == lag if isinstance(lag, float) else lag in seen["lag"]


@pytest.mark.lie
@pytest.mark.parametrize(
    "answer",
    [
        Server(there((1, 1.0)), warnings=["1 store did not answer"]),
        Server(there((1, 1.0)), isPartial=True),
        reply([]),
        reply([vector(hashidrill="asked"), *(vector(n=str(n)) for n in range(9))]),
        httpx2.Response(400, json={"status": "error", "error": "parse error"}),
        httpx2.Response(503, text="Service Unavailable"),
        refuse,
        hang,
    ],
)
def test_what_prometheus_does_not_surely_say_is_unknown(answer):
    [seen] = asked(answer)
    assert all(isinstance(value, str) for value in seen.values())


@pytest.mark.lie
def test_a_cached_answer_is_unknown():
    first, second = asked(Server(there((1, 1.0)), frozen=True), times=2)
    assert first["lag"] == 1
    assert "cache" in second["lag"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"series": ["rate(up[1m])"]}, "is not a series"),
        ({"series": ['{job="a"}']}, "is not a series"),
        ({"series": ["up{job=a}"]}, "is not a series"),
        ({"series": ['up{job="a" env="b"}']}, "is not a series"),
        ({"series": ['up{job=~"("}']}, "not a regular expression"),
        ({"series": ['up{job=~"(a+)+"}']}, "a search may never end"),
        ({"series": []}, "series"),
        ({"url": "http://a/?x=1"}, "has a query"),
        ({"source": "page", "each": {"a": ["b"]}}, "a probe for each page"),
        ({"look_back": "2h"}, "from 10s to 1h"),
        ({"series": ["a", "b"], "each": {"i": [str(n) for n in range(51)]}}, "102 series, over 100"),
    ],
)
def test_a_mistake_in_the_parameters_is_one_message(params, said):
    with pytest.raises(ValueError, match=said):
        MetricsParams.model_validate({"url": "http://a", "series": ["up"], **params})


def test_a_selector_is_written_as_prometheus_reads_it():
    text = 'up{job="a\\"b\\\\", env!~"x|y"}'
    assert str(Selector.parse(text)) == text
    assert str(Selector.parse("up{}").having("a", "b")) == 'up{a="b"}'
