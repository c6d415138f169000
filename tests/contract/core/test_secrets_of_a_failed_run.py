"""A run that ends as soon as its agent does: through the real sandbox and engine, with an agent that tells secrets."""

import json
import stat
import threading
from pathlib import Path

import pytest

from hashidrill.core.experiment.loader import resolve
from hashidrill.core.protocols.events import Bus, encode
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import JOURNAL_NAME
from hashidrill.lab.runs import launch as runner
from hashidrill.reports.write import judge_and_report

GOSSIP, TOKEN, SHELL = "bWFya2VkLWdvc3NpcC1rZXktMDAwMQ==", "marked-agent/token+0002", "marked-shell-token-0003"
AGENT = """#!/bin/sh
[ "$1" = version ] && { echo "Consul v1.22.2"; exit 0; }
echo "configured with $(cat "${2#-config-file=}")"
echo "environment: $(env)"
exit 1
"""


@pytest.fixture
def experiment(tmp_path):
    agent = tmp_path / "consul"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    document = {
        "apiVersion": "hashidrill/v1",
        "kind": "Experiment",
        "metadata": {"name": "marked", "title": "Marked", "why": "It tests hashidrill itself"},
        "datacenter": {
            "consul": {
                "binary": str(agent),
                "servers": 1,
                "clients": 0,
                "config": {"encrypt": GOSSIP, "acl": {"tokens": {"agent": TOKEN}}},
            },
            "ready_within": "10s",
        },
        "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "5/s"}},
        "steady_state": {"require": ["kv-writes.errors < 1%"]},
        "method": [{"fault": "noop", "on": "consul:leader", "for": "1s"}],
        "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
    }
    path = tmp_path / "marked.yaml"
    path.write_text(f"# {GOSSIP}\n{json.dumps(document, indent=2)}\n")
    return path


def marked(content):
    return [secret for secret in (GOSSIP, TOKEN, SHELL) if secret.encode() in content]


@pytest.mark.long
@pytest.mark.lie
@pytest.mark.live
def test_nothing_of_it_holds_a_secret_though_its_agent_told_them_all(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", SHELL)
    shown: set[bytes] = set()
    ended = threading.Event()

    def look():
        while not ended.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if marked(command):
                    shown.add(command)

    told = []
    watch = threading.Thread(target=look)
    watch.start()
    try:
        run = runner.run_experiment(
            resolve(experiment), runs_dir=tmp_path / "runs", events=Bus(lambda event: told.append(encode(event)))
        )
    finally:
        ended.set()
        watch.join()
    judge_and_report(Recording(run), near_to=experiment)

    assert shown == set()
    assert read_journal(run / JOURNAL_NAME)[-1].data["outcome"] == "crashed"
    assert marked(json.dumps(told).encode()) == []
    files = [file for file in run.rglob("*") if file.is_file()]
    assert {"consul.log", "run.json", "experiment.yaml", "resolved.json", JOURNAL_NAME, "report.html"} <= {
        file.name for file in files
    }
    assert {file.name: marked(file.read_bytes()) for file in files} == {file.name: [] for file in files}
    [log] = run.glob("logs/*/consul.log")
    assert '"encrypt": "[redacted]"' in log.read_text()
    assert "HOME=/" in log.read_text()  # what is no secret is there
    assert "CONSUL_HTTP_TOKEN" not in log.read_text()
    modes = {str(path.relative_to(run)): stat.S_IMODE(path.stat().st_mode) for path in (run, *run.rglob("*"))}
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
