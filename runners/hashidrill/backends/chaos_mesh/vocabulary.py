"""The words of Chaos Mesh that faults need before any cluster is asked. Light to import: `validate` does."""

from hashidrill.backends.kubernetes.plurals import System

CHAOS_MESH = System("Chaos Mesh", "chaos-mesh.org", "v1alpha1")
CHAOS = (
    "PodChaos", "NetworkChaos", "IOChaos", "StressChaos", "TimeChaos", "HTTPChaos", "DNSChaos", "KernelChaos",
    "JVMChaos", "BlockChaos", "PhysicalMachineChaos",
)  # fmt: skip
"""Those that inject by themselves; a Schedule or a Workflow would go on after its first one."""
