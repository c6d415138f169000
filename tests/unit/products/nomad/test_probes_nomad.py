"""What the Nomad probes make of answers, silence and nonsense."""

import httpx2
import pytest

from hashidrill.core.probes.agents import AgentsApi
from hashidrill.products.nomad.probes import (
    AllocationsProbe,
    EvaluationsProbe,
    HeartbeatProbe,
    LeaderProbe,
    NodesProbe,
    RaftProbe,
    TimesProbe,
)
from hashidrill.products.nomad.service import NomadService
from virtual_time import ran

HOSTS = {"nomad-1": "10.73.0.11", "nomad-2": "10.73.0.12", "nomad-3": "10.73.0.13"}
KINDS = (LeaderProbe, RaftProbe, TimesProbe, NodesProbe, AllocationsProbe, EvaluationsProbe, HeartbeatProbe)


@ran
async def sampled(probe_of, answer, *, by_host=False):
    """{signal: (value, text)} of one sample, or {signal and host: ...}.

    `answer` makes a document, or a response, of a request.
    """

    def reply(request):
        found = answer(request)
        return found if isinstance(found, httpx2.Response) else httpx2.Response(200, json=found)

    api = AgentsApi(port=4646, transport=httpx2.MockTransport(reply))
    samples = await probe_of(api).sample()
    await api.aclose()
    return {sample.signal + sample.host * by_host: (sample.value, sample.text) for sample in samples}


def test_each_server_is_asked_for_what_it_knows_itself():
    """Without `stale`, it asks the leader, and a cluster without one answers nobody."""
    asked = []
    sampled(lambda api: NodesProbe(HOSTS, api=api), lambda request: asked.append(request.url.query) or [])
    sampled(lambda api: LeaderProbe(HOSTS, api=api), lambda request: asked.append(request.url.query) or "")
    assert asked
    assert all(b"stale" in query for query in asked)


def test_raft_state_of_a_server():
    stats = {"stats": {"raft": {"state": "Leader", "term": "4", "commit_index": "123"}}}
    assert sampled(lambda api: RaftProbe("nomad-1", HOSTS, api=api), lambda _: stats) == {
        "nomad.raft_state": (1.0, "Leader"),
        "nomad.raft_term": (4.0, "leads"),
        "nomad.commit_index": (123.0, ""),
    }


def test_nodes_are_counted_and_named():
    nodes = [
        {"Name": "node-1", "Status": "ready", "SchedulingEligibility": "eligible"},
        {"Name": "node-2", "Status": "disconnected", "SchedulingEligibility": "eligible"},
        {"Name": "node-3", "Status": "ready", "SchedulingEligibility": "ineligible"},
    ]
    assert sampled(lambda api: NodesProbe(HOSTS, api=api), lambda _: nodes) == {
        "nomad.nodes_ready": (2.0, "node-1, node-3"),
        "nomad.nodes_down": (1.0, "node-2"),
        "nomad.nodes_ineligible": (1.0, "node-3"),
    }


def alloc(client, desired="run", job="web", node="node-1"):
    return {"ClientStatus": client, "DesiredStatus": desired, "JobID": job, "NodeName": node}


@pytest.mark.lie
def test_allocations_are_counted_without_those_of_our_own_observers():
    allocs = [
        alloc("running"),
        alloc("running", "stop"),
        alloc("failed", "stop"),
        alloc("lost", "stop"),
        alloc("failed", job="hashidrill-trial-black-hole"),
    ]
    found = sampled(lambda api: AllocationsProbe(HOSTS, api=api), lambda _: allocs)
    assert {signal: value for signal, (value, _) in found.items()} == {
        "nomad.allocs_running": 1,
        "nomad.allocs_pending": 0,
        "nomad.allocs_failed": 1,
        "nomad.allocs_lost": 1,
        "nomad.allocs_unknown": 0,
        "nomad.allocs_complete": 0,
        "nomad.allocs_placed": 4,
    }


def test_what_was_placed_on_each_node_is_counted_whatever_became_of_it():
    allocs = [alloc("failed", "stop"), alloc("failed", "stop"), alloc("running", node="node-2")]
    found = sampled(lambda api: AllocationsProbe(HOSTS, api=api), lambda _: allocs, by_host=True)
    assert found["nomad.allocs_placednode-1"][0] == 2
    assert found["nomad.allocs_placednode-2"][0] == 1


@pytest.mark.parametrize(
    ("said", "expected"), [("1m2.5s", (62.5, "")), ("soon", (None, "its last heartbeat has no valid age: 'soon'"))]
)
def test_a_node_says_itself_how_long_ago_its_last_heartbeat_was_taken(said, expected):
    about = {"stats": {"client": {"last_heartbeat": said, "heartbeat_ttl": "3s"}}}
    found = sampled(lambda api: HeartbeatProbe("nomad-1", HOSTS, api=api), lambda _: about)
    assert found == {"nomad.heartbeat_age": expected}


def test_evaluations_are_counted_by_status_without_those_of_our_own_observers():
    evals = {
        "blocked": [{"JobID": "web"}, {"JobID": "web"}],
        "pending": [],
        "failed": [{"JobID": "hashidrill-trial-plan"}],
    }
    found = sampled(lambda api: EvaluationsProbe(HOSTS, api=api), lambda request: evals[request.url.params["status"]])
    assert [value for value, _ in found.values()] == [2, 0, 0]


def metrics(**more):
    timer = {"Name": "nomad.nomad.plan.submit", "Count": 4, "Mean": 5.0, "Max": 9.0}
    other = {"Name": "nomad.raft.commitTime", "Count": 0, "Mean": 0.0, "Max": 0.0}
    return {"Timestamp": "now", "Samples": [timer, other], "Gauges": [], "Counters": [], **more}


def test_timers_are_seconds_and_one_that_did_not_run_has_no_sample():
    found = sampled(lambda api: TimesProbe("nomad-1", HOSTS, api=api), lambda _: metrics())
    assert found["nomad.plan_submit"] == (0.005, "max 0.009000s, 4 in 10s since now")
    assert "nomad.commit_time" not in found
    assert found["nomad.plan_rejections"][0] == 0


def test_plan_rejections_of_all_nodes_are_added():
    rejected = [{"Name": "nomad.nomad.plan.node_rejected", "Count": n, "Labels": {"node_id": str(n)}} for n in (2, 3)]
    found = sampled(lambda api: TimesProbe("nomad-1", HOSTS, api=api), lambda _: metrics(Counters=rejected))
    assert found["nomad.plan_rejections"][0] == 5


@pytest.mark.parametrize("answer", [httpx2.Response(500, text="sick"), {"no": "list"}], ids=["500", "nonsense"])
@pytest.mark.parametrize("kind", [NodesProbe, AllocationsProbe, EvaluationsProbe])
def test_a_sick_server_is_failed_samples(kind, answer):
    found = sampled(lambda api: kind(HOSTS, api=api), lambda _: answer)
    assert set(found) == set(kind.signals)
    assert all(value is None and text for value, text in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_judge_knows_what_a_silent_probe_did_not_see(kind):
    [group] = [each for each in NomadService.probed if set(kind.signals) <= each.signals]
    assert not group.regular or group.regular in kind.signals
    assert group.silent_s > 2 * kind.interval_s


def test_what_conditions_may_compare_is_what_is_sampled():
    sampled_signals = {signal for kind in KINDS for signal in kind.signals}
    assert set(NomadService.signals) == (sampled_signals - {"nomad.raft_state"}) | {"nomad.allocs_placed"}
