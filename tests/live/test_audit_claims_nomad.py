"""What the audit says of Nomad's agents, shown on Nomad 1.10.5 on the loopback, each claim beside its opposite."""

import json
import re
import signal
import threading
from contextlib import contextmanager

import pytest

from claims_nomad import RAW_EXEC, SLEEPS, Nomad, both, client, job, nomad, server  # noqa: F401 - a fixture
from http_scripts import Answer, Scripted
from polled import wait
from ports import free_ports

pytestmark = [pytest.mark.nomad, pytest.mark.may_skip("Nomad's clients run as root here")]

SECOND = 10**9
WITHIN_S = 60
LEADERLESS = Answer(500, b"No cluster leader")
KEY = Answer(body=b'[{"Key": "key", "Value": "eA==", "Flags": 0}]', headers={"X-Consul-Index": "7"})
SELF = {
    "Config": {"Datacenter": "dc1", "NodeName": "consul", "Server": True, "Version": "1.22.2"},
    "DebugConfig": {},
    "Member": {},
    "Stats": {"license": {"type": "none"}},
}


@pytest.fixture
def start(nomad, tmp_path):  # noqa: F811
    agents = []

    def run(name, **config):
        agents.append(Nomad(nomad, tmp_path, name, **config))
        return agents[-1]

    yield run
    for agent in agents:
        agent.stop()


# finding the servers


class KnowsNobody(Scripted):
    """A Consul in which no Nomad server is registered. `asked` are the requests for some."""

    def __init__(self):
        super().__init__(self._answer)

    def _answer(self, _number, request):
        if request.path.startswith("/v1/agent/self"):
            return Answer(body=json.dumps(SELF).encode())
        if request.path.startswith("/v1/catalog/datacenters"):
            return Answer(body=b'["dc1"]')
        return Answer(body=b"[]" if "/catalog/" in request.path or "/health/" in request.path else b"{}")

    @property
    def asked(self):
        return [one for one in self.seen if one.path.startswith("/v1/catalog/service/nomad")]


def test_a_client_without_server_join_has_consul_to_ask_and_nobody_else(start):
    """HD201: the one with server_join is there by then."""
    first = start("first", server=server())
    wait("a leader", first.leader, within_s=WITHIN_S)
    with KnowsNobody() as consul:
        address = {"address": consul.url.removeprefix("http://")}
        alone = start("alone", client=client(), consul=address)
        start("told", client=client(server_join={"retry_join": [f"127.0.0.1:{first.rpc}"]}), consul=address)
        wait("the client with server_join", lambda: first.nodes() == {"told"}, within_s=WITHIN_S)
        wait("the client without to ask Consul", lambda: consul.asked, within_s=WITHIN_S)
        # it asks Consul before it answers anybody
        itself = wait("the client without", lambda: alone.get("agent/self"), within_s=WITHIN_S)
        assert itself["config"]["Client"]["ServerJoin"]["RetryJoin"] == []
        assert first.nodes() == {"told"}


def test_a_server_of_several_without_server_join_has_consul_to_ask_and_nobody_else(start):
    """HD201: two of three find each other, and the third does not find them."""
    with KnowsNobody() as consul:
        address = {"address": consul.url.removeprefix("http://")}
        alone = start("alone", server=server(bootstrap_expect=3), consul=address)
        first = start("first", server=server(bootstrap_expect=3), consul=address)
        join = {"retry_join": [f"127.0.0.1:{first.serf}"], "retry_interval": "500ms"}
        told = start("told", server=server(bootstrap_expect=3, server_join=join), consul=address)

        def members(agent):
            return {each["Name"].partition(".")[0] for each in (agent.get("agent/members") or {}).get("Members", ())}

        wait("the server with server_join", lambda: members(told) == {"first", "told"}, within_s=WITHIN_S)
        wait("the servers to ask Consul", lambda: consul.asked, within_s=WITHIN_S)
        assert wait("the server without", lambda: members(alone), within_s=WITHIN_S) == {"alone"}


def test_an_agent_with_retry_max_exits_with_1(start):
    """HD202: and without it, goes on trying."""
    [nobody] = free_ports(1)
    join = {"retry_join": [f"127.0.0.1:{nobody}"], "retry_interval": "100ms"}
    limited = start("limited", server=server(server_join=join | {"retry_max": 3}))
    unlimited = start("unlimited", server=server(server_join=join))
    assert limited.process.wait(WITHIN_S) == 1
    assert limited.said("max join retry exhausted, exiting") == 1
    assert limited.said("join failed") == 4
    wait("more tries", lambda: unlimited.said("join failed") > 8, within_s=WITHIN_S)
    assert unlimited.process.poll() is None


def test_an_agent_with_start_join_does_not_start_when_nobody_answers(start):
    """HD203: with retry_join, the same address is tried again."""
    [nobody] = free_ports(1)
    once = start("once", server=server(server_join={"start_join": [f"127.0.0.1:{nobody}"]}))
    again = start("again", server=server(server_join={"retry_join": [f"127.0.0.1:{nobody}"], "retry_interval": "1s"}))
    assert once.process.wait(WITHIN_S) == 1
    wait("a second try", lambda: again.said("join failed") >= 2, within_s=WITHIN_S)
    assert again.process.poll() is None


# templates


class Watched(Scripted):
    """A Consul that knows a key. A watch of it is held as long as nothing is `failing`, and then gets a 500."""

    def __init__(self):
        super().__init__(self._answer)
        self.failing = threading.Event()

    def answer(self, request):
        if "index=7" in request.path:
            self.failing.wait()
        return super().answer(request)

    def _answer(self, _number, request):
        if request.path.startswith("/v1/kv/key"):
            return LEADERLESS if "index=7" in request.path else KEY
        return Answer(body=json.dumps(SELF).encode() if "agent/self" in request.path else b"{}")

    def __exit__(self, *_):
        self.failing.set()
        super().__exit__()


def watches(consul):
    return sum(one.path.startswith("/v1/kv/key") and "index=7" in one.path for one in consul.seen)


@contextmanager
def templated(binary, folder, name, consul, *, change_mode="restart", **retry):
    """An agent whose retry of Consul is as said; its task runs with a rendered key, and Consul fails from now on."""
    address = {"address": consul.url.removeprefix("http://")}
    agent = both(binary, folder, name, client={"template": {"consul_retry": retry}}, consul=address)
    try:
        template = {"EmbeddedTmpl": '{{ key "key" }}', "DestPath": "local/key", "ChangeMode": change_mode}
        never = {"Attempts": 0, "Interval": 5 * SECOND, "Delay": 0, "Mode": "fail"}
        agent.run(job("reads", {"Config": SLEEPS, "Templates": [template]}, restart=never))
        wait("the task", lambda: agent.task("reads").get("State") == "running", within_s=WITHIN_S)
        consul.failing.set()
        yield agent
    finally:
        agent.stop()


def pauses(agent):
    return re.findall(r'retry attempt \d+ after "([^"]+)"', agent.log.read_text())


LIMITED = {"backoff": "1ms", "max_backoff": "8ms"}


def test_a_running_task_is_killed_when_the_retries_of_its_template_are_used_up(nomad, tmp_path):  # noqa: F811
    """HD214: twelve retries by default, doubling without jitter up to max_backoff, and then the task is killed."""
    with Watched() as consul, templated(nomad, tmp_path, "limited", consul, **LIMITED) as agent:
        wait("the task to end", lambda: agent.task("reads")["State"] == "dead", within_s=WITHIN_S)
        assert watches(consul) == 13
        assert pauses(agent) == ["1ms", "2ms", "4ms"] + ["8ms"] * 9
        kinds = agent.events("reads")
        assert kinds.index("Started") < kinds.index("Killing")


def test_a_running_task_whose_templates_change_nothing_is_left_alone(nomad, tmp_path):  # noqa: F811
    """HD214: with change_mode = "noop" nobody looks at the templates of a running task; its retries end as well."""
    with Watched() as consul, templated(nomad, tmp_path, "noop", consul, change_mode="noop", **LIMITED) as agent:
        wait("the end of the retries", lambda: agent.said("exceeded maximum retries"), within_s=WITHIN_S)
        # what is killed is killed at once: long before a task that is asked for now runs
        agent.run(job("later", {"Config": SLEEPS}))
        wait("a later task", lambda: agent.task("later").get("State") == "running", within_s=WITHIN_S)
        assert "Killing" not in agent.events("reads")
        assert agent.task("reads")["State"] == "running"


def test_without_a_limit_the_task_goes_on_and_without_a_cap_the_pauses_double(nomad, tmp_path):  # noqa: F811
    """HD204 and HD205: attempts = 0 is without limit, max_backoff = 0 without a cap."""
    with (
        Watched() as consul,
        templated(nomad, tmp_path, "unlimited", consul, attempts=0, backoff="1ms", max_backoff="0s") as agent,
    ):
        wait("a thirteenth retry", lambda: len(pauses(agent)) >= 13, within_s=WITHIN_S)
        assert pauses(agent)[:3] == ["1ms", "2ms", "4ms"]
        assert pauses(agent)[12] == "4.096s"
        assert agent.task("reads")["State"] == "running"


def test_the_attempts_of_a_template_are_as_many_as_are_said(nomad, tmp_path):  # noqa: F811
    """HD205: two, and the task is killed."""
    with Watched() as consul, templated(nomad, tmp_path, "two", consul, attempts=2, **LIMITED) as agent:
        wait("the task to end", lambda: agent.task("reads")["State"] == "dead", within_s=WITHIN_S)
        assert watches(consul) == 3


def test_by_default_the_first_pauses_of_a_template_are_a_quarter_and_half_a_second(nomad, tmp_path):  # noqa: F811
    """HD214: the first three of what are five minutes in all."""
    with Watched() as consul, templated(nomad, tmp_path, "default", consul) as agent:
        wait("three retries", lambda: len(pauses(agent)) >= 3, within_s=WITHIN_S)
        assert pauses(agent)[:3] == ["250ms", "500ms", "1s"]


# a node that is cut off


def test_without_disconnect_an_allocation_is_lost_with_its_node_and_replaced(start):
    """HD216: the node is stopped and goes on; the job with lost_after keeps the allocation that it has."""
    grace = {
        "heartbeat_grace": "4s",
        "min_heartbeat_ttl": "2s",
        "max_heartbeats_per_second": 100,
        "failover_heartbeat_ttl": "5s",
    }
    first = start("first", server=server(**grace))
    wait("a leader", first.leader, within_s=WITHIN_S)
    join = {"retry_join": [f"127.0.0.1:{first.rpc}"], "retry_interval": "500ms"}
    node = start("node", client=client(server_join=join), plugin=RAW_EXEC)
    wait("the node", first.nodes, within_s=WITHIN_S)
    first.run(job("bare", {"Config": SLEEPS}))
    first.run(job("kept", {"Config": SLEEPS}, Disconnect={"LostAfter": 3600 * SECOND, "Replace": False}))
    names = ("bare", "kept")

    def statuses():
        return tuple([each["ClientStatus"] for each in first.allocs(name)] for name in names)

    wait("both to run", lambda: statuses() == (["running"], ["running"]), within_s=WITHIN_S)
    node.signal(signal.SIGSTOP)
    wait(
        "both to be seen as gone",
        lambda: [each[0] for each in statuses()] == ["lost", "unknown"],
        within_s=WITHIN_S,
    )
    node.signal(signal.SIGCONT)
    back = (["complete", "running"], ["running"])
    wait("one to be replaced, the other to be back", lambda: statuses() == back, within_s=WITHIN_S)
    assert first.task("kept")["Restarts"] == 0
