"""What the tap reads and writes without h11 is what h11 would have read and written, byte by byte."""

from __future__ import annotations

import random

import h11
import pytest

from hashidrill.core.tap import wire
from hashidrill.core.tap.wire import Reply, Request

GET = b"GET /v1/kv/x?raw HTTP/1.1\r\nHost: tap\r\nUser-Agent: a b/1\r\nX-Empty: \r\n\r\n"
PUT = b"PUT /v1/kv/x HTTP/1.1\r\nhost: tap\r\nConnection: Keep-Alive\r\nContent-Length: 3\r\n\r\nabc"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Consul-Index: 7\r\nContent-Length: 5\r\n\r\nhello"


def read_by_h11(data, role=h11.SERVER, method="GET"):
    """(first line, headers, body, what is left) of the message at the start of `data`; None where h11 refuses it."""
    http = h11.Connection(role)
    if role is h11.CLIENT:
        http.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        http.send(h11.EndOfMessage())
    http.receive_data(data)
    body, head = b"", None
    try:
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                return None
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.InformationalResponse):
                return None
            else:
                head = event
    except h11.RemoteProtocolError:
        return None
    if http.their_state is not h11.DONE or http.they_are_waiting_for_100_continue:
        return None
    if isinstance(head, h11.Request):
        first = head.method.decode(), head.target.decode()
    else:
        first = head.status_code, head.reason
    return first, list(head.headers), body, http.trailing_data[0]


def read_request(data):
    found = wire.plain_request(data)
    if found is None:
        return None
    request, size = found
    return (request.method, request.target), request.headers, request.body, data[size:]


def read_reply(data):
    reply = wire.plain_reply(data)
    return None if reply is None else ((reply.status, reply.reason), reply.headers, reply.body, b"")


@pytest.mark.parametrize("data", [GET, PUT, GET + PUT, PUT + b"GET /hal", b"DELETE /x HTTP/1.1\r\nHost: \r\n\r\n"])
def test_a_plain_request_is_read_as_h11_reads_it(data):
    assert read_request(data) == read_by_h11(data)
    assert read_request(data) is not None


def test_a_whole_url_is_taken_for_its_path():
    request, _ = wire.plain_request(b"GET http://consul:8500/v1/kv/x?raw HTTP/1.1\r\nHost: consul:8500\r\n\r\n")
    assert request.target == "/v1/kv/x?raw"


NOT_PLAIN = {
    "half a head": GET[:-2],
    "half a body": PUT[:-1],
    "an old version": GET.replace(b"1.1", b"1.0"),
    "HEAD": GET.replace(b"GET", b"HEAD"),
    "CONNECT": b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n",
    "no Host": GET.replace(b"Host", b"Hose"),
    "two of Host": GET.replace(b"User-Agent", b"Host"),
    "the end of the connection": GET.replace(b"X-Empty: ", b"Connection: close"),
    "another protocol": GET.replace(b"X-Empty: ", b"Connection: upgrade"),
    "a space at the end of a value": GET.replace(b"a b/1", b"a b/1 "),
    "no space before a value": GET.replace(b": a b/1", b":a b/1"),
    "two spaces before a value": GET.replace(b": a b/1", b":  a b/1"),
    "an upgrade": GET.replace(b"X-Empty: ", b"Upgrade: h2c"),
    "a body in chunks": GET.replace(b"X-Empty: ", b"Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "a question before the body": PUT.replace(b"Connection: Keep-Alive", b"Expect: 100-continue"),
    "two lengths": PUT.replace(b"Connection: Keep-Alive", b"Content-Length: 3"),
    "two lengths, apart": PUT.replace(b"Connection: Keep-Alive", b"Content-Length: 2"),
    "a length below 0": PUT.replace(b": 3", b": -3"),
    "a length with a sign": PUT.replace(b": 3", b": +3"),
    "a length of many digits": PUT.replace(b": 3", b": " + b"0" * 30 + b"3"),
    "no length at all": PUT.replace(b": 3", b": "),
    "a folded header": GET.replace(b"a b/1", b"a\r\n b/1"),
    "a space before the colon": GET.replace(b"Host:", b"Host :"),
    "bare newlines": GET.replace(b"\r\n", b"\n"),
    "a NUL": GET.replace(b"a b/1", b"a\0b"),
    "a bare return": GET.replace(b"a b/1", b"a\rb"),
    "other letters": GET.replace(b"a b/1", "ä".encode()),
    "a space in its target": GET.replace(b"?raw", b"?r w"),
    "no HTTP": b"\x16\x03\x01 this is no HTTP\r\n\r\n",
}


@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_h11(data):
    assert wire.plain_request(data) is None


REPLIES = [
    OK,
    b"HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\n\r\n",
    b"HTTP/1.1 500 \r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
]


@pytest.mark.parametrize("data", REPLIES)
def test_a_plain_reply_is_read_as_h11_reads_it(data):
    assert read_reply(data) == read_by_h11(data, h11.CLIENT)
    assert read_reply(data) is not None


NO_PLAIN_REPLY = {
    "half a body": OK[:-1],
    "more than a body": OK + b"!",
    "half a head": OK[:30],
    "until the connection is closed": OK.replace(b"Content-Length: 5\r\n", b""),
    "until the connection is closed, nothing yet": OK.replace(b"Content-Length: 5\r\n", b"")[:-5],
    "chunks": OK.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "the end of the connection": OK.replace(b"Content-Type: text/plain", b"Connection: close"),
    "an old version": OK.replace(b"1.1", b"1.0"),
    "something before the reply": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "no reason": OK.replace(b"200 OK", b"200"),
    "a length without a body": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
}


@pytest.mark.parametrize("data", NO_PLAIN_REPLY.values(), ids=NO_PLAIN_REPLY)
def test_a_reply_that_is_not_plain_is_left_to_h11(data):
    assert wire.plain_reply(data) is None


@pytest.mark.lie
def test_whatever_is_read_without_h11_is_read_as_h11_reads_it():
    """Messages with a few bytes of theirs replaced, doubled or left out, at places that repeat from run to run."""
    chance = random.Random(4)
    bytes_at_hand = b"\r\n :,;09aZ-\t\0\x7f\xff/HT1.k"
    taken = 0
    for _ in range(8000):
        request = chance.random() < 0.5
        data = bytearray(chance.choice([GET, PUT, GET + PUT] if request else REPLIES))
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(data))
            data[at : at + chance.randint(0, 2)] = bytes([chance.choice(bytes_at_hand)] * chance.randint(0, 2))
        mine = read_request(bytes(data)) if request else read_reply(bytes(data))
        if mine is not None:
            taken += 1
            assert mine == read_by_h11(bytes(data), h11.SERVER if request else h11.CLIENT), bytes(data)
    assert taken > 500


def sent_by_h11(role, first, body):
    http = h11.Connection(role)
    if role is h11.SERVER:
        http.receive_data(GET)
        while not isinstance(http.next_event(), h11.EndOfMessage):
            pass
    parts = [first, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
    return b"".join(http.send(part) for part in parts)


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_a_request_is_written_as_h11_writes_it(body):
    headers = [(b"accept", b"*/*"), (b"host", b"tap"), (b"x-a", b""), (b"content-length", b"%d" % len(body))]
    head = h11.Request(method="PUT", target="/v1/kv/x?cas=3", headers=headers)
    assert wire.request_bytes(Request("PUT", "/v1/kv/x?cas=3", headers, body)) == sent_by_h11(h11.CLIENT, head, body)


@pytest.mark.parametrize("hosts", [0, 2])
def test_a_request_without_its_host_is_left_to_h11(hosts):
    assert wire.request_bytes(Request("GET", "/", [(b"host", b"x")] * hosts, b"")) is None


@pytest.mark.parametrize(("status", "reason", "body"), [(200, b"OK", b"hello"), (429, b"", b""), (204, b"", b"")])
def test_a_reply_is_written_as_h11_writes_it(status, reason, body):
    headers = [(b"X-Consul-Index", b"7"), (b"retry-after", b"3")]
    if status != 204:
        headers.append((b"content-length", b"%d" % len(body)))
    head = h11.Response(status_code=status, headers=headers, reason=reason)
    assert wire.reply_bytes(Reply(status, headers, body, reason)) == sent_by_h11(h11.SERVER, head, body)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, [(b"Connection", b"close"), (b"content-length", b"0")], b""),
        Reply(200, [(b"transfer-encoding", b"chunked")], b""),
        Reply(200, [(b"Content-Length", b"9"), (b"content-length", b"0")], b""),
        Reply(204, [], b"a body"),
        Reply(200, [(b"x", b"two\r\nlines: 1"), (b"content-length", b"0")], b""),
        Reply(200, [(b"x y", b"z"), (b"content-length", b"0")], b""),
        Reply(101, [(b"content-length", b"0")], b""),
        Reply(200, [(b"content-length", b"0")], b"", b"O\r\nK"),
    ],
    ids=str,
)
def test_a_reply_that_is_not_plain_is_not_written(reply):
    assert wire.reply_bytes(reply) is None
