"""Recordings of real runs: with hypotheses of one's own, and on a disk that they fill."""

import json
import os
import shlex
import subprocess

import pytest

from drills import CLI, Drill, environment, experiment, hashidrill
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage

NOTHING = {"fault": "noop", "on": "consul:leader", "for": "2s"}
FEW = """
from hashidrill.core.hypothesis import hypothesis

@hypothesis
def few(recording, *, at_most: int):
    assert len(recording.operations("kv-writes")) < at_most
"""


@pytest.mark.lie
@pytest.mark.nightly
def test_a_hypothesis_of_ones_own_is_run_kept_and_compared(tmp_path):
    project, runs = tmp_path / "project", tmp_path / "runs"
    (project / "hypotheses").mkdir(parents=True)
    (project / "hypotheses" / "mine.py").write_text(FEW)
    own = experiment(project / "own.yaml", method=[NOTHING], expect=[{"few": {"at_most": 99_999}}])
    drill = Drill(own, runs, cwd=project)
    assert (drill.exit_code, drill.finding("few")[0]) == (0, "held")
    assert drill.result["notes"] == []
    assert damage(Recording(drill.recording)) == []
    assert Drill(None, runs, cwd=project).result["notes"] == []
    elsewhere = Drill(None, runs, cwd=tmp_path)
    assert elsewhere.exit_code == 3
    assert f"its run resolved it from {project / 'hypotheses' / 'mine.py'}" in elsewhere.finding("few")[1]
    named = hashidrill("check", "last", "--runs", runs, "--hypotheses", project / "hypotheses", cwd=tmp_path)
    kept = hashidrill("check", "last", "--runs", runs, "--recorded-hypotheses", cwd=tmp_path)
    assert (named.returncode, kept.returncode) == (0, 0), named.stdout + kept.stdout


@pytest.mark.lie
@pytest.mark.nightly
@pytest.mark.may_skip("only root may mount the small disk")
def test_a_run_that_fills_the_disk_under_its_recording_ends_early_and_is_invalid(tmp_path):
    """A tmpfs of 1 MB in a mount namespace of its own; what is on it is copied out before it is gone."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    load = {"kv-writes": {"kind": "consul.kv.write", "rate": "400/s", "keys": 50, "value": "512B"}}
    path = experiment(tmp_path / "full.yaml", method=[{**NOTHING, "for": "60s"}], load=load)
    run = shlex.join([*CLI, "run", str(path), "--plain", "--runs", str(runs)])
    script = f"mount -t tmpfs -o size=1m none {runs} && {run}; code=$?; cp -r {runs} {out}; exit $code"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=110,
        env=environment(),
        check=False,
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert done.returncode == 3, said
    [recording] = [Recording(each) for each in out.iterdir()]
    assert recording.outcome == "crashed", said
    assert "disk is full" in json.dumps(recording.events("end")[-1].data), said
    assert recording.journal[-1].t_ns < 60e9


@pytest.mark.lie
@pytest.mark.long
def test_the_server_that_a_client_agent_asks_is_recorded_and_none_while_it_is_gone(tmp_path):
    kill = {"fault": "process.kill", "on": "host:consul-1", "with": {"signal": "KILL"}, "for": "3s"}
    load = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "via": "consul:clients"}}
    path = experiment(tmp_path / "asks.yaml", method=[kill], load=load, clients=1, recovery="8s")
    recording = Recording(Drill(path, tmp_path / "runs").recording)
    asks = recording.series("consul.asks", "client-1")
    [window] = recording.faults
    told = list(zip(asks.t_ns, asks.text, asks.ok, strict=True))
    assert all(ok for _, _, ok in told), told
    assert {text for t_ns, text, _ in told if t_ns < window.intent_ns} == {"consul-1"}
    assert "" in {text for t_ns, text, _ in told if window.intent_ns < t_ns < window.reverted_ns + 10**9}, told
