"""One or more cases of every fault, for the fake and for the real datacenter."""

from __future__ import annotations

from typing import Any

Case = tuple[str, dict[str, Any]]
HOST_CASES: list[Case] = [
    ("noop", {}),
    ("disk.latency", {"op": "fsync", "delay": "200ms"}),
    ("disk.latency", {"op": "write", "delay": "100ms", "jitter": "20ms"}),
    ("disk.latency", {"op": "read", "delay": "100ms"}),
    ("disk.latency", {"op": "all", "delay": "50ms", "percent": "50%"}),
    ("disk.error", {"op": "fsync", "errno": "EIO"}),
    ("disk.error", {"op": "write", "errno": "EROFS", "percent": "40%"}),
    ("disk.full", {}),
    ("disk.full", {"leave": "1MB"}),
    ("disk.bandwidth", {"rate": "256kB/s"}),
    ("disk.bandwidth", {"rate": "8kB/s", "op": "read"}),
    ("process.pause", {}),
    ("process.kill", {"signal": "KILL"}),
    ("process.restart", {"signal": "KILL"}),
    ("cpu.throttle", {"cores": 0.2}),
    ("network.partition", {"from": "all"}),
    ("network.partition", {"from": "servers", "direction": "in"}),
    ("network.loss", {"percent": "30%"}),
    ("network.block", {"port": 8500, "from": "all"}),
    ("network.block", {"port": 8500, "from": "clients", "action": "reject"}),
]
LINK_CASES: list[Case] = [
    ("network.latency", {"port": 8300, "delay": "200ms", "from": "servers"}),
    ("network.latency", {"port": 8300, "delay": "100ms", "from": "servers", "direction": "out"}),
    ("network.latency", {"port": 8500, "delay": "300ms", "jitter": "100ms"}),
    ("network.latency", {"port": 8500, "delay": "50ms", "from": "clients", "direction": "both"}),
    ("network.bandwidth", {"port": 8500, "rate": "64kB/s", "from": "clients"}),
    ("network.bandwidth", {"port": 8300, "rate": "1MB/s", "from": "servers", "direction": "both"}),
    ("network.timeout", {"port": 8500, "from": "clients"}),
    ("network.timeout", {"port": 8500, "from": "clients", "timeout": "400ms"}),
    ("network.reset", {"port": 8500, "from": "clients"}),
    ("network.reset", {"port": 8500, "from": "clients", "after": "300ms"}),
    ("network.slow_close", {"port": 8500, "from": "clients", "delay": "300ms"}),
    ("network.slicer", {"port": 8500, "from": "clients"}),
    ("network.limit_data", {"port": 8500, "from": "clients", "bytes": "2kB"}),
    (
        "toxiproxy.toxic",
        {"port": 8500, "from": "clients", "type": "latency", "attributes": {"latency": 200}, "toxicity": "50%"},
    ),
    (
        "toxiproxy.toxic",
        {"port": 8500, "from": "clients", "type": "limit_data", "attributes": {"bytes": 500}, "stream": "upstream"},
    ),
]
CONSUL_CASES: list[Case] = [
    ("consul.config", {"set": {"raft_snapshot_threshold": 50, "raft_trailing_logs": 60}}),
    ("consul.config", {"set": {"raft_snapshot_interval": "7s"}, "by": "restart"}),
    ("consul.config", {"set": {"use_streaming_backend": False, "rpc": {"enable_streaming": False}}}),
    ("consul.config", {"set": {"telemetry": {"prefix_filter": ["-consul.raft"]}}}),
    ("consul.leader.transfer", {}),
    ("consul.leader.transfer", {"to": "consul-3"}),
    ("consul.leader.avoid", {}),
    ("consul.leader.pin", {}),
    ("consul.streams.gather", {}),
    ("consul.agent.stop", {}),
    ("consul.agent.stop", {"leave": True}),
    ("consul.server.replace", {}),
    ("consul.session.expire", {}),
    ("consul.session.expire", {"prefix": "lock"}),
    ("consul.kv.bloat", {"keys": 300, "value": "2kB"}),
]
"""On consul-1, which leads the fake and has a session there; on the real thing: see real_consul_faults.py."""
STATE_CASES: list[Case] = [
    ("consul.snapshot.save", {"name": "later"}),
    ("consul.snapshot.restore", {"snapshot": "before"}),
    ("consul.raft.bloat", {"free_pages": 50_000}),
    ("consul.raft.compact", {}),
]
"""Checked and disarmed in test_state_faults_fake.py and test_state_faults_real.py: they need a state to begin with."""

TAP_CASES: list[Case] = [
    ("tap.fail", {"fault": "503"}),
    ("tap.fail", {"fault": "reset-after-fresh", "percent": "30%", "seed": 7}),
]
"""On a client; of every class, on a real tap, and disarmed: see test_clients_real.py."""

CASES = [*HOST_CASES, *LINK_CASES, *CONSUL_CASES, *TAP_CASES]

UNDISARMABLE = {
    "noop": "it has no effect that could be taken away",
    "process.restart": "it is over once it has happened",
}
DISARMED: list[Case] = list(
    {kind: (kind, params) for kind, params in reversed(HOST_CASES) if kind not in UNDISARMABLE}.values()
)
"""One case of each kind of fault on a host that can be taken away behind its back; links: see real_links.py."""


OLD = {"consul.streams.gather": "1.10.3"}
"""The Consul of faults that are not for the current one."""

MOMENTARY = {
    "process.restart",
    "consul.leader.transfer",
    "consul.session.expire",
    "consul.snapshot.save",
    "consul.snapshot.restore",
    "consul.raft.compact",
}


def nature(kind: str) -> dict[str, bool]:
    """What check_fault must know of a kind of fault."""
    return {"has_effect": kind != "noop", "momentary": kind in MOMENTARY}


async def without_rules(host):
    """Takes all packet rules of a host away, behind the back of whoever set them."""
    for table in await host.packet_tables():
        await host.clear_packet_rules(table)
