"""`lab up`, `status`, `shell`, `down`, as a person types them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from drills import environment, experiment, hashidrill, start
from leaks import VARIABLE, Ground

SMALL = ("--servers", "1", "--clients", "0")


@pytest.fixture
def place(tmp_path):
    """`hashidrill` with a state directory and a work directory of its own; takes down at the end what is still up."""
    work = Path(os.environ[VARIABLE]) / "up"
    work.mkdir()
    one = Place(work, environment(XDG_STATE_HOME=tmp_path / "state", **{VARIABLE: work}))
    try:
        yield one
    finally:
        for name in one.names():
            one("lab", "down", name)
        left = one.ground.left_after(10)
        with contextlib.suppress(OSError):
            work.rmdir()
        assert left == []


class Place:
    def __init__(self, work, env):
        self.env = env
        self.ground = Ground(work)

    def __call__(self, *arguments):
        return hashidrill(*arguments, env=self.env)

    def up(self, *arguments):
        """What `lab up --json` says."""
        done = self("lab", "up", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def names(self):
        return [one["name"] for one in json.loads(self("lab", "status", "--json").stdout)]


def test_a_datacenter_stands_until_it_is_taken_down(place):
    said = place("lab", "up", "--servers", "3", "--clients", "1")
    assert said.returncode == 0, said.stderr
    assert "hashidrill lab shell consul-1 -- consul members" in said.stdout
    assert "hashidrill lab down" in said.stdout

    status = place("lab", "status")
    assert all(name in status.stdout for name in ("consul-1", "consul-2", "consul-3", "client-1", "10.73.0.11"))

    members = place("lab", "shell", "consul-1", "--", "consul", "members")
    assert members.returncode == 0, members.stderr
    assert sum(" alive " in line for line in members.stdout.splitlines()) == 4

    seen = place(
        "lab", "shell", "consul-2", "--", "sh", "-c", "echo $CONSUL_HTTP_ADDR $HASHIDRILL_HOST; hostname -I || true"
    )
    assert seen.stdout.startswith("http://10.73.0.12:8500 consul-2\n")

    failed = place("lab", "shell", "consul-1", "--", "consul", "kv", "get", "no/such/key")
    assert failed.returncode == 1

    unknown = place("lab", "shell", "consul-9", "--", "true")
    assert unknown.returncode == 2
    assert "there is no host 'consul-9' in default: did you mean " in unknown.stderr

    down = place("lab", "down")
    assert (down.returncode, down.stdout) == (0, "default is down; nothing is left\n")
    assert place.ground.left() == []
    assert place("lab", "status").stdout.startswith("no datacenter is up")
    again = place("lab", "down")
    assert again.returncode == 2
    assert "no datacenter is up" in again.stderr


@pytest.mark.needs("ip")
def test_a_shell_is_on_its_host_and_on_no_other(place):
    place.up("--servers", "2", "--clients", "0")
    links = place("lab", "shell", "consul-2", "--", "ip", "-br", "addr")
    assert "10.73.0.12/24" in links.stdout
    assert "10.73.0.11/24" not in links.stdout


@pytest.mark.nightly
def test_the_consul_ui_is_served_to_this_machine(place):
    one = place.up(*SMALL, "--expose", "0")
    assert one["url"].startswith("http://127.0.0.1:")
    answer = httpx2.get(one["url"], trust_env=False, follow_redirects=True, timeout=10)
    assert answer.status_code == 200
    assert "<title>Consul" in answer.text
    base = one["url"].removesuffix("/ui/")
    with httpx2.Client(base_url=base, trust_env=False, timeout=10) as client:
        for n in range(50):  # a browser asks for many things, over few connections
            assert client.put(f"/v1/kv/key-{n}", content=b"x" * 1000).text == "true"
        assert len(client.get("/v1/kv/?keys").json()) == 51


@pytest.mark.nightly
def test_a_port_that_is_taken_is_a_message_and_leaves_nothing(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = place("lab", "up", *SMALL, "--expose", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--expose 0" in done.stderr
    assert place.names() == []
    assert place.ground.left_after(10) == []


@pytest.mark.nightly
def test_two_datacenters_of_the_same_addresses_do_not_meet(place):
    one, other = (place.up(*SMALL, "--name", name) for name in ("red", "blue"))
    assert one["hosts"][0]["address"] == other["hosts"][0]["address"]
    for name in ("red", "blue"):
        put = place("lab", "shell", "--name", name, "consul-1", "--", "consul", "kv", "put", "colour", name)
        assert put.returncode == 0, put.stderr
    for name in ("red", "blue"):
        got = place("lab", "shell", "--name", name, "consul-1", "--", "consul", "kv", "get", "colour")
        assert got.stdout.strip() == name
    assert place.names() == ["blue", "red"]
    assert place("lab", "down", "red").returncode == 0
    assert (
        place("lab", "shell", "--name", "blue", "consul-1", "--", "consul", "kv", "get", "colour").stdout.strip()
        == "blue"
    )


@pytest.mark.nightly
def test_a_name_that_stands_is_refused(place):
    place.up(*SMALL)
    again = place("lab", "up", *SMALL)
    assert again.returncode == 2
    assert "is up already" in again.stderr
    assert "hashidrill lab down default" in again.stderr
    assert place.names() == ["default"]


@pytest.mark.nightly
def test_a_keeper_that_is_killed_takes_all_with_it(place):
    one = place.up(*SMALL)
    os.kill(one["pid"], signal.SIGKILL)
    assert place.ground.left_after(10) == []
    assert place.names() == []
    assert place.up(*SMALL)["pid"] != one["pid"]


def test_an_agent_that_does_not_start_is_a_message_and_leaves_nothing(place, tmp_path):
    document = json.loads(
        experiment(tmp_path / "wrong.yaml", method=[{"fault": "noop", "on": "consul:leader", "for": "1s"}]).read_text()
    )
    document["datacenter"]["consul"]["config"]["no_such_setting"] = 1
    (tmp_path / "wrong.yaml").write_text(json.dumps(document))
    done = place("lab", "up", "--like", str(tmp_path / "wrong.yaml"))
    assert done.returncode == 3
    assert "did not start: consul-1: consul ended before it was ready" in done.stderr
    assert "no_such_setting" in done.stderr
    assert place.names() == []
    assert place.ground.left_after(10) == []


def test_a_version_that_is_none_is_refused(place):
    done = place("lab", "up", "--consul", "latest")
    assert done.returncode == 2
    assert "write it like 1.22.2" in done.stderr


def test_an_interrupted_up_leaves_nothing(place):
    process = start("lab", "up", "--servers", "3", env=place.env)
    deadline = time.monotonic() + 20
    while not list(place.ground.work.glob("*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert place.ground.left_after(10) == []
    assert place.names() == []
