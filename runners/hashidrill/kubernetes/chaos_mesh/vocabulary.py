"""The words of Chaos Mesh that faults need before any cluster is asked. Light to import: `validate` does."""

from hashidrill.kubernetes.kubernetes.plurals import System

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
