"""Moments on real agents: each comes soon after the agent's own log says what it is about."""

from datetime import datetime

import pytest

from drills import Drill, experiment
from hashidrill.core.recording.reader import Recording

pytestmark = [pytest.mark.live, pytest.mark.nightly, pytest.mark.timeout(400)]
LOGGED = {
    "snapshot begins": "starting snapshot up to",
    "snapshot installed": "installed remote snapshot",
    "leader elected": "entering leader state",
}
SOON_S = 1.0
"""A look takes 50 ms; an agent that was just elected needs some hundred milliseconds to answer."""
CONSUL = {
    "datacenter": {
        "consul": {
            "version": "1.22.2",
            "servers": 3,
            "clients": 0,
            "config": {"performance": {"raft_multiplier": 1}},
            "server_config": {
                "raft_snapshot_threshold": 100,
                "raft_snapshot_interval": "1s",
                "raft_trailing_logs": 20,
                "raft_logstore": {"backend": "boltdb"},  # the default still reads what it cut off
                "autopilot": {"cleanup_dead_servers": False},
            },
        }
    },
    "load": {"writes": {"kind": "consul.kv.write", "rate": "50/s", "keys": 100, "value": "128B"}},
}
_RAFT = {"raft_snapshot_threshold": 20, "raft_snapshot_interval": "1s", "raft_trailing_logs": 5}
NOMAD = {
    "datacenter": {
        "nomad": {"version": "1.10.5", "servers": 3, "clients": 1, "server_config": {"server": _RAFT}},
    },
    "load": {"writes": {"kind": "nomad.dispatch", "rate": "5/s"}},
}


def method(product):
    return [
        {"mark": "snapshot", "for": "500ms", "when": "snapshot begins", "within": "20s"},
        {
            "name": "cut",
            "fault": "network.partition",
            "on": f"{product}:one-follower",
            "with": {"from": "servers"},
            "at": "1s",
            "for": "6s",
        },
        {"mark": "installed", "at": "7s", "for": "500ms", "when": "snapshot installed", "within": "30s"},
        {"name": "lost", "fault": "process.kill", "on": f"{product}:leader", "at": "8s", "for": "8s"},
        {
            "name": "then",
            "fault": "network.loss",
            "on": f"{product}:one-follower",
            "with": {"from": "all", "percent": "5%"},
            "at": "8500ms",
            "for": "3s",
            "when": "leader elected",
        },
    ]


def lines(recording, words):
    """When any agent logged that, in seconds since the epoch."""
    for path in recording.path.glob("logs/*/*.log"):
        for line in path.read_text(errors="replace").splitlines():
            if words in line.lower():
                yield datetime.fromisoformat(line.split(maxsplit=1)[0]).timestamp()


@pytest.mark.parametrize(
    ("product", "given"),
    [
        pytest.param("consul", CONSUL, marks=pytest.mark.needs("datacenter", "consul 1.22.2")),
        pytest.param("nomad", NOMAD, marks=[pytest.mark.needs("datacenter", "nomad 1.10.5"), pytest.mark.nomad]),
    ],
)
def test_a_moment_comes_soon_after_the_agent_logs_it(product, given, tmp_path, capsys):
    judged = [{"available_during": {"load": "writes", "success": "1%"}}]
    ready = {"steady": "3s", "within": "60s", "require": ["writes.errors < 5%"]}
    path = experiment(tmp_path / "moments.yaml", method=method(product), recovery="5s", expect=judged, **ready, **given)
    drill = Drill(path, tmp_path, within_s=300)
    recording = Recording(drill.recording)
    journal = recording.journal
    found = {}
    for entry in journal:
        if entry.event != "moment":
            continue
        assert entry.data["came"], entry.data
        when = entry.data["when"]
        since = entry.wall - entry.data["waited_ns"] / 1e9
        logged = min(at for at in lines(recording, LOGGED[when]) if at >= since)
        began = next(
            each for each in journal if each.t_ns >= entry.t_ns and each.event in {"mark.begin", "fault.applied"}
        )
        found[when] = (entry.wall - logged, began.wall - logged)
    assert {*found} == {*LOGGED}
    with capsys.disabled():
        for when, (seen_s, began_s) in found.items():
            print(f"{product}: {when}: seen {seen_s:.3f}s after the log's line, in force after {began_s:.3f}s")  # noqa: T201 - figures
    assert all(-0.2 < seen_s < SOON_S for seen_s, _ in found.values()), found
