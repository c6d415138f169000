"""The verdicts on retries as hypotheses over a recording: a good client holds each of them, a bad one breaks it."""

import pytest

from hashidrill.core import hypothesis
from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.hypothesis import Broken, Held
from hashidrill.core.tap.catalogue import VERDICTS
from retry_recordings import FAILED, PASSED, Client, bad, good


@pytest.fixture
def client(tmp_path):
    return Client(tmp_path)


def test_every_verdict_is_a_hypothesis_of_the_same_name():
    assert set(VERDICTS) <= set(hypothesis.all_hypotheses())


@pytest.mark.parametrize("name", VERDICTS)
def test_a_good_client_holds(name, client):
    did, params = good(name, client)
    assert isinstance(did.check(name, **params), Held)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_bad_client_breaks_it(name, client):
    did, params = bad(name, client)
    with pytest.raises(Broken):
        did.check(name, **params)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_client_that_is_not_in_the_recording_is_invalid(name, client):
    client.builder.load("kv-writes")
    params = good(name, Client(client.builder.path.parent / "other"))[1]
    with pytest.raises(HypothesisInvalidError):
        client.check(name, **params)


def test_operations_side_by_side_are_told_apart_by_name_or_not_at_all(client):
    client.operation(10, (0, FAILED), (0.3, PASSED)).operation(10.1, (0, PASSED))
    with pytest.raises(HypothesisInvalidError, match="overlap"):
        client.check("present")


def test_attempts_that_name_their_operation_may_overlap(client):
    client.operation(10, (0, FAILED), (0.3, PASSED), named=True).operation(10.1, (0, PASSED), named=True)
    assert client.check("present").figures["operations"] == 1


def test_a_failure_that_the_tap_did_not_make_counts_by_its_status(client):
    client.operation(10, (0, {"status": 500}), (0.1, PASSED)).operation(11, (0, {"status": 0}), ok=False)
    assert client.check("present", fault="500")
    with pytest.raises(Broken):
        client.check("present", fault="no-reply")
    with pytest.raises(HypothesisInvalidError, match="the failures in this run: 500, no-reply"):
        client.check("present", fault="429")
