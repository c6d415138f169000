"""What the loads on Nomad ask for, and what they make of the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from pydantic import ValidationError

from hashidrill.loads.answer import Answer
from hashidrill.loads.context import LoadContext
from hashidrill.services.nomad.loads.base import change_reply
from hashidrill.services.nomad.loads.dispatch import Dispatch
from hashidrill.services.nomad.loads.replicas import Replicas, where
from virtual_time import VirtualClock, run

SERVERS = ["http://10.73.0.11:4646", "http://10.73.0.12:4646"]


class Scripted:
    """In place of the HTTP client. `answer(method, path, body, params)` makes a document, or an Answer."""

    def __init__(self, answer):
        self.asked, self._answer = [], answer

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        path = url.partition(":4646")[2]
        sent = json.loads(body) if body else None
        self.asked.append((method, path, sent))
        found = self._answer(method, path, sent, params)
        return found if isinstance(found, Answer) else Answer(200, json.dumps(found).encode())


def load(kind, answer, samples=None, **params):
    sample = (lambda *one: samples.append(one)) if samples is not None else lambda *_: None
    context = LoadContext(SERVERS, clock=VirtualClock(), run_id="run", emit_sample=sample)
    it = kind("work", kind.Params.model_validate(params), context)
    client = Scripted(answer)
    it.client = lambda: client
    return it, client


async def runs_for(it, seconds):
    """The operations of a load that is cancelled after that time."""
    operations = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await it.run(operations.append)
    return operations


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, b"{}"), "ok"),
        (Answer(500, b"No cluster leader"), "unknown"),
        (Answer(0, error="no answer within 10s"), "unknown"),
        (Answer(404, b"job not found"), "fail"),
        (Answer(429, b"too many requests"), "fail"),
        (Answer(0, error="could not connect", sent=False), "fail"),
    ],
)
def test_a_change_is_unknown_unless_it_is_certain(answer, outcome):
    assert change_reply(answer).outcome == outcome


# dispatch


def test_each_dispatch_says_which_one_it_is_and_servers_take_turns():
    async def main():
        it, client = load(Dispatch, lambda *_: {}, rate="2/s")
        return await runs_for(it, 1.9), client.asked

    operations, asked = run(main())
    assert [op.key for op in operations] == ["run-0", "run-1", "run-2", "run-3"]
    assert {op.outcome for op in operations} == {"ok"}
    assert asked[1] == ("POST", "/v1/job/hashidrill-work/dispatch", {"Meta": {"hashidrill": "run-1"}})


def test_the_final_reads_are_the_dispatches_that_nomad_knows_and_no_others():
    jobs = [{"Meta": {"hashidrill": "run-0"}}, {"Meta": {"hashidrill": "earlier-run-7"}}, {"Meta": None}]

    async def main():
        it, _ = load(Dispatch, lambda *_: jobs, rate="2/s")
        return await it.final_reads()

    assert run(main()) == {"run-0": "dispatched"}


@pytest.mark.parametrize("rate", ["0/s", "101/s"])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(ValidationError):
        Dispatch.Params.model_validate({"rate": rate})


# replicas


def alloc(n, node="node-1", client="running", desired="run"):
    name = f"hashidrill-work.group[{n}]"
    return {"Name": name, "NodeName": node, "ClientStatus": client, "DesiredStatus": desired}


def test_what_runs_is_what_runs_and_should():
    stopping, failed = alloc(1, desired="stop"), alloc(2, client="failed")
    assert where([alloc(0), stopping, failed]) == {"hashidrill-work.group[0]": "node-1"}


def watched(course, seconds, **params):
    """(the operations, the samples) of a load that sees `course(seconds)` as its allocations."""
    samples = []

    async def main():
        it, client = load(Replicas, None, samples, count=2, **params)

        def answer(method, _path, _body, _params):
            return {} if method == "POST" else course(it.context.clock.now_ns() / 1e9)

        client._answer = answer
        return await runs_for(it, seconds)

    return run(main()), samples


def test_a_cold_start_is_an_operation_for_each_replica():
    def course(at_s):
        return [alloc(n) for n in range(2) if at_s >= 1 + n]

    operations, samples = watched(course, 4)
    assert [(op.key[-3:], op.outcome, op.intended_ns, round(op.end_ns / 1e9, 1)) for op in operations] == [
        ("[0]", "ok", 0, 1.0), ("[1]", "ok", 0, 2.0),
    ]  # fmt: skip
    assert samples[-1][:2] == ("running", 2.0)


def test_a_replica_that_goes_away_is_an_operation_until_it_runs_again():
    def course(at_s):
        if 2 <= at_s < 5:
            return [alloc(0), alloc(1, client="lost", desired="stop")]
        return [alloc(0), alloc(1, node="node-1" if at_s < 2 else "node-2")]

    operations, _ = watched(course, 8)
    assert len(operations) == 3
    last = operations[-1]
    assert (last.key, last.value, last.outcome) == ("hashidrill-work.group[1]", "node-2", "ok")
    assert (last.end_ns - last.intended_ns) / 1e9 == pytest.approx(3, abs=0.3)


def test_one_that_never_comes_back_is_unknown_at_the_end():
    operations, _ = watched(lambda at_s: [alloc(0), alloc(1)] if at_s < 2 else [alloc(0)], 6)
    assert [op.outcome for op in operations] == ["ok", "ok", "unknown"]


def test_a_server_that_does_not_answer_says_nothing_of_replicas():
    """They are not away because nobody tells of them."""

    def course(at_s):
        return Answer(500, b"No cluster leader") if 2 <= at_s < 4 else [alloc(0), alloc(1)]

    operations, samples = watched(course, 6)
    assert len(operations) == 2
    assert ("running", None) in [sample[:2] for sample in samples]


@pytest.mark.parametrize(
    ("spread", "key", "value"),
    [
        ("hosts", "Spreads", [{"Attribute": "${node.unique.name}", "Weight": 100}]),
        ("distinct", "Constraints", [{"Operand": "distinct_hosts", "RTarget": "true"}]),
    ],
)
def test_where_replicas_go(spread, key, value):
    async def main():
        it, _ = load(Replicas, lambda *_: [], count=2, spread=spread)
        return it._job()["TaskGroups"][0]

    assert run(main())[key] == value
