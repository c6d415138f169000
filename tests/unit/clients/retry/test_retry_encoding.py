"""Attempts survive the way through a recording, whole."""

import pytest

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.loads.clients import from_operations, to_operation
from hashidrill.core.tap.attempts import Attempt
from hashidrill.testing.recordings import RecordingBuilder

ATTEMPTS = [
    Attempt(5, 9, 1, method="GET", path="/v1/kv/a b?index=7", status=200, sent=12, upstream=True, index=8),
    Attempt(10, 10, 0, fault="refused"),
    Attempt(11, 30, 2, True, "PUT", "/v1/kv/x?cas=1", "cas=1", "503-retry-after", 503, 3, 4, retry_after_s=2.0),
    Attempt(
        40,
        50,
        3,
        method="PUT",
        path="/v1/kv/l?acquire=s",
        status=200,
        upstream=True,
        granted=False,
        operation="client/7",
        abandoned=True,
        backwards=True,
    ),
]


def test_what_is_written_is_read_again(tmp_path):
    builder = RecordingBuilder(tmp_path / "run")
    builder._operations += [to_operation("app", attempt) for attempt in ATTEMPTS]
    assert from_operations(builder.build().operations("app.attempts")) == ATTEMPTS


def test_the_zero_of_the_clock_can_be_moved():
    assert to_operation("app", ATTEMPTS[0], origin_ns=5).start_ns == 0


@pytest.mark.parametrize(("attempt", "outcome"), [*zip(ATTEMPTS, ["ok", "fail", "fail", "ok"], strict=True)])
def test_an_attempt_has_the_outcome_that_its_client_saw(attempt, outcome):
    assert to_operation("app", attempt).outcome == outcome


def test_a_reply_that_was_dropped_leaves_its_outcome_unknown():
    dropped = Attempt(0, 1, 1, method="PUT", path="/v1/kv/x", fault="reply-dropped", upstream=True)
    assert to_operation("app", dropped).outcome == "unknown"


def test_other_operations_are_no_attempts(tmp_path):
    built = RecordingBuilder(tmp_path / "run").load("kv-writes").build()
    with pytest.raises(HypothesisInvalidError, match=r"is not an attempt at a tap.*name the client"):
        from_operations(built.operations("kv-writes"))
