"""Which faults of Consul can be put on where, and beside which others: said before anything starts."""

import pytest

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text

GOOD = places.GOOD.read_text()
[STEP] = [line for line in GOOD.splitlines() if "fault: disk.latency" in line]
LEAD, ONE, TWO = "consul:leader", "host:consul-1", "host:consul-2"
OFF = "{use_streaming_backend: false}"


def with_method(*steps, servers=3, clients=1):
    text = GOOD.replace(STEP, "\n".join(f"  - {step}" for step in steps))
    if any("consul.streams.gather" in step for step in steps):
        text = text.replace("1.22.2", "1.10.3")
    return text.replace("servers: 3", f"servers: {servers}").replace("clients: 1", f"clients: {clients}")


def step(fault, on, at="0s", lasts="10s", **params):
    with_ = f", with: {{{', '.join(f'{key}: {value}' for key, value in params.items())}}}" if params else ""
    return f'{{fault: {fault}, on: "{on}"{with_}, at: {at}, for: {lasts}}}'


def refused(*steps, **there):
    with pytest.raises(ExperimentError) as error:
        load_text(with_method(*steps, **there), "x.yaml")
    return " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("each", "reason"),
    [
        (step("consul.leader.avoid", "consul:clients"), "consul.leader.avoid targets servers"),
        (step("consul.server.replace", "host:client-1"), "consul.server.replace targets servers"),
        (step("consul.leader.avoid", "consul:servers"), "needs one host, but consul:servers may be several"),
        (step("consul.agent.stop", "consul:followers"), "needs one host, but consul:followers may be several"),
        (step("consul.kv.bloat", "consul:all", keys=10), "needs one host"),
        (step("consul.leader.transfer", LEAD, to="client-1"), "cannot transfer leadership to client-1"),
        (step("consul.leader.transfer", ONE, to="consul-1"), "possible are consul-2, consul-3"),
        (step("consul.leader.transfer", LEAD, to="consul-9"), "cannot transfer leadership to consul-9"),
        (step("consul.config", LEAD, set="{data_dir: /x}"), "data_dir cannot be changed"),
        (step("consul.config", LEAD, set="{}"), "set"),
        (step("consul.config", LEAD, set="{rpc: {enable_streaming: null}}"), "rpc.enable_streaming has no value"),
        (step("consul.config", LEAD, set=OFF, by="reload"), "Consul cannot reload use_streaming_backend"),
        (step("consul.streams.gather", "host:client-1"), "consul.streams.gather targets servers"),
        (step("consul.streams.gather", "consul:followers"), "consul.streams.gather needs one host"),
        (
            step("consul.streams.gather", LEAD, agents="[consul-2]"),
            "consul-2 is not a client agent; the client agents are",
        ),
        (step("consul.streams.gather", LEAD, agents="[]"), "agents"),
        (step("consul.kv.bloat", LEAD, keys=10, value="300kB"), "value 300kB is too large"),
        (step("consul.kv.bloat", LEAD, keys=1000000, value="100kB"), "are over 2GB in total"),
        (step("consul.kv.bloat", LEAD, keys=1, prefix="/x/"), "prefix"),
    ],
)
def test_a_fault_that_cannot_be_there_is_refused(each, reason):
    assert reason in refused(each)


def test_streams_are_gathered_where_there_are_agents_and_other_servers():
    gather = step("consul.streams.gather", LEAD)
    for there in ({"servers": 1}, {"clients": 0}):
        assert "needs a second server, and client agents that stream from it" in refused(gather, **there)


def test_streams_are_not_gathered_where_agents_would_stay_without():
    text = with_method(step("consul.streams.gather", LEAD)).replace("1.10.3", "1.11.0")
    with pytest.raises(ExperimentError, match=r"is for Consul before 1\.11, not 1\.11\.0"):
        load_text(text, "x.yaml")


def test_a_leader_without_others_cannot_be_moved():
    assert "needs another server that can lead" in refused(step("consul.leader.transfer", LEAD), servers=1)


TOGETHER = [
    (step("consul.config", ONE, set=OFF), step("process.kill", ONE), "one would stop the agent"),
    (step("process.pause", LEAD), step("consul.config", "consul:servers", set=OFF), "one would stop the agent"),
    (step("consul.agent.stop", "host:client-1"), step("consul.config", "consul:clients", set=OFF), "stop the agent"),
    (step("consul.config", ONE, set=OFF), step("consul.config", ONE, set="{log_level: DEBUG}"), "on the same host"),
    (step("consul.server.replace", ONE), step("disk.latency", ONE, delay="1s"), "which the replacement removes"),
    (step("consul.server.replace", ONE), step("consul.server.replace", TWO), "one after the other"),
    (step("consul.server.replace", ONE), step("consul.leader.avoid", TWO), "the new server could win an election"),
    (step("consul.leader.pin", ONE), step("consul.leader.avoid", TWO), "both decide who leads"),
    (step("consul.streams.gather", ONE), step("consul.streams.gather", LEAD), "both decide which server has"),
    (
        step("consul.streams.gather", ONE, agents="[client-1]"),
        step("consul.streams.gather", TWO, agents="[client-1]"),
        "both decide which server has",
    ),
    (
        step("consul.streams.gather", ONE, agents="[client-1]"),
        step("consul.streams.gather", TWO),
        "both decide which server has",
    ),
    (step("consul.streams.gather", ONE), step("consul.server.replace", ONE), "which the replacement removes"),
    (step("consul.leader.avoid", ONE), step("consul.leader.transfer", LEAD), "both decide who leads"),
    (step("consul.leader.pin", ONE), step("process.kill", ONE), "no server would lead"),
    (step("consul.leader.pin", ONE), step("network.partition", LEAD), "no server would lead"),
    (step("consul.leader.avoid", ONE), step("process.kill", TWO), "there may be no server that can lead"),
    (step("consul.config", ONE, set=OFF), step("process.pause", TWO), "no majority would be left"),
    (step("consul.agent.stop", ONE), step("consul.server.replace", TWO), "no majority would be left"),
    (step("consul.kv.bloat", ONE, keys=9), step("consul.kv.bloat", TWO, keys=9), "under the same prefix"),
    (step("consul.raft.bloat", ONE, by="writes"), step("consul.config", ONE, set=OFF), "both set the server's config"),
]


@pytest.mark.parametrize(("one", "two", "reason"), TOGETHER)
def test_two_faults_that_cannot_be_together_are_refused(one, two, reason):
    message = refused(one, two)
    assert "method[1]" in message
    assert reason in message


@pytest.mark.parametrize(("one", "two", "_reason"), TOGETHER)
def test_they_are_fine_one_after_the_other(one, two, _reason):
    # a replacement may last two minutes longer
    at = "130s" if "consul.server.replace" in one else "30s"
    load_text(with_method(one.replace("for: 10s", "for: 9s"), two.replace("at: 0s", f"at: {at}")), "x.yaml")


def test_a_replacement_may_last_much_longer_than_it_is_in_force():
    message = refused(step("consul.server.replace", ONE), step("consul.raft.compact", ONE, at="30s"))
    assert "which the replacement removes" in message
    assert "no majority would be left" in refused(
        step("consul.server.replace", ONE), step("process.kill", TWO, at="30s")
    )


@pytest.mark.parametrize("kind", ["consul.leader.transfer", "consul.leader.pin"])
def test_an_old_leader_cannot_be_deposed_by_less_than_a_majority(kind):
    """Later ones hand their office over themselves."""
    on = LEAD if kind == "consul.leader.transfer" else ONE
    text = with_method(step(kind, on), step("consul.agent.stop", TWO)).replace("1.22.2", "1.10.3")
    with pytest.raises(ExperimentError) as error:
        load_text(text, "x.yaml")
    assert "before Consul 1.15 only cutting it off deposes a leader" in " ".join(str(error.value).split())
    load_text(text.replace("1.10.3", "1.22.2"), "x.yaml")


@pytest.mark.parametrize(
    "steps",
    [
        (step("consul.config", "consul:servers", set=OFF), step("consul.config", "consul:clients", set=OFF)),
        (step("consul.config", ONE, set="{raft_trailing_logs: 50}"), step("process.pause", TWO)),
        (step("consul.leader.avoid", ONE), step("disk.latency", ONE, delay="1s")),
        (step("consul.streams.gather", LEAD), step("consul.server.replace", "consul:one-follower")),
        (step("consul.streams.gather", LEAD), step("consul.leader.pin", ONE)),
        (step("consul.leader.avoid", ONE), step("consul.raft.bloat", ONE)),
        (step("consul.leader.pin", ONE), step("process.kill", TWO)),
        (step("consul.leader.avoid", ONE), step("process.kill", "host:client-1")),
        (step("consul.raft.bloat", ONE), step("consul.config", TWO, set=OFF)),
        (step("consul.server.replace", ONE), step("consul.server.replace", TWO, at="5s")),
        (step("consul.kv.bloat", ONE, keys=9), step("consul.kv.bloat", TWO, keys=9, prefix="other")),
        (step("consul.session.expire", "consul:all"), step("consul.agent.stop", ONE)),
    ],
)
def test_what_can_be_together_is_taken(steps):
    load_text(with_method(*steps), "x.yaml")


def test_with_five_servers_one_may_be_away_while_another_is_avoided():
    load_text(with_method(step("consul.leader.avoid", ONE), step("process.kill", TWO), servers=5), "x.yaml")


def test_one_server_may_have_the_streams_of_some_agents_and_another_one_those_of_the_rest():
    gathered = (
        step("consul.streams.gather", ONE, agents="[client-1]"),
        step("consul.streams.gather", TWO, agents="[client-2]"),
    )
    load_text(with_method(*gathered, clients=2), "x.yaml")
