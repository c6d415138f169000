"""What the loads on Nomad ask for, and what they make of the answers."""

import hashlib
import json

import pytest
from pydantic import ValidationError

from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.products.nomad.loads import artifacts
from hashidrill.products.nomad.loads.artifacts import Artifacts, Build
from hashidrill.products.nomad.loads.base import change_reply
from hashidrill.products.nomad.loads.dispatch import Dispatch
from hashidrill.products.nomad.loads.replicas import Replicas, Start, start_of, where
from load_clients import Client, runs_for
from virtual_time import VirtualClock, ran, run

SERVERS = ["http://10.73.0.11:4646", "http://10.73.0.12:4646"]


class Nomad(Client):
    """`answer(method, path, body, params)` makes a document, or an Answer."""

    def __init__(self, answer):
        self.asked, self._answer = [], answer

    async def request(self, method, url, *, body=None, params=None, timeout_s):
        path, sent = url.partition(":4646")[2], json.loads(body) if body else None
        self.asked.append((method, path, sent))
        found = self._answer(method, path, sent, params)
        return found if isinstance(found, Answer) else Answer(200, json.dumps(found).encode())


def load(kind, answer, samples=None, **params):
    sample = (lambda *one: samples.append(one)) if samples is not None else lambda *_: None
    context = LoadContext(SERVERS, clock=VirtualClock(), run_id="run", emit_sample=sample)
    it = kind("work", kind.Params.model_validate(params), context)
    client = Nomad(answer)
    it.client = lambda: client
    return it, client


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


async def test_each_dispatch_says_which_one_it_is_and_servers_take_turns():
    it, client = load(Dispatch, lambda *_: {}, rate="2/s")
    operations, asked = await runs_for(it, 1.9), client.asked
    assert [op.key for op in operations] == ["run-0", "run-1", "run-2", "run-3"]
    assert {op.outcome for op in operations} == {"ok"}
    assert asked[1] == ("POST", "/v1/job/hashidrill-work/dispatch", {"Meta": {"hashidrill": "run-1"}})


async def test_the_final_reads_are_the_dispatches_that_nomad_knows_and_no_others():
    jobs = [{"Meta": {"hashidrill": "run-0"}}, {"Meta": {"hashidrill": "earlier-run-7"}}, {"Meta": None}]

    it, _ = load(Dispatch, lambda *_: jobs, rate="2/s")
    assert (await it.final_reads()) == {"run-0": "dispatched"}


@pytest.mark.parametrize("rate", ["0/s", "101/s"])
def test_a_rate_that_cannot_be_is_refused(rate):
    with pytest.raises(ValidationError):
        Dispatch.Params.model_validate({"rate": rate})


# replicas


def alloc(n, node="node-1", client="running", desired="run", *, identity="a", restarts=0):
    name = f"hashidrill-work.group[{n}]"
    tasks = {"task": {"Restarts": restarts}}
    said = {"Name": name, "NodeName": node, "ClientStatus": client, "DesiredStatus": desired}
    return said | {"ID": f"{identity}-{n}", "TaskStates": tasks}


def test_what_runs_is_what_runs_and_should():
    stopping, failed = alloc(1, desired="stop"), alloc(2, client="failed")
    assert {name: one.node for name, one in where([alloc(0), stopping, failed]).items()} == {
        "hashidrill-work.group[0]": "node-1"
    }


def watched(course, seconds, **params):
    """(the operations, the samples) of a load that sees `course(seconds)` as its allocations."""
    samples = []

    async def main():
        it, client = load(Replicas, None, samples, count=2, **params)

        def answer(method, path, _body, _params):
            return {} if method == "POST" or path.endswith("/evaluations") else course(it.context.clock.now_ns() / 1e9)

        client._answer = answer
        return await runs_for(it, seconds)

    return run(main()), samples


def test_a_cold_start_is_an_operation_for_each_replica():
    def course(at_s):
        return [alloc(n) for n in range(2) if at_s >= 1 + n]

    operations, samples = watched(course, 4)
    assert [(op.key[-3:], op.outcome, op.intended_ns, round(op.end_ns / 1e9, 1)) for op in operations] == [
        ("[0]", "ok", 0, 1.0),
        ("[1]", "ok", 0, 2.0),
    ]
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


@pytest.mark.parametrize("new", [{"identity": "b"}, {"restarts": 1}], ids=["replaced", "restarted"])
def test_a_replica_that_became_another_one_while_no_server_answered_was_away(new):
    """At each look that was answered it runs. It was away from the last of these on, as far as anyone can tell."""

    def course(at_s):
        if 2 <= at_s < 5:
            return Answer(500, b"No cluster leader")
        return [alloc(0), alloc(1, **(new if at_s >= 5 else {}))]

    operations, _ = watched(course, 8)
    assert [(op.key[-3:], op.outcome) for op in operations[2:]] == [("[1]", "ok")]
    assert (operations[-1].end_ns - operations[-1].intended_ns) / 1e9 == pytest.approx(3.25, abs=0.3)


def test_one_that_never_comes_back_is_unknown_at_the_end():
    operations, _ = watched(lambda at_s: [alloc(0), alloc(1)] if at_s < 2 else [alloc(0)], 6)
    assert [op.outcome for op in operations] == ["ok", "ok", "unknown"]


@pytest.mark.lie
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
async def test_where_replicas_go(spread, key, value):
    it, _ = load(Replicas, lambda *_: [], count=2, spread=spread)
    assert it._job()["TaskGroups"][0][key] == value


async def test_a_deploy_tool_raises_the_count_step_by_step_and_waits_for_each():
    """Ten at a time, each healthy for 2 s: what was asked for, and when."""
    counts = []

    it, client = load(Replicas, None, count=25, step=10, healthy_for="2s")

    def answer(method, path, body, _params):
        if method == "POST":
            counts.append((body["Job"]["TaskGroups"][0]["Count"], it.context.clock.now_ns() / 1e9))
            return {}
        return {} if path.endswith("/evaluations") else [alloc(n) for n in range(counts[-1][0])]

    client._answer = answer
    operations = await runs_for(it, 12)
    assert [count for count, _ in counts] == [10, 20, 25]
    assert [at_s for _, at_s in counts] == pytest.approx([0, 2, 4.25], abs=0.3)
    assert {op.intended_ns for op in operations} == {0}, "all were asked for at the beginning"
    assert max(op.end_ns for op in operations) / 1e9 == pytest.approx(4.5, abs=0.3)


async def test_a_step_whose_replicas_do_not_all_run_is_the_last():
    it, client = load(Replicas, None, count=4, step=2)
    client._answer = lambda _, path, *__: [alloc(0)] if path.endswith("/allocations") else {}
    operations = await runs_for(it, 5)
    counts = [body["Job"]["TaskGroups"][0]["Count"] for _, _, body in client.asked if body]
    assert counts == [2]
    assert [op.outcome for op in operations] == ["ok", "unknown", "unknown", "unknown"]


def test_a_start_can_come_later_than_the_load():
    operations, _ = watched(lambda at_s: [alloc(0), alloc(1)] if at_s > 0 else [], 4, after="2s")
    assert {op.intended_ns for op in operations} == {2_000_000_000}


async def test_a_node_can_be_preferred_by_hand():
    named = {"LTarget": "${node.unique.name}", "RTarget": "node-1", "Operand": "=", "Weight": 100}
    it, _ = load(Replicas, lambda *_: [], count=2, spread="none", prefer="node-1")
    assert it._job()["TaskGroups"][0]["Affinities"] == [named]


# where the time of a start went


def stamped(n=0, **stamps):
    """An allocation whose stamps, in seconds, are those; its evaluation is `late` of the two."""
    events = [{"Type": kind, "Time": round(stamps[kind] * 1e9)} for kind in ("Received", "Started") if kind in stamps]
    return alloc(n) | {
        "EvalID": stamps.get("eval", "late"),
        "CreateTime": round(stamps["placed"] * 1e9),
        "TaskStates": {"task": {"Events": events}},
    }


EVALUATIONS = [{"ID": "first", "CreateTime": 1_000_000_000}, {"ID": "late", "CreateTime": 4_000_000_000}]


def test_the_parts_of_a_start_are_those_between_nomads_own_stamps():
    start = start_of(stamped(placed=4.5, Received=5, Started=7), EVALUATIONS)
    assert start == Start(again_s=3, evaluation_s=0.5, plan_s=0.5, start_s=2)
    assert Start.of(start.detail()) == start


@pytest.mark.parametrize(
    "lacks",
    [
        {"placed": 4, "Received": 5},
        {"placed": 4, "Started": 5},
        {"placed": 4, "Received": 5, "Started": 6, "eval": "forgotten"},
    ],
    ids=["not started", "not received", "no evaluation"],
)
def test_a_start_without_one_of_its_stamps_is_not_measured(lacks):
    assert start_of(stamped(**lacks), EVALUATIONS) is None


async def test_a_replica_that_came_to_run_says_where_its_time_went():
    it, client = load(Replicas, None, count=1)

    def answer(method, path, _body, _params):
        if method == "POST":
            return {}
        return EVALUATIONS if path.endswith("/evaluations") else [stamped(placed=4.5, Received=5, Started=7)]

    client._answer = answer
    [operation] = await runs_for(it, 2)
    assert Start.of(operation.detail).start_s == 2


async def test_evaluations_that_cannot_be_had_cost_no_operation():
    it, client = load(Replicas, None, count=1)

    def answer(method, path, _body, _params):
        if path.endswith("/evaluations"):
            return Answer(500, b"No cluster leader")
        return {} if method == "POST" else [stamped(placed=4.5, Received=5, Started=7)]

    client._answer = answer
    [operation] = await runs_for(it, 2)
    assert (operation.outcome, operation.detail) == ("ok", None)


# builds that download


def built(status, *failed, restarts=0, node="node-2"):
    """The allocation of a build; its task has a failed download with each of these messages."""
    events = [{"Type": "Received", "DisplayMessage": ""}]
    events += [{"Type": "Failed Artifact Download", "DisplayMessage": text} for text in failed]
    return {"ClientStatus": status, "NodeName": node, "TaskStates": {"task": {"Restarts": restarts, "Events": events}}}


@pytest.mark.parametrize(
    ("alloc", "outcome", "reason", "build"),
    [
        (built("complete"), "ok", "", Build("node-2", 0, 0)),
        (built("complete", "EIO", restarts=1), "ok", "", Build("node-2", 1, 1)),
        (built("failed", "EIO", "EIO", restarts=1), "fail", artifacts.FAILED_DOWNLOAD, Build("node-2", 2, 1)),
        (built("failed", restarts=4), "fail", artifacts.FAILED_BUILD, Build("node-2", 0, 4)),
        (built("lost"), "unknown", artifacts.FAILED_BUILD, Build("node-2", 0, 0)),
    ],
)
def test_a_build_ends_as_its_allocation_did(alloc, outcome, reason, build):
    reply = artifacts.outcome(alloc)
    assert (reply.outcome, reply.reason, Build.of(reply.detail)) == (outcome, reason, build)


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_build_that_goes_on_has_not_ended(status):
    assert artifacts.outcome({"ClientStatus": status, "TaskStates": None, "NodeName": "node-2"}) is None


@ran
async def builds(answer, seconds=3, **params):
    """The operations of `rate` builds a second."""
    it, client = load(Artifacts, answer, **{"rate": "1/s", **params})
    return await runs_for(it, seconds), client.asked


def test_a_build_is_one_operation_from_its_dispatch_to_its_end():
    looked = []

    def answer(method, path, _body, _params):
        if method == "POST":
            return {"DispatchedJobID": "hashidrill-work/dispatch-7"}
        looked.append(path)
        return [] if len(looked) < 3 else [built("complete")]

    operations, _ = builds(answer, seconds=0.9)
    assert looked[0] == "/v1/job/hashidrill-work/dispatch-7/allocations"
    assert [(op.outcome, Build.of(op.detail).node) for op in operations] == [("ok", "node-2")]
    assert (operations[0].end_ns - operations[0].intended_ns) / 1e9 == pytest.approx(0.5, abs=0.1)


def test_a_build_that_never_ends_is_unknown():
    def answer(method, *_):
        return {"DispatchedJobID": "hashidrill-work/dispatch-7"} if method == "POST" else [built("pending")]

    operations, _ = builds(answer, seconds=5, timeout="2s")
    assert (operations[0].outcome, operations[0].reason) == ("unknown", artifacts.NOT_ENDED)


def test_a_dispatch_that_is_refused_is_a_failed_build():
    operations, _ = builds(lambda *_: Answer(404, b"job not found"), seconds=0.9)
    assert [op.outcome for op in operations] == ["fail"]


@ran
async def prepared(**params):
    """The store's job and the build's, as they are registered."""

    def answer(method, path, _body, _params):
        if method == "POST":
            return {}
        if path == "/v1/nodes":
            return [{"Name": "node-2", "Address": "10.73.0.32"}, {"Name": "node-1", "Address": "10.73.0.31"}]
        return [{"ClientStatus": "running", "ID": "0b71"}]

    it, client = load(Artifacts, answer, rate="1/s", **params)
    await it.prepare()
    return [body["Job"] for method, _, body in client.asked if method == "POST"]


def test_the_artifact_lies_on_one_node_and_builds_run_on_the_others():
    store, build = prepared(retries=3, gap="2s")
    assert (store["ID"], store["Constraints"][0]["Operand"]) == ("hashidrill-work-store", "=")
    assert (build["ID"], build["Constraints"][0]["Operand"]) == ("hashidrill-work", "!=")
    [group] = build["TaskGroups"]
    assert (group["RestartPolicy"]["Attempts"], group["RestartPolicy"]["Delay"]) == (3, 2_000_000_000)
    assert not group["ReschedulePolicy"]["Unlimited"]
    [artifact] = group["Tasks"][0]["Artifacts"]
    assert artifact["GetterSource"] == "http://10.73.0.31:4646/v1/client/fs/cat/0b71?path=alloc%2Fdata%2Fartifact"


def test_the_checksum_is_that_of_what_the_store_writes():
    store, build = prepared(size="4KiB")
    assert "head -c 4096 /dev/zero" in store["TaskGroups"][0]["Tasks"][0]["Config"]["args"][1]
    [artifact] = build["TaskGroups"][0]["Tasks"][0]["Artifacts"]
    assert artifact["GetterOptions"] == {"checksum": f"sha256:{hashlib.sha256(bytes(4096)).hexdigest()}"}
    _, unchecked = prepared(checksum=False)
    assert unchecked["TaskGroups"][0]["Tasks"][0]["Artifacts"][0]["GetterOptions"] == {}
