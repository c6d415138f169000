"""A service from another distribution: a product that no other folder knows is started, broken and judged."""

from __future__ import annotations

import json

import pytest

import places
from drills import Drill, environment, hashidrill
from hashidrill.recording.reader import Recording

ENVIRONMENT = environment(PYTHONPATH=places.SUPPORT / "noop_service")
SILENT = {"fault": "noop.silence", "on": "host:noop-1", "for": "4s"}


def written(path, *, datacenter=None, step=SILENT, require=None):
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
    path.write_text(json.dumps(document))
    return path


def test_an_experiment_with_it_is_run_and_its_fault_is_proven_and_its_load_is_recorded(tmp_path):
    drill = Drill(written(tmp_path / "quiet-noop.yaml"), tmp_path / "runs", env=ENVIRONMENT)
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
