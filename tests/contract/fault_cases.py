"""One or more cases of every fault, for the fake and for the real datacenter."""

from __future__ import annotations

from typing import Any

CASES: list[tuple[str, dict[str, Any]]] = [
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

UNDISARMABLE = {
    "noop": "it has no effect that could be taken away",
    "process.restart": "it is over once it has happened",
}
DISARMED: list[tuple[str, dict[str, Any]]] = list(
    {kind: (kind, params) for kind, params in reversed(CASES) if kind not in UNDISARMABLE}.values()
)
"""One case of each kind of fault that can be taken away behind its back."""


def nature(kind: str) -> dict[str, bool]:
    """What check_fault must know of a kind of fault."""
    return {"has_effect": kind != "noop", "momentary": kind == "process.restart"}
