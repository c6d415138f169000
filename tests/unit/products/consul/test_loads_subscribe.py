"""Consul's streaming protocol: the few protobuf fields of it that are written and read here."""

import pytest

from hashidrill.products.consul.loads.base import mark, newest_ns
from hashidrill.products.consul.loads.streams import Event, Subscription, _feed, fields, subscribe_request


def test_a_request_names_the_topic_the_service_and_the_index():
    assert list(fields(subscribe_request("web"))) == [(1, 1), (2, b"web")]
    assert list(fields(subscribe_request("w" * 300, 2**40))) == [(1, 1), (2, b"w" * 300), (4, 2**40)]


def test_an_event_is_read_whatever_else_is_in_it():
    update = b"\x08\x96\x01" + b"\x52\x05hello" + b"\x19" + b"8bytes!!" + b"\x25" + b"4byt"
    assert list(fields(update)) == [(1, 150), (10, b"hello"), (3, b"8bytes!!"), (4, b"4byt")]
    assert Event.parse(b"\x08\x96\x01\x52\x05hello") == Event(150, False, False, b"\x08\x96\x01\x52\x05hello")
    assert Event.parse(b"\x08\x07\x10\x01").end_of_snapshot
    assert Event.parse(b"\x18\x01").new_snapshot


@pytest.mark.parametrize("torn", [b"\x08", b"\x52\x05hell", b"\x08" + b"\xff" * 11, b"\x0b", b"\x0c"])
def test_what_is_no_protobuf_message_is_an_error(torn):
    with pytest.raises(ValueError, match="not a protobuf message"):
        Event.parse(torn)


def test_messages_are_handed_on_whole_however_they_were_cut():
    events = []
    message = b"\x00\x00\x00\x00\x02\x08\x01" + b"\x00\x00\x00\x00\x02\x08\x02" + b"\x00\x00\x00\x00\x00"
    for size in (1, 3, 7, 100):
        subscription = Subscription(1, events.append, None)
        for at in range(0, len(message), size):
            _feed(subscription, message[at : at + size])
        assert [event.index for event in events] == [1, 2, 0]
        assert not subscription.buffer
        events.clear()


def test_a_compressed_or_endless_message_is_an_error():
    with pytest.raises(ValueError, match="compressed"):
        _feed(Subscription(1, lambda _: None, None), b"\x01\x00\x00\x00\x02ab")
    with pytest.raises(ValueError, match="64 MiB"):
        _feed(Subscription(1, lambda _: None, None), b"\x00\xff\x00\x00\x02ab")


def test_the_newest_mark_says_when_the_last_change_was_sent():
    told = f"x{mark(17)}y{mark(12345678901234)}z{mark(99)}".encode()
    assert newest_ns(told) == 12345678901234
    assert newest_ns(b"nothing of ours @hd@ @hd1") == 0
