"""http and prometheus probes: what a good answer is, and that no lie of a server is one."""

import inspect
import json

import anyio
import httpx2
import pytest

from hashidrill.core.probes.declared import ProbeContext
from hashidrill.core.probes.http import MOST_BYTES, HttpParams, HttpProbe
from hashidrill.core.probes.prometheus import PrometheusParams, PrometheusProbe
from virtual_time import ran, run

HOSTS = ProbeContext({"client-1": "10.73.0.31"}, {"the variable T": "s3cret-token", "the file /p": "pa55word!"})
URL = "http://client-1:8500/v1/status/leader"


@ran
async def looked(probe, times=1):
    """The samples of so many looks: a mapping of value or reason by signal for each."""
    seen = []
    for _ in range(times):
        samples = await probe.sample()
        assert {one.signal for one in samples} == {f"it.{signal}" for signal in probe.signals}, "one of each, always"
        assert all(one.ok == (one.value is not None) for one in samples)
        seen.append({one.signal.removeprefix("it."): one.text if one.value is None else one.value for one in samples})
        await anyio.sleep(1)
    await probe.aclose()
    return seen


def http(answer, **params):
    return HttpProbe(
        "it",
        HttpParams.model_validate({"url": URL, **params}),
        HOSTS,
        transport=httpx2.MockTransport(answer if callable(answer) else lambda _: answer),
    )


def answered(answer, **params):
    [seen] = looked(http(answer, **params))
    return seen


READY = {"data": {"items": [{"ready": True, "lag": 12.5}], "name": "web"}}


@pytest.mark.parametrize(
    ("answer", "params", "expected"),
    [
        (httpx2.Response(204), {}, {"ok": 1, "status": 204}),
        (httpx2.Response(429), {"status": [200, 429]}, {"ok": 1, "status": 429}),
        (httpx2.Response(200, json=READY), {"json": "data.items.0.lag"}, {"ok": 1, "value": 12.5}),
        (httpx2.Response(200, json=READY), {"json": "data.items.0.ready", "equals": "true"}, {"ok": 1}),
        (httpx2.Response(200, json=READY), {"json": "data.name", "equals": "web"}, {"ok": 1}),
        (httpx2.Response(200, text="# a\nup{a} 7e2\n"), {"regex": r"^up\S* (\S+)"}, {"ok": 1, "value": 700}),
        (httpx2.Response(200, text='"10.73.0.11:8300"'), {"regex": ":8300"}, {"ok": 1}),
    ],
)
def test_a_good_answer(answer, params, expected):
    seen = answered(answer, **params)
    assert {signal: seen[signal] for signal in expected} == expected


def endless(_):
    async def body():
        while True:
            yield b"x" * 65536

    return httpx2.Response(200, content=body())


def trickle(_):
    async def body():
        while True:
            yield b"x"
            await anyio.sleep(0.4)

    return httpx2.Response(200, content=body())


async def hang(_):
    await anyio.sleep(3600)


def refuse(_):
    raise httpx2.ConnectError("connection refused")


def garbage(_):
    raise httpx2.RemoteProtocolError("illegal status line")


def bomb(_):
    return httpx2.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx2.ByteStream(b"\x1f\x8b..."))


def around(request):
    return httpx2.Response(302, headers={"Location": f"{request.url.path}x"})


JSON = {"json": "data.items.0.lag"}
LIES = {
    "an error": (httpx2.Response(500), {}),
    "a redirect": (httpx2.Response(302, headers={"Location": "/elsewhere"}), {}),
    "a redirect to another host": (httpx2.Response(302, headers={"Location": "http://other/"}), {"redirects": 5}),
    "a redirect to another port": (httpx2.Response(302, headers={"Location": "//client-1:80/"}), {"redirects": 5}),
    "a redirect without a place": (httpx2.Response(302), {"redirects": 5}),
    "redirects for ever": (around, {"redirects": 5}),
    "a status that is good elsewhere": (httpx2.Response(200), {"status": [201]}),
    "a page instead of JSON": (httpx2.Response(200, text="<html>"), JSON),
    "JSON without the place": (httpx2.Response(200, json={"data": {"items": []}}), JSON),
    "JSON that is nested for ever": (httpx2.Response(200, content=b"[" * 100_000), JSON),
    "another value": (httpx2.Response(200, json=READY), {"json": "data.name", "equals": "api"}),
    "true as text for a number": (httpx2.Response(200, json=READY), {"json": "data.items.0.ready", "equals": "1"}),
    "no line that matches": (httpx2.Response(200, text="down"), {"regex": "^up"}),
    "a gigabyte": (endless, {}),
    "a byte now and then": (trickle, {}),
    "an encoding that was not asked for": (bomb, {}),
    "nothing": (hang, {}),
    "no connection": (refuse, {}),
    "what is not HTTP": (garbage, {}),
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", LIES)
def test_a_bad_answer_is_no_good_one(lie):
    answer, params = LIES[lie]
    seen = answered(answer, **params)
    assert seen["ok"] != 1, "0, or unknown with a reason"
    assert isinstance(seen["value"], str)
    assert seen["value"], "and the reason is there"


@pytest.mark.lie
@pytest.mark.parametrize("figure", ["NaN", "Infinity", "-inf", "1e999", "0x10", "\u0661", "12 apples", "", "1_000"])
def test_what_is_no_finite_number_is_no_value(figure):
    seen = answered(httpx2.Response(200, content=json.dumps({"a": figure}).encode()), json="a")
    assert isinstance(seen["value"], str)


@pytest.mark.lie
def test_a_body_that_is_too_large_says_nothing_and_one_that_just_fits_does():
    assert isinstance(answered(httpx2.Response(200, content=b"x" * (MOST_BYTES + 1)))["ok"], str)
    assert answered(httpx2.Response(200, content=b"x" * MOST_BYTES))["ok"] == 1


@pytest.mark.lie
def test_a_runner_that_was_late_blames_no_target():
    async def stall(_):
        import asyncio

        asyncio.get_running_loop().advance(2.0)
        await anyio.sleep(3600)

    assert "the runner itself" in answered(stall)["ok"]
    assert answered(hang)["ok"] == 0


def test_a_host_is_reached_by_its_name_and_each_secret_goes_to_the_server_alone():
    asked = []

    def answer(request):
        asked.append(request)
        return httpx2.Response(200, text=f"you said {request.headers['X-Token']}")

    params = {"headers": {"X-Token": {"env": "T"}}, "basic": {"username": "me", "password": {"file": "/p"}}}
    probe = http(answer, **params)
    [samples] = run(_samples(probe))
    assert asked[0].url.host == "10.73.0.31"
    assert asked[0].headers["Host"] == "client-1:8500"
    assert asked[0].headers["Authorization"].startswith("Basic ")
    said = repr(samples) + repr(probe.params) + repr(probe.context)
    assert "s3cret" not in said, "neither the body nor the secret is kept"
    assert "pa55word" not in said


async def _samples(probe):
    return [await probe.sample()]


def test_a_body_is_kept_only_where_that_is_asked_for():
    [kept] = run(_samples(http(httpx2.Response(200, text="hello"), keep=True)))
    [left] = run(_samples(http(httpx2.Response(200, text="hello"))))
    assert "hello" in kept[0].text
    assert "hello" not in left[0].text


# Prometheus


def vector(value="1", *, at=1000.0, **metric):
    return {"metric": metric, "value": [at, value]}


class Server:
    """A Prometheus that says, look after look, what the entries of `told` say.

    An entry is a response, or the values of the queries by their names, maybe as a function of the time, or one value
    and how many seconds ago it was sampled. `frozen`: it evaluates nothing again.
    """

    def __init__(self, *told, labels=None, frozen=False, **more):
        self.told, self.labels, self.frozen, self.more, self.asked = list(told), labels or {}, frozen, more, 0

    async def __call__(self, request):
        self.query = dict(httpx2.QueryParams(request.content.decode()).multi_items())["query"]
        said = self.told[min(self.asked, len(self.told) - 1)]
        self.asked += 1
        now_s = 1000.0 if self.frozen or "frozen" in str(said) else 1000.0 + self.asked
        if callable(said):
            said = said(now_s)
        if inspect.isawaitable(said):
            said = await said
        if isinstance(said, httpx2.Response):
            return said
        if isinstance(said, str | tuple):
            value, age_s, *_ = said if isinstance(said, tuple) else (said, 0.0)
            said = {"value": value, "taken": now_s - age_s}
        parts = {"asked": 1, **said}.items()
        return reply(
            [vector(str(value), at=now_s, hashidrill=what, **self.labels) for what, value in parts], **self.more
        )


def prometheus(answer, times=1, **params):
    given = PrometheusParams.model_validate({"url": "http://client-1:9090", "query": "up", **params})
    transport = httpx2.MockTransport(answer if callable(answer) else lambda _: answer)
    seen = looked(PrometheusProbe("it", given, HOSTS, transport=transport), times)
    return [one["value"] for one in seen]


def reply(result, kind="vector", **more):
    body = {"status": "success", "data": {"resultType": kind, "result": result}, **more}
    return httpx2.Response(200, json=body)


def test_a_value_and_the_rate_of_a_counter():
    assert prometheus(Server("3.5", labels={"job": "web"}), labels={"job": "web"}) == [3.5]
    rates = prometheus(Server("10", "30", "35"), times=3, counter=True)
    assert isinstance(rates[0], str)
    assert rates[1:] == [20, 5]


PROMETHEUS_LIES = {
    "no such series": reply([]),
    "two series": reply([vector(), vector(host="b")]),
    "NaN": Server("NaN"),
    "+Inf": Server("+Inf"),
    "-Inf": Server("-Inf"),
    "a word": Server("up"),
    "a stale sample": Server(("1", 70.0)),
    "another label": Server("1", labels={"job": "api"}),
    "a matrix": reply([{"metric": {}, "values": [[1, "1"]]}], "matrix"),
    "a scalar": reply([1000, "1"], "scalar"),
    "a histogram": reply([{"metric": {}, "histogram": [1, {}]}]),
    "an answer with warnings": reply([vector()], warnings=["1 store did not answer"]),
    "a part of the answer": reply([vector()], isPartial=True),
    "an error with 200": httpx2.Response(200, json={"status": "error", "error": "x"}),
    "a refusal": httpx2.Response(422, json={"status": "error", "error": "parse error"}),
    "a login page": httpx2.Response(200, text="<html>sign in"),
    "a redirect": httpx2.Response(302, headers={"Location": "/login"}),
    "it restarts": httpx2.Response(503, text="Service Unavailable"),
    "no connection": refuse,
    "nothing": hang,
    "a gigabyte": endless,
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", PROMETHEUS_LIES)
def test_what_prometheus_does_not_surely_say_is_unknown(lie):
    answer = PROMETHEUS_LIES[lie]
    if isinstance(answer, Server):
        answer.asked = 0
    [value] = prometheus(answer, labels={"job": "web"} if lie == "another label" else {})
    assert isinstance(value, str)
    assert value not in {"", "not measured"}, "there is a reason"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("told", "known"),
    [
        (["1", ("1", 0.0, "frozen"), "1"], [True, False, True]),  # a cache that answers with an old evaluation
        (["1", httpx2.Response(503), "1"], [True, False, True]),  # it restarts
    ],
)
def test_a_look_that_fails_is_alone_unknown(told, known):
    first = [("1", 0.0, "frozen"), *told[1:]] if "frozen" in str(told) else told
    assert [not isinstance(one, str) for one in prometheus(Server(*first), times=3)] == known


@pytest.mark.lie
@pytest.mark.parametrize(
    ("told", "known"),
    [
        (["100", "5", "6"], [False, False, True]),  # a reset
        (["100", httpx2.Response(503), "900", "901"], [False, False, False, True]),  # a reset may hide in a gap
        (["100", ("101", 1.0), ("101", 2.0)], [False, False, False]),  # no later sample than before
    ],
)
def test_the_rate_of_a_counter_is_unknown_across_resets_and_gaps(told, known):
    assert [not isinstance(one, str) for one in prometheus(Server(*told), times=len(told), counter=True)] == known
