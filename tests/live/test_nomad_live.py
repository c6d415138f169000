"""A real Nomad is stood up, runs work, is broken as any host is, and recovers; as root and as an ordinary user."""

import json
import os

import pytest

from drills import Drill, experiment
from hashidrill.core.recording.reader import Recording
from library_runs import LIBRARY
from ordinary_user import ordinary_user
from places import ROOT

pytestmark = [pytest.mark.live, pytest.mark.nomad, pytest.mark.needs("datacenter", "nomad")]
SERVERS, NODES = 3, 3
OURS = sorted(name for name in LIBRARY if name.startswith("nomad/"))


WORKING = {"web": {"kind": "nomad.replicas", "count": 6}, "batch": {"kind": "nomad.dispatch", "rate": "0.5/s"}}
READY = ["web.running >= 6", "nomad.leader >= 1", f"nomad.nodes_ready >= {NODES}"]


def written(path, *, load=WORKING, require=READY, recovery="15s", **parts):
    agents = {"nomad": {"servers": SERVERS, "clients": NODES}}
    steady = {"steady": "3s", "within": "60s", "require": require}
    return experiment(path, datacenter=agents, load=load, recovery=recovery, **steady, **parts)


def test_work_goes_on_while_the_leader_is_killed_and_while_its_disk_is_slow(tmp_path):
    method = [
        {"fault": "process.kill", "on": "nomad:leader", "at": "0s", "for": "5s"},
        {
            "fault": "disk.latency",
            "on": "nomad:leader",
            "with": {"op": "fsync", "delay": "200ms"},
            "at": "12s",
            "for": "6s",
        },
    ]
    expect = [
        {"no_acknowledged_write_lost": {"load": "batch"}},
        {"replicas_return": {"load": "web", "within": "30s"}},
    ]
    drill = Drill(written(tmp_path / "nomad-at-work.yaml", method=method, expect=expect), tmp_path / "runs")
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), (drill.result, drill.said)
    recording = Recording(drill.recording)
    kill, slow = recording.faults
    assert (kill.kind, kill.agent, kill.proven) == ("process.kill", "nomad", True)
    assert (slow.kind, slow.agent, slow.proven) == ("disk.latency", "nomad", True)
    assert kill.host != slow.host, "the leadership went to another server"
    logged = {path.parent.name for path in drill.recording.glob("logs/*/nomad.log")}
    assert logged == {f"nomad-{n}" for n in range(1, SERVERS + 1)} | {f"node-{n}" for n in range(1, NODES + 1)}
    batch = recording.operations("batch")
    assert int(batch.ok.sum()) > 8
    assert set(recording.series("nomad.allocs_failed").value) == {0.0}


@pytest.mark.nightly  # tests/live/test_up_stack.py has Nomad as an ordinary user each time
@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
@pytest.mark.may_skip("as an ordinary user, the test above shows this")
@pytest.mark.needs("setpriv")
def test_an_ordinary_user_runs_nomad_as_root_does(binary):
    """Its clients see another user than 0 there, which they would take for the right to mount."""
    method = [{"fault": "nomad.node.black_hole", "on": "nomad:one-client", "for": "4s"}]
    expect = [{"replicas_return": {"load": "web", "within": "30s"}}]
    with ordinary_user(binary("nomad")) as user:
        path = written(user.home / "nomad-of-nobody.yaml", method=method, expect=expect, recovery="26s")
        path.chmod(0o644)
        done = user("run", path, "--json", "--runs", user.home / "runs")
        assert done.returncode == 0, done.stderr
        [result] = json.loads(done.stdout)
        assert (result["verdict"], result["outcome"], result["invalid"]) == ("PASS", "complete", [])


@pytest.mark.nightly
@pytest.mark.parametrize("name", OURS)
def test_an_experiment_passes_and_its_faults_are_proven(name, tmp_path):
    Drill(name, tmp_path / "runs", cwd=ROOT, within_s=240).passed(LIBRARY[name])


WORK = {
    "batch": {"kind": "nomad.dispatch", "rate": "0.5/s", "runs_for": "6s", "witness": True},
    "deploys": {"kind": "nomad.job.churn", "rate": "0.5/s", "jobs": 4},
}
AT_WORK = ["nomad.leader >= 1", f"nomad.nodes_ready >= {NODES}", "batch.errors < 1%", "deploys.errors < 1%"]


@pytest.mark.nightly
def test_work_is_accounted_for_while_a_node_loses_its_servers(tmp_path):
    method = [{"fault": "nomad.node.disconnect", "on": "nomad:one-client", "for": "15s"}]
    expect = [
        {"no_alloc_lost": {"load": "batch"}},
        {"no_acknowledged_write_lost": {"load": "deploys"}},
        {"nodes_reappear": {"within": "15s"}},
    ]
    path = written(tmp_path / "node-gone.yaml", method=method, expect=expect, load=WORK, require=AT_WORK)
    drill = Drill(path, tmp_path / "runs")
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), (drill.result, drill.said)
    recording = Recording(drill.recording)
    heard = recording.series("batch.witnessed")
    assert int((heard.value > 0).sum()) > 5, "hardly any task said that it ran"
    assert recording.series("nomad.heartbeat_age", "node-1").value.max() > 3


@pytest.mark.nightly
def test_what_the_restore_of_a_snapshot_takes_back_is_counted_and_nothing_else_is_lost(tmp_path):
    method = [
        {"fault": "nomad.snapshot.save", "on": "nomad:leader", "with": {"name": "early"}, "at": "0s", "for": "4s"},
        {
            "fault": "nomad.snapshot.restore",
            "on": "nomad:leader",
            "with": {"snapshot": "early"},
            "at": "16s",
            "for": "6s",
        },
    ]
    expect = [
        {"no_work_lost_but_rolled_back": {"load": "batch"}},
        {"no_work_lost_but_rolled_back": {"load": "deploys"}},
    ]
    path = written(tmp_path / "set-back.yaml", method=method, expect=expect, load=WORK, require=AT_WORK)
    drill = Drill(path, tmp_path / "runs")
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), (drill.result, drill.said)
    path = written(
        tmp_path / "lost.yaml",
        method=method,
        load=WORK,
        require=AT_WORK,
        expect=[{"no_alloc_lost": {"load": "batch"}}, {"no_acknowledged_write_lost": {"load": "batch"}}],
    )
    drill = Drill(path, tmp_path / "runs")
    assert drill.result["verdict"] == "FAIL", "what Nomad forgot passes for kept"


def test_the_library_has_experiments_on_nomad():
    assert OURS
