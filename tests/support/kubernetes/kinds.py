"""Each kind of fault on pods that the node can do, with parameters, and how its effect is ended behind its back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubernetes.attached import container, in_network
from kubernetes.node import Node

NAMESPACE = "consul"
POD = "consul-server-1"
Disarm = Callable[[Node], None]


@dataclass(frozen=True)
class Kind:
    """`disarm` ends the effect and leaves the object as it is; none for what is over at once."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    disarm: Disarm | None = None

    @property
    def label(self) -> str:
        said = self.params.get("chaos", "")
        return f"{self.name}-{said}" if said else self.name


def _image_again(node: Node) -> None:
    node.kubectl("-n", NAMESPACE, "set", "image", f"pod/{POD}", "consul=hashidrill.test/consul:1")


def _killed(node: Node) -> None:
    identity, _ = container(node, NAMESPACE, POD)
    node.enter(["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", identity])


def _filter_flushed(node: Node) -> None:
    in_network(node, NAMESPACE, POD, ["iptables-legacy", "-F"])


def _queue_deleted(node: Node) -> None:
    in_network(node, NAMESPACE, POD, ["tc", "qdisc", "del", "dev", "eth0", "root"])


def hog_killed(node: Node) -> None:
    """What takes CPU or memory, by the command of its process: it is in the container's cgroup, and no part of it."""
    hogs = ("stress-ng", "memStress")
    for line in node.enter(["sh", "-c", "grep -aH . /proc/[0-9]*/comm"]).stdout.splitlines():
        path, _, name = line.partition(":")
        if name.startswith(hogs):
            node.enter(["kill", "-KILL", path.split("/")[2]])


def _redirection_flushed(node: Node) -> None:
    in_network(node, NAMESPACE, POD, ["iptables-legacy", "-t", "nat", "-F"])


OF_CHAOS_MESH = (
    Kind("chaos_mesh.pod_kill"),
    Kind("chaos_mesh.container_kill"),
    Kind("chaos_mesh.pod_failure", disarm=_image_again),
    Kind("chaos_mesh.network.partition", disarm=_filter_flushed),
    Kind("chaos_mesh.network.bandwidth", {"rate": "64KB/s"}, _queue_deleted),
    Kind("chaos_mesh.stress.cpu", {"load": "50%"}, hog_killed),
    Kind("chaos_mesh.stress.memory", {"size": "128MiB"}, hog_killed),
    Kind("chaos_mesh.time", {"offset": "10m", "direction": "behind"}, _killed),
    Kind(
        "chaos_mesh.resource",
        {
            "chaos": "NetworkChaos",
            "spec": {"action": "partition", "direction": "to", "externalTargets": ["0.0.0.0/1", "128.0.0.0/1"]},
            "effect": "silent",
        },
        _filter_flushed,
    ),
)
OF_LITMUS = (
    Kind("litmus.pod_delete"),
    Kind("litmus.container_kill"),
    Kind("litmus.pod_cpu_hog", {"load": "50%"}, hog_killed),
    Kind("litmus.pod_memory_hog", {"size": "128MiB"}, hog_killed),
    Kind("litmus.pod_http_latency", {"delay": "500ms"}, _redirection_flushed),
    Kind("litmus.pod_http_reset_peer", {}, _redirection_flushed),
    Kind(
        "litmus.experiment",
        {
            "experiment": "pod-http-reset-peer",
            "env": {"TARGET_SERVICE_PORT": "8500", "PROXY_PORT": "20001"},
            "effect": "silent",
        },
        _redirection_flushed,
    ),
)
ALL = (*OF_CHAOS_MESH, *OF_LITMUS)
LASTING = tuple(kind for kind in ALL if kind.disarm is not None)
