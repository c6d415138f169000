"""What the audit says of Consul, shown on the real binary: agents on the loopback, each claim beside its opposite."""

import http.client
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx2
import pytest

from claims import START_WITHIN_S, Agent
from polled import wait
from ports import free_ports

pytestmark = pytest.mark.long


@pytest.fixture
def start(consul, tmp_path):
    agents = []

    def run(name, **config):
        agents.append(Agent(consul, tmp_path, name, **config))
        return agents[-1]

    yield run
    for agent in agents:
        agent.stop()


@pytest.fixture
def server(start):
    agent = start("server", server=True, bootstrap_expect=1)
    wait("a leader", agent.leader)
    return agent


def test_an_agent_without_retry_join_stays_alone(start, server):
    """HD101: the one beside it, with retry_join, has found the server by then."""
    alone, told = start("alone"), start("told", retry_join=[f"127.0.0.1:{server.serf}"])
    wait("the agent with retry_join to join", lambda: told.members() == {"server", "told"})
    assert wait("the agent without to answer", alone.members) == {"alone"}
    assert "alone" not in server.members()
    assert told.said("Joining cluster")
    assert not alone.said("Joining cluster|will retry")


def test_an_agent_with_retry_max_exits_with_1(start):
    """HD102: and without it, goes on trying."""
    [nobody] = free_ports(1)
    common = {"retry_join": [f"127.0.0.1:{nobody}"], "retry_interval": "100ms"}
    limited, unlimited = start("limited", **common, retry_max=3), start("unlimited", **common)
    assert limited.process.wait(START_WITHIN_S) == 1
    assert limited.said("max join LAN retry exhausted, exiting")
    assert len(limited.said("Join cluster failed, will retry")) == 3
    wait("more tries", lambda: len(unlimited.said("Join cluster failed, will retry")) > 6)
    assert unlimited.process.poll() is None


def test_a_datacenter_without_retry_join_wan_is_not_federated(start):
    """HD103: of two servers elsewhere one has it, joins, and brings the other along; a third datacenter stays alone."""

    def far(name, datacenter, **config):
        [wan] = free_ports(1)
        soon = {"retry_interval": "500ms", "retry_interval_wan": "500ms"}
        agent = start(name, ports={"serf_wan": wan}, server=True, datacenter=datacenter, **soon, **config)
        agent.wan = wan
        return agent

    first = far("first", "dc1", bootstrap_expect=1)
    joins = far("joins", "dc2", bootstrap_expect=2, retry_join_wan=[f"127.0.0.1:{first.wan}"])
    along = far("along", "dc2", bootstrap_expect=2, retry_join=[f"127.0.0.1:{joins.serf}"])
    alone = far("alone", "dc3", bootstrap_expect=1)
    everywhere = {"first.dc1", "joins.dc2", "along.dc2"}
    for agent in (first, joins, along):
        wait(f"{agent.name} to see all", lambda agent=agent: agent.members("agent/members?wan=1") == everywhere)
    wait("a leader of the third", alone.leader)
    assert alone.members("agent/members?wan=1") == {"alone.dc3"}


@pytest.mark.parametrize(("mode", "refused"), [("enforcing", {429}), ("permissive", set())])
def test_enforced_request_limits_answer_429(start, mode, refused):
    """HD104: reads that any server could answer get 429; in permissive mode nothing is refused."""
    limits = {"request_limits": {"mode": mode, "read_rate": 1, "write_rate": 1}}
    agent = start("server", server=True, bootstrap_expect=1, limits=limits, log_level="DEBUG")
    wait("a leader", lambda: agent.said("cluster leadership acquired|New leader elected"))
    wait("an answer", lambda: agent.get("agent/self"))
    answers = []

    def ask():
        """A burst; the limiter is made in the background, so the first ones may pass."""
        with httpx2.Client(base_url=agent.url) as client:
            answers.extend(client.get("/v1/kv/nothing?stale") for _ in range(50))
        return agent.said("exceeded allowed rate limit") or None

    wait("the limit to be exceeded", ask)
    assert {answer.status_code for answer in answers} - {404} == refused
    assert not any("Retry-After" in answer.headers for answer in answers)


class Middle(ThreadingHTTPServer):
    """Passes everything on to an agent, but for the first watch of a lock, which gets a 500."""

    daemon_threads = True

    def __init__(self, to_port):
        super().__init__(("127.0.0.1", 0), _Pass)
        self.to_port, self.watches = to_port, 0


class _Pass(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # the monitor of a lock is the only one that asks for consistent reads
        if self.command == "GET" and "consistent" in self.path:
            self.server.watches += 1
            if self.server.watches == 1:
                return self._answer(500, {}, b"No cluster leader")
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.to_port)
        upstream.request(self.command, self.path, body, {"Content-Type": "application/json"})
        answer = upstream.getresponse()
        content = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.startswith("X-Consul")}
        upstream.close()
        return self._answer(answer.status, headers, content)

    def _answer(self, status, headers, content):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_DELETE = _pass  # noqa: N815 - the standard library's names

    def log_message(self, *_):
        pass


@pytest.fixture
def middle(server):
    proxy = Middle(server.http)
    thread = Thread(target=proxy.serve_forever, args=(0.05,))
    thread.start()
    yield proxy
    proxy.shutdown()
    thread.join()
    proxy.server_close()


def lock(binary, middle, *flags):
    """`consul lock` around a child that runs until its standard input is closed."""
    return subprocess.Popen(
        [
            binary.path,
            "lock",
            f"-http-addr=127.0.0.1:{middle.server_address[1]}",
            "-pass-stdin",
            "-verbose",
            *flags,
            "locks/leader",
            "cat",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_consul_lock_without_monitor_retry_gives_up_at_the_first_error(consul, middle):
    """HD105: a single 500 while the lock is held, and the child is stopped although nobody asked it to."""
    held = lock(consul, middle, "-monitor-retry=0")
    try:
        assert held.wait(START_WITHIN_S) is not None
        # where sh forks, the child outlives the sh that was killed, until its standard input is closed
        said, _ = held.communicate(timeout=START_WITHIN_S)
    finally:
        held.kill()
        held.communicate()
    assert middle.watches == 1
    assert "Lock lost, killing child" in said


def test_consul_lock_rides_out_the_same_error_by_default(consul, middle):
    held = lock(consul, middle)
    try:
        wait("the watch after the failed one", lambda: middle.watches > 1)
        assert held.poll() is None
        said, _ = held.communicate(timeout=START_WITHIN_S)  # closes its standard input, so that the child ends
    finally:
        held.kill()
        held.communicate()
    assert "Lock lost" not in said
