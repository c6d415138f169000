"""What the compare-and-set load plans, and what it makes of the answers."""

import base64
import json
from collections import Counter

import pytest
from pydantic import ValidationError

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.protocols.abc import Detail
from hashidrill.products.consul.loads.cas import KvCas, Step, reply_to


def load(*, agents=("http://a:8500",), **params):
    params = KvCas.Params.model_validate({"rate": "50/s", **params})
    return KvCas("registers", params, LoadContext(list(agents), run_id="run"))


def entry(value, index):
    text = base64.b64encode(value.encode()).decode()
    return Answer(200, json.dumps([{"Key": "k", "Value": text, "ModifyIndex": index}]).encode())


def test_a_read_learns_the_value_and_its_index():
    reply = reply_to(Step("read"), entry("run.3", 117))
    assert (reply.outcome, Step.of(reply.detail)) == ("ok", Step("read", "run.3", 117))


def test_a_key_that_is_not_there_is_an_observation():
    reply = reply_to(Step("read"), Answer(404))
    assert (reply.outcome, Step.of(reply.detail)) == ("ok", Step("read", None, 0))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, b"No cluster leader"),
        Answer(404, b"404 page not found"),
        Answer(0, error="no answer within 10s"),
        Answer(200, entry("run.3", 117).body[:-5]),
        Answer(200, b"[]"),
        Answer(200, b'[{"Key": "k", "Value": "****", "ModifyIndex": 3}]'),
    ],
)
def test_what_was_not_read_is_no_observation(answer):
    assert reply_to(Step("read"), answer).outcome == "fail"


def test_a_cas_that_consul_answers_with_false_is_a_miss_and_not_an_error():
    tried = Step("cas", "run.9", 117, "run.3")
    reply = reply_to(tried, Answer(200, b"false"))
    assert (reply.outcome, reply.error) == ("ok", "")
    assert Step.of(reply.detail) == Step("miss", "run.9", 117, "run.3")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, b"true"), "ok"),
        (Answer(500, b"leadership lost while committing log"), "unknown"),
        (Answer(0, error="no answer within 10s"), "unknown"),
        (Answer(429, b"rate limit exceeded"), "fail"),
        (Answer(0, error="could not connect", sent=False), "fail"),
    ],
)
@pytest.mark.parametrize("step", [Step("cas", "run.9", 117, "run.3"), Step("write", "run.9")])
def test_a_change_is_unknown_unless_it_is_certain(step, answer, outcome):
    reply = reply_to(step, answer)
    assert (reply.outcome, reply.value) == (outcome, None)


def test_a_write_that_is_answered_with_false_is_no_miss():
    assert reply_to(Step("write", "run.9"), Answer(200, b"false")).outcome == "fail"


def test_an_operation_survives_its_way_through_the_recording():
    step = Step("cas", "run.9", 117, "run.3")
    assert step.detail() == Detail("cas", {"op": "cas", "value": "run.9", "index": 117, "expected": "run.3"})
    assert Step.of(step.detail()) == step
    with pytest.raises(ValueError, match=r"not an operation of a consul\.kv\.cas load"):
        Step.of(Detail("cas", {"color": "red"}))
    with pytest.raises(ValueError, match=r"of the sort 'lock' is not an operation"):
        Step.of(Detail("lock", {"op": "read"}))
    with pytest.raises(ValueError, match=r"without a detail is not an operation"):
        Step.of(None)


def planned(it, count):
    return list(map(it._step, range(count)))


def test_who_knows_nothing_of_a_key_reads_it_first():
    assert {step.op for _, step in planned(load(reads="0%", writes="0%"), 50)} == {"read"}


def test_a_cas_names_what_this_client_read_of_this_key_and_uses_it_once():
    it = load(reads="0%", writes="0%", keys=1, clients=2)
    key = it._key(0)
    it._seen[1, key] = Step("read", "run.0", 44)
    assert [step for _, step in planned(it, 4)] == [
        Step("read"),
        Step("cas", "run.1", 44, "run.0"),
        Step("read"),
        Step("read"),
    ]


def test_the_shares_are_kept_and_the_sequence_is_that_of_the_run():
    it = load(reads="40%", writes="10%", keys=3)
    everything = dict.fromkeys([(client, it._key(k)) for client in range(5) for k in range(3)])
    ops = Counter()
    for n in range(4000):
        it._seen = dict.fromkeys(everything, Step("read", "x", 1))
        ops[it._step(n)[1].op] += 1
    assert ops["read"] / 4000 == pytest.approx(0.4, abs=0.03)
    assert ops["write"] / 4000 == pytest.approx(0.1, abs=0.03)
    assert planned(load(), 200) == planned(load(), 200)


def test_every_value_is_written_once():
    values = [step.value for _, step in planned(load(reads="0%", writes="100%"), 500)]
    assert len(set(values)) == 500


def test_a_client_stays_with_its_agent_and_keys_belong_to_the_run():
    it = load(agents=["http://a:8500/", "http://b:8500"], clients=3)
    assert [it.endpoint(n % it.params.clients) for n in range(6)] == [
        "http://a:8500",
        "http://b:8500",
        "http://a:8500",
    ] * 2
    assert {key for key, _ in planned(it, 100)} == {f"hashidrill/registers/run/{n}" for n in range(4)}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "rate"),
        ({"rate": "10/s", "keys": 0}, "keys"),
        ({"rate": "10/s", "clients": 0}, "clients"),
        ({"rate": "10/s", "reads": "80%", "writes": "30%"}, "exceed 100 %"),
        ({"rate": "10/s", "timeout": "0s"}, "longer than 0s"),
    ],
)
def test_bad_parameters_are_told_apart(params, message):
    with pytest.raises(ValidationError, match=message):
        KvCas.Params.model_validate(params)


def test_a_load_without_an_agent_says_so():
    with pytest.raises(ValueError, match="'registers' has no agent"):
        load(agents=())
