"""The tap on real sockets: what each fault looks like to a client that knows nothing of it, and what is recorded."""

import asyncio
import contextlib
import errno
import gc
import http.client
import itertools
import os
import socket
import ssl
import struct
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial

import psutil
import pytest
import trustme

from hashidrill.core.errors import FaultError, UsageError
from hashidrill.core.tap.command import CommandError, run
from hashidrill.core.tap.plans import Always, First, ForSeconds, Nothing, OnceReused
from hashidrill.core.tap.tap import Tap, can_count_refusals
from hashidrill.core.tap.upstream import HttpUpstream, Scripted
from hashidrill.core.tap.wire import Reply
from polled import wait
from tasks import raising


def needs_packets(test):
    """Counting SYNs needs CAP_NET_RAW."""
    lacks = pytest.mark.skipif(not can_count_refusals(), reason="counting SYNs needs CAP_NET_RAW")
    return pytest.mark.may_skip("an ordinary user may not count them")(lacks(test))


class Upstream(Scripted):
    """Answers 200 and remembers what it was asked."""

    def __init__(self, headers=(), body=b"0123456789"):
        super().__init__(self.answer)
        self.asked, self.headers, self.body = [], list(headers), body

    def answer(self, request):
        self.asked.append(request)
        return Reply(200, self.headers, self.body)


def behind(plan, work, *, upstream=None, **tap):
    """`work` (blocking, gets the tap) in a thread beside it; (what it returned, the attempts, the upstream)."""
    upstream = upstream or Upstream()

    async def main():
        async with Tap(upstream, plan, **tap) as made:
            result = await asyncio.to_thread(work, made)
        return result, made.attempts, upstream

    return asyncio.run(main())


def connected(tap, timeout=5, trust=None):
    """A connection that is closed after the block; with `trust`, by TLS."""
    kind = partial(http.client.HTTPSConnection, context=trust) if trust else http.client.HTTPConnection
    return contextlib.closing(kind("127.0.0.1", tap.port, timeout=timeout))


def get(tap, *, method="GET", path="/v1/kv/x", timeout=5, body=None, headers=None, trust=None):
    """One request on a connection of its own: (status, body) or the error's class."""
    with connected(tap, timeout, trust) as connection:
        try:
            connection.request(method, path, body=body, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error)


@pytest.mark.lie
def test_a_token_passes_through_and_is_not_recorded():
    """Nor is what would let somebody else replay the request; two of them can still be told apart."""

    def requests(tap):
        get(tap, method="PUT", path="/v1/kv/x?token=hun7er&dc=dc1", headers={"Idempotency-Key": "once-4711"})
        get(tap, method="PUT", path="/v1/kv/x?token=hun7er", headers={"Idempotency-Key": "once-4712"})

    _, attempts, upstream = behind(Nothing(), requests)
    assert [request.target for request in upstream.asked] == ["/v1/kv/x?token=hun7er&dc=dc1", "/v1/kv/x?token=hun7er"]
    assert (b"idempotency-key", b"once-4711") in upstream.asked[0].headers
    assert [attempt.path for attempt in attempts] == ["/v1/kv/x?token=[redacted]&dc=dc1", "/v1/kv/x?token=[redacted]"]
    assert not any("once-47" in attempt.key or attempt.needs_a_key for attempt in attempts)
    assert len({attempt.key for attempt in attempts}) == 2


@pytest.mark.parametrize("fault", ["", "503", "reset-after-fresh", "reply-dropped"])
def test_bodies_and_what_the_client_says_can_be_told_apart_and_are_not_recorded(fault):
    def requests(tap):
        for body, said in ((b"hun7er-1", "a"), (b"hun7er-1", "a"), (b"hun7er-2", "b")):
            get(tap, method="POST", body=body, headers={"X-Correlation-Id": f"hun7er-{said}"})

    plan = Always(fault) if fault else Nothing()
    _, attempts, _ = behind(plan, requests, said_in=b"x-correlation-id")
    assert "hun7er" not in repr(attempts)
    for name in ("body", "said"):
        one, again, other = (getattr(attempt, name) for attempt in attempts)
        assert one == again != other, name


def test_a_client_that_is_led_elsewhere_keeps_its_token():
    """The redirect to a reused connection names the whole target, and not what is recorded of it."""

    def request(tap):
        with connected(tap) as connection:
            connection.request("GET", "/v1/kv/x?token=hun7er")
            return connection.getresponse().getheader("location")

    location, attempts, _ = behind(OnceReused("reset-before-reused", redirect=True), request)
    assert location == "/v1/kv/x?token=hun7er"
    assert [attempt.path for attempt in attempts] == ["/v1/kv/x?token=[redacted]"]


def test_what_is_passed_arrives_whole_and_comes_back_whole():
    result, attempts, upstream = behind(
        Nothing(), lambda tap: get(tap, method="PUT", path="/v1/kv/x?cas=3", body=b"abc", headers={"X-A": "b"})
    )
    assert result == (200, b"0123456789")
    (asked,) = upstream.asked
    assert (asked.method, asked.target, asked.body) == ("PUT", "/v1/kv/x?cas=3", b"abc")
    assert (b"x-a", b"b") in asked.headers
    (attempt,) = attempts
    assert (attempt.method, attempt.path, attempt.key) == ("PUT", "/v1/kv/x?cas=3", "cas=3")
    assert (attempt.status, attempt.received, attempt.sent, attempt.upstream) == (200, 3, 10, True)
    assert 0 < attempt.end_ns - attempt.start_ns < 5e9


GIVEN = [
    ("reset-before-fresh", ConnectionResetError, 0, False),
    ("reset-after-fresh", ConnectionResetError, 0, False),
    ("truncated-body", http.client.IncompleteRead, 0, True),
    ("reply-dropped", http.client.RemoteDisconnected, 0, True),
    ("429", 429, 429, False),
    ("503", 503, 503, False),
    ("500", 500, 500, False),
    ("502", 502, 502, False),
    ("504", 504, 504, False),
]


@pytest.mark.parametrize(("fault", "seen", "status", "upstream"), GIVEN, ids=[fault for fault, *_ in GIVEN])
def test_a_fault_is_seen_once_and_recorded_and_the_next_attempt_passes(fault, seen, status, upstream):
    (first, second), attempts, behind_it = behind(First(fault), lambda tap: (get(tap), get(tap)))
    assert (first if isinstance(first, type) else first[0]) == seen
    assert second == (200, b"0123456789")
    assert [(a.fault, a.status, a.upstream) for a in attempts] == [(fault, status, upstream), ("", 200, True)]
    assert len(behind_it.asked) == 1 + upstream


def test_no_reset_comes_while_a_client_connects_and_sends_nothing():
    """Else its connect fails or succeeds by chance, and with it a client that retries nothing but connecting."""

    def work(tap):
        with socket.create_connection(("127.0.0.1", tap.port), timeout=5) as client:
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.sendall(b"PUT /v1/kv/x HTTP/1.1\r\nHost: tap\r\nContent-Length: 1\r\n\r\n")
            client.settimeout(5)
            with pytest.raises(ConnectionResetError):
                client.recv(1)

    _, (attempt,), upstream = behind(First("reset-before-fresh"), work)
    assert (attempt.fault, attempt.method, attempt.path) == ("reset-before-fresh", "PUT", "/v1/kv/x")
    assert upstream.asked == []


def refusals(tap):
    """How often a client that comes back at once is refused until it is let in."""
    time.sleep(0.05)  # the kernel begins to stamp packets a moment after it was asked to
    seen = 0
    while get(tap) is ConnectionRefusedError:
        seen += 1
    return seen


@needs_packets
@pytest.mark.parametrize("count", [1, 2, 3, 5, 10, 20])
def test_refused_is_refused_by_the_kernel_and_counted_truly(count):
    """At least as often as planned: nobody can open a port within the microseconds in which this client comes back.

    One that comes in the very moment of opening may be counted although it was let in.
    """
    seen, attempts, _ = behind(First("refused", count), refusals)
    refused = sum(attempt.fault == "refused" for attempt in attempts)
    assert count <= refused
    assert seen <= refused <= seen + 1
    assert attempts[-1].fault == ""


@pytest.mark.lie
@needs_packets
async def test_refusals_that_the_kernel_has_no_room_for_are_counted_too():
    """A client that comes back at once comes hundreds of times while a busy machine holds up the tap."""
    count = 600

    async with Tap(Upstream(), First("refused")) as tap:
        for _ in range(count):  # nothing of the tap happens meanwhile: it has the same event loop
            with socket.socket() as client:
                assert client.connect_ex(("127.0.0.1", tap.port)) == errno.ECONNREFUSED
        async with asyncio.timeout(20):
            while not tap.attempts:
                await asyncio.sleep(0)
        attempts = tap.attempts
    assert [attempt.fault for attempt in attempts] == ["refused"] * count


async def test_a_tap_that_cannot_count_refusals_leaves_no_port_behind(monkeypatch):
    monkeypatch.setattr("hashidrill.core.tap.tap._syn_watcher", raising(FaultError("counting SYNs needs CAP_NET_RAW")))

    tap = Tap(Upstream(), plan=First("refused"))
    with pytest.raises(FaultError, match="CAP_NET_RAW"):
        async with tap:
            pass
    assert tap._door.socket.fileno() == -1


@needs_packets
def test_refused_for_a_time():
    def work(tap):
        began = time.monotonic()
        while get(tap) is ConnectionRefusedError:
            time.sleep(0.02)
        return time.monotonic() - began

    waited_s, attempts, _ = behind(ForSeconds("refused", 0.3), work)
    assert 0.25 < waited_s < 3
    assert {a.fault for a in attempts[:-1]} == {"refused"}


async def test_a_plan_may_be_changed_while_clients_come():
    async with Tap(Upstream(), First("503", 1)) as tap:
        assert (await asyncio.to_thread(get, tap))[0] == 503
        assert (await asyncio.to_thread(get, tap))[0] == 200
        await tap.give(Always("502"))
        assert (await asyncio.to_thread(get, tap))[0] == 502


def test_hang_holds_until_the_client_leaves():
    result, attempts, upstream = behind(First("hang"), lambda tap: get(tap, timeout=0.3))
    assert result is TimeoutError
    (attempt,) = attempts
    assert attempt.abandoned
    assert 0.25e9 < attempt.end_ns - attempt.start_ns < 3e9
    assert upstream.asked == []


@pytest.mark.long
def test_a_slow_body_outlives_a_timeout_of_each_read():
    def work(tap):
        with socket.create_connection(("127.0.0.1", tap.port), timeout=1.5) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: tap\r\n\r\n")
            began, pieces = time.monotonic(), 0
            while time.monotonic() - began < 1.8:
                pieces += bool(client.recv(100))
            return pieces

    pieces, attempts, _ = behind(First("slow-body"), work)
    assert pieces >= 3
    assert attempts[0].abandoned


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_says_what_is_recorded(form):
    fault = "503-retry-after" + ("-date" if form == "date" else "")

    def work(tap):
        with connected(tap) as connection:
            connection.request("GET", "/")
            return connection.getresponse().getheader("Retry-After")

    value, (attempt,), _ = behind(First(fault), work, retry_after_s=7)
    if form == "seconds":
        assert (value, attempt.retry_after_s) == ("7", 7.0)
    else:
        left_s = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        assert left_s == pytest.approx(attempt.retry_after_s, abs=1)
        assert 7 <= attempt.retry_after_s <= 8


@pytest.mark.parametrize("fault", ["reset-before-reused", "reset-after-reused"])
def test_a_reused_connection_is_reset_and_a_fresh_one_is_not(fault):
    def work(tap):
        with connected(tap) as connection:
            connection.request("GET", "/1")
            connection.getresponse().read()
            try:
                connection.request("GET", "/2")
                connection.getresponse()
            except ConnectionResetError:
                return "reset", get(tap, path="/3")

    result, attempts, _ = behind(First(fault), work)
    assert result == ("reset", (200, b"0123456789"))
    assert [(a.path, a.reused, a.fault, a.connection) for a in attempts] == [
        ("/1", False, "", 1),
        ("/2", True, fault, 1),
        ("/3", False, "", 2),
    ]


def test_a_client_that_follows_redirects_is_led_to_a_reused_connection():
    def work(tap):
        with connected(tap) as connection:
            connection.request("GET", "/v1/kv/x?raw")
            reply = connection.getresponse()
            reply.read()
            place = reply.getheader("Location")
            connection.request("GET", place)
            with pytest.raises(ConnectionResetError):
                connection.getresponse()
            return reply.status, place

    result, attempts, _ = behind(OnceReused("reset-after-reused", redirect=True), work)
    assert result == (307, "/v1/kv/x?raw")
    assert [a.fault for a in attempts] == ["", "reset-after-reused"]


def test_an_index_goes_backwards_and_a_wait_is_shortened():
    upstream = Upstream([(b"x-consul-index", b"100")])
    paths = ["/v1/kv/x", "/v1/kv/x?index=100&wait=5m", "/v1/kv/x?index=100&wait=5m"]

    def work(tap):
        return [get(tap, path=path)[0] for path in paths]

    _, attempts, _ = behind(First("index-backwards"), work, upstream=upstream, longest_wait_s=0.5)
    assert [(a.index, a.backwards) for a in attempts] == [(100, False), (50, True), (100, False)]
    assert [request.target for request in upstream.asked] == [paths[0], *["/v1/kv/x?index=100&wait=500ms"] * 2]
    assert [a.path for a in attempts] == paths


def test_what_consul_said_to_a_lock_is_noted():
    _, (attempt,), _ = behind(
        Nothing(), lambda tap: get(tap, method="PUT", path="/v1/kv/l?acquire=s"), upstream=Upstream(body=b"true\n")
    )
    assert (attempt.granted, attempt.key) == (True, "acquire=s")


def test_a_client_that_uses_the_tap_as_a_proxy_is_understood():
    result, (attempt,), upstream = behind(Nothing(), lambda tap: get(tap, path="http://consul.example/v1/kv/x?raw"))
    assert result[0] == 200
    assert (attempt.path, upstream.asked[0].target) == ("/v1/kv/x?raw", "/v1/kv/x?raw")


def test_a_tunnel_is_refused_with_a_reason():
    connect = b"CONNECT consul.example:443 HTTP/1.1\r\nHost: consul.example:443\r\n\r\n"

    def work(tap):
        with socket.create_connection(("127.0.0.1", tap.port), timeout=5) as client:
            client.sendall(connect)
            return client.recv(1000)

    result, _, _ = behind(Nothing(), work)
    assert result.startswith(b"HTTP/1.1 501 ")


def test_what_is_no_http_is_answered_by_closing():
    def work(tap):
        with socket.create_connection(("127.0.0.1", tap.port), timeout=5) as client:
            client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            return client.recv(1000)

    result, attempts, _ = behind(Nothing(), work)
    assert (result, attempts) == (b"", [])


def test_a_client_that_resets_in_the_middle_of_its_request_does_no_harm():
    def work(tap):
        client = socket.create_connection(("127.0.0.1", tap.port), timeout=5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"PUT /v1/kv/x HTTP/1.1\r\nHost: tap\r\nContent-Length: 100\r\n\r\nhalf")
        client.close()
        return get(tap)

    result, attempts, _ = behind(Nothing(), work)
    assert result[0] == 200
    assert [a.status for a in attempts if a.method == "GET"] == [200]


# connections, byte by byte

GET = b"GET /v1/kv/%d HTTP/1.1\r\nHost: tap\r\n\r\n"
PUT = b"PUT /v1/kv/%d HTTP/1.1\r\nHost: tap\r\nContent-Length: 3\r\n\r\nabc"
CHUNKS = b"PUT /v1/kv/%d HTTP/1.1\r\nHost: tap\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
EXPECTS = b"PUT /v1/kv/%d HTTP/1.1\r\nHost: tap\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
HEAD = b"HEAD /v1/kv/%d HTTP/1.1\r\nHost: tap\r\n\r\n"
LAST = b"GET /v1/kv/%d HTTP/1.1\r\nHost: tap\r\nConnection: close\r\n\r\n"


def said(tap, pieces):
    """What comes back to these pieces, each sent once there is an answer to the one before, until it is closed."""
    with socket.create_connection(("127.0.0.1", tap.port), timeout=5) as client:
        received = b""
        for count, piece in enumerate(pieces, start=1):
            client.sendall(piece)
            while count < len(pieces) and received.count(b"HTTP/1.1 200") < count:
                received += client.recv(65536)
        while more := client.recv(65536):
            received += more
        return received


LIST = b"LIST /v1/kv/%d HTTP/1.1\r\nHost: tap\r\n\r\n"
"""A method of Vault's clients, which parsers with a list of methods refuse."""
FORMS = {"GET": GET, "PUT": PUT, "chunks": CHUNKS, "expects": EXPECTS, "HEAD": HEAD, "LIST": LIST}


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "one-by-one"])
def test_requests_of_every_form_follow_each_other_on_one_connection(first, second, at_once):
    """What is pipelined stays in its order."""
    pieces = [form % number for number, form in enumerate([FORMS[first], FORMS[second], FORMS[first], LAST])]
    received, attempts, upstream = behind(
        Nothing(), lambda tap: said(tap, [b"".join(pieces)] if at_once else pieces), upstream=Upstream()
    )
    assert received.count(b"HTTP/1.1 200 ") == 4
    assert [(a.path, a.reused, a.status, a.connection) for a in attempts] == [
        (f"/v1/kv/{number}", number > 0, 200, 1) for number in range(4)
    ]
    assert [request.body for request in upstream.asked] == [b"abc" * (b"abc" in piece) for piece in pieces]
    assert all(earlier.end_ns <= later.start_ns for earlier, later in itertools.pairwise(attempts))


def test_a_request_that_comes_byte_by_byte_is_one_attempt_from_its_first_byte():
    def work(tap):
        with socket.create_connection(("127.0.0.1", tap.port), timeout=5) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(len(PUT % 1)):
                client.sendall((PUT % 1)[at : at + 1])
                time.sleep(0.002)
            return client.recv(1000)

    result, (attempt,), upstream = behind(Nothing(), work)
    assert result.startswith(b"HTTP/1.1 200 ")
    assert (attempt.received, upstream.asked[0].body) == (3, b"abc")
    assert attempt.end_ns - attempt.start_ns > 0.002e9 * 50


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, [(b"connection", b"close")], b"last"),
        Reply(200, [(b"transfer-encoding", b"chunked")], b"last"),
    ],
    ids=["close", "chunked"],
)
def test_a_script_may_end_the_connection_or_answer_in_chunks(reply):
    """Also in the middle of requests that were sent at once."""
    received, attempts, _ = behind(
        Nothing(), lambda tap: said(tap, [GET % 0 + GET % 1 + LAST % 2]), upstream=Scripted(lambda _: reply)
    )
    assert received.count(b"last") == len(attempts) == (1 if reply.headers[0][1] == b"close" else 3)


def test_a_reply_that_is_no_http_closes_the_connection():
    wrong = Scripted(lambda _: Reply(200, [(b"x", b"two\r\nlines: 1")], b""))
    received, _, _ = behind(Nothing(), lambda tap: said(tap, [GET % 0 + LAST % 1]), upstream=wrong)
    assert received == b""


async def test_replies_are_not_held_back_for_the_acknowledgement_of_the_one_before():
    """TCP_NODELAY: else a reply that follows another one waits up to 40 ms, or for the client's next request."""

    async with Tap(Upstream()) as tap:
        _, writer = await asyncio.open_connection("127.0.0.1", tap.port)
        await tap_has(tap, 1)
        (connection,) = tap._open
        options = connection.transport.get_extra_info("socket")
        assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


async def tap_has(tap, connections):
    async with asyncio.timeout(5):
        while len(tap._open) != connections:
            await asyncio.sleep(0.01)


class Slow(Scripted):
    """Answers never; says when it was asked and when the question was taken back."""

    def __init__(self):
        super().__init__()
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    async def ask(self, request):
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.mark.parametrize("first", [GET, CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("how", ["FIN", "RST", "the tap closes"])
async def test_a_client_that_leaves_before_its_reply_ends_the_question_to_the_upstream(first, how):
    upstream = Slow()
    async with Tap(upstream) as tap:
        _, writer = await asyncio.open_connection("127.0.0.1", tap.port)
        writer.write(first % 1)
        await asyncio.wait_for(upstream.asked.wait(), 5)
        if how == "FIN":
            writer.close()
        elif how == "RST":
            writer.transport.abort()
        else:
            await tap.close()
        await asyncio.wait_for(upstream.cancelled.wait(), 5)
        await tap_has(tap, 0)
        writer.close()
        (attempt,) = tap.attempts
    assert (attempt.abandoned, attempt.status, attempt.path) == (True, 0, "/v1/kv/1")


async def test_a_client_that_leaves_while_the_tap_closes_stops_nothing():
    """Both end the same task at the same moment."""

    upstream = Slow()
    async with Tap(upstream) as tap:
        _, writer = await asyncio.open_connection("127.0.0.1", tap.port)
        writer.write(GET % 1)
        await asyncio.wait_for(upstream.asked.wait(), 5)
        (connection,) = tap._open
        async with asyncio.timeout(5):
            connection.connection_lost(None)
            await tap.close()
        writer.close()
        attempts, cancelled = tap.attempts, connection.task.cancelled()
    assert ([a.abandoned for a in attempts], cancelled) == ([True], True)


# the upstream, byte by byte


PLAIN = b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nContent-Length: 5\r\n\r\nhello"


class Canned:
    """A server that answers request after request, on each connection anew, with pieces of its own; None closes."""

    def __init__(self, *replies):
        self.replies, self.connections, self.asked = replies, 0, b""
        self.pieces, self.closed = 0, 0

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._answer(reader, writer)
        finally:
            writer.close()
            self.closed += 1

    async def _answer(self, reader, writer):
        for pieces in self.replies:
            self.asked += await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                if piece is None:
                    return
                writer.write(piece)
                await writer.drain()
                self.pieces += 1
                await asyncio.sleep(0.02)
        await reader.read(1)

    def asked_by(self, work, plan=None):
        """`work` is done in a thread beside it."""

        async def main():
            server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            async with server, Tap(HttpUpstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), plan) as tap:
                return await asyncio.to_thread(work, tap), tap

        return asyncio.run(main())


WHOLE = {
    "plain": [PLAIN],
    "in two pieces": [PLAIN[:-3], PLAIN[-3:]],
    "head and body apart": [PLAIN[:-5], PLAIN[-5:]],
    "head in two pieces": [PLAIN[:20], PLAIN[20:]],
    "in chunks": [
        b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n",
        b"3\r\nllo\r\n0\r\n\r\n",
    ],
    "until the end": [PLAIN.replace(b"Content-Length: 5\r\n", b""), None],
    "by HTTP/1.0": [b"HTTP/1.0 200 OK\r\nX-Consul-Index: 7\r\n\r\nhe", b"llo", None],
    "the last one": [PLAIN.replace(b"X-Consul", b"Connection: close\r\nX-Consul"), None],
    "after a 103": [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN],
    "and closed": [PLAIN, None],
}


@pytest.mark.parametrize("reply", WHOLE.values(), ids=WHOLE)
def test_a_whole_reply_of_every_form_comes_through_and_so_does_the_next_one(reply):
    canned = Canned(reply, [PLAIN])

    def work(tap):
        found = []
        with connected(tap) as connection:
            for _ in range(2):
                connection.request("GET", "/v1/kv/x")
                answer = connection.getresponse()
                found.append((answer.status, answer.getheader("X-Consul-Index"), answer.read()))
                if reply[-1] is None:
                    wait("the end of the connection", lambda: canned.closed)
                time.sleep(0.05)  # the tap, on the same event loop, has seen it by then
        return found

    found, tap = canned.asked_by(work)
    assert found == [(200, "7", b"hello")] * 2
    assert tap.upstream_errors == []
    assert [(a.index, a.sent, a.upstream) for a in tap.attempts] == [(7, 5, True)] * 2
    assert canned.connections == (1 if reply[-1] is not None else 2)


BROKEN = {
    "nothing": [None],
    "half a head": [PLAIN[:20], None],
    "half a body": [PLAIN[:-2], None],
    "half of the chunks": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", None],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"],
    "another protocol": [b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"],
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_half_a_reply_is_the_upstreams_error_and_the_next_request_has_a_connection_of_its_own(reply):
    canned = Canned(reply)

    def work(tap):
        first = get(tap)
        canned.replies = ([PLAIN],)
        return first, get(tap)

    (first, second), tap = canned.asked_by(work)
    assert first[0] == 502
    assert b"did not answer" in first[1]
    assert second == (200, b"hello")
    assert [(a.status, a.upstream) for a in tap.attempts] == [(502, False), (200, True)]


LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("reply", [[PLAIN, LATE], [PLAIN + LATE]], ids=["afterwards", "with-its-reply"])
def test_what_the_upstream_says_unasked_is_no_answer_to_the_next_request(reply):
    canned = Canned(reply, [PLAIN])

    def work(tap):
        with connected(tap) as connection:
            found = []
            for _ in range(2):
                connection.request("GET", "/v1/kv/x")
                answer = connection.getresponse()
                found.append((answer.status, answer.read()))
                wait("the reply", lambda: canned.pieces >= len(reply))
                time.sleep(0.05)  # the tap, on the same event loop, has seen it by then
        return found

    found, _ = canned.asked_by(work)
    assert found == [(200, b"hello")] * 2
    assert canned.connections == 2


def test_what_the_upstream_is_asked_has_no_headers_of_the_clients_connection():
    canned = Canned([PLAIN])
    canned.asked_by(lambda tap: get(tap, headers={"Connection": "keep-alive", "TE": "trailers", "X-A": "b"}))
    lines = canned.asked.split(b"\r\n")
    assert lines[0] == b"GET /v1/kv/x HTTP/1.1"
    assert lines[1].startswith(b"host: 127.0.0.1:")
    assert sorted(lines[2:]) == [b"", b"", b"accept-encoding: identity", b"x-a: b"]


def test_an_upstream_that_is_not_there_is_no_fault_of_the_clients():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"

        async def main():
            async with Tap(HttpUpstream(url)) as tap:
                return await asyncio.to_thread(get, tap), tap.attempts, tap.upstream_errors

        (status, body), (attempt,), errors = asyncio.run(main())
    assert (status, attempt.upstream, attempt.fault) == (502, False, "")
    assert url in body.decode()
    assert len(errors) == 1


@pytest.mark.parametrize("url", ["consul:8500", "ftp://x", "http://", "http://x:y"])
def test_an_upstream_that_is_no_url_is_named(url):
    with pytest.raises(UsageError, match="write it like http://"):
        HttpUpstream(url)


def test_tls_on_both_sides():
    ca = trustme.CA()
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("127.0.0.1", "localhost").configure_cert(server)
    ca.configure_trust(trust)

    async def main():
        behind_it = Upstream()
        async with Tap(behind_it, tls=server) as upstream:
            url = upstream.url
            async with Tap(HttpUpstream(url, trust=trust), First("reset-after-fresh"), tls=server) as tap:
                first = await asyncio.to_thread(get, tap, trust=trust)
                return first, await asyncio.to_thread(get, tap, trust=trust), tap.url, len(behind_it.asked)

    first, second, url, asked = asyncio.run(main())
    assert issubclass(first, OSError)
    assert (second, asked) == ((200, b"0123456789"), 1)
    assert url.startswith("https://")


async def test_a_port_that_is_taken_is_named():
    async with Tap() as tap:
        with pytest.raises(FaultError, match=f"cannot listen on 127.0.0.1:{tap.port}"):
            await Tap(port=tap.port).__aenter__()


# commands


def ran(command, within_s=10.0, **options):
    async def main():
        return await run(command, {"PATH": "/usr/bin:/bin"}, within_s=within_s, **options)

    return asyncio.run(main())


def alive_in_group(group):
    """Its processes but for zombies, which are dead and only not yet reaped by whoever adopted them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
    return found


def test_a_command_that_ends_says_how():
    ended = ran(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (ended.status, ended.note, ended.output) == (7, "exit status 7", "out\nerr")


def test_a_command_that_hangs_is_ended_with_all_its_children():
    began = time.monotonic()
    ended = ran(["sh", "-c", "echo $$; sleep 98765 & sleep 98765"], within_s=0.3)
    assert ended.note == "stopped after 0.3s"
    assert time.monotonic() - began < 5
    # SIGKILL is sent to all at once; a busy machine takes a moment over it
    wait("its end", lambda: not alive_in_group(int(ended.output)))


def test_a_command_whose_child_keeps_the_pipe_open_does_not_hold_us():
    began = time.monotonic()
    assert ran(["sh", "-c", "sleep 98765 & exit 0"]).ok
    assert time.monotonic() - began < 5


def test_a_command_that_floods_is_ended_with_a_reason():
    with pytest.raises(CommandError, match="more than 8 MiB of output"):
        ran(["sh", "-c", "yes"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-command-here"], "there is no such command"),
        (["/etc/passwd"], "cannot be run"),
        ([], "write it after --"),
    ],
)
def test_a_command_that_cannot_start_is_named(command, message):
    with pytest.raises(UsageError, match=message):
        ran(command)


def test_a_command_is_stopped_when_there_is_enough():
    ended = ran(["sleep", "98765"], stop_when=lambda: "after 90 attempts")
    assert (ended.ok, ended.note) == (False, "stopped after 90 attempts")


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_comes_as_the_tap_closes_is_not_left_open(turns):
    """Accepted, or with a connection made, or with a task that had not begun: it hears of the end in each case."""

    async def main():
        tap = Tap(Upstream(), Nothing())
        async with tap:
            client = socket.create_connection(("127.0.0.1", tap.port), timeout=5)
            for _ in range(turns):
                await asyncio.sleep(0)
        return client

    with contextlib.closing(asyncio.run(main())) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    gc.collect()  # a transport that nobody closed would warn, which is an error here
