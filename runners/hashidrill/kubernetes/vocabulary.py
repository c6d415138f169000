"""The kinds and groups of Kubernetes, Chaos Mesh and Litmus. Light to import: `validate` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class System:
    """Who brings kinds of objects to a cluster, and injects what they say."""

    name: str
    group: str
    version: str
    closed: bool = False
    """Whether its definitions keep fields that they do not know, which nobody then reads: each of those is an error."""

    @property
    def api(self) -> str:
        return f"{self.group}/{self.version}"


def plural_of(kind: str) -> str:
    """As Chaos Mesh names its resources (PodChaos: podchaos), and others theirs (Pod: pods)."""
    return kind.lower() if kind.endswith("Chaos") else f"{kind.lower()}s"


CHAOS_MESH = System("Chaos Mesh", "chaos-mesh.org", "v1alpha1")
FIELDS = {
    "PodChaos": "podChaos",
    "NetworkChaos": "networkChaos",
    "IOChaos": "ioChaos",
    "StressChaos": "stressChaos",
    "TimeChaos": "timeChaos",
    "HTTPChaos": "httpChaos",
    "DNSChaos": "dnsChaos",
    "KernelChaos": "kernelChaos",
    "JVMChaos": "jvmChaos",
    "BlockChaos": "blockChaos",
    "PhysicalMachineChaos": "physicalmachineChaos",
    "AWSChaos": "awsChaos",
    "AzureChaos": "azureChaos",
    "GCPChaos": "gcpChaos",
}
"""Every kind that injects, and the key that holds its spec in a Schedule or a template. The definitions of the pinned
module spell them so: tests/contract/kubernetes/test_chaos_mesh_names.py compares."""
CLOUD = ("AWSChaos", "AzureChaos", "GCPChaos")
CHAOS = tuple(kind for kind in FIELDS if kind not in CLOUD)
"""Those on a pod or a machine; a Schedule or a Workflow would go on after its first one."""


LITMUS = System("Litmus", "litmuschaos.io", "v1alpha1", closed=True)
"""Its definition of a ChaosEngine keeps fields that it does not know, and its operator reads none of them."""
ENGINE, EXPERIMENT, RESULT = "ChaosEngine", "ChaosExperiment", "ChaosResult"

BY_LABEL = {
    "pod-network-partition": "every pod with the label of the engine, and without one every pod of the namespace",
    "pod-autoscaler": "every workload with the label of the engine",
}
"""The experiments that ignore TARGET_PODS, and whom they hit: litmus-go reads only the label of `appinfo` there."""


def why_not_drained(node: str, others: Sequence[str], *, allowed: bool) -> str:
    """Why a node may not be drained on which these other agents of the estate are; "" if it may."""
    if not allowed:
        return (
            "`drain` of the attach file does not say that nodes may be drained: every pod of the node leaves it, not"
            " only those of the agents"
        )
    if others:
        return (
            f"the node {node} also runs {', '.join(others)}: to drain it takes more than one agent at a time; spread"
            " them over nodes by anti-affinity"
        )
    return ""


def one(experiment: str, env: Mapping[str, str]) -> dict[str, Any]:
    """One experiment of an engine. Every value of an environment is a text."""
    listed = [{"name": name, "value": value} for name, value in env.items()]
    return {"name": experiment, "spec": {"components": {"env": listed}}}
