"""What the tap reads and writes is what h11, a parser that shares nothing with it, reads and writes, byte by byte."""

import random

import h11
import pytest

from hashidrill.core.tap import wire
from hashidrill.core.tap.wire import Reply, Request

GET = b"GET /v1/kv/x?raw HTTP/1.1\r\nHost: tap\r\nUser-Agent: a b/1\r\nX-Empty: \r\n\r\n"
PUT = b"PUT /v1/kv/x HTTP/1.1\r\nhost: tap\r\nConnection: Keep-Alive\r\nContent-Length: 3\r\n\r\nabc"
CHUNKS = (
    b"POST /x HTTP/1.1\r\nHost: tap\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nc\r\n1;n=v\r\nd\r\n0\r\nX-T: 1\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Consul-Index: 7\r\nContent-Length: 5\r\n\r\nhello"


def read_by_h11(data, role=h11.SERVER, method="GET"):
    """(first line, headers, body, what is left, whether the connection goes on); None where h11 refuses or waits."""
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
            else:
                head = event
    except h11.RemoteProtocolError:
        return None
    isa_request = isinstance(head, h11.Request)
    first = (head.method.decode(), head.target) if isa_request else (head.status_code, head.reason)
    return first, list(head.headers), body, http.trailing_data[0], http.their_state is not h11.MUST_CLOSE


def read(data, role=h11.SERVER, method="GET"):
    """The same by the tap."""
    left = bytearray(data)
    try:
        while True:
            is_request = role is h11.SERVER
            head = wire.take_request(left) if is_request else wire.take_reply(left, to_head=method == "HEAD")
            if head is None or is_request or head.status >= 200:
                break
        body = None if head is None else wire.Body(head).take(left)
    except wire.ProtocolError:
        return None
    if body is None:
        return None
    return (head.method or head.status, head.first), head.headers, body, bytes(left), head.keeps


REQUESTS = {
    "GET": GET,
    "PUT": PUT,
    "pipelined": GET + PUT,
    "the beginning of the next": PUT + b"GET /hal",
    "an empty Host": b"DELETE /x HTTP/1.1\r\nHost: \r\n\r\n",
    "a method of Vault's": GET.replace(b"GET", b"LIST"),
    "HEAD": GET.replace(b"GET", b"HEAD"),
    "CONNECT": b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n",
    "a whole URL": b"GET http://consul:8500/v1/kv/x?raw HTTP/1.1\r\nHost: consul:8500\r\n\r\n",
    "an old version": GET.replace(b"1.1", b"1.0"),
    "an old version without Host": b"GET / HTTP/1.0\r\n\r\n",
    "the end of the connection": GET.replace(b"X-Empty: ", b"Connection: close"),
    "an offer of HTTP/2": PUT.replace(b"Connection: Keep-Alive", b"Connection: Upgrade\r\nUpgrade: h2c"),
    "spaces around a value": GET.replace(b": a b/1", b":  a b/1 \t"),
    "no space before a value": GET.replace(b": a b/1", b":a b/1"),
    "other letters in a value": GET.replace(b"a b/1", "ä".encode()),
    "chunks": CHUNKS + GET,
    "chunks, and an offer of HTTP/2": CHUNKS.replace(b"Host: tap", b"Host: tap\r\nConnection: Upgrade\r\nUpgrade: h2c"),
}


@pytest.mark.parametrize("data", REQUESTS.values(), ids=REQUESTS)
def test_a_request_is_read_as_h11_reads_it(data):
    assert read(data) == read_by_h11(data)
    assert read(data) is not None


def test_a_whole_url_is_taken_for_its_path():
    assert wire.origin_form(b"http://consul:8500/v1/kv/x?raw") == "/v1/kv/x?raw"


@pytest.mark.parametrize("data", [PUT, CHUNKS], ids=["length", "chunks"])
def test_a_message_that_comes_byte_by_byte_is_read_once_it_is_whole(data):
    left, head, body = bytearray(), None, None
    for at in range(len(data)):
        assert body is None
        left += data[at : at + 1]
        if head is None:
            head = wire.take_request(left)
            rest = head and wire.Body(head)
        if head is not None:
            body = rest.take(left)
    assert (body, bytes(left)) == (read_by_h11(data)[2], b"")


NOT_WHOLE = {"half a head": GET[:-2], "half a body": PUT[:-1], "half of the chunks": CHUNKS[:-2], "nothing": b""}


@pytest.mark.parametrize("data", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_a_message_that_is_not_whole_is_waited_for(data):
    left = bytearray(data)
    head = wire.take_request(left)
    assert head is None or wire.Body(head).take(left) is None


NO_REQUEST = {
    "no Host": GET.replace(b"Host", b"Hose"),
    "two of Host": GET.replace(b"User-Agent", b"Host"),
    "two lengths": PUT.replace(b"Connection: Keep-Alive", b"Content-Length: 2"),
    "a length and chunks": PUT.replace(b"Connection: Keep-Alive", b"Transfer-Encoding: chunked"),
    "another coding": CHUNKS.replace(b"chunked", b"gzip, chunked"),
    "no number of a chunk": CHUNKS.replace(b"3\r\na", b"x\r\na"),
    "a length below 0": PUT.replace(b": 3", b": -3"),
    "a length with a sign": PUT.replace(b": 3", b": +3"),
    "a length of many digits": PUT.replace(b": 3", b": " + b"9" * 30),
    "no length at all": PUT.replace(b": 3", b": "),
    "a space before the colon": GET.replace(b"Host:", b"Host :"),
    "bare newlines": GET.replace(b"\r\n", b"\n"),
    "one bare newline": GET.replace(b"\r\n\r\n", b"\n\r\n"),
    "a NUL": GET.replace(b"a b/1", b"a\0b"),
    "a bare return": GET.replace(b"a b/1", b"a\rb"),
    "a space in its target": GET.replace(b"?raw", b"?r w"),
    "two spaces": GET.replace(b" /v1", b"  /v1"),
    "other letters in its target": GET.replace(b"?raw", "?ä".encode()),
    "a version to come": GET.replace(b"1.1", b"2.0"),
    "TLS": b"\x16\x03\x01",
    "a head without an end": b"GET /" + b"x" * 70_000,
}


@pytest.mark.lie
@pytest.mark.parametrize("data", NO_REQUEST.values(), ids=NO_REQUEST)
def test_what_is_not_http_is_refused(data):
    with pytest.raises(wire.ProtocolError):  # noqa: PT012 - the head or the body is wrong
        left = bytearray(data)
        wire.Body(wire.take_request(left)).take(left)


@pytest.mark.lie
@pytest.mark.parametrize("data", [PUT, CHUNKS], ids=["length", "chunks"])
def test_a_body_over_the_limit_is_refused(data):
    left = bytearray(data)
    with pytest.raises(wire.ProtocolError, match="over 2 bytes"):
        wire.Body(wire.take_request(left), 2).take(left)


@pytest.mark.parametrize(("value", "waits"), [(b"100-Continue", True), (b"200-ok", False)])
def test_a_client_may_wait_before_it_sends_its_body(value, waits):
    data = PUT.replace(b"Connection: Keep-Alive", b"Expect: " + value)
    assert read(data) == read_by_h11(data)
    assert wire.take_request(bytearray(data)).waits is waits


REPLIES = {
    "OK": OK,
    "no body": b"HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\n\r\n",
    "no reason": b"HTTP/1.1 500 \r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    "no space for a reason": OK.replace(b"200 OK", b"200"),
    "more than a body": OK + b"!",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "the end of the connection": OK.replace(b"Content-Type: text/plain", b"Connection: close"),
    "an old version": OK.replace(b"1.1", b"1.0"),
    "something before the reply": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "a length without a body": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
}


@pytest.mark.parametrize("data", REPLIES.values(), ids=REPLIES)
def test_a_reply_is_read_as_h11_reads_it(data):
    assert read(data, h11.CLIENT) == read_by_h11(data, h11.CLIENT)
    assert read(data, h11.CLIENT) is not None


def test_the_reply_to_head_has_no_body():
    head = OK.removesuffix(b"hello")
    assert read(head, h11.CLIENT, "HEAD") == read_by_h11(head, h11.CLIENT, "HEAD")


def test_a_reply_without_a_length_ends_with_its_connection():
    left = bytearray(OK.replace(b"Content-Length: 5\r\n", b""))
    head = wire.take_reply(left, to_head=False)
    body = wire.Body(head)
    assert (head.keeps, body.take(left), body.take(left, ended=True)) == (False, None, b"hello")


NO_REPLY = {
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a NUL in its reason": OK.replace(b"OK", b"O\0"),
    "no status": OK.replace(b"200", b"004"),
    "chunks that are none": REPLIES["chunks"].replace(b"2\r\nhe", b"2\r\nhello"),
}


@pytest.mark.lie
@pytest.mark.parametrize("data", NO_REPLY.values(), ids=NO_REPLY)
def test_a_reply_that_is_not_http_is_refused(data):
    with pytest.raises(wire.ProtocolError):  # noqa: PT012 - the head or the body is wrong
        left = bytearray(data)
        wire.Body(wire.take_reply(left, to_head=False)).take(left)


@pytest.mark.long
@pytest.mark.lie
def test_whatever_is_read_is_read_as_h11_reads_it():
    """Messages with a few bytes of theirs replaced, doubled or left out, at places that repeat from run to run."""
    chance = random.Random(4)
    bytes_at_hand = b"\r\n :,;09aZ-\t\0\x7f\xff/HT1.k"
    taken = 0
    for _ in range(8000):
        role = chance.choice([h11.SERVER, h11.CLIENT])
        data = bytearray(chance.choice([GET, PUT, GET + PUT, CHUNKS] if role is h11.SERVER else list(REPLIES.values())))
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(data))
            data[at : at + chance.randint(0, 2)] = bytes([chance.choice(bytes_at_hand)] * chance.randint(0, 2))
        found = read(bytes(data), role)
        if found is not None:
            taken += 1
            assert found == read_by_h11(bytes(data), role), bytes(data)
    assert taken > 2000


def sent_by_h11(role, first, body, asked=GET):
    http = h11.Connection(role)
    if role is h11.SERVER:
        http.receive_data(asked)
        while not isinstance(http.next_event(), h11.EndOfMessage):
            pass
    parts = [first, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
    return b"".join(http.send(part) for part in parts)


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_a_request_is_written_as_h11_writes_it(body):
    headers = [(b"accept", b"*/*"), (b"host", b"tap"), (b"x-a", b""), (b"content-length", b"%d" % len(body))]
    head = h11.Request(method="PUT", target="/v1/kv/x?cas=3", headers=headers)
    assert wire.request_bytes(Request("PUT", "/v1/kv/x?cas=3", headers, body)) == sent_by_h11(h11.CLIENT, head, body)


WRITTEN = {
    "a body": ((200, b"OK", b"hello"), [(b"content-length", b"5")]),
    "an empty one": ((429, b"", b""), [(b"content-length", b"0")]),
    "none": ((204, b"", b""), []),
    "in chunks": ((200, b"OK", b"hello"), [(b"transfer-encoding", b"chunked")]),
    "in chunks, empty": ((200, b"OK", b""), [(b"transfer-encoding", b"chunked")]),
}


@pytest.mark.parametrize("last", [False, True], ids=["goes-on", "last"])
@pytest.mark.parametrize(("reply", "length"), WRITTEN.values(), ids=WRITTEN)
def test_a_reply_is_written_as_h11_writes_it(reply, length, last):
    status, reason, body = reply
    headers = [(b"X-Consul-Index", b"7"), (b"retry-after", b"3")]
    chunked = [pair for pair in length if pair[0] == b"transfer-encoding"]
    head = h11.Response(status_code=status, headers=headers + length, reason=reason)
    asked = REQUESTS["the end of the connection"] if last else GET
    written = wire.reply_bytes(Reply(status, headers + chunked, body, reason), last=last)
    assert written == sent_by_h11(h11.SERVER, head, body, asked)


@pytest.mark.parametrize("length", [b"5", b"77"])
def test_a_reply_to_head_has_the_length_of_the_body_that_it_leaves_out(length):
    headers = [(b"content-length", length)]
    head = h11.Response(status_code=200, headers=headers, reason=b"OK")
    written = wire.reply_bytes(Reply(200, headers, b"hello", b"OK"), to_head=True)
    assert written == sent_by_h11(h11.SERVER, head, b"", REQUESTS["HEAD"])


@pytest.mark.lie
@pytest.mark.parametrize(
    "reply",
    [
        Reply(204, [], b"a body"),
        Reply(200, [(b"x", b"two\r\nlines: 1")], b""),
        Reply(200, [(b"x y", b"z")], b""),
        Reply(101, [], b""),
        Reply(200, [], b"", b"O\r\nK"),
    ],
    ids=str,
)
def test_a_reply_that_is_not_http_is_not_written(reply):
    with pytest.raises(wire.ProtocolError):
        wire.reply_bytes(reply)
