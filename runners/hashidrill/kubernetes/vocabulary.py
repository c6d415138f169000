"""The kinds and groups of Kubernetes, Chaos Mesh and Litmus. Imports little, because `validate` uses it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class System:
    """A system that adds kinds of objects to a cluster and injects the faults that these objects describe."""

    name: str
    group: str
    version: str
    closed: bool = False
    """Whether an unknown field is an error, because the system's definitions keep it but nothing reads it."""

    @property
    def api(self) -> str:
        return f"{self.group}/{self.version}"


def plural_of(kind: str) -> str:
    """The resource name of a kind: of Chaos Mesh (PodChaos: podchaos) or of others (Pod: pods)."""
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
"""Every kind that injects, and the key of its spec in a Schedule or a template, spelled as in the pinned module's
definitions (tests/contract/kubernetes/test_chaos_mesh_names.py compares)."""
CLOUD = ("AWSChaos", "AzureChaos", "GCPChaos")
CHAOS = tuple(kind for kind in FIELDS if kind not in CLOUD)
"""The kinds for a pod or a machine, without Schedule and Workflow, which go on after their first fault."""


LITMUS = System("Litmus", "litmuschaos.io", "v1alpha1", closed=True)
"""Litmus's definition of a ChaosEngine keeps unknown fields, and its operator reads none of them."""
ENGINE, EXPERIMENT, RESULT = "ChaosEngine", "ChaosExperiment", "ChaosResult"

BY_LABEL = {
    "pod-network-partition": "every pod with the engine's label, or, if it has none, every pod of the namespace",
    "pod-autoscaler": "every workload with the engine's label",
}
"""The experiments that ignore TARGET_PODS, and what they hit: litmus-go reads only the label in their `appinfo`."""


def why_not_drained(node: str, others: Sequence[str], *, allowed: bool) -> str:
    """Why a node may not be drained that also runs `others`, other agents of the estate; "" if it may."""
    if not allowed:
        return (
            "`drain` of the attach file does not say that nodes may be drained: every pod leaves the node, not only"
            " the agents' pods"
        )
    if others:
        return (
            f"the node {node} also runs {', '.join(others)}: draining it would stop more than one agent at a time;"
            " spread them over nodes by anti-affinity"
        )
    return ""


def one(experiment: str, env: Mapping[str, str]) -> dict[str, Any]:
    """One experiment of an engine. All values of its environment are strings."""
    listed = [{"name": name, "value": value} for name, value in env.items()]
    return {"name": experiment, "spec": {"components": {"env": listed}}}
