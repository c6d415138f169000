"""What the audit says of Python clients, shown on the libraries themselves against a scripted server: each claim beside
its opposite. Where a claim is on how long a pause is, the pause is recorded instead of waited for.
"""

import logging
from concurrent import futures

import anyio
import consul
import consul.aio
import hvac
import nomad
import pytest
import requests
import tenacity
import urllib3
from nomad.api.exceptions import BaseNomadException
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from http_scripts import Answer, Scripted, failing
from polled import wait
from ports import free_ports

LEADERLESS = Answer(500, b"No cluster leader")
UNAVAILABLE = Answer(503, b'{"errors": ["Vault is sealed"]}')
DROPPED = Answer(then="drop")
KEY = Answer(body=b'[{"Key": "key", "Value": "eA==", "Flags": 0}]', headers={"X-Consul-Index": "7"})
SECRET = Answer(body=b'{"data": {"key": "value"}}')
TIMES = Answer(body=b'{"Name": "server"}')
STATUSES = [429, 500, 502, 503, 504]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    """What a machine has set for its own Consul, Vault and Nomad, and its proxies, is none of these tests'."""
    for name in ("CONSUL_HTTP_ADDR", "VAULT_ADDR", "NOMAD_ADDR", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that urllib3 would have made, in seconds; it makes none."""
    made = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", made.append)
    return made


def session(retries):
    made = requests.Session()
    made.mount("http://", HTTPAdapter(max_retries=retries))
    return made


def pool(server, retries):
    return urllib3.HTTPConnectionPool("127.0.0.1", server.port, retries=retries)


def py_consul(server, **settings):
    return consul.Consul(host="127.0.0.1", port=server.port, **settings)


def tells_in(call):
    """How a call ends: "answered", or the name of what it raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the caller gets
        return type(error).__name__
    return "answered"


# py-consul


@pytest.mark.parametrize("fault", [LEADERLESS, Answer(429, b"slow down"), DROPPED])
def test_py_consul_sends_each_request_once(fault):
    """HD601: one 500, 429 or broken connection is the caller's error; one wrapped as the fix says gets its answer."""
    with Scripted(failing(1, fault, KEY)) as server:
        assert tells_in(lambda: py_consul(server).kv.get("key")) in {
            "ConsulException",
            "ClientError",
            "ConnectionError",
        }
        assert len(server.seen) == 1

    again = tenacity.retry(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_random_exponential(0.001, max=0.01))
    with Scripted(failing(1, fault, KEY)) as server:
        _, found = again(py_consul(server).kv.get)("key")
        assert found["Value"] == b"x"
        assert len(server.seen) == 2


def test_a_connection_closed_while_nothing_was_under_way_is_no_error():
    """HD601: urllib3 sees that it is closed, and makes another; only one that ends under a request is an error."""
    with Scripted(lambda *_: Answer(body=KEY.body, headers=KEY.headers, then="close")) as server:
        client = py_consul(server)
        for number in (1, 2, 3):
            assert client.kv.get("key")[1]["Key"] == "key"
            wait("the server to close the connection", lambda number=number: server.closed == number)


def given_timeouts(monkeypatch):
    """The timeouts that requests is asked to keep to."""
    given, send = [], HTTPAdapter.send

    def note(self, *args, **keywords):
        given.append(keywords["timeout"])
        return send(self, *args, **keywords)

    monkeypatch.setattr(HTTPAdapter, "send", note)
    return given


def test_py_consul_without_a_timeout_waits_for_ever(monkeypatch):
    """HD602: beside it, one with connections_timeout gives up. By default it is 30 s."""
    given = given_timeouts(monkeypatch)
    hanging = Scripted(lambda *_: Answer(then="hang"))
    with futures.ThreadPoolExecutor(2) as threads, hanging as server:
        endless = threads.submit(tells_in, lambda: py_consul(server, connections_timeout=None).kv.get("key"))
        limited = threads.submit(tells_in, lambda: py_consul(server, connections_timeout=0.3).kv.get("key"))
        assert limited.result(10) == "ReadTimeout"
        _, waits = futures.wait([endless], timeout=0.5)
        assert waits == {endless}
        server.released.set()  # or it would wait still
        assert endless.result(10) == "ConnectionError"
    with Scripted(failing(0, LEADERLESS, KEY)) as server:
        py_consul(server).kv.get("key")
    assert sorted(given, key=str) == [0.3, 30, None]


def test_a_function_of_requests_sends_once_and_waits_for_ever(monkeypatch):
    """HD618, HD619: a 500 is an answer, and no timeout is asked for; with one, it gives up."""
    given = given_timeouts(monkeypatch)
    with Scripted(failing(1, LEADERLESS, KEY)) as server:
        assert requests.get(server.url).status_code == 500
        assert len(server.seen) == 1
    hanging = Scripted(lambda *_: Answer(then="hang"))
    with hanging as server, pytest.raises(requests.ReadTimeout):
        requests.get(server.url, timeout=0.3)
    assert given == [None, 0.3]


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
def test_asyncio_py_consul_has_the_five_minutes_of_aiohttp():
    async def given(**settings):
        client = consul.aio.Consul(**settings)
        try:
            return client.http._session.timeout.total
        finally:
            await client.http.close()

    assert anyio.run(given) == 300
    assert anyio.run(lambda: given(connections_timeout=5)) == 5


# hvac and python-nomad


def vault(server, **settings):
    return hvac.Client(server.url, token="t", **settings)


@pytest.mark.parametrize("fault", [LEADERLESS, UNAVAILABLE, DROPPED])
def test_hvac_sends_each_request_once(fault, monkeypatch):
    """HD603: a session with a urllib3 Retry, as the fix says, gets its answer. The timeout is 30 s by default."""
    given = given_timeouts(monkeypatch)
    with Scripted(failing(1, fault, SECRET)) as server:
        ended = tells_in(lambda: vault(server).secrets.kv.v1.read_secret("s"))
        assert ended in {"InternalServerError", "VaultDown", "ConnectionError"}
        assert len(server.seen) == 1
    assert given == [30]

    with Scripted(failing(1, fault, SECRET)) as server:
        retrying = vault(server, session=session(Retry(3, status_forcelist=STATUSES)))
        assert retrying.secrets.kv.v1.read_secret("s")["data"] == {"key": "value"}
        assert len(server.seen) == 2


@pytest.mark.parametrize("fault", [LEADERLESS, DROPPED])
def test_python_nomad_sends_each_request_once(fault, monkeypatch):
    """HD604: a session with a urllib3 Retry, as the fix says, gets its answer. The timeout is 5 s by default."""
    given = given_timeouts(monkeypatch)
    with Scripted(failing(1, fault, TIMES)) as server:
        with pytest.raises(BaseNomadException):
            nomad.Nomad(address=server.url).agent.get_agent()
        assert len(server.seen) == 1
    assert given == [5]

    with Scripted(failing(1, fault, TIMES)) as server:
        retrying = nomad.Nomad(address=server.url, session=session(Retry(3, status_forcelist=STATUSES)))
        assert retrying.agent.get_agent() == {"Name": "server"}
        assert len(server.seen) == 2


# urllib3's Retry


def attempts(retries, fault, method="GET", times=9):
    """How many requests one operation becomes, and how it ends: its status, or the name of what it raises."""
    with Scripted(failing(times, fault)) as server:
        try:
            ended = pool(server, retries).request(method, "/", timeout=5).status
        except urllib3.exceptions.HTTPError as error:
            ended = type(error).__name__
        return len(server.seen), ended


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_a_retry_without_status_forcelist_takes_a_status_for_an_answer(status, pauses):
    """HD611: with it, the same is retried; without it, a broken connection is, and a status with Retry-After."""
    assert attempts(Retry(3), Answer(status)) == (1, status)
    assert attempts(Retry(3, status_forcelist=[status]), Answer(status), times=1) == (2, 200)
    assert attempts(Retry(3, status_forcelist=[status]), Answer(status)) == (4, "MaxRetryError")
    assert attempts(Retry(3), DROPPED, times=1) == (2, 200)
    after = attempts(Retry(3), Answer(status, headers={"Retry-After": "1"}), times=1)
    assert after == ((2, 200) if status in {429, 503} else (1, status))


def test_retries_without_backoff_follow_at_once(pauses):
    """HD612: no pause is asked for at all; with a factor, each is twice as long as the one before."""
    assert attempts(Retry(4, status_forcelist=[503]), UNAVAILABLE)[0] == 5
    assert pauses == []
    assert attempts(Retry(4, status_forcelist=[503], backoff_factor=0.5), UNAVAILABLE)[0] == 5
    assert pauses == [1.0, 2.0, 4.0]  # the first retry follows at once even so


def test_without_jitter_clients_come_back_at_the_same_times(pauses):
    """HD613: twenty clients, one row of pauses; with jitter, twenty."""

    def rows(**settings):
        found = set()
        for _ in range(20):
            pauses.clear()
            attempts(Retry(3, status_forcelist=[503], backoff_factor=0.5, **settings), UNAVAILABLE)
            found.add(tuple(pauses))
        return found

    assert rows() == {(1.0, 2.0)}
    assert len(rows(backoff_jitter=0.5)) == 20


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("allowed", [["POST", "PATCH"], None, False])
def test_a_write_let_through_is_repeated_after_it_was_done(method, allowed, pauses):
    """HD614: the server does what it is asked, and the answer gets lost; by default the caller is told instead."""
    retries = Retry(3, status_forcelist=STATUSES)
    assert attempts(retries, DROPPED, method, times=1) == (1, "ProtocolError")
    assert attempts(retries, UNAVAILABLE, method, times=1) == (1, 503)
    let_through = Retry(3, status_forcelist=STATUSES, allowed_methods=allowed)
    assert attempts(let_through, DROPPED, method, times=1) == (2, 200)
    assert attempts(let_through, UNAVAILABLE, method, times=1) == (2, 200)


@pytest.mark.parametrize("fault", [UNAVAILABLE, DROPPED])
def test_by_default_put_and_delete_are_repeated(fault, pauses):
    """HD615: these and the methods that change nothing; with GET and HEAD allowed, these two are not."""
    said = Retry(3, status_forcelist=STATUSES)
    methods = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH")
    assert [name for name in methods if name in said.allowed_methods] == list(methods[:6])
    for method in ("PUT", "DELETE"):
        assert attempts(said, fault, method, times=1) == (2, 200)
        reads = Retry(3, status_forcelist=STATUSES, allowed_methods=["GET", "HEAD"])
        assert attempts(reads, fault, method, times=1)[0] == 1


def retried(log):
    """How often urllib3 says that it tries again."""
    return sum(record.getMessage().startswith("Retrying (") for record in log.records)


def test_a_number_of_retries_repeats_connections_at_once_and_no_status(caplog, pauses):
    """HD616: refused and broken connections and timeouts are, the latter two for PUT too, which may have been done by
    then; the Retry of the fix repeats a status as well.
    """
    caplog.set_level(logging.WARNING, "urllib3")
    by_number = session(3)
    with Scripted(failing(9, UNAVAILABLE)) as server:
        assert by_number.get(server.url).status_code == 503
        assert len(server.seen) == 1
    assert retried(caplog) == 0
    [nobody] = free_ports(1)
    assert tells_in(lambda: by_number.get(f"http://127.0.0.1:{nobody}")) == "ConnectionError"
    assert retried(caplog) == 3
    for method, requests_sent in (("GET", 4), ("PUT", 4), ("POST", 1)):
        with Scripted(failing(9, DROPPED)) as server:
            assert tells_in(lambda method=method, url=server.url: by_number.request(method, url)) == "ConnectionError"
            assert len(server.seen) == requests_sent, method
    with Scripted(failing(1, Answer(then="hang"))) as server:
        assert by_number.put(server.url, timeout=1).status_code == 200
        assert len(server.seen) == 2
    assert pauses == []

    with Scripted(failing(1, UNAVAILABLE)) as server:
        as_fixed = Retry(3, status_forcelist=STATUSES, backoff_factor=0.5, backoff_jitter=0.5)
        assert session(as_fixed).get(server.url).status_code == 200
        assert len(server.seen) == 2


# tenacity


def test_tenacity_without_stop_retries_without_end_and_without_a_pause():
    """HD617: a thousand failures do not end it, and no pause is made; with a stop, four do."""
    calls, slept = [], []

    def fails(times):
        calls.append(None)
        if len(calls) <= times:
            raise ConnectionError
        return "answered"

    bare = tenacity.retry(fails)
    bare.retry.sleep = slept.append
    assert bare(1000) == "answered"
    assert len(calls) == 1001
    assert set(slept) == {0}

    calls.clear()
    stops = tenacity.retry(stop=tenacity.stop_after_attempt(4), wait=tenacity.wait_fixed(0.001))(fails)
    with pytest.raises(tenacity.RetryError):
        stops(1000)
    assert len(calls) == 4
