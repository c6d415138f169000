"""A service from another distribution: a product that no other folder knows is started, broken and judged."""

import hashlib
import json

import pytest

import places
from drills import Drill, drilled, environment, hashidrill
from hashidrill.core.recording.reader import Recording

pytestmark = pytest.mark.long

with places.importable(places.SUPPORT / "noop_service"):
    from hashidrill_noop import TOKEN

ENVIRONMENT = environment(PYTHONPATH=places.SUPPORT / "noop_service")
SILENT = {"fault": "noop.silence", "on": "host:noop-1", "for": "4s"}


def written(path, *, datacenter=None, step=SILENT, require=None, **changes):
    """An experiment with the example, as JSON, which is YAML as well."""
    document = {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {
            "name": path.stem,
            "title": "An agent falls silent",
            "why": "It shows a service of another package",
        },
        "datacenter": {"noop": {"agents": 2}} if datacenter is None else datacenter,
        "load": {"gets": {"kind": "noop.get", "rate": "20/s"}},
        "steady_state": {"for": "2s", "within": "20s", "require": require or ["noop.answers >= 1"]},
        "method": [step],
        "recovery": {"for": "4s"},
        "expect": [{"writes_recover": {"load": "gets", "p50_below": "300ms", "within": "3s"}}],
    }
    path.write_text(json.dumps(document | changes))
    return path


def run_of(name, **changes):
    """The run of such an experiment, ahead of the test."""
    return drilled(lambda folder: Drill(written(folder / f"{name}.yaml", **changes), folder / "runs", env=ENVIRONMENT))


@run_of("quiet-noop")
def test_an_experiment_with_it_is_run_and_its_fault_is_proven_and_its_load_is_recorded(drill):
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), drill.result
    recording = Recording(drill.recording)
    [fault] = recording.faults
    assert (fault.kind, fault.host, fault.agent) == ("noop.silence", "noop-1", "noop")
    assert drill.events.index("fault.proven") < drill.events.index("fault.still") < drill.events.index("fault.gone")
    gets = recording.operations("gets")
    outcomes = set(gets.outcome)
    assert len(gets.outcome) > 100
    assert "ok" in outcomes
    run = json.loads((drill.recording / "run.json").read_text())
    assert [host["name"] for host in run["hosts"]] == ["noop-1", "noop-2"]
    assert run["noop"] == ["noop-1", "noop-2"]
    assert "consul" not in run["versions"], "nobody asked for Consul"


SHARED = {
    "datacenter": {
        "consul": {"servers": 1, "clients": 0, "config": {"performance": {"raft_multiplier": 1}}},
        "noop": {"agents": 2},
    },
    "load": {
        "gets": {"kind": "noop.get", "rate": "20/s"},
        "kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "via": "consul:clients"},
    },
    "require": ["noop.answers >= 1", "raft.leader >= 1"],
    "method": [
        {"fault": "process.pause", "on": "host:noop-1", "for": "3s"},
        {"fault": "process.kill", "on": "host:noop-2/consul", "for": "3s"},
        {"fault": "process.pause", "on": "noop:agents/consul", "at": "6s", "for": "2s"},
    ],
    "recovery": {"for": "10s"},
    "expect": [
        {"writes_recover": {"load": "gets", "p50_below": "300ms", "within": "5s"}},
        {"writes_recover": {"load": "kv-writes", "p50_below": "300ms", "within": "8s"}},
    ],
}
"""Two hosts with an agent of the example and a client of Consul each: the load of Consul goes through these."""


@pytest.mark.lie
@run_of("shared", **SHARED)
def test_it_shares_its_hosts_with_consul_and_each_agent_is_broken_by_itself(drill):
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), drill.result
    recording = Recording(drill.recording)
    assert sorted((fault.kind, fault.host, fault.agent) for fault in recording.faults) == [
        ("process.kill", "noop-2", "consul"),
        ("process.pause", "noop-1", "consul"),
        ("process.pause", "noop-1", "noop"),
        ("process.pause", "noop-2", "consul"),
    ]
    run = json.loads((drill.recording / "run.json").read_text())
    agents = {host["name"]: host["agents"] for host in run["hosts"]}
    assert agents["noop-1"] == agents["noop-2"] == {"noop": "agent", "consul": "client"}
    for host in ("noop-1", "noop-2"):
        assert {log.name for log in (drill.recording / "logs" / host).glob("*.log")} == {"consul.log", "noop.log"}
    assert {"consul-1", "noop-1", "noop-1/consul", "noop-2", "noop-2/consul"} == set(
        recording.series("process.rss").host
    )


def with_tokens(folder):
    """Clients that were told the token, of which one writes it where its errors are kept."""
    path = written(folder / "tokens.yaml")
    document = json.loads(path.read_text())
    known = hashlib.sha256(TOKEN.encode()).hexdigest()
    asks = "curl -s -o /dev/null {url}; "  # a client that sends nothing is INVALID
    knows = ["sh", "-c", f'{asks}test "$(printf %s "$NOOP_TOKEN" | sha256sum)" = "{known}  -"']
    tells = ["sh", "-c", f'{asks}echo "it is $NOOP_TOKEN" >&2; exit $(($(date +%s) % 2))']
    document["clients"] = {
        "knows": {"command": knows, "rate": "2/s", "via": "noop:agents"},
        "tells": {"command": tells, "rate": "2/s", "via": "noop:agents"},
    }
    document["steady_state"]["require"].append("knows.errors < 1%")
    path.write_text(json.dumps(document))
    return Drill(path, folder / "runs", env=ENVIRONMENT)


@pytest.mark.lie
@drilled(with_tokens)
def test_its_token_reaches_clients_and_agents_and_stands_in_no_recording(drill):
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), drill.result
    files = [file for file in drill.recording.rglob("*") if file.is_file()]
    assert [file.name for file in files if TOKEN.encode() in file.read_bytes()] == []
    assert any("it is [redacted]" in error for error in Recording(drill.recording).operations("tells").errors)


def too_early(folder):
    """Its agents do not wait for Consul's."""
    (folder / "early").mkdir()
    (folder / "early/hashidrill_early.py").write_text(
        "from hashidrill_noop import NoopService\n\n\nclass Early(NoopService):\n    after = ()\n"
    )
    info = folder / "early/hashidrill_early-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hashidrill-early\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hashidrill.services]\nnoop = hashidrill_early:Early\n")
    early = environment(PYTHONPATH=f"{places.SUPPORT / 'noop_service'}:{folder / 'early'}")
    # no leader before 10 s, however long an agent takes to look for one
    slow = {"servers": 1, "clients": 0, "config": {"performance": {"raft_multiplier": 10}}}
    changes = SHARED | {"datacenter": SHARED["datacenter"] | {"consul": slow}}
    return Drill(written(folder / "early.yaml", **changes), folder / "runs", env=early)


@pytest.mark.lie
@drilled(too_early)
def test_an_agent_that_is_started_before_what_it_needs_ends_and_the_run_says_so(drill):
    """The example's agents end where the Consul agent of their host knows no leader yet: they are started after it."""
    assert drill.exit_code == 3
    assert "noop ended" in json.dumps(drill.result)


def without_agents(folder):
    path = folder / "bare.yaml"
    client = {
        "command": ["{python}", "-m", "hashidrill.clients.retry.example", "{url}/v1/kv/app"],
        "rate": "4/s",
        "via": "script",
    }
    changes = {
        "datacenter": {},
        "require": ["alone.errors < 1%"],
        "method": [
            {"fault": "tap.fail", "on": "client:alone", "with": {"fault": "503", "percent": "30%"}, "for": "4s"}
        ],
        "expect": [{"available_during": {"load": "alone", "success": "20%"}}],
    }
    document = json.loads(written(path, **changes).read_text())
    document["clients"] = {"alone": client}
    del document["load"]
    path.write_text(json.dumps(document))
    return Drill(path, folder / "runs", env=environment())


@drilled(without_agents)
def test_an_experiment_with_scripted_clients_alone_starts_no_agent_and_is_judged(drill):
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), drill.result
    run = json.loads((drill.recording / "run.json").read_text())
    assert run["hosts"] == []
    assert "consul" not in run["versions"]
    assert not list((drill.recording / "logs").glob("*/*.log"))


def test_its_role_is_a_selector(tmp_path):
    step = {**SILENT, "on": "noop:agents"}
    done = hashidrill("validate", written(tmp_path / "all.yaml", step=step), env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": {**SILENT, "on": "noop:agent"}}, "did you mean noop:agents"),
        ({"step": {**SILENT, "on": "host:noop-3"}}, "there is no host 'noop-3': did you mean noop-2 or noop-1"),
        ({"step": {**SILENT, "on": "consul:leader"}}, "the datacenter has no consul; add datacenter.consul"),
        ({"datacenter": {"consul": {}}}, "there is no host 'noop-1'"),
        ({"datacenter": {"noop": {"agents": 0}}}, "datacenter.noop.agents: expected at least 1, got 0"),
        ({"require": ["noop.answer >= 1"]}, "did you mean noop.answers"),
    ],
    ids=["role", "host", "another service", "not asked for", "its part", "its signal"],
)
def test_a_mistake_about_it_is_told_as_one_about_consul_is(tmp_path, change, said):
    done = hashidrill("validate", written(tmp_path / "wrong.yaml", **change), env=ENVIRONMENT)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split()), done.stderr


def test_it_is_found_through_its_entry_point_alone(tmp_path):
    path = written(tmp_path / "quiet-noop.yaml")
    done = hashidrill("validate", path, env=environment(PYTHONPATH=""))
    assert done.returncode == 2
    assert "noop" in done.stderr
    schema = json.loads(hashidrill("schema", env=ENVIRONMENT).stdout)
    assert "noop" in schema["$defs"]["DatacenterSpec"]["properties"]
