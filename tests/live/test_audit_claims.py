"""What the audit says of Consul, shown on the real binary: agents on the loopback, each claim beside its opposite."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import anyio
import httpx
import pytest

from hashidrill.wait import wait_until

START_WITHIN_S = 20


def wait(what, check, within_s=START_WITHIN_S):
    """`check` returns what was waited for, or None."""

    async def look():
        value = check()
        return value, repr(value)

    return anyio.run(lambda: wait_until(what, look, within_s=within_s))


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Agent:
    """A Consul agent on the loopback. `config` is added to what keeps it small and apart from others."""

    def __init__(self, binary, folder, name, **config):
        self.http, self.serf, rpc = free_ports(3)
        self.url = f"http://127.0.0.1:{self.http}"
        self.log = folder / f"{name}.log"
        document = {
            "node_name": name,
            "data_dir": str(folder / name),
            "bind_addr": "127.0.0.1",
            "disable_update_check": True,
            "performance": {"raft_multiplier": 1},
            "ports": {"http": self.http, "serf_lan": self.serf, "server": rpc, "serf_wan": -1, "dns": -1, "grpc": -1,
                      "grpc_tls": -1},
            **config,
        }  # fmt: skip
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document))
        with self.log.open("w") as log:
            self.process = subprocess.Popen([binary.path, "agent", "-config-file", file], stdout=log, stderr=log)

    def said(self, pattern):
        return re.findall(pattern, self.log.read_text())

    def get(self, path):
        try:
            return httpx.get(f"{self.url}/v1/{path}", timeout=2)
        except httpx.HTTPError:
            return None

    def members(self):
        """Names of those it sees alive; None while it does not answer."""
        answer = self.get("agent/members")
        return None if answer is None else {each["Name"] for each in answer.json() if each["Status"] == 1}

    def leader(self):
        answer = self.get("status/leader")
        return None if answer is None else answer.json() or None

    def stop(self):
        self.process.kill()
        self.process.wait(10)


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
    wait("the agent with retry_join to join", lambda: told.members() == {"server", "told"} or None)
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
    wait("more tries", lambda: len(unlimited.said("Join cluster failed, will retry")) > 6 or None)
    assert unlimited.process.poll() is None


@pytest.mark.parametrize(("mode", "refused"), [("enforcing", {429}), ("permissive", set())])
def test_enforced_request_limits_answer_429(start, mode, refused):
    """HD104: reads that any server could answer get 429; in permissive mode nothing is refused."""
    limits = {"request_limits": {"mode": mode, "read_rate": 1, "write_rate": 1}}
    agent = start("server", server=True, bootstrap_expect=1, limits=limits, log_level="DEBUG")
    wait("a leader", lambda: agent.said("cluster leadership acquired|New leader elected") or None)
    wait("an answer", lambda: agent.get("agent/self"))
    answers = []

    def ask():
        """A burst; the limiter is made in the background, so the first ones may pass."""
        with httpx.Client(base_url=agent.url) as client:
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
        [binary.path, "lock", f"-http-addr=127.0.0.1:{middle.server_address[1]}", "-pass-stdin", "-verbose", *flags,
         "locks/leader", "cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


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
        wait("the watch after the failed one", lambda: middle.watches > 1 or None)
        assert held.poll() is None
        said, _ = held.communicate(timeout=START_WITHIN_S)  # closes its standard input, so that the child ends
    finally:
        held.kill()
        held.communicate()
    assert "Lock lost" not in said
