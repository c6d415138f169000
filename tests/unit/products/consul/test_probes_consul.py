"""What the Consul probes make of answers, silence and nonsense."""

import asyncio

import anyio
import httpx2
import pytest

from hashidrill.core.errors import FaultError
from hashidrill.core.probes.agents import AgentsApi
from hashidrill.core.protocols.capabilities import Capable, Connection, Connections
from hashidrill.products.consul.probes import (
    AskedServerProbe,
    AutopilotProbe,
    FullWindowProbe,
    LeaderProbe,
    LeaderViewProbe,
    MembersProbe,
    RaftProbe,
    RaftTimesProbe,
    consul_probes,
)
from virtual_time import ran

HOSTS = {"consul-1": "10.73.0.11", "consul-2": "10.73.0.12", "consul-3": "10.73.0.13"}
ADDRESSES = list(HOSTS.values())


@ran
async def sampled(probe_of, answers):
    """Sample once in virtual time; `answers` maps an address to a reply, an error to raise, or seconds to hang."""

    async def answer(request):
        reply = answers[request.url.host] if isinstance(answers, dict) else answers
        reply = reply(request) if callable(reply) else reply
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, (int, float)):
            await asyncio.sleep(reply)
            pytest.fail("the probe waited to the end")
        return reply

    api = AgentsApi(port=8500, transport=httpx2.MockTransport(answer))
    start_s = anyio.current_time()
    samples = await probe_of(api).sample()
    await api.aclose()
    return samples, anyio.current_time() - start_s


def says(leader):
    return httpx2.Response(200, json=f"{leader}:8300" if leader else "")


HANGS = 3600
REFUSED = httpx2.ConnectError("connection refused")
NO_LEADER = httpx2.Response(500, text="No known leader")


def majority(**by_host):
    answers = {HOSTS[name.replace("_", "-")]: answer for name, answer in by_host.items()}
    (sample,), took_s = sampled(lambda api: LeaderProbe(HOSTS, api=api), answers)
    return sample, took_s


def test_the_leader_is_who_a_majority_names():
    leader = says("10.73.0.12")
    sample, took_s = majority(consul_1=leader, consul_2=leader, consul_3=leader)
    assert (sample.signal, sample.host, sample.text, sample.value, sample.ok) == (
        "raft.leader",
        "",
        "consul-2",
        1.0,
        True,
    )
    assert took_s == 0


def test_a_cut_off_leader_that_believes_in_itself_is_not_the_leader():
    leader = says("10.73.0.12")
    sample, _ = majority(consul_1=says("10.73.0.11"), consul_2=leader, consul_3=leader)
    assert sample.text == "consul-2"


def test_a_hung_server_does_not_delay_the_majority():
    leader = says("10.73.0.12")
    sample, took_s = majority(consul_1=HANGS, consul_2=leader, consul_3=leader)
    assert sample.text == "consul-2"
    assert took_s == 0


def test_one_voice_of_three_is_no_majority_and_each_reason_is_named():
    sample, took_s = majority(consul_1=says("10.73.0.11"), consul_2=HANGS, consul_3=REFUSED)
    assert (sample.ok, sample.value) == (False, 0.0)
    assert "consul-1: consul-1" in sample.text
    assert "consul-2: no answer within 1s" in sample.text
    assert "consul-3: GET /v1/status/leader: connection refused" in sample.text
    assert took_s <= 1.0


def test_servers_without_a_leader_name_nobody():
    sample, _ = majority(consul_1=says(""), consul_2=says(""), consul_3=NO_LEADER)
    assert (sample.ok, sample.value) == (False, 0.0)
    assert "consul-1: knows no leader" in sample.text
    assert "No known leader" in sample.text


def test_an_address_that_is_no_host_of_ours_is_shown_as_it_is():
    foreign = says("10.99.0.1")
    assert majority(consul_1=foreign, consul_2=foreign, consul_3=foreign)[0].text == "10.99.0.1"


@pytest.mark.parametrize(
    ("answer", "ok", "value", "text"),
    [
        (says("10.73.0.13"), True, 1.0, "consul-3"),
        (says(""), False, 0.0, "knows no leader"),
        (HANGS, False, 0.0, "no answer within 1s"),
        (httpx2.Response(200, text="<html>"), False, 0.0, "unexpected body"),
    ],
)
def test_a_server_has_its_own_view_of_the_leader(answer, ok, value, text):
    (sample,), took_s = sampled(lambda api: LeaderViewProbe("consul-1", HOSTS, api=api), answer)
    assert (sample.host, sample.ok, sample.value) == ("consul-1", ok, value)
    assert text in sample.text
    assert took_s <= 1.0


def test_raft_says_state_term_and_commit_index():
    raft = {"state": "Follower", "term": "7", "commit_index": "12345", "num_peers": "2"}
    samples, _ = sampled(
        lambda api: RaftProbe("consul-1", HOSTS, api=api), httpx2.Response(200, json={"Stats": {"raft": raft}})
    )
    assert [(s.signal, s.value, s.text, s.host) for s in samples] == [
        ("raft.state", 0.0, "Follower", "consul-1"),
        ("raft.term", 7.0, "", "consul-1"),
        ("raft.commit_index", 12345.0, "", "consul-1"),
    ]


@pytest.mark.parametrize("answer", [httpx2.Response(200, json={"Stats": {}}), httpx2.Response(500), REFUSED, HANGS])
def test_a_sick_agent_gives_failed_samples_with_a_reason(answer):
    samples, _ = sampled(lambda api: RaftProbe("consul-1", HOSTS, api=api), answer)
    assert [s.signal for s in samples] == ["raft.state", "raft.term", "raft.commit_index"]
    assert {(s.ok, s.value, s.host) for s in samples} == {(False, None, "consul-1")}
    assert all(s.text for s in samples)


def test_members_are_counted_by_the_first_server_that_answers():
    listing = [{"Name": f"consul-{n}", "Status": status} for n, status in ((1, 4), (2, 1), (3, 1), (4, 3))]
    answers = {ADDRESSES[0]: HANGS, ADDRESSES[1]: REFUSED, ADDRESSES[2]: httpx2.Response(200, json=listing)}
    samples, took_s = sampled(lambda api: MembersProbe(HOSTS, api=api), answers)
    assert [(s.signal, s.value, s.text, s.host) for s in samples] == [
        ("consul.members_alive", 2.0, "", ""),
        ("consul.members_failed", 1.0, "consul-1", ""),
    ]
    assert took_s == 0


def test_members_without_any_server_fail_with_every_reason():
    samples, _ = sampled(lambda api: MembersProbe(HOSTS, api=api), REFUSED)
    assert [s.ok for s in samples] == [False, False]
    assert all(name in samples[0].text for name in HOSTS)


@pytest.mark.parametrize(
    ("answer", "ok", "value"),
    [
        (httpx2.Response(200, json={"Healthy": True}), True, 1.0),
        (httpx2.Response(429, json={"Healthy": False}), True, 0.0),
        (httpx2.Response(429, text="rate limit exceeded"), False, None),
        (httpx2.Response(500, text="No cluster leader"), False, None),
        (HANGS, False, None),
    ],
)
def test_autopilot_says_unhealthy_with_429_and_a_rate_limit_is_not_that(answer, ok, value):
    (sample,), _ = sampled(lambda api: AutopilotProbe(HOSTS, api=api), answer)
    assert (sample.signal, sample.ok, sample.value) == ("consul.autopilot_healthy", ok, value)


def timer(name, count, mean_ms, max_ms, **labels):
    return {"Name": name, "Count": count, "Mean": mean_ms, "Max": max_ms, "Labels": labels}


def raft_times(*timers):
    answer = httpx2.Response(200, json={"Timestamp": "2026-01-01 00:00:00 +0000 UTC", "Samples": list(timers)})
    samples, _ = sampled(lambda api: RaftTimesProbe("consul-1", HOSTS, api=api), answer)
    return {sample.signal: sample for sample in samples}


def test_raft_timers_are_milliseconds_and_come_out_as_seconds():
    samples = raft_times(
        timer("consul.raft.commitTime", 10, 12.5, 80.0),
        timer("consul.raft.leader.dispatchLog", 10, 11.0, 70.0),
        timer("consul.raft.leader.lastContact", 5, 30.0, 45.0),
        timer("consul.runtime.gc_pause_ns", 5, 30.0, 45.0),
    )
    assert {signal: sample.value for signal, sample in samples.items()} == {
        "raft.commit_time": pytest.approx(0.0125),
        "raft.dispatch_log": pytest.approx(0.011),
        "raft.last_contact": pytest.approx(0.030),
    }
    assert "max 0.080000s, 10 in 10s" in samples["raft.commit_time"].text
    assert {sample.host for sample in samples.values()} == {"consul-1"}


@pytest.mark.parametrize(
    "peers",
    [
        [
            timer("consul.raft.replication.appendEntries.rpc", n, ms, ms, peer_id=f"p{n}")
            for n, ms in ((1, 40), (3, 20))
        ],
        [timer(f"consul.raft.replication.appendEntries.rpc.p{n}", n, ms, ms) for n, ms in ((1, 40), (3, 20))],
    ],
    ids=["labels", "names"],
)
def test_the_timers_of_all_peers_become_one_weighted_mean(peers):
    assert raft_times(*peers)["raft.append_entries"].value == pytest.approx(0.025)


def test_a_timer_that_did_not_run_has_no_sample():
    assert raft_times(timer("consul.raft.commitTime", 0, 0, 0)) == {}


class Host(Capable):
    """As much of a host as holds connections; `held` is a text for a look that failed."""

    name = "client-1"

    def __init__(self):
        super().__init__()
        self.parts[Connections] = self
        self.held = []

    async def connections(self, port):
        assert port == 8300
        if isinstance(self.held, str):
            raise FaultError(self.held)
        return self.held


@ran
async def looked(*looks, apart_s=1.0, of=AskedServerProbe):
    """What each look at such connections says: its text, and its value; None where it said nothing."""
    host, told = Host(), []
    probe = of(host, HOSTS)
    for held in looks:
        host.held = held
        said = await probe.sample()
        told.append((said[0].text, said[0].value) if said else None)
        await anyio.sleep(apart_s)
    return told


def to(number, written, port=40000):
    return Connection(port + number, f"10.73.0.1{number}", written)


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([[to(2, 500)]], [("consul-2", 1.0)]),
        ([[]], [("", 0.0)]),
        ([[to(1, 90), to(2, 500)]], [("consul-2, consul-1", 1.0)]),
        ([[to(2, 500)], [to(2, 900)], [to(2, 900)]], [("consul-2", 1.0), None, None]),
        ([[to(2, 500)], [to(2, 500), to(3, 400)]], [("consul-2", 1.0), ("consul-3, consul-2", 1.0)]),
        ([[to(2, 500), to(3, 40)], [to(2, 500), to(3, 122)]], [("consul-2, consul-3", 1.0), None]),
        ([[to(2, 500)], [to(3, 10)]], [("consul-2", 1.0), ("consul-3", 1.0)]),
        ([[to(2, 9000)], [to(3, 300, 50000), to(2, 9000)]], [("consul-2", 1.0), ("consul-3, consul-2", 1.0)]),
        ([[to(2, 500)], []], [("consul-2", 1.0), ("", 0.0)]),
        ([[Connection(1, "10.99.0.1", 500)]], [("10.99.0.1", 1.0)]),
    ],
    ids=["one", "none", "most", "changes only", "moves", "keep-alive", "lost", "new connection", "all lost", "foreign"],
)
def test_a_client_asks_the_server_that_it_writes_to(looks, told):
    assert looked(*looks) == told


@pytest.mark.lie
def test_a_look_at_connections_that_failed_is_no_agent_without_one():
    """Planted: a failed look that counts as "it asks no server", or as what was seen before."""
    assert looked([to(2, 500)], "the kernel refuses", "the kernel refuses", [to(2, 500)]) == [
        ("consul-2", 1.0),
        ("the kernel refuses", None),
        None,
        ("consul-2", 1.0),
    ]


@pytest.mark.lie
def test_what_does_not_change_is_said_again_before_the_probe_counts_as_silent():
    told = looked(*[[to(2, 500)]] * 12)
    assert [at for at, said in enumerate(told) if said] == [0, 5, 10]


def limited(number, waited_s, port=40000):
    return Connection(port + number, f"10.73.0.1{number}", 0, waited_s)


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([[limited(2, 7.0)], [limited(2, 7.0)]], [None, ("consul-2", 0.0)]),
        ([[limited(2, 7.0), limited(3, 0.0)], [limited(2, 7.25), limited(3, 0.5)]], [None, ("consul-3", 0.5)]),
        ([[limited(2, 7.0)], [limited(2, 0.75, 50000)]], [None, ("consul-2", 0.75)]),
        ([[limited(2, 7.0)], [limited(2, 0.25)]], [None, ("consul-2", 0.0)]),
        ([[limited(2, 7.0)], [limited(2, 8.2)]], [None, ("consul-2", 1.0)]),
        ([[], []], [None, ("no link", 0.0)]),
        ([[], [Connection(1, "10.99.0.1", 0, 0.9)]], [None, ("no link", 0.0)]),
        ([[limited(2, 1.0)], "refused", [limited(2, 3.0)], [limited(2, 3.1)]], [None, ("refused", None), None, None]),
    ],
    ids=["never", "longest", "new connection", "new, same ports", "at most all", "none", "foreign", "failed look"],
)
def test_a_link_whose_data_waits_for_its_receivers_window_is_named(looks, told):
    """Planted under "failed look": two seconds that a look after a failed one would take for one, and for a whole."""
    said = looked(*looks, of=FullWindowProbe)
    if told[-1] is None:
        assert said[:3] == told[:3]
        assert said[3] == ("consul-2", pytest.approx(0.1))
    else:
        assert said == told


async def test_all_probes_of_three_servers():
    probes = consul_probes(HOSTS)
    kinds = [type(probe).__name__ for probe in probes]
    assert len(kinds) == 12
    assert {probe.host for probe in probes} == {"", *HOSTS}

    for probe in probes:
        await probe.aclose()
