"""Nomad as a service: where its agents are, how each is configured, who has which role, and when it is ready.
Task drivers that Nomad's clients cannot have here are refused with the reason that `doctor` gives.
What an agent of Nomad shows of its configuration is compared with what was asked for.
The processes of Nomad's tasks are found in /proc by what Nomad tells them, on the host whose disk they work on.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import anyio
import httpx2
import pytest

from hashidrill.core.errors import ExperimentError, SelectorError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.protocols.service import Site
from hashidrill.core.units import seconds
from hashidrill.lab.provision import machine
from hashidrill.lab.provision.products import NEED_ROOT
from hashidrill.products.nomad import readiness, settings
from hashidrill.products.nomad.model import Nomad
from hashidrill.products.nomad.service import NomadService
from hashidrill.products.nomad.tasks import ProcTasks
from hashidrill.testing.nomad import FakeNomad
from virtual_time import run

ADDRESSES = {f"nomad-{n}": f"10.73.0.1{n}" for n in (1, 2, 3)} | {f"node-{n}": f"10.73.0.3{n}" for n in (1, 2)}


def agent(host, role, **spec):
    service = NomadService(Nomad.model_validate({"clients": 2, **spec}))
    data = Path("/run") / host
    return service.agent(
        Site(host, role, ADDRESSES[host], data / "nomad", data / "nomad.json", {"nomad": Path("/bin/nomad")}, ADDRESSES)
    )


def test_servers_and_nodes_are_hosts_of_their_own():
    places = NomadService(Nomad(servers=3, clients=2)).places()
    assert [(place.host, place.role) for place in places] == [
        ("nomad-1", "server"),
        ("nomad-2", "server"),
        ("nomad-3", "server"),
        ("node-1", "client"),
        ("node-2", "client"),
    ]


def test_a_client_shares_nothing_with_another_one_and_is_not_root():
    plans = [agent(host, "client") for host in ("node-1", "node-2")]
    folders = [plan.config["data_dir"] for plan in plans]
    assert folders == ["/run/node-1/nomad", "/run/node-2/nomad"]
    assert [plan.environment["TMPDIR"] for plan in plans] == folders
    assert not any(plan.as_root for plan in plans)
    assert "server" not in plans[0].config
    assert plans[0].config["client"]["server_join"]["retry_join"] == [
        "10.73.0.11:4647",
        "10.73.0.12:4647",
        "10.73.0.13:4647",
    ]


def test_what_the_yaml_says_wins_for_all_or_for_one_role():
    spec = {"config": {"log_level": "DEBUG"}, "server_config": {"server": {"heartbeat_grace": "10s"}}}
    server, client = agent("nomad-1", "server", **spec).config, agent("node-1", "client", **spec).config
    assert (server["log_level"], client["log_level"]) == ("DEBUG", "DEBUG")
    assert server["server"]["heartbeat_grace"] == "10s"
    assert server["server"]["bootstrap_expect"] == 3
    assert "server" not in client


@pytest.mark.parametrize(
    ("role", "most", "hosts"),
    [
        ("leader", 3, {"nomad-1", "nomad-2", "nomad-3"}),
        ("followers", 2, {"nomad-1", "nomad-2", "nomad-3"}),
        ("clients", 2, {"node-1", "node-2"}),
        ("one-client", 2, {"node-1", "node-2"}),
        ("all", 5, {"nomad-1", "nomad-2", "nomad-3", "node-1", "node-2"}),
    ],
)
def test_the_hosts_that_a_role_may_mean(role, most, hosts):
    service = NomadService(Nomad(clients=2))
    assert service.candidates(role) == hosts
    assert service.most(role) == most


def test_a_role_that_nobody_can_have_says_why():
    alone = NomadService(Nomad(servers=1, clients=0))
    assert alone.candidates("one-follower") == alone.candidates("one-client") == frozenset()
    assert "servers is 1" in alone.impossible("one-follower")
    assert "clients is 0" in alone.impossible("one-client")


def selected(world, role):
    service = NomadService(Nomad(clients=2))

    async def leader(_hosts):
        return world.leading

    service.leader = leader
    return [host.name for host in anyio.run(service.select, role, world)]


def test_roles_are_those_of_now(tmp_path):
    world = FakeNomad(tmp_path)
    world.leading = "nomad-2"
    assert selected(world, "leader") == ["nomad-2"]
    assert selected(world, "followers") == ["nomad-1", "nomad-3"]
    assert selected(world, "one-follower") == ["nomad-1"]
    assert selected(world, "one-client") == ["node-1"]
    assert selected(world, "clients") == ["node-1", "node-2"]


def test_without_a_leader_its_roles_mean_nobody(tmp_path):
    world = FakeNomad(tmp_path)
    world.leading = None
    with pytest.raises(SelectorError, match="nomad:leader: no server is known to a majority"):
        selected(world, "leader")


# ready

NODE = {"Status": "ready", "SchedulingEligibility": "eligible", "Drivers": {"raw_exec": {"Healthy": True}}}
READY = {
    "status/leader": "10.73.0.11:4647",
    "operator/raft/configuration": {"Servers": [{"Voter": True}] * 3},
    "operator/keyring/keys": [{"State": "active"}],
    "nodes": [{"Name": "node-1", **NODE}, {"Name": "node-2", **NODE}],
}


def looked(tmp_path, **changed):
    """`changed` by the last word of the path."""
    world = FakeNomad(tmp_path)
    answers = {path: changed.get(path.rpartition("/")[2], answer) for path, answer in READY.items()}

    def answer(request):
        found = answers[request.url.path.removeprefix("/v1/")]
        return found if isinstance(found, httpx2.Response) else httpx2.Response(200, json=found)

    hosts = {role: [host for host in world.all_hosts() if host.roles["nomad"] == role] for role in ("server", "client")}
    return anyio.run(readiness.look, hosts["server"], hosts["client"], httpx2.MockTransport(answer))


def test_ready_is_a_leader_all_voters_a_key_and_all_nodes(tmp_path):
    assert looked(tmp_path)[0] is True


@pytest.mark.lie
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"leader": ""}, "no leader is known to a majority"),
        ({"configuration": {"Servers": [{"Voter": True}] * 2 + [{"Voter": False}]}}, "2 of 3 servers are voters"),
        ({"keys": [{"State": "inactive"}]}, "no key yet"),
        ({"nodes": [{"Name": "node-1", **NODE}]}, "node-2 (not registered)"),
        (
            {"nodes": [{"Name": "node-1", **NODE}, {"Name": "node-2", **NODE, "Status": "initializing"}]},
            "node-2 (initializing, eligible)",
        ),
        (
            {"nodes": [{"Name": "node-1", **NODE}, {"Name": "node-2", **NODE, "Drivers": None}]},
            "node-2 (raw_exec: not found yet)",
        ),
        ({"nodes": httpx2.Response(500, text="No cluster leader")}, "HTTP 500 No cluster leader"),
        ({"keys": {"not": "a list"}}, "TypeError"),
    ],
    ids=["leader", "voters", "key", "missing", "initializing", "driver", "error", "nonsense"],
)
def test_what_is_missing_is_named(tmp_path, changed, said):
    ready, evidence, _ = looked(tmp_path, **changed)
    assert ready is None
    assert said in evidence


TEXT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: drivers, title: Drivers, why: It tests which drivers a datacenter may ask for}}
datacenter: {{nomad: {nomad}}}
load: {{web: {{kind: nomad.replicas, count: 2}}}}
steady_state: {{for: 5s, require: ["web.running >= 2"]}}
method: [{{fault: process.kill, on: "nomad:leader", for: 5s}}]
expect: [{{replicas_return: {{load: web, within: 15s}}}}]
"""


def loaded(nomad):
    return load_text(TEXT.format(nomad=json.dumps(nomad)), "drivers.yaml")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("nomad", "named"),
    [
        ({"client_config": {"client": {"options": {"driver.allowlist": "raw_exec,exec"}}}}, "exec cannot be used"),
        ({"client_config": {"plugin": {"docker": {"config": {}}}}}, "docker cannot be used"),
        ({"client_config": {"plugin": [{"exec": {}}, {"java": {}}]}}, "exec and java cannot be used"),
        ({"config": {"client": [{"options": [{"driver.whitelist": "docker, raw_exec"}]}]}}, "docker cannot be used"),
    ],
)
def test_a_driver_that_wants_root_is_refused_where_it_is_asked_for(nomad, named):
    with pytest.raises(ExperimentError) as error:
        loaded(nomad)
    said = " ".join(str(error.value).split())
    assert named in said
    assert f"{NEED_ROOT}; use raw_exec" in said
    assert f"datacenter.nomad.{next(iter(nomad))}" in said


@pytest.mark.parametrize(
    "nomad",
    [
        {},
        {"client_config": {"client": {"options": {"driver.allowlist": "raw_exec"}}}},
        {"client_config": {"plugin": {"raw_exec": {"config": {"enabled": True}}}}},
    ],
)
def test_raw_exec_may_be_asked_for(nomad):
    loaded(nomad)


def test_doctor_gives_the_same_reason():
    assert NEED_ROOT in machine.nomad_drivers().detail


ABOUT = {"LogLevel": "INFO", "Server": {"HeartbeatGrace": 3_000_000_000, "RaftMultiplier": 1}, "Client": None}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("log_level",), "INFO"),
        (("server", "heartbeat_grace"), 3_000_000_000),
        (("server", "start_timeout"), None),
        (("client", "meta", "rack"), None),
    ],
)
def test_a_key_is_found_under_its_name_in_go(path, expected):
    assert settings.shown(ABOUT, path) == expected


@pytest.mark.parametrize(
    ("asked", "seen", "expected"),
    [
        ("3s", 3_000_000_000, True),
        ("4s", 3_000_000_000, False),
        ("1m", "60s", True),
        (5, 5, True),
        (5, 4, False),
        (True, True, True),
        (True, 1, None),
        ("debug", "DEBUG", True),
        ("debug", "INFO", False),
        ("debug", None, None),
        (["a"], ["a"], None),
    ],
)
def test_what_cannot_be_compared_is_neither_right_nor_wrong(asked, seen, expected):
    assert settings.agrees(asked, seen) is expected


@pytest.mark.parametrize(
    ("text", "expected"), [("1m2.5s", 62.5), ("250ms", 0.25), ("0s", 0.0), ("soon", None), ("", None)]
)
def test_lengths_of_time_as_go_writes_them(text, expected):
    assert seconds(text) == expected


def process(proc, pid, environment, *, state="S", caught=0, name="a task (1)"):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"\0".join(f"{key}={value}".encode() for key, value in environment.items()))
    numbers = " ".join(str(number) for number in range(5, 23))
    (folder / "stat").write_text(f"{pid} ({name}) {state} 4 {numbers}")
    (folder / "status").write_text(f"Name:\t{name}\nSigCgt:\t{caught:016x}\n")


def look(tmp_path, host="node-1"):
    disk = tmp_path / "hosts" / host / "disk"
    there = SimpleNamespace(use=lambda _: SimpleNamespace(data=disk))
    return run(ProcTasks(there, tmp_path / "proc").task_processes())


def told(tmp_path, alloc, host="node-1"):
    folder = tmp_path / "hosts" / host / "disk/nomad/alloc" / alloc / "alloc"
    return {"PATH": "/bin", "NOMAD_ALLOC_ID": alloc, "NOMAD_JOB_ID": "web", "NOMAD_ALLOC_DIR": folder}


def test_a_task_is_found_with_its_allocation_its_state_and_the_signals_that_it_handles(tmp_path):
    process(tmp_path / "proc", 71, told(tmp_path, "a1"), state="T", caught=1 << (15 - 1) | 1)
    [found] = look(tmp_path)
    assert (found.alloc, found.job, found.pid, found.state, found.catches) == ("a1", "web", 71, "T", {1, 15})
    assert found.reference == "71@22"  # the 22nd field of stat, whatever is in the name


def test_what_is_no_task_and_what_runs_on_another_host_is_not_found(tmp_path):
    process(tmp_path / "proc", 71, {"PATH": "/bin"})
    process(tmp_path / "proc", 72, told(tmp_path, "a2", "node-11"))
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/73").mkdir()  # it has just ended
    assert look(tmp_path) == []
