"""The stream between a runner and a worker: each message arrives once and in order, whatever connections do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.staging.generators.link import Frame, Frames, Kind, Link, StreamError, json_frame


def frames_of(data):
    return list(Frames().fed(data))


def test_frames_come_out_as_they_went_in_however_they_are_cut():
    sent = [Frame(Kind.MESSAGE, n, bytes([n]) * n) for n in range(1, 40)]
    data = b"".join(frame.encoded() for frame in sent)
    for size in (1, 7, 64, len(data)):
        frames, found = Frames(), []
        for at in range(0, len(data), size):
            found += frames.fed(data[at : at + size])
        assert found == sent


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Frame(Kind.MESSAGE, 1).encoded()[:9] + b"\xff" * 4]
)
def test_what_no_end_of_ours_sends_is_no_stream(data):
    with pytest.raises(StreamError, match="not a hashidrill stream"):
        frames_of(data)


def test_a_hello_that_is_no_json_is_named():
    [frame] = frames_of(Frame(Kind.HELLO, 0, b"[1").encoded())
    with pytest.raises(StreamError, match="a hello that is not a JSON object"):
        frame.json()
    [frame] = frames_of(json_frame(Kind.HELLO, received=3))
    assert frame.json() == {"received": 3}


def test_a_message_that_comes_twice_is_taken_once():
    one = Link()
    [frame] = frames_of(one.send(b"a"))
    other = Link()
    assert other.take(frame) == b"a"
    assert other.take(frame) is None


def test_a_missing_message_is_an_error_and_never_a_shorter_stream():
    one, other = Link(), Link()
    frames = [frames_of(one.send(text))[0] for text in (b"a", b"b", b"c")]
    assert other.take(frames[0]) == b"a"
    with pytest.raises(StreamError, match="after message 1 came message 3"):
        other.take(frames[2])


def test_what_was_not_acknowledged_is_sent_again_after_a_drop_and_what_was_is_forgotten():
    one = Link()
    for text in (b"a", b"b", b"c"):
        one.send(text)
    one.acknowledged(1)
    assert (one.outstanding, one.kept_bytes) == (2, 2)
    assert [frame.payload for data in one.resumed(2) for frame in frames_of(data)] == [b"c"]


def test_another_process_at_the_other_end_is_noticed_by_what_it_says_it_has():
    one = Link()
    one.send(b"a")
    one.acknowledged(1)
    with pytest.raises(StreamError, match="another process"):
        one.resumed(0)
    with pytest.raises(StreamError, match="only 1 were sent"):
        one.acknowledged(2)


def test_memory_is_bounded_and_what_would_not_fit_is_an_error():
    one = Link(kept_bytes=100)
    one.send(b"x" * 60)
    with pytest.raises(StreamError, match=r"has not acknowledged 0\.0 MB of 1 messages"):
        one.send(b"x" * 60)
    one.acknowledged(1)
    one.send(b"x" * 60)
    assert one.kept_bytes == 60


def test_a_receiver_says_what_it_has_once_it_is_worth_it_or_when_asked():
    one, other = Link(), Link()
    other.take(frames_of(one.send(b"a"))[0])
    assert other.acknowledgement() == b""
    [said] = frames_of(other.acknowledgement(now=True))
    assert (said.kind, said.number) == (Kind.ACKNOWLEDGE, 1)
    assert other.acknowledgement(now=True) == b"", "it was said already"


@pytest.mark.lie
@given(
    drops=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=30), extra=st.integers(0, 5)
)
def test_however_connections_drop_every_message_arrives_once_and_in_order(drops, extra):
    """Each connection carries some new messages, loses all after a point, and maybe the acknowledgement as well."""
    one, other, sent, taken = Link(), Link(), [], []
    for new, arrive, acknowledge in [*drops, (extra, 10_000, True)]:
        under_way = [frame for data in one.resumed(other.received) for frame in frames_of(data)]
        for _ in range(new):
            sent.append(str(len(sent)).encode())
            under_way += frames_of(one.send(sent[-1]))
        taken += [payload for frame in under_way[:arrive] if (payload := other.take(frame)) is not None]
        if acknowledge:
            for frame in frames_of(other.acknowledgement(now=True)):
                one.acknowledged(frame.number)
    assert taken == sent
    assert one.outstanding == 0
