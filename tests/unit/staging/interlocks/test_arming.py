"""Arming: each lie that an arming can tell has a message of its own, and none of them lets a run through."""

import base64
import datetime as dt
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.core.errors import InterlockError, UsageError
from hashidrill.staging.interlocks import arming
from hashidrill.staging.interlocks.arming import Armed, Arming, Wanted

NOON = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)
WHERE = "consul kv hashidrill/interlocks/armed"
SLOW, FROZEN = Armed("slow-leader-disk", "sha256:aa11"), Armed("frozen-leader", "sha256:bb22", breaks_quorum=True)
GOOD = Arming("ana", (SLOW, FROZEN), "staging-1", NOON, NOON + dt.timedelta(hours=3), "day 12", "nonce-1")
WANTED = Wanted("slow-leader-disk", "sha256:aa11", "staging-1", NOON + dt.timedelta(hours=1), 120.0, 86400.0, 60.0)


def refused(text, wanted=WANTED, public_key=None):
    with pytest.raises(InterlockError) as error:
        arming.check(arming.read(text, WHERE, public_key), wanted, WHERE)
    assert error.value.exit_code == 2
    assert WHERE in str(error.value)
    return str(error.value)


def changed(**to):
    return json.dumps({**json.loads(GOOD.text()), **to})


def test_what_is_armed_may_run():
    assert arming.check(arming.read(GOOD.text(), WHERE), WANTED, WHERE) == SLOW
    assert arming.read(GOOD.text(), WHERE) == GOOD


def test_one_name_may_be_armed_with_several_contents():
    """A game day runs an experiment as it is, and a variant of it."""
    other = Armed("slow-leader-disk", "sha256:cc33", breaks_quorum=True)
    both = replace(GOOD, experiments=(SLOW, other))
    assert arming.check(both, WANTED, WHERE) == SLOW
    assert arming.check(both, replace(WANTED, digest="sha256:cc33"), WHERE) == other


def test_two_armings_of_the_same_are_not_the_same():
    assert Arming("ana", (SLOW,), "x", NOON, NOON).nonce != Arming("ana", (SLOW,), "x", NOON, NOON).nonce


@pytest.mark.lie
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not armed: there is nothing at"),
        ("  \n", "not armed: there is nothing at"),
        (changed(since="2026-11-22T01:00:00Z", until="2026-11-23T12:59:59Z"), "expired at 2026-11-23T12:59:59Z"),
        (changed(since="2026-11-23T13:01:01Z", until="2026-11-23T14:00:00Z"), "is from the future"),
        (changed(experiments=[vars(FROZEN)]), "is for frozen-leader, not for slow-leader-disk"),
        (changed(experiments=[vars(replace(SLOW, name="slow-leader-disk-2"))]), "not for slow-leader-disk"),
        (changed(experiments=[vars(replace(SLOW, digest="sha256:c"))]), "is for another content of slow-leader-disk"),
        (changed(experiments=["slow-leader-disk"]), "it names slow-leader-disk without its content (`digest`)"),
        (changed(experiments=[{"name": "slow-leader-disk"}]), "must have `name`, `digest` and `breaks_quorum`"),
        (changed(experiments=[7]), "must have `name`, `digest` and `breaks_quorum`"),
        (changed(experiments=[vars(replace(SLOW, digest=7))]), "`name` and `digest` of an experiment must be texts"),
        (changed(experiments=[vars(replace(SLOW, breaks_quorum="no"))]), "`breaks_quorum` must be true or false"),
        (changed(nonce=""), "`nonce` must be a text"),
        (changed(datacenter="staging-2"), "is for the datacenter 'staging-2', but this one is 'staging-1'"),
        (changed(until="2026-11-23T13:01:59Z"), "ends too early: 119s are left"),
        (changed(until="2026-11-25T12:00:00Z"), "lasts 48.0h, but the attach file allows at most 24.0h"),
        ("armed!", "is malformed: it is not JSON"),
        ("[]", "is malformed: it is not a JSON object"),
        ("[" * 60_000, "is malformed: it is not JSON"),
        ("1" * 100_001, "is malformed: it has 100001 characters"),
        (changed(experiments="slow-leader-disk"), "`experiments` must be a list"),
        (changed(experiments=[]), "`experiments` must be a list"),
        (changed(armed_by=" "), "`armed_by` must be a text"),
        (changed(armed_by=7), "`armed_by` must be a text"),
        (changed(until="tomorrow"), "`until` must be a time with its zone"),
        (changed(until="2026-11-23T15:00:00"), "`until` must be a time with its zone"),
        (changed(until=None), "`until` must be a time with its zone"),
        (changed(until="0001-01-01T00:00:00+14:00"), "`until` is not a date of the calendar"),
        (changed(until="2026-11-23T12:00:00Z"), "is not after `since`"),
        (changed(untill="2026-11-24T12:00:00Z"), "it has untill, but may only have"),
    ],
)
def test_what_is_not_armed_for_this_is_refused_and_says_why(text, said):
    assert said in refused(text)


def test_a_clock_that_is_a_little_late_does_not_make_an_arming_one_from_the_future():
    early = replace(WANTED, now=NOON - dt.timedelta(seconds=59))
    arming.check(arming.read(GOOD.text(), WHERE), early, WHERE)
    assert "from the future" in refused(GOOD.text(), replace(WANTED, now=NOON - dt.timedelta(seconds=61)))


def test_no_two_reasons_have_the_same_message():
    others = {"until": "2026-11-23T12:59:59Z", "experiments": [vars(FROZEN)], "datacenter": "b"}
    texts = [None, "x", *(changed(**{key: value}) for key, value in others.items())]
    assert len({refused(text) for text in texts}) == len(texts)


@given(st.text(max_size=200) | st.recursive(st.none() | st.text(max_size=5), st.lists, max_leaves=5).map(json.dumps))
def test_whatever_stands_there_is_refused_with_a_message_and_never_a_crash(text):
    assert refused(text)


@given(st.sampled_from(sorted(json.loads(GOOD.text()))), st.none() | st.integers() | st.lists(st.none(), min_size=1))
def test_whatever_a_field_holds_is_a_message(field, value):
    with pytest.raises(InterlockError, match="is malformed"):
        arming.read(changed(**{field: value}), WHERE)


# clocks


@pytest.mark.lie
def test_a_machine_whose_clock_is_wrong_cannot_tell_whether_an_arming_is_in_force():
    with pytest.raises(InterlockError, match="are 3600s apart"):
        arming.check_clocks(NOON, NOON - dt.timedelta(hours=1), 60.0, "Consul")


@pytest.mark.parametrize("theirs", [None, NOON - dt.timedelta(seconds=60), NOON + dt.timedelta(seconds=61)])
def test_clocks_that_agree_well_enough_or_that_nobody_shows_are_no_trouble(theirs):
    arming.check_clocks(NOON, theirs, 60.0, "Consul")


# signatures

KEY = arming.new_key()
PINNED = arming.public_of(KEY)
SIGNED = arming.sign(GOOD, KEY)


def test_an_arming_that_the_pinned_key_signed_may_run():
    arming.check(arming.read(SIGNED, WHERE, PINNED), WANTED, WHERE)


def test_a_signed_one_is_read_where_nobody_asks_for_a_signature():
    assert arming.read(SIGNED, WHERE) == GOOD


@pytest.mark.lie
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.text(), "is not signed"),
        (arming.sign(GOOD, arming.new_key()), "has a bad signature"),
        (json.dumps({**json.loads(SIGNED), "arming": changed(armed_by="eve")}), "has a bad signature"),
        (json.dumps({**json.loads(SIGNED), "signature": ""}), "has a bad signature"),
        (json.dumps({**json.loads(SIGNED), "signature": "no base64!"}), "has a bad signature"),
        (json.dumps({**json.loads(SIGNED), "signature": base64.b64encode(b"x" * 64).decode()}), "has a bad signature"),
        (json.dumps({"signature": json.loads(SIGNED)["signature"]}), "is not signed"),
        ("signed", "is malformed"),
        (None, "not armed"),
    ],
)
def test_what_the_pinned_key_did_not_sign_is_refused(text, said):
    assert said in refused(text, public_key=PINNED)


def test_a_signature_does_not_excuse_an_arming_that_has_expired():
    late = replace(WANTED, now=GOOD.until + dt.timedelta(seconds=1))
    assert "expired" in refused(SIGNED, late, PINNED)


@pytest.mark.parametrize("pinned", ["ed25519:", "ed25519:AAAA", "no key", "ed25519:" + "A" * 44])
def test_a_pinned_key_that_is_none_refuses_everything(pinned):
    with pytest.raises(InterlockError, match=r"interlocks\.arming\.public_key is not an Ed25519 key|bad signature"):
        arming.read(SIGNED, WHERE, pinned)


def test_a_signing_key_of_another_kind_is_a_message():
    with pytest.raises(UsageError, match="openssl genpkey -algorithm ed25519"):
        arming.sign(GOOD, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
